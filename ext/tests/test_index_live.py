"""COPY into tables with rows: entries are sorted first, or merged with the old leaves if the table is locked; and what last_copy says of each index."""

import json
import random
import subprocess
import unittest

from . import cluster as clusters
from .cluster import Held, OnCluster
from .twins import LoadedTwice, check, refusal

TABLE = (
    "DROP TABLE IF EXISTS t; CREATE TABLE t (a int PRIMARY KEY, b text, c numeric, d text, e int4range);"
    "CREATE INDEX tb ON t (b DESC, a); CREATE INDEX tc ON t (c); CREATE INDEX th ON t USING hash (b);"
    "CREATE INDEX te ON t (upper(b)); CREATE INDEX td ON t (d) WHERE a % 2 = 0; CREATE INDEX ti ON t (d) INCLUDE (c);"
    "INSERT INTO t SELECT -n, 'old ' || n % 300, n / 7.0, md5(n::text) FROM generate_series(1, 20000) n;"
)
BTREES = ("t_pkey", "tb", "tc", "te", "td", "ti")
COPY = "COPY t FROM '{}' WITH (FORMAT csv)"
SCANS = ("b", "c", "d", "b, a")

EACH_KIND = (
    "DROP TABLE IF EXISTS t; CREATE TABLE t (a int PRIMARY KEY, b text, c int, r int4range);"
    "CREATE INDEX t_b ON t (b); CREATE INDEX t_c ON t (c) WHERE c > 0; CREATE INDEX t_hash ON t USING hash (b);"
    "CREATE INDEX t_upper ON t (upper(b)); ALTER TABLE t ADD CONSTRAINT t_later UNIQUE (c) DEFERRABLE;"
    "ALTER TABLE t ADD CONSTRAINT t_apart EXCLUDE USING gist (r WITH &&);"
)
HASH, PARTIAL, UPPER = "the access method is not btree", "it is partial", "it has expressions"
LATER, APART = "its constraint is deferrable", "it belongs to an exclusion constraint"
ELSE = {"t_c": ("row", PARTIAL), "t_hash": ("row", HASH), "t_upper": ("row", UPPER), "t_later": ("row", LATER),
        "t_apart": ("row", APART)}
LIVE = {"t_pkey": ("leaves", None), "t_b": ("sorted", "whole leaves are only added after its last key"), **ELSE, "t_hash": ("sorted", None)}
PRIVATE = {"t_pkey": ("build", None), "t_b": ("build", None), **ELSE}

FILLED = (
    "SET client_min_messages = error; DROP TABLE IF EXISTS t; CREATE {kind} TABLE t"
    " (a serial PRIMARY KEY, b text, c bigint UNIQUE, d numeric, pad text) WITH (autovacuum_enabled = off);"
    "CREATE INDEX tb ON t (b DESC, c); CREATE INDEX td ON t (d); CREATE INDEX th ON t USING hash (b); CREATE INDEX te ON t (upper(b));"
    "INSERT INTO t SELECT n, 'b' || n % 100, -n, n % 1000, 'p' FROM generate_series(1, 3000) n; SELECT setval('t_a_seq', 3000);"
)
# Index entries for rows that are dead, updated within their page, or gone.
DEAD = (
    "UPDATE t SET pad = 'hot' WHERE a % 7 = 0; UPDATE t SET d = 0.5 WHERE a % 11 = 0;"
    "UPDATE t SET c = c - 10000 WHERE a % 13 = 0; DELETE FROM t WHERE a % 5 = 0;"
)
COPY_MORE = "COPY t (b, c, d, pad) FROM '{}' WITH (FORMAT csv)"
LOCK = "LOCK TABLE t IN ACCESS EXCLUSIVE MODE;"


