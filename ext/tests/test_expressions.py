"""Stored generated columns and CHECK constraints, evaluated where rows are formed: results must be stock COPY's."""

import functools
import subprocess
import unittest

from .cluster import MAJOR, Cluster, OnCluster, Refused, endless, has, wait_until
from .differential import IN_ORDER, compare, outcome
from .test_admin import Administered
from .test_durability import check_heap
from .test_workers import workers

CSV = "COPY t ({}) FROM {{}} WITH (FORMAT csv)"
COLUMNS = "a, b, c, d, s"
TABLE = "CREATE TABLE t (a int, b smallint NOT NULL, c bigint, d numeric(12,2), s text{})"
# Rows are completed by the leader, or by workers as far as these get.
WAYS = {"leader": "SET pgsluice.debug_force_routes = on; SET pgsluice.workers = 0;",
        "workers": "SET pgsluice.debug_force_routes = workers; SET pgsluice.workers = 2;"}

FUNCTIONS = """
CREATE FUNCTION twice(int) RETURNS int LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS 'BEGIN RETURN 2 * $1; END';
CREATE FUNCTION thrice(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 3 * $1';
CREATE FUNCTION restricted(int, int) RETURNS int LANGUAGE internal IMMUTABLE STRICT PARALLEL RESTRICTED AS 'int4pl';
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE TYPE mood AS ENUM ('sad', 'ok');
"""

# What a table computes and checks: PLAIN before rows are inserted, NOT_PLAIN by the insertion.
PLAIN = {
    "a bigint of a numeric": ", g bigint GENERATED ALWAYS AS ((d * 100)::bigint) STORED",
    "several, before the others too": None,
    "an int and a check of it": ", g int GENERATED ALWAYS AS (a + b) STORED CHECK (g > -100000), CHECK (b >= 0)",
    "a numeric": ", g numeric GENERATED ALWAYS AS (d * a) STORED, h numeric(20,4) GENERATED ALWAYS AS (d / 7) STORED",
    "text": ", g text GENERATED ALWAYS AS (upper(s)) STORED, h text GENERATED ALWAYS AS ('n ' || coalesce(s, '?')) STORED",
    "never NULL": ", g int GENERATED ALWAYS AS (coalesce(a, -1)) STORED NOT NULL",
    "always NULL": ", g int GENERATED ALWAYS AS (NULL) STORED, h text GENERATED ALWAYS AS (NULL::text) STORED",
    "fixed bytes by reference": ", g uuid GENERATED ALWAYS AS (md5(s)::uuid) STORED, h interval GENERATED ALWAYS AS (a * interval '1 day') STORED",
    "a boolean and others that pack": ", g boolean GENERATED ALWAYS AS (a > 5) STORED, h \"char\" GENERATED ALWAYS AS ('x'::\"char\") STORED, i smallint GENERATED ALWAYS AS (b) STORED",
    "many columns": "".join(f", n{i} int" for i in range(12)) + ", g int GENERATED ALWAYS AS (CASE WHEN a % 3 = 0 THEN NULL ELSE a END) STORED",
    "a tsvector": ", g tsvector GENERATED ALWAYS AS (to_tsvector('english', coalesce(s, ''))) STORED",
    "an array": ", g int[] GENERATED ALWAYS AS (array_append(ARRAY[a], b::int)) STORED, CHECK (a = ANY (g) OR a IS NULL)",
    "an enum": ", g mood GENERATED ALWAYS AS (CASE WHEN a > 3 THEN 'ok'::mood ELSE 'sad' END) STORED, CHECK (g < 'ok' OR a > 3)",
    "checks alone": ", CHECK (b >= 0), CHECK (d > -1 OR s LIKE 'text%'), CHECK (length(s) BETWEEN 1 AND 100), CHECK (a IS DISTINCT FROM -5)",
    "a check that is NULL": ", CHECK (a > NULL)",
    "a domain's base": ", p positive DEFAULT 3, CHECK (p + a > -100)",
    "with a key": ", g bigint GENERATED ALWAYS AS (c + 1000000) STORED UNIQUE, id serial PRIMARY KEY",
    "a check of the serial": ", id serial PRIMARY KEY CHECK (id > 0), g bigint GENERATED ALWAYS AS (c) STORED",
    "a computed serial": ", id serial, g bigint GENERATED ALWAYS AS (id * 10) STORED, h text GENERATED ALWAYS AS (id::text || s) STORED",
    "formed again with a serial": ", id serial, g text GENERATED ALWAYS AS (s || s) STORED, h int GENERATED ALWAYS AS (nullif(b, 3)) STORED",
}
PLAIN["several, before the others too"] = ""
NOT_PLAIN = {
    "PL/pgSQL": ", g int GENERATED ALWAYS AS (twice(a)) STORED",
    "SQL": ", g int GENERATED ALWAYS AS (thrice(a)) STORED",
    "not parallel safe": ", g int GENERATED ALWAYS AS (restricted(a, 1)) STORED",
    "a plain column, and a check in PL/pgSQL": ", g int GENERATED ALWAYS AS (a + 1) STORED, CHECK (twice(a) > -50000)",
    "a coercion to a domain": ", g positive GENERATED ALWAYS AS (b + 1) STORED",
    "the whole row": ", g int GENERATED ALWAYS AS (a) STORED, CHECK (t IS NOT NULL OR a IS NULL OR s IS NULL OR c IS NULL OR d IS NULL)",
    "the table's own number": ", g int GENERATED ALWAYS AS (a) STORED, CHECK (tableoid > 0)",
}
FIRST = "CREATE TABLE t (g int GENERATED ALWAYS AS (a + b) STORED, a int, h bigint GENERATED ALWAYS AS (c * 2) STORED, b smallint NOT NULL, c bigint, d numeric, x text, s text)"


