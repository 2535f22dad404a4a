"""Small COPYs: no slower than stock COPY, no more pages, the same rows and errors."""

import os
import unittest

from .cluster import MAJOR, OnCluster
from .differential import SMALL_BYTES, compare
from .small_copies import measure
from .test_fuzz import Client

TABLE = "CREATE TABLE t (id serial, a int CHECK (a <> 13), b text)"
CSV = "COPY t (a, b) FROM {} WITH (FORMAT csv)"


class Small(OnCluster):
    """A few bytes, again and again."""

    def test_around_the_limit(self):
        """For good and bad data below and above the size up to which stock COPY's loop is used, rows or errors are stock COPY's."""
        lines = [b"%d,x%d\n" % (i + 14, i) for i in range(300)]
        near = next(n for n in range(300) if len(b"".join(lines[:n])) > SMALL_BYTES)
        for count in (0, 1, 20, near - 3, near - 2, near - 1, near, near + 9):
            rows = b"".join(lines[:count])
            for tail in (b"", b"7,no line end", b"\\.\n", b"x,y\n", b"13,y\n", b"1\n", b"1,\xff\n", b'1,"open\n', b"\n"):
                for copy in (CSV, CSV[:-1] + ", HEADER)"):
                    with self.subTest(count=count, tail=tail, copy=copy):
                        compare(self, self.cluster, TABLE, copy, rows + tail)
        partitioned = ("CREATE TABLE t (id serial, a int, b text) PARTITION BY LIST (b);"
                       "CREATE TABLE t1 PARTITION OF t DEFAULT")
        self.assertIsNone(compare(self, self.cluster, partitioned, CSV, b"1,x\n2,y\n"))
        self.assertIsNone(compare(self, self.cluster, partitioned, CSV[:-1] + ", HEADER)", b"a,b\n" + b"1,x\n" * 300))

    def test_what_stock_does_before_it_reads(self):
        """Before the client sends any data, a statement trigger has fired, and FREEZE has been refused."""
        self.cluster.sql("DROP TABLE IF EXISTS t, said; CREATE TABLE said (n int); CREATE TABLE t (a int, b text);"
                         "CREATE OR REPLACE FUNCTION say() RETURNS trigger LANGUAGE plpgsql AS"
                         " $$ BEGIN RAISE 'before anything is read'; END $$;"
                         "CREATE TRIGGER say BEFORE INSERT ON t FOR EACH STATEMENT EXECUTE FUNCTION say()")
        for table, options, words in (("t", "", "before anything is read"), ("said", " WITH (FREEZE)", "cannot perform COPY FREEZE")):
            client = Client(self.cluster)
            self.addCleanup(client.close)
            client.run("SET pgsluice.copy = on")
            self.assertIn(words, "".join(client.run(f"COPY {table} FROM STDIN{options}")))

    def test_indexes_are_reported(self):
        """last_copy shows the indexes of a small load, too, and that the server read its rows."""
        self.cluster.sql("DROP TABLE IF EXISTS t; CREATE TABLE t (a int PRIMARY KEY, b text UNIQUE)")
        one = self.cluster.file("one", b"1,x\n2,y\n")
        said = self.cluster.sql(f"SET pgsluice.copy = on; COPY t FROM '{one}' WITH (FORMAT csv);"
                                "SELECT rows, rows_by_server, bytes, route FROM pgsluice.last_copy;"
                                "SELECT i ->> 'index', i ->> 'way', i ->> 'rows', i ->> 'because' FROM pgsluice.last_copy, jsonb_array_elements(indexes) i ORDER BY 1")
        self.assertEqual(said.split("\n"), ["2|2|8|insert", 't_b_key|row|{"row": 2}|the load is small', 't_pkey|row|{"row": 2}|the load is small'])

    def test_no_bloat(self):
        """Repeated small COPYs fill pages as stock COPY does, in one transaction and in many."""
        one = self.cluster.file("one", b"1,some text that is a little longer\n")
        many = self.cluster.file("many", b"1,some text that is a little longer\n" * 20)
        sizes = {}
        for setting in ("off", "on"):
            self.cluster.sql("DROP TABLE IF EXISTS t; " + TABLE)
            copies = "".join(CSV.format(f"'{path}'") + ";" for path in (one, many) for _ in range(150))
            self.cluster.sql(
                f"SET pgsluice.copy = {setting}; DO $$BEGIN FOR i IN 1..1500 LOOP {copies[:copies.index(';')]}; END LOOP; END$$;"
                + copies.replace(";", ";\n")
            )
            sizes[setting] = self.cluster.sql("SELECT pg_relation_size('t') / 8192, count(*), max(id) FROM t")
        pages, rows = sizes["on"].split("|", 1)
        stock_pages, stock_rows = sizes["off"].split("|", 1)
        self.assertEqual(rows, stock_rows)
        self.assertEqual(rows, "4650|4650")
        if MAJOR < 16:
            self.assertEqual(pages, stock_pages)
        else:
            # By how many blocks it grows depends on how many sessions wait at that moment.
            self.assertLessEqual(int(pages), int(stock_pages) + 8)

    def test_judgement_of_defaults_is_kept_in_step(self):
        """The cached decision about a table's defaults is dropped when they or their functions change."""
        path = self.cluster.file("one", b"1,x\n")
        copy = f"COPY t (a, b) FROM '{path}' WITH (FORMAT csv, pgsluice 'on');"
        route = "SELECT coalesce(fell_back_because, route) FROM pgsluice.last_copy;"
        said = self.cluster.sql(
            "DROP TABLE IF EXISTS t; CREATE TABLE t (a int, b text, c bigint);"
            "CREATE OR REPLACE FUNCTION five() RETURNS bigint LANGUAGE plpgsql STABLE AS 'BEGIN RETURN 5; END';\n"
            f"{copy}{route}\nALTER TABLE t ALTER c SET DEFAULT five();\n{copy}{route}\nALTER FUNCTION five() VOLATILE;\n{copy}{route}\n"
            f"ALTER TABLE t ALTER c DROP DEFAULT;\n{copy}{route}\nSELECT coalesce(c, 0) FROM t;"
        )
        self.assertEqual(said.split("\n"), ["insert", "insert", "a column has a volatile default", "insert", "0", "5", "5", "0"])

    def test_judgement_of_partitions_is_kept_in_step(self):
        """The cached decision about a table's partitions is dropped when they or their triggers change."""
        path = self.cluster.file("one", b"1,x\n")
        copy = f"COPY t FROM '{path}' WITH (FORMAT csv, pgsluice 'on');"
        route = "SELECT coalesce(fell_back_because, route) FROM pgsluice.last_copy;"
        steps = ("", "CREATE TRIGGER b BEFORE INSERT ON t01 FOR EACH ROW EXECUTE FUNCTION same();", "DROP TRIGGER b ON t01;",
                 "CREATE TRIGGER b BEFORE INSERT ON t00 FOR EACH ROW EXECUTE FUNCTION same(); ALTER TABLE t0 ATTACH PARTITION t00 DEFAULT;",
                 "ALTER TABLE t0 DETACH PARTITION t00;", "BEGIN; ALTER TABLE t0 ATTACH PARTITION t00 DEFAULT;", "ROLLBACK;")
        said = self.cluster.sql(
            "DROP TABLE IF EXISTS t; CREATE TABLE t (a int, b text) PARTITION BY LIST (a); CREATE TABLE t00 (a int, b text);"
            "CREATE TABLE t0 PARTITION OF t DEFAULT PARTITION BY LIST (b); CREATE TABLE t01 PARTITION OF t0 FOR VALUES IN ('x');"
            "CREATE OR REPLACE FUNCTION same() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';\n"
            + "\n".join(f"{step} {copy}{route}" for step in steps))
        no = "a partition has BEFORE row triggers"
        self.assertEqual(said.split("\n"), ["insert", no, "insert", no, "insert", no, "insert"])

    def test_defaults_that_fail(self):
        """A failing stable default is an error at the first row, and none without rows; one that fails when planned
        is an error without rows, too. All as with stock COPY."""
        table = ("CREATE OR REPLACE FUNCTION f() RETURNS int LANGUAGE plpgsql STABLE AS 'BEGIN RETURN 1 / 0; END';"
                 "CREATE TABLE t (a int, b text, c int DEFAULT f())")
        self.assertIsNone(compare(self, self.cluster, table, CSV, b""))
        self.assertIn("COPY t, line 1", compare(self, self.cluster, table, CSV, b"1,x\n" * 1000))
        self.assertIn("invalid input syntax", compare(self, self.cluster, table, CSV, b"x,x\n" * 1000))
        good = table.replace("1 / 0", "count(*) FROM t")
        self.assertIsNone(compare(self, self.cluster, good, CSV, b"1,x\n" * 1000))
        # A default that fails when it is planned fails without rows, too, but only after the options have been checked.
        ill = "CREATE TABLE t (a int, b text, c int DEFAULT 1 / 0)"
        self.assertIn("division by zero", compare(self, self.cluster, ill, CSV, b""))
        for wrong in ("nonsense 1", "DELIMITER 'ab'", "FREEZE 3"):
            self.assertNotIn("division", compare(self, self.cluster, ill, f"{CSV[:-1]}, {wrong})", b""))
        # A failing default of a column that is in the data does not matter.
        self.assertIsNone(compare(self, self.cluster, "CREATE TABLE t (a int DEFAULT 1 / 0, b text)", CSV, b"1,x\n" * 1000))

    @unittest.skipUnless(MAJOR >= 16, "the marker came with 16")
    def test_marker_of_a_volatile_default(self):
        """A default that reads the table falls back to stock COPY, even if only the DEFAULT marker may use it."""
        table = ("CREATE TABLE t (a int, b text);"
                 "CREATE OR REPLACE FUNCTION f() RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN count(*) FROM t; END';"
                 "ALTER TABLE t ALTER a SET DEFAULT f()")
        compare(self, self.cluster, table, CSV[:-1] + ", DEFAULT 'D')", b"D,x\n" * 20, route="a column has a volatile default")
        compare(self, self.cluster, table, CSV, b"1,x\n" * 20)

    @unittest.skipUnless(os.environ.get("PGSLUICE_SOAK"), "a quiet machine is wanted")
    def test_time(self):
        """The time is within 5 % of stock COPY's, in the best of three medians: noise only adds."""
        session = self.cluster.connect()
        for size in (1, 10, 100, 1000):
            for table in ("plain", "serial key"):
                ratio = min(measure(session, table, size, 21)[3] for _ in range(3))
                self.assertLess(ratio, 1.05, (table, size))
        session.close()


if __name__ == "__main__":
    unittest.main()
