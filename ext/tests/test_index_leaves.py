"""COPY into live tables: entries after all those that an index has are added as whole leaves."""

import datetime
import json
import random
import subprocess
import unittest

from . import cluster as clusters
from .cluster import Held, Refused, wait_until
from .test_disk_full import resize, small_disk
from .twins import LoadedTwice, check, check_reuse, deleted_pages, reader_conflicts, refusal

# Long keys: leaves, their parents and the level above fill soon.
KEYED = (
    "DROP TABLE IF EXISTS t; CREATE {kind} TABLE t (a serial PRIMARY KEY, c text COLLATE \"C\", d int, e bigint);"
    "CREATE UNIQUE INDEX tc ON t (c) INCLUDE (d); CREATE UNIQUE INDEX tde ON t (d, e DESC);"
    "CREATE INDEX tb ON t (d); {with_rows}"
)
WITH_ROWS = "INSERT INTO t SELECT n, 'a' || n, -n, 0 FROM generate_series(1, 700) n; SELECT setval('t_a_seq', 700);"
KEYED_INDEXES = ("t_pkey", "tc", "tde", "tb")
KEYED_ENTRIES = "SELECT x->>'index', coalesce(x->'rows'->>'leaves', '0') FROM pgsluice.last_copy, jsonb_array_elements(indexes) x"
KEYED_SCANS = ("a", "c", "d, e DESC", "d")
COPY = "COPY t FROM '{}' WITH (FORMAT csv)"

INDEXES = {
    "tat": "(at)",  # three equal ones
    "tc": "(c) INCLUDE (d)",
    "td": "(d)",  # many equal ones, in posting lists
    "tone": "(one)",  # all equal, ordered by TID alone
    "te": "(e)",  # nearly all NULL
    "tn": "(n)",  # ranked, in posting lists
    "tw": "(w)",  # ranked text
    "tdesc": "(down DESC NULLS LAST, at) WITH (fillfactor = 70)",
    "tplain": "(d, at) WITH (deduplicate_items = off)",
}
# The rows in the table sort before all new ones.
TABLE = (
    "SET client_min_messages = error; DROP TABLE IF EXISTS t; CREATE {kind} TABLE t"
    " (at timestamp, c text COLLATE \"C\", d int, one text, e int, n numeric, w text COLLATE {icu}, down int) WITH (autovacuum_enabled = off);"
    + "".join(f"CREATE INDEX {name} ON t {columns};" for name, columns in INDEXES.items())
    + "INSERT INTO t SELECT '2020-01-01', 'a' || n, n % 3, 'one', n % 7, n % 5, 'a' || n % 9, n + 1000000 FROM generate_series(1, {rows}) n;"
)
ENTRIES = "SELECT i->>'index', coalesce(i->'rows'->>'leaves', '0'), i->>'way' FROM pgsluice.last_copy, jsonb_array_elements(indexes) i"
SCANS = ("at", "c", "d", "one", "e", "n", "w", "down DESC NULLS LAST, at", "d, at")


def keyed_row(key, width=440):
    """A line whose keys ascend with the number."""
    return f"{key},k{key:08d}{'x' * width},{key // 3},{-key}\n"


def keyed_rows(count, first=1000):
    """Lines whose keys ascend."""
    return [keyed_row(first + n) for n in range(count)]


def keyed_table(kind="", with_rows=WITH_ROWS):
    """The statements that create the table."""
    return "SET client_min_messages = error;" + KEYED.format(kind=kind, with_rows=with_rows)


