"""COPY into tables that others can reach: keys above all that a unique index has go in by the page."""

import json
import random
import subprocess
import unittest

from . import cluster as clusters
from .cluster import Held, OnCluster, Refused, wait_until
from .test_disk_full import resize, small_disk
from .twins import LoadedTwice, check, standby_follows

# Long keys fill leaves, parents and their parents soon.
TABLE = (
    "DROP TABLE IF EXISTS t; CREATE {kind} TABLE t (a serial PRIMARY KEY, c text COLLATE \"C\", d int, e bigint);"
    "CREATE UNIQUE INDEX tc ON t (c) INCLUDE (d); CREATE UNIQUE INDEX tde ON t (d, e DESC);"
    "CREATE INDEX tb ON t (d); {with_rows}"
)
WITH_ROWS = "INSERT INTO t SELECT n, 'a' || n, -n, 0 FROM generate_series(1, 700) n; SELECT setval('t_a_seq', 700);"
INDEXES = ("t_pkey", "tc", "tde", "tb")
COPY = "COPY t FROM '{}' WITH (FORMAT csv)"
ENTRIES = "SELECT x->>'index', coalesce(x->'rows'->>'leaves', '0') FROM pgsluice.last_copy, jsonb_array_elements(indexes) x"
SCANS = ("a", "c", "d, e DESC", "d")


def row(key, width=440):
    """A line whose keys ascend with the number."""
    return f"{key},k{key:08d}{'x' * width},{key // 3},{-key}\n"


def rows(count, first=1000):
    """Lines whose keys ascend."""
    return [row(first + n) for n in range(count)]


def table(kind="", with_rows=WITH_ROWS):
    """The statements that make the table."""
    return "SET client_min_messages = error;" + TABLE.format(kind=kind, with_rows=with_rows)


