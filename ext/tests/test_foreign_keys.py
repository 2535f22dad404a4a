"""Foreign keys: each distinct value is checked once, and rows and errors are stock COPY's."""

import re
import subprocess
import unittest

from .cluster import MAJOR, Held, OnCluster, Refused, wait_until
from .differential import compare, outcome
from .test_admin import Administered

ROWS = 30000
PARENTS = "DROP TABLE IF EXISTS p CASCADE; CREATE TABLE p (a int PRIMARY KEY, b text UNIQUE, c int, UNIQUE (a, b)); INSERT INTO p SELECT n, 'p' || n FROM generate_series(0, 99) n;"
SCANS = "SELECT pg_stat_force_next_flush(); SELECT coalesce(seq_scan, 0) + coalesce(idx_scan, 0) FROM pg_stat_user_tables WHERE relname = 'p'"
CSV = "COPY t FROM {} CSV"
# The rows of these tests go into whole pages only with it: they are fewer than 786,432 bytes.
PAGES = "SET pgsluice.debug_force_routes = on;"


def data(parent, rows=ROWS, more=b""):
    """Rows (id, a, b) whose parent is a function of their number."""
    return b"".join(b"%d,%s,%s\n" % (n, *parent(n)) for n in range(rows)) + more


def modulo(n):
    """One of a hundred parents."""
    return b"%d" % (n % 100), b"p%d" % (n % 100)


