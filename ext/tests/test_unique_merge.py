"""COPY into live tables: entries of unique indexes wait and are merged, and the row that is rejected is the one that stock COPY rejects."""

import os
import random
import subprocess
import unittest

from . import cluster as clusters
from .cluster import Cluster, Held, OnCluster, Refused, wait_until
from .twins import LoadedTwice, check, check_size, reader_conflicts, standby_follows

# tn: ranked, equal values in several forms; td: NULLs; tlong: leaves, their parents and the level above fill soon.
UNIQUE = {"t_pkey": "(u)", "twl": "(w, l)", "tk": "(k DESC) INCLUDE (l)", "tn": "(n)", "td": "(d)", "tdk": "(d, k) NULLS NOT DISTINCT", "tlong": "(long)"}
PLAIN = {"tw": "(w)"}
# Row by row, as with stock COPY.
ROWS = {"zexpr": "UNIQUE INDEX zexpr ON t (upper(l), k)", "apart": "UNIQUE INDEX apart ON t (k) WHERE k % 2 = 0"}
TABLE = (
    "SET client_min_messages = error; DROP TABLE IF EXISTS t; CREATE TABLE t (u uuid, w text COLLATE \"C\", l text COLLATE \"C\","
    " k bigint, n numeric, d int, long text COLLATE \"C\") WITH (autovacuum_enabled = off); {first}"
    + "".join(f"CREATE UNIQUE INDEX {name} ON t {columns};" for name, columns in UNIQUE.items()) + "CREATE INDEX tw ON t (w); {more}"
    "INSERT INTO t SELECT md5(n::text)::uuid, 'w' || n * 7919 % 300, 'l' || n, n * 7919 % 1000003, n + 0.5, CASE WHEN n % 5 > 0 THEN -n END,"
    " md5(n::text) || repeat('x', 300) FROM generate_series(1, {rows}) n;"
)
SCANS = {"u": "uuid", "w, l": "", "k": "bigint", "n": "", "d NULLS FIRST, k": "", "long": ""}
COPY = "COPY t FROM '{}' WITH (FORMAT csv)"
MERGED = "SELECT i->>'index', coalesce(i->'rows'->>'leaf_merge', '0') FROM pgsluice.last_copy, jsonb_array_elements(indexes) i"
INDEXED = "SET enable_seqscan = off; SET enable_bitmapscan = off;"
FORCED = "SET pgsluice.debug_force_routes = on;"


def table(rows=10000, first="", more=""):
    """The statements that create the table."""
    return TABLE.format(rows=rows, first=first, more=more)


def fields(count, seed=1, odd=0):
    """Rows with keys in no order, none of them twice, and none both with `odd` and without."""
    chance = random.Random(seed)
    numbers = [2 * n + odd for n in chance.sample(range(10 * count), count)]
    return [[f"{chance.getrandbits(128):032x}", f"w{n % 300}", f"l{10 ** 6 + n}", str(10 ** 6 + 3 + n), f"{n // 20}.{n % 20:02d}25{'0' * (n % 3)}", str(n) if n % 4 else "",
             f"{chance.getrandbits(64):016x}{n}{'y' * 300}"] for n in numbers]


def old(n):
    """The values that the table's row has."""
    return ["", f"w{n * 7919 % 300}", f"l{n}", str(n * 7919 % 1000003), f"{n}.50", str(-n) if n % 5 else "", ""]


def lines(rows):
    """Lines of CSV."""
    return [",".join(row) + "\n" for row in rows]


def repeat(rows, at, column, of):
    """Gives row `at` (from 0) the key of row `of` or, if that is negative, of an old row."""
    columns = {"u": (0,), "wl": (1, 2), "k": (3,), "n": (4,), "d": (5,)}[column]
    source = old(-of) if of < 0 else rows[of]
    for c in columns:
        rows[at][c] = source[c] + ("0" if column == "n" and rows[at][c] else "")


