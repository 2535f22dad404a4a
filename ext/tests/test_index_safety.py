"""Index builds that are cut short, replayed, copied to a standby, and lived with."""

import random
import subprocess
import time
import unittest

from . import cluster as clusters
from .cluster import Cluster, Held, OnCluster, Refused, wait_until
from .twins import SORTED, check, compare, refusal

ROWS = (
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


class Crash(unittest.TestCase):
    """The server is killed in and after builds."""

    def setUp(self):
        self.cluster = None

    def tearDown(self):
        if self.cluster:
            self.cluster.remove()

    def begin(self, *settings):
        """A server with these settings."""
        self.cluster = Cluster([*settings, "max_parallel_maintenance_workers = 0"])
        self.cluster.sql("CREATE EXTENSION pgsluice")
        return self.cluster

    def both(self):
        """Both indexes are as they must be."""
        for index in ("i", "u"):
            check(self.cluster, index)

    def restart(self):
        """Crash and recovery."""
        self.cluster.kill()
        self.cluster.start()

    def test_killed_after_commit(self):
        """What was committed is there, with and without a checkpoint in the build."""
        for settings in (("wal_level = replica",), ("wal_level = minimal", "max_wal_senders = 0")):
            cluster = self.begin(*settings, "checkpoint_timeout = 1h")
            for kind in ("", "UNLOGGED"):
                cluster.sql(ROWS.format(kind=kind) + BUILD)
                expected = cluster.sql(ORDERED)
                self.restart()
                if kind == "UNLOGGED":
                    self.assertEqual(cluster.sql(ORDERED).split("|")[0], "0")
                    cluster.sql("INSERT INTO t VALUES (1, 'x')")
                else:
                    self.assertEqual(cluster.sql(ORDERED), expected)
                self.both()
            cluster.sql("BEGIN;" + ROWS.format(kind="") + BUILD + "COMMIT;")
            self.restart()
            self.assertEqual(cluster.sql(ORDERED), expected)
            self.both()
            cluster.remove()
        self.cluster = None

    def test_killed_in_the_build(self):
        """All or nothing, wherever it is cut off; checkpoints run all the while."""
        cluster = self.begin("checkpoint_timeout = 1h")
        cluster.sql(ROWS.format(kind=""))
        expected = cluster.sql(ORDERED)
        chance = random.Random(7)
        build = Held(cluster)
        build.run(f"BEGIN; {BUILD}")
        self.restart()
        self.assertNotEqual(build.end()[0], 0)
        self.assertEqual(cluster.sql("SELECT count(*) FROM pg_class WHERE relname IN ('i', 'u')"), "0")
        for _ in range(5):
            cluster.sql("DROP INDEX IF EXISTS i, u")
            build = subprocess.Popen(cluster.command("-c", BUILD), stderr=subprocess.DEVNULL)
            checkpoints = subprocess.Popen(
                cluster.command("-c", "CHECKPOINT", "-c", "CHECKPOINT", "-c", "CHECKPOINT"),
                stderr=subprocess.DEVNULL)
            time.sleep(chance.random() * 0.25)
            self.restart()
            build.wait()
            checkpoints.wait()
            there = cluster.sql("SELECT count(*) FROM pg_class WHERE relname IN ('i', 'u')")
            self.assertIn(there, ("0", "2"))
            if there == "2":
                self.both()
            self.assertEqual(cluster.sql(ORDERED), expected)

    def test_unlogged_index_outlives_a_restart(self):
        """A clean stop keeps an unlogged index."""
        cluster = self.begin()
        cluster.sql(ROWS.format(kind="UNLOGGED") + BUILD)
        expected = cluster.sql(ORDERED)
        cluster.checksums()
        self.assertEqual(cluster.sql(ORDERED), expected)
        self.both()


class Life(OnCluster):
    """What comes after a build, or instead of one."""

    settings = ["wal_level = replica", "max_parallel_maintenance_workers = 0"]

    def test_a_standby_follows(self):
        """The standby's index answers as the primary's."""
        standby = Cluster(copy_of=self.cluster)
        try:
            self.sql(ROWS.format(kind="") + BUILD + "REINDEX TABLE t")
            standby.follow(self.cluster)
            self.assertEqual(standby.sql(ORDERED), self.sql(ORDERED))
            if clusters.has("amcheck"):
                self.sql("CREATE EXTENSION IF NOT EXISTS amcheck")
                standby.follow(self.cluster)
                standby.sql("SELECT bt_index_check('i', true), bt_index_check('u', true)")
        finally:
            standby.remove()

    def test_inserts_deletes_and_vacuum(self):
        """The index is one that PostgreSQL can go on with."""
        self.sql(ROWS.format(kind="") + BUILD)
        for seed in range(4):
            self.sql(
                f"SELECT setseed({seed / 10}); DELETE FROM t WHERE random() < 0.4;"
                f"INSERT INTO t SELECT 100000 * {seed + 1} + n, md5((random() * 3000)::int::text) FROM generate_series(1, 20000) n;"
                "UPDATE t SET b = b WHERE a % 3 = 0; UPDATE t SET a = -a WHERE a % 50 = 1;"
                + ("VACUUM t;" if seed % 2 else "")
            )
            for index in ("i", "u"):
                check(self.cluster, index)
        plain = self.sql("SELECT count(*), md5(string_agg(b || ctid::text, ',' ORDER BY b, ctid)) FROM t")
        self.assertEqual(self.sql(ORDERED), plain)
        self.assertIn("duplicate key", refusal(self.cluster, "INSERT INTO t SELECT a FROM t LIMIT 1"))

    def test_scans_in_both_directions(self):
        """Ranges, backwards, index-only, NULLs."""
        self.sql(ROWS.format(kind="") + "INSERT INTO t SELECT NULL, NULL FROM generate_series(1, 500);" + BUILD + "VACUUM t")
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
        """A cancelled build leaves no file behind, and the next one succeeds."""
        self.sql("DROP TABLE IF EXISTS t; CREATE TABLE t (a int, b text);"
                 "INSERT INTO t SELECT n, md5(n::text) FROM generate_series(1, 300000) n")
        cancelled = 0
        # No machine is done within the first.
        for timeout in (1, 20, 50, 100, 200, 300):
            refused = refusal(self.cluster, f"{SORTED}{SMALL}SET statement_timeout = {timeout}; CREATE INDEX i ON t (b)")
            if refused is None:
                self.sql("DROP INDEX i")
            else:
                self.assertIn("statement timeout", refused)
                cancelled += 1
            # A session says that it was cancelled before it has tidied up.
            files = "SELECT count(*) FROM pg_ls_tmpdir()"
            self.assertTrue(wait_until(lambda: self.sql(files) == "0"), "temporary files are left")
        self.assertGreater(cancelled, 0)
        compare(self, self.cluster, "INDEX ON t (b)", SMALL)

    def test_temporary_tables_and_tablespaces_of_others(self):
        """A temporary table's index; REINDEX and CREATE INDEX CONCURRENTLY."""
        last = self.sql(
            "CREATE TEMP TABLE p AS SELECT n AS a FROM generate_series(1, 5000) n;"
            f"{SORTED} CREATE UNIQUE INDEX ON p (a); SET enable_seqscan = off;"
            "SELECT a FROM p WHERE a = 4711; SELECT method FROM pgsluice.last_index_build")
        self.assertEqual(last.splitlines(), ["4711", "sorted"])
        self.sql(ROWS.format(kind=""))
        self.sql(f"{SORTED}CREATE INDEX CONCURRENTLY i ON t (b)")
        self.sql(f"{SORTED}CREATE UNIQUE INDEX CONCURRENTLY u ON t (a)")
        self.sql(f"{SORTED}REINDEX INDEX CONCURRENTLY i")
        for index in ("i", "u"):
            check(self.cluster, index)

    def test_out_of_the_way_when_not_allowed(self):
        """Rights are checked as ever: the refusal is the stock server's own."""
        self.sql(ROWS.format(kind="") + "DROP ROLE IF EXISTS nobody_much; CREATE ROLE nobody_much LOGIN; GRANT CREATE ON SCHEMA public TO nobody_much")
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