class Counted(Administered):
    """The number of checks, counted by the scans of the parent."""

    def checks(self, table, setting="on", setup="", rows=None):
        """Loads the rows; returns how often the parent was looked up."""
        path = self.cluster.file("rows", rows or data(modulo))
        self.sql(f"SET client_min_messages = warning; DROP TABLE IF EXISTS t CASCADE; {PARENTS} {table}")
        before = int(self.sql(SCANS).split()[-1])
        self.sql(f"{setup}; SET pgsluice.copy = {setting}; COPY t (id, a, b) FROM '{path}' CSV")
        return int(self.sql(SCANS).split()[-1]) - before

    def test_each_value_once(self):
        """Each distinct value is checked once, for one column, several, or two keys; NULLs are not checked. Stock COPY checks each row."""
        self.assertEqual(self.checks("CREATE TABLE t (id int, a int REFERENCES p, b text)", "off"), ROWS)
        self.assertEqual(self.checks("CREATE TABLE t (id int, a int REFERENCES p, b text)"), 100)
        self.assertEqual(self.checks("CREATE TABLE t (id int PRIMARY KEY, a int REFERENCES p, b text)"), 100)
        self.assertEqual(self.checks("CREATE TABLE t (id int PRIMARY KEY, a int REFERENCES p, b text)", setup=PAGES), 100)
        self.assertEqual(self.checks("CREATE TABLE t (id int, a int, b text, FOREIGN KEY (a, b) REFERENCES p (a, b))"), 100)
        self.assertEqual(self.checks("CREATE TABLE t (id int, a int REFERENCES p, b text REFERENCES p (b))"), 200)
        nulls = data(lambda n: (b"", b"p1") if n % 2 else modulo(n))
        self.assertEqual(self.checks("CREATE TABLE t (id int, a int, b text, FOREIGN KEY (a, b) REFERENCES p (a, b))", rows=nulls), 50)

    def test_partitions(self):
        """Each partition checks its own values once."""
        table = "CREATE TABLE t (id int, a int REFERENCES p, b text) PARTITION BY HASH (id);" + "".join(
            f"CREATE TABLE t{n} PARTITION OF t FOR VALUES WITH (MODULUS 4, REMAINDER {n});" for n in range(4))
        self.assertEqual(self.checks(table, "off"), ROWS)
        self.assertEqual(self.checks(table), 400)

    def test_each_row_where_it_has_to_be(self):
        """Each row is checked if the key is deferrable, a CHECK constraint is volatile, or a row trigger may change
        rows before their check; in replica mode, none is."""
        nothing = "CREATE OR REPLACE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; "
        trigger = nothing + "CREATE TABLE t (id int, a int REFERENCES p, b text); CREATE TRIGGER after AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION nothing()"
        cases = [
            ("CREATE TABLE t (id int, a int REFERENCES p DEFERRABLE, b text)", ROWS),
            ("CREATE TABLE t (id int, a int REFERENCES p DEFERRABLE INITIALLY DEFERRED, b text)", ROWS),
            ("CREATE TABLE t (id int, a int REFERENCES p, b text, c double precision DEFAULT random())", 100),
            ("CREATE TABLE t (id int CHECK (random() < 2), a int REFERENCES p, b text)", ROWS),
            (trigger, ROWS),
            (trigger + "; ALTER TABLE t DISABLE TRIGGER after", 100),
            ("CREATE TABLE t (id int, a int REFERENCES p, b text, c serial)", 100),
            ("CREATE TABLE t (id int, a int REFERENCES p, b text); SET session_replication_role = replica", 0),
        ]
        for table, wanted in cases:
            with self.subTest(table=table):
                self.assertEqual(self.checks(table.split("; SET ")[0], setup="SET" + table.split("; SET")[1] if "; SET " in table else ""), wanted)

    @unittest.skipIf(MAJOR < 18, "temporal keys came with PostgreSQL 18")
    def test_periods(self):
        """With a PERIOD, each row is checked, and the error is stock COPY's."""
        table = ("DROP TABLE p CASCADE; CREATE TABLE p (a int4range, b daterange, PRIMARY KEY (a, b WITHOUT OVERLAPS)); INSERT INTO p SELECT int4range(n, n + 1), '[2024-01-01,2025-01-01)' FROM generate_series(0, 99) n;"
                 "CREATE TABLE t (id int, a int4range, b daterange, FOREIGN KEY (a, PERIOD b) REFERENCES p (a, PERIOD b))")
        rows = data(lambda n: (b'"[%d,%d)"' % (n % 100, n % 100 + 1), b'"[2024-02-01,2024-03-01)"'), 20000)
        for setting in ("off", "on"):
            self.assertEqual(self.checks(table, setting, rows=rows), 20000, setting)
        late = rows + b'20000,"[5,6)","[2024-12-01,2025-02-01)"\n'
        self.assertIn("Key (a, b)=([5,6), [2024-12-01,2025-02-01)) is not present", compare(self, self.cluster, f"{PARENTS} {table}", CSV, late, ordered=False))

    def test_switched_off(self):
        """With allow_foreign_keys off, each row is checked; on again, each distinct value."""
        with self.cluster.connect() as session:
            self.configure(session, allow_foreign_keys="off")
            self.assertEqual(self.checks("CREATE TABLE t (id int, a int REFERENCES p, b text)"), ROWS)
            self.configure(session, allow_foreign_keys="on")
            self.assertEqual(self.checks("CREATE TABLE t (id int, a int REFERENCES p, b text)"), 100)

    def test_memory(self):
        """If there are more values than fit into live_index_memory, some are checked again, but never more often than there are rows."""
        rows = data(lambda n: (b"%d" % (n % 10000), b"x"))
        table = "INSERT INTO p SELECT n FROM generate_series(100, 9999) n; CREATE TABLE t (id int, a int REFERENCES p, b text)"
        with self.cluster.connect() as session:
            self.assertEqual(self.checks(table, rows=rows), 10000)
            self.configure(session, live_index_memory="128kB")
            seen = self.checks(table, rows=rows)
        self.assertGreater(seen, 10000)
        self.assertLessEqual(seen, ROWS)


