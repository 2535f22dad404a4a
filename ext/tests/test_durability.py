"""What a load leaves on disk, after a crash, on a standby and at a subscriber.

PGSLUICE_SOAK=n runs n rounds of each crash test instead of a few.
"""

import functools
import os
import random
import subprocess
import time
import unittest

from . import cluster as clusters
from .cluster import MAJOR, Cluster, OnCluster, Refused, endless, wait_until
from .test_workers import with_pauses

ROUNDS = int(os.environ.get("PGSLUICE_SOAK", "3"))

# Narrow rows, NULLs, and rows wide enough for TOAST; some values are read only by the server's input functions.
TABLE = "CREATE {kind} TABLE t (id int, a text, b bigint, c jsonb, d numeric)"
SUM = "SELECT count(*), sum(hashtext(t::text)::bigint) FROM t"


@functools.cache
def rows(count, toast, wide=50):
    """`count` rows of CSV, the same at every call; with `toast`, one row in `wide` has an out-of-line value."""
    rng = random.Random(count)
    lines = []
    for i in range(count):
        text = "".join(rng.choices("abcdefghij", k=6000 if toast and i % wide == 0 else 20))
        lines.append(f"{i},{text},{'' if i % 7 == 0 else i * 3},{{\"\"k\"\": {i}}},{i}.25\n".replace("{", '"{').replace("}", '}"'))
    return "".join(lines).encode()


def load(path, before="", route="", workers=0):
    """The SQL of one load by the extension, which must not fall back.

    A WHERE keeps rows out of whole pages. With workers, rows that do not fit into such pages are inserted next to them.
    """
    where = " WHERE id >= 0" if route == "insert" else ""
    return (f"SET pgsluice.copy = on; {before} COPY t FROM '{path}'"
            f" WITH (FORMAT csv, pgsluice 'require', workers {workers}){where}")


def check_heap(test, server, table="t"):
    """amcheck finds no error in the table, its TOAST table and its B-tree indexes."""
    if not clusters.has("amcheck"):
        return
    server.sql("CREATE EXTENSION IF NOT EXISTS amcheck")
    test.assertEqual(server.sql(f"SELECT * FROM verify_heapam('{table}', check_toast := true)"), "")
    server.sql(
        "SELECT bt_index_parent_check(indexrelid, true) FROM pg_index JOIN pg_class c ON c.oid = indexrelid"
        f" JOIN pg_am m ON m.oid = relam WHERE indrelid = '{table}'::regclass AND amname = 'btree'"
    )


