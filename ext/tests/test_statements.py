"""Dozens of statements in one session, by stock COPY and by the extension: options, targets, kinds of tables."""

import re
import unittest

from .cluster import MAJOR, OnCluster

_PLACE = re.compile(r"^psql:<stdin>:\d+: ", re.M)
_LOCATION = re.compile(r"^LOCATION:.*\n?", re.M)
# Why the view is empty; the reason if the COPY was left to stock COPY and failed.
_NO_ROW = re.compile(r"^NOTICE:  00000: (?:no|the last) COPY FROM .*\n(?:DETAIL:  It was left to stock COPY: (.*)\.\n)?(?:HINT:  .*\n)?", re.M)
COLUMNS = "a int, b text, c bigint DEFAULT 7, p int4range"
TABLE = f"CREATE TABLE t ({COLUMNS})"


def rows(count):
    """CSV of the columns above."""
    return b"".join(b'%d,text %d%s,%d,"[%d,%d)"\n' % (i, i % 97, b" and more" * (i % 9), i * 3, i * 10, i * 10 + 9) for i in range(count))


class Battery(OnCluster):
    """Each case is a table, a COPY, and optionally a query afterwards."""

    settings = ["allow_in_place_tablespaces = on", "max_prepared_transactions = 2"]

    def session(self, setting, cases):
        """What each case printed, its messages and its route."""
        script = [f"SET pgsluice.copy = {setting}; SET client_min_messages = notice;"]
        for number, (table, copy, after) in enumerate(cases):
            script.append(
                f"\\echo case {number}\n\\warn case {number}\nSET client_min_messages = warning; DROP TABLE IF EXISTS t CASCADE; {table};\n"
                f"RESET client_min_messages;\n\\unset QUIET\n{copy};\n\\set QUIET on\n"
                "SELECT 'took ' || coalesce(fell_back_because, route) FROM pgsluice.last_copy;\n"
                f"{after}; SELECT count(*), md5(string_agg(t::text, '|' ORDER BY t::text COLLATE \"C\")) FROM t;")
        said, told = self.cluster.session("\n".join(script))
        told = _PLACE.sub("", _LOCATION.sub("", told))
        cut = [re.split(r"^case \d+\n", text + "\n", flags=re.M)[1:] for text in (said, told)]
        self.assertEqual([len(part) for part in cut], [len(cases)] * 2)
        return [(said + "".join(f"took {reason}\n" for reason in _NO_ROW.findall(told) if reason), _NO_ROW.sub("", told)) for said, told in zip(*cut)]

    def same(self, cases, taken=True):
        """Asserts that both give the same; returns each case's output on standard error.

        `taken`: True if the extension must do what succeeds; else the reason it must give to fall back.
        """
        cases = [(*case, "")[:3] for case in cases]
        stock, ours = (self.session(setting, cases) for setting in ("off", "on"))
        for case, (one, refused), (other, refused_too) in zip(cases, stock, ours):
            with self.subTest(case=case):
                took = re.findall(r"^took (.*)\n", other, flags=re.M)
                self.assertEqual(re.sub(r"^took .*\n", "", one, flags=re.M), re.sub(r"^took .*\n", "", other, flags=re.M))
                self.assertEqual(refused, refused_too)
                if taken is True and "ERROR" not in refused:
                    self.assertIn(took, (["insert"], ["append"], ["fresh"]))
                elif taken is not True:
                    self.assertEqual(took, [taken])
        return [told for _, told in ours]


