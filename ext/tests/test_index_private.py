"""COPY into private tables: indexes are built at the end, and errors are stock COPY's; keys of one index are kept meanwhile."""

import itertools
import random
import re
import string
import subprocess
import unittest

from .cluster import OnCluster, Refused
from .twins import BOTH, LoadedTwice, check, pages, refusal

# The TID of a row whose key is too long is not promised.
_ROW = re.compile(r"^DETAIL:  Index row references tuple .*\n", re.M)
_LOCATION = re.compile(r"^(LOCATION:.*\n?|psql:[^:]*:\d+: )", re.M)

TABLE = (
    "CREATE TABLE t (a int PRIMARY KEY, b text, c bigint UNIQUE, d text);"
    "CREATE INDEX tb ON t (b DESC); CREATE INDEX th ON t USING hash (b);"
    "CREATE INDEX te ON t (upper(b)); CREATE INDEX tc ON t (c, a);"
)
INDEXES = ("t_pkey", "t_c_key", "tb", "te", "tc")
COPY = "COPY t FROM '{}' WITH (FORMAT csv)"

LAST = "SELECT method || ' ' || scan FROM pgsluice.last_index_build;"
ROWS = 60000


def rows(count, seed=1):
    """CSV lines: every tenth record has a line break in a quoted field."""
    chance = random.Random(seed)
    keys = chance.sample(range(count * 3), count)
    return [
        f'{key},{chance.choice("abcxyz") * chance.randrange(20)},{-key},' +
        (f'"two\nlines {n}"' if n % 10 == 3 else f"word {n}") + "\n"
        for n, key in enumerate(keys)
    ]


