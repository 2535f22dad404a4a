"""A COPY that a function of another COPY runs: both complete, and last_copy shows the outer one."""

import unittest

from .cluster import OnCluster, Refused
from .differential import _LOCATION, _PLACE

ROWS = 20000
SHOWN = "SELECT relation, rows, bytes, route, indexes, fell_back_because FROM pgsluice.last_copy"


class NestedCopy(OnCluster):
    """The CHECK of a domain runs a COPY at row 12345. The outer load has `rejects_to`: without it, such a load falls back to stock COPY."""

    prepared = (
        "CREATE TABLE other (n int PRIMARY KEY, x text); CREATE INDEX other_x ON other (x);"
        "CREATE FUNCTION also(a int) RETURNS bool LANGUAGE sql AS 'SELECT true'; CREATE DOMAIN number AS int CHECK (also(VALUE));"
        "CREATE TABLE t (a int PRIMARY KEY, b text, c number); CREATE INDEX t_b ON t (b); CREATE TABLE bad (LIKE pgsluice.reject)"
    )

    def load(self, inner, private):
        """Runs a load whose CHECK runs `inner`; returns last_copy and the contents of both tables."""
        path = self.cluster.file("outer", b"".join(b"%d,%d %s,%d\n" % (i, i * 7919 % ROWS, b"wide" * 25, i) for i in range(ROWS)))
        self.sql("TRUNCATE t, other; CREATE OR REPLACE FUNCTION also(a int) RETURNS bool LANGUAGE plpgsql AS"
                 f" $$ BEGIN IF a = 12345 THEN {inner} END IF; RETURN true; END $$")
        before, after = ("BEGIN; TRUNCATE t;", "COMMIT;") if private else ("", "")
        return self.sql(f"SET pgsluice.copy = on; {before} COPY t FROM '{path}' WITH (FORMAT csv, workers 0, rejects_to 'bad'); {after} {SHOWN};"
                        "SELECT count(*), sum(a), md5(string_agg(b, ',' ORDER BY a)) FROM t;"
                        "SET enable_seqscan = off; SELECT count(*) FROM t WHERE b = '5 ' || repeat('wide', 25); SELECT count(*), count(x) FROM other").split("\n")

    def test_what_is_shown(self):
        """An inner COPY by the extension, by stock COPY, or one that fails leaves the outer load and its last_copy as they are without it."""
        path = self.cluster.file("inner", b"".join(b"%d,of the inner one\n" % i for i in range(3000)))
        wrong = self.cluster.file("wrong", b"".join(b"%d,of the inner one\n" % (i % 2000) for i in range(3000)))
        copy = f"COPY other FROM '{path}' WITH (FORMAT csv{{}})"
        for private in (False, True):
            *wanted, empty = self.load("NULL;", private)
            self.assertEqual(empty, "0|0")
            self.assertIn("t_pkey", wanted[0])
            for inner, rows in ((copy.format("") + ";", 3000), (copy.format("") + " WHERE random() >= 0;", 3000), (copy.format(", pgsluice 'off'") + ";", 3000),
                                (f"BEGIN {copy.format('').replace(str(path), str(wrong))}; EXCEPTION WHEN unique_violation THEN NULL; END;", 0)):
                with self.subTest(inner=inner, private=private):
                    self.assertEqual(self.load(inner, private), [*wanted, f"{rows}|{rows}"])

    def test_in_the_middle_of_a_record(self):
        """The input function of a binary record's first value runs a COPY before the record's other bytes are read: both COPYs are complete."""
        path = self.cluster.file("few", b"1,x\n2,y\n")
        out = self.cluster.file("out", b"")
        out.chmod(0o666)
        self.sql("CREATE FUNCTION load(n int) RETURNS bool LANGUAGE plpgsql AS"
                 f" $$ BEGIN DELETE FROM other; COPY other FROM '{path}' WITH (FORMAT csv); RETURN true; END $$;"
                 "CREATE DOMAIN loads AS int CHECK (load(VALUE)); CREATE TABLE wide (a loads, b bytea);"
                 f"COPY (SELECT 1, convert_to(repeat('wide', 700000), 'UTF8')) TO '{out}' WITH (FORMAT binary)")
        for setting in ("off", "on"):
            said = self.sql(f"SET pgsluice.copy = {setting}; TRUNCATE wide, other; COPY wide FROM '{out}' WITH (FORMAT binary);"
                            "SELECT a, length(b), md5(b) = md5(repeat('wide', 700000)) FROM wide; SELECT count(*) FROM other")
            self.assertEqual(said, "1|2800000|t\n2")


    def test_a_check_that_looks(self):
        """A volatile CHECK finds earlier rows of the load by an index, so that error and line are stock COPY's, in live, private and locked tables."""
        lines = [b"%d,%d,%s\n" % (i, i * 7, b"wide" * 50) for i in range(12000)]
        lines[11900] = b"11900,70000,again\n"
        path = self.cluster.file("input", b"".join(lines))
        self.sql("CREATE TABLE seen (a int, b int, c text); CREATE INDEX seen_b ON seen (b);"
                 "CREATE FUNCTION is_new(x int) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN RETURN NOT EXISTS (SELECT 1 FROM seen WHERE b = x); END $$;"
                 "ALTER TABLE seen ADD CONSTRAINT is_new CHECK (is_new(b))")
        for before in ("", "BEGIN; TRUNCATE seen;", "BEGIN; LOCK TABLE seen; INSERT INTO seen VALUES (-1, -1);"):
            told = []
            for setting in ("off", "on"):
                with self.assertRaises(Refused) as refused:
                    self.sql(f"SET enable_seqscan = off; SET enable_bitmapscan = off; SET pgsluice.copy = {setting}; {before} COPY seen FROM '{path}' WITH (FORMAT csv)")
                told.append(_PLACE.sub("", _LOCATION.sub("", str(refused.exception))))
            self.assertEqual(*told)
            self.assertIn("COPY seen, line 11901:", told[0])


if __name__ == "__main__":
    unittest.main()
