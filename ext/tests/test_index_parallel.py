"""COPY that builds several indexes at once: cut short, short of room, killed, copied to a standby."""

import random
import shutil
import subprocess
import time
import unittest

from . import cluster as clusters
from .cluster import Cluster, Refused, wait_until
from .twins import check

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


class Builds(unittest.TestCase):
    """One table with four indexes, loaded again and again into a new file."""

    def setUp(self):
        self.cluster = Cluster(["wal_level = replica", "checkpoint_timeout = 1h", "max_worker_processes = 8"])
        self.sql = self.cluster.sql
        path = self.cluster.home / "input"
        self.sql(
            f"CREATE EXTENSION pgsluice; {TABLE}"
            "COPY (SELECT n * 7919 % 100003, md5((n % 5000)::text), n % 1000, md5(n::text)::uuid"
            f" FROM generate_series(1, 100000) n) TO '{path}' WITH (FORMAT csv)")
        self.load = (
            "SET pgsluice.copy = on; SET pgsluice.workers = 2; SET maintenance_work_mem = '1MB'; {}"
            f"BEGIN; TRUNCATE t; COPY t FROM '{path}' WITH (FORMAT csv); COMMIT;"
        )

    def tearDown(self):
        self.cluster.remove()

    def whole(self, rows):
        """There are so many rows, and every index has them."""
        self.assertEqual(self.sql("SELECT count(*) FROM t"), str(rows))
        for index in INDEXES:
            check(self.cluster, index)

    def tidy(self):
        """No file and no process is left of a load that failed."""
        # A session that was ended says so before it has tidied up.
        files = "SELECT count(*) FROM pg_ls_tmpdir()"
        self.assertTrue(wait_until(lambda: self.sql(files) == "0"), "temporary files are left")
        left = "SELECT count(*) FROM pg_stat_activity WHERE backend_type ~ 'parallel|pgsluice'"
        self.assertTrue(wait_until(lambda: self.sql(left) == "0"), "workers are left")

    def complete(self):
        """A load that is left alone; gives its seconds."""
        start = time.monotonic()
        told = self.sql(self.load.format("") + "SELECT workers > 0, spilled_bytes > 0 FROM pgsluice.last_index_build")
        seconds = time.monotonic() - start
        self.assertEqual(told, "t|t")
        self.whole(100000)
        return seconds

    def test_cancelled(self):
        """A load that is cancelled while workers build leaves what was there before."""
        seconds = self.complete()
        self.sql("TRUNCATE t; INSERT INTO t VALUES (-1, 'old', 1, NULL)")
        cancelled = 0
        parts = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4]
        # If this machine was busy when it was measured, the time is shortened until it is too short.
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
        """A load beside a session that ends the first worker it sees; its refusal, or None if no worker was met."""
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
        """The load fails as a whole, and the next one does not."""
        for _ in range(20):
            refusal = self.hunt(self.load.format(""))
            self.tidy()
            if refusal:
                break
            # The worker was gone again, or was never seen: all rows are there.
            self.whole(100000)
            self.sql("TRUNCATE t; INSERT INTO t VALUES (-1, 'old', 1, NULL)")
        self.assertIn("57P01", refusal or "no worker was met")
        self.whole(1)
        self.complete()

    def test_a_worker_of_one_index_is_terminated(self):
        """The same of workers that read the table for one index."""
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
        """The refusal is the server's own, whoever met it."""
        with self.assertRaises(Refused) as refused:
            self.sql(self.load.format("SET temp_file_limit = '200kB';"))
        self.assertIn("53400", str(refused.exception))
        self.tidy()
        self.whole(1)
        self.complete()

    def test_no_room_for_temporary_files(self):
        """A full tablespace for temporary files: an error, and all is as before."""
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
            self.cluster.stop("immediate")
            subprocess.run(["umount", str(place)], check=True)

    def test_killed(self):
        """All or nothing, wherever the server is killed; checkpoints run all the while."""
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
        """What workers have written is in the WAL before the commit is."""
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


if __name__ == "__main__":
    unittest.main()
