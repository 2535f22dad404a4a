"""usage: duckdb_answer.py TABLE STORE CSV

Writes the loaded rows out with each value in the text that the source file has for it.
"""

import sys

import duckdb

from tables import TABLES

TEXT = {
    "timestamptz": "strftime({} AT TIME ZONE 'UTC', '%Y-%m-%dT%H:%M:%SZ')",
}


def main(table, store, path):
    columns = ", ".join(TEXT.get(kind, "{}").format(name) for name, kind in TABLES[table])
    with duckdb.connect(store, read_only=True) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(f"COPY (SELECT {columns} FROM {table}) TO '{path}' (FORMAT csv, HEADER false)")


main(*sys.argv[1:])