TABLES = (
    "CREATE TABLE t (id int, a int REFERENCES p, b text)",
    "CREATE TABLE t (id int PRIMARY KEY, a int REFERENCES p, b text)",
    "CREATE UNLOGGED TABLE t (id int, a int, b varchar(20) REFERENCES p (b))",
    "CREATE TABLE t (id int, a int REFERENCES p, b text REFERENCES p (b))",
    "CREATE TABLE t (id int, a int, b text, FOREIGN KEY (a, b) REFERENCES p (a, b))",
    "CREATE TABLE t (id int, a int, b text, FOREIGN KEY (a, b) REFERENCES p (a, b) MATCH FULL)",
    "CREATE TABLE t (id int, a bigint REFERENCES p, b text)",
    "CREATE TABLE t (id int, a smallint REFERENCES p DEFERRABLE, b text)",
    "CREATE DOMAIN parent AS int; CREATE TABLE t (id int, a parent REFERENCES p, b text)",
)


class Equal(OnCluster):
    """Rows and errors are stock COPY's, in batches and in whole pages."""

    def both(self, table, rows, setup="", ordered=True, copy=CSV, routes=("insert", "append")):
        """Loads by stock COPY, then in batches and in whole pages; returns the error, which is stock COPY's. `routes`: those of the two loads, if there is none."""
        table = f"DROP DOMAIN IF EXISTS parent CASCADE; {PARENTS} {table}"
        stock = outcome(self.cluster, table, copy, rows, setup, stock=True)
        for pages, route in zip(("", PAGES), routes):
            compare(self, self.cluster, table, copy, rows, pages + setup, route, ordered and not pages, stock)
        return stock[0]

    def test_parents_there_and_missing(self):
        """The error names the first row without a parent, whichever key it violates and however many rows share the value."""
        missing = {
            "none": b"",
            "a": b"30000,7777,p1\n30001,8888,p1\n",
            "b": b"30000,1,none\n30001,8888,p1\n",
            "both": b"30000,1,p1\n30001,7777,none\n30002,7777,none\n",
            "a NULL": b"30000,,p1\n30001,,none\n",
            "b NULL": b"30000,1,\n30001,7777,\n",
            "all NULL": b"30000,,\n30001,,\n",
        }
        refused = 0
        for table in TABLES:
            for name, more in missing.items():
                with self.subTest(table=table, missing=name):
                    refused += self.both(table, data(modulo, 3000, more)) is not None
        self.assertGreater(refused, len(TABLES) * 3)

    def test_in_the_middle(self):
        """Missing parents after 20,000 good rows: the error is stock COPY's, in batches and in whole pages, without workers and with two."""
        rows = data(lambda n: (b"%d" % (100 + n % 3 if n >= 20000 else n % 100), b"p1"))
        table = f"{PARENTS} {TABLES[1]}"
        stock = outcome(self.cluster, table, CSV, rows, stock=True)
        self.assertIn("Key (a)=(102) is not present", stock[0])
        good = outcome(self.cluster, table, CSV, data(modulo), stock=True)
        for copy in (CSV, "COPY t FROM {} WITH (FORMAT csv, workers 2)"):
            for setup, route in (("", "insert"), (PAGES, "append"), (PAGES.replace("on;", "workers;"), "append")):
                compare(self, self.cluster, table, copy, rows, setup, stock=stock)
                self.assertIsNone(compare(self, self.cluster, table, copy, data(modulo), setup, route, False, good))

    def test_equal_values_of_other_bytes(self):
        """1.0 and 1.00 are one value in two forms: both have the parent, or neither has."""
        table = "CREATE TABLE q (n numeric PRIMARY KEY); INSERT INTO q VALUES (1), (2); CREATE TABLE t (n numeric REFERENCES q)"
        rows = b"1\n1.0\n2.00\n1.000\n2\n" * 500
        self.assertIsNone(self.both(f"DROP TABLE IF EXISTS q CASCADE; {table}", rows))
        self.assertIn("(3.0)", self.both(f"DROP TABLE IF EXISTS q CASCADE; {table}", rows + b"3.0\n3.0\n"))

    def test_long_and_compressed_values(self):
        """Long values, those too long to be remembered and those stored out of line, are checked as by stock COPY."""
        table = ("CREATE TABLE q (b text PRIMARY KEY); INSERT INTO q SELECT repeat(chr(n), 2500) FROM generate_series(97, 99) n;"
                 "CREATE TABLE t (b text REFERENCES q)")
        rows = b"".join(bytes([97 + n % 3]) * 2500 + b"\n" for n in range(2000))
        self.assertIsNone(compare(self, self.cluster, f"DROP TABLE IF EXISTS q CASCADE; {table}", CSV, rows))
        self.assertIn("is not present", compare(self, self.cluster, f"DROP TABLE IF EXISTS q CASCADE; {table}", CSV, rows + b"d" * 2500 + b"\n"))

    def test_a_table_that_refers_to_itself(self):
        """A parent in the same COPY may come after its child; if it never comes, the error is stock COPY's."""
        table = "CREATE TABLE t (id int PRIMARY KEY, a int REFERENCES t, b text)"
        self.assertIsNone(self.both(table, data(lambda n: (b"%d" % (2999 - n), b"x"), 3000)))
        self.assertIn("is not present", self.both(table, data(lambda n: (b"%d" % (3000 if n > 10 else n), b"x"), 3000)))

    def test_partitions(self):
        """If the table and its parent are both partitioned, rows and errors are stock COPY's."""
        parents = "CREATE TABLE q (a int PRIMARY KEY) PARTITION BY RANGE (a); CREATE TABLE q1 PARTITION OF q FOR VALUES FROM (0) TO (50); CREATE TABLE q2 PARTITION OF q DEFAULT; INSERT INTO q SELECT generate_series(0, 99);"
        leaves = "CREATE TABLE t (id int, a int REFERENCES q, b text) PARTITION BY LIST (b); CREATE TABLE t1 PARTITION OF t FOR VALUES IN ('p1', 'p2'); CREATE TABLE t2 PARTITION OF t DEFAULT"
        # Rows with keys to check do not wait for their partitions' pages.
        for more, wanted in ((b"", None), (b"1,500,p1\n2,500,p1\n", "is not present")):
            refusal = self.both(f"DROP TABLE IF EXISTS q CASCADE; {parents} {leaves}", data(modulo, 3000, more), ordered=False, routes=("insert", "insert"))
            (self.assertIsNone if wanted is None else lambda r: self.assertIn(wanted, r))(refusal)

    def test_a_trigger_of_another_partition(self):
        """A trigger of another partition deletes or changes the first row with a value before its check: later rows with that value are still checked."""
        for change in ("DELETE FROM t WHERE id = 1", "UPDATE t SET a = NULL WHERE id = 1"):
            table = ("CREATE TABLE t (id int, a int REFERENCES p, b text) PARTITION BY LIST (b); CREATE TABLE t1 PARTITION OF t FOR VALUES IN ('p1'); CREATE TABLE t2 PARTITION OF t DEFAULT;"
                     f"CREATE OR REPLACE FUNCTION change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {change}; RETURN NULL; END $$;"
                     "CREATE TRIGGER change AFTER INSERT ON t2 FOR EACH ROW EXECUTE FUNCTION change()")
            refusal = self.both(table, b"0,,p2\n1,777,p1\n2,777,p1\n" + data(modulo, 3000), ordered=False)
            self.assertIn("Key (a)=(777) is not present", refusal)

    def test_statement_triggers(self):
        """Statement triggers that alter or reindex the parent, or revoke privileges on it, before or after the rows: rows and errors are stock COPY's."""
        for change in ("ALTER TABLE p ADD COLUMN more int", "REINDEX TABLE p", "REVOKE UPDATE ON p FROM CURRENT_USER"):
            for when in ("BEFORE", "AFTER"):
                table = (f"CREATE TABLE t (id int, a int REFERENCES p, b text); CREATE OR REPLACE FUNCTION change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {change}; RETURN NULL; END $$;"
                         f"CREATE TRIGGER change {when} INSERT ON t FOR EACH STATEMENT EXECUTE FUNCTION change()")
                with self.subTest(change=change, when=when):
                    self.both(table, data(modulo, 3000), routes=(None, None))

    def test_a_trigger_that_sets_the_replication_role(self):
        """After a BEFORE STATEMENT trigger has set the replication role, the key that is enabled for replicas is checked, and not the other, as in stock COPY."""
        table = (f"{TABLES[3]}; DO $$ BEGIN EXECUTE (SELECT string_agg(format('ALTER TABLE t ENABLE REPLICA TRIGGER %I;', tgname), '') FROM pg_trigger JOIN pg_constraint c ON c.oid = tgconstraint"
                 " WHERE tgrelid = 't'::regclass AND conname = 't_b_fkey'); END $$;"
                 "CREATE OR REPLACE FUNCTION change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN SET LOCAL session_replication_role = replica; RETURN NULL; END $$;"
                 "CREATE TRIGGER change BEFORE INSERT ON t FOR EACH STATEMENT EXECUTE FUNCTION change()")
        for more, wanted in ((b"", None), (b"3000,7777,p1\n", None), (b"3000,1,none\n3001,7777,other\n", "Key (b)=(none) is not present")):
            with self.subTest(more=more):
                refusal = self.both(table, data(modulo, 3000, more))
                (self.assertIsNone if wanted is None else lambda r: self.assertIn(wanted, r or ""))(refusal)

    def test_an_index_of_another_collation(self):
        """A parent whose key is equal only by the index's collation does not count."""
        if self.sql("SELECT count(*) FROM pg_collation WHERE collname LIKE '%-x-icu'") == "0":
            self.skipTest("the server has no ICU")
        parents = ("DROP TABLE IF EXISTS p CASCADE; CREATE COLLATION IF NOT EXISTS any_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false);"
                   "CREATE TABLE p (a text); CREATE UNIQUE INDEX ON p (a COLLATE any_case); INSERT INTO p VALUES ('abc');")
        said = []
        for setting in ("off", "on"):
            self.sql(f"SET client_min_messages = warning; {parents} DROP TABLE IF EXISTS t; CREATE TABLE t (a text REFERENCES p (a))")
            path = self.cluster.file("rows", b"abc\n" * 3000 + b"ABC\n")
            with self.assertRaises(Refused) as refused:
                self.sql(f"SET pgsluice.copy = {setting}; COPY t FROM '{path}' CSV")
            said.append(str(refused.exception).split("LOCATION")[0])
        self.assertEqual(*said)
        self.assertIn("Key (a)=(ABC) is not present", said[0])

    def test_isolation_levels(self):
        """At every isolation level, rows and errors are stock COPY's."""
        for level in ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"):
            for more in (b"", b"1,500,p1\n2,500,p1\n"):
                self.both(TABLES[0], data(modulo, 3000, more), setup=f"BEGIN ISOLATION LEVEL {level};")

    def test_set_constraints(self):
        """SET CONSTRAINTS before or after the COPY defers and checks deferrable keys as with stock COPY, also beside a key that is not deferrable."""
        path = self.cluster.file("rows", b"")
        tables = ["CREATE TABLE t (id int, a int REFERENCES p DEFERRABLE, b text)", "CREATE TABLE t (id int, a int REFERENCES p DEFERRABLE INITIALLY DEFERRED, b text)",
                  "CREATE TABLE t (id int, a int REFERENCES p DEFERRABLE, b text REFERENCES p (b))"]
        copy = f"COPY t FROM '{path}' CSV"
        scripts = [f"SET CONSTRAINTS ALL DEFERRED; {copy}", f"SET CONSTRAINTS ALL DEFERRED; {copy}; INSERT INTO p VALUES (500, 'late')", f"SET CONSTRAINTS ALL DEFERRED; {copy}; SET CONSTRAINTS ALL IMMEDIATE; SELECT 'checked'",
                   f"SET CONSTRAINTS ALL IMMEDIATE; {copy}; SELECT 'checked'", f"SET CONSTRAINTS t_a_fkey DEFERRED; {copy}; SET CONSTRAINTS t_a_fkey IMMEDIATE; INSERT INTO p VALUES (500, 'late')",
                   f"SAVEPOINT s; SET CONSTRAINTS ALL DEFERRED; ROLLBACK TO s; {copy}; INSERT INTO p VALUES (500, 'late')",
                   f"SET CONSTRAINTS ALL DEFERRED; SAVEPOINT s; {copy}; ROLLBACK TO s; SELECT count(*) FROM t"]
        refused = set()
        for table in tables:
            for more in (b"", b"1,500,p1\n2,500,p1\n", b"1,1,late\n"):
                path.write_bytes(data(modulo, 300, more))
                for script in scripts:
                    said = []
                    for setting in ("off", "on"):
                        self.sql(f"SET client_min_messages = warning; DROP TABLE IF EXISTS t; {PARENTS} {table}")
                        with self.cluster.connect(stops=False) as session:
                            printed = session.run(f"SET pgsluice.debug_force_routes = on; SET pgsluice.copy = {setting}; BEGIN; {script}; COMMIT; SELECT count(*), sum(a) FROM t")
                            said.append((printed, re.sub("LOCATION.*", "", "".join(session.told))))
                            route = session.run("SELECT route FROM pgsluice.last_copy")
                    if "ERROR" not in said[1][1]:
                        self.assertEqual(route, "append")
                    with self.subTest(table=table, more=more, script=script):
                        self.assertEqual(*said)
                        refused.add("23503" in said[0][1])
        self.assertEqual(refused, {True, False})

    def test_rejects(self):
        """With rejects_to, every row without a parent is rejected, even if all have the same value."""
        path = self.cluster.file("rows", data(lambda n: (b"7777" if n % 10 == 0 else b"%d" % (n % 100), b"x"), 3000))
        said = self.sql(f"SET client_min_messages = warning; DROP TABLE IF EXISTS t, bad; {PARENTS} {TABLES[0]}; CREATE TABLE bad (LIKE pgsluice.reject);"
                        f"SET pgsluice.copy = on; COPY t FROM '{path}' WITH (FORMAT csv, rejects_to 'bad'); SELECT count(*), count(*) FILTER (WHERE a = 7777) FROM t; SELECT count(*) FROM bad")
        self.assertEqual(said.split()[-2:], ["2700|0", "300"])

    def test_a_default_that_deletes_rows(self):
        """A default deletes the first row with a value before its check: later rows with that value are still checked."""
        table = ("CREATE TABLE t (id int, a int REFERENCES p, b text, c int); CREATE OR REPLACE FUNCTION away() RETURNS int LANGUAGE plpgsql AS"
                 " $$ BEGIN DELETE FROM t WHERE id = 2000; RETURN 1; END $$; ALTER TABLE t ALTER c SET DEFAULT away()")
        rows = data(modulo, 2000, b"2000,7777,x\n") + data(lambda n: (b"7777", b"x"), 3)
        refusal = compare(self, self.cluster, f"DROP FUNCTION IF EXISTS away CASCADE; {PARENTS} {table}", "COPY t (id, a, b) FROM {} CSV", rows, route=None)
        self.assertIn("Key (a)=(7777) is not present", refusal)