class Options(Battery):
    """COPY's own options and clauses, right and wrong; COPY within functions, and functions within COPY."""

    def each(self, copies, table=TABLE, counts=(80,)):
        """Each COPY with files of these numbers of rows; returns its messages."""
        paths = [self.cluster.file(f"rows{count}", rows(count)) for count in counts]
        return self.same([(table, copy.format(f"'{path}'")) for copy in copies for path in paths])

    def test_right_and_wrong(self):
        """For every option of every major, right and wrong, results or errors are stock COPY's; an older major does not have the newer options."""
        told = self.each(f"COPY t FROM {{}} WITH ({options})" for options in (
            "FORMAT csv", "FORMAT xyz", "FORMAT csv, FORMAT csv", "format 'csv', nonsense 1", "FORMAT csv, HEADER", "FORMAT csv, HEADER 1",
            "FORMAT csv, HEADER 'on'", "FORMAT csv, HEADER off", "FORMAT csv, HEADER match", "FORMAT csv, HEADER maybe", "FORMAT csv, HEADER 2", "FORMAT csv, HEADER 0", "FORMAT csv, HEADER -1", "FORMAT csv, HEADER '2'", "HEADER 99", "FORMAT json", "FORMAT json, HEADER 2", "FORMAT csv, FORCE_ARRAY",
            "FORMAT csv, DELIMITER ''", "FORMAT csv, DELIMITER 'ab'", "DELIMITER E'\\n'", "DELIMITER 'a'", "FORMAT csv, DELIMITER '\"'", "QUOTE ''''",
            "FORMAT csv, QUOTE 'ab'", "FORMAT csv, QUOTE ','", "FORMAT csv, ESCAPE ''", "ESCAPE 'x'", "FORMAT csv, NULL E'a\\n'", "FORMAT csv, NULL ','",
            "FORMAT csv, NULL '\"'", "FORMAT csv, NULL 'text 1 and more'", "FORMAT csv, FORCE_QUOTE *", "FORMAT csv, FORCE_NULL (a, b)", "FORMAT csv, FORCE_NULL *",
            "FORMAT csv, FORCE_NOT_NULL *", "FORMAT csv, FORCE_NOT_NULL (b), FORCE_NULL *", "FORCE_NULL (b)", "FORCE_NOT_NULL (b)", "FORMAT csv, FORCE_NULL (nope)",
            "FORMAT csv, FORCE_NULL (a), FORCE_NULL (b)", "FORMAT binary", "FORMAT binary, DELIMITER ','", "FORMAT binary, NULL 'x'", "FORMAT binary, HEADER",
            "FORMAT csv, ENCODING 'nope'", "FORMAT csv, ENCODING 'UTF8'", "FORMAT csv, ENCODING 'LATIN1'", "FORMAT csv, FREEZE", "FORMAT csv, FREEZE false", "FORMAT csv, FREEZE 3",
            "FORMAT csv, DEFAULT '6'", "FORMAT csv, DEFAULT ''", "FORMAT csv, DEFAULT '\"'", "FORMAT csv, DEFAULT E'x\\n'", "FORMAT csv, NULL 'x', DEFAULT 'x'",
            "FORMAT binary, DEFAULT 'x'", "FORMAT csv, ON_ERROR ignore", "FORMAT csv, ON_ERROR maybe", "FORMAT csv, ON_ERROR stop", "FORMAT binary, ON_ERROR ignore", "FORMAT csv, ON_ERROR set_null", "FORMAT binary, ON_ERROR set_null", "FORMAT csv, ON_ERROR set_null, REJECT_LIMIT 3",
            "FORMAT csv, LOG_VERBOSITY verbose", "FORMAT csv, LOG_VERBOSITY default", "FORMAT csv, LOG_VERBOSITY silent", "FORMAT csv, LOG_VERBOSITY loud",
            "FORMAT csv, REJECT_LIMIT 3", "FORMAT csv, ON_ERROR stop, REJECT_LIMIT 3", "FORMAT csv, ON_ERROR ignore, REJECT_LIMIT 0", "FORMAT csv, ON_ERROR ignore, REJECT_LIMIT 'x'",
            "FORMAT csv, ON_ERROR ignore, REJECT_LIMIT 2", "FORMAT csv, ON_ERROR ignore, REJECT_LIMIT 99999999999999999999"
        ))
        refused = sum("ERROR" in words for words in told)
        self.assertGreater(refused, 30)
        self.assertLess(refused, len(told) - 8)

    def test_clauses_and_targets(self):
        """For the old syntax, WHERE, column lists, missing files and failing programs, results or errors are stock COPY's."""
        told = self.each((
            "COPY t FROM {} CSV", "COPY t FROM {} WITH DELIMITER ',' CSV HEADER NULL 'x' QUOTE '\"' ESCAPE '\\'", "COPY BINARY t FROM {}", "COPY t FROM {} USING DELIMITERS ','",
            "COPY t FROM {} WITH (FORMAT csv) WHERE t.* IS NOT NULL", "COPY t FROM {} WITH (FORMAT csv) WHERE tableoid > 0::oid",
            "COPY t FROM {} WITH (FORMAT csv) WHERE a = (SELECT 1)", "COPY t FROM {} WITH (FORMAT csv) WHERE sum(a) > 1", "COPY t FROM {} WITH (FORMAT csv) WHERE a",
            "COPY t FROM {} WITH (FORMAT csv) WHERE nope", "COPY t FROM {} WITH (FORMAT csv) WHERE a IN (1, 2, 70) OR c IS NULL", "COPY t FROM {} WITH (FORMAT csv) WHERE 1 / (a - 2) > 0",
            "COPY t (a, b, c, p) FROM {} WITH (FORMAT csv)", "COPY t (p, b, c, a) FROM {} WITH (FORMAT csv)", "COPY t (a, a, b, c) FROM {} WITH (FORMAT csv)", "COPY t (nope) FROM {} CSV",
            "COPY t (ctid) FROM {} CSV", "COPY (SELECT 1) FROM {}", "COPY nosuch FROM {}", "COPY pg_temp.t FROM {}", "COPY t FROM 'nofile'", "COPY t FROM '/nowhere/nofile'", "COPY t FROM '/'",
            "COPY t FROM PROGRAM 'false'", "COPY t FROM PROGRAM 'echo 1; exit 3' CSV", "COPY t FROM PROGRAM 'echo 1,2,3,empty; exit 3' CSV", "COPY t FROM PROGRAM 'kill -9 $$'",
            *(fr"""COPY t FROM PROGRAM 'printf "1\tx\t2\tempty\n{end}"; kill -PIPE $$'""" for end in ("", r"\\\\.\n")), "COPY t FROM PROGRAM 'echo 1,2,3,empty' CSV", "COPY t FROM PROGRAM 'seq 1 100 | sed s/$/,x,1,empty/' CSV",
        ), counts=(3, 80))
        self.assertGreater(sum("ERROR" in words for words in told), 20)
        generated = f"CREATE TABLE t ({COLUMNS}, g int GENERATED ALWAYS AS (a + 1) STORED)"
        self.each(("COPY t FROM {} CSV", "COPY t (a, g) FROM {} CSV", "COPY t FROM {} CSV WHERE g > 1", "COPY t FROM {} CSV WHERE t.* IS NULL"), generated)
        if MAJOR >= 18:
            self.each(("COPY t FROM {} CSV", "COPY t FROM {} CSV WHERE g > 1", "COPY t FROM {} CSV WHERE c > 30"), generated.replace("STORED", "VIRTUAL"))

    def test_a_marker_behind_a_row(self):
        """In text format, \\. after a row ends the data that a client sends, and not that of a file; since 18 it is an error."""
        few = "1\tq\\.\n2\tr\n"
        some = "0\tp\n1\tq\\\\\\.\n2\tr\\\\.\n3\ts\\.\n4\tt\n"
        many = "".join(f"{i}\t{'row' * 9}\n" for i in range(20000))
        cases = []
        for table in ("CREATE TABLE t (a text, b text)", "CREATE TABLE t (a text, b text, c text DEFAULT current_setting('TimeZone'))"):
            for data in (few, some, some.replace("\n", "\r\n"), "0\tp\n" * 200 + some, many + some + many):
                path = self.cluster.file(f"marked{len(data)}", data.encode())
                for options in ("", " WITH (workers 0)", " WITH (workers 2)", " WITH (HEADER)"):
                    cases += [(table, f"COPY t (a, b) FROM '{path}'{options}"), (table, f"COPY t (a, b) FROM STDIN{options};\n{data}\\.\nSELECT 1")]
        told = self.same(cases)
        self.assertEqual(sum("ERROR" in words for words in told), len(told) if MAJOR >= 18 else 0)

    def test_a_line_end_that_is_data(self):
        """In text format, an error shows the line with the line ends that backslashes escape, including the last one."""
        cases = []
        for number, data in enumerate(("1\ty\n0\tx\\\n\n", "0\tx\\\r\n1\ty\n", "1\ty\r\n0\tx\\\r\\\n\r\n", "1\ty\n0\tx\\\n", "1\ty\r0\tx\\\r\r", "0\tx\\\\\n")):
            path = self.cluster.file(f"hidden{number}", data.encode())
            cases += [("CREATE TABLE t (a int CHECK (a > 0), b text)", f"COPY t FROM '{path}'{options}") for options in ("", " WITH (workers 0)")]
        self.assertEqual(sum("ERROR" in words for words in self.same(cases)), len(cases))

    def test_within_functions(self):
        """In DO, PL/pgSQL and SQL functions, row counts, caught errors and what is not allowed there are as with stock COPY."""
        path, wrong = self.cluster.file("few", rows(60)), self.cluster.file("wrong", rows(60) + b"x,1\n")
        copy = f"COPY t FROM '{path}' CSV;"
        counted = "GET DIAGNOSTICS n = ROW_COUNT; RAISE NOTICE 'rows %', n;"
        sql = "DROP FUNCTION IF EXISTS load; CREATE FUNCTION load() RETURNS {} AS $$ {} $$;"
        self.same([
            (TABLE, f"DO $$ DECLARE n bigint; BEGIN {copy} {counted} EXECUTE $c${copy}$c$; {counted} END $$"),
            (TABLE, f"DO $$ BEGIN BEGIN COPY t FROM '{wrong}' CSV; EXCEPTION WHEN OTHERS THEN RAISE NOTICE '% %', SQLSTATE, SQLERRM; END; {copy} END $$"),
            (TABLE + ";" + sql.format("void LANGUAGE sql", copy), "SELECT load()"),
            (TABLE + ";" + sql.format("int LANGUAGE plpgsql", f"BEGIN {copy} RETURN 1; END"), "BEGIN; SELECT load() FROM generate_series(1, 3); COMMIT"),
            (TABLE, f"DO $$ BEGIN COPY t FROM '{wrong}' CSV; END $$"), (TABLE, "DO $$ BEGIN EXECUTE 'COPY t FROM STDIN'; END $$"),
            (TABLE + ";" + sql.format("int STABLE LANGUAGE plpgsql", f"BEGIN {copy} RETURN 1; END"), "SELECT load()"),
        ])

    def test_what_functions_say(self):
        """Messages of a CHECK, a generated column, an index, a domain and triggers have stock COPY's number, order and lines."""
        say = ("CREATE OR REPLACE FUNCTION say(what text, a int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS"
               " $$ BEGIN IF a % 20 = 7 THEN RAISE NOTICE '% %', what, a; END IF; RETURN a; END $$;"
               "CREATE OR REPLACE FUNCTION fire() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM say(TG_NAME, NEW.a); RETURN NULL; END $$;"
               "DROP DOMAIN IF EXISTS said; CREATE DOMAIN said AS int CHECK (say('domain', VALUE) >= 0);"
               "CREATE TABLE t (a {} CHECK (say('check', a) >= 0), b text, c bigint DEFAULT 7, p int4range, g int GENERATED ALWAYS AS (say('generated', a)) STORED){};"
               "CREATE TRIGGER fire AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION fire(); CREATE INDEX ON t (say('index', a))")
        path = self.cluster.file("few", rows(60))
        leaf = " PARTITION BY RANGE (a); CREATE TABLE t0 PARTITION OF t DEFAULT"
        told = self.same([(say.format(kind, parted), f"\\set SHOW_CONTEXT always\nCOPY t (a, b, c, p) FROM '{path}' CSV{where}")
                          for kind in ("int", "said") for parted in ("", leaf) for where in ("", " WHERE say('where', a) > 10")])
        self.assertIn('CONTEXT:  PL/pgSQL function say(text,integer) line 1 at RAISE\nCOPY t, line 28: "27,text 27', told[0])
        self.cluster.sql("DROP TABLE t; DROP DOMAIN said")

    def test_no_columns(self):
        """If the data has no columns, or the table has none either, results or errors are stock COPY's."""
        files = {"TEXT": self.cluster.file("blank", b"\n" * 500), "CSV": self.cluster.file("blanks", b"\r\n" * 500),
                 "BINARY": self.cluster.file("tuples", b"PGCOPY\n\xff\r\n\0" + bytes(8) + bytes(2) * 500 + b"\xff\xff")}
        wrong = self.cluster.file("wrong", b"\n" * 400 + b"x\n" * 100)
        cases = []
        for table in ("CREATE TABLE t ()", "CREATE TABLE t (a int GENERATED ALWAYS AS (1) STORED)", "CREATE TABLE t (a int); ALTER TABLE t DROP a"):
            cases += [(table, f"COPY t FROM '{path}' (FORMAT {form})") for form, path in files.items()]
            cases += [(table, f"COPY t FROM '{wrong}'"), (table, f"COPY t FROM '{wrong}' CSV HEADER")]
        self.assertEqual(sum("ERROR" in told for told in self.same(cases)), 6)


