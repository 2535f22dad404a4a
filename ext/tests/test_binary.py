"""COPY (FORMAT binary): values of every type, and streams that are truncated, changed or malformed."""

import os
import random
import struct
import unittest

from .cluster import OnCluster
from .differential import ROUTES, compare

COPY = "COPY t FROM {} WITH (FORMAT binary)"
HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TYPES_SQL = """
CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE DOMAIN positive AS int CHECK (VALUE > 0); CREATE DOMAIN plain AS numeric(8, 3);
CREATE TYPE pair AS (a int, b text);
"""
# column type, expression of i
COLUMNS = [
    ("int", "i"), ("smallint", "i % 30000"), ("bigint", "i * 10000000000"), ("oid", "i"), ("bool", "i % 3 = 0"), ("real", "i / 7.0"),
    ("float8", "i / 7.0"), ("float8", "'NaN'::float8"), ("text", "'žlutý ' || i"), ("varchar(9)", "'ž' || i"), ("char(8)", "'ž' || i"),
    ("name", "repeat('x', i % 63)"), ("json", "'{\"a\": ' || i || '}'"), ("jsonb", "jsonb_build_object('a', i)"), ("bytea", "decode(md5(i::text), 'hex')"),
    ("numeric", "i / 7.0"), ("numeric", "(-i)::numeric * 1e30"), ("numeric", "'NaN'::numeric"), ("numeric(12,4)", "i / 16.0"), ("numeric(5,-2)", "i / 16 * 100"),
    ("numeric(12,2)", "0"), ("numeric", "100000.000 * (i % 3)"), ("plain", "i / 8.0"), ("date", "'2000-01-01'::date + i"), ("date", "'infinity'::date"), ("time", "'01:02:03.5'::time"),
    ("time(2)", "'01:02:03.5'::time"), ("timetz", "'01:02:03+05:30'::timetz"), ("timestamp", "'1999-01-01'::timestamp + i * '1 hour'::interval"),
    ("timestamp(3)", "'1999-01-01'::timestamp"), ("timestamptz", "'-infinity'::timestamptz"), ("timestamptz", "'1999-01-01'::timestamptz + i * '1 us'::interval"),
    ("interval", "i * '1 day 02:03:04'::interval"), ("interval day to second(2)", "'1 day'::interval"), ("uuid", "md5(i::text)::uuid"), ("inet", "'10.0.0.0/8'::inet + i"),
    ("cidr", "'10.0.0.0/8'::cidr"), ("macaddr", "'08:00:2b:01:02:03'::macaddr"), ("macaddr8", "'08:00:2b:01:02:03:04:05'::macaddr8"),
    ("bit(5)", "B'10101'"), ("varbit", "B'101'"), ("money", "i::money"), ("mood", "'ok'::mood"), ("positive", "i"), ("pair", "(i, 'x')::pair"),
    ("int[]", "ARRAY[i, NULL]"), ("text[]", "ARRAY['ž', NULL, i::text]"), ("int4range", "int4range(i, i + 4)"), ("point", "point(i, 2)"), ("tsvector", "'a:1 b:2'::tsvector"),
]


def field(value):
    """A field with its length; None is NULL."""
    return struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value


def row(*values):
    """A tuple of fields."""
    return struct.pack(">h", len(values)) + b"".join(map(field, values))


