"""CREATE INDEX against the stock build: bytes, errors, tables of every kind, and what happens to an index after its build."""

import os
import shutil
import subprocess
import tempfile
import unittest

from .cluster import Cluster, Held, OnCluster, Refused, wait_until
from .twins import LAST, SORTED, STOCK, check, compare, refusal

# For each type, an expression of a random integer i (and of the row's number n) that has few values.
TYPES = {
    "smallint": "(i - 500)::smallint",
    "int": "(i - 500) * 3999999",
    "bigint": "(i - 500) * 9007199254740993",
    "oid": "(i::bigint * 4294967)::oid",
    "bool": "i % 2 = 0",
    '"char"': "chr(1 + i % 127)::\"char\"",
    "date": "date '1999-12-31' + i",
    "timestamp": "timestamp '1999-12-31' + i * interval '1.000001 hour'",
    "timestamptz": "timestamptz '1999-12-31' + i * interval '7.7 hour'",
    "time": "time '00:00' + i * interval '3 s'",
    "money": "(i - 500)::money",
    "float4": "(array['NaN', '-0', '0', 'Infinity', (i - 500)::text])[i % 5 + 1]::float4",
    "float8": "(array['NaN', '-0', '0', '-Infinity', ((i - 500) * 1e100)::text])[i % 5 + 1]::float8",
    "uuid": "md5(i::text)::uuid",
    "macaddr": "('08:00:2b:01:' || lpad(to_hex(i % 256), 2, '0') || ':0' || (i % 10))::macaddr",
    "macaddr8": "('08:00:2b:01:02:03:' || lpad(to_hex(i % 256), 2, '0') || ':0' || (i % 10))::macaddr8",
    "pg_lsn": "('16/' || to_hex(i * 70000))::pg_lsn",
    "text": "chr(200 + i % 60) || repeat('ab', i % 19) || i",
    "varchar(200)": "repeat('x', i % 150)",
    'text COLLATE "C"': "substr(md5(i::text), 1, i % 20)",
    "bytea": "substr(decode(md5((i / 3)::text) || '00' || md5(i::text), 'hex'), 1, i % 33)",
}
FILLED = (
    "DROP TABLE IF EXISTS t; CREATE {kind} TABLE t (a int, b text);"
    "INSERT INTO t SELECT n, md5((n % 3000)::text) FROM generate_series(1, 60000) n;"
)
SMALL = "SET maintenance_work_mem = '1MB';"
BUILD = f"{SORTED}{SMALL}CREATE INDEX i ON t (b); CREATE UNIQUE INDEX u ON t (a DESC);"
ORDERED = (
    "SET enable_seqscan = off; SET enable_bitmapscan = off;"
    "SELECT count(*), md5(string_agg(b || ctid::text, ',')) FROM "
    "(SELECT b, ctid FROM t WHERE b > '' ORDER BY b, ctid) _"
)


