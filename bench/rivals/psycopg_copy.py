"""usage: psycopg_copy.py TABLE CSV URL

Loads by psycopg 3 as its documentation recommends: blocks of the file written into COPY.
"""

import sys

import psycopg

BLOCK = 1 << 18


def main(table, path, url):
    with psycopg.connect(url) as connection, connection.cursor() as cursor, open(path, "rb") as file:
        with cursor.copy(f"COPY {table} FROM STDIN (FORMAT csv)") as copy:
            while block := file.read(BLOCK):
                copy.write(block)


main(*sys.argv[1:])
