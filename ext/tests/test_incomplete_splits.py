"""COPY into indexes in which another session has split a page and then crashed, before the split was complete."""

import re
import unittest
from hashlib import md5

from .cluster import Cluster, OnCluster, has, wait_until
from .twins import check

TABLE = ("CREATE EXTENSION pageinspect; CREATE EXTENSION pg_walinspect; CREATE TABLE t (id bigint, k bigint, l text COLLATE \"C\", n int[]);"
         "CREATE UNIQUE INDEX above ON t (id); CREATE UNIQUE INDEX anywhere ON t (k); CREATE INDEX long ON t (l); CREATE INDEX hashed ON t USING hash (k); CREATE INDEX gin ON t USING gin (n) WITH (fastupdate = off)")
# How most of the load's rows get into each index.
INDEXES = {"above": r'"leaves": \d{4}', "anywhere": r'"leaf_merge": \d{4}', "long": r'"leaf_merge": \d{4}', "hashed": r'"sorted": \d{4}', "gin": r'"sorted": \d{4}'}
ROWS = 15000
WRITTEN = ("DO $$ BEGIN FOR i IN 0..149 LOOP INSERT INTO t SELECT i * 100 + n, k, md5(k::text) || repeat('x', 300), ARRAY[k, k + 1, n, 7]"
           " FROM (SELECT n, (i * 100 + n)::bigint * 7919 % 1000003 AS k FROM generate_series(1, 100) n) _; COMMIT; END LOOP; END $$")
RECORDS = ("SELECT start_lsn, resource_manager, record_type, description, (regexp_match(block_ref, 'rel \\d+/\\d+/(\\d+)'))[1] FROM pg_get_wal_records_info('{}', '{}')"
           " WHERE resource_manager IN ('Btree', 'Gin', 'Hash') AND record_type LIKE '%SPLIT%' ORDER BY start_lsn")
# The index, the record after which recovery ends, and what its description has.
PLACES = (("above", "SPLIT_R", r"level:? 0"), ("anywhere", "SPLIT_[LR]", r"level:? 0"), ("long", "SPLIT_[LR]", r"level:? 1"), ("long", "SPLIT_[LR]", r"level:? 2"),
          ("gin", "SPLIT", r"isrootsplit: F.*isdata: F"), ("gin", "SPLIT", r"isrootsplit: F.*isdata: T"), ("hashed", "SPLIT_ALLOCATE_PAGE", ""), ("hashed", "SPLIT_PAGE", ""))
# How many pages of an index have the mark of a split that is not complete.
PAGES = "FROM generate_series(1, pg_relation_size('{0}') / 8192 - 1) b"
MARKED = {
    "btree": f"SELECT count(*) {PAGES}, bt_page_stats('{{0}}', b::int) WHERE btpo_flags & 128 <> 0",
    "gin": f"SELECT count(*) {PAGES}, gin_page_opaque_info(get_raw_page('{{0}}', b::int)) WHERE 'incomplete_split' = ANY (flags)",
    # The bucket that is being split and the one that is being filled; the flags are the third last bytes of the page.
    "hashed": f"SELECT count(*) / 2 {PAGES}, LATERAL (SELECT get_byte(get_raw_page('{{0}}', b::int), 8188) flags) _ WHERE flags & 2 <> 0 AND flags & 48 <> 0",
}
BY_INDEX, BY_TABLE = "SET enable_seqscan = off;", "SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off;"