class Appended(LoadedTwice):
    """Loads by stock COPY and by ours."""

    def load(self, path, setting, table=table(), before="", after=""):
        """What the COPY says, or what is in the table after it, by rows and by each index."""
        return self.left_by(setting, table, f"{before} {COPY.format(path)}; {after}")

    def answers(self):
        """The table, and scans of the indexes in both directions."""
        said = [self.sql("SELECT count(*), md5(string_agg(t::text, ',' ORDER BY a)) FROM t")]
        for order in SCANS:
            for direction in (order, ", ".join(f"{part} DESC".replace(" DESC DESC", "") for part in order.split(", "))):
                said.append(self.sql(
                    "SET enable_seqscan = off; SET enable_bitmapscan = off;"
                    f"SELECT md5(string_agg(v::text, ',')) FROM (SELECT ROW({order.replace(' DESC', '')}) v FROM t ORDER BY {direction}) _"))
        return said

    def checked(self, cluster=None):
        """amcheck of every index, every row in each."""
        for index in INDEXES:
            check(cluster or self.cluster, index)

    def entries(self, path):
        """Loads the file; how many entries went in by the page, by index."""
        said = self.sql(f"SET pgsluice.copy = on; {COPY.format(path)}; {ENTRIES}")
        return {index: int(count) for index, count in (line.split("|") for line in said.splitlines())}

    def test_ascending_keys(self):
        """By the page into empty and into filled indexes, down to parents that have to be split; no larger than stock's."""
        for with_rows in ("", WITH_ROWS):
            path = self.cluster.file("input", "".join(rows(12000)).encode())
            sizes = []
            for setting in ("off", "on"):
                said = self.load(path, setting, table=table(with_rows=with_rows))
                sizes.append([int(self.sql(f"SELECT pg_relation_size('{index}')")) for index in INDEXES[:3]])
                if setting == "off":
                    stock = said
            self.assertEqual(said, stock)
            self.checked()
            for one, other in zip(*sizes):
                self.assertLess(other, one * 1.02 + 3 * 8192)
            self.sql(table(with_rows=with_rows))
            found = self.entries(path)
            self.assertGreater(found["t_pkey"], 11000)
            self.assertGreater(found["tde"], 10000)
            self.assertGreater(found["tc"], 8000)
            self.checked()

    def test_keys_in_other_orders(self):
        """Descending, shuffled in lots and altogether, NULLs, long values: whatever cannot go in by the page."""
        lines = rows(5000)
        chance = random.Random(3)
        shuffled = chance.sample(lines, len(lines))
        near = [line for at in range(0, 5000, 50) for line in chance.sample(lines[at:at + 50], 50)]
        nulls = [line if n % 700 else line.rsplit(",", 2)[0] + ",,\n" for n, line in enumerate(lines)]
        wide = [line if n % 900 else row(1000 + n, 1100) for n, line in enumerate(lines)]
        for given in (lines[::-1], shuffled, near, nulls, wide):
            self.same(given)
            self.checked()

    def test_refusals_are_those_of_stock(self):
        """Duplicates in the input and in the table, in one index and in several: stock's words and line."""
        good = rows(9000)
        for bad in (
            good[:5000] + [good[100]] + good[5000:],
            good[:5000] + [good[4999]] + good[5000:],
            good[:8999] + [good[8998]],
            good[:3000] + [row(2000)] + good[3000:6000] + [row(700)],
            good[:7000] + [f"999999,{good[6900].split(',')[1]},0,0\n"] + good[7000:7500] + [good[7400]],
            good[:7000] + [good[6999].replace("7999,", "100000,", 1)] + good[7000:],
        ):
            self.assertIn("23505", str(self.same(bad)))
        self.assertIn("line 7001", str(self.same(good[:7000] + ["x\n"] + good[7000:])))

    def test_all_kinds_of_tables(self):
        """Unlogged and temporary; rolled back; then deletes that leave the end empty, and ordinary inserts."""
        path = self.cluster.file("input", "".join(rows(5000)).encode())
        for kind in ("UNLOGGED", "TEMP"):
            checks = "".join(f"SELECT bt_index_parent_check('{index}', true, true);" for index in INDEXES)
            if not clusters.has("amcheck"):
                checks = ""
            else:
                self.sql("CREATE EXTENSION IF NOT EXISTS amcheck")
            self.assertEqual(self.sql(f"{table(kind)} SET pgsluice.copy = on; {COPY.format(path)}; {checks} SELECT count(*) FROM t").split()[-1], "5700")
        self.same(rows(5000), before="SAVEPOINT s;", after="ROLLBACK TO s;")
        self.checked()
        self.sql("VACUUM t")
        self.sql(f"SET pgsluice.copy = on; {COPY.format(path)}")
        self.checked()
        self.sql("DELETE FROM t WHERE a % 5 <> 1 OR a > 4000; VACUUM t; VACUUM t")
        path = self.cluster.file("more", "".join(rows(5000, 6001)).encode())
        self.assertGreater(self.entries(path)["tc"], 1000)
        self.sql("SELECT setval('t_a_seq', 20000); INSERT INTO t (c, d, e) SELECT 'z' || n, n + 10000, n FROM generate_series(1, 3000) n")
        self.checked()

    def test_beside_writers_and_readers(self):
        """Others insert at the same edge, behind it and before it, and read it."""
        self.sql(table())
        path = self.cluster.file("input", "".join(row(n).split(",", 1)[1] for n in range(1000, 31000)).encode())
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
        """They draw from one sequence, so that each is soon behind the other."""
        self.sql(table())
        paths = [self.cluster.file(f"input{k}", "".join(row(n).split(",", 1)[1] for n in range(k, k + 15000)).encode())
                 for k in (10000, 40000)]
        loads = [subprocess.Popen(self.cluster.command("-c", "SET pgsluice.copy = on", "-c", f"COPY t (c, d, e) FROM '{path}' WITH (FORMAT csv)"))
                 for path in paths]
        self.assertEqual([load.wait() for load in loads], [0, 0])
        self.checked()
        self.assertEqual(self.sql("SELECT count(*), count(DISTINCT a), count(DISTINCT c) FROM t"), "30700|30700|30700")

    def test_serializable(self):
        """Who has read to the end of the index conflicts with what is put there, also when the end has moved."""
        first, second = (self.cluster.file(f"part{n}", "".join(rows(3000, n)).encode()) for n in (1000, 5000))
        begin = "BEGIN ISOLATION LEVEL SERIALIZABLE; SET LOCAL enable_seqscan = off;"
        for setting in ("off", "on"):
            self.sql(table() + "DROP TABLE IF EXISTS y; CREATE TABLE y (a int)")
            one, two = Held(self.cluster), Held(self.cluster)
            one.run(begin + "SELECT count(*) FROM t WHERE a > 600")
            self.sql(f"SET pgsluice.copy = {setting}; {COPY.format(first)}")
            two.run(f"SET pgsluice.copy = {setting};" + begin + "SELECT count(*) FROM y")
            two.run(COPY.format(second))
            one.run("INSERT INTO y VALUES (1)")
            self.assertEqual(one.end("COMMIT"), (0, "", ""))
            self.assertIn("40001", two.end("COMMIT")[2])

    def test_the_fast_root(self):
        """A session remembers an older root of an index that has shrunk to one leaf: nobody has to walk along the new leaves for that."""
        indexed = "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off;"
        self.sql("DROP TABLE IF EXISTS s; CREATE TABLE s (a int PRIMARY KEY, b int) WITH (fillfactor = 10, autovacuum_enabled = off);"
                 "CREATE INDEX sb ON s (b); INSERT INTO s SELECT n, n FROM generate_series(1, 3000) n")
        path = self.cluster.file("input", "".join(f"{n},{n}\n" for n in range(10000, 50000)).encode())
        loader, reader = Held(self.cluster), Held(self.cluster)
        loader.run(f"SET pgsluice.copy = on; {indexed} SELECT a FROM s WHERE a = 7")
        self.sql("DELETE FROM s WHERE a < 2990")
        reader.run(f"{indexed} BEGIN; DECLARE k CURSOR FOR SELECT b FROM s ORDER BY b; FETCH k")
        vacuum = subprocess.Popen(self.cluster.command("-c", "VACUUM (PARALLEL 0, INDEX_CLEANUP ON) s"))
        # It is done with the first index, of which other sessions are told at its end, and waits for the cursor on the second.
        self.assertTrue(wait_until(lambda: self.sql("SELECT count(*) FROM pg_stat_activity WHERE wait_event IN ('BufferPin', 'BufferCleanup')") == "1"))
        loader.run(f"COPY s FROM '{path}' WITH (FORMAT csv)")
        self.assertEqual(reader.end("COMMIT")[0], 0)
        self.assertEqual((vacuum.wait(), loader.end()[0]), (0, 0))
        (plan,) = json.loads(self.sql(f"{indexed} EXPLAIN (ANALYZE, BUFFERS, FORMAT json) SELECT a FROM s WHERE a = 49999"))
        self.assertLess(plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"], 10)
        for index in ("s_pkey", "sb"):
            check(self.cluster, index)

    def test_disk_full(self):
        """No room for new leaves: refused, and those that were got already are used later on."""
        disk = self.cluster.home / "disk"
        small_disk(self, disk, 4)
        self.addCleanup(self.sql, "DROP TABLE t; DROP TABLESPACE small")
        path = self.cluster.file("input", "".join(rows(12000)).encode())
        self.sql(f"CREATE TABLESPACE small LOCATION '{disk}'")
        self.sql(table() + "ALTER INDEX tc SET TABLESPACE small; CHECKPOINT")
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


class Cut(OnCluster):
    """The server is killed, and followed."""

    settings = ["wal_level = replica", "wal_keep_size = '1GB'", "checkpoint_timeout = 1h"]

    def checked(self, cluster):
        """amcheck of every index, every row in each."""
        for index in INDEXES:
            check(cluster, index)

    def test_killed_in_the_middle(self):
        """At any size of the index: what there is of it is whole, and goes on."""
        path = self.cluster.file("input", "".join(rows(40000)).encode())
        chance = random.Random(11)
        for attempt in range(4):
            self.sql(table() + "CHECKPOINT")
            blocks = chance.randrange(20, 2200)
            load = subprocess.Popen(self.cluster.command("-c", f"SET pgsluice.copy = on; {COPY.format(path)}"),
                                    stderr=subprocess.DEVNULL)
            while load.poll() is None and int(self.sql("SELECT pg_relation_size('tc') / 8192")) < blocks:
                if attempt % 2:
                    self.sql("CHECKPOINT")
            self.cluster.kill()
            load.wait()
            self.cluster.start()
            self.assertIn(self.sql("SELECT count(*) FROM t"), ("700", "40700"))
            self.checked(self.cluster)
            self.sql("DELETE FROM t WHERE a > 700; VACUUM t")
            self.sql(f"SET pgsluice.copy = on; {COPY.format(path)}")
            self.checked(self.cluster)
            self.assertEqual(self.sql("SELECT count(*) FROM t"), "40700")

    def test_a_standby_follows(self):
        """It answers by the index all the while, and is whole when it takes over, without the library."""
        self.sql(table())
        path = self.cluster.file("input", "".join(rows(20000)).encode())
        standby = standby_follows(self, f"SET pgsluice.copy = on; {COPY.format(path)}",
                                  "SELECT count(*) FROM t WHERE a > 0; SELECT count(*) FROM (SELECT c FROM t ORDER BY c DESC) _",
                                  {"700\n700", "700\n20700", "20700\n20700"}, INDEXES)
        self.checked(standby)
        standby.sql("INSERT INTO t SELECT n, 'z' || n, n, n FROM generate_series(100000, 103000) n")
        self.checked(standby)
        self.assertEqual(standby.sql("SELECT count(*) FROM t"), "23701")


if __name__ == "__main__":
    unittest.main()
