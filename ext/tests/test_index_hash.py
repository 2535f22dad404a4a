"""COPY into live tables: the entries of many rows are merged into hash indexes, bucket by bucket."""

import random
import subprocess

from . import cluster as clusters
from .cluster import Cluster, Held, OnCluster
from .twins import LoadedTwice, reader_conflicts

INDEXES = ("(w)", "(u)", "(lower(w))", "(k) WHERE id % 2 = 0", "(w) WITH (fillfactor = 30)", "(same)")
TABLE = (
    "SET client_min_messages = error; DROP TABLE IF EXISTS t; CREATE {kind} TABLE t (id int, w text, u uuid, k bigint, same int) WITH (autovacuum_enabled = off);"
    "CREATE INDEX i ON t USING hash {index}; {also}"
    "INSERT INTO t SELECT -g, 'w' || g % 3000, md5(g::text)::uuid, g % 5000, 1 FROM generate_series(1, {rows}) g;"
)
COPY = "COPY t FROM '{}' WITH (FORMAT csv)"
MERGED = "SELECT coalesce(i->'rows'->>'sorted', '0') FROM pgsluice.last_copy, jsonb_array_elements(indexes) i WHERE i->>'index' = 'i'"
BY_INDEX, BY_TABLE = "SET enable_seqscan = off;", "SET enable_bitmapscan = off; SET enable_indexscan = off;"
ASKED = {"(w)": "w = 'w' || p", "(w) WITH (fillfactor = 30)": "w = 'w' || p", "(u)": "u = md5(p::text)::uuid", "(lower(w))": "lower(w) = 'w' || p",
         "(k) WHERE id % 2 = 0": "id % 2 = 0 AND k = p", "(same)": "same = p"}


def rows(count, seed=1):
    """CSV lines, some with NULL."""
    chance = random.Random(seed)
    return [f"{line},{chance.choice(['', 'w%d' % chance.randrange(4000), 'W%d' % line])},{chance.getrandbits(128):032x},{chance.randrange(6000)},1\n" for line in range(1, count + 1)]


class WithTable:
    """The table, its checks and its queries."""

    def table(self, index="(w)", kind="", have=5000, also="", cluster=None):
        """Creates the table."""
        (cluster or self.cluster).sql(TABLE.format(kind=kind, index=index, rows=have, also=also))

    def found(self, index, way, cluster):
        """The rows found for many keys."""
        return cluster.sql(f"{way} SELECT md5(string_agg((SELECT count(*) || ' ' || coalesce(sum(id), 0) FROM t WHERE {ASKED[index]}), ',')) FROM generate_series(0, {5 if index == '(same)' else 900}) p")

    def checked(self, index="(w)", cluster=None):
        """The index finds every row of the table exactly once; returns what is found by some keys, and sums over the table."""
        cluster = cluster or self.cluster
        found = self.found(index, BY_INDEX, cluster)
        table = self.sums(cluster) if index != "(same)" else self.found(index, BY_TABLE, cluster)
        if index == "(same)":
            self.assertEqual(found, table)
        else:
            # Every row is found by its own key, and each only once.
            key = ASKED[index].rpartition(" = ")[0].rpartition(" ")[2]
            where = "WHERE id % 2 = 0" if "WHERE" in index else ""
            self.assertEqual(cluster.sql(f"{BY_TABLE} SELECT count({key}) FROM t {where}"),
                             cluster.sql(f"SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_material = off; SET enable_memoize = off;"
                                         f"SELECT coalesce(sum((SELECT count(*) FROM t WHERE {key} = v.v {where.replace('WHERE', 'AND')})), 0) FROM (SELECT DISTINCT {key} v FROM t {where}) v"))
        return found, table

    def sums(self, cluster):
        """Sums over the whole table."""
        return cluster.sql("SELECT count(*), md5(string_agg(t::text, ',' ORDER BY t::text)) FROM t")

    def merged(self, path, before="", cluster=None):
        """Loads the file; returns how many rows were merged."""
        return int((cluster or self.cluster).sql(f"SET pgsluice.copy = on; {before} {COPY.format(path)}; {MERGED}"))