class Appended(LoadedTwice):
    """Compares a load by stock COPY with one by the extension."""

    def load(self, path, setting, table=keyed_table(), before="", after=""):
        """The COPY's error, or the answers by table scan and by each index after it."""
        return self.left_by(setting, table, f"{before} {COPY.format(path)}; {after}")

    def answers(self):
        """The rows of the table, and scans of the indexes in both directions."""
        asked = ["SELECT count(*), md5(string_agg(t::text, ',' ORDER BY a)) FROM t; SET enable_seqscan = off; SET enable_bitmapscan = off;"]
        for order in KEYED_SCANS:
            for direction in (order, ", ".join(f"{part} DESC".replace(" DESC DESC", "") for part in order.split(", "))):
                asked.append(f"SELECT md5(string_agg(v::text, ',')) FROM (SELECT ROW({order.replace(' DESC', '')}) v FROM t ORDER BY {direction}) _;")
        return self.sql("".join(asked)).split("\n")

    def checked(self, cluster=None):
        """Runs amcheck on every index: it must have an entry for every row."""
        check(cluster or self.cluster, *KEYED_INDEXES)

    def entries(self, path):
        """Loads the file; returns how many entries of each index were added as whole leaves."""
        said = self.sql(f"SET pgsluice.copy = on; {COPY.format(path)}; {KEYED_ENTRIES}")
        return {index: int(count) for index, count in (line.split("|") for line in said.splitlines())}

    def test_ascending_keys(self):
        """Ascending keys are added as whole leaves to empty and filled indexes, down to splits of inner pages;
        indexes are at most 2 % and three blocks larger than stock COPY's."""
        for with_rows in ("", WITH_ROWS):
            path = self.cluster.file("input", "".join(keyed_rows(12000)).encode())
            sizes = []
            for setting in ("off", "on"):
                said = self.load(path, setting, table=keyed_table(with_rows=with_rows))
                sizes.append([int(self.sql(f"SELECT pg_relation_size('{index}')")) for index in KEYED_INDEXES[:3]])
                if setting == "off":
                    stock = said
            self.assertEqual(said, stock)
            self.checked()
            for one, other in zip(*sizes):
                self.assertLess(other, one * 1.02 + 3 * 8192)
            self.sql(keyed_table(with_rows=with_rows))
            found = self.entries(path)
            self.assertGreater(found["t_pkey"], 11000)
            self.assertGreater(found["tde"], 10000)
            self.assertGreater(found["tc"], 8000)
            self.checked()

    def test_keys_in_other_orders(self):
        """Descending, shuffled, NULL and long keys, which cannot all be added as whole leaves: all indexes answer as after stock COPY."""
        lines = keyed_rows(5000)
        chance = random.Random(3)
        shuffled = chance.sample(lines, len(lines))
        near = [line for at in range(0, 5000, 50) for line in chance.sample(lines[at:at + 50], 50)]
        nulls = [line if n % 700 else line.rsplit(",", 2)[0] + ",,\n" for n, line in enumerate(lines)]
        wide = [line if n % 900 else keyed_row(1000 + n, 1100) for n, line in enumerate(lines)]
        for given in (lines[::-1], shuffled, near, nulls, wide):
            self.same(given)
            self.checked()

    def test_integer_keys(self):
        """Integer, date and timestamp keys up to both ends of their types, also in a domain, are added as whole
        leaves, even if one key is out of order or NULL; errors are stock COPY's."""
        table = ("SET client_min_messages = error; DROP TABLE IF EXISTS t; DROP DOMAIN IF EXISTS od; CREATE DOMAIN od AS int;"
                 "CREATE TABLE t (s smallint UNIQUE, b bigint UNIQUE, o od UNIQUE, d date UNIQUE, at timestamptz UNIQUE, m int UNIQUE, pad text);")
        indexes = [f"t_{column}_key" for column in ("s", "b", "o", "d", "at", "m")]
        lines = [f"{n},{n * 3 * 10**15},{n * 700000},{abs(n):04d}-01-01{'' if n > 0 else ' BC'},{-n if n < 0 else 1500 + n:04d}-02-01 00:00Z{' BC' if n < 0 else ''},{'' if n == -1 else n},{'x' * 300}\n"
                 for n in range(-3000, 3001) if n]
        lines[0] = f"-32768,-9223372036854775808,-2147483648,-infinity,-infinity,-7000,{'x' * 300}\n"
        lines[-1] = f"32767,9223372036854775807,2147483647,infinity,infinity,7000,{'x' * 300}\n"
        for given, whole in ((lines, 5000), (lines[:4000] + [lines[4500]] + lines[4000:4500] + lines[4501:], 2000)):
            path = self.cluster.file("input", "".join(given).encode())
            said = []
            for setting in ("off", "on"):
                self.sql(f"{table} SET pgsluice.copy = {setting}; {COPY.format(path)}")
                said.append([self.sql(f"SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT md5(string_agg(t::text, ',' ORDER BY {column})) FROM t")
                             for column in ("s", "b", "o", "d", "at", "m")])
            self.assertEqual(*said)
            check(self.cluster, *indexes)
            self.sql(table)
            found = self.entries(path)
            for index in indexes[:5]:
                self.assertGreater(found[index], whole, index)
        said = []
        for setting in ("off", "on"):
            path = self.cluster.file("input", "".join(lines[:5000] + lines[4999:]).encode())
            said.append(refusal(self.cluster, f"{table} SET pgsluice.copy = {setting}; {COPY.format(path)}"))
        self.assertIn("line 5001", said[0])
        self.assertEqual(*said)

    def test_refusals_are_those_of_stock(self):
        """Duplicates in the input and in the table, in one index and in several: error and line are stock COPY's."""
        good = keyed_rows(9000)
        for bad in (
            good[:5000] + [good[100]] + good[5000:],
            good[:5000] + [good[4999]] + good[5000:],
            good[:8999] + [good[8998]],
            good[:3000] + [keyed_row(2000)] + good[3000:6000] + [keyed_row(700)],
            good[:7000] + [f"999999,{good[6900].split(',')[1]},0,0\n"] + good[7000:7500] + [good[7400]],
            good[:7000] + [good[6999].replace("7999,", "100000,", 1)] + good[7000:],
        ):
            self.assertIn("23505", str(self.same(bad)))
        self.assertIn("line 7001", str(self.same(good[:7000] + ["x\n"] + good[7000:])))

    def test_all_kinds_of_tables(self):
        """Unlogged and temporary tables, ROLLBACK TO a savepoint, deletes that empty the end of the index, another load, which uses deleted pages again, and inserts: indexes pass amcheck."""
        path = self.cluster.file("input", "".join(keyed_rows(5000)).encode())
        for kind in ("UNLOGGED", "TEMP"):
            checks = "".join(f"SELECT bt_index_parent_check('{index}', true, true);" for index in KEYED_INDEXES)
            if not clusters.has("amcheck"):
                checks = ""
            else:
                self.sql("CREATE EXTENSION IF NOT EXISTS amcheck")
            self.assertEqual(self.sql(f"{keyed_table(kind)} SET pgsluice.copy = on; {COPY.format(path)}; {checks} SELECT count(*) FROM t").split()[-1], "5700")
        self.same(keyed_rows(5000), before="SAVEPOINT s;", after="ROLLBACK TO s;")
        self.checked()
        self.sql("VACUUM t")
        self.sql(f"SET pgsluice.copy = on; {COPY.format(path)}")
        self.checked()
        self.sql("DELETE FROM t WHERE a % 5 <> 1 OR a > 4000; VACUUM t; SELECT txid_current(); VACUUM t")
        deleted = deleted_pages(self.cluster, "tc")
        path = self.cluster.file("more", "".join(keyed_rows(5000, 6001)).encode())
        self.assertGreater(self.entries(path)["tc"], 1000)
        check_reuse(self, self.cluster, "tc", deleted)
        self.sql("SELECT setval('t_a_seq', 20000); INSERT INTO t (c, d, e) SELECT 'z' || n, n + 10000, n FROM generate_series(1, 3000) n")
        self.checked()

    def test_beside_writers_and_readers(self):
        """While others insert at the end of the index and before it, and read there, loads succeed: indexes pass amcheck, and no row of the others is lost."""
        self.sql(keyed_table())
        path = self.cluster.file("input", "".join(keyed_row(n).split(",", 1)[1] for n in range(1000, 31000)).encode())
        others = []
        for number, values in enumerate(("'z' || n, 100000 + n, 0", "'b' || n, -10000 - n, 1")):
            others.append(subprocess.Popen(self.cluster.command("-f", "-"), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL))
            others[-1].stdin.write("".join(
                f"INSERT INTO t (c, d, e) SELECT {values} FROM (SELECT {n}) _ (n);"
                "SET enable_seqscan = off; SELECT count(*) FROM t WHERE a > 500;\n" for n in range(150 * (1 + number))).encode())
            others[-1].stdin.close()
        for _ in range(2):
            self.sql(f"SET pgsluice.copy = on; COPY t (c, d, e) FROM '{path}' WITH (FORMAT csv); DELETE FROM t WHERE d BETWEEN 300 AND 20000")
        self.assertEqual([process.wait() for process in others], [0, 0])
        self.checked()
        self.assertEqual(self.sql("SELECT count(*) FROM t WHERE d > 20000 OR e = 1"), "450")

    def test_two_loads_at_once(self):
        """Two loads draw keys from one sequence, so each soon overtakes the other: all rows are there, and indexes pass amcheck."""
        self.sql(keyed_table())
        paths = [self.cluster.file(f"input{k}", "".join(keyed_row(n).split(",", 1)[1] for n in range(k, k + 15000)).encode())
                 for k in (10000, 40000)]
        loads = [subprocess.Popen(self.cluster.command("-c", "SET pgsluice.copy = on", "-c", f"COPY t (c, d, e) FROM '{path}' WITH (FORMAT csv)"))
                 for path in paths]
        self.assertEqual([load.wait() for load in loads], [0, 0])
        self.checked()
        self.assertEqual(self.sql("SELECT count(*), count(DISTINCT a), count(DISTINCT c) FROM t"), "30700|30700|30700")

    def test_serializable(self):
        """SERIALIZABLE: a session that has read to the end of the index conflicts with entries added there, even if the end has moved."""
        parts = [self.cluster.file(f"part{n}", "".join(keyed_rows(3000, n)).encode()) for n in (1000, 5000)]
        reader_conflicts(self, keyed_table(), "SELECT count(*) FROM t WHERE a > 600", map(COPY.format, parts))

    def test_the_fast_root(self):
        """If a session has cached an older root of an index that has shrunk to one leaf, its new leaves still get parents: a search needs fewer than ten pages."""
        indexed = "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off;"
        self.sql("DROP TABLE IF EXISTS s; CREATE TABLE s (a int PRIMARY KEY, b int) WITH (fillfactor = 10, autovacuum_enabled = off);"
                 "CREATE INDEX sb ON s (b); INSERT INTO s SELECT n, n FROM generate_series(1, 3000) n")
        path = self.cluster.file("input", "".join(f"{n},{n}\n" for n in range(10000, 50000)).encode())
        loader, reader = Held(self.cluster), Held(self.cluster)
        loader.run(f"SET pgsluice.copy = on; {indexed} SELECT a FROM s WHERE a = 7")
        self.sql("DELETE FROM s WHERE a < 2990")
        reader.run(f"{indexed} BEGIN; DECLARE k CURSOR FOR SELECT b FROM s ORDER BY b; FETCH k")
        vacuum = subprocess.Popen(self.cluster.command("-c", "VACUUM (PARALLEL 0, INDEX_CLEANUP ON) s"))
        # It has finished the first index, which it reports to other sessions at its end, and waits for the cursor on the second.
        self.assertTrue(wait_until(lambda: self.sql("SELECT count(*) FROM pg_stat_activity WHERE wait_event IN ('BufferPin', 'BufferCleanup')") == "1"))
        loader.run(f"COPY s FROM '{path}' WITH (FORMAT csv)")
        self.assertEqual(reader.end("COMMIT")[0], 0)
        self.assertEqual((vacuum.wait(), loader.end()[0]), (0, 0))
        (plan,) = json.loads(self.sql(f"{indexed} EXPLAIN (ANALYZE, BUFFERS, FORMAT json) SELECT a FROM s WHERE a = 49999"))
        self.assertLess(plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"], 10)
        check(self.cluster, "s_pkey", "sb")

    def test_disk_full(self):
        """If there is no room for new leaves, the load fails and the indexes pass amcheck; with more room, the next load succeeds."""
        disk = self.cluster.home / "disk"
        small_disk(self, disk, 4)
        self.addCleanup(self.sql, "DROP TABLE t; DROP TABLESPACE small")
        path = self.cluster.file("input", "".join(keyed_rows(12000)).encode())
        self.sql(f"CREATE TABLESPACE small LOCATION '{disk}'")
        self.sql(keyed_table() + "ALTER INDEX tc SET TABLESPACE small; CHECKPOINT")
        for _ in range(2):
            with self.assertRaises(Refused) as refused:
                self.sql(f"SET pgsluice.copy = on; {COPY.format(path)}")
            self.assertIn("53100: could not extend file", str(refused.exception))
            self.checked()
        resize(disk, 64)
        self.sql("VACUUM t")
        self.sql(f"SET pgsluice.copy = on; {COPY.format(path)}")
        self.checked()
        self.assertEqual(self.sql("SELECT count(*) FROM t"), "12700")


def row(n):
    """A line whose keys ascend with the number."""
    at = datetime.datetime(2021, 1, 1) + datetime.timedelta(minutes=n // 3)
    e = n % 900 if n % 900 < 4 else ""
    return f"{at},k{n:08d}{'x' * 60},{10 + n // 400},one,{e},{10 + n // 60},w{n // 8:07d},{1000000 - n}\n"


def lines(count, first=0):
    """Lines in ascending order."""
    return [row(first + n) for n in range(count)]


class WithTable:
    """The table, its checks and its queries."""

    def table(self, kind="", rows=700):
        """The statements that create the table."""
        # Not every server is built with ICU.
        icu = self.sql("SELECT coalesce((SELECT quote_ident(collname) FROM pg_collation WHERE collname = 'und-x-icu'), '\"default\"')")
        return TABLE.format(kind=kind, rows=rows, icu=icu)

    def checked(self, cluster=None):
        """Runs amcheck on every index: it must have an entry for every row."""
        check(cluster or self.cluster, *INDEXES)

    def answers(self):
        """The rows of the table, and scans of the indexes in both directions."""
        asked = ["SELECT count(*), md5(string_agg(t::text, ',' ORDER BY t::text)) FROM t;"
                 "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off;"]
        for order in SCANS:
            back = {"down DESC NULLS LAST, at": "down NULLS FIRST, at DESC", "d, at": "d DESC, at DESC"}.get(order, f"{order} DESC")
            for by in (order, back):
                asked.append(f"SELECT md5(string_agg(v::text, ',')) FROM (SELECT ROW({order.replace(' DESC NULLS LAST', '')}) v FROM t ORDER BY {by}) _;")
        return self.sql("".join(asked)).split("\n")

    def taken(self, path, before="", options=""):
        """Loads the file; returns for each index how many entries were added as whole leaves, and the method chosen."""
        said = self.sql(f"SET pgsluice.copy = on; {before} COPY t FROM '{path}' WITH (FORMAT csv{options}); {ENTRIES}")
        return {index: (int(count), way) for index, count, way in (line.split("|") for line in said.splitlines())}

    def by_leaves(self, path, before=""):
        """The numbers only."""
        return {index: count for index, (count, _) in self.taken(path, before).items()}


class Behind(WithTable, LoadedTwice):
    """Compares a load by stock COPY with one by the extension."""

    settings = ["maintenance_work_mem = '4MB'"]

    def load(self, path, setting, table=None, before="", after=""):
        """The answers after the COPY, by table scan and by each index."""
        return self.left_by(setting, table or self.table(), f"{before} {COPY.format(path)}; {after}")

    def test_keys_that_are_not_unique(self):
        """Equal keys, NULLs and ranked values are added as whole leaves to empty and filled indexes, which are at
        most 10 % and four blocks larger than stock COPY's."""
        path = self.cluster.file("input", "".join(lines(40000)).encode())
        for filled in (0, 700):
            sizes = []
            for setting in ("off", "on"):
                said = self.load(path, setting, table=self.table(rows=filled))
                sizes.append([int(self.sql(f"SELECT pg_relation_size('{index}')")) for index in INDEXES])
                if setting == "off":
                    stock = said
            self.assertEqual(said, stock)
            self.checked()
            for index, one, other in zip(INDEXES, *sizes):
                self.assertLess(other, one * 1.1 + 4 * 8192, index)
            self.sql(self.table(rows=filled))
            found = self.by_leaves(path)
            for index, count in found.items():
                self.assertGreater(count, 39500, index)
            self.assertEqual(set(found), set(INDEXES))
            self.checked()
            again = self.cluster.file("more", "".join(lines(20000, 40000)).encode())
            for index, count in self.by_leaves(again).items():
                self.assertGreater(count, 19500, index)
            self.checked()

    def test_in_parts(self):
        """If memory does not hold all entries, each part is added after the one before it, most of it as whole leaves."""
        path = self.cluster.file("input", "".join(lines(40000)).encode())
        self.sql(self.table())
        for index, count in self.by_leaves(path, "SET maintenance_work_mem = '1MB';").items():
            self.assertGreater(count, 1000 if index in ("te", "tn", "tw") else 38000, index)
        self.checked()
        self.assertEqual(self.sql("SELECT count(*) FROM t"), "40700")

    def test_other_orders(self):
        """Descending and shuffled keys, some after and some before those of the table: all indexes answer as after stock COPY."""
        given = lines(12000)
        chance = random.Random(5)
        shuffled = chance.sample(given, len(given))
        table = self.table() + f"INSERT INTO t SELECT '2021-01-02', 'k00006000', 25, 'one', NULL, 110, 'w0000750', 994000 FROM generate_series(1, 2000);"
        for order in (given[::-1], shuffled):
            for made in (None, table):
                self.same(order, table=made)
                self.checked()

    def test_room_before_equal_keys(self):
        """Rows that fill free space at the table's start sort before equal keys by TID: their entries are not added as leaves, and indexes pass amcheck."""
        self.sql(self.table(rows=9000) + "UPDATE t SET at = '2021-01-01', c = 'k', d = 10, n = 10, w = 'w0000000'; VACUUM t")
        found = self.by_leaves(self.cluster.file("input", (row(0) * 3000).encode()))
        self.assertEqual({index: found[index] for index in ("tat", "td", "tone")}, {"tat": 0, "td": 0, "tone": 0})
        self.checked()
        self.assertEqual(self.sql("SELECT count(*) FROM t WHERE d = 10"), "12000")

    def test_all_kinds_of_tables(self):
        """Unlogged and temporary tables, ROLLBACK TO a savepoint, then deletes, VACUUM, another load, which uses deleted pages again, updates and inserts: indexes pass amcheck."""
        path = self.cluster.file("input", "".join(lines(9000)).encode())
        if clusters.has("amcheck"):
            self.sql("CREATE EXTENSION IF NOT EXISTS amcheck")
        for kind in ("UNLOGGED", "TEMP"):
            checks = "".join(f"SELECT bt_index_parent_check('{index}', true, true);" for index in INDEXES) if clusters.has("amcheck") else ""
            self.assertEqual(self.sql(f"{self.table(kind)} SET pgsluice.copy = on; {COPY.format(path)}; {checks} SELECT count(*) FROM t").split()[-1], "9700")
        self.same(lines(9000), before="SAVEPOINT s;", after="ROLLBACK TO s;")
        self.checked()
        self.sql("VACUUM t")
        self.by_leaves(path)
        self.sql("UPDATE t SET e = e + 1 WHERE d % 3 = 0; DELETE FROM t WHERE d > 25; VACUUM t; SELECT txid_current(); VACUUM t")
        self.checked()
        deleted = {index: deleted_pages(self.cluster, index) for index in ("tc", "tn", "tdesc")}
        self.by_leaves(self.cluster.file("more", "".join(lines(9000, 9000)).encode()))
        for index, pages in deleted.items():
            check_reuse(self, self.cluster, index, pages)
        self.sql("INSERT INTO t SELECT '2030-01-01', 'z' || n, n, 'two', n, n, 'z' || n, -n FROM generate_series(1, 3000) n; UPDATE t SET d = d WHERE d % 2 = 0")
        self.checked()

    def test_a_locked_table(self):
        """In a locked table, indexes whose new entries all come last are not rewritten; the others are."""
        self.sql(self.table(rows=20000) + "CREATE INDEX tback ON t (c DESC)")
        ways = self.taken(self.cluster.file("input", "".join(lines(60000)).encode()), options=", lock 'exclusive'")
        self.assertEqual(ways.pop("tback")[1], "merge")
        # Some keys are not NULL, and so sort before the others.
        self.assertEqual(ways.pop("te")[1], "merge")
        for index, (count, way) in ways.items():
            self.assertEqual(way, "sorted", index)
            self.assertGreater(count, 58000, index)
        self.checked()
        check(self.cluster, "tback")

    def test_beside_writers_and_readers(self):
        """Two loads run at once while others insert before, at and after the end of the indexes and read there: all rows are there, and indexes pass amcheck."""
        self.sql(self.table())
        loads = []
        for first in (0, 30000):
            path = self.cluster.file(f"input{first}", "".join(lines(30000, first)).encode())
            loads.append(subprocess.Popen(self.cluster.command("-c", "SET maintenance_work_mem = '1MB'; SET pgsluice.copy = on", "-c", COPY.format(path))))
        writer = subprocess.Popen(self.cluster.command("-f", "-"), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        writer.stdin.write("".join(
            f"INSERT INTO t SELECT '2021-01-01', 'k{n % 60:05d}', {n % 150}, 'one', NULL, {n % 900}, 'w{n % 60:04d}', {1000000 - n};"
            f"SET enable_seqscan = off; SELECT count(*) FROM t WHERE d > {n % 150};\n" for n in range(600)).encode())
        writer.stdin.close()
        self.assertEqual([one.wait() for one in (*loads, writer)], [0, 0, 0])
        self.checked()
        self.assertEqual(self.sql("SELECT count(*) FROM t"), "61300")

    def test_serializable(self):
        """SERIALIZABLE: a session that has read to the end of the index conflicts with entries added there."""
        path = self.cluster.file("input", "".join(lines(3000)).encode())
        reader_conflicts(self, self.table(), "SELECT count(*) FROM t WHERE d > 1", [COPY.format(path)])


if __name__ == "__main__":
    unittest.main()
