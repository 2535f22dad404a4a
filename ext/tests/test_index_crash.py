"""Indexes after a crash, a shortage or a forced end, and on a standby: indexes of a build, and those that a COPY adds entries to."""

import random
import shutil
import subprocess
import time
import unittest

from . import cluster as clusters
from . import test_index_leaves as leaves
from . import test_index_live as live
from . import test_index_private as private
from .cluster import Cluster, Held, OnCluster, Refused, wait_until
from .test_index_build import BUILD, FILLED, ORDERED
from .twins import LoadedTwice, check, standby_follows

INDEXES = ("t_pkey", "tb", "tc", "td")
TABLE = (
    "CREATE TABLE t (a int PRIMARY KEY, b text, c bigint, d uuid);"
    "CREATE INDEX tb ON t (b); CREATE INDEX tc ON t (c DESC, a); CREATE INDEX td ON t (d);"
    "INSERT INTO t VALUES (-1, 'old', 1, NULL);"
)
ANSWER = (
    "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off;"
    "SELECT count(*), md5(string_agg(d::text, ',')) FROM (SELECT d FROM t WHERE d IS NOT NULL ORDER BY d) _"
)


class Build(unittest.TestCase):
    """The server is killed during and after builds."""

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
        """Checks both indexes."""
        check(self.cluster, "i", "u")

    def restart(self):
        """Kills the server and recovers it."""
        self.cluster.kill()
        self.cluster.start()

    def test_killed_after_commit(self):
        """Committed indexes are complete after a crash, at wal_level replica and minimal; those of an unlogged table are empty and usable."""
        for settings in (("wal_level = replica",), ("wal_level = minimal", "max_wal_senders = 0")):
            cluster = self.begin(*settings, "checkpoint_timeout = 1h")
            for kind in ("", "UNLOGGED"):
                cluster.sql(FILLED.format(kind=kind) + BUILD)
                expected = cluster.sql(ORDERED)
                self.restart()
                if kind == "UNLOGGED":
                    self.assertEqual(cluster.sql(ORDERED).split("|")[0], "0")
                    cluster.sql("INSERT INTO t VALUES (1, 'x')")
                else:
                    self.assertEqual(cluster.sql(ORDERED), expected)
                self.both()
            cluster.sql("BEGIN;" + FILLED.format(kind="") + BUILD + "COMMIT;")
            self.restart()
            self.assertEqual(cluster.sql(ORDERED), expected)
            self.both()
            cluster.remove()
        self.cluster = None

    def test_killed_in_the_build(self):
        """Wherever the server is killed, with checkpoints meanwhile, both indexes are there or neither is, and the table is complete."""
        cluster = self.begin("checkpoint_timeout = 1h")
        cluster.sql(FILLED.format(kind=""))
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
        """An unlogged index survives a clean restart."""
        cluster = self.begin()
        cluster.sql(FILLED.format(kind="UNLOGGED") + BUILD)
        expected = cluster.sql(ORDERED)
        cluster.checksums()
        self.assertEqual(cluster.sql(ORDERED), expected)
        self.both()


class Followed(OnCluster):
    """A build on a server that has a standby."""

    settings = ["wal_level = replica", "max_parallel_maintenance_workers = 0"]

    def test_a_standby_follows(self):
        """After builds and a REINDEX, the standby's indexes answer as the primary's and pass amcheck."""
        standby = Cluster(copy_of=self.cluster)
        try:
            self.sql(FILLED.format(kind="") + BUILD + "REINDEX TABLE t")
            standby.follow(self.cluster)
            self.assertEqual(standby.sql(ORDERED), self.sql(ORDERED))
            if clusters.has("amcheck"):
                self.sql("CREATE EXTENSION IF NOT EXISTS amcheck")
                standby.follow(self.cluster)
                standby.sql("SELECT bt_index_check('i', true), bt_index_check('u', true)")
        finally:
            standby.remove()