class Hash(WithTable, LoadedTwice):
    """Compares a load by stock COPY with one by the extension."""

    settings = ["max_prepared_transactions = 2"]

    def load(self, path, setting, index="(w)", kind="", before="", after="", also=""):
        """What is found after the COPY, or its error."""
        self.table(index, kind, also=also)
        self.index = index
        return self.left_by(setting, "", f"{before} {COPY.format(path)}; {after}")

    def answers(self):
        """What is found by the index of the last load."""
        return self.checked(self.index)

    def test_equal_to_stock(self):
        """With few or many entries for each bucket, ample or little memory, and splits or none, the index finds what
        it finds after stock COPY; also after VACUUM and another load."""
        path = self.cluster.file("input", "".join(rows(15000)).encode())
        for number, index in enumerate(INDEXES):
            for memory, have in (("64MB", 5000), *([("1MB", 100), ("64MB", 0)] if number == 0 else [])):
                found, sizes = [], []
                for setting in ("off", "on"):
                    self.table(index, have=have)
                    self.sql(f"SET pgsluice.copy = {setting}; SET maintenance_work_mem = '{memory}'; {COPY.format(path)}")
                    found.append(self.checked(index))
                    sizes.append(int(self.sql("SELECT pg_relation_size('i')")))
                self.assertEqual(*found, index)
                self.assertLess(sizes[1], sizes[0] * 1.3 + 8 * 8192, index)
            if clusters.has("pageinspect"):
                self.sql("CREATE EXTENSION IF NOT EXISTS pageinspect")
                counted = "(SELECT sum(s.live_items) FROM generate_series(0, pg_relation_size('i') / 8192 - 1) b, hash_page_stats(CASE WHEN hash_page_type(get_raw_page('i', b::int)) IN ('bucket', 'overflow') THEN get_raw_page('i', b::int) END) s)"
                self.assertEqual(self.sql(f"SELECT ntuples = {counted} FROM hash_metapage_info(get_raw_page('i', 0))"), "t", index)
            self.assertEqual(self.merged(path, "SET maintenance_work_mem = '2MB';"), 15000, index)
            self.checked(index)
            self.sql("DELETE FROM t WHERE id % 3 = 0; VACUUM t; VACUUM t")
            self.assertEqual(self.merged(path), 15000, index)
            self.checked(index)

    def test_dead_entries(self):
        """Entries are merged into buckets that have entries marked dead by scans, which only the access method may remove; the index finds all rows."""
        path = self.cluster.file("input", "".join(rows(15000)).encode())
        self.table(have=20000)
        for _ in range(3):
            self.sql("DELETE FROM t WHERE k % 3 <> 0")
            self.sql(f"{BY_INDEX} SET enable_bitmapscan = off; SELECT sum((SELECT count(*) FROM t WHERE w = 'w' || p)) FROM generate_series(0, 3000) p")
            self.assertEqual(self.merged(path), 15000)
            self.checked()
        self.sql("VACUUM t")
        self.checked()

    def test_a_reader_stops_splits(self):
        """A cursor in a bucket prevents its split: entries go in without it, the cursor returns its rows, and the next load still finds room."""
        path = self.cluster.file("input", "".join(rows(15000)).encode())
        for index, asked in (("(w)", "w = 'w7'"), ("(same)", "same = 1")):
            self.table(index, have=2000)
            reader = Held(self.cluster)
            reader.run(f"BEGIN; {BY_INDEX} SET enable_bitmapscan = off; DECLARE c CURSOR FOR SELECT id FROM t WHERE {asked}; FETCH 1 FROM c")
            self.assertEqual(self.merged(path), 15000)
            left = reader.run("FETCH ALL FROM c").splitlines()
            self.assertEqual(len(left), int(self.sql(f"{BY_TABLE} SELECT count(*) FROM t WHERE id < 0 AND {asked}")) - 1)
            self.assertEqual(reader.end("COMMIT")[0], 0)
            self.checked(index)
            self.assertEqual(self.merged(path), 15000)
            self.checked(index)

    def test_refusals_and_kinds_of_tables(self):
        """Failing functions, exclusion constraints, all kinds of tables, savepoints and a prepared transaction:
        results are stock COPY's. allow_hash_merge switches the merge off."""
        lines = rows(6000)
        path = self.cluster.file("input", "".join(lines).encode())
        self.assertIn("line 4000", self.same(lines, also="CREATE INDEX f ON t USING hash ((1 / (id - 4000)));"))
        self.sql("CREATE FUNCTION own(bigint) RETURNS int LANGUAGE plpgsql IMMUTABLE STRICT AS $$ BEGIN IF $1 = 5555 THEN RAISE 'no %', $1; END IF; RETURN 7; END $$;"
                 "CREATE OPERATOR CLASS own_ops FOR TYPE bigint USING hash AS OPERATOR 1 =, FUNCTION 1 own(bigint)")
        self.assertIn("COPY t, line", self.same([line for line in rows(9000)] + ["1,,,5555,1\n"], also="CREATE INDEX f ON t USING hash (k own_ops);"))
        self.assertIn("23P01", self.same(lines, also="ALTER TABLE t ADD EXCLUDE USING hash (w WITH =) WHERE (id > 0);"))
        self.same(lines, kind="UNLOGGED")
        self.same(lines, before="SAVEPOINT s;", after="ROLLBACK TO s; INSERT INTO t VALUES (1, 'w3');")
        self.sql("VACUUM t")
        self.checked()
        self.table()
        self.sql(f"SET pgsluice.copy = on; BEGIN; {COPY.format(path)}; PREPARE TRANSACTION 'p'")
        self.cluster.kill()
        self.cluster.start()
        self.sql("COMMIT PREPARED 'p'")
        self.checked()
        said = self.sql(f"{TABLE.format(kind='TEMP', index='(w)', rows=2000, also='')} SET pgsluice.copy = on; {COPY.format(path)}; {MERGED}; SELECT count(*) FROM t")
        self.assertEqual(said, "6000\n8000")
        self.sql("DROP TABLE IF EXISTS t; CREATE TABLE t (id int, w text, u uuid, k bigint, same int) PARTITION BY RANGE (id); CREATE INDEX i ON t USING hash (w);"
                 "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (MINVALUE) TO (3000); CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (3000) TO (MAXVALUE)")
        self.assertEqual(self.merged(path), 6000)
        self.checked()
        self.sql("ALTER SYSTEM SET pgsluice.allow_hash_merge = off")
        self.sql("SELECT pg_reload_conf()")
        self.assertTrue(clusters.wait_until(lambda: self.sql("SHOW pgsluice.allow_hash_merge") == "off"))
        self.table()
        self.assertEqual(self.sql(f"SET pgsluice.copy = on; {COPY.format(path)}; SELECT i->>'way', i->>'because' FROM pgsluice.last_copy, jsonb_array_elements(indexes) i"),
                         "row|pgsluice.allow_hash_merge is off")
        self.sql("ALTER SYSTEM RESET pgsluice.allow_hash_merge")
        self.sql("SELECT pg_reload_conf()")

    def test_no_more_wal(self):
        """The load writes at most 2 % more WAL than stock COPY, into small and large indexes."""
        path = self.cluster.file("input", "".join(rows(8000)).encode())
        for index in ("(u)", "(w)"):
            for have in (500, 60000):
                wal = {}
                for setting in ("off", "on"):
                    self.table(index, have=have)
                    self.sql("VACUUM t; CHECKPOINT")
                    before = self.sql("SELECT pg_current_wal_insert_lsn()")
                    self.sql(f"SET pgsluice.copy = {setting}; {COPY.format(path)}")
                    wal[setting] = int(self.sql(f"SELECT pg_current_wal_insert_lsn() - '{before}'"))
                self.assertLess(wal["on"], wal["off"] * 1.02, f"{index}, {have} rows before")

    def test_beside_others(self):
        """While two loads at once merge their entries, others write, delete and VACUUM, and readers find all of their rows each time."""
        paths = [self.cluster.file(f"input{seed}", "".join(rows(15000, seed)).encode()) for seed in (3, 4)]
        self.table(have=10000)
        sees = "DO $$ DECLARE a int; BEGIN SET LOCAL enable_seqscan = off; FOR p IN 0..60 LOOP SELECT count(*) INTO a FROM t WHERE w = 'w' || p * 40 AND id < 0; IF a NOT BETWEEN 3 AND 4 THEN RAISE 'found % of %', a, p; END IF; END LOOP; END $$;\n"
        scripts = [
            sees * 30,
            "".join(f"INSERT INTO t SELECT 100000 + g, 'w' || g % 3000, md5(g::text)::uuid, g, 1 FROM generate_series({100 * n}, {100 * n + 99}) g;"
                    f" DELETE FROM t WHERE id > 100000 AND id % 3 = {n % 3};\n" for n in range(60)),
            "VACUUM (INDEX_CLEANUP ON) t;\n" * 10,
        ]
        others = []
        for script in scripts:
            others.append(subprocess.Popen(self.cluster.command("-f", "-"), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
            others[-1].stdin.write(script.encode())
            others[-1].stdin.close()
        loads = 0
        while loads < 6 or any(other.poll() is None for other in others) and loads < 20:
            both = [subprocess.Popen(self.cluster.command("-c", "SET pgsluice.copy = on; SET maintenance_work_mem = '1MB'", "-c", COPY.format(path))) for path in paths]
            self.assertEqual([load.wait() for load in both], [0, 0])
            loads += 2
        for other in others:
            self.assertEqual((other.stderr.read(), other.wait()), (b"", 0))
            other.stderr.close()
        self.assertEqual(self.sql("SELECT count(*) FROM t WHERE id BETWEEN 1 AND 99999"), str(loads * 15000))
        self.checked()

    def test_serializable(self):
        """SERIALIZABLE: a session that has searched for a key conflicts with a merge of that key, even if its bucket has been split since."""
        parts = [self.cluster.file(f"part{seed}", "".join(rows(15000, seed)).encode()) for seed in (7, 8)]
        reader_conflicts(self, TABLE.format(kind="", index="(w)", rows=5000, also=""), "SELECT count(*) FROM t WHERE w = 'w17'", map(COPY.format, parts))


class HashLogged(WithTable, OnCluster):
    """The server is killed, or followed by a standby."""

    settings = ["wal_level = replica", "checkpoint_timeout = 1h", "maintenance_work_mem = '1MB'"]

    def test_killed_in_the_middle(self):
        """Whenever the server is killed during a merge, the index finds all rows after recovery, and takes deletes, VACUUM and another merge."""
        path = self.cluster.file("input", "".join(rows(60000)).encode())
        chance = random.Random(11)
        for attempt in range(5):
            self.table(have=3000)
            self.sql("CHECKPOINT")
            blocks = int(self.sql("SELECT pg_relation_size('i') / 8192")) + chance.randrange(1, 200)
            load = subprocess.Popen(self.cluster.command("-c", f"SET pgsluice.copy = on; {COPY.format(path)}"), stderr=subprocess.DEVNULL)
            while load.poll() is None and int(self.sql("SELECT pg_relation_size('i') / 8192")) < blocks:
                if attempt % 2:
                    self.sql("CHECKPOINT")
            self.cluster.kill()
            load.wait()
            self.cluster.start()
            self.assertIn(self.sql("SELECT count(*) FROM t"), ("3000", "63000"))
            self.checked()
            self.sql("DELETE FROM t WHERE id % 2 = 0; VACUUM t")
            self.assertEqual(self.merged(path), 60000)
            self.checked()

    def test_what_is_replayed_is_what_was_done(self):
        """Replayed pages equal the primary's (wal_consistency_checking), also with dead entries; a standby without
        the library answers meanwhile and takes over."""
        primary = Cluster(["wal_level = replica", "wal_consistency_checking = 'all'", "wal_keep_size = 8GB", "maintenance_work_mem = '1MB'"])
        self.addCleanup(primary.remove)
        primary.sql("CREATE EXTENSION pgsluice;")
        path = primary.file("input", "".join(rows(15000)).encode())
        self.table(cluster=primary)
        standby = Cluster(["hot_standby = on", "session_preload_libraries = ''"], copy_of=primary)
        self.addCleanup(standby.remove)
        for index in INDEXES:
            self.table(index, cluster=primary)
            primary.sql("DELETE FROM t WHERE id % 3 = 0")
            self.found(index, BY_INDEX, primary)
            standby.follow(primary)
            loading = subprocess.Popen(primary.command("-c", f"SET pgsluice.copy = on; {COPY.format(path)}"))
            seen = set()
            while loading.poll() is None:
                seen.add(self.found(index, BY_INDEX, standby))
            self.assertEqual(loading.returncode, 0)
            self.assertLessEqual(len(seen), 2)
            primary.sql("DELETE FROM t WHERE id % 5 = 0; VACUUM t")
            self.assertEqual(self.merged(path, cluster=primary), 15000)
            standby.follow(primary)
            self.assertEqual(self.checked(index, standby), self.checked(index, primary))
        standby.stop()
        (standby.data / "standby.signal").unlink()
        standby.start()
        standby.sql("DELETE FROM t WHERE id % 7 = 0; VACUUM t; INSERT INTO t SELECT g, 'w' || g FROM generate_series(1, 5000) g")
        self.checked(INDEXES[-1], standby)
