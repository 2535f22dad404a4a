"""on_duplicate in private tables: duplicates are resolved at the end of the load, but row by row if the table has rows.

The oracle is the row-by-row method, which the same COPY uses for a live table.
"""

import random
import re
import string
import unittest

from .cluster import OnCluster, Refused
from .twins import BOTH, check, refusal

CASES = (
    # table, the index that decides what a duplicate is, whether duplicates are resolved at the end
    ("a int PRIMARY KEY, b int, c text", "t_pkey", True),
    ("a int, b int, c text, UNIQUE (a, b)", "t_a_b_key", True),
    ("a int, b int, c text, UNIQUE NULLS NOT DISTINCT (b)", "t_b_key", True),
    ("a int, b int, c text COLLATE {icu} UNIQUE", "t_c_key", True),
    ("a int, b int, c text COLLATE \"C\" UNIQUE", "t_c_key", True),
    ("a int PRIMARY KEY, b int, c text COLLATE \"C\" UNIQUE", "t_c_key", False),
)
LEFT = "SELECT a, b, c FROM t ORDER BY a, b, c"
LOST = "SELECT line, key, lost_row FROM twice ORDER BY line, lost_row"
SAID = "SELECT rows, duplicates_skipped, duplicates_replaced FROM pgsluice.last_copy"
WAYS = "SELECT i ->> 'index', i ->> 'way' FROM pgsluice.last_copy, jsonb_array_elements(indexes::jsonb) i ORDER BY 1"
LOCKED = ", lock 'exclusive'"
# More distinct keys than fit into a megabyte for ranking, in rows so wide that indexes soon wait for the end.
MANY = [f"{n},{n * 7919 % 1000003},word {n}{'x' * 200}\n" for n in range(30000)]


def with_key(at, column, of):
    """Line `at` of MANY, with one column from line `of`."""
    fields = MANY[at].split(",")
    fields[column] = MANY[of].split(",")[column]
    return ",".join(fields)


