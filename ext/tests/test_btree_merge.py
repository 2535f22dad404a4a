"""COPY into live tables: entries all over a B-tree are merged into its leaves, many at once."""

import random
import subprocess
import unittest

from .cluster import Cluster, OnCluster, has, wait_until
from .twins import LoadedTwice, check, check_reuse, check_size, deleted_pages, new_blocks, reader_conflicts, standby_follows

INDEXES = {
    "tu": "(u)",  # nearly all different
    "tw": "(w)",  # many equal ones, in posting lists
    "twl": "(w, l)",
    "tone": "(one)",  # all equal
    "tdesc": "(d DESC NULLS FIRST, w DESC)",  # NULLs
    "tinc": "(k) INCLUDE (l)",
    "tn": "(n)",  # ranked: equal values in several forms
    "tplain": "(w) WITH (deduplicate_items = off)",
    "tfill": "(k, w) WITH (fillfactor = 60)",
    "tlong": "(long)",  # long keys: inner pages fill soon
}
# Without merge.
OTHERS = {"tx": "(upper(w))", "tpart": "(k) WHERE k % 2 = 0"}
TABLE = (
    "SET client_min_messages = error; DROP TABLE IF EXISTS t; CREATE {kind} TABLE t (u uuid, w text COLLATE \"C\", l text COLLATE \"C\", one int,"
    " d int, k bigint, n numeric, long text COLLATE \"C\") WITH (autovacuum_enabled = off);"
    "INSERT INTO t SELECT md5(n::text)::uuid, 'w' || n * 7919 % 300, 'l' || n * 7919 % 5000, 1, nullif(n % 50, 3), n * 7919 % 100003,"
    " n % 400, md5((n % 5000)::text) || repeat('x', 300) FROM generate_series(1, {rows}) n;"
    + "".join(f"CREATE INDEX {name} ON t {columns};" for name, columns in {**INDEXES, **OTHERS}.items())
)
SCANS = ("u", "w", "w, l", "one, u", "d DESC NULLS FIRST, w DESC", "k", "long")
BACK = {"w, l": "w DESC, l DESC", "one, u": "one DESC, u DESC", "d DESC NULLS FIRST, w DESC": "d NULLS LAST, w"}
COPY = "COPY t FROM '{}' WITH (FORMAT csv)"
MERGED = ("SELECT i->>'index', coalesce(i->'rows'->>'leaf_merge', '0') FROM pgsluice.last_copy, jsonb_array_elements(indexes) i")
INDEXED = "SET enable_seqscan = off; SET enable_bitmapscan = off;"


def rows(count, seed=1, words=300):
    """CSV lines: keys in no order."""
    chance = random.Random(seed)
    made = []
    for _ in range(count):
        w, k = chance.randrange(words), chance.randrange(100003)
        d = chance.choice(["", chance.randrange(50)])
        n = chance.choice(["%d", "%d.0", "%d.00"]) % chance.randrange(400)
        made.append(f"{chance.getrandbits(128):032x},w{w},l{chance.randrange(5000)},1,{d},{k},{n},{chance.getrandbits(64):016x}{'y' * 300}\n")
    return made


class WithTable:
    """The table, its checks and its queries."""

    def checked(self, cluster=None):
        """Runs amcheck on every index: it must have an entry for every row."""
        check(cluster or self.cluster, *INDEXES, *OTHERS)

    def answers(self):
        """The rows of the table, and scans of the indexes in both directions."""
        asked = ["SELECT count(*), md5(string_agg(t::text, ',' ORDER BY t::text)) FROM t;" + INDEXED]
        for order in SCANS:
            for by in (order, BACK.get(order, f"{order} DESC")):
                shown = order.replace(" DESC", "").replace(" NULLS FIRST", "")
                asked.append(f"SELECT md5(string_agg(v::text, ',')) FROM (SELECT ROW({shown}) v FROM t ORDER BY {by}) _;")
        return self.sql("".join(asked)).split("\n")

    def merged(self, path, before=""):
        """Loads the file; returns how many entries of each index were merged."""
        said = self.sql(f"SET pgsluice.copy = on; {before} {COPY.format(path)}; {MERGED}")
        return {index: int(count) for index, count in (line.split("|") for line in said.splitlines())}

    def dead(self, index):
        """How many items of the index are marked dead."""
        return int(self.sql(f"SELECT count(*) FROM generate_series(1, pg_relation_size('{index}') / 8192 - 1) n, bt_page_items(get_raw_page('{index}', n)) WHERE dead"))


