"""COPY into live tables: the entries of many rows are merged into GIN indexes."""

import os
import random
import subprocess

from . import cluster as clusters
from .cluster import MAJOR, Cluster, OnCluster
from .twins import LoadedTwice, reader_conflicts

# Each index with the conditions that scans of it answer, for numbers p.
BY_NUMBER = ("n @> ARRAY[p]", "n && ARRAY[p, p + 7]", "n <@ ARRAY[p, p + 1, p + 2]", "n @> '{}'")
BY_TAG = ("tags @> ARRAY['tag' || p]", "tags <@ ARRAY['tag' || p, 'long']")
BY_DOCUMENT = ("j @> jsonb_build_object('k', p)", "j @> jsonb_build_object('deep', jsonb_build_array(p))")
INDEXES = {
    "(n)": BY_NUMBER,
    "(n) WITH (fastupdate = off)": BY_NUMBER,
    "(n) WHERE id % 2 = 0": tuple(f"id % 2 = 0 AND {one}" for one in BY_NUMBER),
    "(tags)": BY_TAG,
    "(j jsonb_path_ops)": BY_DOCUMENT,
    "(j)": (*BY_DOCUMENT, "j ? ('only' || p)", "j ?| ARRAY['k', 'x' || p]"),
    "(to_tsvector('simple', w))": ("to_tsvector('simple', w) @@ to_tsquery('simple', 'w' || p)", "to_tsvector('simple', w) @@ to_tsquery('simple', 'w' || p || ':*')"),
    "(n, tags, j jsonb_path_ops)": (*BY_NUMBER, *BY_TAG, *BY_DOCUMENT, "n @> ARRAY[p] AND tags @> ARRAY['tag' || p]"),
    "(w gin_trgm_ops)": ("w LIKE '%w' || p || '%'", "w LIKE '%' || (p * 7919)::text || ' %'"),
}
TABLE = (
    "SET client_min_messages = error; DROP TABLE IF EXISTS t; CREATE {kind} TABLE t (id int, n int[], tags text[], j jsonb, w text) WITH (autovacuum_enabled = off);"
    "CREATE INDEX i ON t USING gin {index}; {also}"
    "INSERT INTO t SELECT -g, ARRAY[g % 50, -g], ARRAY['tag' || g % 90], jsonb_build_object('k', g % 70, 'deep', ARRAY[g % 33]), 'w' || g % 60 || ' ' || g"
    " FROM generate_series(1, {rows}) g;"
)
COPY = "COPY t FROM '{}' WITH (FORMAT csv)"
MERGED = "SELECT coalesce(i->'rows'->>'sorted', '0') FROM pgsluice.last_copy, jsonb_array_elements(indexes) i WHERE i->>'index' = 'i'"
SOAK = bool(os.environ.get("PGSLUICE_SOAK"))
BY_INDEX, BY_TABLE = "SET enable_seqscan = off;", "SET enable_bitmapscan = off; SET enable_indexscan = off;"


def row(chance, line):
    """A CSV line: NULLs, empty arrays, arrays with NULLs and equal values, and keys that all rows have, many have, or only one has."""
    n = chance.choice(["", "{}", "{NULL}", "{NULL,3,NULL,3}", "{%d,%d,%d}" % (chance.randrange(60), chance.randrange(60), line), "{5,-5,5}"])
    tags = chance.choice(["", "{}", "{long}", "{tag%d,tag%d}" % (chance.randrange(100), chance.randrange(100)), "{one%d}" % line])
    j = chance.choice(["", "{}", '{""k"":%d,""all"":true}' % chance.randrange(80), '{""deep"":[%d,%d],""k"":null}' % (chance.randrange(40), line), '{""only%d"":""x""}' % line])
    return f'{line},"{n}","{tags}","{j}",w{chance.randrange(70)} {line * 7919} Ärger\n'.replace('""""', "").replace('"",', ",")


def rows(count, seed=1):
    """`count` lines."""
    chance = random.Random(seed)
    return [row(chance, line) for line in range(1, count + 1)]


def indexes():
    """The indexes that can be created here."""
    return [index for index in INDEXES if "trgm" not in index or clusters.has("pg_trgm")]