class OnDisk(OnCluster):
    """What is on disk after a load."""

    @unittest.skipUnless(clusters.has("pageinspect"), "pageinspect is not there")
    def test_pages(self):
        """Tuples have stock COPY's bytes: length, infomask, header size, NULL bitmap and values."""
        self.cluster.sql("CREATE EXTENSION IF NOT EXISTS pageinspect")
        path = self.cluster.file("rows.csv", rows(3000, toast=False))
        pages = (
            "SELECT n, lp, lp_off, lp_flags, lp_len, t_field3, t_ctid, t_infomask, t_infomask2, t_hoff, t_bits, t_data"
            " FROM generate_series(0, (pg_relation_size('t') / 8192 - 1)::int) n, heap_page_items(get_raw_page('t', n))"
        )
        found = []
        for setting in ("off", "on"):
            self.cluster.sql("DROP TABLE IF EXISTS t;" + TABLE.format(kind=""))
            self.cluster.sql(f"SET pgsluice.copy = {setting}; COPY t FROM '{path}' WITH (FORMAT csv)")
            # How many rows a batch puts on a page differs, so compare tuples.
            found.append(self.cluster.sql(
                f"SELECT lp_len, t_infomask, t_infomask2, t_hoff, t_bits, t_data FROM ({pages}) p ORDER BY n, lp"))
        self.assertEqual(found[0], found[1])
        self.assertEqual(len(found[0].splitlines()), 3000)

    def test_afterwards(self):
        """Loaded rows pass amcheck and pg_checksums, and survive VACUUM FREEZE, CLUSTER, and dump and restore."""
        path = self.cluster.file("rows.csv", rows(5000, toast=True))
        self.cluster.sql("DROP TABLE IF EXISTS t;" + TABLE.format(kind="") +
                        "; ALTER TABLE t ADD PRIMARY KEY (id); CREATE INDEX ON t (left(a, 50)); CREATE INDEX ON t USING hash (b)")
        self.cluster.sql(load(path))
        before = self.cluster.sql(SUM)
        check_heap(self, self.cluster)
        self.cluster.sql("VACUUM (FREEZE, ANALYZE) t; CLUSTER t USING t_pkey")
        check_heap(self, self.cluster)
        dump = subprocess.run(
            [clusters.BIN / "pg_dump", "-h", self.cluster.home, "-p", str(self.cluster.port), "-U", "postgres", "-t", "t", "postgres"],
            check=True, capture_output=True).stdout
        self.cluster.sql("CREATE DATABASE restored")
        subprocess.run(self.cluster.command(database="restored"), input=b"SET pgsluice.copy = on;\n" + dump, check=True,
                       capture_output=True)
        self.assertEqual(self.cluster.sql(SUM, database="restored"), before)
        self.cluster.checksums()
        self.assertEqual(self.cluster.sql(SUM), before)
        self.cluster.sql("DROP DATABASE restored WITH (FORCE)")

    def test_without_the_library(self):
        """A session without the library can read, update, delete and vacuum loaded rows, and they pass amcheck."""
        path = self.cluster.file("rows.csv", rows(20000, toast=True))
        self.cluster.sql("DROP TABLE IF EXISTS t;" + TABLE.format(kind="") + "; ALTER TABLE t ADD PRIMARY KEY (id); CREATE INDEX ON t (left(a, 50))")
        self.cluster.sql(load(path))
        before = self.cluster.sql(SUM)
        self.cluster.sql("ALTER SYSTEM RESET session_preload_libraries; SELECT pg_reload_conf()")
        self.addCleanup(self.cluster.sql, "ALTER SYSTEM SET session_preload_libraries = 'pgsluice'; SELECT pg_reload_conf()")
        without = f"SELECT count(*) FROM pg_settings WHERE name LIKE 'pgsluice.%'; {SUM}; SET enable_seqscan = off; SELECT count(*) FROM t WHERE id >= 19000"
        self.assertTrue(wait_until(lambda: self.cluster.sql(without.split(";", 1)[0]) == "0"), "the library is still loaded")
        self.assertEqual(self.cluster.sql(without).split("\n"), ["0", before, "1000"])
        self.cluster.sql("UPDATE t SET b = 7 WHERE id % 5 = 0; DELETE FROM t WHERE id % 5 = 1; VACUUM (FREEZE) t")
        self.assertEqual(self.cluster.sql("SELECT count(*), count(*) FILTER (WHERE b = 7) >= 4000 FROM t"), "16000|t")
        check_heap(self, self.cluster)