class WithTable:
    """The table, its checks and its queries."""

    def checked(self, cluster=None, indexes=(*UNIQUE, *PLAIN)):
        """Runs amcheck on every index: it must have an entry for every row, and each key once."""
        cluster = cluster or self.cluster
        check(cluster, *indexes)
        if clusters.has("amcheck") and clusters.MAJOR >= 18:
            cluster.sql("".join(f"SELECT bt_index_check('{index}', true, true);" for index in indexes))

    def answers(self):
        """The rows of the table, and scans of the indexes in both directions."""
        asked = ["SELECT count(*), md5(string_agg(t::text, ',' ORDER BY t::text)) FROM t;" + INDEXED]
        for order in SCANS:
            shown = order.replace(" NULLS FIRST", "")
            for by in (order, ", ".join(f"{part} DESC" for part in shown.split(", "))):
                asked.append(f"SELECT md5(string_agg(v::text, ',')) FROM (SELECT ROW({shown}) v FROM t ORDER BY {by}) _;")
        return self.sql("".join(asked)).split("\n")

    def merged(self, path, before=""):
        """Loads the file; returns how many entries of each index were merged."""
        said = self.sql(f"SET pgsluice.copy = on; {before} {COPY.format(path)}; {MERGED}")
        return {index: int(count) for index, count in (line.split("|") for line in said.splitlines())}