class WithTable:
    """The table, its checks and its queries."""

    def table(self, index="(n)", kind="", have=5000, also="", cluster=None):
        """Creates the table."""
        (cluster or self.cluster).sql(("CREATE EXTENSION IF NOT EXISTS pg_trgm;" if "trgm" in index else "") + TABLE.format(kind=kind, index=index, rows=have, also=also))

    def found(self, index="(n)", way=BY_INDEX, cluster=None):
        """For each condition, how many rows it finds, and which."""
        asked = "; ".join(f"SELECT string_agg((SELECT count(*) || ' ' || coalesce(sum(id), 0) FROM t WHERE {condition}), ',') FROM generate_series(0, {4 if 'trgm' in index else 14}) p" for condition in INDEXES[index])
        return (cluster or self.cluster).sql(f"{way} {asked}")

    def checked(self, index="(n)", cluster=None):
        """The index finds what a table scan finds, and passes amcheck if that supports GIN; returns what is found."""
        cluster = cluster or self.cluster
        found = self.found(index, BY_INDEX, cluster)
        self.assertEqual(found, self.found(index, BY_TABLE, cluster), index)
        if MAJOR >= 18 and clusters.has("amcheck"):
            if cluster.sql("SELECT pg_is_in_recovery()") == "f":
                cluster.sql("CREATE EXTENSION IF NOT EXISTS amcheck")
            cluster.sql("SELECT gin_index_check('i')")
        return found

    def merged(self, path, before="", cluster=None):
        """Loads the file; returns how many rows were merged."""
        return int((cluster or self.cluster).sql(f"SET pgsluice.copy = on; {before} {COPY.format(path)}; {MERGED}"))


