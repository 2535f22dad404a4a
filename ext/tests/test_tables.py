"""Random tables and records: by stock COPY and by the extension or, where COPY goes on after a bad record, record by
record.

A failure reports its seed; PGSLUICE_SEED starts from it, and PGSLUICE_SOAK=n runs n rounds.
"""

import itertools
import os
import random
import re
import unittest

from .cluster import MAJOR, OnCluster
from .differential import _LOCATION, _PLACE
from .twins import BOTH

ROUNDS = int(os.environ.get("PGSLUICE_SOAK", "1"))
SEED = int(os.environ.get("PGSLUICE_SEED", "1"))
CASES = 40

# Values that a type accepts, and some that the type, or a constraint of the column, does not.
INTEGERS = [str(n) for n in range(1, 30)], ["0", "-4", "x", "", "2147483648", "7"]
TYPES = {
    "int": INTEGERS, "bigint": INTEGERS, "positive": INTEGERS, "present": INTEGERS,
    "text": (["a", "é", "long " * 30, "NULL", "0", "x y"], [""]), "char(3)": (["a", "abc", ""], ["abcd"]), "varchar(4)": (["ab", "abcd", "ab   "], ["abcde"]),
    "numeric(6,2)": (["1", "2.345", "NaN"], ["99999", "q"]), "float8": (["1e3", "inf", "-0"], ["q"]), "bool": (["t", "no", "1"], ["maybe"]),
    "date": (["2024-01-02", "infinity"], ["2024-13-01"]), "timestamptz": (["2024-01-02 03:04:05+02"], ["bad"]), "interval": (["1 day", "P1D"], ["zz"]),
    "jsonb": (["{}", '{"a": [1]}'], ["{bad"]), "int[]": (["{1,2}", "{}", "{1,NULL}"], ["{x}"]), "mood": (["sad", "ok", "happy"], ["glum"]),
    "pair": (["(1,a)", "(,)"], ["(1"]), "odd": (["(1,a)", "(,)"], ["(2,b)"]), "few": (["{1}", "{}"], ["{1,2,3}"]), "int4range": (["[1,3)", "empty"], ["[3,1)"]),
    "uuid": (["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"], ["nope"]), "point": (["(1,2)"], ["p"]), "bytea": (["abc"], []), "inet": (["10.0.0.1"], ["1.2.3"]),
}
DEFAULTS = {"int": ["5", "nullif(1, 1)", "1 + 1", "length(current_user)"], "bigint": ["7"], "text": ["'d'", "current_user", "lower('Q')"],
            "positive": ["5"], "mood": ["'ok'"], "pair": ["ROW(1, 'z')"], "odd": ["ROW(1, 'z')"], "int[]": ["'{9}'", "ARRAY[1, 2]"], "jsonb": ["'{}'"]}