@functools.cache
def rows(count=1500, **at):
    """CSV of rows with NULLs; `at` replaces lines, such as `l7`."""
    lines = [f"{'' if i % 11 == 3 else i},{i % 30},{'' if i % 50 == 9 else i * 7},{'' if i % 13 == 5 else i}.25,{'' if i % 17 == 2 else f'text of row {i}'}\n"
             .replace(",.25", ",") for i in range(count)]
    for name, line in at.items():
        lines[int(name[1:])] = line + "\n"
    return "".join(lines).encode()


class Expressions(OnCluster):
    """Comparison with stock COPY, by the leader and by workers."""

    prepared = FUNCTIONS

    def same(self, table, data, setup="", columns=COLUMNS, by=("leader", "workers"), route="append"):
        """Asserts equal rows or errors both ways; returns the error. `by`: the values that last_copy.expressions_by may have."""
        copy = CSV.format(columns)
        stock = outcome(self.cluster, table, copy, data, setup, stock=True)
        for how, forced in WAYS.items():
            refusal = compare(self, self.cluster, table, copy, data, forced + setup, route if stock[0] is None else None, False, stock)
            if refusal is None and by is not None:
                with self.cluster.connect() as session:
                    session.run(f"SET client_min_messages = warning; DROP TABLE IF EXISTS t CASCADE; {table}; SET pgsluice.copy = on; {forced}{setup}")
                    session.run(copy.format(f"'{self.cluster.file('input', data)}'"))
                    said = session.run("SELECT expressions_by FROM pgsluice.last_copy")
                self.assertIn(said, by, how)
        return stock[0]

    def test_rows(self):
        """Expressions of types of every kind of length, with NULLs, keys, sequences and constraints, before and after
        other columns: evaluated early, with stock COPY's rows."""
        for name, more in PLAIN.items():
            with self.subTest(name):
                self.assertIsNone(self.same(TABLE.format(more) if more else FIRST, rows()))
                check_heap(self, self.cluster)

    def test_formats(self):
        """CSV and binary, columns in another order or left out, defaults, dropped columns, fillfactor: rows are stock COPY's."""
        table = TABLE.format(", e int DEFAULT 7, g bigint GENERATED ALWAYS AS (a * 2 + e) STORED, h text GENERATED ALWAYS AS (s || '!') STORED")
        self.assertIsNone(self.same(table + " WITH (fillfactor = 60)", rows()))
        self.assertIsNone(self.same(table + "; ALTER TABLE t DROP COLUMN c; ALTER TABLE t ADD c bigint", rows()))
        turned = b"".join(b"%d,%d\n" % (i, i % 9) for i in range(2000))
        self.assertIsNone(self.same(table, turned, columns="c, b"))
        path = self.cluster.file("binary", b"")
        path.chmod(0o666)
        self.cluster.sql(f"DROP TABLE t; {table}; COPY t (c, b) FROM '{self.cluster.file('input', turned)}' WITH (FORMAT csv); COPY t (c, b) TO '{path}' WITH (FORMAT binary)")
        for forced in WAYS.values():
            self.assertIsNone(compare(self, self.cluster, table, "COPY t (c, b) FROM {} WITH (FORMAT binary)", path.read_bytes(), forced, "append", False))

    def test_private(self):
        """In a private table, pages that bypass the buffers have stock COPY's rows."""
        table = TABLE.format(PLAIN["an int and a check of it"]).replace("TABLE", "UNLOGGED TABLE")
        self.assertIsNone(self.same(table, rows(), IN_ORDER, by=None, route="fresh"))

    def test_left_to_the_insertion(self):
        """Expressions whose result might differ elsewhere are evaluated by the insertion: functions in PL/pgSQL or
        SQL, unsafe ones, whole rows; also for BEFORE triggers and partitions."""
        for name, more in NOT_PLAIN.items():
            with self.subTest(name):
                self.assertIsNone(self.same(TABLE.format(more), rows(), by={""}, route={"insert", "append"}))
        table = TABLE.format(PLAIN["an int and a check of it"])
        for tail, setup in (("; CREATE OR REPLACE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.a := NEW.a + 1; RETURN NEW; END';"
                             "CREATE TRIGGER f BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION f()", ""),
                            (" PARTITION BY HASH (b); CREATE TABLE p PARTITION OF t FOR VALUES WITH (MODULUS 1, REMAINDER 0)", "")):
            self.assertIsNone(self.same(table + tail, rows(), setup, by={""}, route=None))
            self.sql("DROP FUNCTION IF EXISTS f CASCADE")

    def test_partitions(self):
        """A leaf loaded by itself checks its partition constraint, with stock COPY's errors; leaves with other
        expressions than the root's are evaluated by the insertion."""
        parent = "CREATE TABLE root (a int, b smallint NOT NULL, c bigint, d numeric(12,2), s text, g int GENERATED ALWAYS AS (a + b) STORED)"
        leaf = f"DROP TABLE IF EXISTS root; {parent} PARTITION BY RANGE (b); CREATE TABLE t PARTITION OF root FOR VALUES FROM (0) TO (30)"
        self.assertIsNone(self.same(leaf, rows()))
        self.assertIn("23514", self.same(leaf, rows(l700="1,31,2,3,x")))
        self.assertIn("23514", self.same(leaf, rows(l700="1,31,2,3,x", l800="2147483647,1,2,3,x")))
        self.assertIn("22003", self.same(leaf, rows(l600="2147483647,1,2,3,x", l700="1,31,2,3,x")))
        other = "(a int, b smallint NOT NULL, c bigint, d numeric(12,2), s text, g int GENERATED ALWAYS AS (a * b) STORED)"
        if MAJOR >= 16:  # before 16, a partition has the root's expressions
            self.assertIsNone(self.same(TABLE.format(", g int GENERATED ALWAYS AS (a + b) STORED") + " PARTITION BY RANGE (b);"
                                        f"CREATE TABLE p1 {other}; ALTER TABLE t ATTACH PARTITION p1 FOR VALUES FROM (0) TO (9);"
                                        "CREATE TABLE p2 PARTITION OF t DEFAULT", rows(), by={""}, route={"insert", "append"}))
        self.sql("DROP TABLE root")

    def test_refusals(self):
        """The error is stock COPY's, for the first bad row, wherever it is and whatever is wrong after it."""
        division = TABLE.format(", g int GENERATED ALWAYS AS (100 / a) STORED")
        for more, line in ((", g int GENERATED ALWAYS AS (100 / (a - 1000001)) STORED", "1000001,1,2,3,x"),
                           (", g bigint GENERATED ALWAYS AS ((d * 100)::bigint) STORED, h smallint GENERATED ALWAYS AS (a) STORED", "100000,1,2,3,x"),
                           (", g int GENERATED ALWAYS AS (nullif(a, 1000001)) STORED NOT NULL, CHECK (a > 5)", "1000001,1,2,3,x"),
                           (", g int GENERATED ALWAYS AS (a + 1) STORED CHECK (g <> 1000002)", "1000001,1,2,3,x"),
                           (", g text GENERATED ALWAYS AS (repeat(s, 3)) STORED CHECK (g NOT LIKE '%bad%')", "7,1,2,3,a bad one"),
                           (", CHECK (b >= 0), CHECK (d <> 3)", "1,-1,2,3,x")):
            first = {} if "NOT NULL" not in more else {f"l{i}": f"{i + 10},1,2,4,x" for i in range(1500)}
            for at in (0, 1, 900, 1499):
                with self.subTest(more=more, at=at):
                    bad = rows(**{**first, f"l{at}": line, "l1200" if at != 1200 else "l1": line})
                    self.assertIsNotNone(self.same(TABLE.format(more), bad))
        self.assertIn("22012", self.same(division, rows(l0="3,1,2,3,x", l900="0,1,2,3,x", l1000="x,1,2,3,x")))
        self.assertIn("22P02", self.same(division, rows(l0="3,1,2,3,x", l900="x,1,2,3,x", l1000="0,1,2,3,x")))
        self.assertIn("23502", self.same(division, rows(l0="3,1,2,3,x", l900="4,,2,3,x", l1000="0,1,2,3,x")))

    def test_expressions_that_fail_by_themselves(self):
        """An expression that always fails is an error at the first row, and no error if there is no row."""
        table = TABLE.format(", g int GENERATED ALWAYS AS (1 / 0) STORED")
        self.assertIn("22012", self.same(table, rows(5)))
        for forced in WAYS.values():
            compare(self, self.cluster, table, CSV.format(COLUMNS), b"", forced, None)

    def test_values_for_the_server(self):
        """Rows with values read by the server, and rows too wide for a page, have stock COPY's values and errors."""
        table = TABLE.format(", r int4range, g int GENERATED ALWAYS AS (a + 1) STORED, h int GENERATED ALWAYS AS (lower(r)) STORED, CHECK (NOT isempty(r))")
        data = "".join(f"{i},{i % 9},{i},1.5,{'wide ' * 900 if i % 300 == 7 else 'x'},\"[{i},{i + 5})\"\n" for i in range(1500)).encode()
        self.assertIsNone(self.same(table, data, columns=COLUMNS + ", r", route={"insert", "append"}, by=("", "leader", "workers")))
        bad = data.replace(b"[1200,1205)", b"[1200,1200)").replace(b"[1300,1305)", b"[1300,7)")
        self.assertIn("23514", self.same(table, bad, columns=COLUMNS + ", r"))
        wide = TABLE.format(", g text GENERATED ALWAYS AS (repeat(s, CASE WHEN a % 400 = 7 THEN 900 ELSE 2 END)) STORED")
        self.assertIsNone(self.same(wide, rows(), route={"insert", "append"}, by=("", "leader", "workers")))

    def test_serializable(self):
        """In SERIALIZABLE, the leader evaluates, and not the workers."""
        table = TABLE.format(PLAIN["an int and a check of it"])
        self.assertIsNone(self.same(table, rows(), "BEGIN ISOLATION LEVEL SERIALIZABLE;", by={"leader"}))

    def test_many_rows(self):
        """With 60,000 rows and no debug settings, rows are stock COPY's, whether the leader or two workers evaluate."""
        data = rows(60000)
        for more in ("several, before the others too", "a bigint of a numeric", "text", "checks alone"):
            table = TABLE.format(PLAIN[more]) if PLAIN[more] else FIRST
            stock = outcome(self.cluster, table, CSV.format(COLUMNS), data, stock=True)
            for number, by in ((0, "leader"), (2, "workers")):
                with self.subTest(more, workers=number):
                    copy = CSV.format(COLUMNS)[:-1] + f", workers {number})"
                    self.assertIsNone(compare(self, self.cluster, table, copy, data, "", "append", False, stock))
                    check_heap(self, self.cluster)
                    again = f"DROP TABLE t; {table}; SET pgsluice.copy = on; {copy.format(repr(str(self.cluster.home / 'input')))}; SELECT expressions_by FROM pgsluice.last_copy"
                    # A worker that starts late may find nothing left to do.
                    self.assertTrue(wait_until(lambda again=again, by=by: self.sql(again) == by))

    @unittest.skipUnless(has("pageinspect"), "pageinspect is not there")
    def test_on_disk(self):
        """Tuples have the same bytes by stock COPY, the leader and workers."""
        self.sql("CREATE EXTENSION IF NOT EXISTS pageinspect")
        path = self.cluster.file("input", rows())
        for name, more in PLAIN.items():
            found = set()
            for setup in ("SET pgsluice.copy = off;", *(f"SET pgsluice.copy = on; {way}" for way in WAYS.values())):
                self.sql(f"DROP TABLE IF EXISTS t; {TABLE.format(more) if more else FIRST}; {setup} {CSV.format(COLUMNS).format(repr(str(path)))}")
                found.add(self.sql("SELECT lp_len, t_infomask, t_infomask2, t_hoff, t_bits, t_data FROM generate_series(0,"
                                   " (pg_relation_size('t') / 8192 - 1)::int) n, heap_page_items(get_raw_page('t', n)) ORDER BY t_data, t_hoff"))
            self.assertEqual(len(found), 1, name)

    def test_rejects(self):
        """With rejects_to, rows that an expression or constraint refuses are rejected one by one, and all others are loaded."""
        data = rows(l700="2147483647,1,2,3,x", l800="1,-1,2,3,x")
        table = TABLE.format(PLAIN["an int and a check of it"])
        for forced in WAYS.values():
            self.sql(f"DROP TABLE IF EXISTS t, bad; {table}; CREATE TABLE bad (LIKE pgsluice.reject); SET pgsluice.copy = on; {forced}"
                     f"COPY t ({COLUMNS}) FROM '{self.cluster.file('input', data)}' WITH (FORMAT csv, rejects_to 'bad')")
            self.assertEqual(self.sql("SELECT line, sqlstate FROM bad ORDER BY 1; SELECT count(*), count(*) FILTER (WHERE g = a + b OR a IS NULL) FROM t"),
                             "701|22003\n801|23514\n1498|1498")

    def test_privileges(self):
        """If the user may not execute a function of an expression, the load fails with stock COPY's error."""
        self.sql("DROP TABLE IF EXISTS t; CREATE ROLE plain; GRANT pg_read_server_files TO plain; CREATE FUNCTION added(int, int) RETURNS int"
                 " LANGUAGE internal IMMUTABLE STRICT PARALLEL SAFE AS 'int4pl'; REVOKE EXECUTE ON FUNCTION added FROM PUBLIC;"
                 f"{TABLE.format(', g int GENERATED ALWAYS AS (added(a, 1)) STORED')}; GRANT INSERT ON t TO plain")
        self.addCleanup(self.sql, "DROP TABLE t; DROP FUNCTION added; DROP OWNED BY plain; DROP ROLE plain")
        said = set()
        for setup in ("SET pgsluice.copy = off;", *(f"SET pgsluice.copy = on; {way}" for way in WAYS.values())):
            with self.assertRaises(Refused) as refused:
                self.sql(f"{setup} SET ROLE plain; COPY t ({COLUMNS}) FROM '{self.cluster.file('input', rows())}' WITH (FORMAT csv)")
            said.add(str(refused.exception).split("LOCATION")[0])
        self.assertEqual(len(said), 1, said)
        self.assertIn("42501", said.pop())

    @unittest.skipUnless(MAJOR >= 18, "virtual columns came with 18")
    def test_virtual(self):
        """If a table has virtual columns, the insertion computes its stored columns; constraints NOT ENFORCED make no difference."""
        for more in (", v int GENERATED ALWAYS AS (a * 2)", ", v int GENERATED ALWAYS AS (a * 2), g int GENERATED ALWAYS AS (a + 1) STORED",
                     ", v int GENERATED ALWAYS AS (b * 2) NOT NULL CHECK (v >= 0)", ", CHECK (a < 5) NOT ENFORCED, g int GENERATED ALWAYS AS (a + 1) STORED"):
            enforced = "NOT ENFORCED" in more
            self.assertIsNone(self.same(TABLE.format(more), rows(), by=("leader", "workers") if enforced else {""}, route=None))
        self.assertIn("23514", self.same(TABLE.format(", v int GENERATED ALWAYS AS (b * 2) CHECK (v >= 0)"), rows(l700="1,-1,2,3,x")))


