"""Every type: values that the core reads and values that the server reads, mixed in one row."""

import unittest

from .cluster import OnCluster
from .differential import compare

# type, values that are accepted, values that are rejected
TYPES = [
    ("bool", "t f true FALSE yes off 1 0", "maybe"),
    ("smallint", "0 -32768 32767 +1", "32768 x"),
    ("int", "0 -2147483648 2147483647", "2147483648 1.0"),
    ("bigint", "0 -9223372036854775808", "9223372036854775808"),
    ("oid", "0 4294967295 -1", "4294967296"),
    ("real", "0 1.5 -1e-30 NaN Infinity -inf 3.4028235e38", "1e40 x"),
    ("float8", "0 -0 1e308 4.9e-324 0.1 123456789.123456789", "1e309 1.5x"),
    ("numeric", "0 1 -1 0.0001 10000 123456789012345678901234567890.123456789 1e100 1e-100 NaN Infinity 0.00 100.0", "x 1..2"),
    ("numeric(10,2)", "1.005 -1.005 99999999.99 0 NaN", "100000000 Infinity"),
    ("numeric(5,-2)", "12345 50 49", "99999999"),
    ("money", "1 -1.50 $1,234.56", "x"),
    ("varchar(5)", "a abcde žžžžž abcde\u0020\u0020", "abcdef"),
    ("char(5)", "a abcde ž", "abcdef"),
    ("char", "a", "") ,
    ('"char"', "a \\\\101", ""),
    ("name", "abc " + "n" * 70, ""),
    ("bytea", "\\\\x00ff \\\\xDEADBEEF plain \\\\001", "\\\\x0 \\\\xzz"),
    ("date", "2024-02-29 0001-01-01 infinity -infinity 4713-01-01_BC epoch 20240229 Jan_8,_1999", "2023-02-29 x"),
    ("time", "00:00:00 23:59:59.999999 24:00:00 04:05_PM", "25:00:00"),
    ("time(2)", "12:34:56.789", "x"),
    ("timetz", "00:00:00+02 23:59:59.5-11:30 04:05:06_UTC", "25:00:00Z"),
    ("timestamp", "2024-01-02_03:04:05.678901 infinity 1999-12-31T23:59:60 2024-01-02", "2024-13-01"),
    ("timestamp(3)", "2024-01-02_03:04:05.678901", "x"),
    ("timestamptz", "2024-01-02_03:04:05+02 2024-01-02_03:04:05Z -infinity 2024-07-01_12:00:00_Europe/Prague", "2024-01-01_25:00"),
    ("interval", "1_day 1_year_2_mons_3_days_04:05:06.789 -1_hour P1Y2M3DT4H 00:00:01", "x"),
    ("interval second(2)", "1.555", "x"),
    ("uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11 A0EEBC999C0B4EF8BB6D6BB9BD380A11 {a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}", "a0ee"),
    ("json", '{"a":1} [1,2,null] "x" 1.5 {"a":_{"b":[]}}', "{ {a:1}"),
    ("jsonb", '{"a":1,"b":[true,null,"x"]} [] {} 1e5 "x" {"a":1,"a":2}', "{ nul"),
    ("inet", "127.0.0.1 10.0.0.0/8 ::1 2001:db8::/32", "1.2.3.4.5"),
    ("cidr", "10.0.0.0/8 2001:db8::/32 192.168.1", "10.0.0.1/8"),
    ("macaddr", "08:00:2b:01:02:03 08002b010203", "08:00"),
    ("macaddr8", "08:00:2b:01:02:03:04:05 08:00:2b:01:02:03", "08:00"),
    ("bit(5)", "10101 b00000", "1010"),
    ("bit varying(5)", "10101 0 1", "101010"),
    ("mood", "sad ok", "glad"),
    ("positive", "1 5", "-1 x"),
    ("plain_domain", "1 5", "x"),
    ("never_null", "a", ""),
    ("point", "(1,2) 3,4", "x"),
    ("box", "(1,2),(3,4)", "x"),
    ("int4range", "[1,5) empty (,)", "[5,1]"),
    ("tsvector", "a:1_b:2 fat", ""),
    ("xid", "0 42", ""),
    ("pg_lsn", "0/0 16/B374D848", "x"),
    ("pair", "(1,x) (,)", "(1"),
    ("regtype", "int4 text", "nosuch"),
    ("int[]", "{} {1,2,3} {NULL,1} [2:3]={1,2} {{1,2},{3,4}}", "{1 {x}"),
    ("text[]", '{a,b} {"a\\\\\\\\b","x,y",NULL} {""}', "{a"),
    ("numeric[]", "{1.5,NULL,1e10}", "{x}"),
    ("name[]", "{a,b}", "{"),
    ("bool[]", "{t,f,NULL}", "{x}"),
    ("interval[]", "{1_day}", "{x}"),
    ("timestamptz[]", "{2024-01-01_00:00:00Z}", "{x}"),
    ("mood[]", "{sad,ok}", "{glad}"),
    ("jsonb[]", '{"{\\\\"a\\\\":1}"}', "{x}"),
    ("uuid[]", "{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}", "{x}"),
]