def data(seed, count, unique):
    """Lines with many duplicates, NULL keys and values of two lines."""
    chance = random.Random(seed)
    lines = []
    for n in range(count):
        a = n if unique else chance.randrange(count // 4)
        b = "" if chance.random() < 0.3 else chance.randrange(4 if not unique else count // 3)
        c = f'"two\nlines {chance.randrange(count // 3)}"' if n % 10 == 3 else f"wörd {chance.randrange(count // 3)}"
        lines.append(f"{a},{b},{c}\n")
    return "".join(lines).encode()


class Told(OnCluster):
    """Both methods leave the same rows, counts and duplicates."""

    settings = ["shared_preload_libraries = ''"]

    def fresh(self, columns, more=""):
        """A fresh table and a fresh table for duplicates."""
        self.cluster.sql("SET client_min_messages = error; DROP TABLE IF EXISTS t, twice; CREATE TABLE twice (LIKE pgsluice.duplicate);"
                         f"CREATE TABLE t ({columns}); {more}")

    def load(self, mode, index, workers, private, settings="", options=""):
        """Loads the file into the emptied table; returns the counts, the rows and the duplicates."""
        path = self.cluster.home / "input"
        self.cluster.sql("TRUNCATE t, twice")
        inside = (f"BEGIN; TRUNCATE t; {settings}", "COMMIT;") if private else ("", "")
        said = self.cluster.sql(
            f"{inside[0]} COPY t FROM '{path}' WITH (FORMAT csv, workers {workers}, on_duplicate '{mode}',"
            f" on_duplicate_index '{index}', duplicates_to 'twice'{options}); {inside[1]} {SAID}; {LEFT}; {LOST}")
        return said.split("\n")

    def built(self, mode, index):
        """Whether a load into a private table resolved the duplicates at its end."""
        path = self.cluster.home / "input"
        return self.cluster.sql(f"BEGIN; TRUNCATE t; COPY t FROM '{path}' WITH (FORMAT csv, on_duplicate '{mode}',"
                                f" on_duplicate_index '{index}'); COMMIT; SELECT method FROM pgsluice.last_index_build") == "sorted"

    def test_as_row_by_row(self):
        """On random data with many duplicates, keys of several columns, NULLs and text, 'skip' and 'replace' leave what they leave row by row, workers or not."""
        # Not every server is built with ICU.
        icu = self.cluster.sql("SELECT coalesce((SELECT quote_ident(collname) FROM pg_collation WHERE collname = 'und-x-icu'), '\"default\"')")
        for number, (columns, index, at_end) in enumerate(CASES):
            self.fresh(columns.format(icu=icu), "CREATE INDEX tb ON t (b DESC, a)")
            # If another key is unique, too, it must not cause errors.
            self.cluster.file("input", data(number, 3000, "PRIMARY" in columns and index != "t_pkey"))
            for mode in ("skip", "replace"):
                wanted = self.load(mode, index, 0, private=False)
                self.assertNotIn(wanted[0].split("|")[1:], (["0", "0"],), "no duplicates")
                for workers in (0, 1):
                    self.assertEqual(self.load(mode, index, workers, private=True), wanted, (columns, mode, workers))
                self.assertEqual(self.built(mode, index), at_end, (columns, mode))
                for one in (index, "tb"):
                    check(self.cluster, one)
                self.cluster.sql("VACUUM t")
                for one in (index, "tb"):
                    check(self.cluster, one)
                self.cluster.sql("INSERT INTO t SELECT a + 1000000, b + 1000000, c || 'x' FROM t WHERE b IS NOT NULL")

    def test_long_values_and_a_rollback(self):
        """Rows with out-of-line values are resolved as row by row; ROLLBACK TO a savepoint restores the rows from before the load."""
        self.fresh("a int PRIMARY KEY, b int, c text", "ALTER TABLE t ALTER c SET STORAGE EXTERNAL")
        self.cluster.file("input", b"".join(b"%d,%d,%s\n" % (n % 50, n, b"%d" % n * 3000) for n in range(120)))
        for mode in ("skip", "replace"):
            wanted = self.load(mode, "t_pkey", 0, private=False)
            self.assertEqual(self.load(mode, "t_pkey", 0, private=True), wanted)
            path = self.cluster.home / "input"
            left = self.cluster.sql(
                f"BEGIN; TRUNCATE t; INSERT INTO t VALUES (1, 1, 'there'); SAVEPOINT s; TRUNCATE t; COPY t FROM '{path}' WITH (FORMAT csv,"
                f" on_duplicate '{mode}'); ROLLBACK TO s; COMMIT; {LEFT}")
            self.assertEqual(left, "1|1|there")
            check(self.cluster, "t_pkey")

    def test_whole_pages_spilled_and_a_crash(self):
        """A load of whole pages that sorts in temporary files leaves what it leaves row by row; if the server is
        killed after the commit, all of it is still there."""
        self.fresh("a int PRIMARY KEY, b int, c text", "CREATE INDEX tb ON t (b, a)")
        chance = random.Random(9)
        self.cluster.file("input", "".join(f"{chance.randrange(30000)},{n},{'wide' * 9}\n" for n in range(40000)).encode())
        for mode in ("skip", "replace"):
            wanted = self.load(mode, "t_pkey", 0, private=False)
            self.assertEqual(self.load(mode, "t_pkey", 1, True, "SET LOCAL maintenance_work_mem = '1MB';"), wanted)
            self.cluster.kill()
            self.cluster.start()
            self.assertEqual(self.cluster.sql(f"{LEFT}; {LOST}").split("\n"), wanted[1:])
            for one in ("t_pkey", "tb"):
                check(self.cluster, one)

    def test_locked_and_empty(self):
        """In an empty table with lock 'exclusive', TIDs follow the order of the data even if rows differ in length:
        results are as row by row, and an error names the right lines."""
        self.fresh("a int PRIMARY KEY, b int, c text")
        for count in (900, 3000):
            chance = random.Random(count)
            self.cluster.file("input", "".join(
                f"{chance.randrange(count // 5)},{n},{'w' * chance.choice((1, 300, 1500))}\n" for n in range(count)).encode())
            for mode in ("skip", "replace"):
                wanted = self.load(mode, "t_pkey", 0, private=False)
                for workers in (0, 1):
                    self.assertEqual(self.load(mode, "t_pkey", workers, private=False, options=LOCKED), wanted, (mode, workers))
                    self.assertEqual(self.cluster.sql(f"TRUNCATE t; COPY t FROM '{self.cluster.home / 'input'}' WITH (FORMAT csv,"
                                                      f" on_duplicate '{mode}'{LOCKED}); {WAYS}"), "t_pkey|build")
                check(self.cluster, "t_pkey")
        self.cluster.file("input", "".join(f"{n % 4000},{n},{'w' * chance.choice((1, 300, 1500))}\n" for n in range(6000)).encode())
        said = refusal(self.cluster, f"TRUNCATE t; COPY t FROM '{self.cluster.home / 'input'}' WITH (FORMAT csv{LOCKED}) WHERE a >= 0")
        self.assertIn("COPY t, line 4001", said)
        self.assertEqual(BOTH.findall(said), [("1", "4001")], said)

    def test_lines_that_are_not_kept(self):
        """Lines of records of several lines take a quarter of maintenance_work_mem at most: later duplicates have no line, and none has a wrong one."""
        self.fresh("a int PRIMARY KEY, b int, c text")
        keys = [n - 1 if n % 1000 == 999 else n for n in range(90_000)]
        path = self.cluster.file("input", "".join(f'{key},{n},"two\nlines"\n' for n, key in enumerate(keys)).encode())
        lines = []
        for settings in ("", "SET LOCAL maintenance_work_mem = '1MB';"):
            lines.append(self.cluster.sql(f"TRUNCATE twice; BEGIN; TRUNCATE t; {settings} COPY t FROM '{path}' WITH (FORMAT csv, on_duplicate 'skip',"
                                          " duplicates_to 'twice'); COMMIT; SELECT coalesce(line, 0) FROM twice ORDER BY split_part(lost_row, ',', 2)::int").split("\n"))
        self.assertEqual(lines[0], [str(2 * n + 1) for n in range(999, 90_000, 1000)])
        known = lines[1].index("0")
        # Four bytes for each row of a quarter of a megabyte.
        self.assertIn(known, range(60, 66))
        self.assertEqual(lines[1], lines[0][:known] + ["0"] * (90 - known))
        said = []
        for settings in ("", "SET LOCAL maintenance_work_mem = '1MB';"):
            self.cluster.file("input", "".join(f'{min(n, 88_000)},{n},"two\nlines"\n' for n in range(88_002)).encode())
            said.append(refusal(self.cluster, f"SET pgsluice.copy = on; BEGIN; TRUNCATE t; {settings} COPY t FROM '{path}' WITH (FORMAT csv)"))
        self.assertEqual(BOTH.findall(said[0]), [("176001", "176003")])
        self.assertEqual(said[1], BOTH.sub("", said[0]).replace("line 176003", "line 0"))

    def test_memory_of_lost_rows(self):
        """What the server keeps of the transaction's commands does not grow with the rows that duplicates_to gets, also
        if their values are stored out of line."""
        held = "SELECT sum(used_bytes) FROM pg_backend_memory_contexts WHERE name IN ('TopTransactionContext', 'Combo CIDs')"
        self.fresh("a int PRIMARY KEY, b int, c text", "ALTER TABLE t ALTER c SET STORAGE EXTERNAL")
        for length, count in ((1, 60_000), (2100, 10_000)):
            path = self.cluster.file("input", "".join(f"{n % 100},{n},{'x' * length}\n" for n in range(count)).encode())
            for mode, left in (("skip", range(100)), ("replace", range(count - 100, count))):
                said = self.cluster.sql(
                    f"TRUNCATE twice; BEGIN; TRUNCATE t; COPY t FROM '{path}' WITH (FORMAT csv, on_duplicate '{mode}', duplicates_to 'twice');"
                    f" {held}; {WAYS}; COMMIT; SELECT count(*), sum(b) FROM t; SELECT count(*) FROM twice").split("\n")
                self.assertEqual(said[1:], ["t_pkey|build", f"100|{sum(left)}", str(count - 100)])
                # A pair of commands takes about 50 bytes.
                self.assertLess(int(said[0]), 200_000, (length, mode))

    def load_into_rows(self, options):
        """Loads the file into a table with live and dead rows; returns each index's method, and what the load reports and leaves."""
        self.cluster.sql(
            "TRUNCATE t, twice, bad; INSERT INTO t SELECT n, -n, repeat('p', 300) FROM generate_series(0, 2499) n;"
            "DELETE FROM t WHERE a % 5 = 0; UPDATE t SET a = a + 100000 WHERE a % 7 = 0; UPDATE t SET c = 'hot' WHERE a % 11 = 0")
        said = self.cluster.sql(f"COPY t FROM '{self.cluster.home / 'input'}' WITH (FORMAT csv{options}); {WAYS}; {SAID};"
                                f"{LEFT}; {LOST}; SELECT line, sqlstate, record FROM bad ORDER BY line").split("\n")
        for one in ("t_pkey", "tb"):
            check(self.cluster, one)
        return dict(line.split("|") for line in said[:2]), said[2:]

    def test_locked_with_rows(self):
        """With lock 'exclusive' and rows in the table, on_duplicate has each index maintained row by row; rows,
        duplicates and rejects are those without the lock."""
        self.fresh("a int PRIMARY KEY CHECK (a <> 9999), b int, c text", "CREATE INDEX tb ON t (b DESC, a);"
                   "DROP TABLE IF EXISTS bad; CREATE TABLE bad (LIKE pgsluice.reject)")
        chance = random.Random(4)
        lines = [(key, n, "x" * 400) for n, key in enumerate(chance.sample(range(-9000, 0), 6500))]
        self.cluster.file("input", "".join("%d,%d,%s\n" % line for line in lines).encode())
        self.assertEqual(self.load_into_rows(LOCKED)[0], {"t_pkey": "merge", "tb": "merge"}, "the load is too small to be of use here")
        there = {a + 100000 if a % 7 == 0 else a: -a for a in range(2500) if a % 5}
        lines = [(key, n, "x" * chance.randrange(500, 900)) for n, key in enumerate(chance.choices(range(9000), k=6500))]
        for bad in (False, True):
            wrong = {n: chance.choice(("x,1,y\n", "1\n", f"9999,{n},y\n")) for n in range(0, 6500, 900)} if bad else {}
            good = [line for line in lines if line[1] not in wrong]
            self.cluster.file("input", "".join(wrong.get(line[1], "%d,%d,%s\n" % line) for line in lines).encode())
            for mode in ("skip", "replace"):
                options = f", on_duplicate '{mode}', duplicates_to 'twice'" + (", rejects_to 'bad'" if bad else "")
                wanted = self.load_into_rows(options)
                self.assertEqual(wanted[0], {"t_pkey": "row", "tb": "row"})
                self.assertEqual(self.load_into_rows(options + LOCKED), wanted, (mode, bad))
                left = dict(there)
                for a, b, _ in good:
                    left[a] = left.get(a, b) if mode == "skip" else b
                self.assertEqual(self.cluster.sql("SELECT a, b FROM t ORDER BY a").split("\n"), [f"{a}|{b}" for a, b in sorted(left.items())])
                self.assertEqual(self.cluster.sql("SELECT count(*) FROM bad"), str(len(wrong)))
                self.assertEqual(self.cluster.sql("SELECT count(*) FROM twice"), str(len(good) + len(there) - len(left)))

    def test_what_is_watched(self):
        """With another unique key or a row trigger, duplicates are resolved row by row: the error and the fired triggers are the same."""
        self.fresh("a int PRIMARY KEY, b int UNIQUE, c text")
        self.cluster.file("input", b"1,5,x\n2,5,x\n1,6,x\n")
        refusals = []
        for private in (False, True):
            with self.assertRaises(Refused) as refused:
                self.load("replace", "t_pkey", 0, private)
            refusals.append(str(refused.exception))
        self.assertEqual(*refusals)
        self.assertIn("COPY t, line 2", refusals[0])
        self.fresh("a int PRIMARY KEY, b int, c text", "CREATE TABLE said (a int, b int); CREATE FUNCTION say() RETURNS trigger LANGUAGE plpgsql AS"
                         " $$ BEGIN INSERT INTO said VALUES (NEW.a, NEW.b); RETURN NEW; END $$;"
                         "CREATE TRIGGER say AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION say()")
        self.load("skip", "t_pkey", 0, private=True)
        self.assertEqual(self.cluster.sql("SELECT * FROM said"), "1|5\n2|5")

    def test_a_trigger_on_duplicates(self):
        """A trigger on the duplicates_to table can read the loaded table by its indexes: the result is that of row by row."""
        self.fresh("a int PRIMARY KEY, b int, c text", "CREATE INDEX tb ON t (b); CREATE OR REPLACE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS"
                   " $$ BEGIN PERFORM 1 FROM t WHERE b = 5; RETURN NULL; END $$;"
                   "CREATE TRIGGER look AFTER INSERT ON twice FOR EACH ROW EXECUTE FUNCTION look()")
        self.cluster.file("input", b"1,5,x\n2,5,x\n1,6,x\n")
        for mode in ("skip", "replace"):
            wanted = self.load(mode, "t_pkey", 0, private=False)
            self.assertEqual(self.load(mode, "t_pkey", 0, private=True), wanted)
            self.assertEqual(wanted[0], "2|1|0" if mode == "skip" else "3|0|1")

    def test_code_of_the_table_for_duplicates(self):
        """A default, CHECK, policy, index or domain of the duplicates_to table that reads the loaded table by its indexes: the rows are those of row by row."""
        self.cluster.file("input", b"1,5,x\n2,5,x\n1,6,x\n")
        self.fresh("a int PRIMARY KEY, b int, c text", "CREATE INDEX tb ON t (b); CREATE OR REPLACE FUNCTION so_far(int) RETURNS bigint STABLE LANGUAGE plpgsql AS"
                   " 'BEGIN RETURN (SELECT count(*) FROM public.t WHERE b = $1); END'; DROP DOMAIN IF EXISTS seen; CREATE DOMAIN seen AS int CHECK (so_far(VALUE) >= 0)")
        for code in ("ADD n bigint DEFAULT so_far(5)", "ADD CHECK (so_far(5) >= 0)", "ADD n seen DEFAULT 5",
                     "ADD n int; ALTER FUNCTION so_far IMMUTABLE; CREATE INDEX ON twice (so_far(5))"):
            self.cluster.sql(f"DROP TABLE twice; CREATE TABLE twice (LIKE pgsluice.duplicate); ALTER TABLE twice {code}")
            wanted = self.load("skip", "t_pkey", 0, private=False)
            self.assertEqual(self.load("skip", "t_pkey", 0, private=True), wanted, code)
            self.assertEqual(wanted[0], "2|1|0")
        self.cluster.sql("DROP TABLE twice; ALTER FUNCTION so_far IMMUTABLE; CREATE TABLE many (LIKE pgsluice.duplicate)"
                         " PARTITION BY LIST ((so_far(line::int) >= 0)); CREATE TABLE twice PARTITION OF many FOR VALUES IN (true)")
        wanted = self.load("skip", "t_pkey", 0, private=False)
        self.assertEqual(self.load("skip", "t_pkey", 0, private=True), wanted)
        self.cluster.sql("DROP TABLE many; CREATE TABLE twice (LIKE pgsluice.duplicate)")

    def test_keys_that_only_the_server_sorts(self):
        """More distinct keys than can be ranked, NULLs, equal keys of different form and compressed keys are resolved
        as row by row; a key that is too long is the same error."""
        chance = random.Random(6)
        keys = [f"{chance.randrange(9000)}{chance.choice(('', '.0', '.00'))}" if chance.random() < 0.9 else "" for _ in range(20000)]
        long = [f"{'long ' * 900}{chance.randrange(300)}" if n % 30 == 0 else f"{chance.randrange(9000)}" for n in range(20000)]
        noise = "".join(chance.choices(string.ascii_letters, k=4000))
        for kind, index, values in (("numeric UNIQUE", "t_c_key", keys), ("numeric, UNIQUE NULLS NOT DISTINCT (c, b)", "t_c_b_key", keys),
                                    ("text UNIQUE", "t_c_key", long)):
            self.fresh(f"a int, b int, c {kind}", "CREATE INDEX tb ON t (b DESC, a)")
            lines = [f"{n},{n % 7},{value}\n" for n, value in enumerate(values)]
            for mode in ("skip", "replace"):
                self.cluster.file("input", "".join(lines).encode())
                wanted = self.load(mode, index, 0, private=False)
                self.assertNotIn(wanted[0].split("|")[1:], (["0", "0"],), "no duplicates")
                for workers in (0, 1):
                    self.assertEqual(self.load(mode, index, workers, True, "SET LOCAL maintenance_work_mem = '1MB';"), wanted, (kind, mode))
                self.assertEqual(self.cluster.sql(f"BEGIN; SET LOCAL maintenance_work_mem = '1MB'; TRUNCATE t; COPY t FROM '{self.cluster.home / 'input'}'"
                                                  f" WITH (FORMAT csv, on_duplicate '{mode}', on_duplicate_index '{index}'); COMMIT; {WAYS}"), f"{index}|build\ntb|build")
                for one in (index, "tb"):
                    check(self.cluster, one)
                if kind != "text UNIQUE":
                    continue
                self.cluster.file("input", "".join(lines[:15000] + [f"1,2,{noise}\n"] + lines[15000:]).encode())
                refusals = []
                for private in (False, True):
                    with self.assertRaises(Refused) as refused:
                        self.load(mode, index, 0, private)
                    refusals.append(re.sub(r"psql:<stdin>:\d+: |DETAIL:  Index row references .*\n|LOCATION:.*", "", str(refused.exception)))
                self.assertEqual(*refusals)
                self.assertIn("COPY t, line 15001", refusals[0])

    def refused(self, table, lines):
        """Loads the lines by stock COPY and by the extension; asserts equal errors, and returns the error."""
        path = self.cluster.file("input", "".join(lines).encode())
        said = [refusal(self.cluster, f"SET client_min_messages = error; DROP TABLE IF EXISTS t; SET maintenance_work_mem = '1MB'; SET pgsluice.copy = {setting};"
                                      f"BEGIN; {table} COPY t FROM '{path}' WITH (FORMAT csv); COMMIT") or "" for setting in ("off", "on")]
        self.assertEqual(said[0], BOTH.sub("", said[1]))
        return said[0]

    def test_more_values_than_can_be_ranked(self):
        """If there are too many distinct keys to rank, the stock build takes over; the error is stock COPY's, for the first row that violates any index."""
        path = self.cluster.file("input", "".join(MANY).encode())
        said = self.cluster.sql("DROP TABLE IF EXISTS t; SET maintenance_work_mem = '1MB'; BEGIN; CREATE TABLE t (a int, b numeric UNIQUE, c text);"
                                f"COPY t FROM '{path}' WITH (FORMAT csv, pgsluice 'require'); COMMIT; SELECT method, fell_back_because FROM pgsluice.last_index_build;"
                                "SELECT i ->> 'way', i ->> 'because' FROM pgsluice.last_copy, jsonb_array_elements(indexes) i")
        because = "too many different values of a kind that the server has to compare"
        self.assertEqual(said, f"stock|{because}\nbuild|{because}")
        check(self.cluster, "t_b_key")
        icu = self.cluster.sql("SELECT coalesce((SELECT quote_ident(collname) FROM pg_collation WHERE collname = 'und-x-icu'), '\"default\"')")
        for kind in ("numeric", f"text COLLATE {icu}"):
            table = f"CREATE TABLE t (a int, b {kind} UNIQUE, c text);"
            self.assertEqual(self.refused(table, MANY), "")
            self.assertEqual(self.cluster.sql("SELECT count(*) FROM t"), "30000")
            check(self.cluster, "t_b_key")
            for at, of in ((20000, 3), (20001, 20000), (29999, 15000)):
                self.assertIn(f"COPY t, line {at + 1}\n", self.refused(table, MANY[:at] + [with_key(at, 1, of)] + MANY[at + 1:]))
            self.assertIn("COPY t, line 12001\n", self.refused(table, MANY[:12000] + [MANY[9]] + MANY[12000:25000] + [MANY[100]] + MANY[25000:]))
            # If several indexes have violations, the first such row decides, and for one row the first index.
            tables = (f"CREATE TABLE t (a int PRIMARY KEY, b {kind} UNIQUE, c text); CREATE UNIQUE INDEX te ON t (upper(c));",
                      f"CREATE TABLE t (a int, b {kind}, c text); CREATE UNIQUE INDEX te ON t (upper(c));"
                      "ALTER TABLE t ADD UNIQUE (b); ALTER TABLE t ADD PRIMARY KEY (a);")
            for table in tables:
                for first, second in ((0, 1), (1, 0), (1, 2), (2, 1)):
                    lines = list(MANY)
                    lines[15000], lines[20000] = with_key(15000, first, 14000), with_key(20000, second, 13000)
                    said = self.refused(table, lines)
                    self.assertIn(f'unique constraint "{("t_pkey", "t_b_key", "te")[first]}"', said)
                    self.assertIn("COPY t, line 15001\n", said)
                for again in (MANY[7], f"{MANY[7].rsplit(',', 1)[0]},other\n", f"-1,{MANY[7].split(',', 1)[1]}"):
                    self.assertIn("COPY t, line 25001\n", self.refused(table, MANY[:25000] + [again] + MANY[25000:]))

    def test_rows_of_a_function(self):
        """A row that a function called by the COPY inserts is checked, too: if the load has the same key, it fails with a duplicate-key error."""
        self.cluster.sql("CREATE FUNCTION also(x int) RETURNS bool LANGUAGE plpgsql AS"
                         " $$ BEGIN IF x = 1500 THEN INSERT INTO t VALUES (7), (9999); END IF; RETURN true; END $$;"
                         "CREATE DOMAIN adding AS int CHECK (also(VALUE))")
        self.cluster.file("input", b"".join(b"%d,1,x\n" % n for n in range(3000)))
        for columns in ("a int PRIMARY KEY CHECK (also(a)), b int, c text", "a adding PRIMARY KEY, b int, c text"):
            self.fresh(columns)
            for private in (False, True):
                with self.assertRaises(Refused) as refused:
                    self.load("skip", "t_pkey", 0, private)
                self.assertIn('23505: duplicate key value violates unique constraint "t_pkey"', str(refused.exception))


if __name__ == "__main__":
    unittest.main()