class Kinds(Battery):
    """Tables of every kind, with 60 rows and with enough for whole pages."""

    def each(self, kinds, count=16000):
        """`kinds`: (table[, what comes before the COPY[, the query afterwards]])."""
        paths = [self.cluster.file(f"rows{number}", rows(number)) for number in (60, count)]
        cases = []
        for kind in kinds:
            table, before, after = (*((kind,) if isinstance(kind, str) else kind), "", "")[:3]
            for path in paths:
                end = "; COMMIT" if "BEGIN" in before else ""
                cases.append((table, f"{before + '; ' if before else ''}COPY t (a, b, c, p) FROM '{path}' CSV{end}", after))
        return self.same(cases)

    def test_places_and_shapes(self):
        """Tablespaces, inheritance, typed tables, storage, dropped and added columns: results are stock COPY's."""
        self.cluster.sql("CREATE TABLESPACE other LOCATION ''")
        self.cluster.sql("CREATE TYPE pair AS (x int, y text); CREATE TYPE shape AS (a int, b text, c bigint, p int4range); CREATE TABLE parent (a int, b text)")
        self.each((
            f"{TABLE} TABLESPACE other", f"CREATE UNLOGGED TABLE t ({COLUMNS}) TABLESPACE other; CREATE INDEX ON t (a) TABLESPACE other",
            (f"{TABLE} TABLESPACE other; CREATE UNIQUE INDEX ON t (a) TABLESPACE other", "BEGIN; TRUNCATE t"),
            (TABLE, "BEGIN; ALTER TABLE t SET TABLESPACE other"), "SET default_tablespace = other; " + TABLE + "; RESET default_tablespace",
            "CREATE TABLE t (c bigint, p int4range) INHERITS (parent); INSERT INTO t VALUES (1, 'there', 2, 'empty')",
            f"{TABLE}; CREATE TABLE child (z int) INHERITS (t)", "CREATE TABLE t OF shape (a NOT NULL, b DEFAULT 'x')",
            f"CREATE TABLE t ({COLUMNS}, d pair DEFAULT (1, 'x'), e pair[] DEFAULT '{{\"(2,y)\"}}', f int4range DEFAULT '[1,2)')",
            f"CREATE TABLE t (x text, {COLUMNS}); INSERT INTO t VALUES ('before'); ALTER TABLE t DROP x, ADD y text DEFAULT 'added', ADD z int",
            f"{TABLE}; ALTER TABLE t ALTER b SET COMPRESSION pglz, ALTER b SET STORAGE main, SET (toast_tuple_target = 128)",
            f"{TABLE} WITH (fillfactor = 30); INSERT INTO t SELECT i FROM generate_series(1, 500) i; DELETE FROM t WHERE a % 2 = 0",
            (f"CREATE TEMPORARY TABLE t ({COLUMNS}) ON COMMIT DELETE ROWS", "BEGIN"), f"CREATE TEMPORARY TABLE t ({COLUMNS}, UNIQUE (a))",
        ))

    def test_constraints_and_indexes(self):
        """Checks, keys and exclusions, immediate and deferred, kept and violated, and every access method: results or errors are stock COPY's."""
        held = [
            "a int NOT NULL, b text, c bigint, p int4range, CHECK (p IS NOT NULL AND a >= 0)", f"{COLUMNS}, EXCLUDE USING gist (p WITH &&)",
            f"{COLUMNS}, EXCLUDE USING gist (p WITH &&) DEFERRABLE INITIALLY DEFERRED", f"{COLUMNS}, UNIQUE NULLS NOT DISTINCT (a, c)", f"{COLUMNS}, UNIQUE (a) INCLUDE (c) DEFERRABLE",
            f"{COLUMNS}, g int GENERATED ALWAYS AS (a * 2) STORED NOT NULL UNIQUE", f"{COLUMNS}, i int GENERATED BY DEFAULT AS IDENTITY (INCREMENT -2 START 1000000 MAXVALUE 1000000)",
        ]
        refusing = [f"{COLUMNS}, CHECK (a < 50)", f"{COLUMNS}, CONSTRAINT one EXCLUDE USING hash (b WITH =)", f"{COLUMNS}, UNIQUE (b) DEFERRABLE INITIALLY DEFERRED",
                    f"{COLUMNS}, EXCLUDE USING gist (p WITH &&) WHERE (a <> 40), UNIQUE (b)", f"{COLUMNS}, g int GENERATED ALWAYS AS (1 / (a - 55)) STORED"]
        if MAJOR >= 18:
            held += [f"{COLUMNS}, g int GENERATED ALWAYS AS (a + 1) VIRTUAL NOT NULL, CHECK (g > 0)", f"{COLUMNS}, CHECK (a < 0) NOT ENFORCED"]
            refusing += [f"{COLUMNS}, g int GENERATED ALWAYS AS (nullif(a, 55)) VIRTUAL NOT NULL", f"{COLUMNS}, g int GENERATED ALWAYS AS (a + 1) VIRTUAL, CHECK (g < 40)"]
        self.assertEqual([told for told in self.each([f"CREATE TABLE t ({columns})" for columns in held], 2000) if "ERROR" in told], [])
        for told in self.each([f"CREATE TABLE t ({columns})" for columns in refusing], 2000)[1::2]:
            self.assertIn("ERROR", told)
        self.each((
            f"{TABLE}; CREATE INDEX ON t USING hash (b); CREATE INDEX ON t USING brin (a)", f"{TABLE}; CREATE INDEX ON t USING gist (p); CREATE INDEX ON t USING spgist (b)",
            f"{TABLE}; CREATE INDEX ON t USING gin (to_tsvector('simple', b)); CREATE INDEX ON t ((a % 7), lower(b)) WHERE c > 60",
        ), 2000)

    def test_keys_triggers_and_rules(self):
        """Deferred keys, statement triggers, replica and constraint triggers, and rules: rows, fired triggers and errors are stock COPY's."""
        see = ("DROP TABLE IF EXISTS seen, parents CASCADE; CREATE TABLE seen (what text, n bigint);"
               "CREATE OR REPLACE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN INSERT INTO seen VALUES"
               " (TG_NAME || TG_WHEN || TG_LEVEL || TG_TABLE_NAME, CASE WHEN TG_LEVEL = 'ROW' THEN NEW.a END); RETURN NULL; END$$;" + TABLE + ";")
        asked = "SELECT what, count(*), sum(n) FROM seen GROUP BY 1 ORDER BY 1 COLLATE \"C\""
        key = see + "CREATE TABLE parents (a int PRIMARY KEY); INSERT INTO parents SELECT generate_series(0, {}); ALTER TABLE t ADD FOREIGN KEY (a) REFERENCES parents"
        trigger = "CREATE {} TRIGGER {} {} INSERT ON t FOR EACH {} EXECUTE FUNCTION see();"
        told = self.each((
            (key.format(2000), "", asked), (key.format(30), "", asked), (key.format(2000) + " DEFERRABLE INITIALLY DEFERRED", "", asked), (key.format(30) + " DEFERRABLE INITIALLY DEFERRED", "BEGIN", asked),
            (see + trigger.format("", "one", "BEFORE", "STATEMENT") + trigger.format("", "two", "AFTER", "STATEMENT"), "", asked),
            (see + trigger.format("", "one", "AFTER", "ROW") + trigger.format("", "two", "AFTER", "ROW") + "ALTER TABLE t ENABLE REPLICA TRIGGER one, ENABLE ALWAYS TRIGGER two", "", asked),
            (see + trigger.format("", "one", "AFTER", "ROW") + trigger.format("", "two", "AFTER", "ROW") + "ALTER TABLE t DISABLE TRIGGER one", "", asked),
            (see + trigger.format("CONSTRAINT", "one", "AFTER", "ROW"), "", asked),
            (see + "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION see()", "BEGIN", asked),
            (see + "CREATE RULE no AS ON INSERT TO t DO INSTEAD NOTHING", "", asked),
        ), 2000)
        self.assertEqual(sum("23503" in words for words in told), 4)
        self.same([(see + trigger.format("", "one", "AFTER", "ROW") + "ALTER TABLE t ENABLE REPLICA TRIGGER one",
                    f"SET session_replication_role = replica; COPY t FROM '{self.cluster.file('few', rows(60))}' CSV; RESET session_replication_role", asked)])

    def test_triggers_at_the_commit(self):
        """A deferred trigger with a STABLE function sees all rows of a single statement at its commit."""
        told = self.each((TABLE + ";CREATE OR REPLACE FUNCTION tell() RETURNS trigger STABLE LANGUAGE plpgsql AS"
                          " $$BEGIN RAISE NOTICE 'it sees %', (SELECT count(*) FROM t); RETURN NULL; END$$;"
                          "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.a = 7) EXECUTE FUNCTION tell()",))
        self.assertIn("it sees 60\n", told[0])
        self.assertIn("it sees 16000\n", told[1])

    def test_partitions_and_freeze(self):
        """FREEZE works in a partition truncated by the transaction, is an error in others, and falls back for a
        partitioned table. Bounds and keys of nested leaves apply."""
        part = TABLE.replace("TABLE t", "TABLE {}") + " PARTITION BY {} (a);"
        by_list = part.format("t", "LIST") + ("CREATE TABLE l0 PARTITION OF t FOR VALUES IN (0, 1, 2, NULL); CREATE TABLE lr PARTITION OF t DEFAULT PARTITION BY RANGE (c);"
                                              "CREATE TABLE r0 PARTITION OF lr FOR VALUES FROM (MINVALUE) TO (100) PARTITION BY HASH (b);"
                                              "CREATE TABLE h0 PARTITION OF r0 FOR VALUES WITH (MODULUS 2, REMAINDER 0); CREATE TABLE h1 PARTITION OF r0 FOR VALUES WITH (MODULUS 2, REMAINDER 1) TABLESPACE pg_default;"
                                              "CREATE TABLE r1 PARTITION OF lr (CHECK (a > 0)) FOR VALUES FROM (100) TO ({});")
        told = self.each((by_list.format("MAXVALUE"), by_list.format(200), by_list.format("MAXVALUE") + "ALTER TABLE t ADD UNIQUE (a, b, c)"), 2000)
        self.assertEqual(sum("no partition of relation" in words for words in told), 1)
        leaf = part.format("whole", "RANGE").replace("CREATE", "DROP TABLE IF EXISTS whole CASCADE; CREATE", 1) + "CREATE TABLE t PARTITION OF whole FOR VALUES FROM (0) TO ({})"
        more = self.cluster.file("more", rows(2000))
        freeze = f"COPY {{}} FROM '{more}' (FORMAT csv, FREEZE)"
        self.same([(leaf.format(2000), "BEGIN; TRUNCATE t;" + freeze.format("t") + "; COMMIT", "VACUUM t; SELECT relallvisible > 0 FROM pg_class WHERE relname = 't'"),
                   (leaf.format(2000), freeze.format("t")), (leaf.format(80), "BEGIN; TRUNCATE t;" + freeze.format("t") + "; COMMIT")])
        self.same([(leaf.format(2000), f"BEGIN; TRUNCATE whole;{freeze.format('whole')}; COMMIT")], taken="FREEZE of a partitioned table")

    def test_left_to_stock(self):
        """Each reason to fall back that docs/extension.md gives is recorded, and rows or errors are stock COPY's."""
        path = self.cluster.file("few", rows(60))
        copy = f"COPY t FROM '{path}' CSV"
        before = ("CREATE OR REPLACE FUNCTION b() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';"
                  "CREATE OR REPLACE FUNCTION seen() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM count(*) FROM added; RETURN NULL; END';")
        parted = f"{before}{TABLE} PARTITION BY LIST (b);"
        self.cluster.sql("CREATE ACCESS METHOD heap_too TYPE TABLE HANDLER heap_tableam_handler; CREATE FOREIGN DATA WRAPPER nothing; CREATE SERVER nowhere FOREIGN DATA WRAPPER nothing")
        for reason, *case in (
            ("the table's access method is not heap", f"{TABLE} USING heap_too", copy),
            ("a partition's access method is not heap", f"{parted} CREATE TABLE t0 PARTITION OF t DEFAULT USING heap_too", copy),
            ("a partition is foreign", f"{parted} CREATE FOREIGN TABLE t0 PARTITION OF t DEFAULT SERVER nowhere", copy),
            ("a partition has BEFORE row triggers", f"{parted} CREATE TABLE t0 PARTITION OF t DEFAULT; CREATE TRIGGER b BEFORE INSERT ON t0 FOR EACH ROW EXECUTE FUNCTION b()", copy),
            ("a partitioned table has a trigger with a transition table", f"{parted} CREATE TABLE t0 PARTITION OF t DEFAULT;"
             "CREATE TRIGGER s AFTER INSERT ON t REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION seen()", copy),
            ("the table has BEFORE or INSTEAD OF row triggers", f"{before}{TABLE}; CREATE TRIGGER b BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION b()", copy),
            ("the table is a catalog", f"{TABLE} WITH (user_catalog_table = true)", copy),
            ("the WHERE clause is volatile", TABLE, copy + " WHERE random() >= 0"),
            ("the WHERE clause names a system column", TABLE, copy + " WHERE ctid IS NULL"),
            ("the WHERE clause names a system column", TABLE, copy + " WHERE xmin::text = '0'"),
            ("a column has a volatile default", f"CREATE TABLE t ({COLUMNS}, d text DEFAULT set_config('a.b', '1', true))", f"COPY t (a, b, c, p) FROM '{path}' CSV"),
            ("the transaction is read-only", TABLE, f"BEGIN READ ONLY; {copy}; ROLLBACK"),
            ("the transaction is read-only", TABLE.replace("TABLE", "TEMPORARY TABLE"), f"BEGIN READ ONLY; {copy}; COMMIT"),
            ("CONVERT_SELECTIVELY", TABLE, copy.replace("CSV", "(FORMAT csv, convert_selectively (a))")),
            ("ENCODING is unknown", TABLE, copy.replace("CSV", "(FORMAT csv, ENCODING 'nope')")),
        ):
            self.same([case], taken=reason)
        for what, reason in (("FOREIGN TABLE t ({}) SERVER nowhere", "the table is foreign"), ("VIEW t AS SELECT 1 AS a", "the target is a view"), ("SEQUENCE t", "the target is not a table")):
            self.same([(f"CREATE {what.format(COLUMNS)}", copy, f"DROP {what.split(' t ')[0].removesuffix(' t')} t")], taken=reason)


if __name__ == "__main__":
    unittest.main()
