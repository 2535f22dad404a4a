"""COPY into tables that others can reach: what comes behind all that an index has, unique or not, goes in by whole leaves."""

import datetime
import random
import subprocess
import unittest

from . import cluster as clusters
from .cluster import Held, OnCluster, wait_until
from .twins import LoadedTwice, check, standby_follows

INDEXES = {
    "tat": "(at)",  # three equal ones
    "tc": "(c) INCLUDE (d)",
    "td": "(d)",  # many equal ones, in lists
    "tone": "(one)",  # all equal, by their places alone
    "te": "(e)",  # nearly all NULL
    "tn": "(n)",  # ranked, in lists
    "tw": "(w)",  # ranked text
    "tdesc": "(down DESC NULLS LAST, at) WITH (fillfactor = 70)",
    "tplain": "(d, at) WITH (deduplicate_items = off)",
}
# What is in the table is before all that comes.
TABLE = (
    "SET client_min_messages = error; DROP TABLE IF EXISTS t; CREATE {kind} TABLE t"
    " (at timestamp, c text COLLATE \"C\", d int, one text, e int, n numeric, w text COLLATE {icu}, down int) WITH (autovacuum_enabled = off);"
    + "".join(f"CREATE INDEX {name} ON t {columns};" for name, columns in INDEXES.items())
    + "INSERT INTO t SELECT '2020-01-01', 'a' || n, n % 3, 'one', n % 7, n % 5, 'a' || n % 9, n + 1000000 FROM generate_series(1, {rows}) n;"
)
COPY = "COPY t FROM '{}' WITH (FORMAT csv)"
ENTRIES = "SELECT i->>'index', coalesce(i->'rows'->>'leaves', '0'), i->>'way' FROM pgsluice.last_copy, jsonb_array_elements(indexes) i"
SCANS = ("at", "c", "d", "one", "e", "n", "w", "down DESC NULLS LAST, at", "d, at")