class Index(OnCluster):
    """Indexes built by both methods on existing tables."""

    settings = ["max_parallel_maintenance_workers = 0"]

    def table(self, columns, rows, count=6000, values=1000):
        """A table t of `count` random rows; `rows` are expressions of i and n."""
        self.sql(
            f"DROP TABLE IF EXISTS t; CREATE TABLE t ({columns}); SELECT setseed(0.5);"
            f"INSERT INTO t SELECT {rows} FROM (SELECT (random() * {values})::int AS i, n "
            f"FROM generate_series(1, {count}) n OFFSET 0) _"
        )

    def test_every_type_and_direction(self):
        """For each type, ascending and descending, with NULLs first or last, the index has the stock build's pages."""
        for kind, expression in TYPES.items():
            self.table(f"a {kind}", f"CASE WHEN i % 17 > 0 THEN {expression} END")
            for order in ("", "DESC", "NULLS FIRST", "DESC NULLS LAST"):
                with self.subTest(kind=kind, order=order):
                    compare(self, self.cluster, f"INDEX ON t (a {order})")

    def test_collations(self):
        """For each collation of the C library and of the server, the index has the stock build's pages."""
        words = "(array['a', 'B', 'ab', 'a b', 'a-b', 'Ä', 'zz', 'ž', '€', '😀'])[i % 10 + 1]"
        self.table("b text", f"{words} || (n % 90)")
        for collation in self.sql("SELECT collname FROM pg_collation WHERE collprovider IN ('c', 'b', 'd') "
                                  "AND collencoding IN (-1, 6)").splitlines():
            with self.subTest(collation=collation):
                definition = f'INDEX ON t (b COLLATE "{collation}")'
                compare(self, self.cluster, definition)
        compare(self, self.cluster, "INDEX ON t (b text_pattern_ops)")

    def test_counters(self):
        """Scans and rows read are counted as for the stock build."""
        # The server itself reads pages with updated rows, one here and one there.
        for before in ("", "UPDATE t SET a = -a WHERE a % 700 = 0;"):
            for key in ("a", "(a + 1)"):
                counted = []
                for settings in (STOCK, f"{SORTED} SET pgsluice.debug_force_routes = on;"):
                    self.table("a int", "n", count=3000)
                    self.sql(f"{before}{settings} CREATE INDEX ON t ({key}); SELECT pg_stat_force_next_flush()")
                    counted.append(self.sql("SELECT seq_scan, seq_tup_read FROM pg_stat_user_tables WHERE relname = 't'"))
                self.assertEqual(*counted)

    def test_several_columns(self):
        """Keys of up to six columns and INCLUDE columns, of all widths: the index has the stock build's pages."""
        self.table(
            "a int, b text, c smallint, d timestamptz, e text, f bytea, g name, h numeric",
            "i % 7, repeat('y', i % 40), (n % 3)::smallint, "
            "CASE WHEN i % 5 > 0 THEN timestamptz '2020-01-01' + i * interval '1 min' END, "
            "CASE WHEN n % 9 > 0 THEN md5((n % 50)::text) END, decode(md5(n::text), 'hex'), "
            "'n' || i, i / 7.0",
            count=20000,
        )
        for columns in (
            "a, b", "b DESC, a", "c, d NULLS FIRST, e", "e DESC, c, a DESC NULLS LAST",
            "f, a", "a, f DESC", "c, a, b, d, e, f", "a) INCLUDE (b", "e, c) INCLUDE (g, h, d",
            "a) WITH (fillfactor = 40", "e) WITH (fillfactor = 100, deduplicate_items = off",
        ):
            with self.subTest(columns=columns):
                compare(self, self.cluster, f"INDEX ON t ({columns})")

    def test_expressions_and_predicates(self):
        """For expressions and predicates, rows come from the executor, and the index has the stock build's pages."""
        self.table("a int, b text", "i, md5(i::text)")
        for definition in (
            "INDEX ON t (upper(b))", "INDEX ON t (a) WHERE a % 3 = 0", "INDEX ON t ((a % 10), b)",
        ):
            compare(self, self.cluster, definition, scan="rows")

    def test_expressions_that_need_not_be_computed(self):
        """Once the core has found too many different values of an expression, it computes no more of them before the stock build begins."""
        self.table("a int", "n", count=30000)
        self.sql("CREATE SEQUENCE calls; CREATE FUNCTION counted(int) RETURNS numeric IMMUTABLE LANGUAGE plpgsql AS"
                 " 'BEGIN PERFORM nextval(''public.calls''); RETURN $1; END'")
        said = self.sql(f"{SORTED}{SMALL}SET pgsluice.debug_force_routes = on; CREATE INDEX ON t (counted(a)); {LAST} SELECT last_value < 45000 FROM calls")
        self.assertEqual(said, "stock: too many different values of a kind that the server has to compare\nt")

    def test_a_type_that_is_too_long(self):
        """An index with a column of a type that is longer than an index entry can be is left to the stock build, which takes its NULLs."""
        self.sql("CREATE TYPE wide; CREATE FUNCTION wide_in(cstring) RETURNS wide IMMUTABLE STRICT LANGUAGE internal AS 'namein';"
                 "CREATE FUNCTION wide_out(wide) RETURNS cstring IMMUTABLE STRICT LANGUAGE internal AS 'nameout';"
                 "CREATE TYPE wide (INPUT = wide_in, OUTPUT = wide_out, INTERNALLENGTH = 2704)")
        self.table("a int, b wide", "n, NULL::wide", count=100)
        said = self.sql(f"{SORTED}CREATE INDEX wider ON t (a) INCLUDE (b); {LAST}")
        self.assertEqual(said, "stock: a column's type is too long for an index entry")
        check(self.cluster, "wider")

    def test_keys_that_begin_alike(self):
        """URLs of a few hosts, keys that are prefixes of one another, and trailing zero bytes: the index has the stock build's pages."""
        self.table(
            'u text COLLATE "C", s text COLLATE "C", b bytea, a int',
            "(array['https://www.example.com/path/', 'https://www.example.com/', 'http://a.org/'])[n % 3 + 1] || i,"
            "CASE WHEN n % 9 > 0 THEN repeat('a', i % 400) END,"
            "convert_to('the same bytes at first', 'UTF8') || decode(repeat('00', i % 90), 'hex'), n % 500",
            count=12000,
        )
        for columns in ("u", "u DESC", "s", "s DESC NULLS LAST, u", "a, u", "u, a DESC", "b", "b DESC, u", "u) INCLUDE (a"):
            for settings in ("", "SET maintenance_work_mem = '1MB';"):
                with self.subTest(columns=columns, settings=settings):
                    compare(self, self.cluster, f"INDEX ON t ({columns})", settings)
        compare(self, self.cluster, "INDEX ON t ((u || a) DESC, s)", scan="rows")

    def test_heavy_duplicates_and_many_levels(self):
        """Posting lists of maximal size, heap TIDs in high keys, and three levels: the index has the stock build's pages."""
        self.table("a int, b text", "0, repeat(chr(97 + n % 26), 100) || n", count=60000)
        compare(self, self.cluster, "INDEX ON t (a)")
        compare(self, self.cluster, "INDEX ON t (a) WITH (deduplicate_items = off)")
        self.assertGreater(compare(self, self.cluster, "INDEX ON t (b)"), 900)
        compare(self, self.cluster, "UNIQUE INDEX ON t (b)")

    def test_runs_that_spill(self):
        """With 1 MB of memory, runs are spilled and merged in one pass or several: the index has the stock build's pages, and temp_file_limit applies."""
        small = "SET maintenance_work_mem = '1MB';"
        self.table("a int, b text", "i, repeat('z', n % 100) || i", count=150000, values=100000)
        for definition in ("INDEX ON t (a)", "INDEX ON t (b DESC)", "INDEX ON t (b, a)"):
            compare(self, self.cluster, definition, small)
        spilled = self.sql(f"{SORTED}{small}CREATE INDEX ON t (b); SELECT spilled_bytes FROM pgsluice.last_index_build")
        size = self.sql("SELECT sum(length(b)) FROM t")
        self.assertGreater(int(spilled), int(size))
        refused = refusal(self.cluster, f"{SORTED}{small}SET temp_file_limit = '2MB';CREATE INDEX ON t (b)")
        self.assertIn("temporary file size exceeds", refused)

    def test_cut_short_while_rows_are_sorted(self):
        """A build of keys with a long common prefix, cut short at any time, reports the timeout; a later build has the stock build's pages."""
        self.table("b text COLLATE \"C\"", "'the same words at first ' || md5(n::text)", count=200000)
        for timeout in range(100, 1000, 100):
            said = refusal(self.cluster, f"{SORTED} SET statement_timeout = {timeout}; CREATE INDEX cut ON t (b)")
            self.assertTrue(said is None or "57014" in said, said)
            self.sql("SET client_min_messages = error; DROP INDEX IF EXISTS cut")
        compare(self, self.cluster, "INDEX ON t (b)")

    def test_uniqueness(self):
        """Unique builds report the stock build's errors; of several duplicates, the first in the order of the index."""
        self.table("a int, b text", "n, md5(n::text)", count=5000)
        compare(self, self.cluster, "UNIQUE INDEX ON t (a)")
        compare(self, self.cluster, "UNIQUE INDEX ON t (b, a)")
        self.sql("DROP INDEX stock, sorted; INSERT INTO t VALUES (17, md5('17')), (NULL, NULL), (NULL, NULL)")
        for definition in (
            "CREATE UNIQUE INDEX u ON t (a)", "CREATE UNIQUE INDEX u ON t (b, a)",
            "ALTER TABLE t ADD CONSTRAINT u UNIQUE (b)", "ALTER TABLE t ADD CONSTRAINT u PRIMARY KEY (a)",
            "CREATE UNIQUE INDEX u ON t ((a * 3), b)",
        ):
            stock = refusal(self.cluster, STOCK + definition)
            self.assertIsNotNone(stock)
            self.assertEqual(stock, refusal(self.cluster, SORTED + definition))
        self.sql("DELETE FROM t WHERE ctid = (SELECT max(ctid) FROM t WHERE a = 17)")
        compare(self, self.cluster, "UNIQUE INDEX ON t (a)")
        nulls = "CREATE UNIQUE INDEX u ON t (a) NULLS NOT DISTINCT"
        self.assertEqual(refusal(self.cluster, STOCK + nulls), refusal(self.cluster, SORTED + nulls))
        # Of several duplicates, the first in the order of the index.
        self.sql("DROP INDEX stock, sorted; INSERT INTO t VALUES (40, 'x'), (20, 'y'), (30, 'z')")
        for order, first in (("ASC", 20), ("DESC", 40)):
            said = refusal(self.cluster, f"{SORTED}CREATE UNIQUE INDEX u ON t (a {order})")
            self.assertIn(f"Key (a)=({first}) is duplicated.", said)

    def test_keys_and_rebuilds(self):
        """ADD PRIMARY KEY, REINDEX, and ALTER TABLE commands that rebuild indexes use the sorted build; the rebuilt key still rejects duplicates."""
        self.table("a int, b text", "n, md5(n::text)", count=3000)
        last = self.sql(f"{SORTED}ALTER TABLE t ADD CONSTRAINT k PRIMARY KEY (a); {LAST}")
        self.assertEqual(last, "sorted pages")
        for again in ("REINDEX INDEX k", "REINDEX TABLE t", "ALTER TABLE t ALTER a TYPE bigint",
                      "ALTER TABLE t ADD c float8 DEFAULT random()", "ALTER TABLE t SET UNLOGGED"):
            last = self.sql(f"{SORTED}{again}; SELECT relation, method FROM pgsluice.last_index_build")
            self.assertEqual(last, "k|sorted", again)
            check(self.cluster, "k")
        self.assertIsNotNone(refusal(self.cluster, "INSERT INTO t VALUES (17, 'again')"))
        self.sql("INSERT INTO t VALUES (100000, 'new')")

    def test_what_is_left_to_stock(self):
        """A build that is left to the stock build records its reason. Other access methods, builds with the setting off, and CONCURRENTLY are not recorded."""
        self.table("a int, b text, c name", "i, md5(n::text), 'n' || i")
        said = self.sql(f"{SORTED}CREATE INDEX ON t (c); {LAST}")
        self.assertEqual(said, "stock: a column's type is cstring")
        said = self.sql(f"{SORTED}CREATE INDEX ON t USING hash (b); {LAST}")
        self.assertEqual(said, "")
        self.assertEqual(self.sql(f"CREATE INDEX ON t (a); {LAST}"), "")
        # In the transaction that builds such an index, nothing announces it to the extension before the build starts.
        for concurrently in ("CREATE INDEX CONCURRENTLY apart ON t (a)", "REINDEX INDEX CONCURRENTLY apart"):
            self.assertEqual(self.sql(f"{SORTED} {concurrently}; {LAST}"), "")