DRAWN = ["nextval('s')", "nextval('s') * 2", "seen()"]
PREPARED = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy'); CREATE TYPE pair AS (x int, y text); CREATE SEQUENCE s; CREATE TABLE log (n serial, what text);
CREATE DOMAIN positive AS int CHECK (VALUE > 0); CREATE DOMAIN present AS int NOT NULL CHECK (VALUE <> 7);
CREATE DOMAIN odd AS pair CHECK ((VALUE).x IS DISTINCT FROM 2); CREATE DOMAIN few AS int[] CHECK (cardinality(VALUE) < 3);
CREATE FUNCTION note(what text) RETURNS bool LANGUAGE sql AS 'INSERT INTO log (what) VALUES ($1) RETURNING true';
CREATE FUNCTION seen() RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN count(*) FROM t; END';
CREATE FUNCTION looks(c int) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN RETURN note(concat_ws(' ', 'check', c, seen())) AND c IS DISTINCT FROM 11; END $$;
CREATE FUNCTION fires() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM note(concat_ws(' ', TG_NAME, TG_TABLE_NAME, CASE TG_LEVEL WHEN 'ROW' THEN NEW::text END, seen())); RETURN NULL; END $$;
CREATE FUNCTION refuses() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.c0::text LIKE '%5' THEN RAISE 'no fives: %', NEW.c0; END IF; RETURN NULL; END $$;
CREATE FUNCTION shows() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM note(string_agg(c::text, '|' ORDER BY c::text)) FROM came c; RETURN NULL; END $$;
CREATE TABLE bad (LIKE pgsluice.reject); CREATE TABLE twice (LIKE pgsluice.duplicate);
"""


class Table:
    """A table, and a COPY of some records into some of its columns. `calm`: nothing in it depends on how a load is split."""

    def __init__(self, rng, calm, keyed=False):
        self.rng, self.calm = rng, calm
        self.columns = [("c0", rng.choice(("int", "int", "bigint", "text", "mood") if keyed else ("int", "int", "text", "positive", "mood")))]
        for number in range(1, rng.choice((1, 2, 4, 7))):
            kind = rng.choice(list(TYPES))
            self.columns.append((f"c{number}", kind if not keyed or kind != "present" else "int"))
        self.listed = [column for column in self.columns if column[0] == "c0" or rng.random() < 0.8]
        if rng.random() < 0.3:
            rng.shuffle(self.listed)
        self.parted = rng.random() < 0.4
        self.ddl = self.create(keyed) + ";" + ";".join(self.beside())
        self.csv = rng.random() < 0.6
        self.options = f"FORMAT {'csv' if self.csv else 'text'}" + rng.choice(("", "", ", NULL 'NULL'", ", NULL '0'"))
        if self.csv and rng.random() < 0.3:
            self.options += rng.choice((", FORCE_NULL ({})", ", FORCE_NOT_NULL ({})")).format(rng.choice(self.listed)[0])
        # Since 16, a marker stands for a column's default.
        self.marker = "D" if MAJOR >= 16 and not keyed and rng.random() < 0.3 else None
        if self.marker:
            self.options += f", DEFAULT '{self.marker}'"
        self.records = self.some(rng.choice((0, 0, 0.02, 0.1)) if not calm else rng.choice((0.02, 0.1)), keyed)
        self.target = "t (" + ", ".join(name for name, _ in self.listed) + ")"

    def definitions(self, keyed):
        """Columns, some of which will be dropped, and constraints."""
        rng, made = self.rng, []
        for name, kind in self.columns:
            made.append(f"{name} {kind}")
            given = DEFAULTS.get(kind, []) + ([] if self.calm or kind not in ("int", "bigint") else DRAWN)
            if given and rng.random() < 0.4:
                made[-1] += f" DEFAULT {rng.choice(given)}"
            elif name != "c0" and rng.random() < 0.1:
                made[-1] += " NOT NULL"
            if rng.random() < 0.15:
                made.append(f"gone{name} int")
        if rng.random() < 0.25:
            made.append("g text GENERATED ALWAYS AS (c0::text || '!') STORED" if self.columns[0][1] != "mood" else "g int GENERATED ALWAYS AS (1) STORED")
        if rng.random() < 0.2:
            made.append("CHECK (c0::text <> '13')")
        if not self.calm and self.columns[0][1] == "int" and rng.random() < 0.1:
            made.append("CHECK (looks(c0))")
        if keyed or (not self.parted and rng.random() < 0.2):
            made.append("PRIMARY KEY (c0)")
        elif not self.parted and not self.calm and rng.random() < 0.1:
            made.append(rng.choice(("UNIQUE (c0) DEFERRABLE", "UNIQUE (c0) DEFERRABLE INITIALLY DEFERRED", "EXCLUDE USING btree (c0 WITH =)")))
        return made

    def create(self, keyed):
        """CREATE TABLE with partitions, some of which were tables of another shape."""
        rng, made = self.rng, self.definitions(keyed)
        gone = "".join(f"; ALTER TABLE t DROP {one.split()[0]}" for one in made if one.startswith("gone"))
        if not self.parted:
            return f"CREATE {rng.choice(('', '', 'UNLOGGED'))} TABLE t ({', '.join(made)}){gone}"
        kind = rng.choice(("HASH", "LIST"))
        of = {"int": "1, 2, 5", "bigint": "1, 2, 5", "positive": "1, 2, 5", "text": "'a', 'NULL'", "mood": "'ok'"}[self.columns[0][1]]
        bounds = [f"FOR VALUES WITH (MODULUS 2, REMAINDER {n})" for n in (0, 1)] if kind == "HASH" else [f"FOR VALUES IN ({of})"] + ["DEFAULT"] * rng.choice((0, 1, 1))
        sql = f"CREATE TABLE t ({', '.join(made)}) PARTITION BY {kind} (c0){gone}"
        for number, bound in enumerate(bounds):
            sql += rng.choice((f"; CREATE TABLE t{number} PARTITION OF t {bound}",
                               f"; CREATE TABLE t{number} (z int, LIKE t INCLUDING CONSTRAINTS INCLUDING GENERATED); ALTER TABLE t{number} DROP z; ALTER TABLE t ATTACH PARTITION t{number} {bound}"))
        return sql

    def beside(self):
        """Indexes, triggers, a foreign key, a column added later."""
        rng, made = self.rng, []
        each = "FOR EACH ROW EXECUTE FUNCTION"
        for chance, sql in ((0.2, "CREATE INDEX ON t (c0)"), (0.1, f"CREATE TRIGGER refuses AFTER INSERT ON t {each} refuses()"), (0.15, "ALTER TABLE t ADD late int DEFAULT 42")):
            if rng.random() < chance:
                made.append(sql)
        if self.columns[0][1] == "int" and rng.random() < 0.15:
            made.append("CREATE TABLE parent (p int PRIMARY KEY); INSERT INTO parent SELECT generate_series(0, 25); ALTER TABLE t ADD FOREIGN KEY (c0) REFERENCES parent")
        for chance, sql in ((0.15, f"CREATE TRIGGER fires AFTER INSERT ON t FOR EACH ROW WHEN (NEW.c0 IS NOT NULL) EXECUTE FUNCTION fires()"),
                            (0.1, "CREATE TRIGGER before BEFORE INSERT ON t EXECUTE FUNCTION fires()"),
                            (0.1, "CREATE TRIGGER shows AFTER INSERT ON t REFERENCING NEW TABLE AS came FOR EACH STATEMENT EXECUTE FUNCTION shows()"),
                            (0.1, f"CREATE CONSTRAINT TRIGGER late AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED {each} refuses()")):
            if not self.calm and rng.random() < chance:
                made.append(sql)
        return made

    def some(self, badness, keyed):
        """Records whose first column has equal values rarely or often."""
        rng, made = self.rng, []
        for number in range(rng.choice((1, 3, 8, 30))):
            fields = []
            for name, kind in self.listed:
                good, bad = TYPES[kind]
                value = rng.choice(bad if bad and rng.random() < badness else [one for one in good if one != "7" or kind != "present"])
                if name == "c0" and kind in ("int", "bigint") and value in good:
                    value = str(rng.randrange(1, 9) if keyed else number + 1)
                if rng.random() < 0.06:
                    value = "" if self.csv else "\\N"
                elif self.marker and rng.random() < 0.1:
                    value = self.marker
                elif self.csv and (re.search(r'[",]', value) or rng.random() < 0.15):
                    value = '"' + value.replace('"', '""') + '"'
                fields.append(value)
            made.append(("," if self.csv else "\t").join(fields[:-1] if len(fields) > 1 and rng.random() < badness / 2 else fields))
        return made


class Tables(OnCluster):
    """Each case is run in two or more ways."""

    prepared = PREPARED
    files = itertools.count()

    def scripts(self, make, *ways):
        """Runs each case in each way, and asserts that all results and messages are the same."""
        for seed in range(SEED, SEED + ROUNDS):
            rng = random.Random(seed)
            cases = [make(rng) for _ in range(CASES)]
            found = []
            for way in ways:
                script = "".join(
                    f"\\echo @{number}\n\\warn @{number}\nSET client_min_messages = error; SET pgsluice.copy = off; DROP TABLE IF EXISTS t, t0, t1, parent CASCADE; TRUNCATE log, bad, twice RESTART IDENTITY;"
                    f"ALTER SEQUENCE s RESTART; {case.ddl};\n\\echo @\n\\warn @\nRESET client_min_messages;\n{way(case)}" for number, case in enumerate(cases))
                said, told = (re.split(r"^@\d+\n", text + "\n", flags=re.M)[1:] for text in self.cluster.session(script))
                found.append([(one.partition("@\n")[2], BOTH.sub("", _PLACE.sub("", _LOCATION.sub("", other.partition("@\n")[2])))) for one, other in zip(said, told)])
                self.assertEqual(len(found[-1]), CASES, f"PGSLUICE_SEED={seed}")
            for number, case in enumerate(cases):
                for other in found[1:]:
                    self.assertEqual(found[0][number], other[number], f"PGSLUICE_SEED={seed}, case {number}: COPY {case.target} WITH ({case.options})\n{case.ddl}\n" + "\n".join(case.records))
        self.assertNotIn("terminated by signal", self.cluster.tail())

    def file(self, *records):
        """Writes the records to a file; returns its path in quotes."""
        path = self.cluster.file(f"records{next(self.files)}", "".join(record + "\n" for record in records).encode())
        return f"'{path}'"

    def test_as_stock(self):
        """Rows, messages, what triggers and checks have logged, and the sequence's state are stock COPY's."""
        def way(setting, more, case):
            return (f"SET pgsluice.copy = {setting};\n\\unset QUIET\nCOPY {case.target} FROM {self.file(*case.records)} WITH ({case.options}{more});\n\\set QUIET on\n"
                    f"SELECT tableoid::regclass, t.* FROM t ORDER BY 1, {'ctid' if MAJOR < 16 else 't::text'}; SELECT * FROM log ORDER BY n; SELECT last_value, is_called FROM s;\n")
        self.scripts(lambda rng: Table(rng, False), lambda case: way("off", "", case), lambda case: way("on", "", case), lambda case: way("on", ", workers 0", case))

    def one_by_one(self, case, statement):
        """Loads each record by itself, and records its error."""
        return "".join(f"DO $do$ DECLARE d text; BEGIN {statement.format(self.file(record))}; EXCEPTION WHEN OTHERS THEN GET STACKED DIAGNOSTICS d = PG_EXCEPTION_DETAIL;"
                       f" INSERT INTO bad (line, sqlstate, message, detail) VALUES ({line}, SQLSTATE, SQLERRM, nullif(d, '')); END $do$;\n"
                       for line, record in enumerate(case.records, 1))

    def test_rejects(self):
        """With rejects_to, rows and rejects are as if each record had been a separate COPY."""
        shown = "SELECT line, sqlstate, message, detail FROM bad ORDER BY line; SELECT t.* FROM t ORDER BY t::text;\n"
        self.scripts(lambda rng: Table(rng, True),
                     lambda case: self.one_by_one(case, f"COPY {case.target} FROM {{}} WITH ({case.options})") + shown,
                     lambda case: f"SET client_min_messages = error; COPY {case.target} FROM {self.file(*case.records)} WITH ({case.options}, rejects_to 'bad');\n{shown}")

    def test_duplicates(self):
        """With on_duplicate, rows, rejects and lost rows are as if each record had been a separate INSERT … ON CONFLICT."""
        shown = "SELECT line, sqlstate FROM bad ORDER BY line; SELECT t.* FROM t ORDER BY t::text; SELECT lost.* FROM {} lost ORDER BY lost::text;\n"

        def inserts(mode, case):
            names = ", ".join(name for name, _ in case.listed)
            change = ", ".join(f"{name} = excluded.{name}" for name, _ in case.columns)
            loser, conflict = ("g", "NOTHING") if mode == "skip" else ("t", f"UPDATE SET {change}")
            lost = f"SELECT {', '.join(f'{loser}.{name}' for name, _ in case.listed)} FROM g JOIN t USING (c0)"
            return (f"CREATE TEMP TABLE g AS SELECT {names} FROM t LIMIT 0; CREATE TEMP TABLE lost AS TABLE g;\n"
                    + self.one_by_one(case, f"TRUNCATE g; COPY g FROM {{}} WITH ({case.options}); INSERT INTO lost {lost}; INSERT INTO t ({names}) SELECT * FROM g ON CONFLICT (c0) DO {conflict}")
                    + shown.format("") + "DROP TABLE g, lost;\n")

        def copy(mode, more, case):
            names = ", ".join(name for name, _ in case.listed)
            return (f"SET client_min_messages = error; COPY {case.target} FROM {self.file(*case.records)} WITH ({case.options}, rejects_to 'bad', on_duplicate '{mode}', duplicates_to 'twice'{more});\n"
                    + shown.format(f"(SELECT {names} FROM (SELECT (lost_row::t).* FROM twice) _)"))
        for mode in ("skip", "replace"):
            self.scripts(lambda rng: Table(rng, True, True), lambda case: inserts(mode, case), lambda case: copy(mode, "", case), lambda case: copy(mode, ", lock 'exclusive'", case))


if __name__ == "__main__":
    unittest.main()