def row(n):
    """A line whose keys ascend with the number."""
    at = datetime.datetime(2021, 1, 1) + datetime.timedelta(minutes=n // 3)
    e = n % 900 if n % 900 < 4 else ""
    return f"{at},k{n:08d}{'x' * 60},{10 + n // 400},one,{e},{10 + n // 60},w{n // 8:07d},{1000000 - n}\n"


def lines(count, first=0):
    """Lines in ascending order."""
    return [row(first + n) for n in range(count)]


class WithTable:
    """The table and what is asked of it."""

    def table(self, kind="", rows=700):
        """The statements that make the table."""
        # Not every server is built with ICU.
        icu = self.sql("SELECT coalesce((SELECT quote_ident(collname) FROM pg_collation WHERE collname = 'und-x-icu'), '\"default\"')")
        return TABLE.format(kind=kind, rows=rows, icu=icu)

    def checked(self, cluster=None):
        """amcheck of every index, every row in each."""
        for index in INDEXES:
            check(cluster or self.cluster, index)

    def answers(self):
        """The table, and scans of the indexes in both directions."""
        said = [self.sql("SELECT count(*), md5(string_agg(t::text, ',' ORDER BY t::text)) FROM t")]
        for order in SCANS:
            back = {"down DESC NULLS LAST, at": "down NULLS FIRST, at DESC", "d, at": "d DESC, at DESC"}.get(order, f"{order} DESC")
            for by in (order, back):
                said.append(self.sql(
                    "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off;"
                    f"SELECT md5(string_agg(v::text, ',')) FROM (SELECT ROW({order.replace(' DESC NULLS LAST', '')}) v FROM t ORDER BY {by}) _"))
        return said

    def taken(self, path, before="", options=""):
        """Loads the file: for each index, how many entries went in by the page, and the way that was chosen."""
        said = self.sql(f"SET pgsluice.copy = on; {before} COPY t FROM '{path}' WITH (FORMAT csv{options}); {ENTRIES}")
        return {index: (int(count), way) for index, count, way in (line.split("|") for line in said.splitlines())}

    def by_leaves(self, path, before=""):
        """The numbers alone."""
        return {index: count for index, (count, _) in self.taken(path, before).items()}


class Behind(WithTable, LoadedTwice):
    """Loads by stock COPY and by ours."""

    settings = ["maintenance_work_mem = '4MB'"]

    def load(self, path, setting, table=None, before="", after=""):
        """What is in the table after the COPY, by rows and by each index."""
        return self.left_by(setting, table or self.table(), f"{before} {COPY.format(path)}; {after}")

    def test_keys_that_are_not_unique(self):
        """Equal keys, NULLs, ranked values, lists: by the page into empty and into filled indexes; no larger than stock's."""
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
        """More than memory holds at once: each part goes behind the one before it."""
        path = self.cluster.file("input", "".join(lines(40000)).encode())
        self.sql(self.table())
        for index, count in self.by_leaves(path, "SET maintenance_work_mem = '1MB';").items():
            self.assertGreater(count, 1000 if index in ("te", "tn", "tw") else 38000, index)
        self.checked()
        self.assertEqual(self.sql("SELECT count(*) FROM t"), "40700")

    def test_other_orders(self):
        """Descending, shuffled, some of it behind and some before: each entry is where it belongs."""
        given = lines(12000)
        chance = random.Random(5)
        shuffled = chance.sample(given, len(given))
        table = self.table() + f"INSERT INTO t SELECT '2021-01-02', 'k00006000', 25, 'one', NULL, 110, 'w0000750', 994000 FROM generate_series(1, 2000);"
        for order in (given[::-1], shuffled):
            for made in (None, table):
                self.same(order, table=made)
                self.checked()

    def test_room_before_equal_keys(self):
        """Rows that go into room at the table's front come before equal ones by their place."""
        self.sql(self.table(rows=9000) + "UPDATE t SET at = '2021-01-01', c = 'k', d = 10, n = 10, w = 'w0000000'; VACUUM t")
        found = self.by_leaves(self.cluster.file("input", (row(0) * 3000).encode()))
        self.assertEqual({index: found[index] for index in ("tat", "td", "tone")}, {"tat": 0, "td": 0, "tone": 0})
        self.checked()
        self.assertEqual(self.sql("SELECT count(*) FROM t WHERE d = 10"), "12000")

    def test_all_kinds_of_tables(self):
        """Unlogged and temporary; rolled back; then deletes, vacuums and ordinary inserts and updates."""
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
        self.sql("UPDATE t SET e = e + 1 WHERE d % 3 = 0; DELETE FROM t WHERE d > 25; VACUUM t; VACUUM t")
        self.checked()
        self.by_leaves(self.cluster.file("more", "".join(lines(9000, 9000)).encode()))
        self.sql("INSERT INTO t SELECT '2030-01-01', 'z' || n, n, 'two', n, n, 'z' || n, -n FROM generate_series(1, 3000) n; UPDATE t SET d = d WHERE d % 2 = 0")
        self.checked()

    def test_a_locked_table(self):
        """Indexes that take all behind what they have are not written anew; the others are."""
        self.sql(self.table(rows=20000) + "CREATE INDEX tback ON t (c DESC)")
        ways = self.taken(self.cluster.file("input", "".join(lines(60000)).encode()), options=", lock 'exclusive'")
        self.assertEqual(ways.pop("tback")[1], "merge")
        # Some of its keys are not NULL, and so come before.
        self.assertEqual(ways.pop("te")[1], "merge")
        for index, (count, way) in ways.items():
            self.assertEqual(way, "sorted", index)
            self.assertGreater(count, 58000, index)
        self.checked()
        check(self.cluster, "tback")

    def test_beside_writers_and_readers(self):
        """Others insert at the same end, before and behind it, and read there; two loads at once."""
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
        """Who has read to the end of the index conflicts with what is put there."""
        path = self.cluster.file("input", "".join(lines(3000)).encode())
        begin = "BEGIN ISOLATION LEVEL SERIALIZABLE; SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off;"
        for setting in ("off", "on"):
            self.sql(self.table() + "DROP TABLE IF EXISTS y; CREATE TABLE y (a int)")
            one, two = Held(self.cluster), Held(self.cluster)
            one.run(begin + "SELECT count(*) FROM t WHERE d > 1")
            two.run(f"SET pgsluice.copy = {setting};" + begin + "SELECT count(*) FROM y")
            two.run(COPY.format(path))
            one.run("INSERT INTO y VALUES (1)")
            self.assertEqual(one.end("COMMIT"), (0, "", ""))
            self.assertIn("40001", two.end("COMMIT")[2])


class Cut(WithTable, OnCluster):
    """The server is killed, and followed."""

    settings = ["wal_level = replica", "wal_keep_size = '1GB'", "checkpoint_timeout = 1h", "maintenance_work_mem = '1MB'"]

    def test_killed_in_the_middle(self):
        """At any size of the index: what there is of it is whole, and goes on."""
        path = self.cluster.file("input", "".join(lines(60000)).encode())
        chance = random.Random(17)
        for attempt in range(4):
            self.sql(self.table() + "CHECKPOINT")
            blocks = chance.randrange(20, 600)
            load = subprocess.Popen(self.cluster.command("-c", f"SET pgsluice.copy = on; {COPY.format(path)}"), stderr=subprocess.DEVNULL)
            self.assertTrue(wait_until(lambda: load.poll() is not None or int(self.sql("SELECT pg_relation_size('tc') / 8192")) >= blocks))
            if attempt % 2:
                self.sql("CHECKPOINT")
            self.cluster.kill()
            load.wait()
            self.cluster.start()
            self.assertIn(self.sql("SELECT count(*) FROM t"), ("700", "60700"))
            self.checked()
            self.sql("DELETE FROM t WHERE d > 2; VACUUM t")
            self.by_leaves(path)
            self.checked()
            self.assertEqual(self.sql("SELECT count(*) FROM t"), "60700")

    def test_a_standby_follows(self):
        """It answers by the index all the while, and is whole when it takes over, without the library."""
        self.sql(self.table())
        path = self.cluster.file("input", "".join(lines(40000)).encode())
        standby = standby_follows(self, f"SET pgsluice.copy = on; {COPY.format(path)}",
                                  "SELECT count(*) FROM t WHERE d >= 0; SELECT count(*) FROM (SELECT n FROM t ORDER BY n DESC) _",
                                  {"700\n700", "700\n40700", "40700\n40700"}, INDEXES)
        self.assertEqual(standby.sql("SELECT count(*) FROM t"), "40700")
        standby.sql("INSERT INTO t SELECT '2030-01-01', 'z' || n, n, 'two', n, n, 'z' || n, -n FROM generate_series(1, 3000) n")
        self.checked(standby)


if __name__ == "__main__":
    unittest.main()