class Languages(unittest.TestCase):
    """Locales of the C library, one of them under a misleading name."""

    def test_a_locale_with_rules_sorts_by_them_whatever_its_name(self):
        """Text is sorted by the rules of its locale, whatever the name: de_DE has rules, and so has a C.UTF-8 made from it; C.UTF-8 has none."""
        with tempfile.TemporaryDirectory() as locales:
            os.chmod(locales, 0o755)
            for name, source in (("de_DE.UTF-8", "de_DE"), ("C.UTF-8@rules", "de_DE"), ("C.UTF-8@plain", "C")):
                try:
                    subprocess.run(["localedef", "--no-archive", "-i", source, "-f", "UTF-8", f"{locales}/{name}"],
                                   capture_output=True, check=False)
                except FileNotFoundError:
                    self.skipTest("no localedef here")
                if not os.path.exists(f"{locales}/{name}/LC_COLLATE"):
                    self.skipTest("no sources of locales here")
            installed = next((p for p in ("/usr/lib/locale/C.utf8", "/usr/lib/locale/C.UTF-8") if os.path.exists(p)), None)
            if installed:
                shutil.copytree(installed, f"{locales}/C.utf8")
            os.environ["LOCPATH"] = locales
            try:
                cluster = Cluster(["max_parallel_maintenance_workers = 0"])
            finally:
                del os.environ["LOCPATH"]
            try:
                self.collations(cluster)
            finally:
                cluster.remove()

    def collations(self, cluster):
        """Builds an index on text in each of three collations."""
        cluster.sql(
            "CREATE EXTENSION pgsluice; CREATE TABLE t (b text);"
            "CREATE COLLATION german (provider = libc, locale = 'de_DE.UTF-8');"
            "CREATE COLLATION ruled (provider = libc, locale = 'C.UTF-8@rules');"
            "CREATE COLLATION plain (provider = libc, locale = 'C.UTF-8@plain');"
            "INSERT INTO t SELECT (array['a', 'B', 'a-b', 'a b', 'ab', 'Ä', 'z'])[n % 7 + 1] || n % 50 FROM generate_series(1, 3000) n"
        )
        order = "SELECT string_agg(w, ',' ORDER BY w COLLATE {}) FROM (SELECT DISTINCT left(b, 3) AS w FROM t) _"
        self.assertEqual(cluster.sql(order.format("german")), cluster.sql(order.format("ruled")))
        self.assertNotEqual(cluster.sql(order.format("german")), cluster.sql(order.format("plain")))
        for name in ("plain", "german", "ruled"):
            compare(self, cluster, f"INDEX ON t (b COLLATE {name})")


