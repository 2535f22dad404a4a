"""The routes by which rows get into the table: which one is taken, and that each leaves what stock COPY leaves."""

import functools
import subprocess
import unittest

from . import cluster as clusters
from .cluster import MAJOR, Cluster, Refused
from .differential import compare, outcome
from .test_durability import SUM, check_heap

CSV = "COPY t FROM {} WITH (FORMAT csv)"
TABLE = "CREATE TABLE t (a int, b text, c bigint, d numeric)"
UNLOGGED = "CREATE UNLOGGED TABLE t (a int, b text, c bigint, d numeric)"
AGAIN = "BEGIN; TRUNCATE t;"
COUNT = 30000

PAGES = (
    "SELECT n, lp, lp_off, lp_flags, lp_len, t_field3, t_ctid, t_infomask, t_infomask2, t_hoff, t_bits, t_data"
    " FROM generate_series(0, (pg_relation_size('t') / 8192 - 1)::int) n, heap_page_items(get_raw_page('t', n))"
)


@functools.cache
def wide(first):
    """A value that is too wide for an inline tuple."""
    return "".join(chr(97 + (first + k * k) % 26) for k in range(5000))


def csv(count=COUNT, toast=0, asks=0):
    """Rows with NULLs; one in `toast` is too wide for a page, one in `asks` has a value that the server reads."""
    lines = []
    for i in range(count):
        text = f"text of row {i}" + " and more" * (i % 5)
        if toast and i % toast == 3:
            text = wide(i * 7 % 26)
        number = "1e400" if asks and i % asks == 5 else f"{i}.50"
        lines.append(f"{i},{text},{'' if i % 7 == 0 else i * 3},{number}\n")
    return "".join(lines).encode()


