"""COPY into tables that have rows and are the load's alone: old leaves and new entries go into new files."""

import random
import unittest

from . import cluster as clusters
from .cluster import Cluster, Held, OnCluster, Refused
from .twins import LoadedTwice

TABLE = (
    "SET client_min_messages = error; DROP TABLE IF EXISTS t; CREATE {kind} TABLE t"
    " (a serial PRIMARY KEY, b text, c bigint UNIQUE, d numeric, pad text) WITH (autovacuum_enabled = off);"
    "CREATE INDEX tb ON t (b DESC, c); CREATE INDEX td ON t (d); CREATE INDEX th ON t USING hash (b); CREATE INDEX te ON t (upper(b));"
    "INSERT INTO t SELECT n, 'b' || n % 100, -n, n % 1000, 'p' FROM generate_series(1, 3000) n; SELECT setval('t_a_seq', 3000);"
)
# Entries in each index for rows that are dead, updated within their page, or gone.
DEAD = (
    "UPDATE t SET pad = 'hot' WHERE a % 7 = 0; UPDATE t SET d = 0.5 WHERE a % 11 = 0;"
    "UPDATE t SET c = c - 10000 WHERE a % 13 = 0; DELETE FROM t WHERE a % 5 = 0;"
)
COPY = "COPY t (b, c, d, pad) FROM '{}' WITH (FORMAT csv)"
LOCK = "LOCK TABLE t IN ACCESS EXCLUSIVE MODE;"


def rows(count=6500, seed=1):
    """Lines whose unique keys come in no order."""
    chance = random.Random(seed)
    return [f"b{key % 300},{key},{key % 3000},{'x' * 400}\n" for key in chance.sample(range(count * 3), count)]


