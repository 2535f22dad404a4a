"""Indexes on values that only the server can compare: other types, collations, long values; and random indexes."""

import os
import random
import re
import shutil
import subprocess
import tempfile
import unittest

from . import test_index_build
from .cluster import MAJOR, Cluster, OnCluster, endless, has, wait_until
from .twins import LAST, SORTED, STOCK, check, compare, refusal

# For each type, an expression of a random integer i (and of the row's number n) that has few values.
RANKED = {
    "numeric": "(array['NaN', '-0.00', '0', 'Infinity', (i - 500)::text, (i - 500) || '.00', (i * 1e30)::text])[i % 7 + 1]::numeric",
    "bpchar": "repeat('x', i % 7) || repeat(' ', i % 3)",
    "char(12)": "repeat(chr(97 + i % 5), i % 13)",
    "interval": "(array['1 mon', '30 days', '720:00:00'])[i % 3 + 1]::interval * (i % 50 - 25)",
    "inet": "(array['10.0.0.' || i % 256, '10.0.0.' || i % 256 || '/24', '2001:db8::' || to_hex(i)])[i % 3 + 1]::inet",
    "cidr": "('10.' || i % 256 || '.0.0/16')::cidr",
    "timetz": "(array['10:00+00', '11:00+01', '12:00-05'])[i % 3 + 1]::timetz + i % 9 * interval '1 min'",
    "bit(9)": "(i % 512)::bit(9)",
    "varbit": "substring((i * 77777)::bit(32)::varbit from 1 for i % 33)",
    "mood": "(array['sad', 'ok', 'happy'])[i % 3 + 1]::mood",
    "int[]": "array[i % 5, NULL, i % 7]",
    "text[]": "array[repeat('q', i % 40), 'b' || i % 9]",
    "int8[]": "CASE WHEN i % 3 = 0 THEN '{}'::int8[] ELSE array[i::int8, -i] END",
    "int4range": "int4range(i % 30 - 15, i % 30 + i % 4)",
    "tstzrange": "tstzrange(timestamptz '2020-01-01' + i * interval '1 h', NULL, '(]')",
    "pair": "row(i % 9, 'x' || i % 11)::pair",
    "jsonb": "jsonb_build_object('k', i % 40, 'l', array[i % 3])",
    "tsvector": "to_tsvector('simple', 'w' || i % 50 || ' x')",
    "uuid": "md5(i::text)::uuid",
}
ALL_TYPES = {**test_index_build.TYPES, **RANKED}

WORDS = "(array['a', 'A', 'ab', 'a b', 'a-b', 'Ä', 'ä', 'z', 'Zz', 'ß', 'ss', 'é', '€', '😀', ''])[i % 15 + 1]"
CASES = 40 if os.environ.get("PGSLUICE_SOAK") else 5
SCAN = "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off; SET enable_incremental_sort = off;"