@unittest.skipUnless(has("pg_walinspect") and has("pageinspect"), "pg_walinspect and pageinspect are not there")
class IncompleteSplits(OnCluster):
    """Recovery ends right after the record of a split; the record that completes it is never replayed."""

    settings = ["wal_level = replica", "wal_keep_size = '1GB'", "checkpoint_timeout = 1h"]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.sql(TABLE)
        cls.backup = cls.cluster.home / "backup"
        cls.cluster.backup(cls.backup, "-X", "none")
        start, end = (cls.sql(f"{work}SELECT pg_current_wal_insert_lsn()") for work in ("", WRITTEN + ";"))
        indexes = dict(line.split("|") for line in cls.sql("SELECT pg_relation_filenode(indexrelid), indexrelid::regclass FROM pg_index WHERE indrelid = 't'::regclass").splitlines())
        cls.records = [(indexes[node], *record) for *record, node in (line.split("|") for line in cls.sql(RECORDS.format(start, end)).splitlines())]
        cls.sql("SELECT pg_switch_wal()")

    def stopped(self, index, kind, described):
        """A server that has ended its recovery after such a record, the middle one of them."""
        found = [lsn for name, lsn, _, record, text in self.records if name == index and re.fullmatch(kind, record) and re.search(described, text)]
        server = Cluster([f"restore_command = 'cp {self.cluster.data}/pg_wal/%f %p'", f"recovery_target_lsn = '{found[len(found) // 2]}'", "recovery_target_action = promote"], copy_of=self.backup)
        self.addCleanup(server.remove)
        self.assertTrue(wait_until(lambda: server.sql("SELECT pg_is_in_recovery()") == "f"), server.tail())
        return server

    def entries(self, server, index):
        """Asserts that the index finds each row of the table once."""
        if index == "gin":
            asked = "SELECT string_agg((SELECT count(*) || ' ' || coalesce(sum(id), 0) FROM t WHERE n @> ARRAY[p]), ',') FROM generate_series(0, 20) p"
            self.assertEqual(*(server.sql(f"{way} {asked}") for way in (BY_INDEX, BY_TABLE)))
        elif index == "hashed":
            alone = BY_INDEX + "".join(f"SET enable_{way} = off;" for way in ("hashjoin", "mergejoin", "material", "memoize"))
            self.assertEqual(server.sql(f"{alone} SELECT count(*) FROM (SELECT k FROM t) v, LATERAL (SELECT FROM t WHERE k = v.k) _"), server.sql(f"{BY_TABLE} SELECT count(*) FROM t"))
        else:
            check(server, index)

    def test_a_load_completes_them(self):
        """Others have left a split incomplete, of a leaf, an inner page or a bucket, in a B-tree, GIN or hash index: a load of keys all over the index, whether others
        can reach the table or not, completes it, and the index has each row once."""
        old = {n * 7919 % 1000003 for n in range(1, ROWS + 1)}
        keys = [k for k in (n * 104729 % 1000003 for n in range(1, 10000)) if k not in old]
        rows = "".join(f"{1000000 + i},{k},{md5(str(k).encode()).hexdigest()}{'x' * 300},\"{{{k},{k + 1},{i % 100},7}}\"\n" for i, k in enumerate(keys))
        for index, record, described in PLACES:
            for lock in ("", "LOCK TABLE t;") if index == "long" else ("",):
                with self.subTest(index=index, record=record, described=described, lock=lock):
                    server = self.stopped(index, record, described)
                    server.sql("".join(f"DROP INDEX {other};" for other in INDEXES if other != index))
                    marked = MARKED.get(index, MARKED["btree"]).format(index)
                    before = [int(server.sql(what)) for what in (marked, "SELECT count(*) FROM t")]
                    path = server.file("input", rows.encode())
                    ways = server.sql(f"SET pgsluice.copy = on; BEGIN; {lock} COPY t FROM '{path}' CSV; SELECT indexes->0->'rows' FROM pgsluice.last_copy; COMMIT")
                    self.assertRegex(ways, INDEXES[index])
                    self.assertEqual((before[0], server.sql(marked)), (1, "0"))
                    self.assertEqual(server.sql("SELECT count(*) FROM t"), str(before[1] + len(keys)))
                    self.entries(server, index)
                    server.remove()


if __name__ == "__main__":
    unittest.main()