class Gin(WithTable, LoadedTwice):
    """Compares a load by stock COPY with one by the extension."""

    settings = ["max_prepared_transactions = 2", "pgsluice.debug_force_routes = on"]

    def load(self, path, setting, index="(n)", kind="", before="", after="", also=""):
        """What is found after the COPY, or its error."""
        self.table(index, kind, also=also)
        self.index = index
        return self.left_by(setting, "", f"{before} {COPY.format(path)}; {after}")

    def answers(self):
        """What is found by the index of the last load."""
        return self.checked(self.index)

    def test_equal_to_stock(self):
        """For each kind of key, with ample or little memory, the index finds what it finds after stock COPY; also after VACUUM and another load."""
        path = self.cluster.file("input", "".join(rows(5000)).encode())
        for index in indexes():
            for memory in ("64MB", "1MB") if index in ("(n)", "(j)", "(n, tags, j jsonb_path_ops)") else ("1MB",):
                found = []
                for setting in ("off", "on"):
                    self.table(index)
                    self.sql(f"SET pgsluice.copy = {setting}; SET maintenance_work_mem = '{memory}'; {COPY.format(path)}")
                    found.append(self.checked(index))
                self.assertEqual(*found, index)
            self.assertEqual(self.merged(path, "SET maintenance_work_mem = '2MB';"), 5000, index)
            self.checked(index)
            self.sql("DELETE FROM t WHERE id % 3 = 0; VACUUM t; VACUUM t")
            self.assertEqual(self.merged(path), 5000, index)
            self.checked(index)
            self.sql("INSERT INTO t SELECT g, ARRAY[g % 50, g], '{new}', '{\"k\": 3}', 'w3' FROM generate_series(1, 3000) g; VACUUM t")
            self.checked(index)

    def test_values_that_come_again(self):
        """Short values with numeric keys, many of them equal, then none, then many, in one or two columns: the index finds what it finds after stock COPY."""
        few = lambda line: line % 37 if line % 9000 < 3000 or line % 9000 >= 6000 else line
        array = lambda n: random.Random(n).choice(['{%d}' % n, '{%d,%d,%d}' % (n, -n, n), '{}', '{%d,NULL}' % n, "{" + ",".join(map(str, range(n % 90))) + "}"])
        lines = [f'{line},"{array(few(line))}","{array(few(line + 1))}",w{few(line)} {"x" * (few(line) % 80)}\n' for line in range(1, 18001)]
        path = self.cluster.file("input", "".join(lines).encode())
        conditions = ["n @> ARRAY[p]", "m @> ARRAY[p]", "n <@ ARRAY[p, -p]", "n @> ARRAY[p] AND m @> ARRAY[p + 1]"]
        kinds = ["n", "n, m"]
        if clusters.has("pg_trgm"):
            kinds.append("m, w gin_trgm_ops")
            conditions.append("w LIKE '%w' || p || ' %'")
        asked = "; ".join(f"SELECT string_agg((SELECT count(*) || ' ' || coalesce(sum(id), 0) FROM t WHERE {condition}), ',') FROM generate_series(0, 40) p" for condition in conditions)
        for kind in kinds:
            found = []
            for setting in ("off", "on"):
                self.sql("SET client_min_messages = error; DROP TABLE IF EXISTS t; CREATE TABLE t (id int, n int[], m int[], w text);" + ("CREATE EXTENSION IF NOT EXISTS pg_trgm;" if "trgm" in kind else "") + f"CREATE INDEX i ON t USING gin ({kind}) WITH (fastupdate = off)")
                self.sql(f"SET pgsluice.copy = {setting}; SET maintenance_work_mem = '64MB'; {COPY.format(path)}")
                found += [self.sql(f"{way} {asked}") for way in (BY_INDEX, BY_TABLE)]
            self.assertEqual([found[0]] * 4, found, kind)

    def test_into_an_empty_index(self):
        """Merges fill an empty index, whose root page soon overflows, then add many rows to each key: the index finds all rows."""
        for index in ("(n)", "(tags)"):
            path = self.cluster.file("input", "".join(rows(20000)).encode())
            self.table(index, have=0)
            self.assertEqual(self.merged(path), 20000)
            self.checked(index)
            for _ in range(2):
                self.assertEqual(self.merged(path, "SET maintenance_work_mem = '1MB';"), 20000)
            self.checked(index)

    def test_rows_in_gaps(self):
        """Rows that fill gaps, so that their TIDs are in no order, are merged, and the index finds them."""
        path = self.cluster.file("input", "".join(rows(19000)).encode())
        for index in ("(n)", "(tags)"):
            self.table(index, have=20000)
            self.sql("DELETE FROM t WHERE id % 2 = 0; VACUUM t; VACUUM t")
            self.assertEqual(self.merged(path, "SET pgsluice.debug_force_routes = off;"), 9000)
            self.checked(index)

    def test_refusals_are_those_of_stock(self):
        """Keys that are too large, failing functions and duplicate keys: error and line are stock COPY's; for one row, the index created first decides."""
        good = rows(5000)
        noise = "".join(format(n * 7919 % 104729, "x") for n in range(1500))
        large = good[:3000] + ['9999,,"{%s}",,w\n' % noise] + good[3000:]
        for index in ("(tags)", "(tags) WITH (fastupdate = off)", "(n, tags)"):
            INDEXES.setdefault(index, ())
            self.assertIn("COPY t, line 3001", self.same(large, index=index))
        failing = "ALTER TABLE t ALTER id DROP NOT NULL; CREATE INDEX f ON t USING gin ((ARRAY[1 / (id - 4000)])); {}"
        unique = "CREATE UNIQUE INDEX u ON t (id, (w || 'x'));"
        self.assertIn("line 4000", self.same(good, also=failing.format("")))
        self.assertIn("line 4000", self.same(good, also="CREATE INDEX f ON t USING gin (n) WHERE 1 / (id - 4000) < 1;"))
        twice = list(good)
        twice.insert(3990, good[3999])
        for also in (failing.format(unique), unique + failing.format("")):
            self.same(twice, also=also)
            self.same(twice[:3990] + twice[3991:] + [good[10]], also=also)
        # Both indexes reject line 4000: the one created first reports the error.
        both = good[:3998] + ["3999,{1},,,same\n", "4000,{1},,,same\n"]
        clash = "CREATE UNIQUE INDEX u ON t ((w || left('x', 3)));"
        self.assertIn("23505", self.same(both, also=clash + failing.format("")))
        self.assertIn("22012", self.same(both, also=failing.format(clash)))

    def test_kinds_of_tables(self):
        """Unlogged, temporary and partitioned tables, savepoints, a prepared transaction that outlives a kill, and
        triggers that read by the index: results are stock COPY's."""
        lines = rows(6000)
        path = self.cluster.file("input", "".join(lines).encode())
        self.same(lines, kind="UNLOGGED")
        self.same(lines, before="SAVEPOINT s;", after="ROLLBACK TO s;")
        self.same(lines, index="(tags)", before="SAVEPOINT s;", after="ROLLBACK TO s; INSERT INTO t VALUES (1, '{1}', '{tag3}');")
        self.sql("VACUUM t")
        self.checked("(tags)")
        self.table()
        self.sql(f"SET pgsluice.copy = on; BEGIN; {COPY.format(path)}; PREPARE TRANSACTION 'p'")
        self.cluster.kill()
        self.cluster.start()
        self.sql("COMMIT PREPARED 'p'")
        self.checked()
        temporary = TABLE.format(kind="TEMP", index="(n)", rows=2000, also="") + f"SET pgsluice.copy = on; {COPY.format(path)}; {MERGED}; {BY_INDEX} SELECT count(*) FROM t WHERE n @> '{{5}}'"
        self.assertEqual(self.sql(temporary).splitlines()[0], "6000")
        parts = ("DROP TABLE IF EXISTS t; CREATE TABLE t (id int, n int[], tags text[], j jsonb, w text) PARTITION BY RANGE (id);"
                 "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (MINVALUE) TO (3000); CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (3000) TO (MAXVALUE); CREATE INDEX i ON t USING gin (n)")
        self.sql(parts)
        self.assertEqual(self.merged(path), 6000)
        self.assertEqual(self.found(way=BY_INDEX), self.found(way=BY_TABLE))
        seen = ("CREATE OR REPLACE FUNCTION seen() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE c int; BEGIN"
                " SET LOCAL enable_seqscan = off; SELECT count(*) INTO c FROM t WHERE n @> ARRAY[-5] AND id > 0; RAISE 'rows %', c; END $$;"
                "CREATE TRIGGER seen AFTER INSERT ON t FOR EACH {} EXECUTE FUNCTION seen();")
        for each in ("ROW", "STATEMENT"):
            self.assertRegex(self.same(lines, also="") and self.same(lines, before=seen.format(each)), r"rows [1-9]")

    def test_the_way_is_said(self):
        """Entries go in row by row with allow_gin_merge off, or if a user-defined function compares keys; last_copy gives the reason."""
        path = self.cluster.file("input", "".join(rows(5000)).encode())
        said = "SELECT i->>'way', i->'rows'->>'sorted', i->>'because' FROM pgsluice.last_copy, jsonb_array_elements(indexes) i"
        self.table()
        self.assertEqual(self.sql(f"SET pgsluice.copy = on; {COPY.format(path)}; {said}"), "sorted|5000|")
        self.sql("ALTER SYSTEM SET pgsluice.allow_gin_merge = off")
        self.sql("SELECT pg_reload_conf()")
        self.assertTrue(clusters.wait_until(lambda: self.sql("SHOW pgsluice.allow_gin_merge") == "off"))
        self.assertEqual(self.sql(f"SET pgsluice.copy = on; {COPY.format(path)}; {said}"), "row||pgsluice.allow_gin_merge is off")
        self.checked()
        self.sql("ALTER SYSTEM RESET pgsluice.allow_gin_merge")
        self.sql("SELECT pg_reload_conf()")
        self.sql("CREATE FUNCTION own(int, int) RETURNS int LANGUAGE sql IMMUTABLE STRICT AS 'SELECT btint4cmp($1, $2)';"
                 "CREATE OPERATOR CLASS own_ops FOR TYPE int[] USING gin AS OPERATOR 1 && (anyarray, anyarray), OPERATOR 2 @> (anyarray, anyarray), FUNCTION 1 own(int, int),"
                 " FUNCTION 2 ginarrayextract(anyarray, internal, internal), FUNCTION 3 ginqueryarrayextract(anyarray, internal, int2, internal, internal, internal, internal),"
                 " FUNCTION 4 ginarrayconsistent(internal, int2, anyarray, int4, internal, internal, internal, internal), STORAGE int4")
        self.table("(n own_ops)", have=300)
        self.assertEqual(self.sql(f"SET pgsluice.copy = on; {COPY.format(path)}; {said}"), "row||functions that are not PostgreSQL's own may compare its keys")

    def test_small_loads(self):
        """The first rows of a load go to the pending list, if the index has one."""
        path = self.cluster.file("input", "".join(rows(12000)).encode())
        for index, merged in (("(n)", 2000), ("(n) WITH (fastupdate = off)", 12000)):
            self.table(index)
            self.assertEqual(self.merged(path, "SET pgsluice.debug_force_routes = off;"), merged)
            self.checked(index)

    def test_no_more_wal(self):
        """The load writes at most 5 % more WAL than stock COPY, into small and large indexes."""
        path = self.cluster.file("input", "".join(rows(8000)).encode())
        for index in ("(n)", "(tags)", "(j jsonb_path_ops)", "(w gin_trgm_ops)" if clusters.has("pg_trgm") else "(j)"):
            for have in (500, 20000):
                wal = {}
                for setting in ("off", "on"):
                    self.table(index, have=have)
                    self.sql("VACUUM t; CHECKPOINT")
                    before = self.sql("SELECT pg_current_wal_insert_lsn()")
                    self.sql(f"SET pgsluice.copy = {setting}; {COPY.format(path)}")
                    wal[setting] = int(self.sql(f"SELECT pg_current_wal_insert_lsn() - '{before}'"))
                self.assertLess(wal["on"], wal["off"] * 1.05, f"{index}, {have} rows before")

    def test_memory(self):
        """Memory for waiting entries follows maintenance_work_mem: with 1 MB, they use less than 3 MB."""
        path = self.cluster.file("input", "".join(rows(60000)).encode())
        shown = ("CREATE OR REPLACE FUNCTION held(int) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN PERFORM set_config('my.most', greatest(coalesce(current_setting('my.most', true), '0')::bigint,"
                 " (SELECT sum(total_bytes) FROM pg_backend_memory_contexts WHERE name LIKE 'pgsluice GIN%'))::text, false); RETURN true; END $$;")
        for index in ("(n)", "(tags)"):
            most = {}
            for memory in ("1MB", "8MB"):
                self.table(index, have=10, also=shown + "ALTER TABLE t ADD CHECK (id % 500 <> 0 OR held(id));")
                most[memory] = int(self.sql(f"SET my.most = 0; SET pgsluice.copy = on; SET maintenance_work_mem = '{memory}'; {COPY.format(path)}; {MERGED}; SELECT current_setting('my.most')").splitlines()[-1])
                self.checked(index)
            self.assertLess(most["1MB"], 3 << 20, index)
            self.assertGreater(most["8MB"], most["1MB"], index)

    def test_beside_others(self):
        """While loads merge their entries, others write, delete, VACUUM and clean the pending list, and readers find all of their rows each time."""
        path = self.cluster.file("input", "".join(rows(15000)).encode())
        for index, asked in (("(n)", "n @> ARRAY[7]"), ("(tags)", "tags @> '{tag7}'")):
            self.table(index, have=10000)
            sees = f"DO $$ DECLARE a int; BEGIN SET LOCAL enable_seqscan = off; SELECT count(*) INTO a FROM t WHERE {asked} AND id < 0; IF a <> FOUND THEN RAISE 'found %', a; END IF; END $$;\n"
            found = self.sql(f"SELECT count(*) FROM t WHERE {asked} AND id < 0")
            scripts = [
                sees.replace('FOUND', found) * 60,
                "".join(f"INSERT INTO t SELECT 100000 + g, ARRAY[g % 60, g], ARRAY['tag' || g % 90, 'o' || g] FROM generate_series({100 * n}, {100 * n + 99}) g;"
                        f" DELETE FROM t WHERE id > 100000 AND id % 3 = {n % 3};\n" for n in range(40)),
                "VACUUM (INDEX_CLEANUP ON) t; SELECT gin_clean_pending_list('i');\n" * 8,
            ]
            others = []
            for script in scripts:
                others.append(subprocess.Popen(self.cluster.command("-f", "-"), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
                others[-1].stdin.write(script.encode())
                others[-1].stdin.close()
            loads = 0
            while loads < 3 or any(other.poll() is None for other in others) and loads < 12:
                self.assertEqual(self.merged(path, "SET maintenance_work_mem = '1MB';"), 15000)
                loads += 1
            for other in others:
                self.assertEqual((other.stderr.read(), other.wait()), (b"", 0))
                other.stderr.close()
            self.checked(index)

    def test_two_loads_at_once(self):
        """Two loads merge into the same index at once: all rows are there, and the index finds them."""
        for index in ("(n)", "(j)"):
            self.table(index, have=1000)
            paths = [self.cluster.file(f"input{seed}", "".join(rows(20000, seed)).encode()) for seed in (5, 6)]
            loads = [subprocess.Popen(self.cluster.command("-c", "SET pgsluice.copy = on; SET maintenance_work_mem = '1MB'", "-c", COPY.format(path))) for path in paths]
            self.assertEqual([load.wait() for load in loads], [0, 0])
            self.checked(index)
            self.assertEqual(self.sql("SELECT count(*) FROM t"), "41000")

    def test_serializable(self):
        """SERIALIZABLE: a session that has searched for a key conflicts with a merge of that key, even if leaves have been split since."""
        parts = [self.cluster.file(f"part{seed}", "".join(rows(15000, seed)).encode()) for seed in (7, 8)]
        for index in ("(n)", "(n) WITH (fastupdate = off)"):
            reader_conflicts(self, TABLE.format(kind="", index=index, rows=5000, also=""), "SET LOCAL enable_bitmapscan = on; SELECT count(*) FROM t WHERE n @> ARRAY[17]", map(COPY.format, parts))


class GinLogged(WithTable, OnCluster):
    """The server is killed, or followed by a standby."""

    settings = ["wal_level = replica", "checkpoint_timeout = 1h", "maintenance_work_mem = '1MB'", "pgsluice.debug_force_routes = on"]

    def test_killed_in_the_middle(self):
        """Whenever the server is killed during a merge, the index finds all rows after recovery, and takes deletes, VACUUM and another merge."""
        path = self.cluster.file("input", "".join(rows(25000)).encode())
        chance = random.Random(11)
        for index in ("(n)", "(tags)", "(j)"):
            for attempt in range(3 if SOAK else 2):
                self.table(index, have=3000)
                self.sql("CHECKPOINT")
                blocks = int(self.sql("SELECT pg_relation_size('i') / 8192")) + chance.randrange(1, 70)
                load = subprocess.Popen(self.cluster.command("-c", f"SET pgsluice.copy = on; {COPY.format(path)}"), stderr=subprocess.DEVNULL)
                while load.poll() is None and int(self.sql("SELECT pg_relation_size('i') / 8192")) < blocks:
                    if attempt % 2:
                        self.sql("CHECKPOINT")
                self.cluster.kill()
                load.wait()
                self.cluster.start()
                self.assertIn(self.sql("SELECT count(*) FROM t"), ("3000", "28000"))
                self.checked(index)
                self.sql("DELETE FROM t WHERE id % 2 = 0; VACUUM t")
                self.assertEqual(self.merged(path), 25000)
                self.checked(index)

    def test_what_is_replayed_is_what_was_done(self):
        """Replayed pages equal the primary's (wal_consistency_checking); a standby without the library answers meanwhile and takes over."""
        primary = Cluster(["wal_level = replica", "wal_consistency_checking = 'all'", "wal_keep_size = 8GB", "maintenance_work_mem = '1MB'", "pgsluice.debug_force_routes = on"])
        self.addCleanup(primary.remove)
        primary.sql("CREATE EXTENSION pgsluice;" + ("CREATE EXTENSION amcheck" if clusters.has("amcheck") else ""))
        path = primary.file("input", "".join(rows(15000)).encode())
        self.table("(n)", have=3000, cluster=primary)
        standby = Cluster(["hot_standby = on", "session_preload_libraries = ''"], copy_of=primary)
        self.addCleanup(standby.remove)
        # The records do not depend on the type of the keys; these have one column, few and many keys, and several columns.
        logged = indexes() if SOAK else ["(n)", "(j)", "(n, tags, j jsonb_path_ops)"]
        for index in logged:
            self.table(index, have=3000, cluster=primary)
            standby.follow(primary)
            asked = next(iter(INDEXES[index])).replace("p", "7") if index == "(n)" else None
            loading = subprocess.Popen(primary.command("-c", f"SET pgsluice.copy = on; {COPY.format(path)}"))
            found = set()
            while loading.poll() is None:
                if asked:
                    found.add(standby.sql(f"{BY_INDEX} SELECT count(*) FROM t WHERE {asked}"))
            self.assertEqual(loading.returncode, 0)
            primary.sql("DELETE FROM t WHERE id % 5 = 0; VACUUM t")
            self.assertEqual(self.merged(path, cluster=primary), 15000)
            standby.follow(primary)
            self.assertLessEqual(len(found), 2)
            self.assertEqual(self.checked(index, standby), self.checked(index, primary))
        standby.stop()
        (standby.data / "standby.signal").unlink()
        standby.start()
        standby.sql("DELETE FROM t WHERE id % 7 = 0; VACUUM t; INSERT INTO t SELECT g, ARRAY[g], '{tag1}', '{}', 'w' FROM generate_series(1, 2000) g")
        self.checked(logged[-1], standby)