def rows(count, seed=1):
    """CSV lines: keys in no order, few values, NULLs, some long."""
    chance = random.Random(seed)
    keys = chance.sample(range(count * 3), count)
    return [
        f'{key},{chance.choice(["", "old 7", "new", "x" * chance.randrange(90)])},{chance.randrange(2000) / 8},'
        f'{chance.choice(["p", "q"]) * (900 if n % 500 == 3 else 3)}{chance.randrange(50)},\n'
        for n, key in enumerate(keys)
    ]


class Live(LoadedTwice):
    """Tables with rows and indexes in place."""

    settings = ["maintenance_work_mem = '1MB'", "max_prepared_transactions = 2"]

    def load(self, path, setting, table=TABLE, before="", after=""):
        """The COPY's error, or the answers by table scan and by each index after it."""
        return self.left_by(setting, "SET client_min_messages = error;" + table, f"{before} {COPY.format(path)}; {after}")

    def answers(self):
        """The rows of the table, and scans of the indexes in both directions."""
        asked = ["SELECT count(*), md5(string_agg(t::text, ',' ORDER BY a)) FROM t; SET enable_seqscan = off; SET enable_bitmapscan = off;"]
        for order in SCANS:
            # 2.0 and 2.00 are equal: their order is that of their TIDs.
            shown = "trim_scale(c)" if order == "c" else order
            for direction in ("", " DESC"):
                by = ", ".join(column + direction for column in order.split(", "))
                asked.append(f"SELECT md5(string_agg(v::text, ',')) FROM (SELECT ROW({shown}) v FROM t ORDER BY {by}) _;")
        return self.sql("".join(asked)).split("\n")

    def checked(self):
        """Runs amcheck on every index: it must have an entry for every row."""
        check(self.cluster, *BTREES)

    def test_all_rows_are_in_all_indexes(self):
        """After a load with more entries than fit into memory and more values than can be ranked, and after a small
        one, every index answers as after stock COPY."""
        self.same(rows(60000))
        self.checked()
        self.same(rows(5))
        self.checked()

    def test_refusals_are_those_of_stock(self):
        """Unique, deferrable, exclusion and CHECK constraints, malformed lines, and keys that are too large: error and line are stock COPY's."""
        good = rows(8000)
        twice = list(good)
        twice[5000] = good[100]
        self.assertIn("COPY t, line 5001", self.same(twice))
        self.assertIn("23505", self.same(twice[:7200] + ["x\n"]))
        self.assertIn("line 7001", self.same(good[:7000] + ["x\n"] + good[7000:]))
        deferred = TABLE + "ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t ADD CONSTRAINT u UNIQUE (a) DEFERRABLE INITIALLY DEFERRED;"
        self.assertIn('constraint "u"', self.same(twice, table=deferred))
        self.same(twice, table=deferred, after="DELETE FROM t x USING t y WHERE x.a = y.a AND x.ctid > y.ctid;")
        excluded = TABLE + "ALTER TABLE t ADD EXCLUDE USING gist (e WITH &&);"
        ranges = [line.replace(",\n", f',"[{n},{n + 1})"\n') for n, line in enumerate(good)]
        self.same(ranges, table=excluded)
        ranges[6000] = ranges[6000].replace("[6000", "[5990")
        self.assertIn("COPY t, line 6001", self.same(ranges, table=excluded))
        self.assertIn("COPY t, line", self.same(good, table=TABLE + "ALTER TABLE t ADD CHECK (c < 249.8) NOT VALID;"))
        noise = "".join(format(n * 7919 % 104729, "x") for n in range(1500))
        large = good[:3000] + [f"999999,{noise},1,d,\n"] + good[3000:]
        self.assertIn("exceeds btree version 4 maximum", self.same(large))

    def test_triggers_find_the_rows_by_the_indexes(self):
        """AFTER triggers, and a foreign key that refers to the table itself, find the new rows by the indexes, as with stock COPY."""
        table = TABLE + (
            "CREATE OR REPLACE FUNCTION seen() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE n int; BEGIN"
            " SET LOCAL enable_seqscan = off; SELECT count(*) INTO n FROM t WHERE c = 17.5 AND a >= 0;"
            " RAISE 'rows %', n; END $$;"
            "CREATE TRIGGER seen AFTER INSERT ON t FOR EACH STATEMENT EXECUTE FUNCTION seen();"
        )
        self.assertRegex(self.same(rows(9000), table=table), r"rows [1-9]")
        own = TABLE + "ALTER TABLE t ADD UNIQUE (b, a); ALTER TABLE t ADD f int REFERENCES t;"
        self.same([line.replace(",\n", f",,{line.split(',', 1)[0]}\n") for line in rows(5000)], table=own)

    def test_rolled_back_and_prepared(self):
        """After ROLLBACK TO a savepoint, deletes in the same transaction, or a prepared transaction that outlives a
        kill, rows are stock COPY's and indexes pass amcheck."""
        self.same(rows(6000), before="SAVEPOINT s;", after="ROLLBACK TO s;")
        self.checked()
        self.same(rows(6000), after="SAVEPOINT s; DELETE FROM t WHERE a % 3 = 0;")
        self.checked()
        path = self.cluster.file("input", "".join(rows(6000)).encode())
        self.sql("SET client_min_messages = error;" + TABLE)
        self.sql(f"SET pgsluice.copy = on; BEGIN; {COPY.format(path)}; PREPARE TRANSACTION 'p'")
        self.cluster.kill()
        self.cluster.start()
        self.sql("COMMIT PREPARED 'p'")
        self.checked()
        self.assertEqual(self.sql("SELECT count(*) FROM t"), "26000")

    def test_then_inserts_deletes_and_vacuum(self):
        """After a load, deletes, VACUUM, inserts and updates leave indexes that pass amcheck."""
        self.same(rows(20000))
        self.sql("DELETE FROM t WHERE a % 3 = 0; VACUUM t; INSERT INTO t SELECT 1000000 + n, 'again', n % 50, 'z' FROM generate_series(1, 5000) n")
        for n in range(4):
            self.sql(f"UPDATE t SET e = int4range({n}, 100) WHERE a > 0; UPDATE t SET c = c + 1 WHERE a % 7 = {n}")
        self.checked()

    def test_beside_readers_and_writers(self):
        """While others insert and read by the same indexes, a load succeeds: all rows are there, and indexes pass amcheck."""
        path = self.cluster.file("input", "".join(rows(40000)).encode())
        self.sql("SET client_min_messages = error;" + TABLE)
        writer = subprocess.Popen(self.cluster.command("-f", "-"), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        writer.stdin.write("".join(
            f"INSERT INTO t VALUES ({500000 + n}, 'old {n % 300}', {n % 2000} / 8.0, 'q{n % 50}');"
            f"SELECT count(*) FROM t WHERE b = 'old {n % 300}';\n" for n in range(3000)).encode())
        writer.stdin.close()
        self.sql(f"SET pgsluice.copy = on; {COPY.format(path)}")
        self.assertEqual(writer.wait(), 0)
        self.checked()
        self.assertEqual(self.sql("SELECT count(*) FROM t"), "63000")


def unordered(count=6500, seed=1):
    """Lines whose unique keys are in no order."""
    chance = random.Random(seed)
    return [f"b{key % 300},{key},{key % 3000},{'x' * 400}\n" for key in chance.sample(range(count * 3), count)]


class Merged(LoadedTwice):
    """Compares a load by stock COPY with one by the extension."""

    maxDiff = None

    def load(self, path, setting, table=FILLED.format(kind="") + DEAD, before="", after="", lock=LOCK):
        """The COPY's error, or the answers after it."""
        return self.left_by(setting, table, f"{lock} {before} {COPY_MORE.format(path)}; {after}")

    def answers(self, cluster=None):
        """The table, and index-only scans in both directions."""
        said = ["SELECT count(*), md5(string_agg(t::text, ',' ORDER BY a)) FROM t;"
                "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off;"]
        for order in ("a", "c", "b DESC, c", "d", "c DESC", "b, c DESC"):
            said.append("SELECT count(*), md5(string_agg(v::text, ','))"
                        f" FROM (SELECT ROW({order.replace(' DESC', '')}) v FROM t ORDER BY {order}) _;")
        return (cluster or self.cluster).sql("".join(said)).split("\n")

    def checked(self):
        """Runs amcheck on every B-tree: it must have an entry for every row."""
        if clusters.has("amcheck"):
            self.sql("SET client_min_messages = error; CREATE EXTENSION IF NOT EXISTS amcheck;"
                     "SELECT bt_index_parent_check(indexrelid, true, true) FROM pg_index JOIN pg_class c ON c.oid = indexrelid"
                     " WHERE indrelid = 't'::regclass AND relam = 403")

    def merged(self, load, table=FILLED.format(kind="")):
        """Loads a new table; returns how the last index was built, and which indexes were rewritten, by merge or build."""
        self.sql(table)
        said = self.sql(f"SET pgsluice.copy = on; {load}; SELECT scan FROM pgsluice.last_index_build;"
                        "SELECT i ->> 'index', i ->> 'way' FROM pgsluice.last_copy, jsonb_array_elements(indexes) i"
                        " WHERE i ->> 'way' IN ('merge', 'build') AND (i -> 'rows' ->> (i ->> 'way'))::int > 0")
        self.checked()
        scan, *ways = said.split("\n") if said else [""]
        return scan, dict(way.split("|") for way in ways)

    def test_equal_to_a_stock_load(self):
        """Old and new entries are merged, also those of dead rows: all indexes answer as after stock COPY."""
        self.same(unordered())
        self.checked()

    def test_rows_of_all_widths(self):
        """Short rows that filled free space before longer ones have their entries already, and get no second ones: each index has every row once."""
        chance = random.Random(7)
        path = self.cluster.file("input", "".join(line.replace("x" * 400, "x" * chance.choice((1, 300, 1500))) for line in unordered()).encode())
        asked = COPY_MORE.format(path).replace("csv)", "csv, lock 'exclusive') WHERE c >= 0")
        for bare in ("", "DROP INDEX te, th;"):
            self.assertEqual(self.merged(asked, FILLED.format(kind="") + bare)[1], dict.fromkeys(("t_c_key", "t_pkey", "tb", "td"), "merge"))
            self.assertEqual({one.split("|")[0] for one in self.answers()}, {"9500"})

    def test_which_are_rewritten(self):
        """A large load into a locked table rewrites indexes; one with ascending keys is appended to, unless another unique
        index waits. Small loads, and unlogged tables with old rows, rewrite none."""
        path = self.cluster.file("input", "".join(unordered()).encode())
        asked = COPY_MORE.format(path).replace("csv)", "csv, lock 'exclusive')")
        rewritten = dict.fromkeys(("t_c_key", "t_pkey", "tb", "td"), "merge")
        said, merged = self.merged(f"SET maintenance_work_mem = '1MB'; {asked}")
        self.assertEqual((said, merged), ("merged", rewritten))
        # New files of an unlogged table are a risk (ext/index/deferred.c), which has been taken already if the table itself is new.
        self.assertEqual(self.merged(asked, FILLED.format(kind="UNLOGGED"))[1], {})
        again = "BEGIN; TRUNCATE t; INSERT INTO t (b, c, d, pad) SELECT 'b', -n, n, 'p' FROM generate_series(1, 3000) n;"
        self.assertEqual(self.merged(f"{again} {COPY_MORE.format(path)}; COMMIT", FILLED.format(kind="UNLOGGED"))[1], rewritten)
        self.assertEqual(self.merged(asked, FILLED.format(kind="") + "ALTER TABLE t DROP CONSTRAINT t_c_key;"
                                     "CREATE INDEX t_c_key ON t USING hash (c);")[1],
                         {"tb": "merge", "td": "merge"})
        self.assertEqual(self.merged(asked, FILLED.format(kind="") + DEAD)[1]["t_c_key"], "build")
        self.assertEqual(self.merged(COPY_MORE.format(path))[1], {})
        self.assertEqual(self.merged(asked, FILLED.format(kind="") + "INSERT INTO t (c, pad) SELECT -n - 50000, repeat('p', 400) FROM generate_series(1, 60000) n;")[1], {})

    def test_a_key_that_is_there_twice(self):
        """A duplicate of a key in the table or earlier in the load is stock COPY's error with its line; keys of dead rows are free."""
        lines = unordered()
        late = lines[6300].split(",")[1]
        for at, key in ((6200, "-2001"), (6200, "-1"), (6400, lines[3].split(",")[1]), (6400, late)):
            self.assertIn("23505", str(self.same(lines[:at] + [f"b,{key},1,p\n"] + lines[at:])), key)
        self.same(lines[:6200] + ["b,-2000,1,p\n", "b,-13,1,p\n"] + lines[6200:])
        self.checked()

    def test_serializable(self):
        """SERIALIZABLE: a transaction that has read a range of the index, and ended before the table was locked, still conflicts with the load: no write skew."""
        path = self.cluster.file("odd", "".join(f"{2 * n + 1},{'x' * 440}\n" for n in range(7000)).encode())
        for setting, count, options in (("off", 6000, ""), ("on", 6000, ""), ("on", 0, ", on_duplicate 'skip'")):
            self.sql("DROP TABLE IF EXISTS s, other; CREATE TABLE other (v int); INSERT INTO other VALUES (1);"
                     "CREATE TABLE s (k int PRIMARY KEY, pad text) WITH (autovacuum_enabled = off);"
                     f"INSERT INTO s SELECT 2 * n FROM generate_series(1, {count}) n; ANALYZE s")
            load, reader = Held(self.cluster), Held(self.cluster)
            load.run(f"SET pgsluice.copy = {setting}; BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT sum(v) FROM other")
            # The load adds rows in this range after the index has stopped getting entries.
            reader.run("SET enable_seqscan = off; SET enable_bitmapscan = off; BEGIN ISOLATION LEVEL SERIALIZABLE;"
                       "SELECT count(*) FROM s WHERE k BETWEEN 11990 AND 12000; INSERT INTO other VALUES (2); COMMIT")
            reader.end()
            said = load.end(f"LOCK TABLE s; COPY s FROM '{path}' WITH (FORMAT csv{options}); COMMIT")[2]
            self.assertIn("40001", said, (setting, options))

    def test_rolled_back(self):
        """A rollback, also to a savepoint, restores the old files, and indexes pass amcheck."""
        self.same(unordered(), before="SAVEPOINT s;",
                  after="ROLLBACK TO s; INSERT INTO t (b, c) SELECT 'i', 100000 + n FROM generate_series(1, 50) n;")
        self.checked()
        files = "SELECT relname, pg_relation_filenode(oid) FROM pg_class WHERE relname ~ '^t[bcd_]' ORDER BY 1"
        before = self.sql(files)
        self.sql(f"SET pgsluice.copy = on; BEGIN; {LOCK} {COPY_MORE.format(self.cluster.home / 'input')}; ROLLBACK")
        self.assertEqual(before, self.sql(files))
        self.checked()

    def test_what_the_load_runs(self):
        """A cursor on an index, functions of a CHECK and of a domain that insert into the table, and an earlier COPY
        in the transaction: results are stock COPY's."""
        lines = unordered()
        self.same(lines, after="CLOSE k;", before="SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off;"
                  "DECLARE k CURSOR FOR SELECT c FROM t WHERE c > -100000 ORDER BY c; FETCH k;")
        self.checked()
        self.same(lines, before=(
            "CREATE OR REPLACE FUNCTION adds(x bigint) RETURNS bool LANGUAGE plpgsql AS"
            f" $$ BEGIN IF x = {lines[6200].split(',')[1]} THEN INSERT INTO t (a, b, c) VALUES (-5, 'f', 99999999); END IF; RETURN true; END $$;"
            "ALTER TABLE t ADD CHECK (adds(c));"))
        self.checked()
        marked = lines[:6200] + [lines[6200].replace("x" * 400, "now")] + lines[6201:]
        self.same(marked, before=(
            "DROP DOMAIN IF EXISTS adding; CREATE OR REPLACE FUNCTION adds(x text) RETURNS bool LANGUAGE plpgsql AS"
            " $$ BEGIN IF x = 'now' THEN INSERT INTO t (a, b, c) VALUES (-5, 'f', 99999999); END IF; RETURN true; END $$;"
            "CREATE DOMAIN adding AS text CHECK (adds(VALUE)); ALTER TABLE t ALTER pad TYPE adding;"))
        self.checked()
        first = self.cluster.file("first", "".join(unordered(500, 7)).replace("b", "z").encode())
        self.same(lines, lock="", before=f"TRUNCATE t; COPY t (b, a, d, pad) FROM '{first}' WITH (FORMAT csv);")
        self.checked()


class Crowded(LoadedTwice):
    """An index whose memory holds the order of 256 values (Dictionary::grow): every 257th row of the load goes into it by itself, after the rows that wait."""

    settings = ["pgsluice.live_index_memory = '100kB'"]
    TABLE = ("SET client_min_messages = error; DROP TABLE IF EXISTS t; CREATE TABLE t (a int, n numeric); CREATE UNIQUE INDEX tn ON t (n); CREATE INDEX ta ON t (a);"
             "INSERT INTO t SELECT -k, -k FROM generate_series(1, 500) k")

    def load(self, path, setting):
        """The COPY's error, or the answers by table scan and by the index after it."""
        return self.left_by(setting, self.TABLE, f"{COPY.format(path)};")

    def answers(self):
        """The rows of the table, and a scan of the index."""
        return self.sql("SELECT count(*), md5(string_agg(t::text, ',' ORDER BY a)) FROM t; SET enable_seqscan = off; SET enable_bitmapscan = off;"
                        "SET enable_sort = off; SELECT md5(string_agg(n::text, ',')) FROM (SELECT n FROM t ORDER BY n) _")

    @staticmethod
    def rows(count=8000):
        """Pairs of fields; the second ones are in no order."""
        return [[n, f"{n * 7919 % 100003}.25"] for n in range(count)]

    def test_one_row_of_many(self):
        """All rows are in the index, those that had no room for their values as well."""
        lines = [f"{a},{n}\n" for a, n in self.rows()]
        self.same(lines)
        check(self.cluster, "tn")
        self.sql(self.TABLE)
        said = json.loads(self.sql(f"SET pgsluice.copy = on; {COPY.format(self.cluster.home / 'input')}; SELECT indexes FROM pgsluice.last_copy"))
        alone = {index["index"]: index["rows"].get("row", 0) for index in said}
        self.assertGreater(alone["tn"], alone["ta"] + 20)
        check(self.cluster, "tn")

    def test_keys_that_are_there(self):
        """If the row without room, or one beside it, has a key of the table, of an earlier row or of the row before it, the error and its line are stock COPY's."""
        for line in range(20 * 257 - 1, 20 * 257 + 2):
            for key in ("-7", self.rows()[100][1], self.rows()[line - 2][1]):
                rows = self.rows()
                rows[line - 1][1] = f"{key}0" if "." in key else key
                rows[line + 1][1] = "-8"
                said = self.same([f"{a},{n}\n" for a, n in rows])
                self.assertIn("23505", said)
                self.assertIn(f"COPY t, line {line}\n", f"{said}\n")


def ascending(count, first=1):
    """CSV whose keys ascend."""
    return "".join(f"{n},x{n % 7},{n},\n" for n in range(first, first + count))


class Ways(OnCluster):
    """Tables with an index of each kind."""

    def ways(self, is_private, table="t"):
        """What index_ways says of the table: for each index, the method, and why not a faster one."""
        said = self.sql(f"SELECT json_agg(w) FROM pgsluice.index_ways('{table}', {is_private}) w")
        return {way["index"]: (way["way"], way["because"]) for way in json.loads(said)}

    def taken(self, text, before="", after="", options="", table="t"):
        """What last_copy says after a COPY: for each index, the rows by method, and why not a faster one."""
        path = self.cluster.file("input", text.encode())
        said = self.sql(f"SET pgsluice.copy = on; {before} COPY {table} FROM '{path}' WITH (FORMAT csv{options});"
                        f"{after} SELECT indexes FROM pgsluice.last_copy")
        indexes = json.loads(said)
        for index in indexes:
            self.assertEqual(set(index), {"index", "way", "rows", "because"})
        return {index["index"]: index for index in indexes}

    def test_the_rule_is_what_is_done(self):
        """For a live and a private table, a COPY uses the methods that index_ways gives, and all rows are counted."""
        self.sql(EACH_KIND)
        self.assertEqual(self.ways(False), LIVE)
        self.assertEqual(self.ways(True), PRIVATE)
        for before, after, planned in (("", "", LIVE), ("BEGIN; TRUNCATE t;", "COMMIT;", PRIVATE)):
            taken = self.taken(ascending(60000), before, after)
            self.assertEqual({name: index["way"] for name, index in taken.items()},
                             {name: way for name, (way, _) in planned.items()})
            for name, index in taken.items():
                self.assertEqual(sum(index["rows"].values()), 60000, name)
                way, because = planned[name]
                self.assertEqual(index["because"] if way != "leaves" else None, because)
                if way not in ("leaves", "sorted"):
                    self.assertEqual((index["rows"], index["because"]), ({way: 60000}, because))
            self.sql("TRUNCATE t")
        taken = self.taken(ascending(60000))
        self.assertGreater(taken["t_pkey"]["rows"]["leaves"], 58000)
        # All keys come after those of an empty index; then only those of the last key do.
        self.assertGreater(taken["t_b"]["rows"]["leaves"], 58000)
        taken = self.taken(ascending(60000, 60001))["t_b"]["rows"]
        self.assertEqual(sum(taken.values()), 60000)
        self.assertTrue(8000 < taken["leaves"] < 8600 and taken["leaf_merge"] > 51000, taken)

    def test_the_data_may_want_another_way(self):
        """If keys are not above the index's, are NULL, or there are too few rows, last_copy gives the reason, and counts the rows of each method."""
        self.sql(EACH_KIND)
        self.sql("CREATE UNIQUE INDEX t_bc ON t (b, c)")
        self.taken(ascending(5000, 100000))
        low = self.taken(ascending(5000))["t_pkey"]
        self.assertEqual((low["rows"], low["because"]), ({"leaf_merge": 5000}, "some rows' keys are not above the index's"))
        nulls = self.taken("".join(f"{n},,,\n" for n in range(200000, 203000)))
        self.assertEqual(nulls["t_bc"]["because"], "some rows' keys are NULL or long")
        self.assertEqual(set(nulls["t_bc"]["rows"]) - {"leaf_merge", "sorted"}, set())
        self.assertEqual(sum(nulls["t_bc"]["rows"].values()), 3000)
        for count, before, why in ((400, "", "the load is small"), (400, "BEGIN; TRUNCATE t;", "the table is small")):
            few = self.taken(ascending(count, 300000), before, "ROLLBACK;" if before else "")
            self.assertEqual({(index["way"], index["because"]) for index in few.values()}, {("row", why)})
            self.assertEqual({str(index["rows"]) for index in few.values()}, {str({"row": count})})

    def test_wide_rows(self):
        """Entries of wide rows wait, if these are not wide themselves: an index of four columns is merged whatever else is in the rows, and errors are stock COPY's."""
        self.sql("DROP TABLE IF EXISTS t; CREATE TABLE t (a int, b text COLLATE \"C\", c int, d int, pad text); CREATE UNIQUE INDEX t_bcda ON t (b, c, d, a); CREATE INDEX t_dc ON t (d, c)")
        key = [("k" * (700 if n % 100 == 7 else 3)) + str(n * 7919 % 10007) for n in range(8000)]
        lines = [f"{n},{key[n]},{n % 17},{n % 101},{'p' * (500 + n % 900 + (n % 10 == 0) * 3000)}\n" for n in range(8000)]
        taken = self.taken("".join(lines), options=", workers 0")
        for index in ("t_bcda", "t_dc"):
            self.assertLess(taken[index]["rows"].get("row", 0), 2500, taken)
            check(self.cluster, index)
        for earlier, line in ((4001, 6001), (4007, 6101), (4010, 6101)):
            path = self.cluster.file("input", "".join([*lines[:line - 1], lines[earlier], *lines[line - 1:], "x\n"]).encode())
            errors = []
            for setting in ("off", "on"):
                self.sql("TRUNCATE t")
                errors.append(refusal(self.cluster, f"SET pgsluice.copy = {setting}; {COPY.format(path)}"))
            self.assertEqual(*errors)
            self.assertIn(f"COPY t, line {line}", errors[0])

    def test_loads_and_tables_of_other_kinds(self):
        """What last_copy says of indexes for on_duplicate, partitions, stock COPY, a table without indexes, and a COPY that failed."""
        self.sql("DROP TABLE IF EXISTS t; CREATE TABLE t (a int PRIMARY KEY, b text, c int, r int4range)")
        skipped = self.taken(ascending(3000), options=", on_duplicate 'skip'")
        self.assertEqual(skipped["t_pkey"]["because"], "rows may be rejected, or be duplicates")
        self.assertEqual(skipped["t_pkey"]["rows"], {"row": 3000})
        self.sql("DROP TABLE IF EXISTS p, bare; CREATE TABLE bare (a int, b text, c int, r int4range);"
                 "CREATE TABLE p (LIKE bare) PARTITION BY RANGE (a); CREATE UNIQUE INDEX p_a ON p (a);"
                 "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (1500); CREATE TABLE p2 PARTITION OF p DEFAULT")
        self.assertEqual(self.ways(False, "p"), {"p_a": ("leaves", None)})
        self.assertEqual(self.taken(ascending(900), table="p"),
                         {"p_a": {"index": "p_a", "way": "row", "rows": {"row": 900}, "because": "no partition got many rows"}})
        self.assertGreater(self.taken(ascending(3000, 901), table="p")["p_a"]["rows"]["leaves"], 2000)
        self.assertEqual(self.taken(ascending(3000), table="bare"), {})
        self.assertEqual(self.sql("SELECT count(*) FROM pgsluice.index_ways('bare', false)"), "0")
        path = self.cluster.file("input", ascending(3000, 10000).encode())
        self.sql("CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END';"
                 "CREATE TRIGGER no BEFORE INSERT ON bare FOR EACH ROW EXECUTE FUNCTION no()")
        said = self.sql(f"SET pgsluice.copy = on; COPY p FROM '{path}' WITH (FORMAT csv); COPY bare FROM '{path}' WITH (FORMAT csv);"
                        "SELECT route, indexes IS NULL FROM pgsluice.last_copy")
        self.assertEqual(said, "stock|t")
        said, errors = self.cluster.session(
            f"SET pgsluice.copy = on; COPY t FROM '{path}' WITH (FORMAT csv); COPY t FROM '{path}' WITH (FORMAT csv);"
            "SELECT indexes FROM pgsluice.last_copy")
        self.assertIn("23505", errors)
        self.assertEqual(said, "")


if __name__ == "__main__":
    unittest.main()
