"""Index builds by several processes: pages are the stock build's, for rows of every kind, and what one process does alone."""

import os
import subprocess
import unittest

from .cluster import Cluster, Held, OnCluster, Refused, wait_until
from .test_disk_full import small_disk
from .twins import SORTED, STOCK, compare, refusal

WORKERS = "SELECT workers FROM pgsluice.last_index_build"
LEFT = ("SELECT (SELECT count(*) FROM pg_ls_tmpdir()) + "
        "(SELECT count(*) FROM pg_stat_activity WHERE backend_type ~ 'parallel|pgsluice')")


class Team(OnCluster):
    """Tables that the leader and two workers read."""

    settings = ["max_worker_processes = 8", "max_parallel_maintenance_workers = 2", "max_parallel_workers = 8",
                "pgsluice.workers = 2"]

    def table(self, columns, rows, count=60000, values=5000):
        """A table t of `count` random rows; `rows` are expressions of i and n."""
        self.sql(
            f"DROP TABLE IF EXISTS t; CREATE TABLE t ({columns}) WITH (parallel_workers = 2, autovacuum_enabled = off);"
            f"SELECT setseed(0.5); INSERT INTO t SELECT {rows} FROM (SELECT (random() * {values})::int AS i, n "
            f"FROM generate_series(1, {count}) n OFFSET 0) _"
        )

    def built(self, definition, workers, settings=""):
        """Both methods give the same pages, and this number of workers helped."""
        compare(self, self.cluster, definition, settings)
        head, tail = definition.split(" ON ", 1)
        helped = self.sql(f"{SORTED}{settings} DROP INDEX sorted; CREATE {head} sorted ON {tail}; {WORKERS}")
        self.assertEqual(helped, str(workers), definition)

    def test_words(self):
        """Entries that differ in few bits are all sorted as words of one layout: with two workers, pages are the stock build's."""
        self.table("a int, b text, c timestamp, d smallint",
                   "n, CASE WHEN i % 9 > 0 THEN 't3_' || i END, timestamp '2024-01-01' + i * interval '1 s', i % 30")
        for columns in ('b COLLATE "C"', 'b COLLATE "C" DESC NULLS LAST', "c", "d, a", "d DESC"):
            with self.subTest(columns=columns):
                self.built(f"INDEX ON t ({columns})", 2)
        self.built("UNIQUE INDEX ON t (a)", 2)
        self.built("INDEX ON t (d) WITH (deduplicate_items = off, fillfactor = 50)", 2)

    def test_entries(self):
        """Entries that do not fit into words, and come in groups of equal keys: with two workers, pages are the stock build's."""
        self.table("a bigint, b float8, c text",
                   "(i - 2500)::bigint * 3000000000000037, i / 7.0e9, md5((n / 50)::text)::varchar(14)")
        for columns in ("a", "b DESC", 'c COLLATE "C"'):
            with self.subTest(columns=columns):
                self.built(f"INDEX ON t ({columns})", 2)

    def test_values_that_are_ranked(self):
        """Text under a language's collation is gathered from all processes before its values are ranked. If values
        are too long or memory too small, no workers help."""
        if self.sql("SELECT count(*) FROM pg_collation WHERE collname = 'en-US-x-icu'") != "1":
            self.skipTest("this server was built without ICU")
        self.table('a text COLLATE "en-US-x-icu"', "(array['a', 'A', 'ä', 'z', ''])[i % 5 + 1] || i % 900")
        self.built("INDEX ON t (a)", 2)
        self.built("INDEX ON t (a DESC)", 2)
        self.built("INDEX ON t (a)", 0, "SET maintenance_work_mem = '2MB';")
        # The server reads the pages of updated rows, some of which the old snapshot still needs. These rows are gathered with the others.
        old = Held(self.cluster)
        old.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class")
        self.sql("UPDATE t SET a = a || 'u' WHERE a LIKE '_77'")
        self.built("INDEX ON t (a)", 2)
        old.end("COMMIT")
        # A worker cannot hand over its values: the build starts again.
        self.sql("UPDATE t SET a = repeat('long', 9) WHERE ctid = (SELECT max(ctid) FROM t)")
        self.built("INDEX ON t (a)", 0)

    def test_many_values_that_are_ranked(self):
        """About 40,000 distinct values, some equal but for case and accents: with two workers, pages are the stock build's."""
        if self.sql("SELECT count(*) FROM pg_collation WHERE collname = 'en-US-x-icu'") != "1":
            self.skipTest("this server was built without ICU")
        self.table('a text COLLATE "en-US-x-icu"', "nullif((array['a', 'A', 'ä', 'z', 'co-op '])[n % 5 + 1] || n * 7919 % 40009, 'a7')")
        for columns in ("a", "a DESC NULLS LAST"):
            with self.subTest(columns=columns):
                self.built(f"INDEX ON t ({columns})", 2)

    def test_dead_and_updated_rows(self):
        """Dead and updated rows in every part, whose pages are left to the server: with two workers, pages are the stock build's."""
        self.table("a int, b text", "i, 'b' || n")
        self.sql("DELETE FROM t WHERE a % 70 = 0; UPDATE t SET b = 'c' || b WHERE a % 90 = 0")
        old = Held(self.cluster)
        old.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class")
        self.sql("DELETE FROM t WHERE a % 71 = 0; UPDATE t SET a = -a WHERE a % 91 = 0")
        self.built("INDEX ON t (a)", 2)
        checked = "SELECT indcheckxmin FROM pg_index WHERE indexrelid::regclass::text IN ('stock', 'sorted') GROUP BY 1"
        self.assertEqual(self.sql(checked), "t")
        old.end("COMMIT")
        self.built('INDEX ON t (b COLLATE "C")', 2)

    def test_runs(self):
        """Rows that are long, or do not fit into memory, are spilled by all processes and merged by the leader: pages are the stock build's."""
        self.table("a int, b text, c uuid", "i, CASE WHEN n < 50000 THEN 'b' || i ELSE repeat('long', 9) || i END, md5(n::text)::uuid")
        for columns in ('b COLLATE "C"', "c", "b DESC, a", "a) INCLUDE (c"):
            with self.subTest(columns=columns):
                self.built(f"INDEX ON t ({columns})", 2)
        spilled = "SELECT spilled_bytes > 1000000 FROM pgsluice.last_index_build"
        self.built("INDEX ON t (a)", 2, "SET maintenance_work_mem = '1MB';")
        self.built("UNIQUE INDEX ON t (c)", 2, "SET maintenance_work_mem = '1MB';")
        self.assertEqual(self.sql(f"{SORTED}SET maintenance_work_mem = '1MB'; DROP INDEX sorted; CREATE INDEX ON t (c); {spilled}"), "t")

    def test_what_one_process_does(self):
        """No workers help if values must be ranked at once, no worker can start, or the table is small; settings limit their number."""
        self.table("a int, b numeric", "i, i")
        self.built("INDEX ON t (b)", 0)
        self.built("INDEX ON t (a)", 0, "SET max_parallel_workers = 0;")
        self.built("INDEX ON t (a)", 1, "SET max_parallel_maintenance_workers = 1;")
        self.built("INDEX ON t (a)", 1, "SET pgsluice.workers = 1;")
        self.built("INDEX ON t (a)", 0, "SET pgsluice.workers = 0;")
        self.table("a int", "i", count=100)
        self.built("INDEX ON t (a)", 0)

    def build_again_and_again(self, settings=""):
        """Starts a session that builds an index of many rows until the test ends."""
        self.table("a int", "i", count=200000)
        builds = subprocess.Popen(self.cluster.command(
            "-c", SORTED + settings,
            "-c", "DO $$ BEGIN LOOP CREATE INDEX i ON t (a); COMMIT; DROP INDEX i; COMMIT; END LOOP; END $$"), stderr=subprocess.DEVNULL)
        self.addCleanup(builds.wait)
        self.addCleanup(self.sql, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'DO %LOOP CREATE INDEX%'")

    def test_places_of_workers_that_do_not_start(self):
        """A build takes a place of the server for each of its two workers. If only one can start, the other's place is free during the build."""
        self.build_again_and_again("SET max_parallel_workers = 1")
        self.assertTrue(wait_until(lambda: self.sql("SELECT count(*) FROM pg_locks WHERE locktype = 'userlock'") == "1"))

    def test_progress(self):
        """pg_stat_progress_create_index counts the blocks that all processes have read; the leader alone reads less than half of them."""
        self.build_again_and_again()
        shown = "SELECT max(blocks_done) > 0.6 * max(blocks_total) FROM pg_stat_progress_create_index WHERE blocks_total > 0"
        self.assertTrue(wait_until(lambda: self.sql(shown) == "t"))

    def test_so_many_help_a_copy(self):
        """Each process builds one index of a COPY, with one process more than there are processors; an explicit number of workers overrides that."""
        self.table("a int, b int, c int, d int", "i, i, i, i")
        path = self.cluster.home / "rows"
        self.sql(f"COPY t TO '{path}' WITH (FORMAT csv)")
        processors = os.sysconf("SC_NPROCESSORS_ONLN")
        one_more = min(processors, 3) if processors > 1 else 0
        for setting, option, of_d, workers in (("-1", "", "int", one_more), ("1", "", "int", 1), ("0", "", "int", 0), ("-1", ", workers 1", "int", 1),
                                               ("0", ", workers 2", "int", 2), ("-1", "", "numeric", min(processors - 1, 3))):
            with self.subTest(setting=setting, option=option, of_d=of_d):
                helped = self.sql(
                    f"SET pgsluice.copy = on; SET pgsluice.workers = {setting}; SET max_parallel_maintenance_workers = 8;"
                    f"BEGIN; CREATE TABLE f (a int, b int, c int, d {of_d}); CREATE INDEX ON f (a); CREATE INDEX ON f (b); CREATE INDEX ON f (c); CREATE INDEX ON f (d);"
                    f"COPY f FROM '{path}' WITH (FORMAT csv{option}); {WORKERS}; ROLLBACK")
                self.assertEqual(helped, str(workers))

    def test_wal_of_a_copy(self):
        """The WAL of workers that build a COPY's indexes counts as the COPY's: last_copy has nearly all that the server has written."""
        self.table("a int, b int, c int, d int", "i, i, i, i")
        path = self.cluster.home / "rows"
        said = self.sql(
            f"COPY t TO '{path}' WITH (FORMAT csv); SET pgsluice.copy = on; SET pgsluice.debug_force_routes = on; BEGIN; CREATE TABLE f (LIKE t);"
            "CREATE INDEX ON f (a); CREATE INDEX ON f (b); CREATE INDEX ON f (c); CREATE INDEX ON f (d);"
            "CREATE TEMPORARY TABLE place AS SELECT pg_current_wal_insert_lsn() AS lsn;"
            f"COPY f FROM '{path}' WITH (FORMAT csv, workers 2); SELECT wal_bytes / (pg_current_wal_insert_lsn() - lsn) > 0.9 FROM pgsluice.last_copy, place;"
            f"{WORKERS}; ROLLBACK")
        self.assertEqual(said, "t\n2")

    def test_a_key_that_is_there_twice(self):
        """A duplicate key is the stock build's error, whether a worker or the leader finds it, and the workers end by themselves."""
        self.table("a int, b text", "n, 'b' || n")
        self.sql("UPDATE t SET a = 59000 WHERE a = 30")
        for definition in ("CREATE UNIQUE INDEX u ON t (a)", "ALTER TABLE t ADD CONSTRAINT u PRIMARY KEY (a)"):
            stock = refusal(self.cluster, STOCK + definition)
            self.assertIsNotNone(stock)
            self.assertEqual(stock, refusal(self.cluster, SORTED + definition))
        # The workers that would have written the index were not terminated.
        self.assertNotIn("terminating background worker", self.cluster.tail())

    def test_of_this_transaction(self):
        """Workers help to build an index on rows and tables that only this transaction sees, and with REINDEX; the index finds all rows."""
        made = self.sql(
            f"{SORTED} BEGIN; DROP TABLE IF EXISTS t; CREATE TABLE t (a int) WITH (parallel_workers = 2);"
            "INSERT INTO t SELECT n % 5000 FROM generate_series(1, 90000) n; SAVEPOINT s; DELETE FROM t WHERE a % 50 = 0;"
            f"CREATE INDEX i ON t (a); {WORKERS}; ROLLBACK TO s; CREATE INDEX i ON t (a); {WORKERS}; COMMIT;"
            f"REINDEX INDEX i; {WORKERS}; SET enable_seqscan = off; SELECT count(*) FROM t WHERE a = 50")
        self.assertEqual(made.splitlines(), ["2", "2", "2", "18"])

    def test_cut_short(self):
        """A build that is cancelled, or exceeds temp_file_limit, leaves no files and no workers; the next one succeeds."""
        self.table("a int, b text", "i, 'b' || n", count=200000)
        refused = refusal(self.cluster, f"{SORTED}SET temp_file_limit = '100kB'; CREATE INDEX i ON t (a)")
        self.assertIn("temporary file size exceeds", refused)
        cancelled, timeout = 0, 64
        # Until the timeout is too short even for the first step.
        while timeout:
            try:
                self.sql(f"{SORTED}SET statement_timeout = {timeout}; BEGIN; CREATE INDEX i ON t (a); ROLLBACK")
            except Refused as cut:
                self.assertIn("57014", str(cut))
                cancelled += 1
            self.assertTrue(wait_until(lambda: self.sql(LEFT) == "0"), "files or workers are left")
            timeout //= 2
        self.assertTrue(cancelled)
        self.built("INDEX ON t (a)", 2)


class LittleSharedMemory(unittest.TestCase):
    """A server whose shared memory has room only for a small segment, as in a container."""

    def test_no_workers(self):
        """If shared memory is full, CREATE INDEX and COPY build indexes without workers, and the session goes on; with more room, workers help."""
        server = Cluster([*Team.settings, "dynamic_shared_memory_type = mmap"])
        self.addCleanup(server.remove)
        server.sql("CREATE EXTENSION pgsluice; CREATE TABLE t (a int, b int) WITH (parallel_workers = 2);"
                   "INSERT INTO t SELECT n, n % 5000 FROM generate_series(1, 60000) n")
        path = server.home / "input"
        server.sql(f"COPY t TO '{path}' WITH (FORMAT csv)")
        server.stop()
        shared = server.data / "pg_dynshmem"
        small_disk(self, shared, 8)
        server.start()
        session = self.enterContext(server.connect())
        # The first build also allocates what the server itself shares from then on, such as statistics.
        self.assertEqual(session.run(f"{SORTED} BEGIN; CREATE INDEX i ON t (b); ROLLBACK; {WORKERS}"), "2")
        full = shared / "full"

        def leave(kilobytes):
            """Fills the shared memory but for this many kilobytes."""
            full.unlink(missing_ok=True)
            space = os.statvfs(shared)
            full.write_bytes(bytes(space.f_bavail * space.f_frsize - (kilobytes << 10)))

        # 600 kB are enough for the workers of a stock build.
        for left in (600, 8):
            leave(left)
            with self.subTest(left=left):
                for _ in range(3):
                    session.run("BEGIN; CREATE INDEX i ON t (b)")
                    self.assertEqual(session.run(f"SELECT method FROM pgsluice.last_index_build; {WORKERS}"), "sorted\n0")
                    self.assertEqual(session.run("SET enable_seqscan = off; SELECT count(*) FROM t WHERE b = 7; ROLLBACK"), "12")
        for left, workers in ((8, "0"), (3000, "1")):
            leave(left)
            session.run("BEGIN; CREATE TABLE f (LIKE t); CREATE INDEX ON f (a); CREATE INDEX ON f (b)")
            session.run(f"SET pgsluice.copy = on; COPY f FROM '{path}' WITH (FORMAT csv)")
            self.assertEqual(session.run(f"{WORKERS}; SELECT DISTINCT i ->> 'way' FROM pgsluice.last_copy, jsonb_array_elements(indexes) i"), f"{workers}\nbuild")
            self.assertEqual(session.run("SET enable_seqscan = off; SELECT count(*) FROM f WHERE b = 7; ROLLBACK"), "12")
        full.unlink()
        self.assertEqual(session.run(f"CREATE INDEX i ON t (b); {WORKERS}"), "2")
        self.assertEqual(session.told, [])


if __name__ == "__main__":
    unittest.main()