class Private(LoadedTwice):
    """Tables that were created or truncated in the same transaction."""

    maxDiff = None

    def load(self, path, setting, copy=COPY, before=TABLE, after=""):
        """What a transaction with one COPY leaves, in the order of TIDs, or its error."""
        self.sql("DROP TABLE IF EXISTS t")
        try:
            said = self.sql(f"SET pgsluice.copy = {setting}; SET client_min_messages = error;"
                            f"BEGIN; {before} {copy.format(path)}; {after} COMMIT;"
                            "SELECT count(*), md5(string_agg(t::text, ',' ORDER BY ctid)) FROM t")
        except Refused as refused:
            said = _ROW.sub("", _LOCATION.sub("", str(refused)))
            self.lines = BOTH.findall(said)
            if setting == "on":
                said = BOTH.sub("", said)
        return said

    def places(self, lines, refusal):
        """The records at both lines that the hint names, found by their place in the input; the second is COPY's."""
        ends = list(itertools.accumulate(line.count("\n") for line in lines))
        (first, second), = self.lines
        self.assertIn(f"COPY t, line {second}\n", refusal)
        return [lines[ends.index(int(end))].split(",") for end in (first, second)]

    def built(self, copy=COPY):
        """The index built last in a load with the setting on, and how."""
        path = self.cluster.home / "input"
        self.sql("DROP TABLE IF EXISTS t")
        return self.sql(f"SET pgsluice.copy = on; BEGIN; {TABLE} {copy.format(path)}; COMMIT;"
                        "SELECT relation, method FROM pgsluice.last_index_build")

    def test_indexes_are_built_when_all_rows_are_in(self):
        """After a load, every kind of index is complete; those that can wait are built at the end, and a small load builds none."""
        self.same(rows(40000))
        check(self.cluster, *INDEXES)
        self.assertEqual(self.sql("SET enable_seqscan = off; SELECT count(*) FROM t WHERE b = 'aaa'"),
                         self.sql("SET enable_indexscan = off; SET enable_bitmapscan = off; SELECT count(*) FROM t WHERE b = 'aaa'"))
        self.assertEqual(self.built(), "tc|sorted")
        self.same(rows(300))
        self.assertEqual(self.built(), "")

    def test_frozen_rows(self):
        """With FREEZE, every kind of index is complete, also those that get their entries at the end one by one; a server with assertions does not abort."""
        copy = COPY[:-1] + ", FREEZE)"
        self.same(rows(40000), copy=copy)
        check(self.cluster, *INDEXES)
        self.assertEqual(self.sql("SET enable_seqscan = off; SELECT count(*) FROM t WHERE b = 'aaa'"),
                         self.sql("SET enable_indexscan = off; SET enable_bitmapscan = off; SELECT count(*) FROM t WHERE b = 'aaa'"))
        self.assertEqual(self.built(copy), "tc|sorted")

    def test_ranges_of_blocks(self):
        """A BRIN index keeps a page pinned from row to row, and releases it when it is left for the end, and at the end; it finds all rows."""
        path = self.cluster.file("input", "".join(rows(40000)).encode())
        self.sql("DROP TABLE IF EXISTS t")
        said, told = self.cluster.session(
            f"SET pgsluice.copy = on; BEGIN; {TABLE} CREATE INDEX tr ON t USING brin (a) WITH (pages_per_range = 1); {COPY.format(path)}; COMMIT;"
            "SELECT i ->> 'way' FROM pgsluice.last_copy, jsonb_array_elements(indexes) i WHERE i ->> 'index' IN ('t_pkey', 'tr') ORDER BY 1;"
            "SELECT brin_summarize_new_values('tr') > 100; SET enable_seqscan = off; SET enable_indexscan = off; SET enable_indexonlyscan = off;"
            "DROP INDEX tc; ALTER TABLE t DROP CONSTRAINT t_pkey; SELECT count(*) FROM t WHERE a BETWEEN 100 AND 5000")
        self.assertEqual(told, "")
        wanted = self.sql("SET enable_bitmapscan = off; SELECT count(*) FROM t WHERE a BETWEEN 100 AND 5000")
        self.assertEqual(said.split("\n"), ["build", "row", "t", wanted])

    def test_a_key_that_is_there_twice(self):
        """For a duplicate key, the error names the first such row of the input with its key, constraint and line; a hint names the line that had the key first."""
        # Wide enough that indexes wait from about the ten thousandth row on.
        good = [line.replace("word", "word" * 40) for line in rows(30000)]
        places = random.Random(5)
        for _ in range(6):
            lines = list(good)
            for _ in range(places.choice([1, 3])):
                second = places.randrange(10000, len(lines))
                first = places.randrange(second)
                key, rest = lines[second].split(",", 1)
                other = lines[first].split(",", 3)
                if places.random() < 0.5:
                    lines[second] = f"{other[0]},{rest}"
                else:
                    lines[second] = f"{key},x,{other[2]},z\n"
            refusal = self.same(lines)
            self.assertIn("duplicate key value violates unique constraint", refusal)
            first, second = self.places(lines, refusal)
            column = 0 if "t_pkey" in refusal else 2
            self.assertEqual(first[column], second[column])
            self.assertNotEqual(first, second)
        where = COPY + " WHERE a % 3 > 0"
        self.assertIn("CONTEXT:  COPY t, line", self.same(good + good[-1000:-990], copy=where))

    def test_a_key_that_is_too_long(self):
        """For a key that is too long for an index, SQLSTATE, message and line are stock COPY's, wherever the row is, in private, live and locked tables."""
        chance = random.Random(8)
        good = [line.replace("word", "word" * 40) for line in rows(12000)]
        noise = "".join(chance.choices(string.ascii_letters, k=6000))
        digits = "".join(chance.choices("123456789", k=16000))
        # Nothing in it repeats, so that lz4, the default from 19 on, cannot make it shorter either.
        wide = "".join(chance.choices(string.ascii_letters, k=12000))
        plain = "CREATE TABLE t (a int, b text, c numeric, d text); CREATE INDEX tc ON t (c); CREATE INDEX tb ON t (b, a);"
        live = "COMMIT; BEGIN;"
        locked = f"INSERT INTO t SELECT -n, 'old', n, 'old' FROM generate_series(1, 3000) n; {live} LOCK TABLE t IN ACCESS EXCLUSIVE MODE;"

        def long(at, **fields):
            """Line `at`, with other values in these columns."""
            values = dict(zip("abcd", good[at].split(",", 3)), **fields)
            return ",".join(values[column] for column in "abcd")

        def refused(lines, first, before):
            """What both report for the lines, of which this is the first to be rejected."""
            said = self.same(lines, before=before)
            self.assertIn(f"COPY t, line {sum(line.count(chr(10)) for line in lines[:first + 1])}\n", said)
            return said

        for after in ("", live, locked):
            for at in (3, 6000, 11000, 11999):
                for table, fields, index in ((plain, {"b": noise}, "tb"), (plain, {"c": digits}, "tc"), (TABLE, {"b": noise}, "tb")):
                    said = refused(good[:at] + [long(at, **fields)] + good[at + 1:], at, table + after)
                    self.assertRegex(said, f'ERROR:  54000: index row size .* exceeds btree version 4 maximum .* for index "{index}"')
            at = (9500, 10500, 11500)
            lines = list(good)
            lines[at[0]] = long(at[0], b="x" * 60000)
            lines[at[1]] = long(at[1], b=wide)
            lines[at[2]] = long(at[2], c=digits)
            self.assertIn("54000: index row requires", refused(lines, at[1], plain + after))
            lines = list(good)
            lines[at[0]] = long(at[0], a=good[7].split(",")[0])
            lines[at[1]] = long(at[1], b=noise)
            self.assertIn("23505", refused(lines, at[0], TABLE + after))
            lines[at[0]], lines[at[2]] = good[at[0]], long(at[2], a=good[7].split(",")[0])
            self.assertIn("54000", refused(lines, at[1], TABLE + after))

    def test_truncated_in_the_transaction(self):
        """After TRUNCATE and COPY in one transaction, the indexes have the new rows; a rollback brings the old ones back."""
        lines = rows(30000)
        self.same(lines, before=TABLE + "INSERT INTO t VALUES (-1, 'old', 1, 'old'); COMMIT; BEGIN; TRUNCATE t;")
        check(self.cluster, *INDEXES)
        path = self.cluster.file("input", "".join(lines).encode())
        self.sql(f"SET pgsluice.copy = on; BEGIN; TRUNCATE t; {COPY.format(path)}; ROLLBACK")
        check(self.cluster, *INDEXES)
        self.assertEqual(self.sql("SELECT count(*) FROM t"), "30000")

    def test_savepoints(self):
        """A load that is rolled back to a savepoint leaves the indexes of an empty table, which take inserts."""
        self.same(
            rows(30000),
            before=TABLE + "SAVEPOINT s;",
            after="ROLLBACK TO s; INSERT INTO t SELECT n, 'n', n, 'n' FROM generate_series(1, 100) n;",
        )
        check(self.cluster, *INDEXES)
        self.assertEqual(self.sql("SET enable_seqscan = off; SELECT count(*) FROM t WHERE a > 0"), "100")

    def test_foreign_keys_and_triggers_find_the_rows(self):
        """A foreign key that refers to the table itself, and a statement trigger, find the rows by the new index; a missing parent is stock COPY's error."""
        lines = [f"{n},{n // 2 or ''},{n},x\n" for n in range(1, 30001)]
        table = (
            "CREATE TABLE t (a int PRIMARY KEY, b int REFERENCES t, c bigint, d text);"
            "CREATE OR REPLACE FUNCTION seen() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM 1 FROM t WHERE a = 29999; ASSERT FOUND; RETURN NULL; END $$;"
            "CREATE TRIGGER seen AFTER INSERT ON t FOR EACH STATEMENT EXECUTE FUNCTION seen();"
        )
        self.same(lines, before=table)
        check(self.cluster, "t_pkey")
        refusal = self.same(lines + ["40000,99999,1,x\n"], before=table)
        self.assertIn("violates foreign key constraint", refusal)

    def test_triggers_that_change_an_index(self):
        """A statement trigger that drops or rebuilds an index of the table is refused with stock COPY's error, whether the index was built at the end or got its entries then."""
        lines = [line.replace("word", "word" * 40) for line in rows(15000)]
        for statement in ("DROP INDEX tb", "DROP INDEX th", "REINDEX INDEX t_pkey", "REINDEX INDEX th"):
            refusal = self.same(lines, before=TABLE + "CREATE OR REPLACE FUNCTION change() RETURNS trigger LANGUAGE plpgsql AS"
                                f" $$ BEGIN {statement}; RETURN NULL; END $$;"
                                "CREATE TRIGGER change AFTER INSERT ON t FOR EACH STATEMENT EXECUTE FUNCTION change();")
            self.assertIn("55006", refusal, statement)
        self.assertEqual(self.built(), "tc|sorted")

    def test_functions_that_change_an_index(self):
        """A function that a CHECK calls in the middle of the rows, and that drops or rebuilds an index of the table, is refused with stock COPY's error, also if the index waits for the end."""
        lines = [line.replace("word", "word" * 40) for line in rows(15000)]
        for statement in ("DROP INDEX tb", "DROP INDEX th", "REINDEX INDEX t_pkey", "ALTER INDEX tc SET (fillfactor = 50)"):
            refusal = self.same(lines, before=TABLE + f"CREATE FUNCTION change_it() RETURNS void LANGUAGE plpgsql AS $$ BEGIN {statement}; END $$;"
                                "CREATE FUNCTION is_sure(x int) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS"
                                f" $$ BEGIN IF x = {lines[14000].split(',')[0]} THEN PERFORM change_it(); END IF; RETURN true; END $$;"
                                "ALTER TABLE t ADD CHECK (is_sure(a));")
            self.assertIn("55006", refusal, statement)

    def test_an_open_cursor(self):
        """An index that a cursor reads is not rebuilt; rows are stock COPY's."""
        self.same(
            rows(30000),
            before=TABLE + "SET LOCAL enable_seqscan = off; DECLARE c CURSOR FOR SELECT a FROM t ORDER BY a; FETCH c;",
            after="CLOSE c;",
        )
        check(self.cluster, *INDEXES)

    def test_a_cursor_that_the_load_opens(self):
        """If a function of the COPY leaves a cursor on an index that waits, this index gets its entries row by row; rows and errors are stock COPY's."""
        lines = rows(50000)
        peek = lines[45000].split(",")[0]
        table = TABLE + (
            "CREATE OR REPLACE FUNCTION peek(x int) RETURNS bool LANGUAGE plpgsql STABLE AS"
            f" $$ DECLARE c refcursor := 'peek'; BEGIN IF x = {peek} THEN"
            " OPEN c FOR SELECT a FROM t ORDER BY a; END IF; RETURN true; END $$;"
            "ALTER TABLE t ADD CHECK (peek(a)); SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off;"
        )
        self.same(lines, before=table, after="FETCH ALL FROM peek; CLOSE peek;")
        check(self.cluster, *INDEXES)
        first, second = (line.split(",", 2) for line in (lines[9], lines[25000]))
        for key, other in ((first[0], second[1]), (second[0], first[1])):
            self.assertIn("duplicate key", self.same(lines + [f"{key},{other},1000000,x\n"], before=table))
        both = [f"{second[0]},x,1000001,x\n", f"1000002,x,{lines[7].split(',')[2]},x\n"]
        for again in (both, both[::-1]):
            self.assertIn("duplicate key", self.same(lines + again, before=table))

    def test_unique_text(self):
        """Unique indexes on text wait, too; with long rows they get their entries row by row. Rows and errors are stock COPY's."""
        table = "CREATE TABLE t (a int PRIMARY KEY, b text UNIQUE, c bytea UNIQUE, d text); "
        good = [f"{n},{n * 7919 % 40009},\\x{n * 5003 % 40009:08x},x\n" for n in range(40000)]
        self.same(good, before=table)
        check(self.cluster, "t_pkey", "t_b_key", "t_c_key")
        long = good[:30000] + [f"50000,{'long' * 200}{n},,\n".replace("50000", str(50000 + n)) for n in range(99)] + good[30000:]
        for lines in (good, long):
            again = lines[:35000] + [f"70000,{good[11].split(',')[1]},,\n"] + lines[35000:] + [good[3]]
            self.assertIn('"t_b_key"', self.same(again, before=table))
        again = long[::-1] + [f"70000,x,{good[11].split(',')[2]},\n", good[5]]
        self.assertIn('"t_c_key"', self.same(again, before=table))
        self.assertIn('"t_pkey"', self.same(long + [good[5]], before=table))
        self.same(long, before=table)
        check(self.cluster, "t_pkey", "t_b_key", "t_c_key")

    def test_comparisons_by_functions_of_ones_own(self):
        """If user-defined functions compare what is in arrays, and write or fail, entries go in row by row: results and errors are stock COPY's."""
        self.sql(
            "CREATE TYPE pair AS (x int, y int); CREATE TABLE seen (x int);"
            "CREATE FUNCTION note(int) RETURNS void LANGUAGE sql AS 'INSERT INTO seen VALUES ($1)';"
            "CREATE FUNCTION apart(pair, pair) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN"
            " IF 17 IN (($1).x, ($2).x) THEN PERFORM note(17); END IF;"
            " IF (($1).x = 99) <> (($2).x = 99) THEN RAISE 'no ninety-nine'; END IF;"
            " RETURN btint4cmp(($1).x, ($2).x); END $$;"
            "CREATE OPERATOR CLASS apart DEFAULT FOR TYPE pair USING btree AS FUNCTION 1 apart(pair, pair)"
        )
        table = "CREATE TABLE t (a int PRIMARY KEY, b pair[], d text); CREATE INDEX tb ON t (b); "
        lines = [f'{n},"{{""({n % 50},1)""}}",{"x" * 300}\n' for n in range(8000)]
        self.same(lines, before=table)
        self.assertEqual(self.sql("SELECT way FROM pgsluice.index_ways('t', true) WHERE index = 'tb'::regclass"), "row")
        lines[3000] = '3000,"{""(99,1)""}",x\n'
        self.assertIn("COPY t, line 3001", self.same(lines, before=table))
        copy = COPY.format(self.cluster.home / "input")
        said = [refusal(self.cluster, f"SET client_min_messages = error; DROP TABLE IF EXISTS t; {table} SET pgsluice.copy = {setting}; {copy}")
                for setting in ("off", "on")]
        self.assertIn("COPY t, line 3001", said[0])
        self.assertEqual(*said)

    def test_with_workers_and_without(self):
        """With no, one or four workers, and with little memory, the indexes have the same pages, even if workers cannot start."""
        lines = rows(60000)
        path = self.cluster.file("input", "".join(lines).encode())
        built = []
        for settings in ("pgsluice.workers = 0", "pgsluice.workers = 1", "pgsluice.workers = 4",
                         "max_parallel_maintenance_workers = 0", "maintenance_work_mem = '1MB'"):
            self.sql(f"DROP TABLE IF EXISTS t; SET pgsluice.copy = on; SET {settings};"
                     f"BEGIN; {TABLE} {COPY.format(path)}; COMMIT")
            built.append([pages(self.cluster, index) for index in INDEXES])
            check(self.cluster, *INDEXES)
        for other in built[1:]:
            self.assertTrue(other == built[0])
        self.assertEqual(self.sql(
            "DROP TABLE t; SET pgsluice.copy = on; SET pgsluice.workers = 2; BEGIN;"
            f"{TABLE} {COPY.format(path)}; COMMIT; SELECT workers FROM pgsluice.last_index_build"), "2")

    def test_progress(self):
        """While its indexes are built, a COPY shows in pg_stat_progress_create_index, and then in pg_stat_progress_copy again."""
        path = self.cluster.file("input", "".join(f"{n * 7919 % 1000003}\n" for n in range(300000)).encode())
        self.sql("DROP TABLE IF EXISTS t, seen; CREATE TABLE seen (shown text); CREATE TABLE t (a int UNIQUE); CREATE INDEX tb ON t (a);"
                 "CREATE OR REPLACE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
                 " INSERT INTO seen SELECT tuples_processed FROM pg_stat_progress_copy; RETURN NULL; END $$;"
                 "CREATE TRIGGER note AFTER INSERT ON t FOR EACH STATEMENT EXECUTE FUNCTION note()")
        said = set()
        for _ in range(20):
            self.sql("TRUNCATE seen")
            process = subprocess.Popen(self.cluster.command("-c", f"SET pgsluice.copy = on; BEGIN; TRUNCATE t; {COPY.format(path)}; COMMIT"))
            with self.cluster.connect() as session:
                while process.poll() is None:
                    said |= set(session.run("SELECT relid::regclass, index_relid::regclass, phase LIKE 'building index%' FROM pg_stat_progress_create_index").split("\n"))
            self.assertEqual(process.returncode, 0)
            self.assertEqual(self.sql("SELECT shown FROM seen"), "300000")
            if said & {"t|t_a_key|t", "t|tb|t"}:
                break
        self.assertTrue(said & {"t|t_a_key|t", "t|tb|t"}, said)