class Crash(unittest.TestCase):
    """SIGKILL and immediate stops at random moments: all rows of a load are there, or none."""

    def crashes(self, route, settings, kind="", toast=False, indexes="", before="", how=("kill", "immediate")):
        """Loads, crashes and recovers several times."""
        workers = 2 if toast else 0
        server = Cluster(["max_wal_size = 64MB", *settings], durable=True)
        self.addCleanup(server.remove)
        count = 30000
        # A page ends before a wide row; with many wide rows, rows would be inserted in batches.
        path = server.file("rows.csv", rows(count, toast, 1000))
        server.sql("CREATE EXTENSION pgsluice;" + TABLE.format(kind=kind) + ";" + indexes)
        started = time.monotonic()
        taken = server.sql(load(path, before, route, workers) + ";" + ("COMMIT;" if before else "") + "SELECT route FROM pgsluice.last_copy")
        took = time.monotonic() - started
        self.assertEqual(taken, route)
        whole = server.sql(SUM)
        server.sql("TRUNCATE t")
        ends = set()
        for number in range(ROUNDS):
            if kind != "UNLOGGED":
                server.sql("TRUNCATE t")
            process = subprocess.Popen(server.command("-c", load(path, before, route, workers) + ("; COMMIT" if before else "")), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(random.uniform(0, took * 1.2))
            if number % 2:
                subprocess.run(server.command("-c", "CHECKPOINT"), check=False, capture_output=True)
            if how[number % len(how)] == "kill":
                server.kill()
            else:
                server.stop("immediate")
            committed = process.wait() == 0
            server.start()
            after = server.sql(SUM)
            if kind == "UNLOGGED":
                self.assertEqual(after, "0|")
            elif committed:
                self.assertEqual(after, whole)
            else:
                self.assertIn(after, (whole, "0|"))
            ends.add(after)
            check_heap(self, server)
        server.sql("TRUNCATE t")
        server.sql(load(path, before, route, workers) + (";COMMIT" if before else ""))
        self.assertEqual(server.sql(SUM), whole)
        server.checksums()

    def test_insert(self):
        """After a crash during a row-by-row load with indexes, at wal_level replica, all of its rows are there or none, and amcheck finds no error."""
        self.crashes("insert", ["wal_level = replica"], indexes="CREATE INDEX ON t (left(a, 50)); CREATE UNIQUE INDEX ON t (id)")

    def test_append(self):
        """After a crash during a load of whole pages with indexes, at wal_level replica, all of its rows are there or none, and amcheck finds no error."""
        self.crashes("append", ["wal_level = replica"], indexes="CREATE INDEX ON t (left(a, 50)); CREATE UNIQUE INDEX ON t (id)")

    def test_append_with_toast(self):
        """After a crash during a load of whole pages and out-of-line values, at wal_level logical, all of its rows
        are there or none, and amcheck finds no error."""
        self.crashes("append", ["wal_level = logical"], toast=True)

    def test_fresh(self):
        """After a crash during a load that follows TRUNCATE at wal_level minimal (no WAL, synced at commit), all of its rows are there or none."""
        self.crashes("fresh", ["wal_level = minimal", "max_wal_senders = 0", "wal_skip_threshold = 0"], toast=True,
                     before="BEGIN; TRUNCATE t;", how=("kill",))

    def test_fresh_with_index(self):
        """The same if the commit writes the whole relation to WAL instead, as it does for small ones: all rows are there or none."""
        self.crashes("fresh", ["wal_level = minimal", "max_wal_senders = 0", "wal_skip_threshold = 1GB"],
                     indexes="CREATE UNIQUE INDEX ON t (id)", before="BEGIN; TRUNCATE t;")

    def test_unlogged(self):
        """An unlogged table is empty after a crash during a load, whether live or truncated in the same transaction."""
        self.crashes("append", [], kind="UNLOGGED", toast=True)
        self.crashes("fresh", [], kind="UNLOGGED", before="BEGIN; TRUNCATE t;", how=("kill",))

    def loading(self, server):
        """Waits until some COPY has put rows into the table; returns its backend's process ID."""
        under_way = "SELECT pid FROM pg_stat_progress_copy WHERE tuples_processed > 0"
        self.assertTrue(wait_until(lambda: server.sql(under_way)), "no COPY has put rows into the table")
        return server.sql(under_way)

    def test_interrupted(self):
        """A load that times out, is cancelled, is terminated, or loses its client leaves no rows, no session and no locks."""
        server = Cluster()
        self.addCleanup(server.remove)
        server.sql("CREATE EXTENSION pgsluice;" + TABLE.format(kind=""))
        path = server.file("rows.csv", rows(6000, toast=True))
        copy = "SET pgsluice.copy = on; COPY t FROM {} WITH (FORMAT csv, pgsluice 'require')"
        unending = copy.format(endless(path))
        with self.assertRaises(Refused) as refused:
            server.sql("SET statement_timeout = 60;" + unending)
        self.assertIn("57014: canceling statement due to statement timeout", str(refused.exception))
        for end, state in (("pg_cancel_backend", "57014"), ("pg_terminate_backend", "57P01")):
            process = subprocess.Popen(server.command("-c", unending), stderr=subprocess.PIPE, text=True)
            server.sql(f"SELECT {end}({self.loading(server)})")
            self.assertIn(state, process.communicate()[1])
            self.assertNotEqual(process.returncode, 0)
        process = subprocess.Popen(server.command("-c", copy.format("STDIN")), stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
        process.stdin.write(rows(20000, toast=False))
        process.stdin.flush()
        self.loading(server)
        process.kill()
        process.wait()
        process.stdin.close()
        self.assertTrue(wait_until(lambda: server.sql(
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%COPY t%' AND pid <> pg_backend_pid()") == "0"))
        self.assertEqual(server.sql("SELECT count(*) FROM t"), "0")
        self.assertEqual(server.sql("SELECT count(*) FROM pg_locks WHERE relation = 't'::regclass AND pid <> pg_backend_pid()"), "0")
        check_heap(self, server)


# The tables of a publisher and its subscriber, and what only the publisher has.
SENT = (
    "CREATE TABLE keyed (u uuid PRIMARY KEY, w text COLLATE \"C\", l text COLLATE \"C\" UNIQUE); CREATE INDEX ON keyed (w);"
    "CREATE TABLE child (id int, parent int, tags text[], w text); CREATE INDEX tags ON child USING gin (tags); CREATE INDEX w ON child USING hash (w);"
    "CREATE TABLE docs (id int, a text, b text); CREATE TABLE made (a int CHECK (a >= 0), b int, g bigint GENERATED ALWAYS AS (a * 2 + b) STORED, CHECK (b < 100000));"
    "CREATE TABLE leaves (a int PRIMARY KEY, b text) PARTITION BY HASH (a);" + "".join(f"CREATE TABLE leaves{n} PARTITION OF leaves FOR VALUES WITH (MODULUS 4, REMAINDER {n});" for n in range(4))
)
SENDING = (
    "CREATE EXTENSION pgsluice; CREATE TABLE parents (a int PRIMARY KEY); INSERT INTO parents SELECT generate_series(0, 99); ALTER TABLE child ADD FOREIGN KEY (parent) REFERENCES parents;"
    "INSERT INTO keyed SELECT md5(n::text)::uuid, 'w' || n % 300, 'l' || n * 7 || ' before' FROM generate_series(1, 5000) n;"
    + SENT[SENT.index("CREATE TABLE leaves"):].replace("leaves", "root")
    + "CREATE PUBLICATION p FOR TABLE keyed, child, docs, made, leaves; CREATE PUBLICATION q FOR TABLE root WITH (publish_via_partition_root)"
)


class Replicas(unittest.TestCase):
    """A standby and a subscriber end with the same rows."""

    def equal(self, one, other, what=SUM):
        """Waits until the other server gives the same result."""
        wanted = one.sql(what)
        self.assertTrue(wait_until(lambda: other.sql(what) == wanted), f"{other.sql(what)} != {wanted}")

    def synchronized(self, subscriber):
        """Waits until the subscriber has copied what the tables had: it then receives all other rows from the WAL."""
        self.assertTrue(wait_until(lambda: subscriber.sql("SELECT count(*) > 0 AND bool_and(srsubstate = 'r') FROM pg_subscription_rel") == "t"), subscriber.tail())

    def test_standby(self):
        """A standby from a base backup taken during a load replays every page as on the primary
        (wal_consistency_checking) and has the same rows; amcheck finds no error."""
        # With every page in every record, WAL grows fast: keep what a slow standby still needs.
        primary = Cluster(["wal_level = replica", "wal_consistency_checking = 'all'", "wal_keep_size = 8GB"])
        self.addCleanup(primary.remove)
        primary.sql("CREATE EXTENSION pgsluice;" + TABLE.format(kind="") + "; CREATE INDEX ON t (left(a, 50))")
        path, paged = (primary.file(name, rows(30000, toast)) for name, toast in (("rows.csv", True), ("paged.csv", False)))
        primary.sql(load(path))
        self.assertEqual(primary.sql(load(paged) + "; SELECT route FROM pgsluice.last_copy"), "append")
        process = subprocess.Popen(primary.command("-c", load(path)))
        standby = Cluster(["hot_standby = on"], copy_of=primary)
        self.addCleanup(standby.remove)
        self.assertEqual(process.wait(), 0)
        self.equal(primary, standby)
        primary.sql("BEGIN; SAVEPOINT s;" + load(path) + "; ROLLBACK TO s; COMMIT")
        primary.sql(load(path))
        primary.sql("BEGIN; TRUNCATE t;" + load(path, workers=2) + ";" + load(paged) + "; COMMIT")
        self.equal(primary, standby)
        standby.sql("SELECT 1")
        standby.stop()
        (standby.data / "standby.signal").unlink()
        standby.start()
        check_heap(self, standby)

    def test_subscriber(self):
        """Logical replication sends a subscriber all rows, with narrow, toasted and server-read values, and none that were rolled back."""
        publisher = Cluster(["wal_level = logical"])
        self.addCleanup(publisher.remove)
        subscriber = Cluster()
        self.addCleanup(subscriber.remove)
        for server in (publisher, subscriber):
            server.sql(TABLE.format(kind="") + "; ALTER TABLE t REPLICA IDENTITY FULL")
        publisher.sql("CREATE EXTENSION pgsluice; CREATE PUBLICATION p FOR TABLE t")
        subscriber.sql(
            f"CREATE SUBSCRIPTION s CONNECTION 'host={publisher.home} port={publisher.port} user=postgres dbname=postgres' PUBLICATION p"
        )
        self.synchronized(subscriber)
        path, paged = (publisher.file(name, rows(count, toast)) for name, count, toast in
                       (("rows.csv", 10000, True), ("paged.csv", 20000, False)))
        publisher.sql(load(path, workers=2))
        self.assertEqual(publisher.sql(load(paged) + "; SELECT route FROM pgsluice.last_copy"), "append")
        publisher.sql("BEGIN;" + load(path) + "; SAVEPOINT s;" + load(path) + "; ROLLBACK TO s; COMMIT")
        self.equal(publisher, subscriber)
        self.assertEqual(publisher.sql("SELECT count(*) FROM t"), "40000")
        subscriber.sql("DROP SUBSCRIPTION s")

    def loaded(self, server, table, line, count, shown):
        """Loads rows that are rolled back, and then as many; returns what last_copy shows."""
        rolled_back, path = (server.file(name, "".join(map(line, range(start, start + count))).encode()) for name, start in ((f"{table}.back", count), (f"{table}.csv", 0)))
        copy = "COPY {} FROM '{}' WITH (FORMAT csv, pgsluice 'require')"
        return server.sql(f"SET pgsluice.copy = on; BEGIN; SAVEPOINT s; {copy.format(table, rolled_back)}; ROLLBACK TO s; {copy.format(table, path)}; COMMIT; SELECT {shown}")

    def documents(self, server):
        """Loads 6 kB documents until workers have compressed some of them."""
        path, pause = server.file("docs.csv", "".join(f"{n},{f'{n} and some words of it again; ' * 200},x\n" for n in range(300)).encode()), 0.1
        copy = "SET pgsluice.copy = on; COPY docs FROM {} WITH (FORMAT csv, workers 2); SELECT values_compressed > 0 FROM pgsluice.last_copy"
        while server.sql(copy.format(with_pauses(path, pause))) != "t" and pause < 10:
            pause *= 2
        self.assertLess(pause, 10, "workers have compressed nothing")

    def test_subscriber_of_many_kinds_of_tables(self):
        """After live merges into unique, GIN and hash indexes, with foreign keys, partitions (published by leaf or by root), values that
        workers compress, generated columns and CHECK constraints, a subscriber has the publisher's rows, and none that were rolled back."""
        publisher, subscriber = Cluster(["wal_level = logical"]), Cluster()
        self.addCleanup(publisher.remove)
        self.addCleanup(subscriber.remove)
        publisher.sql(SENT + SENDING)
        subscriber.sql(SENT + "CREATE TABLE root (a int PRIMARY KEY, b text)")
        subscriber.sql(f"CREATE SUBSCRIPTION s CONNECTION 'host={publisher.home} port={publisher.port} user=postgres dbname=postgres' PUBLICATION p, q")
        self.synchronized(subscriber)
        indexes = "route, (SELECT bool_and((i->'rows'->>'{}')::int > 5000) FROM jsonb_array_elements(indexes) i) FROM pgsluice.last_copy"
        for table, line, count, shown, wanted in (
                ("keyed", lambda n: f"{random.Random(n).getrandbits(128):032x},w{n % 300},l{n * 7919 % 40009}\n", 20000, indexes.format("leaf_merge"), "append|t"),
                ("child", lambda n: f'{n},{n % 100},"{{tag{n % 90},one{n}}}",some words {n * 7919 % 3000} {"x" * 20}\n', 18000, indexes.format("sorted"), "append|t"),
                ("made (a, b)", lambda n: f"{n},{n % 1000}\n", 90000, "route, expressions_by IS NOT NULL FROM pgsluice.last_copy", "append|t"),
                # Logical decoding gets the rows of partitions in the order of stock COPY.
                ("leaves", lambda n: f"{n},{'some text ' * 5}\n", 18000, "route, rows FROM pgsluice.last_copy", "insert|18000"),
                ("root", lambda n: f"{n},{'some text ' * 5}\n", 18000, "route, rows FROM pgsluice.last_copy", "insert|18000")):
            self.assertEqual(self.loaded(publisher, table, line, count, shown), wanted, table)
        self.documents(publisher)
        self.equal(publisher, subscriber, "SELECT (SELECT count(*) FROM keyed), (SELECT count(*) FROM child), (SELECT count(*) FROM made), (SELECT count(*) FROM leaves), (SELECT count(*) FROM root), (SELECT count(*) FROM docs)")
        for table in ("keyed", "child", "made", "docs", "root", *(f"leaves{n}" for n in range(4))):
            sent = publisher.home / f"{table}.sent"
            publisher.sql(f"COPY (SELECT * FROM {table}) TO '{sent}'")
            self.assertEqual(subscriber.sql(f"CREATE TEMP TABLE sent (LIKE {table}); COPY sent FROM '{sent}'; SELECT count(*) > 1000 OR '{table}' = 'docs' FROM sent;"
                                            f"SELECT * FROM (TABLE sent EXCEPT ALL TABLE {table}) a UNION ALL SELECT * FROM (TABLE {table} EXCEPT ALL TABLE sent) b LIMIT 5"), "t", table)
        subscriber.sql("DROP SUBSCRIPTION s")


if __name__ == "__main__":
    unittest.main()
