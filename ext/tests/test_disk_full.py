"""Out of disk space while a relation grows or WAL is written: a load leaves all of its rows or none.

The tests need small file systems, which only root may mount, and not everywhere.
"""

import os
import shutil
import subprocess
import unittest

from . import cluster as clusters
from .cluster import Cluster, Refused, wait_until
from .test_durability import SUM, TABLE, check_heap, load, rows


def small_disk(test, path, megabytes):
    """Mounts a file system of this size at `path`; skips the test if that is not possible."""
    if os.geteuid() != 0:
        test.skipTest("only root can mount a small file system")
    path.mkdir(exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0700", "pgsluice", path],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        test.skipTest(f"mounting a small file system is refused here: {done.stderr.strip()}")
    test.addCleanup(subprocess.run, ["umount", "-l", path], check=False)
    shutil.chown(path, clusters.USER)


def resize(path, megabytes):
    """Changes the size of the small file system."""
    subprocess.run(["mount", "-o", f"remount,size={megabytes}m", path], check=True)


class DiskFull(unittest.TestCase):
    """Small file systems under a tablespace and under the WAL."""

    def server(self, settings=()):
        """A server, and the file to load."""
        server = Cluster(["wal_level = replica", *settings], durable=True)
        self.addCleanup(server.remove)
        server.sql("CREATE EXTENSION pgsluice")
        return server, server.file("rows.csv", rows(60000, toast=False))

    def test_relation(self):
        """If the tablespace is full, the load fails with the server's own error and leaves no rows, also with
        rejects_to; with more room, it succeeds and outlives a crash."""
        server, path = self.server()
        disk = server.home / "disk"
        small_disk(self, disk, 6)
        server.sql(f"CREATE TABLESPACE small LOCATION '{disk}'")
        server.sql(f"{TABLE.format(kind='')} TABLESPACE small; CREATE UNIQUE INDEX ON t (id) TABLESPACE small")
        for before in ("", "BEGIN; TRUNCATE t;"):
            with self.assertRaises(Refused) as refused:
                server.sql(load(path, before))
            self.assertIn("53100: could not extend file", str(refused.exception))
            self.assertEqual(server.sql(SUM), "0|")
            check_heap(self, server)
            resize(disk, 64)
            server.sql("TRUNCATE t; CHECKPOINT")
            resize(disk, 6)
        with self.assertRaises(Refused):
            server.sql(f"CREATE TABLE bad (LIKE pgsluice.reject); SET client_min_messages = error;"
                       f"COPY t FROM '{path}' WITH (FORMAT csv, rejects_to 'bad')")
        self.assertEqual(server.sql("SELECT count(*) FROM t; SELECT count(*) FROM bad"), "0\n0")
        resize(disk, 64)
        server.sql("TRUNCATE t")
        server.sql(load(path))
        self.assertEqual(server.sql("SELECT count(*), count(DISTINCT id) FROM t"), "60000|60000")
        check_heap(self, server)
        server.stop("immediate")
        server.start()
        self.assertEqual(server.sql("SELECT count(*), count(DISTINCT id) FROM t"), "60000|60000")

    def test_gin(self):
        """If there is no room for GIN entries, the load fails and the index still finds what a table scan finds; with more room, the load succeeds."""
        server, _ = self.server()
        disk = server.home / "disk"
        small_disk(self, disk, 1)
        server.sql(f"CREATE TABLESPACE small LOCATION '{disk}'")
        path = server.file("input.csv", "".join(f'{n},"{{{n % 900},{n}}}"\n' for n in range(60000)).encode())
        for index, asked in (("gin (b)", "b @> ARRAY[p]"), ("gin (b) WITH (fastupdate = off)", "b @> ARRAY[p]")):
            server.sql(f"DROP TABLE IF EXISTS t; CREATE TABLE t (a int, b int[]); INSERT INTO t SELECT n % 900, ARRAY[n % 900, n] FROM generate_series(1, 3000) n;"
                       f"CREATE INDEX i ON t USING {index} TABLESPACE small; CHECKPOINT")
            copy = f"SET pgsluice.copy = on; COPY t FROM '{path}' WITH (FORMAT csv)"
            found = "SELECT sum((SELECT count(*) FROM t WHERE {})) FROM generate_series(0, 899, 50) p"
            by_index = "SET enable_seqscan = off; " + found.format(asked)
            with self.assertRaises(Refused, msg=index) as refused:
                server.sql(copy)
            self.assertIn("53100: could not extend file", str(refused.exception))
            self.assertEqual(server.sql(by_index), server.sql("SET enable_indexscan = off; SET enable_bitmapscan = off; " + found.format(asked)))
            resize(disk, 64)
            server.sql("VACUUM t")
            server.sql(copy)
            self.assertEqual(server.sql(by_index), server.sql("SET enable_indexscan = off; SET enable_bitmapscan = off; " + found.format(asked)))
            server.sql("DROP TABLE t; CHECKPOINT")
            resize(disk, 1)

    def test_index(self):
        """If there is no room for an index whose pages a worker writes, the build fails as the stock build does and leaves no process; with room, it succeeds."""
        server, _ = self.server(["max_worker_processes = 8", "max_parallel_workers = 8", "max_parallel_maintenance_workers = 1"])
        disk = server.home / "disk"
        small_disk(self, disk, 2)
        server.sql(f"CREATE TABLESPACE small LOCATION '{disk}'; CREATE TABLE t (a int) WITH (parallel_workers = 1);"
                   "INSERT INTO t SELECT * FROM generate_series(1, 200000)")
        for setting in ("off", "on"):
            with self.assertRaises(Refused) as refused:
                server.sql(f"SET pgsluice.index_build = {setting}; CREATE INDEX i ON t (a) TABLESPACE small")
            self.assertIn("53100: could not", str(refused.exception))
        left = "SELECT count(*) FROM pg_stat_activity WHERE backend_type ~ 'parallel'"
        self.assertTrue(wait_until(lambda: server.sql(left) == "0"))
        resize(disk, 64)
        built = "SELECT method, workers FROM pgsluice.last_index_build"
        self.assertEqual(server.sql(f"SET pgsluice.index_build = on; CREATE INDEX i ON t (a) TABLESPACE small; {built}"), "sorted|1")
        self.assertEqual(server.sql("SET enable_seqscan = off; SELECT count(*) FROM t WHERE a > 0"), "200000")

    def test_wal(self):
        """If there is no room for WAL, the server stops; after recovery with more room, all rows of the load are there or none."""
        server, path = self.server(["min_wal_size = 32MB", "max_wal_size = 1GB", "checkpoint_timeout = 1h"])
        server.sql(TABLE.format(kind="") + "; CREATE UNIQUE INDEX ON t (id)")
        server.stop()
        wal = server.data / "pg_wal"
        kept = server.home / "wal"
        wal.rename(kept)
        small_disk(self, wal, 50)
        for file in kept.iterdir():
            target = wal / file.name
            if file.is_dir():
                shutil.copytree(file, target)
            elif not target.exists():
                shutil.copy(file, target)
        subprocess.run(["chown", "-R", f"{clusters.USER}:", wal], check=True)
        server.start()
        for _ in range(20):
            if subprocess.run(server.command("-c", "TRUNCATE t", "-c", load(path)), capture_output=True, check=False).returncode != 0:
                break
        self.assertIn("No space left on device", server.tail())
        resize(wal, 512)
        if (server.data / "postmaster.pid").exists():
            server.kill()
        server.start()
        count = int(server.sql("SELECT count(*) FROM t"))
        self.assertIn(count, (0, 60000), "a part of a load is there")
        check_heap(self, server)
        server.sql("TRUNCATE t")
        server.sql(load(path))
        self.assertEqual(server.sql("SELECT count(*), count(DISTINCT id) FROM t"), "60000|60000")
        server.checksums()


if __name__ == "__main__":
    unittest.main()