class Merges(WithTable, LoadedTwice):
    """Compares a load by stock COPY with one by the extension."""

    settings = ["max_prepared_transactions = 2", "deadlock_timeout = 200ms"]

    def load(self, path, setting, rows=10000, first="", more="", before="", after=""):
        """The COPY's error, or the answers by table scan and by each index after it."""
        return self.left_by(setting, table(rows, first, more), f"{before} {COPY.format(path)}; {after}")

    def test_equal_to_stock(self):
        """With few or many entries for each leaf, small or large indexes, and ample or little memory, every index answers as after stock COPY."""
        for have, come, memory in ((10000, 15000, "64MB"), (0, 9000, "64MB"), (3, 9000, "64MB"), (500, 15000, "1MB"), (20000, 1500, "64MB")):
            self.same(lines(fields(come)), rows=have, before=f"SET maintenance_work_mem = '{memory}';")
            self.checked()

    def test_the_way_is_taken(self):
        """Entries are merged, with at most 5 % more WAL than stock COPY; with allow_unique_leaf_merge off, none are, the load writes more WAL, and indexes are about as large (15 % and four blocks)."""
        path = self.cluster.file("input", "".join(lines(fields(20000))).encode())
        wal, sizes, by_stock = {}, {}, "SET pgsluice.copy = off;"
        for allowed, before in (("on", by_stock), ("on", ""), ("off", "")):
            self.sql(f"ALTER SYSTEM SET pgsluice.allow_unique_leaf_merge = {allowed}")
            self.sql("SELECT pg_reload_conf()")
            wait_until(lambda allowed=allowed: self.sql("SHOW pgsluice.allow_unique_leaf_merge") == allowed)
            self.sql(table() + "CHECKPOINT")
            start = self.sql("SELECT pg_current_wal_insert_lsn()")
            found = self.merged(path, before)
            wal[allowed + before] = int(self.sql(f"SELECT pg_current_wal_insert_lsn() - '{start}'"))
            sizes[allowed] = [int(self.sql(f"SELECT pg_relation_size('{index}')")) for index in UNIQUE]
            for index in UNIQUE if found else ():
                if allowed == "on":
                    self.assertGreater(found[index], 9000, index)
                else:
                    self.assertEqual(found[index], 0, index)
            self.assertEqual(found.get("tw", 0) > 15000, not before)
            self.checked()
        self.sql("ALTER SYSTEM RESET pgsluice.allow_unique_leaf_merge")
        self.sql("SELECT pg_reload_conf()")
        self.assertLess(wal["on"], wal["off"])
        self.assertLess(wal["on"], wal["on" + by_stock] * 1.05)
        for index, ours, stock in zip(UNIQUE, sizes["on"], sizes["off"]):
            self.assertLess(ours, stock * 1.15 + 4 * 8192, index)

    def test_each_key_that_is_there(self):
        """A duplicate of a key in the load or in the table, in each index, is stock COPY's error, with the line of the later row."""
        for column, name in (("u", "t_pkey"), ("wl", "twl"), ("k", "tk"), ("n", "tn"), ("d", "td")):
            rows = fields(8000)
            rows[6100][5] = rows[300][5] = "77" if column == "d" else ""
            repeat(rows, 6100, column, 300)
            said = self.same(lines(rows), rows=300)
            self.assertIn(f'"{name}"', said)
            self.assertRegex(said, r"DETAIL:  Key \(.*already exists\.\nCONTEXT:  COPY t, line 6101")
            if column != "u":
                rows = fields(8000)
                rows[5000][3] = rows[5000][3] if column == "k" else "7"
                repeat(rows, 5000, column, -101)
                self.assertIn("COPY t, line 5001", self.same(lines(rows), rows=300))
        rows = fields(4000)
        rows[1000][3:6:2], rows[3000][3:6:2] = ("5", ""), ("5", "")
        self.assertIn('"tk"', self.same(lines(rows), rows=300))
        rows[1000][3:6:2], rows[3000][3:6:2] = ("", ""), ("", "")
        self.assertIn('"tdk"', self.same(lines(rows), rows=300))

    def test_first_of_many(self):
        """With random duplicates in any index, little memory, gaps and other unique indexes, the result or error is stock COPY's."""
        gaps = "DELETE FROM t WHERE d % 3 = 0; VACUUM t;"
        for seed in range(int(os.environ.get("PGSLUICE_SEEDS", 40))):
            chance = random.Random(seed)
            rows = fields(chance.choice((40, 150, 600)), seed)
            for _ in range(chance.randrange(8)):
                column = chance.choice(("u", "wl", "k", "n", "d"))
                of = chance.randrange(-60, len(rows)) or 1
                repeat(rows, chance.randrange(len(rows)), column, of if of >= 0 or column != "u" else 1)
            others = chance.sample(sorted(ROWS), chance.randrange(3))
            first = "".join(f"CREATE {ROWS[name]};" for name in others if name == "apart")
            more = "".join(f"CREATE {ROWS[name]};" for name in others if name != "apart")
            if chance.randrange(4) == 0:
                more += "ALTER TABLE t ADD CONSTRAINT later UNIQUE (n, k) DEFERRABLE INITIALLY DEFERRED;"
            before = f"SET LOCAL maintenance_work_mem = '{chance.choice(('1MB', '64MB'))}'; {FORCED if chance.randrange(3) else ''}"
            with self.subTest(seed=seed):
                self.same(lines(rows), rows=chance.choice((0, 60)), first=first, more=more + (gaps if chance.randrange(3) == 0 else ""), before=before)
                if seed % 8 == 0:
                    self.checked()

    def test_one_key_in_many_rows(self):
        """One key has more rows than are compared at a time (512 kB of entries): the error is stock COPY's, also if other keys follow."""
        for values in (["same"] * 100_000, ["same"] * 60_000 + [f"t{n}" for n in range(60_000)], ["same"] * 50_000 + ["sane"] * 60_000):
            path = self.cluster.file("input", "".join(f"{value}\n" for value in values).encode())
            for key in ("text", 'text COLLATE "C"', "uuid"):
                said = []
                for setting in ("off", "on"):
                    self.sql(f"DROP TABLE IF EXISTS one; CREATE TABLE one (k {key} UNIQUE)")
                    data = path if key != "uuid" else self.cluster.file("uuids", "".join(f"{sum(map(ord, value)):032x}\n" for value in values).encode())
                    with self.assertRaises(Refused) as refused:
                        self.sql(f"SET pgsluice.copy = {setting}; COPY one FROM '{data}'")
                    said.append(str(refused.exception).split("LOCATION")[0])
                self.assertEqual(*said)
                self.assertIn("line 2", said[1])

    def test_errors_of_later_rows(self):
        """A duplicate key is reported before a later row that is rejected for another reason, and after an earlier one, as by stock COPY."""
        twice = fields(8000)
        repeat(twice, 2500, "k", 2000)
        spoils = {
            "x\n": "", "1,2\n": "", "00000000000000000000000000000001,a,b,x,1,1,c\n": "",
            "00000000000000000000000000000001,a,b,1,1,1,refused\n": "ALTER TABLE t ADD CHECK (long <> 'refused');",
            "00000000000000000000000000000001,,b,1,1,1,c\n": "ALTER TABLE t ALTER w SET NOT NULL;",
            "00000000000000000000000000000001,a,b,666,1,1,c\n": "CREATE INDEX failing ON t ((1 / (k - 666)));",
            "00000000000000000000000000000001,a,b,777,1,1,c\n": "CREATE INDEX failing ON t USING gin ((ARRAY[1 / (k - 777)]));",
            "00000000000000000000000000000001,a,b,888,1,1,c\n": "CREATE INDEX failing ON t USING hash ((1 / (k - 888)));",
            "00000000000000000000000000000001,w7919,L1,4,1,1,c\n00000000000000000000000000000002,w7919,L1,4,2,2,d\n": "CREATE UNIQUE INDEX expr ON t (lower(l), lower(w));",
            "00000000000000000000000000000001,a,b,1,1,1," + "".join(format(n * 7919 % 104729, "x") for n in range(1500)) + "\n": "",
        }
        for spoil, more in spoils.items():
            with self.subTest(more=more, spoil=spoil[:60]):
                for at, code in ((7000, "line 2501"), (1200, "line 120")):
                    made = lines(twice)
                    made.insert(at, spoil)
                    self.assertIn(code, self.same(made, rows=100, more=more))

    def test_errors_while_a_page_is_locked(self):
        """An access method's own error is not held back: it ends the load, even if an earlier row has a duplicate key."""
        rows = fields(8000)
        repeat(rows, 2500, "k", 2000)
        rows[7000][3] = "7"
        large = "CREATE INDEX large ON t ((CASE WHEN k = 7 THEN " + " || ".join(f"md5(l || '{n}')" for n in range(170)) + " END));"
        self.sql(table(0) + large)
        path = self.cluster.file("input", "".join(lines(rows)).encode())
        with self.assertRaises(Refused) as refused:
            self.sql(f"SET pgsluice.copy = on; SET statement_timeout = '120s'; {COPY.format(path)}")
        self.assertIn("54000", str(refused.exception))
        self.assertIn("COPY t, line 7001", str(refused.exception))

    def test_same_row(self):
        """If two indexes reject one row, the order of the indexes decides, whichever of them waits."""
        for first, more in (("", ""), ("CREATE UNIQUE INDEX apart ON t (k) WHERE k > 0;", ""), ("", "CREATE UNIQUE INDEX zpart ON t (k) WHERE k > 0;"),
                            ("CREATE UNIQUE INDEX aexpr ON t ((k + 0), lower(l));", "ALTER TABLE t ADD UNIQUE (u, k);")):
            rows = fields(6000)
            rows[4000] = list(rows[1000])
            rows[5000] = list(rows[1001])
            self.assertIn("COPY t, line 4001", self.same(lines(rows), rows=200, first=first, more=more))

    def test_a_long_value_waits_for_its_turn(self):
        """A value of more than 506 bytes is checked when the turn of its index comes, after the indexes before it, and gets one entry."""
        rows = fields(6000)
        for row in rows[::7]:
            row[6] = row[6].ljust(600, "z")
        self.same(lines(rows), rows=200)
        self.checked()
        rows[1000][6] = rows[4000][6] = "y" * 600
        rows[4000][2] = rows[1000][2].upper()
        for first, name in (("CREATE UNIQUE INDEX aexpr ON t (lower(l));", "aexpr"), ("", "tlong")):
            said = self.same(lines(rows), rows=200, first=first, more="CREATE UNIQUE INDEX zexpr ON t (lower(l));")
            self.assertIn(f'"{name}"', said)
            self.assertIn("COPY t, line 4001", said)

    def test_the_index_that_failed(self):
        """If an index's expression fails for a row whose key is a duplicate in another index, the first of the two decides, whichever other index has a predicate."""
        rows = fields(8000)
        rows[7000][3] = "666"
        repeat(rows, 7000, "u", 2000)
        part = "CREATE INDEX part ON t (d) WHERE d > 5;"
        fails = "CREATE INDEX failing ON t {};"
        trigger = "CREATE TRIGGER failing AFTER INSERT ON t FOR EACH ROW WHEN (1 / (NEW.k - 666) > 0) EXECUTE FUNCTION suppress_redundant_updates_trigger();"
        for first, more, code in ((part, fails.format("((1 / (k - 666)))"), "23505"), (part, fails.format("USING gin ((ARRAY[1 / (k - 666)]))"), "23505"),
                                  (part, trigger, "23505"), (fails.format("((1 / (k - 666)))"), part, "22012")):
            said = self.same(lines(rows), rows=100, first=first, more=more)
            self.assertIn(code, said)
            self.assertIn("COPY t, line 7001", said)

    def test_deferrable(self):
        """A deferrable constraint is checked as by stock COPY, next to indexes that are merged."""
        rows = fields(6000)
        repeat(rows, 5000, "n", 10)
        late = "DROP INDEX tn; ALTER TABLE t ADD CONSTRAINT late UNIQUE (n) DEFERRABLE INITIALLY DEFERRED;"
        self.assertIn('"late"', self.same(lines(rows), rows=200, more=late))
        self.same(lines(rows), rows=200, more=late, after="DELETE FROM t x USING t y WHERE x.n = y.n AND x.ctid > y.ctid;")

    def test_deleted_rows(self):
        """Keys of rows that this or another transaction has deleted can be loaded again, even if more of them exist than a leaf holds."""
        rows = fields(5000)
        path = self.cluster.file("again", "".join(lines(rows)).encode())
        self.same(lines(rows), rows=500, before=f"{COPY.format(path)}; DELETE FROM t WHERE k >= 1000000;")
        self.checked()
        reads = "".join(f"SELECT count(*) FROM (SELECT FROM t ORDER BY {order}) _;" for order in SCANS)
        for n in range(3):
            self.sql(f"DELETE FROM t WHERE k >= 1000000; {INDEXED} SET enable_sort = off; {reads if n else ''}")
            self.assertGreater(self.merged(path)["t_pkey"], 1000, n)
            self.checked()
        with Held(self.cluster).process as held:  # so that nothing of what follows may be cleaned up
            held.stdin.write("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1;\n")
            held.stdin.flush()
            held.stdout.readline()
            again = "DELETE FROM t WHERE n = 100.5; INSERT INTO t SELECT u, w, l, k, n, d, long FROM one;"
            self.sql(table(1000) + "DROP TABLE IF EXISTS one; CREATE TABLE one AS SELECT * FROM t WHERE n = 100.5;"
                     f"DO $$ BEGIN FOR i IN 1..3000 LOOP {again} END LOOP; END $$")
            one = self.sql("SELECT u, w, l, k, n, d, long FROM one").replace("|", ",") + "\n"
            made = lines(fields(4000)) + [one]
            path = self.cluster.file("input", "".join(made).encode())
            with self.assertRaises(Refused) as refused:
                self.merged(path)
            self.assertIn("COPY t, line 4001", str(refused.exception))
            self.sql("DELETE FROM t WHERE n = 100.5")
            self.assertGreater(self.merged(path)["t_pkey"], 3000)
            held.stdin.close()
            held.wait()
        self.checked()

    def waits(self, load):
        """Whether the COPY starts to wait for a transaction."""
        return wait_until(lambda: load.poll() is not None or self.sql(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'transactionid' AND query LIKE '%COPY t%'") != "0")

    def test_rows_of_open_transactions(self):
        """If an open transaction has inserted or deleted a key, the COPY waits for its end, then has stock COPY's result."""
        rows = fields(5000)
        repeat(rows, 4000, "n", -100)
        rows[4000][3] = "100"
        path = self.cluster.file("input", "".join(lines(rows)).encode())
        insert = "INSERT INTO t (n) VALUES (100.5)"
        for has, begun, end, refused in (("", insert, "COMMIT", True), ("", insert, "ROLLBACK", False), ("", f"SAVEPOINT s; {insert}; ROLLBACK TO s; SELECT 1", "COMMIT", False),
                                         (insert, "DELETE FROM t WHERE n = 100.5", "COMMIT", False), (insert, "DELETE FROM t WHERE n = 100.5", "ROLLBACK", True),
                                         ("", f"{insert} ON CONFLICT DO NOTHING", "COMMIT", True)):
            said = []
            for setting in ("off", "on"):
                self.sql(f"{table(50)}; DROP INDEX tdk; {has}")
                other = Held(self.cluster)
                other.run(f"BEGIN; {begun}")
                load = subprocess.Popen(self.cluster.command("-c", f"SET pgsluice.copy = {setting}", "-c", COPY.format(path)),
                                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                self.assertTrue(self.waits(load))
                self.assertEqual(load.poll() is None, "SAVEPOINT" not in begun)
                self.assertEqual(other.end(end)[0], 0)
                errors = load.communicate()[1]
                said.append((load.returncode, errors.split("LOCATION")[0]))
            self.assertEqual(said[0], said[1], begun)
            self.assertEqual(said[1][0] != 0, refused)
            self.assertEqual("COPY t, line 4001" in said[1][1], refused)

    def test_two_loads_of_the_same_keys(self):
        """Of two loads with the same keys, one waits and then fails on a duplicate; neither fails on a deadlock."""
        rows = fields(12000)
        paths = [self.cluster.file("input0", "".join(lines(rows)).encode()), self.cluster.file("input1", "".join(lines(rows[::-1])).encode())]
        for attempt in range(3):
            self.sql(table(3000))
            loads = [subprocess.Popen(self.cluster.command("-c", "SET pgsluice.copy = on", "-c", COPY.format(paths[n and attempt % 2])), stderr=subprocess.PIPE, text=True)
                     for n in range(2)]
            errors = [load.communicate()[1] for load in loads]
            self.assertEqual(sorted(load.returncode for load in loads), [0, 1], errors)
            self.assertIn("23505", "".join(errors))
            self.checked()
            self.assertEqual(self.sql("SELECT count(*) FROM t"), "15000")

    def test_beside_others(self):
        """Loads merge their entries while others insert the same keys, delete and VACUUM; scans in both directions find rows in order each time."""
        rows = fields(15000)
        path = self.cluster.file("input", "".join(lines(rows)).encode())
        self.sql(table(5000))
        scan = ("BEGIN; SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off; DO $$ DECLARE last {kind}; r record; n int := 0; BEGIN"
                " FOR r IN SELECT {key} AS v FROM t WHERE {key} IS NOT NULL ORDER BY {key} {way} LOOP"
                " IF last {wrong} r.v THEN RAISE 'out of order'; END IF; last := r.v; n := n + 1; END LOOP;"
                " IF n < 5000 THEN RAISE 'only %', n; END IF; END $$; COMMIT;\n")
        kinds = {"u": "uuid", "k": "bigint", "long": "text COLLATE \"C\""}
        keys = [row[2] for row in rows]
        values = "(md5('o' || l)::uuid, 'o' || l, l, nextval('own'), nextval('own'), nextval('own'), 'o' || l || repeat('z', 300))"
        self.sql("DROP SEQUENCE IF EXISTS own; CREATE SEQUENCE own START 100000000")
        writer = "".join(f"INSERT INTO t SELECT v.* FROM (VALUES ('{a}')) _ (l), LATERAL (SELECT {values[1:-1]}) v; DELETE FROM t WHERE k >= 100000000 AND k % 3 = 0;\n"
                         for a in random.Random(3).sample(keys, 150))
        scripts = ["".join(scan.format(kind=kind, key=key, way=way, wrong=">=" if way == "" else "<=") for key, kind in kinds.items() for way in ("", "DESC")) * 5,
                   writer, "VACUUM (INDEX_CLEANUP ON) t;\n" * 12]
        others = []
        for script in scripts:
            others.append(subprocess.Popen(self.cluster.command("-f", "-"), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
            others[-1].stdin.write(script.encode())
            others[-1].stdin.close()
        loads = 0
        while loads < 2 or any(other.poll() is None for other in others) and loads < 6:
            self.assertGreater(self.merged(path)["t_pkey"], 10000)
            self.sql("DELETE FROM t WHERE k BETWEEN 1000000 AND 99999999")
            loads += 1
        for other in others:
            self.assertEqual((other.stderr.read(), other.wait()), (b"", 0))
            other.stderr.close()
        self.merged(path)
        self.checked()
        self.assertEqual(self.sql("SELECT count(*) FROM t WHERE k < 100000000"), "20000")

    def test_partitions(self):
        """Each partition's indexes are merged; if two partitions reject a row, the first one of the input is reported."""
        made = ("SET client_min_messages = error; DROP TABLE IF EXISTS t; CREATE TABLE t (u uuid, w text, l text, k bigint, n numeric, d int, long text, PRIMARY KEY (u, k),"
                " UNIQUE (n, k)) PARTITION BY HASH (k); CREATE TABLE t0 PARTITION OF t FOR VALUES WITH (MODULUS 2, REMAINDER 0);"
                " CREATE TABLE t1 PARTITION OF t FOR VALUES WITH (MODULUS 2, REMAINDER 1);")
        rows = fields(9000)
        path = self.cluster.file("input", "".join(lines(rows)).encode())
        self.sql(made)
        found = self.merged(path)
        self.assertTrue(all(count > 2000 for count in found.values()), found)
        check(self.cluster, "t0_pkey", "t1_pkey", "t0_n_k_key", "t1_n_k_key")
        for a, b in ((4000, 8000), (8000, 4000)):
            wrong = fields(9000)
            homes = {n: self.sql(f"SET pgsluice.copy = off; SELECT satisfies_hash_partition('t'::regclass, 2, 0, {wrong[n][3]}::bigint)") for n in range(10)}
            zero, one = (next(n for n in homes if homes[n] == side) for side in "tf")
            wrong[a], wrong[b] = list(wrong[zero]), list(wrong[one])
            for setting in ("off", "on"):
                self.sql(made)
                with self.assertRaises(Refused) as refused:
                    self.sql(f"SET pgsluice.copy = {setting}; {COPY.format(self.cluster.file('wrong', ''.join(lines(wrong)).encode()))}")
                self.assertIn("COPY t, line 4001", str(refused.exception), setting)

    def test_savepoints_and_commands_around(self):
        """With savepoints, a prepared transaction, triggers and a foreign key to the table itself, rows are stock COPY's, and indexes pass amcheck."""
        rows = lines(fields(6000))
        self.same(rows, rows=300, before="SAVEPOINT s;", after="ROLLBACK TO s;")
        self.checked()
        trigger = ("CREATE OR REPLACE FUNCTION seen() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE n int; BEGIN SET LOCAL enable_seqscan = off;"
                   " SELECT count(*) INTO n FROM t WHERE k > 1000000; RAISE 'rows %', n; END $$;"
                   "CREATE TRIGGER seen AFTER INSERT ON t FOR EACH STATEMENT EXECUTE FUNCTION seen();")
        self.assertRegex(self.same(rows, rows=300, before=trigger), "rows [1-9]")
        own = "ALTER TABLE t ADD f uuid REFERENCES t (u), ADD UNIQUE (u, f);"
        made = fields(4000)
        self.same(lines([row + [made[(n * 7) % 4000][0]] for n, row in enumerate(made)]), rows=300, more=own)
        path = self.cluster.file("input", "".join(rows).encode())
        self.sql(table(300))
        self.sql(f"SET pgsluice.copy = on; BEGIN; {COPY.format(path)}; PREPARE TRANSACTION 'p'")
        self.cluster.kill()
        self.cluster.start()
        self.sql("COMMIT PREPARED 'p'")
        self.checked()
        self.assertEqual(self.sql("SELECT count(*) FROM t"), "6300")

    def test_serializable(self):
        """SERIALIZABLE: a reader of a range conflicts with a merge into it; a key that a conflicting transaction has committed fails as with stock COPY."""
        parts = [self.cluster.file(f"part{odd}", "".join(lines(fields(9000, odd + 7, odd))).encode()) for odd in range(2)]
        reader_conflicts(self, table() + f"COPY t FROM '{parts[0]}' WITH (FORMAT csv); DELETE FROM t WHERE k % 10 > 1", "SELECT count(*) FROM t WHERE k BETWEEN 1050000 AND 1050200",
                         [COPY.format(path) for path in parts[1:]])
        rows = fields(4000)
        path = self.cluster.file("input", "".join(lines(rows)).encode())
        for setting in ("off", "on"):
            self.sql(table(2000) + "ANALYZE t")
            one = Held(self.cluster)
            one.run(f"SET pgsluice.copy = {setting}; BEGIN ISOLATION LEVEL SERIALIZABLE; {INDEXED} SELECT count(*) FROM t WHERE k = {rows[10][3]}")
            self.sql(f"BEGIN ISOLATION LEVEL SERIALIZABLE; {INDEXED} SELECT count(*) FROM t WHERE k = {rows[10][3]}; INSERT INTO t (k) VALUES ({rows[10][3]}); COMMIT")
            self.assertIn("40001", one.end(COPY.format(path))[2], setting)


class MergesLogged(WithTable, OnCluster):
    """The server is killed, or followed by a standby."""

    settings = ["wal_level = replica", "wal_keep_size = '2GB'", "checkpoint_timeout = 1h", "maintenance_work_mem = '4MB'"]

    def killed(self, chance, path, before, attempt):
        """Kills the server at a random size of the largest index."""
        size = int(self.sql("SELECT pg_relation_size('tlong') / 8192"))
        blocks = size + chance.randrange(1, 700)
        load = subprocess.Popen(self.cluster.command("-c", f"SET pgsluice.copy = on; {before} {COPY.format(path)}"), stderr=subprocess.DEVNULL)
        while load.poll() is None and int(self.sql("SELECT pg_relation_size('tlong') / 8192")) < blocks:
            if attempt % 2:
                self.sql("CHECKPOINT")
        self.cluster.kill()
        load.wait()
        self.cluster.start()

    def test_killed_in_the_middle(self):
        """Whenever the server is killed during a merge, every index passes amcheck after recovery, and takes deletes, VACUUM and another merge."""
        path = self.cluster.file("input", "".join(lines(fields(12000))).encode())
        chance = random.Random(12)
        for attempt in range(4):
            self.sql(table(5000) + "CHECKPOINT")
            self.killed(chance, path, "", attempt)
            self.assertIn(self.sql("SELECT count(*) FROM t"), ("5000", "17000"))
            self.checked()
            self.sql("DELETE FROM t WHERE k >= 1000000; VACUUM t")
            self.assertGreater(self.merged(path)["t_pkey"], 9000)
            self.checked()

    def test_a_standby_follows(self):
        """A standby without the library answers by the indexes during the load, in both directions; once it takes over, they pass amcheck and take writes."""
        self.sql(table(5000))
        path = self.cluster.file("input", "".join(lines(fields(15000))).encode())
        scans = ("SELECT count(*) FROM (SELECT u FROM t ORDER BY u) _; SELECT count(*) FROM (SELECT u FROM t ORDER BY u DESC) _;"
                 "SELECT count(*) FROM (SELECT long FROM t ORDER BY long DESC) _")
        standby = standby_follows(self, f"SET pgsluice.copy = on; {COPY.format(path)}", scans,
                                  {"\n".join(["5000"] * before + ["20000"] * (3 - before)) for before in range(4)}, (*UNIQUE, *PLAIN))
        self.checked(standby)
        with self.assertRaises(Refused):
            standby.sql("INSERT INTO t SELECT * FROM t LIMIT 1")
        standby.sql("INSERT INTO t (u, k, n) SELECT md5('s' || n)::uuid, -n, -n FROM generate_series(1, 3000) n; DELETE FROM t WHERE k % 5 = 0; VACUUM t")
        self.checked(standby)

    def test_what_is_replayed_is_what_was_done(self):
        """Replayed pages equal the primary's (wal_consistency_checking), also with dead items and a concurrent VACUUM; the indexes have the same size."""
        primary = Cluster(["wal_level = replica", "wal_consistency_checking = 'all'", "wal_keep_size = 8GB"])
        self.addCleanup(primary.remove)
        primary.sql("CREATE EXTENSION pgsluice;" + table(5000))
        standby = Cluster(copy_of=primary)
        self.addCleanup(standby.remove)
        for name, count, seed in (("input", 12000, 1), ("small", 1500, 2)):
            path = primary.file(name, "".join(lines(fields(count, seed, seed % 2))).encode())
            primary.sql("DELETE FROM t WHERE k % 3 = 0")
            primary.sql(f"{INDEXED} SELECT count(*) FROM (SELECT k FROM t ORDER BY k) _; SELECT count(*) FROM (SELECT w, l FROM t ORDER BY w, l) _")
            vacuum = subprocess.Popen(primary.command("-c", "SET vacuum_cost_delay = 1; SET vacuum_cost_limit = 400", "-c", "VACUUM t"))
            said = primary.sql(f"SET pgsluice.copy = on; {COPY.format(path)}; {MERGED}")
            self.assertRegex(said, r"t_pkey\|[1-9]")
            self.assertEqual(vacuum.wait(), 0)
        standby.follow(primary)
        self.assertEqual(standby.sql("SELECT count(*) FROM t"), primary.sql("SELECT count(*) FROM t"))
        for index in UNIQUE:
            check_size(self, primary, standby, index)


if __name__ == "__main__":
    unittest.main()
