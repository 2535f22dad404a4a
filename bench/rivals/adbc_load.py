"""usage: adbc_load.py TABLE CSV URL

Loads by ADBC as its documentation recommends for bulk data: a stream of Arrow batches into
`adbc_ingest`, which writes them with COPY in PostgreSQL's binary format.
"""

import sys

import adbc_driver_postgresql.dbapi
import pyarrow as pa
import pyarrow.csv

from tables import TABLES, names

ARROW = {
    "text": pa.string(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "timestamptz": pa.timestamp("us", tz="UTC"),
    "boolean": pa.bool_(),
    "jsonb": pa.string(),
}


def batches(table, path):
    """The file as a stream of typed Arrow batches."""
    types = {name: ARROW[kind] for name, kind in TABLES[table]}
    return pyarrow.csv.open_csv(
        path,
        read_options=pyarrow.csv.ReadOptions(column_names=names(table)),
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
        convert_options=pyarrow.csv.ConvertOptions(column_types=types, strings_can_be_null=True,
                                                   quoted_strings_can_be_null=False),
    )


def with_json(reader):
    """The same batches, with JSON columns marked as such, so that they arrive as jsonb."""
    kind = pa.json_()
    fields = [f.with_type(kind) if f.name == "payload" else f for f in reader.schema]
    schema = pa.schema(fields)

    def marked():
        for batch in reader:
            columns = [c.cast(f.type) if c.type != f.type else c
                       for c, f in zip(batch.columns, schema)]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, marked())


def main(table, path, url):
    reader = with_json(batches(table, path))
    with adbc_driver_postgresql.dbapi.connect(url) as connection:
        with connection.cursor() as cursor:
            cursor.adbc_ingest(table, reader, mode="append")
        connection.commit()


main(*sys.argv[1:])