class Synced(unittest.TestCase):
    """Files of a build at the next checkpoint."""

    def test_the_next_checkpoint_syncs_the_index(self):
        """The next checkpoint syncs the file of a new index."""
        cluster = Cluster(["checkpoint_timeout = 1h", "log_checkpoints = on", "log_min_messages = debug1"],
                          durable=True)
        try:
            path = cluster.sql(
                "CREATE TABLE t AS SELECT n FROM generate_series(1, 50000) n; CHECKPOINT;"
                f"SET pgsluice.index_build = on; CREATE INDEX i ON t (n); SELECT pg_relation_filepath('i')")
            cluster.sql("CHECKPOINT")
            self.assertIn(f"file={path} ", cluster.log.read_text(encoding="utf-8"))
        finally:
            cluster.remove()


class Several(OnCluster):
    """One table with four indexes, loaded repeatedly into a new file."""

    settings = ["wal_level = replica", "checkpoint_timeout = 1h", "max_worker_processes = 8"]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        path = cls.cluster.home / "input"
        cls.sql("COPY (SELECT n * 7919 % 100003, md5((n % 5000)::text), n % 1000, md5(n::text)::uuid"
                f" FROM generate_series(1, 100000) n) TO '{path}' WITH (FORMAT csv)")
        cls.load = (
            "SET pgsluice.copy = on; SET pgsluice.workers = 2; SET maintenance_work_mem = '1MB'; {}"
            f"BEGIN; TRUNCATE t; COPY t FROM '{path}' WITH (FORMAT csv); COMMIT;"
        )

    def setUp(self):
        self.sql(f"SET client_min_messages = error; DROP TABLE IF EXISTS t; {TABLE} CHECKPOINT")

    def whole(self, rows):
        """The table has this number of rows, and every index has them."""
        self.assertEqual(self.sql("SELECT count(*) FROM t"), str(rows))
        check(self.cluster, *INDEXES)

    def tidy(self):
        """No temporary file and no worker of a failed load is left."""
        # A session reports its end before it has cleaned up.
        files = "SELECT count(*) FROM pg_ls_tmpdir()"
        self.assertTrue(wait_until(lambda: self.sql(files) == "0"), "temporary files are left")
        left = "SELECT count(*) FROM pg_stat_activity WHERE backend_type ~ 'parallel|pgsluice'"
        self.assertTrue(wait_until(lambda: self.sql(left) == "0"), "workers are left")

    def complete(self):
        """Runs a load without interference; returns its seconds."""
        start = time.monotonic()
        told = self.sql(self.load.format("") + "SELECT workers > 0, spilled_bytes > 0 FROM pgsluice.last_index_build")
        seconds = time.monotonic() - start
        self.assertEqual(told, "t|t")
        self.whole(100000)
        return seconds

    def test_cancelled(self):
        """A load that is cancelled while workers build indexes leaves the rows from before, no files and no workers."""
        seconds = self.complete()
        self.sql("TRUNCATE t; INSERT INTO t VALUES (-1, 'old', 1, NULL)")
        cancelled = 0
        parts = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4]
        # If this machine was busy during the measurement, the timeout is shortened until it is short enough.
        while parts or not cancelled:
            part = parts.pop() if parts else part / 2
            timeout = max(int(1000 * seconds * part), 1)
            try:
                self.sql(self.load.format(f"SET transaction_timeout = {timeout};" if clusters.MAJOR > 16 else
                                          f"SET statement_timeout = {timeout};"))
                self.sql("TRUNCATE t; INSERT INTO t VALUES (-1, 'old', 1, NULL)")
            except Refused as refused:
                self.assertRegex(str(refused), "timeout|terminating")
                cancelled += 1
            self.tidy()
            self.whole(1)
        self.complete()

    def hunt(self, load):
        """Runs a load while another session terminates the first worker it sees; returns the error, or None if it met no worker."""
        hunter = subprocess.Popen(self.cluster.command(
            "-c", "DO $$ DECLARE prey int; BEGIN LOOP PERFORM pg_stat_clear_snapshot();"
            " SELECT pid INTO prey FROM pg_stat_activity WHERE backend_type = 'parallel worker' LIMIT 1;"
            " IF FOUND THEN PERFORM pg_terminate_backend(prey); RETURN; END IF;"
            " PERFORM pg_sleep(0.001); END LOOP; END $$"))
        hunting = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'DO $$ DECLARE prey%' AND state = 'active'"
        self.assertTrue(wait_until(lambda: self.sql(hunting) == "1"), "nobody hunts")
        try:
            self.sql(load)
        except Refused as refused:
            return str(refused)
        finally:
            self.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'DO $$ DECLARE prey%'")
            hunter.wait()
        return None

    def test_a_worker_is_terminated(self):
        """If a worker is terminated, the load fails as a whole; the next one succeeds."""
        for _ in range(20):
            refusal = self.hunt(self.load.format(""))
            self.tidy()
            if refusal:
                break
            # The worker had ended, or was never seen: all rows are there.
            self.whole(100000)
            self.sql("TRUNCATE t; INSERT INTO t VALUES (-1, 'old', 1, NULL)")
        self.assertIn("57P01", refusal or "no worker was met")
        self.whole(1)
        self.complete()

    def test_a_worker_of_one_index_is_terminated(self):
        """If a worker that reads the table for one index is terminated, the build fails as a whole; the next one succeeds."""
        build = ("SET pgsluice.index_build = on; SET max_parallel_maintenance_workers = 2; SET pgsluice.workers = 2; BEGIN;"
                 "ALTER TABLE t SET (parallel_workers = 2); CREATE INDEX other ON t (a);"
                 "SELECT workers FROM pgsluice.last_index_build; ROLLBACK")
        self.complete()
        for _ in range(20):
            refusal = self.hunt(build)
            self.tidy()
            if refusal:
                break
        self.assertIn("57P01", refusal or "no worker was met")
        self.whole(100000)
        self.assertEqual(self.sql(build), "2")

    def test_temporary_files_beyond_their_limit(self):
        """If temporary files exceed temp_file_limit, the load fails with the server's own error and leaves the rows from before."""
        with self.assertRaises(Refused) as refused:
            self.sql(self.load.format("SET temp_file_limit = '200kB';"))
        self.assertIn("53400", str(refused.exception))
        self.tidy()
        self.whole(1)
        self.complete()

    def test_no_room_for_temporary_files(self):
        """If the tablespace for temporary files is full, the load fails with the server's own error and leaves the rows from before."""
        place = self.cluster.home / "small"
        place.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1M", "tmpfs", str(place)],
                                 capture_output=True, check=False)
        if mounted.returncode != 0:
            self.skipTest("a small file system cannot be mounted here")
        try:
            if clusters.USER:
                shutil.chown(place, clusters.USER)
            self.sql(f"CREATE TABLESPACE small LOCATION '{place}'")
            with self.assertRaises(Refused) as refused:
                self.sql(self.load.format("SET temp_tablespaces = 'small';"))
            self.assertIn("53100", str(refused.exception))
            self.whole(1)
            self.complete()
            self.sql("DROP TABLESPACE small")
        finally:
            self.cluster.stop()
            subprocess.run(["umount", str(place)], check=True)
            self.cluster.start()

    def test_killed(self):
        """Wherever the server is killed, with checkpoints meanwhile, all rows of a load are there or none, and every index passes amcheck."""
        seconds = self.complete()
        answer = self.sql(ANSWER)
        chance = random.Random(3)
        for _ in range(4):
            self.sql("TRUNCATE t; INSERT INTO t VALUES (-1, 'old', 1, NULL)")
            load = subprocess.Popen(self.cluster.command("-c", self.load.format("").split("BEGIN")[0], "-f", "-"),
                                    stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
            load.stdin.write(("BEGIN" + self.load.split("BEGIN")[1]).encode())
            load.stdin.close()
            checkpoint = subprocess.Popen(self.cluster.command("-c", "SELECT pg_sleep(0.1)", "-c", "CHECKPOINT"),
                                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(seconds * (0.4 + 0.6 * chance.random()))
            self.cluster.kill()
            load.wait()
            checkpoint.wait()
            self.cluster.start()
            rows = self.sql("SELECT count(*) FROM t")
            self.assertIn(rows, ("1", "100000"))
            self.whole(rows)
            if rows == "100000":
                self.assertEqual(self.sql(ANSWER), answer)
        self.complete()

    def test_a_standby_follows(self):
        """Pages written by workers are in the WAL before the commit: the standby's indexes answer as the primary's and pass amcheck."""
        standby = Cluster(copy_of=self.cluster)
        try:
            self.complete()
            standby.follow(self.cluster)
            self.assertEqual(standby.sql(ANSWER), self.sql(ANSWER))
            if clusters.has("amcheck"):
                for index in INDEXES:
                    standby.sql(f"SELECT bt_index_check('{index}', true)")
        finally:
            standby.remove()


class Committed(LoadedTwice):
    """A private table whose indexes a COPY has built."""

    load = private.Private.load

    def test_killed_after_the_commit(self):
        """After a crash, the rows of a committed load are there, and every index passes amcheck."""
        expected = self.same(private.rows(30000))
        self.cluster.kill()
        self.cluster.start()
        check(self.cluster, *private.INDEXES)
        self.assertEqual(self.sql("SELECT count(*) FROM t"), expected.split("|")[0])


class Sorted(OnCluster):
    """A live table whose entries are sorted first."""

    settings, checked = live.Live.settings, live.Live.checked

    def test_killed_in_the_middle(self):
        """After a crash in a load, all of its rows are visible or none, and the indexes pass amcheck and take inserts."""
        path = self.cluster.file("input", "".join(live.rows(60000)).encode())
        for delay in (0.3, 0.7, 1.2):
            self.sql("SET client_min_messages = error;" + live.TABLE + "CHECKPOINT")
            load = subprocess.Popen(self.cluster.command("-c", f"SET pgsluice.copy = on; {live.COPY.format(path)}"),
                                    stderr=subprocess.DEVNULL)
            time.sleep(delay)
            self.cluster.kill()
            load.wait()
            self.cluster.start()
            self.assertIn(self.sql("SELECT count(*) FROM t"), ("20000", "80000"))
            self.checked()
            self.sql("INSERT INTO t SELECT -1000000 - n, 'old 1', n, 'q1' FROM generate_series(1, 2000) n")
            self.checked()


class Keyed(OnCluster):
    """The server is killed, or followed by a standby, during loads of ascending unique keys."""

    settings = ["wal_level = replica", "wal_keep_size = '1GB'", "checkpoint_timeout = 1h"]

    def checked(self, cluster):
        """Runs amcheck on every index: it must have an entry for every row."""
        check(cluster, *leaves.KEYED_INDEXES)

    def test_killed_in_the_middle(self):
        """Whatever the size of the index when the server is killed, the indexes pass amcheck after recovery, and take deletes, VACUUM and another load."""
        path = self.cluster.file("input", "".join(leaves.keyed_rows(40000)).encode())
        chance = random.Random(11)
        for attempt in range(4):
            self.sql(leaves.keyed_table() + "CHECKPOINT")
            blocks = chance.randrange(20, 2200)
            load = subprocess.Popen(self.cluster.command("-c", f"SET pgsluice.copy = on; {leaves.COPY.format(path)}"),
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
            self.sql(f"SET pgsluice.copy = on; {leaves.COPY.format(path)}")
            self.checked(self.cluster)
            self.assertEqual(self.sql("SELECT count(*) FROM t"), "40700")

    def test_a_standby_follows(self):
        """A standby without the library answers by the indexes during the load; once it takes over, they pass amcheck and take inserts."""
        self.sql(leaves.keyed_table())
        path = self.cluster.file("input", "".join(leaves.keyed_rows(20000)).encode())
        standby = standby_follows(self, f"SET pgsluice.copy = on; {leaves.COPY.format(path)}",
                                  "SELECT count(*) FROM t WHERE a > 0; SELECT count(*) FROM (SELECT c FROM t ORDER BY c DESC) _",
                                  {"700\n700", "700\n20700", "20700\n20700"}, leaves.KEYED_INDEXES)
        self.checked(standby)
        standby.sql("INSERT INTO t SELECT n, 'z' || n, n, n FROM generate_series(100000, 103000) n")
        self.checked(standby)
        self.assertEqual(standby.sql("SELECT count(*) FROM t"), "23701")


class Behind(leaves.WithTable, OnCluster):
    """The server is killed, or followed by a standby, during loads of ascending keys that are not unique."""

    settings = ["wal_level = replica", "wal_keep_size = '1GB'", "checkpoint_timeout = 1h", "maintenance_work_mem = '1MB'"]

    def test_killed_in_the_middle(self):
        """Whatever the size of the index when the server is killed, the indexes pass amcheck after recovery, and take deletes, VACUUM and another load."""
        path = self.cluster.file("input", "".join(leaves.lines(60000)).encode())
        chance = random.Random(17)
        for attempt in range(4):
            self.sql(self.table() + "CHECKPOINT")
            blocks = chance.randrange(20, 600)
            load = subprocess.Popen(self.cluster.command("-c", f"SET pgsluice.copy = on; {leaves.COPY.format(path)}"), stderr=subprocess.DEVNULL)
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
        """A standby without the library answers by the indexes during the load; once it takes over, they pass amcheck and take inserts."""
        self.sql(self.table())
        path = self.cluster.file("input", "".join(leaves.lines(40000)).encode())
        standby = standby_follows(self, f"SET pgsluice.copy = on; {leaves.COPY.format(path)}",
                                  "SELECT count(*) FROM t WHERE d >= 0; SELECT count(*) FROM (SELECT n FROM t ORDER BY n DESC) _",
                                  {"700\n700", "700\n40700", "40700\n40700"}, leaves.INDEXES)
        self.assertEqual(standby.sql("SELECT count(*) FROM t"), "40700")
        standby.sql("INSERT INTO t SELECT '2030-01-01', 'z' || n, n, 'two', n, n, 'z' || n, -n FROM generate_series(1, 3000) n")
        self.checked(standby)


class Merged(OnCluster):
    """The server is killed, and followed by a standby, around a load that merges indexes."""

    settings = ["wal_level = replica", "wal_keep_size = '1GB'", "checkpoint_timeout = 1h"]
    answers, checked = live.Merged.answers, live.Merged.checked

    def test_killed_and_followed(self):
        """After a kill before the commit, the table is as before; after a kill that follows the commit, all rows are there, and on a standby, too."""
        self.sql(live.FILLED.format(kind="") + live.DEAD)
        path = self.cluster.file("input", "".join(live.unordered()).encode())
        standby = Cluster(copy_of=self.cluster)
        self.addCleanup(standby.remove)
        before = self.answers()
        load = Held(self.cluster)
        load.run(f"SET pgsluice.copy = on; BEGIN; {live.LOCK} {live.COPY_MORE.format(path)}; SELECT 1")
        self.assertEqual(load.run("SELECT scan FROM pgsluice.last_index_build"), "merged")
        self.sql("CHECKPOINT")
        self.cluster.kill()
        with self.assertRaises((Refused, BrokenPipeError)):
            load.run("COMMIT")
        load.process.communicate()
        self.cluster.start()
        self.assertEqual(self.answers(), before)
        self.checked()
        self.sql(f"SET pgsluice.copy = on; BEGIN; {live.LOCK} {live.COPY_MORE.format(path)}; COMMIT")
        after = self.answers()
        self.cluster.kill()
        self.cluster.start()
        self.assertEqual(self.answers(), after)
        self.checked()
        standby.follow(self.cluster)
        self.assertEqual(self.answers(standby), after)


if __name__ == "__main__":
    unittest.main()
