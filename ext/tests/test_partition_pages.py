"""COPY into partitions by whole pages: rows, their order and errors are those of stock COPY."""

import random
import subprocess
import time
import unittest

from .cluster import Cluster, OnCluster, has, wait_until
from .twins import LoadedTwice, check

ROWS = 30000
COPY = "COPY t (a, day, b) FROM '{}' WITH (FORMAT csv{})"
# Data of fewer than 786,432 bytes does not go into pages.
ROUTE = "SELECT route FROM pgsluice.last_copy"
HASHED = ("DROP TABLE IF EXISTS t CASCADE; CREATE TABLE t (a bigint {key}, day int, b text) PARTITION BY HASH (a);"
          + "".join(f"CREATE TABLE t{n} PARTITION OF t FOR VALUES WITH (MODULUS 8, REMAINDER {n});" for n in range(8)))
BARE, KEYED = HASHED.format(key=""), HASHED.format(key="PRIMARY KEY") + "CREATE INDEX t_b ON t (b COLLATE \"C\");"
RANGED = ("DROP TABLE IF EXISTS t CASCADE; CREATE TABLE t (a bigint, day int, b text) PARTITION BY RANGE (day);"
          + "".join(f"CREATE TABLE t{n} PARTITION OF t FOR VALUES FROM ({100 * n}) TO ({100 * n + 100});" for n in range(10)))
# Leaves of other shapes: columns in another order, dropped columns, a stricter constraint, another default, a fillfactor, two levels.
SHAPES = ("DROP TABLE IF EXISTS t, s1, s2, s3 CASCADE; CREATE TABLE t (a bigint, x int, day int, b text, d text DEFAULT 'root') PARTITION BY LIST (day); ALTER TABLE t DROP x;"
          "CREATE TABLE s1 (b text, y int, d text DEFAULT 'leaf', day int, a bigint NOT NULL CHECK (a <> -77)); ALTER TABLE s1 DROP y; ALTER TABLE t ATTACH PARTITION s1 FOR VALUES IN (0, 1, 2);"
          "CREATE TABLE s2 PARTITION OF t FOR VALUES IN (3, 4) WITH (fillfactor = 40);"
          "CREATE TABLE s3 PARTITION OF t FOR VALUES IN (5, 6, NULL) PARTITION BY HASH (a); CREATE TABLE s30 PARTITION OF s3 FOR VALUES WITH (MODULUS 2, REMAINDER 0);"
          "CREATE TABLE s31 PARTITION OF s3 FOR VALUES WITH (MODULUS 2, REMAINDER 1); CREATE UNLOGGED TABLE s4 PARTITION OF t FOR VALUES IN (7);"
          "CREATE TABLE s9 PARTITION OF t DEFAULT")
GENERATED = ("DROP TABLE IF EXISTS t CASCADE; CREATE TABLE t (a bigint, day int, b text, g int GENERATED ALWAYS AS (day * 2) STORED) PARTITION BY LIST (day);"
             "CREATE TABLE g0 PARTITION OF t FOR VALUES IN (0, 1, 2, 3); CREATE TABLE g9 PARTITION OF t DEFAULT")


def line(n, day, word="a row of some length that takes place"):
    """A line of the input."""
    return f"{n},{day},{word} {n * 31 % 9973}\n"


def lines(count=ROWS, days=10, **how):
    """Lines whose days are in no order."""
    return [line(n, n * 7919 % days, **how) for n in range(count)]