class Ranked(OnCluster):
    """Both methods build the same index, with equal pages."""

    settings = ["max_parallel_maintenance_workers = 0"]
    prepared = ("CREATE TYPE mood AS ENUM ('sad', 'ok');"
                "ALTER TYPE mood ADD VALUE 'happy' BEFORE 'sad'; CREATE TYPE pair AS (a int, b text)")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.icu = cls.sql("SELECT count(*) FROM pg_collation WHERE collname = 'de-DE-x-icu'") == "1"

    def table(self, columns, rows, count=6000, values=1000):
        """A table t of `count` random rows; `rows` are expressions of i and n."""
        self.sql(
            f"DROP TABLE IF EXISTS t; CREATE TABLE t ({columns}); SELECT setseed(0.5);"
            f"INSERT INTO t SELECT {rows} FROM (SELECT (random() * {values})::int AS i, n "
            f"FROM generate_series(1, {count}) n OFFSET 0) _"
        )

    def collations(self):
        """Collations that order by more than bytes, if this server has them."""
        if not self.icu:
            self.skipTest("this server was built without ICU")
        return ('"en-US-x-icu"', '"de-DE-x-icu"', '"und-x-icu"')

    def test_every_type_and_direction(self):
        """For each type, ascending and descending with NULLs last, the index has the stock build's pages."""
        for kind, expression in RANKED.items():
            self.table(f"a {kind}", f"CASE WHEN i % 17 > 0 THEN {expression} END", count=4000)
            for order in ("", "DESC NULLS LAST"):
                with self.subTest(kind=kind, order=order):
                    compare(self, self.cluster, f"INDEX ON t (a {order})")

    def test_languages_of_icu(self):
        """Strings that differ only in accents, case or punctuation, under ICU collations: the index has the stock build's pages."""
        self.table("b text, c varchar(50), d char(20)", f"{WORDS} || n % 90, {WORDS} || i % 3, {WORDS}")
        for collation in self.collations():
            for columns in (f"b COLLATE {collation}", f"c COLLATE {collation} DESC", f"d COLLATE {collation}",
                            f"c COLLATE {collation}, b COLLATE {collation} DESC NULLS LAST"):
                with self.subTest(columns=columns):
                    compare(self, self.cluster, f"INDEX ON t ({columns})")

    def test_collations_that_are_not_deterministic_are_left_to_stock(self):
        """A nondeterministic collation, under which equal strings may differ, is left to the stock build."""
        self.collations()
        self.sql("CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
        self.table("b text", f"{WORDS} || n % 90")
        said = self.sql(f"{SORTED}CREATE INDEX ON t (b COLLATE loose); {LAST}")
        self.assertEqual(said, 'stock: the collation of column "b" is not deterministic')

    def test_several_columns(self):
        """Ranked columns among others, also after the sixteenth byte of the key: the index has the stock build's pages."""
        self.table(
            "a numeric, b text, c inet, d int[], e interval, f bytea",
            "i % 7 / 3.0, repeat('y', i % 40), ('10.0.0.' || i % 20)::inet, array[i % 3], "
            "CASE WHEN i % 5 > 0 THEN i % 9 * interval '1 day' END, decode(md5(i::text), 'hex')",
            count=20000,
        )
        for columns in ("a, b", "b, a DESC", "e DESC, c, a", "c, d, e, a, b", "f, a", "b, c, e, d DESC",
                        "a) INCLUDE (d, b", "d) WITH (fillfactor = 40"):
            with self.subTest(columns=columns):
                compare(self, self.cluster, f"INDEX ON t ({columns})")
        compare(self, self.cluster, "INDEX ON t ((a * 2), (d || 7))", scan="rows")

    def test_runs_that_spill(self):
        """New values that arrive while runs are written change the ranks but not the order: the index has the stock build's pages."""
        small = "SET maintenance_work_mem = '1MB';"
        self.table("a numeric, b int", "(n * 7919 % 1200 * (n / 30000 + 1)) / 8.0, n", count=150000)
        for definition in ("INDEX ON t (a)", "INDEX ON t (a DESC, b)"):
            compare(self, self.cluster, definition, small)
        spilled = self.sql(f"{SORTED}{small}CREATE INDEX ON t (a); SELECT spilled_bytes > 0 FROM pgsluice.last_index_build")
        self.assertEqual(spilled, "t")

    def test_too_many_values(self):
        """If there are more values than memory holds, the stock build takes over without a warning."""
        self.table("a numeric", "n / 8.0", count=60000)
        said = self.cluster.session(
            f"{SORTED}SET maintenance_work_mem = '1MB'; CREATE INDEX many ON t (a); {LAST}")
        self.assertEqual(said, ("stock: too many different values of a kind that the server has to compare", ""))
        check(self.cluster, "many")

    def test_long_values(self):
        """Values that are compressed, out of line, long and incompressible, or expanded: the index has the stock
        build's pages. One that is too long is the stock build's error."""
        noise = "(SELECT string_agg(md5((n * 100 + j)::text), '') FROM generate_series(1, {}) j)"
        self.table(
            "a int, b text, c text, d text, e int[]",
            f"i % 50, repeat(md5((i % 50)::text), 40), CASE WHEN n % 3 = 0 THEN {noise.format(20)} ELSE 'short' || i % 9 END,"
            "repeat('abc', i % 6 * 80), array_fill(i % 30, array[i % 6 * 50])", count=1500,
        )
        self.sql("ALTER TABLE t ALTER d SET STORAGE EXTERNAL; ALTER TABLE t SET (toast_tuple_target = 128); UPDATE t SET d = d || '!' WHERE a % 2 = 0; VACUUM FULL t")
        for columns in ("b", "c DESC", "d", "e", "a, b", "b, c, d", "a) INCLUDE (b, d"):
            with self.subTest(columns=columns):
                compare(self, self.cluster, f"INDEX ON t ({columns})")
        compare(self, self.cluster, "INDEX ON t ((e || 1))", scan="rows")
        self.sql(f"INSERT INTO t SELECT 1, NULL, {noise.format(200)} FROM generate_series(1, 1) n")
        stock = refusal(self.cluster, f"{STOCK}CREATE INDEX ON t (c)")
        self.assertIn("exceeds btree version 4 maximum", stock)
        self.assertEqual(stock, refusal(self.cluster, f"{SORTED}CREATE INDEX ON t (c)"))

    def test_values_that_are_compressed_in_some_rows(self):
        """If a wide row holds a value compressed that another row holds plain, each entry has the form of its row: the index has the stock build's pages."""
        self.sql(
            "DROP TABLE IF EXISTS t; CREATE TABLE t (a varbit, b text, c char(450), d bytea, e int, wide text);"
            "ALTER TABLE t ALTER wide SET STORAGE EXTERNAL; INSERT INTO t SELECT repeat('10', 1500)::varbit || (n % 3)::bit(4),"
            "repeat('ab' || n % 3, 150), repeat('c', n % 3), repeat('de' || n % 3, 150)::bytea, n,"
            "CASE WHEN n % 2 = 0 THEN repeat('wide', 448) END FROM generate_series(1, 240) n"
        )
        for column in "abcd":
            sizes = self.sql(f"SELECT min(pg_column_size({column})) < 100, max(pg_column_size({column})) > 300 FROM t")
            self.assertEqual(sizes, "t|t", column)
        languages = [f"b COLLATE {collation}, a" for collation in self.collations()] if self.icu else []
        for columns in ("a", "a DESC, e", "e, a", "b, a", "d", "e) INCLUDE (a, c", "c) WITH (deduplicate_items = off", *languages):
            with self.subTest(columns=columns):
                compare(self, self.cluster, f"INDEX ON t ({columns})")
        compare(self, self.cluster, "UNIQUE INDEX ON t (c, e)")
        # Equal values may differ in trailing blanks, so the core cannot tell whether they are the same. Not every release of PostgreSQL deduplicates
        # them.
        for columns in ("c", "c, a", "b, c"):
            said = self.sql(f"{SORTED}CREATE INDEX ON t ({columns}); {LAST}")
            if said == "sorted pages":
                compare(self, self.cluster, f"INDEX ON t ({columns})")
            else:
                self.assertEqual(said, "stock: values of type character are compressed in some rows only")

    def test_long_strings_of_languages(self):
        """Strings longer than the kilobyte that a comparison starts with, and alike in their abbreviated keys: the index has the stock build's pages."""
        noise = "(SELECT string_agg(md5((n * 100 + j)::text), '') FROM generate_series(1, 40) j)"
        for rest in ("repeat(md5((n % 1500)::text), 40)", f"CASE WHEN n % 3 = 0 THEN {noise} ELSE repeat(md5((n % 1500)::text), 20 + n % 90) END"):
            self.table("b text", f"'the same words at first ' || {rest}", count=6000)
            for collation in self.collations():
                compare(self, self.cluster, f"INDEX ON t (b COLLATE {collation})")

    def test_memory_of_values_that_come_and_go(self):
        """A live load with more distinct values than may be ranked at once forgets earlier ones: its memory stays below 1 MB."""
        self.collations()
        path = self.cluster.file("input", "".join(f"value {n * 7919 % 200003}\n" for n in range(200000)).encode())
        self.sql('DROP TABLE IF EXISTS t; CREATE TABLE t (b text COLLATE "und-x-icu"); CREATE INDEX ON t (b)')
        load = subprocess.Popen(self.cluster.command(
            "-c", f"SET maintenance_work_mem = '1MB'; SET pgsluice.copy = on; COPY t FROM {endless(path)}"), stderr=subprocess.DEVNULL)
        self.addCleanup(load.wait)
        running = "SELECT pid FROM pg_stat_progress_copy WHERE tuples_processed > 200000"
        self.assertTrue(wait_until(lambda: self.sql(running)))
        pid = self.sql(running)
        self.sql(f"SELECT pg_log_backend_memory_contexts({pid})")
        self.assertTrue(wait_until(lambda: "Grand total" in self.cluster.log.read_text(errors="replace")))
        self.sql(f"SELECT pg_cancel_backend({pid})")
        held = re.findall(r"level: \d+; pgsluice (?:index entries|ranks|comparisons): (\d+) total", self.cluster.log.read_text(errors="replace"))
        self.assertGreater(len(held), 0)
        self.assertLess(sum(map(int, held)), 1 << 20)

    def test_uniqueness(self):
        """Equal values in different forms are duplicates; errors are PostgreSQL's own."""
        self.table("a numeric, b interval, c mood", "n, n * interval '1 day', NULL", count=3000)
        compare(self, self.cluster, "UNIQUE INDEX ON t (a)")
        compare(self, self.cluster, "UNIQUE INDEX ON t (b, a)")
        compare(self, self.cluster, "UNIQUE INDEX ON t (c)")
        nulls = "CREATE UNIQUE INDEX u ON t (c) NULLS NOT DISTINCT"
        self.assertEqual(refusal(self.cluster, STOCK + nulls), refusal(self.cluster, SORTED + nulls))
        self.sql("DROP INDEX stock, sorted; INSERT INTO t VALUES (17.00, '1 mon', 'ok'), (5000, '0', 'ok')")
        for definition in ("(a)", "(b)", "(c)"):
            stock = refusal(self.cluster, f"{STOCK}CREATE UNIQUE INDEX u ON t {definition}")
            self.assertIn("could not create unique index", stock)
            ours = refusal(self.cluster, f"{SORTED}CREATE UNIQUE INDEX u ON t {definition}")
            # Which of two equal values is shown depends on the sort.
            self.assertEqual(*(said.replace("17.00", "17").replace("1 mon", "30 days") for said in (stock, ours)))

    def test_progress(self):
        """While values are compared, pg_stat_progress_create_index shows that the rows have been read, as for the stock build."""
        self.sql(
            "CREATE FUNCTION tell(int, int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE '%',"
            " (SELECT ROW(command, phase, blocks_total, blocks_done, tuples_total, tuples_done) FROM pg_stat_progress_create_index);"
            " RETURN btint4cmp($1, $2); END $$;"
            "CREATE OPERATOR CLASS telling FOR TYPE int USING btree AS OPERATOR 1 <, OPERATOR 2 <=,"
            " OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 tell(int, int)"
        )
        self.table("a int", "n", count=50)
        told = [{line for line in self.cluster.session(f"{setting} CREATE INDEX ON t (a telling)")[1].splitlines() if "NOTICE" in line}
                for setting in (STOCK, SORTED)]
        self.assertEqual(*told)
        self.assertIn("sorting live tuples", told[0].pop())

    def test_a_comparison_that_fails(self):
        """An error of the comparison function ends the statement."""
        self.sql(
            "CREATE FUNCTION refuse(int, int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS"
            " $$ BEGIN IF ($1 = 7) <> ($2 = 7) THEN RAISE 'no sevens'; END IF; RETURN btint4cmp($1, $2); END $$;"
            "CREATE OPERATOR CLASS picky FOR TYPE int USING btree AS OPERATOR 1 <, OPERATOR 2 <=,"
            " OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 refuse(int, int)"
        )
        self.table("a int", "n % 5", count=3000)
        compare(self, self.cluster, "INDEX ON t (a picky)")
        self.sql("DROP INDEX stock, sorted; INSERT INTO t VALUES (7)")
        self.assertIn("no sevens", refusal(self.cluster, f"{SORTED}CREATE INDEX ON t (a picky)"))

    def test_a_value_that_is_not_equal_to_itself(self):
        """If an operator class finds a value unequal to itself, the stock build takes over, for which rows with that
        value are no duplicates (amcheck's own tests rely on this)."""
        self.sql(
            "CREATE FUNCTION broken(int, int) RETURNS int IMMUTABLE LANGUAGE sql AS"
            " 'SELECT CASE WHEN $1 = 400 AND $2 = 400 THEN -1 ELSE btint4cmp($1, $2) END';"
            "CREATE OPERATOR CLASS broken FOR TYPE int USING btree AS OPERATOR 1 <, OPERATOR 2 <=,"
            " OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 broken(int, int)"
        )
        self.table("a int", "n", count=1000)
        self.sql(f"{SORTED}INSERT INTO t VALUES (400)")
        said = self.sql(f"{SORTED}CREATE UNIQUE INDEX ON t (a broken); {LAST}")
        self.assertEqual(said, "stock: the operator class finds a value unequal to itself")


def made_locale(folder):
    """Creates a German locale of the C library, and the server's own, in `folder`; returns whether the German one is there."""
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
    """One table; each of its indexes is built by both methods."""

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
        """All entries of the leaves from left to right: their bytes and TIDs."""
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
        """Scans in both directions, ranges, and an index-only scan, by this index alone."""
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
        """Creates a random table and index, then changes the rows."""
        kinds = [chance.choice(list(ALL_TYPES)) for _ in range(chance.choice([1, 1, 2, 3]))]
        if chance.random() < 0.5:
            kinds[0] = "text"
        collations = self.collations()
        columns, values, key = [], [], []
        for n, kind in enumerate(kinds):
            bare = kind.split(" COLLATE")[0]
            expression = ALL_TYPES[kind]
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
        # Row versions that do not change the key: bottom-up deletion.
        self.sql("CREATE INDEX churn ON t (x)")
        for step in range(5):
            self.sql(f"UPDATE t SET x = {step + 2} WHERE n % 2 = 0")
        check(self.cluster, "sorted")
        self.assertEqual(self.answers("stock", key), self.answers("sorted", key), said)
        self.sql("DELETE FROM t WHERE n % 2 = 1; VACUUM t")
        check(self.cluster, "sorted")
        self.assertEqual(self.answers("stock", key), self.answers("sorted", key), said)

    def same(self, key, said):
        """Both indexes have the same entries in the same order, and the same answers."""
        check(self.cluster, "sorted")
        if has("pageinspect"):
            self.assertEqual(self.entries("stock"), self.entries("sorted"), said)
        self.assertEqual(self.answers("stock", key), self.answers("sorted", key), said)

    def test_random_indexes(self):
        """Random indexes have the stock build's entries and answers, also after later changes. A failure reports its
        seed (PGSLUICE_SEED); PGSLUICE_SOAK runs more."""
        for case in range(CASES):
            with self.subTest(seed=self.seed, case=case):
                self.case(random.Random(self.seed * 1000 + case))
        fallen = set(self.sql("SELECT DISTINCT reason FROM how WHERE reason <> ''").splitlines())
        self.assertLessEqual(fallen, {"too many different values of a kind that the server has to compare"})
        self.assertNotEqual(self.sql("SELECT count(*) FROM how WHERE reason = ''"), "0")

    def test_a_language_of_the_c_library(self):
        """An index on text under a German locale of the C library has the stock build's entries and answers; skipped if no such locale can be made."""
        if not self.german:
            self.skipTest("localedef or the sources of locales are not here: no libc language is tested")
        self.collations()
        self.sql(f"DROP TABLE IF EXISTS t; CREATE TABLE t (n int, k0 text COLLATE german);"
                 f"INSERT INTO t SELECT n, {WORDS} || n % 70 FROM (SELECT n, n * 7919 % 1000 i FROM generate_series(1, 5000) n) _;"
                 f"{STOCK}CREATE INDEX stock ON t (k0); {SORTED}CREATE INDEX sorted ON t (k0)")
        self.same("k0", "german")


if __name__ == "__main__":
    unittest.main()