class Proven(OnCluster):
    """Which parents are found and locked by the index, and which values are left to the trigger."""

    def proven(self, table, rows=None, setup="", copy="COPY t (id, a, b) FROM '{}' CSV", refused=""):
        """How many parents were locked and how many values left, summed over the foreign keys; None: none were looked up."""
        path = self.cluster.file("rows", rows or data(modulo, 3000))
        self.sql(f"SET client_min_messages = warning; DROP TABLE IF EXISTS t, q CASCADE; {PARENTS} {table}")
        _, told = self.cluster.session(f"{setup}; SET pgsluice.copy = on; SET client_min_messages = debug1; {copy.format(path)}; RESET client_min_messages; COMMIT")
        self.assertIn(refused, told)
        if not refused:
            self.assertEqual(self.sql("SELECT count(*) FROM t"), "3000")
        found = re.findall(r"parents in .*: (\d+) locked, (\d+) left", told)
        return (sum(int(n) for n, _ in found), sum(int(n) for _, n in found)) if found else None

    def test_shapes(self):
        """Parents are found by the index for one column or several, in another order than the index's, for other
        integer types and with NULLs; not for numeric or partitioned parents."""
        two = "CREATE TABLE t (id int, a int, b text, FOREIGN KEY (b, a) REFERENCES p (b, a)); "
        for table, wanted in (
                (TABLES[0], (100, 0)),
                (TABLES[2], (100, 0)),
                (TABLES[3], (200, 0)),
                ("CREATE TABLE t (id int, a int, b text, FOREIGN KEY (a, b) REFERENCES p (a, b))", (100, 0)),
                ("CREATE UNIQUE INDEX ON p (b, a); " + two, (100, 0)),
                (two.replace("(b, a)", "(a, b)", 1).replace("p (b, a)", "p (a, b)"), (100, 0)),
                ("CREATE TABLE t (id int, a bigint REFERENCES p, b text)", (100, 0)),
                ("CREATE TABLE q (n numeric PRIMARY KEY); INSERT INTO q SELECT generate_series(0, 99); CREATE TABLE t (id int, a int REFERENCES q, b text)", None),
                ("CREATE TABLE q (a int PRIMARY KEY) PARTITION BY HASH (a); CREATE TABLE q1 PARTITION OF q FOR VALUES WITH (MODULUS 1, REMAINDER 0);"
                 "INSERT INTO q SELECT generate_series(0, 99); CREATE TABLE t (id int, a int REFERENCES q, b text)", None)):
            with self.subTest(table=table):
                self.assertEqual(self.proven(table), wanted)
                self.assertEqual(self.proven(table, setup=PAGES), wanted)
        nulls = data(lambda n: (b"", b"p1") if n % 2 else modulo(n), 3000)
        self.assertEqual(self.proven("CREATE TABLE t (id int, a int, b text, FOREIGN KEY (a, b) REFERENCES p (a, b))", nulls), (50, 0))

    def test_a_value_without_a_parent(self):
        """A value without a parent is left to the trigger, which reports the error."""
        self.proven(TABLES[0], data(modulo, 3000, b"1,500,p1\n2,500,p1\n"), refused="Key (a)=(500) is not present")

    def test_rights(self):
        """Checks run as the parent's owner. If the owner lacks privileges, or row-level security may hide rows from it, the trigger does the checks."""
        owned = "DROP ROLE IF EXISTS owner; CREATE ROLE owner; ALTER TABLE p OWNER TO owner; GRANT SELECT, UPDATE ON p TO owner; "
        gone = "; DROP OWNED BY owner CASCADE; DROP ROLE owner"
        self.assertEqual(self.proven(owned + TABLES[0]), (100, 0))
        for what, refused in (("REVOKE UPDATE ON p FROM owner; ", "permission denied for table p"),
                              ("ALTER TABLE p ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY; ", "")):
            with self.subTest(what=what):
                self.sql("SET client_min_messages = warning" + gone)
                self.assertIsNone(self.proven(owned + what + TABLES[0], refused=refused))
        self.sql("SET client_min_messages = warning" + gone)

    def test_parents_of_this_transaction(self):
        """Parents that the transaction has inserted are found; those that it has deleted, or whose key it has changed, are not."""
        rows = data(lambda n: (b"500" if n == 2000 else b"%d" % (n % 100), b"x"), 3000)
        self.assertEqual(self.proven(TABLES[0], rows, setup="BEGIN; INSERT INTO p VALUES (500)"), (101, 0))
        self.assertEqual(self.proven(TABLES[0], setup="BEGIN; UPDATE p SET c = 5"), (100, 0))
        self.assertEqual(self.proven(TABLES[0], rows, setup="BEGIN; UPDATE p SET a = 500 WHERE a = 7", refused="Key (a)=(7) is not present"), (100, 1))
        self.proven(TABLES[0], setup="BEGIN; DELETE FROM p WHERE a = 7", refused="Key (a)=(7) is not present")

    def test_where_triggers_do_not_fire(self):
        """If the trigger does not fire (replica mode, disabled), no parent is locked; with ENABLE ALWAYS, parents are locked in replica mode, too."""
        self.assertIsNone(self.proven(TABLES[0], setup="SET session_replication_role = replica"))
        self.assertIsNone(self.proven(TABLES[0] + "; ALTER TABLE t DISABLE TRIGGER ALL"))
        always = "; DO $$ BEGIN EXECUTE (SELECT string_agg(format('ALTER TABLE t ENABLE ALWAYS TRIGGER %I;', tgname), '') FROM pg_trigger WHERE tgrelid = 't'::regclass); END $$"
        self.assertEqual(self.proven(TABLES[0] + always, setup="SET session_replication_role = replica"), (100, 0))

    def test_locked_by_others(self):
        """Parents that other sessions have locked are left to the trigger, which waits for them at the end of the statement."""
        path = self.cluster.file("rows", data(modulo, 3000))
        for hold, left in (("SELECT FROM p WHERE a = 50 FOR UPDATE", "99 locked, 1 left"), ("UPDATE p SET a = 500 WHERE a = 50", "99 locked, 1 left"),
                           ("UPDATE p SET c = 1 WHERE a = 50", "100 locked, 0 left"), ("LOCK p IN ACCESS EXCLUSIVE MODE", "")):
            with self.subTest(hold=hold):
                self.sql(f"SET client_min_messages = warning; DROP TABLE IF EXISTS t; {PARENTS} {TABLES[0]}")
                holder = Held(self.cluster)
                holder.run(f"BEGIN; {hold}")
                process = subprocess.Popen(self.cluster.command("-c", f"SET client_min_messages = debug1; SET pgsluice.copy = on; COPY t FROM '{path}' CSV"),
                                           stderr=subprocess.PIPE, text=True)
                if "c = 1" in hold:
                    process.wait()
                else:
                    self.assertTrue(wait_until(lambda: self.sql("SELECT count(*) FROM pg_locks WHERE NOT granted") == "1"))
                holder.end("ROLLBACK")
                told = process.communicate()[1]
                self.assertIn(left, told)
                self.assertEqual(self.sql("SELECT count(*) FROM t"), "3000")

    def test_changed_behind_the_snapshot(self):
        """In REPEATABLE READ, a parent deleted or rekeyed after the snapshot is a serialization failure, as with stock COPY; other updates are not."""
        path = self.cluster.file("rows", data(modulo, 3000))
        for change, refused in (("DELETE FROM p WHERE a = 50", "could not serialize access"), ("UPDATE p SET a = 500 WHERE a = 50", "could not serialize access"),
                                ("UPDATE p SET c = 1 WHERE a = 50", "")):
            for setting in ("off", "on"):
                with self.subTest(change=change, setting=setting):
                    self.sql(f"SET client_min_messages = warning; DROP TABLE IF EXISTS t; {PARENTS} {TABLES[0]}")
                    loader = Held(self.cluster)
                    loader.run(f"SET pgsluice.copy = {setting}; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM p LIMIT 1")
                    self.sql(change)
                    code, _, told = loader.end(f"COPY t FROM '{path}' CSV; COMMIT")
                    self.assertEqual((code, refused in told), (3 if refused else 0, True))


if __name__ == "__main__":
    unittest.main()
