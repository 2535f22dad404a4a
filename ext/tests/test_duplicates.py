"""COPY's options on_duplicate, on_duplicate_index, duplicates_to and lock.

The oracle is INSERT … ON CONFLICT, one statement for each row.
"""

import random
import subprocess
import unittest

from .cluster import MAJOR, Held, OnCluster, Refused

TABLE = "CREATE TABLE t (a int PRIMARY KEY, b text, c int UNIQUE)"
ROWS = "SELECT * FROM t ORDER BY a"


class Duplicates(OnCluster):
    """Rows whose key already exists in the table, or earlier in the data."""

    settings = ["shared_preload_libraries = ''"]
    prepared = "CREATE ROLE loader LOGIN"

    def fresh(self, table=TABLE):
        """A fresh table and a fresh one for duplicates."""
        self.cluster.sql(f"SET client_min_messages = error; DROP TABLE IF EXISTS t CASCADE; {table};"
                        "DROP TABLE IF EXISTS twice; CREATE TABLE twice (LIKE pgsluice.duplicate)")

    def load(self, data, options, target="t", more="SELECT rows, duplicates_skipped, duplicates_replaced FROM pgsluice.last_copy"):
        """Runs one load; returns its counts."""
        path = self.cluster.file("input", data)
        return self.cluster.sql(f"SET client_min_messages = error; COPY {target} FROM '{path}' WITH (FORMAT csv, {options}); {more}")

    def insert(self, rows, conflict):
        """Inserts the same rows, one INSERT for each."""
        self.cluster.sql("BEGIN;" + "".join(f"INSERT INTO t VALUES ({row}) ON CONFLICT {conflict};" for row in rows) + "COMMIT")

    def test_as_insert_on_conflict(self):
        """For random keys, 'skip' and 'replace' leave the rows that ON CONFLICT leaves row by row, workers or not; duplicates_to gets every lost row."""
        rng = random.Random(3)
        rows = [f"{rng.randrange(900)},'row {i}',{i}" for i in range(2500)]
        data = "\n".join(rows).replace("'", "").encode() + b"\n"
        there = "INSERT INTO t SELECT a, 'there', -a - 1 FROM generate_series(0, 899, 7) a;"
        for mode, conflict in (("skip", "(a) DO NOTHING"),
                               ("replace", "(a) DO UPDATE SET b = EXCLUDED.b, c = EXCLUDED.c")):
            self.fresh()
            self.cluster.sql(there)
            self.insert(rows, conflict)
            wanted = self.cluster.sql(ROWS)
            for workers in (0, 2):
                self.fresh()
                self.cluster.sql(there)
                rest = 2500 - len({row.split(",")[0] for row in rows} - {str(a) for a in range(0, 900, 7)})
                said = self.load(data, f"on_duplicate '{mode}', duplicates_to 'twice', workers {workers}")
                self.assertEqual(self.cluster.sql(ROWS), wanted)
                self.assertEqual(said, f"{2500 - rest}|{rest}|0" if mode == "skip" else f"2500|0|{rest}")
                self.assertEqual(self.cluster.sql("SELECT count(*), count(DISTINCT line) FROM twice"), f"{rest}|{rest}")
                # No row is lost: the table and duplicates_to together hold all rows.
                lost = "SELECT (lost_row::t).* FROM twice"
                self.assertEqual(self.cluster.sql(f"SELECT count(*) FROM ({lost} UNION ALL TABLE t) x"),
                                 str(2500 + 129))
                self.assertEqual(self.cluster.sql(f"SELECT count(*) FROM ({lost} UNION TABLE t) x"), str(2500 + 129))

    def test_other_keys(self):
        """A violation of another unique key is stock COPY's error; on_duplicate_index selects the index that decides, also one with an expression or predicate."""
        self.fresh()
        with self.assertRaises(Refused) as refused:
            self.load(b"1,a,1\n1,b,2\n3,c,1\n", "on_duplicate 'skip'")
        self.assertIn('23505: duplicate key value violates unique constraint "t_c_key"', str(refused.exception))
        self.assertIn("COPY t, line 3", str(refused.exception))
        self.assertEqual(self.cluster.sql(ROWS), "")
        self.assertEqual(self.load(b"1,a,1\n2,b,1\n3,c,\n4,d,\n", "on_duplicate 'replace', on_duplicate_index 't_c_key'"), "4|0|1")
        self.assertEqual(self.cluster.sql(ROWS), "2|b|1\n3|c|\n4|d|")
        self.fresh("CREATE TABLE t (a int, b text); CREATE UNIQUE INDEX u ON t (lower(b)) WHERE a > 0")
        self.assertEqual(self.load(b"1,X\n2,x\n0,x\n3,y\n", "on_duplicate 'skip', on_duplicate_index 'u', duplicates_to 'twice'"), "3|1|0")
        self.assertEqual(self.cluster.sql(ROWS), "0|x\n1|X\n3|y")
        self.assertEqual(self.cluster.sql("SELECT * FROM twice"), "2|(lower(b))=(x)|(2,x)")

    def test_many_by_an_expression(self):
        """With an index on an expression, memory does not grow with each skipped row: 30,000 more of them need less than 20 MB."""
        self.fresh("CREATE TABLE t (a int, b text); CREATE UNIQUE INDEX u ON t ((a + 1))")
        high = "SELECT substring(pg_read_file('/proc/self/status') FROM 'VmHWM:\\s+(\\d+)')"
        load = "COPY t FROM '{}' WITH (FORMAT csv, on_duplicate 'skip', on_duplicate_index 'u', duplicates_to 'twice')"
        few, many = (self.cluster.file(str(count), b"7,x\n" * count) for count in (2000, 30000))
        said = self.cluster.sql(f"{load.format(few)}; {high}; {load.format(many)}; {high}; SELECT count(*) FROM twice").split("\n")
        self.assertEqual(said[2], "31999")
        self.assertLess(int(said[1]) - int(said[0]), 20000, "kB")

    def test_rows_older_than_a_column(self):
        """A replaced row that is older than a column is kept with the column's default, and without dropped columns."""
        self.fresh("CREATE TABLE t (x int, a int PRIMARY KEY, b text); INSERT INTO t VALUES (0, 1, 'old');"
                   "ALTER TABLE t DROP x, ADD c int DEFAULT 7, ADD d text DEFAULT 'added'")
        self.load(b"1,new,2,came\n", "on_duplicate 'replace', duplicates_to 'twice'")
        self.assertEqual(self.cluster.sql("SELECT (lost_row::t).* FROM twice; SELECT * FROM t"), "1|old|7|added\n1|new|2|came")

    def test_with_rejects(self):
        """Bad records, violations of other unique keys included, go to the rejects_to table, and duplicates to the duplicates_to table."""
        self.fresh()
        self.cluster.sql("DROP TABLE IF EXISTS bad; CREATE TABLE bad (LIKE pgsluice.reject)")
        for mode, left in (("skip", "1|a|1\n2|b|2\n4|e|4"), ("replace", "1|c|3\n2|b|2\n4|e|4")):
            self.cluster.sql("TRUNCATE t, bad, twice")
            data = b"1,a,1\n2,b,2\n1,c,3\nx,d,4\n4,e,4\n5,f,2\n"
            self.load(data, f"on_duplicate '{mode}', duplicates_to 'twice', rejects_to 'bad'")
            self.assertEqual(self.cluster.sql(ROWS), left)
            self.assertEqual(self.cluster.sql("SELECT line, record FROM bad ORDER BY 1"), "4|x,d,4\n6|5,f,2")
            self.assertEqual(self.cluster.sql("SELECT line, lost_row FROM twice"), "3|(1,c,3)" if mode == "skip" else "3|(1,a,1)")

    def test_the_table_for_duplicates_refuses_a_row(self):
        """An error of the duplicates_to table is not about a record: COPY fails, and the record is not rejected."""
        for mode in ("skip", "replace"):
            self.fresh()
            self.cluster.sql("DROP TABLE IF EXISTS bad; CREATE TABLE bad (LIKE pgsluice.reject); INSERT INTO t VALUES (1, repeat('x', 200));"
                            "ALTER TABLE twice ADD CHECK (length(lost_row) < 100)")
            data = b"2,b,2\n1," + b"y" * 200 + b",1\n"
            with self.assertRaises(Refused) as refused:
                self.load(data, f"on_duplicate '{mode}', duplicates_to 'twice', rejects_to 'bad'")
            self.assertIn("23514", str(refused.exception))
            self.assertEqual(self.cluster.sql("SELECT count(*) FROM t; SELECT count(*) FROM bad"), "1\n0")

    def test_partitions_and_triggers(self):
        """With partitions whose columns have another order, and with row and statement triggers, rows, fired triggers and lost rows are those of ON CONFLICT."""
        said = ("CREATE TABLE IF NOT EXISTS said (n serial, what text); TRUNCATE said; CREATE OR REPLACE FUNCTION say() RETURNS trigger LANGUAGE plpgsql AS"
                " $$ BEGIN INSERT INTO said (what) SELECT concat_ws(' ', TG_WHEN, TG_OP, TG_LEVEL, NEW.a, NEW.b); RETURN NEW; END $$;")
        fire = ("CREATE TRIGGER s1 AFTER INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION say();"
                "CREATE TRIGGER s2 BEFORE INSERT OR UPDATE ON t FOR EACH STATEMENT EXECUTE FUNCTION say();"
                "CREATE TRIGGER s3 AFTER INSERT OR UPDATE ON t FOR EACH STATEMENT EXECUTE FUNCTION say();")
        parts = ("CREATE TABLE t (a int PRIMARY KEY, b text) PARTITION BY RANGE (a);"
                 "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (100); CREATE TABLE t2 (x int, b text, a int NOT NULL);"
                 "ALTER TABLE t2 DROP COLUMN x; ALTER TABLE t ATTACH PARTITION t2 FOR VALUES FROM (100) TO (200);")
        rows = ["1,'a'", "150,'b'", "2,'c'"]
        # Rows are inserted leaf by leaf.
        for table, order in (("CREATE TABLE t (a int PRIMARY KEY, b text);", "n"), (parts, "what")):
            for mode, conflict in (("skip", "(a) DO NOTHING"), ("replace", "(a) DO UPDATE SET b = EXCLUDED.b")):
                found = []
                for ours in (False, True):
                    self.fresh(table + said + "INSERT INTO t VALUES (1, 'x'), (150, 'y');" + fire)
                    if ours:
                        self.load(b"1,a\n150,b\n2,c\n", f"on_duplicate '{mode}', duplicates_to 'twice'")
                    else:
                        self.cluster.sql(f"INSERT INTO t VALUES {', '.join(f'({row})' for row in rows)} ON CONFLICT {conflict}")
                    found.append((self.cluster.sql(ROWS), self.cluster.sql(f"SELECT what FROM said ORDER BY {order}")))
                self.assertEqual(found[0], found[1])
                self.assertEqual(self.cluster.sql("SELECT lost_row FROM twice ORDER BY line"),
                                 '(1,a)\n(150,b)' if mode == "skip" else '(1,x)\n(150,y)')

    def test_many_rows_of_a_leaf_of_another_shape(self):
        """Each lost row of a partition with another column order is kept with the table's columns, and with its line."""
        parts = ("CREATE TABLE t (a int PRIMARY KEY, b text, c int) PARTITION BY RANGE (a); CREATE TABLE t1 (c int, x int, b text, a int NOT NULL);"
                 "ALTER TABLE t1 DROP x; ALTER TABLE t ATTACH PARTITION t1 DEFAULT")
        data = b"".join(b"%d,row %d,%d\n" % (i % 7, i, i) for i in range(3000))
        for mode, behind in (("skip", 1), ("replace", 8)):
            self.fresh(parts)
            self.load(data, f"on_duplicate '{mode}', duplicates_to 'twice'")
            self.assertEqual(self.cluster.sql(f"SELECT count(*), bool_and(a = c % 7 AND b = 'row ' || c AND line = c + {behind})"
                                              " FROM (SELECT line, (lost_row::t).* FROM twice) _"), "2993|t")

    def test_before_update(self):
        """A BEFORE UPDATE trigger changes or suppresses rows that replace others, of the table or of the load, as
        with ON CONFLICT; suppressed rows go to duplicates_to."""
        before = ("; INSERT INTO t VALUES (1, 'x', -1), (2, 'y', -2); CREATE OR REPLACE FUNCTION judge() RETURNS trigger LANGUAGE plpgsql AS"
                  " $$ BEGIN IF NEW.b = 'no' THEN RETURN NULL; END IF; NEW.b := NEW.b || ' for ' || OLD.b; RETURN NEW; END $$;"
                  "CREATE TRIGGER judge BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION judge()")
        rows = ["1,'no',1", "2,'yes',2", "3,'new',3", "2,'again',4", "3,'no',5"]
        self.fresh(TABLE + before)
        self.insert(rows, "(a) DO UPDATE SET b = EXCLUDED.b, c = EXCLUDED.c")
        wanted = self.cluster.sql(ROWS)
        self.fresh(TABLE + before)
        self.assertEqual(self.load("\n".join(rows).replace("'", "").encode(), "on_duplicate 'replace', duplicates_to 'twice'"), "3|2|2")
        self.assertEqual(self.cluster.sql(ROWS), wanted)
        self.assertEqual(self.cluster.sql("SELECT line, lost_row FROM twice ORDER BY line"), '1|(1,no,1)\n2|(2,y,-2)\n4|(2,"yes for y",2)\n5|(3,no,5)')

    @unittest.skipIf(MAJOR < 18, "WITHOUT OVERLAPS came with 18")
    def test_without_overlaps(self):
        """With a key WITHOUT OVERLAPS, 'skip' leaves out rows that overlap, like ON CONFLICT DO NOTHING; 'replace' is an error, as DO UPDATE is."""
        self.fresh("CREATE TABLE t (a int4range, b int4range, c text, PRIMARY KEY (a, b WITHOUT OVERLAPS)); INSERT INTO t VALUES ('[1,2)', '[1,10)', 'there')")
        data = b'"[1,2)","[5,15)",over\n"[1,2)","[10,15)",beside\n"[1,2)","[14,20)",over\n"[2,3)","[5,15)",other\n'
        self.assertEqual(self.load(data, "on_duplicate 'skip', duplicates_to 'twice'"), "2|2|0")
        self.assertEqual(self.cluster.sql("SELECT c FROM t ORDER BY a, b; SELECT line FROM twice ORDER BY 1"), "there\nbeside\nother\n1\n3")
        self.assertIn("cannot be used with 'replace' and a key WITHOUT OVERLAPS", self.refused("COPY t FROM '/dev/null' WITH (on_duplicate 'replace')"))

    def test_beside_writers(self):
        """While other sessions insert and update the same keys, every load succeeds, no key is there twice and none is missing."""
        for mode in ("skip", "replace"):
            self.fresh("CREATE TABLE t (a int PRIMARY KEY, b text)")
            path = self.cluster.file("wide", b"".join(b"%d,ours\n" % (i % 4000) for i in range(12000)))
            conflict = "DO NOTHING" if mode == "skip" else "DO UPDATE SET b = EXCLUDED.b"
            writers = [
                subprocess.Popen(self.cluster.command(
                    "-c", "DO $$ BEGIN FOR i IN 0..3999 LOOP INSERT INTO t VALUES ((i * %d) %% 4000, 'theirs') ON CONFLICT (a) %s;"
                    " COMMIT; END LOOP; END $$" % (step, conflict)))
                for step in (1, 3999)
            ]
            for _ in range(3):
                self.cluster.sql(f"COPY t FROM '{path}' WITH (FORMAT csv, on_duplicate '{mode}')")
            self.assertEqual([w.wait() for w in writers], [0, 0])
            self.assertEqual(self.cluster.sql("SELECT count(*), count(DISTINCT a) FROM t"), "4000|4000")

    def test_snapshots(self):
        """In REPEATABLE READ, a key that the snapshot does not see is a serialization failure, as with ON CONFLICT."""
        for mode in ("skip", "replace"):
            self.fresh()
            path = self.cluster.file("one", b"1,ours,1\n")
            session = Held(self.cluster)
            session.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM t")
            self.cluster.sql("INSERT INTO t VALUES (1, 'theirs', 9)")
            _, _, refusal = session.end(f"COPY t FROM '{path}' WITH (FORMAT csv, on_duplicate '{mode}')")
            self.assertIn("40001: could not serialize access", refusal)
            self.assertEqual(self.cluster.sql(ROWS), "1|theirs|9")

    def refused(self, sql, user="postgres"):
        """The server's error."""
        with self.assertRaises(Refused) as refused:
            self.cluster.sql(sql, user=user)
        return str(refused.exception)

    def test_rights_and_refusals(self):
        """on_duplicate needs the privileges that ON CONFLICT needs: SELECT on the key, and UPDATE to replace.
        duplicates_to needs INSERT on its table. Invalid options are errors."""
        self.fresh()
        copy = "SET client_min_messages = error; COPY t FROM STDIN WITH ({})"
        self.cluster.sql("GRANT INSERT ON t TO loader")
        denied = "42501: permission denied for table"
        self.assertIn(f"{denied} t", self.refused(copy.format("on_duplicate 'skip'"), "loader"))
        self.cluster.sql("GRANT SELECT (a) ON t TO loader")
        self.cluster.sql(copy.format("on_duplicate 'skip'"), stdin=b"", user="loader")
        self.assertIn(f"{denied} t", self.refused(copy.format("on_duplicate 'replace'"), "loader"))
        self.assertIn(f"{denied} twice", self.refused(copy.format("on_duplicate 'skip', duplicates_to 'twice'"), "loader"))
        self.cluster.sql("GRANT UPDATE ON t TO loader; GRANT INSERT ON twice TO loader")
        self.cluster.sql(copy.format("on_duplicate 'replace'"), stdin=b"", user="loader")
        self.assertIn(f"{denied} t", self.refused(copy.format("on_duplicate 'replace', duplicates_to 'twice'"), "loader"))
        for options, words in (
            ("on_duplicate 'no'", 'COPY option "on_duplicate" must be "error", "skip" or "replace"'),
            ("on_duplicate_index 't_pkey'", 'COPY option "on_duplicate_index" cannot be used with on_duplicate \'error\''),
            ("duplicates_to 'twice'", 'COPY option "duplicates_to" cannot be used with on_duplicate \'error\''),
            ("on_duplicate 'skip', on_duplicate_index 'no'", 'table "t" has no index "no"'),
            ("on_duplicate 'skip', freeze", 'COPY option "on_duplicate" cannot be used with FREEZE'),
            ("on_duplicate 'skip', duplicates_to 't'", 'COPY option "duplicates_to" names the table'),
            ("lock 'shared'", 'COPY option "lock" must be "exclusive"'),
        ):
            self.assertIn(words, self.refused(copy.format(options)))
        self.fresh("CREATE TABLE t (a int UNIQUE DEFERRABLE)")
        self.assertIn("needs a primary key", self.refused(copy.format("on_duplicate 'skip'")))
        self.assertIn("unique, valid and not deferrable", self.refused(copy.format("on_duplicate 'skip', on_duplicate_index 't_a_key'")))

    def test_lock(self):
        """lock 'exclusive' takes ACCESS EXCLUSIVE and needs the privileges of LOCK TABLE; the index of an empty table is then built at the end of the COPY."""
        self.fresh("CREATE TABLE t (a int PRIMARY KEY, b text)")
        self.cluster.sql("GRANT INSERT ON t TO loader")
        copy = "COPY t FROM STDIN WITH (FORMAT csv, lock 'exclusive')"
        self.assertIn("42501: permission denied for table t", self.refused(copy, "loader"))
        self.cluster.sql("GRANT DELETE ON t TO loader")
        self.cluster.sql(copy, stdin=b"", user="loader")
        data = self.cluster.file("input", b"".join(b"%d,row number %d of them\n" % (i, i) for i in range(60000)))
        file = "SELECT pg_relation_filenode('t_pkey');"
        held = ("SELECT mode FROM pg_locks WHERE relation = 't'::regclass AND pid = pg_backend_pid()"
                " AND mode = 'AccessExclusiveLock';")
        said = self.cluster.sql(f"{file} BEGIN; COPY t FROM '{data}' WITH (FORMAT csv, lock 'exclusive'); {held} COMMIT; {file}").split("\n")
        self.assertEqual(said[1], "AccessExclusiveLock")
        self.assertNotEqual(said[0], said[2], "the index was not rebuilt")
        self.assertEqual(self.cluster.sql("SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT b FROM t WHERE a = 59999"), "row number 59999 of them")
        self.assertIn("t_pkey", self.refused(f"COPY t FROM '{data}' WITH (FORMAT csv, lock 'exclusive')"))
        self.assertEqual(self.cluster.sql("SELECT count(*) FROM t"), "60000")


if __name__ == "__main__":
    unittest.main()