class Merged(LoadedTwice):
    """Loads by stock COPY and by ours."""

    maxDiff = None

    def load(self, path, setting, table=TABLE.format(kind="") + DEAD, before="", after="", lock=LOCK):
        """What the COPY says, or what is in the table after it."""
        return self.left_by(setting, table, f"{lock} {before} {COPY.format(path)}; {after}")

    def answers(self, cluster=None):
        """The table, and index-only scans in both directions."""
        said = ["SELECT count(*), md5(string_agg(t::text, ',' ORDER BY a)) FROM t;"
                "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off;"]
        for order in ("a", "c", "b DESC, c", "d", "c DESC", "b, c DESC"):
            said.append("SELECT count(*), md5(string_agg(v::text, ','))"
                        f" FROM (SELECT ROW({order.replace(' DESC', '')}) v FROM t ORDER BY {order}) _;")
        return (cluster or self.cluster).sql("".join(said)).split("\n")

    def checked(self):
        """amcheck of every B-tree, every row in each."""
        if clusters.has("amcheck"):
            self.sql("SET client_min_messages = error; CREATE EXTENSION IF NOT EXISTS amcheck;"
                     "SELECT bt_index_parent_check(indexrelid, true, true) FROM pg_index JOIN pg_class c ON c.oid = indexrelid"
                     " WHERE indrelid = 't'::regclass AND relam = 403")

    def merged(self, load, table=TABLE.format(kind="")):
        """Which indexes a load wrote anew, and of what."""
        self.sql(table)
        said = self.sql(f"SET pgsluice.copy = on; {load}; SELECT scan FROM pgsluice.last_index_build;"
                        "SELECT i ->> 'index', i ->> 'way' FROM pgsluice.last_copy, jsonb_array_elements(indexes) i"
                        " WHERE i ->> 'way' IN ('merge', 'build') AND (i -> 'rows' ->> (i ->> 'way'))::int > 0")
        self.checked()
        scan, *ways = said.split("\n") if said else [""]
        return scan, dict(way.split("|") for way in ways)

    def test_equal_to_a_stock_load(self):
        """Old entries and new ones, of dead rows too."""
        self.same(rows())
        self.checked()

    def test_rows_of_all_widths(self):
        """Short rows that went into room before longer ones have their entries already, and get no second ones."""
        chance = random.Random(7)
        path = self.cluster.file("input", "".join(line.replace("x" * 400, "x" * chance.choice((1, 300, 1500))) for line in rows()).encode())
        asked = COPY.format(path).replace("csv)", "csv, lock 'exclusive') WHERE c >= 0")
        for bare in ("", "DROP INDEX te, th;"):
            self.assertEqual(self.merged(asked, TABLE.format(kind="") + bare)[1], dict.fromkeys(("t_c_key", "t_pkey", "tb", "td"), "merge"))
            self.assertEqual({one.split("|")[0] for one in self.answers()}, {"9500"})

    def test_which_are_written_anew(self):
        """Keys that ascend are appended to unless another index that checks waits; small loads go in as ever."""
        path = self.cluster.file("input", "".join(rows()).encode())
        asked = COPY.format(path).replace("csv)", "csv, lock 'exclusive')")
        anew = dict.fromkeys(("t_c_key", "t_pkey", "tb", "td"), "merge")
        said, merged = self.merged(f"SET maintenance_work_mem = '1MB'; {asked}")
        self.assertEqual((said, merged), ("merged", anew))
        # New files of an unlogged table are a risk (ext/index/deferred.c) that has been taken if the table is new itself.
        self.assertEqual(self.merged(asked, TABLE.format(kind="UNLOGGED"))[1], {})
        again = "BEGIN; TRUNCATE t; INSERT INTO t (b, c, d, pad) SELECT 'b', -n, n, 'p' FROM generate_series(1, 3000) n;"
        self.assertEqual(self.merged(f"{again} {COPY.format(path)}; COMMIT", TABLE.format(kind="UNLOGGED"))[1], anew)
        self.assertEqual(self.merged(asked, TABLE.format(kind="") + "ALTER TABLE t DROP CONSTRAINT t_c_key;"
                                     "CREATE INDEX t_c_key ON t USING hash (c);")[1],
                         {"tb": "merge", "td": "merge"})
        self.assertEqual(self.merged(asked, TABLE.format(kind="") + DEAD)[1]["t_c_key"], "build")
        self.assertEqual(self.merged(COPY.format(path))[1], {})
        self.assertEqual(self.merged(asked, TABLE.format(kind="") + "INSERT INTO t (c, pad) SELECT -n - 50000, repeat('p', 400) FROM generate_series(1, 60000) n;")[1], {})

    def test_a_key_that_is_there_twice(self):
        """Stock's words and line, whether the key was in the table, came early or came late; dead rows' keys are free."""
        lines = rows()
        late = lines[6300].split(",")[1]
        for at, key in ((6200, "-2001"), (6200, "-1"), (6400, lines[3].split(",")[1]), (6400, late)):
            self.assertIn("23505", str(self.same(lines[:at] + [f"b,{key},1,p\n"] + lines[at:])), key)
        self.same(lines[:6200] + ["b,-2000,1,p\n", "b,-13,1,p\n"] + lines[6200:])
        self.checked()

    def test_serializable(self):
        """A transaction that has read a range of the index, and has ended before the table is locked, is not forgotten: no write skew."""
        path = self.cluster.file("odd", "".join(f"{2 * n + 1},{'x' * 440}\n" for n in range(7000)).encode())
        for setting, count, options in (("off", 6000, ""), ("on", 6000, ""), ("on", 0, ", on_duplicate 'skip'")):
            self.sql("DROP TABLE IF EXISTS s, other; CREATE TABLE other (v int); INSERT INTO other VALUES (1);"
                     "CREATE TABLE s (k int PRIMARY KEY, pad text) WITH (autovacuum_enabled = off);"
                     f"INSERT INTO s SELECT 2 * n FROM generate_series(1, {count}) n; ANALYZE s")
            load, reader = Held(self.cluster), Held(self.cluster)
            load.run(f"SET pgsluice.copy = {setting}; BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT sum(v) FROM other")
            # What the load puts into this range comes when the index gets no more entries.
            reader.run("SET enable_seqscan = off; SET enable_bitmapscan = off; BEGIN ISOLATION LEVEL SERIALIZABLE;"
                       "SELECT count(*) FROM s WHERE k BETWEEN 11990 AND 12000; INSERT INTO other VALUES (2); COMMIT")
            reader.end()
            said = load.end(f"LOCK TABLE s; COPY s FROM '{path}' WITH (FORMAT csv{options}); COMMIT")[2]
            self.assertIn("40001", said, (setting, options))

    def test_rolled_back(self):
        """The old files come back, to a savepoint too."""
        self.same(rows(), before="SAVEPOINT s;",
                  after="ROLLBACK TO s; INSERT INTO t (b, c) SELECT 'i', 100000 + n FROM generate_series(1, 50) n;")
        self.checked()
        files = "SELECT relname, pg_relation_filenode(oid) FROM pg_class WHERE relname ~ '^t[bcd_]' ORDER BY 1"
        before = self.sql(files)
        self.sql(f"SET pgsluice.copy = on; BEGIN; {LOCK} {COPY.format(self.cluster.home / 'input')}; ROLLBACK")
        self.assertEqual(before, self.sql(files))
        self.checked()

    def test_what_the_load_runs(self):
        """A cursor on an index; functions of a CHECK and of a domain that insert into the table; a table that an earlier COPY has filled."""
        lines = rows()
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
        first = self.cluster.file("first", "".join(rows(500, 7)).replace("b", "z").encode())
        self.same(lines, lock="", before=f"TRUNCATE t; COPY t (b, a, d, pad) FROM '{first}' WITH (FORMAT csv);")
        self.checked()


class Cut(OnCluster):
    """The server is killed, and followed."""

    settings = ["wal_level = replica", "wal_keep_size = '1GB'", "checkpoint_timeout = 1h"]
    answers, checked = Merged.answers, Merged.checked

    def test_killed_and_followed(self):
        """Before the commit: as it was. After it: all is there, and on a standby."""
        self.sql(TABLE.format(kind="") + DEAD)
        path = self.cluster.file("input", "".join(rows()).encode())
        standby = Cluster(copy_of=self.cluster)
        self.addCleanup(standby.remove)
        before = self.answers()
        load = Held(self.cluster)
        load.run(f"SET pgsluice.copy = on; BEGIN; {LOCK} {COPY.format(path)}; SELECT 1")
        self.assertEqual(load.run("SELECT scan FROM pgsluice.last_index_build"), "merged")
        self.sql("CHECKPOINT")
        self.cluster.kill()
        with self.assertRaises((Refused, BrokenPipeError)):
            load.run("COMMIT")
        load.process.communicate()
        self.cluster.start()
        self.assertEqual(self.answers(), before)
        self.checked()
        self.sql(f"SET pgsluice.copy = on; BEGIN; {LOCK} {COPY.format(path)}; COMMIT")
        after = self.answers()
        self.cluster.kill()
        self.cluster.start()
        self.assertEqual(self.answers(), after)
        self.checked()
        standby.follow(self.cluster)
        self.assertEqual(self.answers(standby), after)


if __name__ == "__main__":
    unittest.main()
