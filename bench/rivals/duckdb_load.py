"""usage: duckdb_load.py TABLE CSV STORE

Loads into a DuckDB database as its documentation recommends: CREATE TABLE AS over read_csv with
the types given. Closing the database checkpoints it.
"""

import sys

import duckdb

from tables import TABLES

DUCKDB = {"text": "VARCHAR", "jsonb": "JSON"}


def main(table, path, store):
    columns = {name: DUCKDB.get(kind, kind.upper()) for name, kind in TABLES[table]}
    with duckdb.connect(store) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(
            f"CREATE TABLE {table} AS FROM read_csv('{path}', header = false, quote = '\"', "
            f"escape = '\"', columns = {columns})"
        )


main(*sys.argv[1:])