class PartitionPages(LoadedTwice):
    """Compares a load by stock COPY with one by the extension."""

    def load(self, path, setting, table=BARE, before="", after="", options="", where=""):
        """The COPY's error, or what is in the table after it."""
        return self.left_by(setting, "SET client_min_messages = error;" + table,
                            f"SET LOCAL client_min_messages = error; {before} {COPY.format(path, options if setting == 'on' else '')} {where}; {after}")

    def answers(self):
        """The rows of each partition."""
        return self.sql("SELECT tableoid::regclass, count(*), md5(string_agg(t::text, ',' ORDER BY a, t::text)) FROM t GROUP BY 1 ORDER BY 1")

    def route(self, path, options="", table=BARE):
        """The route of a load into a new table."""
        return self.sql(f"SET client_min_messages = error; {table}; SET pgsluice.copy = on; {COPY.format(path, options)}; {ROUTE}").strip()

    def sound(self, cluster=None):
        """Runs amcheck on every partition and its indexes."""
        cluster = cluster or self.cluster
        if not has("amcheck"):
            return
        cluster.sql("CREATE EXTENSION IF NOT EXISTS amcheck")
        said = cluster.sql("SELECT relid::regclass, v FROM pg_partition_tree('t'), LATERAL verify_heapam(relid, check_toast := true) v WHERE isleaf")
        self.assertEqual(said, "")
        check(cluster, *cluster.sql("SELECT indexrelid::regclass FROM pg_index WHERE indrelid IN (SELECT relid FROM pg_partition_tree('t') WHERE isleaf)").split())

    def paged(self, given, table=BARE, **how):
        """Both leave the same, with workers and without; the extension writes whole pages, in the order of the data."""
        for options in (", workers 0", ", workers 1"):
            self.same(given, table=table, options=options, **how)
            self.assertEqual(self.sql("SELECT count(*) FROM (SELECT a < lag(a) OVER (PARTITION BY tableoid ORDER BY ctid) AS back FROM t) _ WHERE back"), "0")
            self.assertEqual(self.route(self.cluster.home / "input", options, table), "append", table)
            self.sound()

    def test_kinds_of_partitions(self):
        """Hash, range and list partitions, two levels, a default partition, leaves of other shapes, and indexes: whole pages hold stock COPY's rows in order."""
        self.paged(lines(), BARE)
        self.paged(lines(), KEYED)
        self.paged(lines(days=1000), RANGED)
        self.paged([line(n, "" if n % 13 == 0 else n * 7919 % 9) for n in range(ROWS)], SHAPES)
        self.paged(lines(), GENERATED)

    def test_values_of_every_kind(self):
        """With NULLs, values that the server reads, domains and WHERE, whole pages hold stock COPY's rows in order."""
        table = ("DROP TABLE IF EXISTS t CASCADE; DROP DOMAIN IF EXISTS odd; CREATE DOMAIN odd AS text CHECK (VALUE <> 'no'); CREATE TABLE t (a bigint, day int, b {}) PARTITION BY LIST (day);"
                 "CREATE TABLE t0 PARTITION OF t FOR VALUES IN (0, 1, 2, NULL); CREATE TABLE t1 PARTITION OF t DEFAULT")
        given = [f"{n},{'' if n % 5 == 0 else n % 6},{'' if n % 7 == 0 else 'some words ' + str(n)}\n" for n in range(ROWS + 20000)]
        for of in ("text", "odd", "tsvector"):
            self.paged(given, table.format(of))
        self.paged(given, table.format("text"), where="WHERE a % 3 <> 1")

    def test_long_rows(self):
        """With out-of-line values, rare or frequent, rows are stock COPY's, and partitions and indexes pass amcheck. If they are rare, other rows go into pages."""
        for often in (3, 700):
            given = [line(n, n % 10, word="long " * 600 if n % often == 0 else "short") for n in range(37000 if often > 9 else 3000)]
            for table in (BARE, KEYED, SHAPES, GENERATED):
                for options in (", workers 0", ", workers 1"):
                    self.same(given, table=table, options=options)
                    self.sound()
                    if often > 9:
                        self.assertEqual(self.route(self.cluster.home / "input", options, table), "append", table)

    def test_many_partitions(self):
        """With more leaves than may have pages, and more pages than memory holds, rows are stock COPY's, whether they
        come in the order of partitions, in none, or in both."""
        count = 1100
        table = ("DROP TABLE IF EXISTS t CASCADE; CREATE TABLE t (a bigint, day int, b text) PARTITION BY LIST (day);"
                 f"DO $$ BEGIN FOR n IN 0..{count - 1} LOOP EXECUTE format('CREATE TABLE t%s PARTITION OF t FOR VALUES IN (%s)', n, n); END LOOP; END $$;")
        self.sql(table)
        chance = random.Random(3)
        ordered = [line(n, n * count // 60000) for n in range(60000)]
        shuffled = chance.sample(ordered, len(ordered))
        ample, scarce = ((", workers 0", "64MB"), (", workers 1", "64MB")), ((", workers 0", "4MB"), (", workers 1", "8MB"))
        for given, settings in ((ordered, ample[1:]), (shuffled, scarce[:1]), (ordered + shuffled, ample + scarce)):
            for options, memory in settings:
                self.same(given, table=f"SET maintenance_work_mem = '{memory}'; TRUNCATE t", options=options)
        few = "DROP TABLE t CASCADE;" + table.replace(str(count - 1), "79")
        wide = [line(n, n * 7919 % 80, word="w" * 500) for n in range(40000)]
        self.paged(wide, few)
        self.paged([line(n, (n * 7919 if n > 20000 else n // 300) % 80) for n in range(40000)], few + "ALTER TABLE t ADD PRIMARY KEY (a, day);")

    def test_few_buffers(self):
        """A leaf keeps no buffer pinned once its rows are in: a load into more leaves than the server has buffers succeeds."""
        cluster = Cluster(["shared_buffers = 4MB", "max_locks_per_transaction = 256"])
        self.addCleanup(cluster.remove)
        cluster.sql("CREATE EXTENSION pgsluice; CREATE TABLE t (a bigint, day int, b text) PARTITION BY LIST (day);"
                    "DO $$ BEGIN FOR n IN 0..599 LOOP EXECUTE format('CREATE TABLE t%s PARTITION OF t FOR VALUES IN (%s)', n, n); END LOOP; END $$")
        path = cluster.file("input", "".join(lines(40000, days=600, word="word " * 20)).encode())
        self.assertEqual(cluster.sql(f"SET pgsluice.copy = on; {COPY.format(path, ', workers 0')}; {ROUTE}"), "append")
        self.assertEqual(cluster.sql("SELECT count(*), count(DISTINCT tableoid) FROM t"), "40000|600")

    def test_room_in_a_partition(self):
        """If a leaf has free space, its rows go there; other leaves get new pages."""
        table = BARE + "INSERT INTO t SELECT n, 0, 'before ' || n FROM generate_series(-40000, -1) n; DELETE FROM t0 WHERE a % 3 <> 0"
        self.sql(table)
        self.sql("VACUUM t")
        before = int(self.sql("SELECT pg_relation_size('t0')"))
        path = self.cluster.file("input", "".join(lines(5000, word="word " * 40)).encode())
        self.assertEqual(self.sql(f"SET pgsluice.copy = on; {COPY.format(path, ', workers 0')}; {ROUTE}"), "append")
        self.assertLess(int(self.sql("SELECT pg_relation_size('t0')")), before + 20 * 8192)
        self.assertEqual(self.sql("SELECT count(*) FROM t WHERE a >= 0"), "5000")
        self.sound()

    def test_small_loads_fill_pages(self):
        """Small loads fill free space: after five of them, partitions take at most 100 blocks more than with stock COPY."""
        path = self.cluster.file("input", "".join(lines(12000, days=1000, word="word " * 12)).encode())
        sizes = []
        for setting in ("off", "on"):
            self.sql("SET client_min_messages = error;" + RANGED)
            for _ in range(5):
                self.sql(f"SET pgsluice.copy = {setting}; {COPY.format(path, '')}")
            sizes.append(int(self.sql("SELECT sum(pg_relation_size(relid))::bigint / 8192 FROM pg_partition_tree('t')")))
        self.assertLess(sizes[1], sizes[0] + 2 * 10 * 5)

    def test_errors(self):
        """Duplicate keys, rows without a partition, a leaf's constraint, and bad values: error and line are stock
        COPY's. ROLLBACK TO a savepoint leaves the same."""
        before = "INSERT INTO t VALUES (-5, 1, 'there');"
        for table, bad, code in ((KEYED, line(-5, 1), "23505"), (KEYED, line(17, 2), "23505"), (RANGED, line(1, 1000), "23514"), (SHAPES, line(-77, 1), "23514"),
                                 (SHAPES, ",2,none\n", "23502"), (BARE, "x,1,y\n", "22P02"), (BARE, "1,1\n", "22P04")):
            for at in (700, ROWS - 700):
                for options in (", workers 0", ", workers 1"):
                    given = lines(days=7)
                    said = self.same(given[:at] + [bad] + given[at:], table=table, options=options, before=before if table != SHAPES else "")
                    self.assertIn(code, said)
        self.same(lines(), table=KEYED, before="SAVEPOINT s;", after="ROLLBACK TO s;")

    def test_a_trigger_comes_to_light(self):
        """The first row of a leaf with an AFTER ROW trigger comes late: rows that wait in pages go in before it, and the trigger's log is as with stock COPY."""
        table = (RANGED + "CREATE TABLE IF NOT EXISTS log (n serial, a bigint); TRUNCATE log; CREATE OR REPLACE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS"
                 " 'BEGIN INSERT INTO log (a) VALUES (NEW.a); RETURN NULL; END'; CREATE TRIGGER note AFTER INSERT ON t9 FOR EACH ROW EXECUTE FUNCTION note();")
        given = [line(n, n * 7919 % 900) for n in range(ROWS)] + lines(3000, days=1000)
        logs = []
        for setting in ("off", "on"):
            self.load(self.cluster.file("input", "".join(given).encode()), setting, table=table, options=", workers 0")
            logs.append(self.sql("SELECT count(*), string_agg(a::text, ',' ORDER BY n) FROM log") + self.answers())
        self.assertEqual(*logs)

    def test_switches(self):
        """With allow_partition_pages or allow_whole_pages off, a load into partitions takes the insert route."""
        path = self.cluster.file("input", "".join(lines()).encode())
        self.sql("SET client_min_messages = error;" + BARE)
        self.assertEqual(self.route(path), "append")
        for switch in ("allow_partition_pages", "allow_whole_pages"):
            self.sql(f"LOAD 'pgsluice'; ALTER SYSTEM SET pgsluice.{switch} = off; SELECT pg_reload_conf()")
            self.assertTrue(wait_until(lambda switch=switch: self.sql(f"LOAD 'pgsluice'; SHOW pgsluice.{switch}") == "off"))
            self.assertEqual(self.route(path), "insert")
            self.sql(f"LOAD 'pgsluice'; ALTER SYSTEM RESET pgsluice.{switch}; SELECT pg_reload_conf()")
            self.assertTrue(wait_until(lambda switch=switch: self.sql(f"LOAD 'pgsluice'; SHOW pgsluice.{switch}") == "on"))

    def test_statistics(self):
        """The statistics of each partition count a load, and one that is rolled back, as for stock COPY."""
        path = self.cluster.file("input", "".join(lines(17000)).encode())
        counted = ("SELECT relname, n_tup_ins, n_live_tup, n_dead_tup, n_mod_since_analyze, n_ins_since_vacuum FROM pg_stat_user_tables"
                   " WHERE relid IN (SELECT relid FROM pg_partition_tree('t')) AND relname <> 't' ORDER BY 1")
        for before, after in (("", ""), ("BEGIN;", "ROLLBACK;"), ("BEGIN; SAVEPOINT s;", "ROLLBACK TO s; COMMIT;")):
            found = []
            for setting in ("off", "on"):
                taken = self.sql(f"SET client_min_messages = error; {BARE} SET pgsluice.copy = {setting}; {before} {COPY.format(path, '')}; {after}"
                                 f"SELECT pg_stat_force_next_flush(); {ROUTE}")
                found.append(self.sql(counted).splitlines())
            self.assertEqual(taken.strip(), "append")
            self.assertEqual(sum(int(leaf.split("|")[1]) for leaf in found[1]), 17000)
            self.assertEqual(*found, before + after)

    def test_killed(self):
        """After a kill in the middle of a load, all of its rows are there or none, and partitions and indexes pass amcheck."""
        chance = random.Random(5)
        path = self.cluster.file("input", "".join(lines(5 * ROWS)).encode())
        self.sql("SET client_min_messages = error;" + KEYED)
        for _ in range(4):
            load = subprocess.Popen(self.cluster.command("-c", f"SET pgsluice.copy = on; {COPY.format(path, '')}"), stderr=subprocess.DEVNULL)
            time.sleep(chance.uniform(0.05, 0.9))
            self.cluster.kill()
            load.wait()
            self.cluster.start()
            self.assertIn(self.sql("SELECT count(*) FROM t"), ("0", str(5 * ROWS)))
            self.sound()
            self.sql("DELETE FROM t; VACUUM t")

    def test_two_loads_beside_others(self):
        """Two loads at once write pages of the same partitions and merge entries into their indexes, beside a writer, VACUUM and scans: nothing fails,
        each scan finds its rows in order, the rows of both loads and of the writer are there exactly, and partitions and indexes pass amcheck."""
        self.sql("SET client_min_messages = error;" + KEYED + "INSERT INTO t SELECT 5 * n + 2, n % 10, 'before ' || n FROM generate_series(1, 6000) n")
        chance = random.Random(9)
        # Keys of the loads lie between those that are there, in no order; no two are equal.
        parts = [[line(5 * n + which, n % 10) for n in chance.sample(range(25000), 25000)] for which in (0, 1)]
        paths = [self.cluster.file(f"part{n}", "".join(part).encode()) for n, part in enumerate(parts)]
        self.sql("DROP TABLE IF EXISTS wanted; CREATE TABLE wanted (a bigint, day int, b text);" + "".join(f"SET pgsluice.copy = off; COPY wanted FROM '{path}' CSV;" for path in paths))
        scan = ("BEGIN; SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off; DO $$ DECLARE last {kind}; r record; n int := 0; BEGIN"
                " FOR r IN SELECT {key} AS v FROM t ORDER BY {key} {way} LOOP IF last {wrong} r.v THEN RAISE 'out of order'; END IF; last := r.v; n := n + 1; END LOOP;"
                " IF n < 6000 THEN RAISE 'only %', n; END IF; END $$; COMMIT;\n")
        scripts = ["".join(scan.format(kind=kind, key=key, way=way, wrong=wrong) for key, kind, than in (("a", "bigint", "="), ("b COLLATE \"C\"", "text COLLATE \"C\"", ""))
                           for way, wrong in (("", f">{than}"), ("DESC", f"<{than}"))) * 4,
                   "".join(f"INSERT INTO t SELECT 10000000 + {20 * n} + m, m, 'written ' || m FROM generate_series(0, 19) m; INSERT INTO t VALUES ({5 * n + 3}, 1, 'written between'); DELETE FROM t WHERE a >= 10000000 AND a % 4 = {n % 4};\n"
                           for n in range(150)),
                   # It may make room in every partition, so it waits until both loads have pages.
                   "SELECT pg_advisory_lock_shared(1); SELECT pg_advisory_unlock_shared(1);\n" + "VACUUM t;\n" * 10]
        holder = self.cluster.connect()
        self.addCleanup(holder.close)
        holder.run("SELECT pg_advisory_lock(1)")
        others = []
        for script in scripts:
            others.append(subprocess.Popen(self.cluster.command("-f", "-"), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
            others[-1].stdin.write(script.encode())
            others[-1].stdin.close()
        merged = "SELECT route, rows, bool_and((i->'rows'->>'leaf_merge')::int > 1000) FROM pgsluice.last_copy, jsonb_array_elements(indexes) i GROUP BY 1, 2"
        differ = "SELECT * FROM ({0} EXCEPT ALL TABLE wanted) x UNION ALL SELECT * FROM (TABLE wanted EXCEPT ALL {0}) y LIMIT 5"
        loads = 0
        while loads < 2 or any(other.poll() is None for other in others) and loads < 6:
            self.sql("DELETE FROM t WHERE a < 10000000 AND a % 5 < 2")
            running = [subprocess.Popen(self.cluster.command("-c", "SET pgsluice.copy = on", "-c", COPY.format(path, f", workers {n}"), "-c", merged), stdout=subprocess.PIPE, text=True)
                       for n, path in enumerate(paths)]
            if loads == 0:
                loaded = "SELECT count(*) FROM pg_stat_progress_copy WHERE tuples_processed > 0"
                self.assertTrue(wait_until(lambda running=running, loaded=loaded: any(load.poll() is not None for load in running) or self.sql(loaded) == "2"))
                holder.run("SELECT pg_advisory_unlock(1)")
            said = [load.communicate()[0].rstrip().split("|") for load in running]
            self.assertEqual([one[1:] for one in said], [["25000", "t"]] * 2)
            # Later, VACUUM may have made room in every partition.
            self.assertTrue(loads > 0 or [one[0] for one in said] == ["append"] * 2, said)
            self.assertEqual(self.sql(differ.format("SELECT a, day, b FROM t WHERE a < 10000000 AND a % 5 < 2")), "")
            loads += 1
        for other in others:
            self.assertEqual((other.stderr.read(), other.wait()), (b"", 0))
            other.stderr.close()
        self.assertEqual(self.sql(differ.format("SELECT a, day, b FROM t WHERE a < 10000000 AND a % 5 < 2")), "")
        self.assertEqual(self.sql("SELECT count(*) FILTER (WHERE a % 5 = 2), count(*) FILTER (WHERE a % 5 = 3) FROM t WHERE a < 10000000"), "6000|150")
        written = set()
        for n in range(150):
            written = {a for a in written | set(range(10000000 + 20 * n, 10000020 + 20 * n)) if a % 4 != n % 4}
        self.assertEqual(self.sql("SELECT count(*), sum(a) FROM t WHERE a >= 10000000"), f"{len(written)}|{sum(written)}")
        self.sound()

    def test_standby(self):
        """A standby replays each page as on the primary (wal_consistency_checking), also for rolled-back loads and partitions with rows, and has the same rows."""
        primary = Cluster(["wal_level = replica", "wal_consistency_checking = 'all'", "wal_keep_size = 4GB"])
        self.addCleanup(primary.remove)
        primary.sql("SET client_min_messages = error; CREATE EXTENSION pgsluice;" + KEYED)
        if has("amcheck"):
            primary.sql("CREATE EXTENSION amcheck")
        standby = Cluster(["hot_standby = on"], copy_of=primary)
        self.addCleanup(standby.remove)
        given = lines(33000)
        first, second = (primary.file(name, "".join(part).encode()) for name, part in (("first", given[::2]), ("second", given[1::2])))
        for path in (first, second):
            taken = primary.sql(f"SET pgsluice.copy = on; BEGIN; {COPY.format(path, ', workers 0')}; {ROUTE}; ROLLBACK; {COPY.format(path, ', workers 1')}; {ROUTE}")
            self.assertEqual(taken.split(), ["append", "append"])
        standby.follow(primary)
        what = "SELECT tableoid::regclass, count(*), md5(string_agg(t::text || ctid::text, ',' ORDER BY ctid)) FROM t GROUP BY 1 ORDER BY 1"
        self.assertEqual(standby.sql(what), primary.sql(what))
        standby.stop()
        (standby.data / "standby.signal").unlink()
        standby.start()
        self.sound(standby)


class Memory(OnCluster):
    """The pages of a load together."""

    settings = ["pgsluice.live_index_memory = '8MB'"]

    def test_more_leaves_than_pages(self):
        """Pages of more leaves than live_index_memory has room for use that memory, and 9 kB for each leaf that has some, however many rows there are."""
        wide = "".join(f", w{n} bigint DEFAULT {n}" for n in range(10))
        self.sql(f"CREATE TABLE used (n serial, bytes bigint); CREATE TABLE t (a int, day int{wide}) PARTITION BY LIST (day);"
                 "DO $$ BEGIN FOR n IN 0..1499 LOOP EXECUTE format('CREATE TABLE t%s PARTITION OF t FOR VALUES IN (%s)', n, n); END LOOP; END $$;"
                 "CREATE FUNCTION measure() RETURNS trigger LANGUAGE plpgsql AS"
                 " $$ BEGIN INSERT INTO used (bytes) SELECT sum(used_bytes) FROM pg_backend_memory_contexts; RETURN NULL; END $$;"
                 "CREATE TRIGGER measure AFTER INSERT ON t FOR EACH STATEMENT EXECUTE FUNCTION measure()")
        few, many, more = (self.cluster.file(str(count), b"".join(b"%d,%d\n" % (n, n * 7919 % 1500) for n in range(count))) for count in (30000, 130000, 260000))
        taken = self.sql("SET pgsluice.copy = on;" + "".join(f"TRUNCATE t; COPY t (a, day) FROM '{path}' WITH (FORMAT csv, workers 0); {ROUTE};" for path in (few, few, many, more)))
        self.assertEqual(taken.split(), ["insert", "insert", "append", "append"])
        _, without, *paged = (int(used) for used in self.sql("SELECT bytes FROM used ORDER BY n").split())
        for used in paged:
            self.assertGreater(used - without, 8 << 20)
            # 750 leaves have pages. Memory for these is taken 256 pages at a time.
            self.assertLess(used - without, (8 + 2 + 7) << 20)


if __name__ == "__main__":
    unittest.main()
