"""usage: pandas_copy.py TABLE CSV URL

Loads by pandas as its documentation shows for PostgreSQL: `read_csv` in chunks, `to_sql` with a
`method` that hands each chunk to COPY, here through psycopg 3.
"""

import csv
import io
import sys

import pandas as pd
import psycopg
import sqlalchemy

from tables import names

CHUNK_ROWS = 100_000


def copy_rows(table, connection, keys, rows):
    """One chunk, written as CSV into COPY."""
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    columns = ", ".join(f'"{key}"' for key in keys)
    with connection.connection.cursor() as cursor:
        with cursor.copy(f'COPY "{table.name}" ({columns}) FROM STDIN WITH CSV') as copy:
            copy.write(text.getvalue())


def main(table, path, url):
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url))
    chunks = pd.read_csv(path, header=None, names=names(table), chunksize=CHUNK_ROWS,
                         keep_default_na=False, dtype={"event_id": str})
    with engine.begin() as connection:
        for chunk in chunks:
            chunk.to_sql(table, connection, if_exists="append", index=False, method=copy_rows)


main(*sys.argv[1:])