class Binary(OnCluster):
    """Streams that stock COPY TO writes, and malformed ones."""

    prepared = TYPES_SQL

    def same(self, data, table="CREATE TABLE t (a int, b text)", copy=COPY, setup="", route=ROUTES):
        """Loads by both and asserts equal outcomes; returns the error, or None."""
        with self.subTest(copy=copy, table=table[:60], data=data[:60]):
            return compare(self, self.cluster, table, copy, data, setup, route, ordered="workers" not in copy + setup)

    def written(self, query):
        """The output of COPY TO."""
        path = self.cluster.home / "written"
        self.cluster.sql(f"COPY ({query}) TO '{path}' WITH (FORMAT binary)")
        return path.read_bytes()

    def test_types(self):
        """All types in one table, with and without workers, and each type alone with some NULLs: the rows are those of stock COPY."""
        every = ", ".join(f"c{n} {kind}" for n, (kind, _) in enumerate(COLUMNS))
        values = ", ".join(f"({value})::{kind}" for kind, value in COLUMNS)
        data = self.written(f"SELECT {values} FROM generate_series(1, 2500) i")
        self.assertIsNone(self.same(data, f"CREATE TABLE t ({every})"))
        self.assertIsNone(self.same(data, f"CREATE TABLE t ({every})", COPY[:-1] + ", workers 2)"))
        for kind, value in COLUMNS:
            data = self.written(f"SELECT i, CASE WHEN i % 5 <> 0 THEN ({value})::{kind} END, 'x' FROM generate_series(1, 60) i")
            self.assertIsNone(self.same(data, f"CREATE TABLE t (a int, v {kind}, b text)"))
        self.assertEqual(self.cluster.sql("SELECT count(*) FROM t"), "60")

    def test_streams(self):
        """Header extensions, trailers, tuples with a wrong number of fields, fields of a wrong length, invalid
        values: rows or errors are those of stock COPY, workers or not."""
        good = row(struct.pack(">i", 1), b"x")
        end = b"\xff\xff"
        many = good * 2500
        for data in (
            HEADER + end, HEADER, HEADER + good, HEADER + many + end, HEADER + many, HEADER + many + b"\0", HEADER + many + end + b"x", HEADER + many + end + good,
            HEADER[:11] + b"\0\0\x12\x34" + b"\0\0\0\x05" + b"12345" + many + end, HEADER[:11] + b"\0\0\0\0\0\0\0\x50" + b"1",
        ):
            self.same(data)
        # With workers: chunks of 256 kB, the end in one of them or between two.
        chunks = b"".join(row(struct.pack(">i", i), b"long " * 60) for i in range(9000))
        for data in (HEADER + chunks + end, HEADER + chunks, HEADER + chunks + end + b"x", HEADER + chunks + b"\xff", HEADER + chunks + good[:-1],
                     HEADER + chunks + row(b"\0\0\0") + chunks, HEADER + chunks + row(b"\0\0\0\1", b"caf\xe9") + chunks,
                     HEADER + chunks + row(b"\0\0\0\1", b"x" * 600_000) + chunks + end, HEADER + chunks + b"\0\2\x7f\xff\xff\xff" + chunks):
            refusal = self.same(data, copy=COPY[:-1] + ", workers 2)")
            if refusal is None:
                self.assertEqual(self.cluster.sql(
                    f"TRUNCATE t; COPY t FROM '{self.cluster.home}/input' WITH (FORMAT binary, pgsluice 'require', workers 2);"
                    "SELECT workers, rows >= 9000 FROM pgsluice.last_copy"), "2|t")
        for data in (
            b"", b"PGCOPY", HEADER[:12], HEADER[:15], HEADER[:11] + b"\0\x01\0\0\0\0\0\0", HEADER[:11] + b"\0\x04\0\0\0\0\0\0", HEADER[:11] + b"\0\0\0\0\xff\0\0\0",
            *(HEADER + before + bad for before in (b"", many) for bad in (
                row(struct.pack(">i", 1)), row(b"\0\0\0\1", b"x", b"y"), row(b"\0\0\0", b"x"), row(b"\0\0\0\0\1", b"x"), row(b"\0\0\0\1", b"caf\xe9"),
                row(b"\0\0\0\1", b"a\0b"), b"\0\2\xff\xff\xff\xfe", b"\0\2\0\0\0\4\0", b"\0\2\0\0\0\4\0\0\0\1\0\0\1\0x", good[:-1], b"\x80\0", b"\0\2\x7f\xff\xff\xff")),
        ):
            self.assertIsNotNone(self.same(data))
        bounded = "CREATE TABLE t (a int NOT NULL CHECK (a < 5), b varchar(3))"
        for bad in (row(None, b"x"), row(b"\0\0\0\7", b"x"), row(b"\0\0\0\1", b"four"), row(b"\0\0\0\1", b"abc d")):
            self.assertIsNotNone(self.same(HEADER + many + bad, bounded))
        self.assertIsNone(self.same(HEADER + many + row(b"\0\0\0\1", b"abc  "), bounded))
        for zone, is_good in ((57599, True), (-57599, True), (57600, False), (-57600, False), (2**31 - 1, False), (-2**31, False)):
            zoned = HEADER + row(b"\0\0\0\1", struct.pack(">qi", 7, zone)) * 50
            self.assertEqual(self.same(zoned, "CREATE TABLE t (a int, z timetz)") is None, is_good, zone)

    def test_documents(self):
        """jsonb is a version and a text: the core forms the values that are sure, and errors are those of stock COPY."""
        table = "CREATE TABLE t (a int, d jsonb)"
        for value, is_good in (
            (b'\x01 {"b": [1, 2.50, null], "a": "\\u00e9"}', True), (b"\x01" + b"[" * 200 + b"]" * 200, True), (b"\x01{", False), (b"\x02{}", False),
            (b"{}", False), (b"", False), (b"\x01", False), (b'\x01"\xff"', False), (b'\x01"\0"', False), (b'\x01"\\u0000"', False), (b'\x01"\\ud800"', False),
        ):
            self.assertEqual(self.same(HEADER + row(b"\0\0\0\1", value) * 50, table) is None, is_good, value)
        path = self.cluster.file("documents", HEADER + row(b"\0\0\0\1", b'\x01{"a": [true]}') * 50)
        self.assertEqual(self.cluster.sql(
            f"DROP TABLE t; {table}; COPY t FROM '{path}' WITH (FORMAT binary, pgsluice 'require'); SELECT rows, values_by_server FROM pgsluice.last_copy"), "50|0")

    def test_cut_and_changed(self):
        """For a stream that is truncated anywhere or has bytes changed anywhere, rows or errors are those of stock COPY."""
        kinds = [0, 5, 8, 12, 13, 15, 18, 23, 28, 32, 35, 42, 43, 44, 46, 49]
        table = "CREATE TABLE t (" + ", ".join(f"c{n} {COLUMNS[n][0]}" for n in kinds) + ")"
        data = self.written("SELECT " + ", ".join(f"({COLUMNS[n][1]})::{COLUMNS[n][0]}" for n in kinds) + " FROM generate_series(1, 4) i")
        random.seed(7)
        for _ in range(1500 if os.environ.get("PGSLUICE_SOAK") else 60):
            changed = bytearray(data if random.randrange(4) else data[:random.randrange(len(data))])
            for _ in range(random.randrange(3)):
                changed[random.randrange(len(changed))] = random.randrange(256)
            self.same(bytes(changed) if random.randrange(2) else bytes(changed[:-2]) + data[19:] * 3, table, route=None)

    def test_tables_and_long_fields(self):
        """With defaults, partitions, WHERE, generated columns, and fields longer than any buffer, rows or errors are those of stock COPY."""
        many = HEADER + b"".join(row(struct.pack(">i", i), b"x%d" % i) for i in range(3000)) + b"\xff\xff"
        copy = "COPY t (a, b) FROM {} WITH (FORMAT binary)"
        for table in (
            "CREATE TABLE t (id serial PRIMARY KEY, a int, b text, c jsonb DEFAULT '{}')",
            "CREATE TABLE t (a int, b text, g int GENERATED ALWAYS AS (a * 2) STORED, CHECK (a >= 0))",
            "CREATE TABLE t (id serial, a int, b text) PARTITION BY HASH (a); CREATE TABLE t0 PARTITION OF t FOR VALUES WITH (MODULUS 2, REMAINDER 0);"
            "CREATE TABLE t1 PARTITION OF t FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
        ):
            self.assertIsNone(self.same(many, table, copy))
            self.assertIsNone(self.same(many, table, copy + " WHERE a % 7 = 0"))
        self.assertIsNone(self.same(many, "CREATE TABLE t (b text, a int)", copy))
        self.assertIsNotNone(self.same(many, "CREATE TABLE t (a int UNIQUE CHECK (a < 2900), b text)"))
        self.assertIsNone(self.same(HEADER + b"\0\0" * 2000, "CREATE TABLE t ()"))
        for length in (60000, 70000, 1_100_000, 3_000_000):
            wide = row(struct.pack(">i", 1), os.urandom(length // 2).hex().encode())
            self.assertIsNone(self.same(HEADER + row(b"\0\0\0\1", b"x") * 50 + wide * 3 + row(b"\0\0\0\1", b"y") * 50))
        path = self.cluster.file("input", many)
        said = self.cluster.sql("DROP TABLE t; CREATE TABLE t (a int, b text)")
        self.cluster.sql("COPY t FROM STDIN WITH (FORMAT binary, pgsluice 'require')", stdin=path.read_bytes())
        said = self.cluster.sql("SELECT count(*), sum(a) FROM t")
        self.assertEqual(said, "3000|4498500")

    def test_encodings(self):
        """Text is converted from the client's encoding and checked, as by stock COPY."""
        data = HEADER + row(b"\0\0\0\1", b"caf\xe9") * 300
        self.assertIsNone(self.same(data, setup="SET client_encoding = latin1;", copy=COPY + ";\nSET client_encoding = utf8"))
        self.assertIsNotNone(self.same(data))
        self.same(HEADER + row(b"\0\0\0\1", b"\x81") * 300, setup="SET client_encoding = win1252;", copy=COPY + ";\nSET client_encoding = utf8", route=None)
        labels = HEADER + row(b"ok", b"\xe9") * 300
        self.assertIsNone(self.same(labels, "CREATE TABLE t (m mood, v varchar(2))", setup="SET client_encoding = latin1;", copy=COPY + ";\nSET client_encoding = utf8"))


if __name__ == "__main__":
    unittest.main()