class Routes(unittest.TestCase):
    """One server at wal_level logical, one at minimal."""

    @classmethod
    def setUpClass(cls):
        cls.server = Cluster(["wal_level = logical"])
        cls.addClassCleanup(cls.server.remove)
        cls.minimal = Cluster(["wal_level = minimal", "max_wal_senders = 0"])
        cls.addClassCleanup(cls.minimal.remove)
        for server in (cls.server, cls.minimal):
            server.sql("CREATE EXTENSION pgsluice")
            if clusters.has("pageinspect"):
                server.sql("CREATE EXTENSION pageinspect")

    def same(self, route, data, table=TABLE, setup="", copy=CSV, server=None, refused=False):
        """Equal to stock COPY, without workers and with two.

        Stock COPY keeps the order of the data only without a free space map.
        """
        server = server or self.server
        stock = outcome(server, table, copy, data, setup, stock=True)
        for workers in (0, 2):
            ordered = workers == 0 and bool(setup) and server is self.minimal
            refusal = compare(self, server, table, copy, data, f"SET pgsluice.workers = {workers}; {setup}", route, ordered, stock)
            self.assertEqual(refusal is not None, refused, refusal)
            if "PARTITION BY" not in table:
                check_heap(self, server)

    def test_append(self):
        """A live table, logged or not, and a private one whose changes are logged take the append route."""
        self.same("append", csv())
        self.same("append", csv(), UNLOGGED)
        self.same("append", csv(), setup=AGAIN)
        self.same("append", csv(), TABLE + " WITH (fillfactor = 40)")
        self.same("append", b"".join(b"%d\n" % (i % 9) for i in range(400000)), "CREATE TABLE t (a smallint)")

    def test_few_buffers(self):
        """With the fewest buffers that a server may have, a load adds no more blocks at once than these can hold, and succeeds."""
        server = Cluster(["shared_buffers = 128kB"])
        self.addCleanup(server.remove)
        server.sql("CREATE EXTENSION pgsluice")
        self.same("append", csv(), server=server)
        compare(self, server, "SET temp_buffers = 100; " + TABLE.replace("TABLE", "TEMPORARY TABLE"), CSV, csv(), ordered=False)

    def test_fresh(self):
        """A private table whose changes are not logged takes the fresh route."""
        self.same("fresh", csv(), UNLOGGED, AGAIN)
        self.same("fresh", csv(), setup=AGAIN, server=self.minimal)
        self.same("fresh", csv(), setup="BEGIN; TRUNCATE t; SAVEPOINT s;", server=self.minimal)
        self.same("append", csv(), server=self.minimal)
        compare(self, self.server, TABLE.replace("TABLE", "TEMP TABLE"), CSV, csv(), route="fresh", ordered=False)
        self.same("fresh", csv(toast=900), UNLOGGED, AGAIN)

    def test_rows_outside_of_pages(self):
        """With values that the server reads, and out-of-line values, rare or frequent, rows are stock COPY's."""
        for often in (4, 500, 9000):
            self.same(None, csv(toast=often))
            self.same(None, csv(asks=often))
        self.same(None, csv(toast=100, asks=130), UNLOGGED, AGAIN)

    def test_a_page_that_stays_open(self):
        """If a very long record comes before the first page is full, the lines of the records in it are counted as in stock COPY."""
        data = b'1,"a\nb",1,1\n2,' + b"w" * 2_000_000 + b",2,2\nbad,c,3,3\n"
        self.assertIn("COPY t, line 3,", compare(self, self.server, TABLE, CSV, data))

    def test_insert(self):
        """Small loads, FREEZE, WHERE, and partitions at wal_level logical take the insert route; generated columns take the append route."""
        self.same("insert", csv(5000))
        self.same("insert", csv(5000), UNLOGGED, AGAIN)
        self.same("append", csv(), TABLE[:-1] + ", g int GENERATED ALWAYS AS (a + 1) STORED)")
        self.same("insert", csv(), TABLE + " PARTITION BY HASH (a); CREATE TABLE p PARTITION OF t FOR VALUES WITH (MODULUS 1, REMAINDER 0)")
        self.same("insert", csv(), UNLOGGED, AGAIN, CSV[:-1] + ", FREEZE)")
        self.same("insert", csv(), copy=CSV + " WHERE a % 3 > 0")

    def test_free_space(self):
        """A table with free space in its pages grows by less than 15 %."""
        server = self.server
        path = server.file("rows.csv", csv())
        copy = f"SET pgsluice.copy = on; COPY t FROM '{path}' WITH (FORMAT csv, pgsluice 'require'); SELECT route FROM pgsluice.last_copy"
        server.sql(f"DROP TABLE IF EXISTS t; {TABLE}")
        self.assertEqual(server.sql(copy), "append")
        # Rows at the end stay, so that VACUUM cannot truncate the table.
        server.sql("DELETE FROM t WHERE a < 29000")
        server.sql("VACUUM t")
        before = int(server.sql("SELECT pg_relation_size('t')"))
        # Batches fill the free space; when it is nearly full, the rest may follow it in pages.
        self.assertIn(server.sql(copy), ("insert", "append"))
        self.assertLess(int(server.sql("SELECT pg_relation_size('t')")), before * 1.15)
        self.assertEqual(server.sql("SELECT count(*), count(DISTINCT a) FROM t"), "31000|30000")

    def test_a_little_free_space_everywhere(self):
        """A table does not grow if a sixth of each page is free, and no page has more room."""
        server = self.server
        same = server.file("same.csv", b"".join(b"%05d,%s\n" % (i, b"x" * 60) for i in range(90000)))
        copy = "SET pgsluice.copy = on; COPY t FROM PROGRAM 'head -{} {}' WITH (FORMAT csv, pgsluice 'require')"
        server.sql("DROP TABLE IF EXISTS t; CREATE TABLE t (a text, b text)")
        stock = copy.replace("= on", "= off").replace(", pgsluice 'require'", "")
        server.sql(stock.format(1000, same))
        full = int(server.sql("SELECT count(*) FROM t WHERE ctid < '(1,0)'"))
        server.sql(f"TRUNCATE t; {stock.format(full * 1000, same)}")
        server.sql("DELETE FROM t WHERE a::int % 6 = 1")
        server.sql("VACUUM t")
        before = int(server.sql("SELECT pg_relation_size('t')"))
        server.sql(copy.format(3000, same))
        self.assertEqual(int(server.sql("SELECT pg_relation_size('t')")), before)

    def test_ends_of_pages(self):
        """What rows leave free at the ends of pages is no room: after a VACUUM, the next load is appended as before."""
        server = self.server
        path = server.file("wide", "".join(f"{n},{'x' * 1670}\n" for n in range(2000)).encode())
        server.sql("DROP TABLE IF EXISTS t; CREATE TABLE t (a int, b text) WITH (autovacuum_enabled = off)")
        for _ in range(2):
            self.assertEqual(server.sql(f"SET pgsluice.copy = on; COPY t FROM '{path}' WITH (FORMAT csv); SELECT route FROM pgsluice.last_copy"), "append")
            server.sql("VACUUM t")

    def test_free_space_of_toast(self):
        """Room that VACUUM has found in the TOAST table is used, although the table itself has none."""
        server = self.server
        wide = server.file("wide.csv", b"".join(b"%d,%s\n" % (i, b"0123456789" * 1000) for i in range(400)))
        copy = f"SET pgsluice.copy = on; COPY t FROM '{wide}' WITH (FORMAT csv, pgsluice 'require'{{}})"
        for more in ("", ", on_duplicate 'skip'"):
            server.sql("DROP TABLE IF EXISTS t; CREATE TABLE t (a int, b text, c serial PRIMARY KEY); ALTER TABLE t ALTER b SET STORAGE EXTERNAL;"
                       "INSERT INTO t SELECT i, 'narrow' FROM generate_series(1, 100000) i")
            copied = copy.format(more).replace("COPY t", "COPY t (a, b)")
            for _ in range(2):
                server.sql(copied)
            server.sql("UPDATE t SET b = NULL WHERE b <> 'narrow' AND a < 390")
            server.sql("VACUUM t")
            size = "SELECT pg_relation_size(reltoastrelid) FROM pg_class WHERE relname = 't'"
            before = int(server.sql(size))
            server.sql(copied)
            self.assertLess(int(server.sql(size)), before * 1.1, more)

    def test_checked_rows(self):
        """CHECK, keys, identity columns and partition bounds apply to rows in whole pages: rows or errors are stock COPY's."""
        keyed = TABLE[:-1] + ", CHECK (a >= 0), PRIMARY KEY (a))"
        refused = [(csv() + b"-1,x,1,1\n", keyed), (csv() + b"77,x,1,1\n", keyed), (csv() + b"x,x,1,1\n" + csv(), TABLE)]
        for route, kind, setup in (("append", "CREATE TABLE", ""), ("fresh", "CREATE UNLOGGED TABLE", AGAIN)):
            self.same(route, csv(), keyed.replace("CREATE TABLE", kind), setup)
            for data, table in refused:
                self.same(route, data, table.replace("CREATE TABLE", kind), setup, refused=True)
        identity = "CREATE TABLE t (a int, b text, c bigint, d numeric, id int GENERATED ALWAYS AS IDENTITY (MAXVALUE {}))"
        named = CSV.replace("t FROM", "t (a, b, c, d) FROM")
        self.same("append", csv(), identity.format(COUNT), copy=named)
        self.same("append", csv(), identity.format(COUNT - 1000), copy=named, refused=True)
        part = TABLE.replace("TABLE t", "TABLE whole") + " PARTITION BY RANGE (a); CREATE TABLE t PARTITION OF whole FOR VALUES FROM (0) TO ({})"
        for most, refused in ((COUNT, False), (COUNT - 1, True)):
            self.same("append", csv(), "DROP TABLE IF EXISTS whole CASCADE;" + part.format(most), refused=refused)

    def test_triggers(self):
        """AFTER ROW triggers see each row and its TID; a transition table has all rows."""
        self.same("append", csv(), TABLE + """;
            DROP TABLE IF EXISTS seen; CREATE TABLE seen (place tid, a int);
            CREATE OR REPLACE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                INSERT INTO seen SELECT ctid, a FROM t WHERE t.a = new.a AND new.a % 5000 = 0; RETURN NULL; END $$;
            CREATE OR REPLACE FUNCTION see_all() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                INSERT INTO seen SELECT NULL, sum(a) FROM added; RETURN NULL; END $$;
            CREATE TRIGGER one AFTER INSERT ON t FOR EACH ROW WHEN (new.a % 5000 = 0) EXECUTE FUNCTION see();
            CREATE TRIGGER two AFTER INSERT ON t REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION see_all()""")
        self.assertEqual(self.server.sql("SELECT count(*) FILTER (WHERE place IS NOT NULL), max(a) FROM seen"),
                         f"6|{sum(range(COUNT))}")

    @unittest.skipUnless(clusters.has("pageinspect"), "pageinspect is not there")
    def test_pages(self):
        """Tuple headers, NULL bitmaps and values are stock COPY's, page headers are valid, and checksums are right."""
        stamped = "(SELECT min(t_xmin::text)::xid FROM heap_page_items(get_raw_page('t', n)))" if MAJOR >= 19 else "'0'"
        path = self.server.file("rows.csv", csv())
        for table, setup in ((TABLE, ""), (UNLOGGED, AGAIN), (UNLOGGED + " WITH (fillfactor = 70)", AGAIN)):
            exact = MAJOR < 16 and setup
            found = []
            for setting in ("off", "on"):
                self.server.sql(f"DROP TABLE IF EXISTS t; {table}")
                self.server.sql(f"SET pgsluice.copy = {setting}; SET pgsluice.workers = 0; {setup} COPY t FROM '{path}' WITH (FORMAT csv);"
                                + ("COMMIT" if setup else ""))
                # Rows that fill gaps by the free space map, or come with many blocks at once (from 16 on), are in another order.
                what = "*" if exact else "lp_len, t_field3, t_infomask, t_infomask2, t_hoff, t_bits, t_data"
                found.append(self.server.sql(f"SELECT {what} FROM ({PAGES}) p ORDER BY {'n, lp' if exact else 't_data'}"))
                self.assertEqual(self.server.sql(
                    "SELECT DISTINCT lower <= upper, special, pagesize, version, flags,"
                    # From 19 on, a page of new rows has their transaction there.
                    f" prune_xid = {stamped} FROM generate_series(0,"
                    " (pg_relation_size('t') / 8192 - 1)::int) n, page_header(get_raw_page('t', n))"
                    # blocks that were added and not used
                    " WHERE upper > 0"), "t|8192|8192|4|0|t")
            self.assertEqual(found[0], found[1])
            self.assertEqual(len(found[0].splitlines()), COUNT)
        self.server.checksums()
        # The unlogged table has survived the shutdown.
        self.assertEqual(self.server.sql("SELECT count(*), sum(a) FROM t"), f"{COUNT}|{sum(range(COUNT))}")

    def test_statistics(self):
        """Statistics count a load, one that is rolled back, and TRUNCATE before it as for stock COPY."""
        path = self.server.file("rows.csv", csv())
        counted = "SELECT n_tup_ins, n_live_tup, n_dead_tup, n_mod_since_analyze, n_ins_since_vacuum FROM pg_stat_user_tables WHERE relname = 't'"
        for route, table, before, after in (
            ("append", TABLE, "", ""), ("append", TABLE, "BEGIN;", "ROLLBACK;"), ("append", TABLE, "BEGIN; SAVEPOINT s;", "ROLLBACK TO s; COMMIT;"),
            ("fresh", UNLOGGED, AGAIN, "COMMIT;"), ("fresh", UNLOGGED, AGAIN, "ROLLBACK;"),
            ("fresh", UNLOGGED, AGAIN + "SAVEPOINT s; TRUNCATE t;", "ROLLBACK TO s; COMMIT;"),
        ):
            found = []
            for setting in ("off", "on"):
                taken = self.server.sql(f"DROP TABLE IF EXISTS t; {table} WITH (autovacuum_enabled = off); INSERT INTO t VALUES (1);"
                                        f"SET pgsluice.copy = {setting}; {before} COPY t FROM '{path}' WITH (FORMAT csv); {after}"
                                        "SELECT pg_stat_force_next_flush(); SELECT route FROM pgsluice.last_copy")
                found.append(self.server.sql(counted))
            self.assertEqual(taken.strip(), route)
            self.assertEqual(found[0], found[1], f"{table} {before} {after}")

    def test_in_a_transaction(self):
        """Rows before and after, savepoints, another TRUNCATE, cursors, and several COPYs in one transaction: results are stock COPY's."""
        for server, table in ((self.server, UNLOGGED), (self.minimal, TABLE), (self.server, TABLE)):
            path = server.file("rows.csv", csv())
            copy = f"COPY t FROM '{path}' WITH (FORMAT csv, pgsluice 'require');"
            script = f"""SET pgsluice.copy = {{}}; DROP TABLE IF EXISTS t; BEGIN; {table};
                INSERT INTO t VALUES (-1, 'before', 1, 1); {copy} SELECT count(*), sum(a) FROM t;
                SAVEPOINT one; {copy} SELECT count(*), sum(a) FROM t; ROLLBACK TO one;
                INSERT INTO t VALUES (-2, 'between', 1, 1); SELECT count(*), sum(a) FROM t;
                DECLARE c CURSOR FOR SELECT 1 FROM t; FETCH 3 FROM c; {copy} FETCH 2 FROM c; MOVE ALL FROM c; CLOSE c;
                SELECT count(*), sum(a) FROM t; SAVEPOINT two; TRUNCATE t; {copy} {copy} SELECT count(*), sum(a) FROM t;
                UPDATE t SET b = 'changed' WHERE a % 100 = 0; DELETE FROM t WHERE a % 100 = 1;
                ROLLBACK TO two; SELECT count(*), sum(a) FROM t; TRUNCATE t; {copy} CREATE INDEX ON t (a); {copy}
                COMMIT; SELECT count(*), sum(a), min(b), max(b) FROM t; SET enable_seqscan = off; SELECT count(*) FROM t WHERE a < 50"""
            stock = server.sql(script.format("off").replace(", pgsluice 'require'", ""))
            self.assertEqual(server.sql(script.format("on")), stock)
            check_heap(self, server)
            self.assertEqual(server.sql("DELETE FROM t WHERE a < 10; SELECT count(*) FROM t"), "59980")
            server.sql("VACUUM (FREEZE) t")
            check_heap(self, server)
            server.checksums()

    def test_abort(self):
        """Loads that are rolled back or fail leave no visible rows, and the next load is complete."""
        for server, table, setup in ((self.server, UNLOGGED, AGAIN), (self.minimal, TABLE, AGAIN), (self.server, TABLE, "BEGIN;")):
            path, bad = server.file("rows.csv", csv()), server.file("bad.csv", csv() + b"no number,,,\n")
            copy = "SET pgsluice.copy = on; {} COPY t FROM '{}' WITH (FORMAT csv, pgsluice 'require');"
            server.sql(f"DROP TABLE IF EXISTS t; {table}; INSERT INTO t VALUES (1)")
            server.sql(copy.format(setup, path) + "ROLLBACK")
            with self.assertRaises(Refused):
                server.sql(copy.format(setup, bad) + "COMMIT")
            self.assertEqual(server.sql("SELECT count(*) FROM t"), "1")
            server.sql(copy.format(setup, path) + "COMMIT")
            self.assertEqual(server.sql("SELECT count(*) FROM t WHERE b IS NOT NULL"), str(COUNT))
            server.sql("VACUUM t")
            check_heap(self, server)


if __name__ == "__main__":
    unittest.main()