class Merges(WithTable, LoadedTwice):
    """Compares a load by stock COPY with one by the extension."""

    settings = ["max_prepared_transactions = 2"]

    def load(self, path, setting, rows=10000, kind="", before="", after=""):
        """The answers after the COPY, by table scan and by each index."""
        return self.left_by(setting, TABLE.format(kind=kind, rows=rows), f"{before} {COPY.format(path)}; {after}")

    def test_equal_to_stock(self):
        """With few or many entries for each leaf, small or large indexes, and ample or little memory, every index answers as after stock COPY."""
        for have, come, words, memory in (
            (10000, 20000, 300, "64MB"), (0, 15000, 5, "64MB"), (3, 15000, 3000, "64MB"), (500, 25000, 300, "1MB"),
            (20000, 6000, 40000, "64MB"), (20000, 1500, 300, "64MB"),
        ):
            self.same(rows(come, words=words), rows=have, before=f"SET maintenance_work_mem = '{memory}';")
            self.checked()

    def test_the_way_is_taken(self):
        """Most entries of each plain index with different keys are merged; none are with allow_index_leaf_merge off, or in expression and partial indexes."""
        path = self.cluster.file("input", "".join(rows(20000)).encode())
        for allowed in ("on", "off"):
            self.sql(f"ALTER SYSTEM SET pgsluice.allow_index_leaf_merge = {allowed}")
            self.sql("SELECT pg_reload_conf()")
            wait_until(lambda allowed=allowed: self.sql("SHOW pgsluice.allow_index_leaf_merge") == allowed)
            self.sql(TABLE.format(kind="", rows=10000))
            found = self.merged(path)
            for index in INDEXES:
                if allowed == "on" and index != "tone":
                    self.assertGreater(found[index], 15000, index)
                elif allowed == "off":
                    self.assertEqual(found[index], 0, index)
            self.assertEqual({found[index] for index in OTHERS}, {0})
            self.checked()
        self.sql("ALTER SYSTEM RESET pgsluice.allow_index_leaf_merge")
        self.sql("SELECT pg_reload_conf()")

    def test_no_larger_and_no_more_wal(self):
        """The load writes at most 2 % more WAL than stock COPY, and each index is at most 15 % and four blocks larger."""
        path = self.cluster.file("input", "".join(rows(20000)).encode())
        sizes, wal = {}, {}
        for setting in ("off", "on"):
            self.sql(TABLE.format(kind="", rows=10000) + "CHECKPOINT")
            before = self.sql("SELECT pg_current_wal_insert_lsn()")
            self.sql(f"SET pgsluice.copy = {setting}; {COPY.format(path)}")
            wal[setting] = int(self.sql(f"SELECT pg_current_wal_insert_lsn() - '{before}'"))
            sizes[setting] = [int(self.sql(f"SELECT pg_relation_size('{index}')")) for index in INDEXES]
        self.assertLess(wal["on"], wal["off"] * 1.02)
        for index, one, other in zip(INDEXES, sizes["off"], sizes["on"]):
            self.assertLess(other, one * 1.15 + 4 * 8192, index)

    def test_places_within_lists(self):
        """Rows that fill gaps in the table, so that their TIDs lie between those of equal keys, leave every index with stock COPY's answers."""
        path = self.cluster.file("input", "".join(rows(15000, words=20)).encode())
        said = {}
        for setting in ("off", "on"):
            self.sql(TABLE.format(kind="", rows=30000))
            self.sql("DELETE FROM t WHERE k % 2 = 0; VACUUM t; VACUUM t")
            self.sql(f"SET pgsluice.copy = {setting}; {COPY.format(path)}")
            said[setting] = self.answers()
            self.checked()
        self.assertEqual(said["on"], said["off"])

    @unittest.skipUnless(has("pg_walinspect"), "pg_walinspect is not there")
    def test_leaves_that_become_many(self):
        """Leaves are split into more than two at once: one WAL record has at least two new leaves, the old one and their parent."""
        path = self.cluster.file("input", "".join(rows(20000)).encode())
        self.sql("CREATE EXTENSION IF NOT EXISTS pg_walinspect; " + TABLE.format(kind="", rows=10000))
        start = self.sql("SELECT pg_current_wal_flush_lsn()")
        self.merged(path)
        records = self.sql(f"SELECT block_ref FROM pg_get_wal_records_info('{start}', pg_current_wal_flush_lsn()) WHERE resource_manager = 'XLOG' AND record_type = 'FPI'").splitlines()
        for index in ("tu", "twl", "tinc", "tlong"):
            of = f"/{self.sql(f'SELECT pg_relation_filenode({index!r})')} fork main"
            self.assertGreater(sum(record.count(of) >= 4 for record in records), 10, index)
        self.checked()

    @unittest.skipUnless(has("pageinspect"), "pageinspect is not there")
    def test_dead_items(self):
        """Entries are merged into leaves that have items marked dead by scans, which only the access method may remove, and which it removes; every index passes amcheck."""
        path = self.cluster.file("input", "".join(rows(20000)).encode())
        self.sql("CREATE EXTENSION IF NOT EXISTS pageinspect; " + TABLE.format(kind="", rows=10000))
        for seed in range(2):
            self.sql("DELETE FROM t WHERE k % 3 <> 0")
            for order in SCANS:
                self.sql(f"{INDEXED} SET enable_sort = off; SELECT count(*) FROM (SELECT FROM t ORDER BY {order}) _")
            dead = {index: self.dead(index) for index in ("tu", "tinc", "tlong")}
            found = self.merged(path)
            self.assertGreater(found["tu"], 10000, seed)
            self.checked()
            for index, count in dead.items():
                self.assertGreater(count, 1000, index)
                self.assertLess(self.dead(index), count / 10, index)
        self.sql("VACUUM t")
        self.checked()

    def test_kinds_of_tables(self):
        """Unlogged and temporary tables, ROLLBACK TO a savepoint, and a prepared transaction that outlives a kill:
        indexes pass amcheck, also after later deletes, VACUUM and inserts. A merge uses pages again that VACUUM has deleted."""
        path = self.cluster.file("input", "".join(rows(9000)).encode())
        self.same(rows(9000), kind="UNLOGGED")
        self.same(rows(9000), before="SAVEPOINT s;", after="ROLLBACK TO s;")
        self.checked()
        self.sql("VACUUM t")
        self.checked()
        self.assertGreater(self.merged(path)["tu"], 8000)
        self.sql(f"SET pgsluice.copy = on; BEGIN; {COPY.format(path)}; PREPARE TRANSACTION 'p'")
        self.cluster.kill()
        self.cluster.start()
        self.sql("COMMIT PREPARED 'p'; DELETE FROM t WHERE k > 20000; VACUUM t; SELECT txid_current(); VACUUM t")
        self.checked()
        deleted = {index: deleted_pages(self.cluster, index) for index in ("tinc", "tfill")}
        self.assertGreater(self.merged(path)["tu"], 8000)
        for index, pages in deleted.items():
            check_reuse(self, self.cluster, index, pages)
        self.checked()
        self.sql("INSERT INTO t SELECT md5(n::text)::uuid, 'w' || n, 'l', 1, n, n, n, n FROM generate_series(1, 9000) n")
        self.checked()
        self.assertEqual(self.sql(f"{TABLE.format(kind='TEMP', rows=2000)} SET pgsluice.copy = on; {COPY.format(path)}; SELECT count(*) FROM t"), "11000")

    def test_beside_others(self):
        """Loads merge their entries while others write, delete, VACUUM and scan in both directions: nothing fails, and each scan finds its rows in order."""
        path = self.cluster.file("input", "".join(rows(20000)).encode())
        self.sql(TABLE.format(kind="", rows=10000) + "CREATE TABLE IF NOT EXISTS lasting (n int)")
        self.sql("DROP TABLE IF EXISTS mine; CREATE TABLE mine AS SELECT count(*) FROM t WHERE one = 1 AND k >= 0")
        scan = ("BEGIN; SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off; DO $$ DECLARE last {kind}; r record; n int := 0; BEGIN"
                " FOR r IN SELECT {key} AS v FROM t WHERE {key} IS NOT NULL ORDER BY {key} {way} LOOP"
                " IF last {wrong} r.v THEN RAISE 'out of order'; END IF; last := r.v; n := n + 1; END LOOP;"
                " IF n < 9000 THEN RAISE 'only %', n; END IF; END $$; COMMIT;\n")
        scripts = [
            "".join(scan.format(kind=kind, key=key, way=way, wrong=">" if way == "" else "<") for key, kind in (("u", "uuid"), ("w", "text COLLATE \"C\""), ("k", "bigint"))
                    for way in ("", "DESC")) * 6,
            "".join(f"INSERT INTO t SELECT md5('o' || n)::uuid, 'w' || n % 300, 'l', 2, n % 50, n, n % 400, md5(n::text) || repeat('z', 300)"
                    f" FROM generate_series({100 * n}, {100 * n + 99}) n; DELETE FROM t WHERE one = 2 AND k % 3 = {n % 3};\n" for n in range(60)),
            "VACUUM (INDEX_CLEANUP ON) t;\n" * 12,
        ]
        others = []
        for script in scripts:
            others.append(subprocess.Popen(self.cluster.command("-f", "-"), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
            others[-1].stdin.write(script.encode())
            others[-1].stdin.close()
        loads = 0
        while loads < 2 or any(other.poll() is None for other in others) and loads < 5:
            self.assertGreater(self.merged(path)["tu"], 10000)
            loads += 1
        for other in others:
            self.assertEqual((other.stderr.read(), other.wait()), (b"", 0))
            other.stderr.close()
        self.checked()
        self.assertEqual(self.sql("SELECT count(*) FROM t WHERE one = 1"), str(10000 + loads * 20000))

    def test_two_loads_at_once(self):
        """Two loads merge into the same leaves at once: all rows are there, and every index passes amcheck."""
        self.sql(TABLE.format(kind="", rows=10000))
        paths = [self.cluster.file(f"input{seed}", "".join(rows(20000, seed)).encode()) for seed in (5, 6)]
        loads = [subprocess.Popen(self.cluster.command("-c", "SET pgsluice.copy = on", "-c", COPY.format(path))) for path in paths]
        self.assertEqual([load.wait() for load in loads], [0, 0])
        self.checked()
        self.assertEqual(self.sql("SELECT count(*) FROM t"), "50000")

    def test_blocks_that_are_left_over(self):
        """A merge adds blocks for many leaves at once and leaves at most 64 unused; the next page splits, in any session, use these first."""
        paths = [self.cluster.file(f"input{seed}", "".join(rows(20000, seed)).encode()) for seed in (21, 22)]
        self.sql(TABLE.format(kind="", rows=10000))
        self.merged(paths[0])
        left = {index: new_blocks(self.cluster, index) for index in INDEXES}
        self.assertGreater(sum(left.values()), 0)
        self.assertLessEqual(max(left.values()), 64)
        sizes = {index: int(self.sql(f"SELECT pg_relation_size('{index}')")) for index in INDEXES}
        self.sql(f"SET pgsluice.copy = off; {COPY.format(paths[1])}")
        for index in INDEXES:
            if int(self.sql(f"SELECT pg_relation_size('{index}')")) > sizes[index]:
                self.assertEqual(new_blocks(self.cluster, index), 0, index)
        self.checked()

    def test_serializable(self):
        """SERIALIZABLE: a session that has read a range conflicts with a merge into it, even if the leaf has been split since."""
        parts = [self.cluster.file(f"part{seed}", "".join(rows(20000, seed)).encode()) for seed in (7, 8)]
        reader_conflicts(self, TABLE.format(kind="", rows=10000), "SELECT count(*) FROM t WHERE k BETWEEN 50000 AND 50200", map(COPY.format, parts))


class MergesLogged(WithTable, OnCluster):
    """The server is killed, or followed by a standby."""

    settings = ["wal_level = replica", "wal_keep_size = '2GB'", "checkpoint_timeout = 1h", "maintenance_work_mem = '4MB'"]

    def test_killed_in_the_middle(self):
        """Whenever the server is killed during a merge, every index passes amcheck after recovery, and takes deletes, VACUUM and another merge."""
        path = self.cluster.file("input", "".join(rows(20000)).encode())
        chance = random.Random(11)
        for attempt in range(5):
            self.sql(TABLE.format(kind="", rows=10000) + "CHECKPOINT")
            size = int(self.sql("SELECT pg_relation_size('tlong') / 8192"))
            blocks = size + chance.randrange(1, 1000)
            load = subprocess.Popen(self.cluster.command("-c", f"SET pgsluice.copy = on; {COPY.format(path)}"), stderr=subprocess.DEVNULL)
            while load.poll() is None and int(self.sql("SELECT pg_relation_size('tlong') / 8192")) < blocks:
                if attempt % 2:
                    self.sql("CHECKPOINT")
            self.cluster.kill()
            load.wait()
            self.cluster.start()
            self.assertIn(self.sql("SELECT count(*) FROM t"), ("10000", "30000"))
            self.checked()
            self.sql("DELETE FROM t WHERE k % 2 = 0; VACUUM t")
            self.assertGreater(self.merged(path)["tu"], 10000)
            self.checked()

    def test_a_standby_follows(self):
        """A standby without the library answers from the indexes during the load, in both directions; once it takes over, they pass amcheck and take writes."""
        self.sql(TABLE.format(kind="", rows=10000))
        path = self.cluster.file("input", "".join(rows(30000)).encode())
        scans = ("SELECT count(*) FROM (SELECT w FROM t ORDER BY w) _; SELECT count(*) FROM (SELECT u FROM t ORDER BY u DESC) _;"
                 "SELECT count(*) FROM (SELECT long FROM t ORDER BY long DESC) _")
        standby = standby_follows(self, f"SET pgsluice.copy = on; {COPY.format(path)}", scans,
                                  {"\n".join(["10000"] * before + ["40000"] * (3 - before)) for before in range(4)}, INDEXES)
        self.checked(standby)
        standby.sql("INSERT INTO t SELECT md5(n::text)::uuid, 'w' || n, 'l', 1, n, n, n, n FROM generate_series(1, 3000) n; DELETE FROM t WHERE k % 5 = 0; VACUUM t")
        self.checked(standby)

    def test_what_is_replayed_is_what_was_done(self):
        """Replayed pages equal the primary's (wal_consistency_checking), also with dead items, a concurrent VACUUM and deleted pages that are used again; the indexes have the same size."""
        primary = Cluster(["wal_level = replica", "wal_consistency_checking = 'all'", "wal_keep_size = 8GB"])
        self.addCleanup(primary.remove)
        primary.sql("CREATE EXTENSION pgsluice;" + TABLE.format(kind="", rows=10000))
        standby = Cluster(copy_of=primary)
        self.addCleanup(standby.remove)
        path = primary.file("input", "".join(rows(20000)).encode())
        small = primary.file("small", "".join(rows(2000, 2)).encode())
        for each in (path, small):
            primary.sql("DELETE FROM t WHERE k % 3 = 0")
            primary.sql(f"{INDEXED} SELECT count(*) FROM (SELECT k FROM t ORDER BY k) _; SELECT count(*) FROM (SELECT w, l FROM t ORDER BY w, l) _")
            vacuum = subprocess.Popen(primary.command("-c", "SET vacuum_cost_delay = 1; SET vacuum_cost_limit = 400", "-c", "VACUUM t"))
            said = primary.sql(f"SET pgsluice.copy = on; {COPY.format(each)}; {MERGED}")
            self.assertRegex(said, r"tu\|[1-9]")
            self.assertEqual(vacuum.wait(), 0)
        primary.sql("DELETE FROM t WHERE k > 20000; VACUUM t; SELECT txid_current(); VACUUM t")
        deleted = {index: deleted_pages(primary, index) for index in ("tinc", "tfill")}
        primary.sql(f"SET pgsluice.copy = on; {COPY.format(path)}")
        for index, pages in deleted.items():
            check_reuse(self, primary, index, pages)
        standby.follow(primary)
        self.assertEqual(standby.sql("SELECT count(*) FROM t"), primary.sql("SELECT count(*) FROM t"))
        for index in INDEXES:
            check_size(self, primary, standby, index)