class Visibility(OnCluster):
    """Tables with updated, deleted, dead and unfinished rows."""

    settings = ["max_parallel_maintenance_workers = 0", "autovacuum = off"]

    def test_updated_and_deleted_rows(self):
        """HOT chains, dead rows, rolled-back rows, and line pointers of all kinds: the index has the stock build's pages."""
        self.sql(
            "CREATE TABLE t (a int, b text) WITH (fillfactor = 70);"
            "INSERT INTO t SELECT n, 'x' || n % 100 FROM generate_series(1, 20000) n;"
            "BEGIN; INSERT INTO t SELECT -n, 'no' FROM generate_series(1, 3000) n; ROLLBACK;"
            "UPDATE t SET b = b || '!' WHERE a % 10 = 0 AND a < 12000;"
            "DELETE FROM t WHERE a % 7 = 0 AND a > 5000; VACUUM t;"
            "UPDATE t SET b = b || '?' WHERE a % 9 = 0 AND a > 9000;"
            "DELETE FROM t WHERE a % 11 = 0; UPDATE t SET a = -a WHERE a % 500 = 1"
        )
        for definition in ("INDEX ON t (a)", "INDEX ON t (b, a)", "UNIQUE INDEX ON t (a)"):
            compare(self, self.cluster, definition)
        self.sql("DROP TABLE t")

    def test_rows_of_the_same_transaction(self):
        """An index built in the transaction that inserted the rows has all of them, except those rolled back to a savepoint."""
        for settings in (STOCK, SORTED):
            self.sql(
                f"{settings} DROP TABLE IF EXISTS t; BEGIN; CREATE TABLE t (a int);"
                "INSERT INTO t SELECT n % 5000 FROM generate_series(1, 20000) n;"
                "SAVEPOINT s; INSERT INTO t SELECT -n FROM generate_series(1, 5000) n; ROLLBACK TO s;"
                "CREATE INDEX sorted ON t (a); COMMIT"
            )
            check(self.cluster, "sorted")
            scan = "SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT count(*), min(a), max(a), sum(a) FROM t WHERE a IS NOT NULL"
            self.assertEqual(self.sql(scan), "20000|0|4999|49990000")
        self.sql("DROP TABLE t")

    def test_dead_rows_that_an_old_snapshot_sees(self):
        """Recently dead rows that an old snapshot sees are indexed, but do not count as duplicates; indcheckxmin is that of the stock build."""
        self.sql("CREATE TABLE t (a int, b text); INSERT INTO t SELECT n, 'x' FROM generate_series(1, 5000) n")
        old = Held(self.cluster)
        # This session holds a snapshot and no lock.
        old.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
        try:
            self.sql("DELETE FROM t WHERE a <= 900; INSERT INTO t SELECT n, 'y' FROM generate_series(1, 900) n")
            self.sql("UPDATE t SET b = 'z' WHERE a > 4000")
            compare(self, self.cluster, "UNIQUE INDEX ON t (a)")
            compare(self, self.cluster, "INDEX ON t (a)")
            # A HOT chain that is broken for the new index: its old rows have other values.
            compare(self, self.cluster, "INDEX ON t (b)")
            for index in ("stock", "sorted"):
                self.assertEqual(self.sql(f"SELECT indcheckxmin FROM pg_index WHERE indexrelid = '{index}'::regclass"),
                                 self.sql("SELECT indcheckxmin FROM pg_index WHERE indexrelid = 'stock'::regclass"))
        finally:
            old.end()
        self.sql("DROP TABLE t")


