"""Indexes on values that only the server can compare: other types, collations, long values."""

import re
import subprocess
import unittest

from .cluster import OnCluster, endless, wait_until
from .twins import LAST, SORTED, STOCK, check, compare, refusal

# For each type an expression of a random integer i (and of the row's number n); few values.
TYPES = {
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

WORDS = "(array['a', 'A', 'ab', 'a b', 'a-b', 'Ä', 'ä', 'z', 'Zz', 'ß', 'ss', 'é', '€', '😀', ''])[i % 15 + 1]"


class Ranked(OnCluster):
    """The same index by both ways; the pages are equal."""

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
        """Collations that order by more than bytes, as far as this server has them."""
        if not self.icu:
            self.skipTest("this server was built without ICU")
        return ('"en-US-x-icu"', '"de-DE-x-icu"', '"und-x-icu"')

    def test_every_type_and_direction(self):
        """Each type, ascending and descending, NULLs on either side."""
        for kind, expression in TYPES.items():
            self.table(f"a {kind}", f"CASE WHEN i % 17 > 0 THEN {expression} END", count=4000)
            for order in ("", "DESC NULLS LAST"):
                with self.subTest(kind=kind, order=order):
                    compare(self, self.cluster, f"INDEX ON t (a {order})")

    def test_languages_of_icu(self):
        """Strings that differ in accents, case and punctuation alone, to the last tie."""
        self.table("b text, c varchar(50), d char(20)", f"{WORDS} || n % 90, {WORDS} || i % 3, {WORDS}")
        for collation in self.collations():
            for columns in (f"b COLLATE {collation}", f"c COLLATE {collation} DESC", f"d COLLATE {collation}",
                            f"c COLLATE {collation}, b COLLATE {collation} DESC NULLS LAST"):
                with self.subTest(columns=columns):
                    compare(self, self.cluster, f"INDEX ON t ({columns})")

    def test_collations_that_are_not_deterministic_are_left_to_stock(self):
        """Equal strings there are not the same."""
        self.collations()
        self.sql("CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
        self.table("b text", f"{WORDS} || n % 90")
        said = self.sql(f"{SORTED}CREATE INDEX ON t (b COLLATE loose); {LAST}")
        self.assertEqual(said, 'stock: the collation of column "b" is not deterministic')

    def test_several_columns(self):
        """Ranked columns among others, beyond the sixteenth byte too."""
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
        """Values go on coming while runs are written: their ranks change, their order does not."""
        small = "SET maintenance_work_mem = '1MB';"
        self.table("a numeric, b int", "(n * 7919 % 1200 * (n / 30000 + 1)) / 8.0, n", count=150000)
        for definition in ("INDEX ON t (a)", "INDEX ON t (a DESC, b)"):
            compare(self, self.cluster, definition, small)
        spilled = self.sql(f"{SORTED}{small}CREATE INDEX ON t (a); SELECT spilled_bytes > 0 FROM pgsluice.last_index_build")
        self.assertEqual(spilled, "t")

    def test_too_many_values(self):
        """More values than memory holds: the stock build does it, without a warning."""
        self.table("a numeric", "n / 8.0", count=60000)
        said = self.cluster.session(
            f"{SORTED}SET maintenance_work_mem = '1MB'; CREATE INDEX many ON t (a); {LAST}")
        self.assertEqual(said, ("stock: too many different values of a kind that the server has to compare", ""))
        check(self.cluster, "many")

    def test_long_values(self):
        """Compressed, out of line, long and incompressible, expanded; too long is refused."""
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
        """A wide row holds a value compressed that another one holds as it is: each entry has that of its row."""
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
        # Equal ones may have other blanks at their end: whether they are the same the core cannot tell. Not every
        # release of PostgreSQL deduplicates them.
        for columns in ("c", "c, a", "b, c"):
            said = self.sql(f"{SORTED}CREATE INDEX ON t ({columns}); {LAST}")
            if said == "sorted pages":
                compare(self, self.cluster, f"INDEX ON t ({columns})")
            else:
                self.assertEqual(said, "stock: values of type character are compressed in some rows only")

    def test_long_strings_of_languages(self):
        """Longer than the kilobyte that a comparison sets out with, and alike in all that an abbreviated key holds."""
        noise = "(SELECT string_agg(md5((n * 100 + j)::text), '') FROM generate_series(1, 40) j)"
        for rest in ("repeat(md5((n % 1500)::text), 40)", f"CASE WHEN n % 3 = 0 THEN {noise} ELSE repeat(md5((n % 1500)::text), 20 + n % 90) END"):
            self.table("b text", f"'the same words at first ' || {rest}", count=6000)
            for collation in self.collations():
                compare(self, self.cluster, f"INDEX ON t (b COLLATE {collation})")

    def test_memory_of_values_that_come_and_go(self):
        """A live load with more different values than may be ranked at once: those before are forgotten."""
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
        """Equal values of other looks are duplicates; the refusals are PostgreSQL's own."""
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
        """While values are compared the rows have been read, as the view says of the stock build."""
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
        """An error of the comparison ends the statement as it ends the stock build."""
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
        """Rows with that value are no duplicates to the stock build, so it has to do the work (amcheck's own tests rely on this)."""
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


if __name__ == "__main__":
    unittest.main()