TYPES_SQL = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE DOMAIN plain_domain AS int;
CREATE DOMAIN never_null AS text NOT NULL;
CREATE DOMAIN plain_date AS date;
CREATE TYPE pair AS (a int, b text);
"""


def enough(rows):
    """The rows, repeated until the core reads them: stock COPY's parser reads smaller data."""
    return rows * (300 // len("".join(rows)) + 1)


def words(text):
    """The values of a list; an underscore stands for a blank."""
    return [word.replace("_", " ") if "never" not in word else word for word in text.split(" ") if word]


class Types(OnCluster):
    """One table for each type, with a column of it between an int and a text."""

    settings = ["timezone = 'UTC'"]
    prepared = TYPES_SQL

    def same(self, data, table, setup=""):
        """Loads by both, and asserts equal outcomes; returns the error, or None."""
        return compare(self, self.cluster, table, "COPY t FROM {}", data, setup)

    def test_each_type(self):
        """Good values of each type load as by stock COPY, and each bad one has its error."""
        for name, good, bad in TYPES:
            with self.subTest(type=name):
                table = f"CREATE TABLE t (a int, v {name}, b text)"
                rows = enough([f"{i}\t{value}\tx{i}\n" for i, value in enumerate(words(good))])
                null = "" if name == "never_null" else "7\t\\N\t\\N\n"
                self.assertIsNone(self.same("".join(rows + [null] + rows).encode(), table))
                for value in words(bad):
                    bad_row = "".join(enough(rows[:1])) + f"9\t{value}\tz\n"
                    self.assertIsNotNone(self.same(bad_row.encode(), table), value)
        self.assertIsNotNone(self.same(b"1\t\\N\tx\n", "CREATE TABLE t (a int, v never_null, b text)"))

    def test_settings(self):
        """Under settings that change what a value means, rows or errors are stock COPY's."""
        for name, value in (("date", "01/02/2024"), ("timestamp", "01/02/2024 10:00"), ("timestamptz", "2024-07-01 10:00"),
                            ("interval", "-1 1:00:00"), ("money", "1,5"), ("float8", "0.1"), ("text[]", "{NULL}"), ("timetz", "10:00")):
            for setup in ("SET datestyle = 'iso, dmy';", "SET datestyle = 'german, ymd';", "SET timezone = 'America/New_York';",
                          "SET intervalstyle = sql_standard;", "SET extra_float_digits = -3;", "SET array_nulls = off;"):
                self.same_under(setup, name, value)
        # A time zone that is a rule brings its own abbreviations, which 18 prefers to UTC's.
        for zone, name, value in (("UTC+5", "timestamptz", "2024-07-01 10:00:00 UTC"), ("X1UTC", "timestamptz", "2024-07-01 10:00:00 UTC"),
                                  ("Z5", "timetz[]", "{10:00:00Z}"), ("T5", "timestamp", "2024-07-01T10:00:00+00"), ("BC5", "plain_date", "0044-03-15 BC")):
            self.same_under(f"SET timezone = '{zone}';", name, value)

    def same_under(self, setup, name, value):
        """Compares one value of a type under a session's settings."""
        with self.subTest(type=name, setup=setup):
            rows = "".join(enough([f"1\t{value}\tx\n"]))
            self.same(rows.encode(), f"CREATE TABLE t (a int, v {name}, b text)", setup)

    def test_enum_of_this_transaction(self):
        """An enum label added in the same transaction is accepted or rejected as by stock COPY."""
        self.cluster.sql("DROP TYPE IF EXISTS young CASCADE; CREATE TYPE young AS ENUM ('a')")
        rows = "".join(enough(["1\tnew\tx\n"]))
        self.same(rows.encode(), "DROP TYPE young CASCADE; CREATE TYPE young AS ENUM ('a'); CREATE TABLE t (a int, v young, b text)",
                  "BEGIN; ALTER TYPE young ADD VALUE 'new';")

    def test_many_columns(self):
        """105 columns of all alignments in mixed order, with a NULL bitmap of many bytes: rows are stock COPY's."""
        kinds = ["int", "text", '"char"', "bigint", "bool", "numeric", "smallint", "timestamp", "uuid", "jsonb"]
        sample = ["1", "a", "c", "2", "t", "3.5", "4", "2024-01-01 00:00:00", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", '{"a": 1}']
        table = "CREATE TABLE t (" + ", ".join(f"c{i} {kinds[i % 10]}" for i in range(105)) + ")"
        rows = []
        for row in range(300):
            rows.append("\t".join("\\N" if (i * 7 + row * 3) % 11 == 0 else sample[i % 10] for i in range(105)))
        self.assertIsNone(self.same(("\n".join(rows) + "\n").encode(), table))


if __name__ == "__main__":
    unittest.main()