def lines(count=ROWS, extra=""):
    """CSV lines with unique keys in no order."""
    return "".join(f"{n * 7919 % 100003},{'word' * (n % 9)} {n % 501}\n" for n in range(count)) + extra


class OneIndex(OnCluster):
    """Tables with one index."""

    def load(self, table, content, settings=""):
        """Loads a new table: index `i` passes amcheck and has the stock build's pages; returns how it was built."""
        path = self.cluster.file("input", content.encode())
        said = self.sql(
            f"DROP TABLE IF EXISTS t; SET pgsluice.copy = on; {settings} BEGIN; {table};"
            f"COPY t FROM '{path}' WITH (FORMAT csv, pgsluice 'require'); COMMIT; {LAST}"
        )
        check(self.cluster, "i")
        kept = pages(self.cluster, "i")
        self.sql("SET max_parallel_maintenance_workers = 0; REINDEX INDEX i")
        self.assertTrue(kept == pages(self.cluster, "i"))
        return said

    def test_keys_of_all_kinds(self):
        """Numbers, text of C and of another collation, and several columns: the index has the stock build's pages, built by one process or several."""
        for index in ("UNIQUE INDEX i ON t (a)", "INDEX i ON t (b)", "INDEX i ON t (b DESC, a)",
                      'INDEX i ON t (b COLLATE "C") INCLUDE (a)'):
            for workers in (0, 2):
                said = self.load(f"CREATE TABLE t (a int, b text); CREATE {index}", lines(),
                                 f"SET pgsluice.workers = {workers};")
                self.assertEqual(said, "sorted pages", index)

    def test_runs_are_spilled(self):
        """If memory does not hold all keys, runs are spilled, and the index has the stock build's pages."""
        for column in ("a", "b"):
            said = self.load(f"CREATE TABLE t (a int, b text); CREATE INDEX i ON t ({column})", lines(),
                             "SET maintenance_work_mem = '1MB';")
            self.assertEqual(said, "sorted pages")
        path = self.cluster.home / "input"
        self.assertEqual(self.sql(
            "DROP TABLE t; SET pgsluice.copy = on; SET maintenance_work_mem = '1MB'; BEGIN;"
            f"CREATE TABLE t (a int, b text); CREATE INDEX i ON t (a); COPY t FROM '{path}' CSV; COMMIT;"
            "SELECT rows, spilled_bytes > 0 FROM pgsluice.last_index_build"), f"{ROWS}|t")

    def test_a_value_that_an_index_stores_in_another_form(self):
        """An index on a value that it stores in another form than the row, which is longer than the core takes, has the stock build's pages."""
        long = f"-1,{'long' * 300}\n"
        said = self.load("CREATE TABLE t (a int, b text); CREATE INDEX i ON t (b)", lines(extra=long))
        self.assertEqual(said, "sorted pages")
        said = self.load("CREATE TABLE t (a int, b text); CREATE INDEX i ON t (a)", lines(extra=long))
        self.assertEqual(said, "sorted pages")

    def test_rows_that_something_else_puts_there(self):
        """If a domain's CHECK inserts into the table without being declared volatile, its rows are in the index, which is then built by reading the table."""
        table = (
            "SET check_function_bodies = off;"
            "CREATE FUNCTION add(x int) RETURNS void LANGUAGE sql AS $$ INSERT INTO t VALUES (-x * 9973, 'more') $$;"
            "CREATE FUNCTION more(x int) RETURNS bool LANGUAGE plpgsql STABLE AS $$ BEGIN"
            " IF x % 9973 = 1 THEN PERFORM add(x); END IF; RETURN true; END $$;"
            "CREATE DOMAIN adding AS int CHECK (more(VALUE)); CREATE TABLE t (a adding, b text); CREATE INDEX i ON t (a)"
        )
        self.assertEqual(self.load(table, lines()), "sorted pages")
        self.assertGreater(int(self.sql("SELECT count(*) FROM t")), ROWS)


if __name__ == "__main__":
    unittest.main()