class Life(OnCluster):
    """What happens after a build, or instead of one."""

    settings = ["max_parallel_maintenance_workers = 0"]

    def test_inserts_deletes_and_vacuum(self):
        """After a build, inserts, updates, deletes and VACUUM work: the index passes amcheck, returns all rows in order, and rejects duplicates."""
        self.sql(FILLED.format(kind="") + BUILD)
        for seed in range(4):
            self.sql(
                f"SELECT setseed({seed / 10}); DELETE FROM t WHERE random() < 0.4;"
                f"INSERT INTO t SELECT 100000 * {seed + 1} + n, md5((random() * 3000)::int::text) FROM generate_series(1, 20000) n;"
                "UPDATE t SET b = b WHERE a % 3 = 0; UPDATE t SET a = -a WHERE a % 50 = 1;"
                + ("VACUUM t;" if seed % 2 else "")
            )
            check(self.cluster, "i", "u")
        plain = self.sql("SELECT count(*), md5(string_agg(b || ctid::text, ',' ORDER BY b, ctid)) FROM t")
        self.assertEqual(self.sql(ORDERED), plain)
        self.assertIn("duplicate key", refusal(self.cluster, "INSERT INTO t SELECT a FROM t LIMIT 1"))

    def test_scans_in_both_directions(self):
        """Ranges, backward scans and NULLs: the index returns the rows that a table scan returns."""
        self.sql(FILLED.format(kind="") + "INSERT INTO t SELECT NULL, NULL FROM generate_series(1, 500);" + BUILD + "VACUUM t")
        for query in (
            "SELECT a FROM t WHERE a BETWEEN 500 AND 900 ORDER BY a",
            "SELECT a FROM t ORDER BY a DESC NULLS LAST LIMIT 700",
            "SELECT a FROM t ORDER BY a NULLS FIRST LIMIT 700",
            "SELECT count(*) FROM t WHERE a IS NULL",
            "SELECT b, count(*) FROM t WHERE b >= 'e' GROUP BY b ORDER BY b DESC",
            "SELECT a FROM t WHERE a IN (5, 17, 59999, 60001) ORDER BY a",
        ):
            plain = self.sql("SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off;" + query)
            scanned = self.sql("SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off;" + query)
            self.assertEqual(plain, scanned, query)

    def test_cancelled(self):
        """A cancelled build leaves no temporary files, and the next one succeeds."""
        self.sql("DROP TABLE IF EXISTS t; CREATE TABLE t (a int, b text);"
                 "INSERT INTO t SELECT n, md5(n::text) FROM generate_series(1, 300000) n")
        cancelled = 0
        # No machine completes a build within the first timeout.
        for timeout in (1, 20, 50, 100, 200, 300):
            refused = refusal(self.cluster, f"{SORTED}{SMALL}SET statement_timeout = {timeout}; CREATE INDEX i ON t (b)")
            if refused is None:
                self.sql("DROP INDEX i")
            else:
                self.assertIn("statement timeout", refused)
                cancelled += 1
            # A session reports the cancel before it has cleaned up.
            files = "SELECT count(*) FROM pg_ls_tmpdir()"
            self.assertTrue(wait_until(lambda: self.sql(files) == "0"), "temporary files are left")
        self.assertGreater(cancelled, 0)
        compare(self, self.cluster, "INDEX ON t (b)", SMALL)

    def test_temporary_tables_and_tablespaces_of_others(self):
        """A temporary table's index uses the sorted build; CREATE INDEX and REINDEX CONCURRENTLY leave indexes that pass amcheck."""
        last = self.sql(
            "CREATE TEMP TABLE p AS SELECT n AS a FROM generate_series(1, 5000) n;"
            f"{SORTED} CREATE UNIQUE INDEX ON p (a); SET enable_seqscan = off;"
            "SELECT a FROM p WHERE a = 4711; SELECT method FROM pgsluice.last_index_build")
        self.assertEqual(last.splitlines(), ["4711", "sorted"])
        self.sql(FILLED.format(kind=""))
        self.sql(f"{SORTED}CREATE INDEX CONCURRENTLY i ON t (b)")
        self.sql(f"{SORTED}CREATE UNIQUE INDEX CONCURRENTLY u ON t (a)")
        self.sql(f"{SORTED}REINDEX INDEX CONCURRENTLY i")
        check(self.cluster, "i", "u")

    def test_out_of_the_way_when_not_allowed(self):
        """Without privileges, CREATE INDEX, REINDEX and ADD PRIMARY KEY fail with the stock server's error."""
        self.sql(FILLED.format(kind="") + "DROP ROLE IF EXISTS nobody_much; CREATE ROLE nobody_much LOGIN; GRANT CREATE ON SCHEMA public TO nobody_much")
        for statement in ("CREATE INDEX ON t (a)", "REINDEX TABLE t", "ALTER TABLE t ADD PRIMARY KEY (a)"):
            refusals = []
            for setting in ("", SORTED):
                with self.assertRaises(Refused) as refused:
                    self.cluster.sql(setting + statement, user="nobody_much")
                refusals.append(str(refused.exception))
            self.assertIn("42501", refusals[0])
            self.assertEqual(refusals[0], refusals[1])
        self.sql("REVOKE CREATE ON SCHEMA public FROM nobody_much; DROP ROLE nobody_much")


if __name__ == "__main__":
    unittest.main()
