"""Random indexes by both ways: the same rows, the same answers, and the same life afterwards."""

import os
import random
import shutil
import subprocess
import tempfile
import unittest

from . import test_index, test_index_rank
from .cluster import MAJOR, Cluster, has
from .twins import SORTED, STOCK, check

CASES = 40 if os.environ.get("PGSLUICE_SOAK") else 5
SCAN = "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off; SET enable_incremental_sort = off;"
WORDS = test_index_rank.WORDS

TYPES = {**test_index.TYPES, **test_index_rank.TYPES}


def made_locale(folder):
    """Whether a German locale of the C library, and the server's own, are now in `folder`."""
    for source, name in (("de_DE", "de_DE.UTF-8"), ("C", "C.UTF-8")):
        try:
            subprocess.run(["localedef", "--no-archive", "-i", source, "-f", "UTF-8", f"{folder}/{name}"],
                           capture_output=True, check=False)
        except FileNotFoundError:
            return False
    installed = next((p for p in ("/usr/lib/locale/C.utf8", "/usr/lib/locale/C.UTF-8") if os.path.exists(p)), None)
    if installed:
        shutil.copytree(installed, f"{folder}/C.utf8")
    return os.path.exists(f"{folder}/de_DE.UTF-8/LC_COLLATE")


class Property(unittest.TestCase):
    """One table; each index of it made twice."""

    @classmethod
    def setUpClass(cls):
        cls.locales = tempfile.mkdtemp()
        os.chmod(cls.locales, 0o755)
        cls.german = made_locale(cls.locales)
        if cls.german:
            os.environ["LOCPATH"] = cls.locales
        try:
            cls.cluster = Cluster(["max_parallel_maintenance_workers = 0", "autovacuum = off"])
        finally:
            os.environ.pop("LOCPATH", None)
        cls.sql = cls.cluster.sql
        cls.sql("CREATE EXTENSION pgsluice; CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy'); CREATE TYPE pair AS (a int, b text)")
        if has("pageinspect"):
            cls.sql("CREATE EXTENSION pageinspect")
        cls.seed = int(os.environ.get("PGSLUICE_SEED", "11"))

    @classmethod
    def tearDownClass(cls):
        cls.cluster.remove()
        shutil.rmtree(cls.locales, ignore_errors=True)

    def collations(self):
        """Every kind of collation that this server can have."""
        found = ["C", "default", "ucs_basic"]
        if MAJOR >= 17:
            found.append("pg_c_utf8")
        if self.german:
            self.sql("CREATE COLLATION IF NOT EXISTS german (provider = libc, locale = 'de_DE.UTF-8')")
            found.append("german")
        if self.sql("SELECT count(*) FROM pg_collation WHERE collname IN ('en-US-x-icu', 'de-DE-x-icu')") == "2":
            found += ["en-US-x-icu", "de-DE-x-icu"]
        return found

    def entries(self, index):
        """Every entry of the leaves from the left to the right: its bytes and its tid."""
        pages = int(self.sql(f"SELECT pg_relation_size('{index}') / 8192"))
        return self.sql(
            "WITH RECURSIVE leaf AS ("
            f" SELECT p.blkno, p.btpo_next FROM generate_series(1, {pages - 1}) b,"
            f" bt_page_stats('{index}', b::{'bigint' if MAJOR >= 16 else 'int'}) p"
            " WHERE p.type IN ('l', 'r') AND p.btpo_prev = 0 AND p.btpo_level = 0"
            f" UNION ALL SELECT p.blkno, p.btpo_next FROM leaf, bt_page_stats('{index}', leaf.btpo_next) p"
            " WHERE leaf.btpo_next <> 0), numbered AS (SELECT blkno, btpo_next, row_number() OVER () n FROM leaf)"
            "SELECT md5(string_agg(i.data || h.tid::text, ',' ORDER BY n, i.itemoffset, h.o)), count(*)"
            f" FROM numbered, bt_page_items('{index}', blkno::{'bigint' if MAJOR >= 16 else 'int'}) i,"
            " unnest(coalesce(i.tids, array[i.htid])) WITH ORDINALITY h(tid, o)"
            " WHERE i.itemoffset > CASE WHEN btpo_next = 0 THEN 0 ELSE 1 END"
        )

    def answers(self, index, key):
        """Scans in both directions, a range, an index-only scan, through this index alone."""
        other = "stock" if index == "sorted" else "sorted"
        hide = f"UPDATE pg_index SET indisvalid = false WHERE indexrelid = '{other}'::regclass;"
        columns = ", ".join(f"k{n}" for n in range(key.count(",") + 1))
        backwards = ", ".join(
            part.replace("DESC NULLS LAST", "ASC NULLS FIRST") if "DESC NULLS LAST" in part
            else part.replace("DESC", "ASC") if "DESC" in part
            else part.replace("NULLS FIRST", "DESC NULLS LAST") if "NULLS FIRST" in part else part + " DESC"
            for part in key.split(", "))
        given = f"BEGIN; SET allow_system_table_mods = on; {hide}{SCAN}"
        queries = [
            f"SELECT md5(string_agg(v, ',')) FROM (SELECT ROW({columns})::text v FROM t ORDER BY {by}) _;"
            for by in (key, backwards)
        ]
        queries += [
            f"SELECT count(*), md5(string_agg(v, ',')) FROM (SELECT k0::text v FROM t WHERE k0 {op}"
            f" (SELECT k0 FROM t WHERE n = {n}) ORDER BY {key.split(', ')[0]}) _;"
            for op, n in (("<", 40), (">=", 500), ("=", 7))
        ]
        plan = self.sql(f"{given}EXPLAIN (COSTS off) {queries[0]}ROLLBACK")
        self.assertRegex(plan, rf"Index (Only )?Scan using {index} on t")
        return self.sql(given + "".join(queries) + "ROLLBACK")

    def case(self, chance):
        """A random table and index, and what becomes of them."""
        kinds = [chance.choice(list(TYPES)) for _ in range(chance.choice([1, 1, 2, 3]))]
        if chance.random() < 0.5:
            kinds[0] = "text"
        collations = self.collations()
        columns, values, key = [], [], []
        for n, kind in enumerate(kinds):
            bare = kind.split(" COLLATE")[0]
            expression = TYPES[kind]
            collate = ""
            if bare in ("text", "varchar(200)", "bpchar"):
                collate = f' COLLATE "{chance.choice(collations)}"'
                if chance.random() < 0.7:
                    expression = f"{WORDS} || i % {chance.choice([1, 3, 90])}"
            columns.append(f"k{n} {bare}{collate}")
            values.append(f"CASE WHEN i % {chance.choice([3, 50])} > 0 THEN {expression} END")
            key.append(f"k{n}{chance.choice(['', ' DESC', ' NULLS FIRST', ' DESC NULLS LAST'])}")
        key = ", ".join(key)
        spread = chance.choice([3, 200, 1000])
        self.sql(
            f"DROP TABLE IF EXISTS t; CREATE TABLE t (n int, x int, {', '.join(columns)}); SELECT setseed({chance.random()});"
            f"INSERT INTO t SELECT n, 0, {', '.join(values)} FROM (SELECT (random() * {spread})::int AS i, n"
            f" FROM generate_series(1, {chance.choice([30, 3000, 9000])}) n OFFSET 0) _;"
            "DELETE FROM t WHERE n % 13 = 0; UPDATE t SET x = 1 WHERE n % 11 = 0; VACUUM ANALYZE t;"
            f"{STOCK}CREATE INDEX stock ON t ({key}); {SORTED}SET maintenance_work_mem = '{chance.choice([1, 64])}MB';"
            f"CREATE INDEX sorted ON t ({key}); CREATE TABLE IF NOT EXISTS how (reason text);"
            "INSERT INTO how SELECT coalesce(fell_back_because, '') FROM pgsluice.last_index_build"
        )
        said = f"{kinds} {columns} {key} {spread}"
        self.same(key, said)
        self.sql(
            "INSERT INTO t SELECT (t).* FROM (SELECT t FROM t WHERE n % 3 = 0 ORDER BY random()) _;"
            "DELETE FROM t WHERE n % 5 = 0; VACUUM t;"
        )
        # Versions of rows that no key of theirs changes: bottom-up deletion.
        self.sql("CREATE INDEX churn ON t (x)")
        for step in range(5):
            self.sql(f"UPDATE t SET x = {step + 2} WHERE n % 2 = 0")
        check(self.cluster, "sorted")
        self.assertEqual(self.answers("stock", key), self.answers("sorted", key), said)
        self.sql("DELETE FROM t WHERE n % 2 = 1; VACUUM t")
        check(self.cluster, "sorted")
        self.assertEqual(self.answers("stock", key), self.answers("sorted", key), said)

    def same(self, key, said):
        """Both indexes have the same entries in the same order, and answer the same."""
        check(self.cluster, "sorted")
        if has("pageinspect"):
            self.assertEqual(self.entries("stock"), self.entries("sorted"), said)
        self.assertEqual(self.answers("stock", key), self.answers("sorted", key), said)

    def test_random_indexes(self):
        """The seed is said where one fails; PGSLUICE_SEED takes it up, PGSLUICE_SOAK makes it long."""
        for case in range(CASES):
            with self.subTest(seed=self.seed, case=case):
                self.case(random.Random(self.seed * 1000 + case))
        fallen = set(self.sql("SELECT DISTINCT reason FROM how WHERE reason <> ''").splitlines())
        self.assertLessEqual(fallen, {"too many different values of a kind that the server has to compare"})
        self.assertNotEqual(self.sql("SELECT count(*) FROM how WHERE reason = ''"), "0")

    def test_a_language_of_the_c_library(self):
        """Skipped, with this sentence, where no German locale can be made."""
        if not self.german:
            self.skipTest("localedef or the sources of locales are not here: no libc language is tested")
        self.collations()
        self.sql(f"DROP TABLE IF EXISTS t; CREATE TABLE t (n int, k0 text COLLATE german);"
                 f"INSERT INTO t SELECT n, {WORDS} || n % 70 FROM (SELECT n, n * 7919 % 1000 i FROM generate_series(1, 5000) n) _;"
                 f"{STOCK}CREATE INDEX stock ON t (k0); {SORTED}CREATE INDEX sorted ON t (k0)")
        self.same("k0", "german")


if __name__ == "__main__":
    unittest.main()