class Switched(Administered):
    """The administrator's switch."""

    def test_off(self):
        """With allow_expressions off, tables with generated columns use the insert route, and the leader checks constraints."""
        with self.cluster.connect() as session:
            self.configure(session, allow_expressions="off")
            path = self.cluster.file("input", rows())
            for more, said in ((PLAIN["text"], "insert||pgsluice.allow_expressions"), (PLAIN["checks alone"], "append||pgsluice.allow_expressions")):
                session.run(f"DROP TABLE IF EXISTS t; {TABLE.format(more)}; SET pgsluice.copy = on; {WAYS['workers']}"
                            f"COPY t ({COLUMNS}) FROM '{path}' WITH (FORMAT csv)")
                self.assertEqual(session.run("SELECT route, expressions_by, switched_off FROM pgsluice.last_copy"), said)


class Ended(OnCluster):
    """Loads that end in the middle."""

    def test_crash_and_cancel(self):
        """After SIGKILL to all server processes, or a cancel, none of the load's rows or workers are left; the next load is complete."""
        table = TABLE.format(", g text GENERATED ALWAYS AS (s || s) STORED, h bigint GENERATED ALWAYS AS (c + 1) STORED, id serial PRIMARY KEY")
        path = self.cluster.file("input", rows(22000))
        for how in ("cancel", "kill", "kill"):
            self.sql(f"DROP TABLE IF EXISTS t; {table}")
            copy = f"SET pgsluice.copy = on; COPY t ({COLUMNS}) FROM {endless(path)} WITH (FORMAT csv, workers 2)"
            self.ends_in_the_middle(copy, how)
            self.assertEqual(self.sql("SELECT count(*) FROM t"), "0")
            self.assertFalse(workers(self.cluster))
            said = self.sql(f"SET pgsluice.copy = on; COPY t ({COLUMNS}) FROM '{path}' WITH (FORMAT csv, workers 2); SELECT route, expressions_by <> '' FROM pgsluice.last_copy")
            self.assertEqual(said, "append|t")
            self.assertEqual(self.sql("SELECT count(*), count(*) FILTER (WHERE h = c + 1 OR c IS NULL) FROM t"), "22000|22000")
            check_heap(self, self.cluster)

    def ends_in_the_middle(self, copy, how):
        """Starts the load, and ends it once it has put rows into the table."""
        process = subprocess.Popen(self.cluster.command("-c", copy), stderr=subprocess.PIPE)
        self.assertTrue(wait_until(lambda: self.sql("SELECT 1 FROM pg_stat_progress_copy WHERE tuples_processed > 30000")))
        if how == "kill":
            self.cluster.kill()
            self.cluster.start()
        else:
            self.sql("SELECT pg_cancel_backend(pid) FROM pg_stat_progress_copy")
        self.assertNotEqual(process.wait(), 0)
        process.stderr.close()
        self.assertTrue(wait_until(lambda: not workers(self.cluster)))

    def test_standby(self):
        """A standby has the same rows, and replayed pages equal the primary's (wal_consistency_checking)."""
        primary = Cluster(["wal_level = replica", "wal_consistency_checking = all"])
        self.addCleanup(primary.remove)
        primary.sql("CREATE EXTENSION pgsluice")
        standby = Cluster(["hot_standby = on"], copy_of=primary)
        self.addCleanup(standby.remove)
        table = TABLE.format(PLAIN["text"] + PLAIN["an int and a check of it"].replace("g ", "i ").replace("(g", "(i"))
        primary.sql(table)
        for count, setup, by in ((22000, "", "leader"), (1500, WAYS["leader"], "leader"), (1500, WAYS["workers"], "workers")):
            path = primary.file("input", rows(count))
            said = primary.sql(f"SET pgsluice.copy = on; {setup} COPY t ({COLUMNS}) FROM '{path}' WITH (FORMAT csv); SELECT route, expressions_by FROM pgsluice.last_copy")
            self.assertEqual(said, f"append|{by}")
        standby.follow(primary)
        both = [one.sql("SELECT count(*), sum(hashtext(t::text)::bigint) FROM t") for one in (primary, standby)]
        self.assertEqual(*both)
        self.assertTrue(both[0].startswith("25000|"))


if __name__ == "__main__":
    unittest.main()
