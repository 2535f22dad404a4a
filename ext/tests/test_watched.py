"""Volatile CHECK constraints and conditions look at the load: they see what they would see in stock COPY, call by call."""

import itertools
import struct
import unittest

from .cluster import OnCluster
from .differential import _LOCATION, _PLACE, ROUTES, compare
from .twins import BOTH

CSV = "COPY t (a, b) FROM '{}' WITH (FORMAT csv, workers {})"
NARROW = "".join(f"{'' if i % 7 == 3 else i},row {i}\n" for i in range(3500)).encode()
WIDE = "".join(f"{i},{'wide' * 250}\n" for i in range(1500)).encode()


class Watched(OnCluster):
    """Each call writes down how many rows of the load are in the table by then, and where its sequence is."""

    prepared = (
        "CREATE TABLE log (x int, seen bigint, indexed bigint, drawn bigint); CREATE SEQUENCE s;"
        "CREATE FUNCTION looks(x int) RETURNS bool LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS"
        " $$ BEGIN INSERT INTO log SELECT x, (SELECT count(*) FROM t), (SELECT count(*) FROM t WHERE id = 2), last_value FROM s; RETURN true; END $$;"
        "CREATE DOMAIN watched AS int CHECK (looks(VALUE)); CREATE DOMAIN above AS watched CHECK (VALUE IS NOT NULL OR looks(-1));"
        "CREATE TYPE pair AS (x watched, y text); CREATE FUNCTION ignore() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
    )

    def left_by(self, setting, table, copy, before):
        """What the load says and leaves, the calls among it."""
        said, errors = self.cluster.session(
            f"SET client_min_messages = warning; DROP TABLE IF EXISTS t; TRUNCATE log; ALTER SEQUENCE s RESTART; {table};\n"
            f"SET pgsluice.copy = {setting}; {before}\n{copy};\n{'COMMIT;' if before else ''}\nSELECT * FROM log ORDER BY ctid; SELECT 'rows', count(*), sum(id) FROM t;"
            "SELECT 'took ' || coalesce(fell_back_because, route) FROM pgsluice.last_copy")
        lines = said.splitlines()
        took = lines.pop()[5:] if lines[-1].startswith("took ") else None
        return lines, BOTH.sub("", _PLACE.sub("", _LOCATION.sub("", errors))), took

    def same(self, table, data, copy=CSV, before="", route=ROUTES):
        """The calls are the same without workers and with them; gives how many there were."""
        path = self.cluster.file("input", data) if isinstance(data, bytes) else data
        stock = self.left_by("off", table, copy.format(path, 0), before)
        for workers in (0, 2):
            with self.subTest(table=table, copy=copy, before=before, workers=workers):
                ours = self.left_by("on", table, copy.format(path, workers), before)
                self.assertEqual(stock[1], ours[1])
                calls = enumerate(itertools.zip_longest(stock[0], ours[0]))
                self.assertIsNone(next((found for found in calls if found[1][0] != found[1][1]), None))
                self.assertIn(ours[2], route)
        return len(ours[0]) - 1

    def test_where_it_is(self):
        """The constraint is the table's, a domain's, an element's, an attribute's, a partition's."""
        begin = "CREATE TABLE t (id int DEFAULT nextval('s'), "
        self.assertEqual(self.same(f"{begin} a int CHECK (looks(a)), b text)", NARROW), 3500)
        for kind in ("watched", "above"):
            self.assertEqual(self.same(f"{begin} a {kind}, b text); CREATE INDEX ON t (id)", NARROW), 3500 if kind == "watched" else 4000)
        self.same(f"{begin} a int, b text) PARTITION BY HASH (a); CREATE TABLE t0 PARTITION OF t FOR VALUES WITH (MODULUS 2, REMAINDER 0);"
                  "CREATE TABLE t1 PARTITION OF t (CHECK (looks(a))) FOR VALUES WITH (MODULUS 2, REMAINDER 1)", NARROW)
        elements = NARROW.replace(b",row", b"}\",row").replace(b"\n", b"\n\"{")[:-2]
        self.assertEqual(self.same(f"{begin} a watched[], b text)", b"\"{" + elements), 3000)
        attributes = NARROW.replace(b",row", b",z)\",row").replace(b"\n", b"\n\"(")[:-2]
        self.same(f"{begin} a pair, b text)", b"\"(" + attributes)

    def test_lots(self):
        """Rows go in when stock COPY would put them in: by their number, by the length of their lines, one by one."""
        table = "CREATE TABLE t (id int DEFAULT nextval('s'), a watched, b text{})"
        self.same(table.format(""), WIDE)
        self.same(table.format(", c float DEFAULT random()"), b"".join(WIDE.splitlines(True)[:200]))
        self.same(table.format(""), WIDE.replace(b"\n", b"\r\n"), CSV + " WHERE a % 3 > 0")
        out = self.cluster.file("out", b"")
        out.chmod(0o666)
        self.sql(f"COPY (SELECT i, repeat('wide', 1500) FROM generate_series(1, 1500) i) TO '{out}' WITH (FORMAT binary)")
        self.same(table.format(""), out, CSV.replace("csv", "binary"))

    def test_private(self):
        """Indexes of a table that is the load's own are kept up, whatever finds the rows."""
        table = "CREATE TABLE t (id int DEFAULT nextval('s'), a watched, b text, PRIMARY KEY (id)); CREATE INDEX ON t (b)"
        for before in ("BEGIN; TRUNCATE t;", "BEGIN; LOCK TABLE t; INSERT INTO t VALUES (-1);"):
            self.same(table, WIDE, before=before)
        self.same(table, NARROW + b"17,\"(\n", before="BEGIN; TRUNCATE t;", route=[None])

    def test_conditions(self):
        """A trigger's, of the table or of a partition, which a COPY of the session has seen without; a cast in WHERE."""
        table = "CREATE TABLE t (id int DEFAULT nextval('s'), a int, b text)"
        fires = "CREATE TRIGGER w AFTER INSERT ON {} FOR EACH ROW WHEN (looks(NEW.a)) EXECUTE FUNCTION ignore()"
        for before in ("", "BEGIN; TRUNCATE t;"):
            self.assertEqual(self.same(f"{table}; CREATE INDEX ON t (id); {fires.format('t')}", WIDE, before=before), 1500)
        copy = CSV.replace("{}", "{0}", 1).replace("{}", "{1}")
        self.same(f"{table} PARTITION BY HASH (a); CREATE TABLE t0 PARTITION OF t FOR VALUES WITH (MODULUS 2, REMAINDER 0);"
                  "CREATE TABLE t1 PARTITION OF t FOR VALUES WITH (MODULUS 2, REMAINDER 1)", WIDE, f"{copy};\n{fires.format('t1')};\n{copy};\n{copy}")
        self.assertEqual(self.same(table, WIDE, CSV + " WHERE a::watched >= 0"), 1500)

    def test_what_changes_in_the_middle(self):
        """What the CHECK of a row does to settings and types, the next rows are read by, and their defaults given by."""
        turn = ("DROP DOMAIN IF EXISTS number; DROP TYPE IF EXISTS word; CREATE TYPE word AS ENUM ('1', '2', '3', '4', '5', '6', '7'); CREATE DOMAIN number AS int;"
                "CREATE OR REPLACE FUNCTION turn(x int) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN IF x = 3 THEN {} END IF; RETURN true; END $$;"
                "CREATE TABLE t (x int CHECK (turn(x)), {})")
        table = turn.format("PERFORM set_config('TimeZone', 'Asia/Tokyo', false), set_config('DateStyle', 'ISO, DMY', false),"
                            " set_config('IntervalStyle', 'sql_standard', false), set_config('array_nulls', 'off', false);",
                            "d timestamptz, e date, i interval, n text[], z text DEFAULT current_setting('TimeZone'), f date DEFAULT ('epoch'::timestamptz + interval '16 hours')::date")
        rows = b"".join(b'%d,2020-01-02 00:00,1/2/2020,-1 2:03:04,"{1,NULL}"\n' % x for x in range(1, 8))
        for workers in ("", ", workers 2"):
            self.assertIsNone(compare(self, self.cluster, table, f"COPY t (x, d, e, i, n) FROM {{}} WITH (FORMAT csv{workers})", rows))
        rows = b"".join(b"%d,%d\n" % (x, x) for x in range(1, 8))
        for change, column in (("ALTER TYPE word RENAME VALUE '5' TO 'five'", "w word"), ("ALTER DOMAIN number ADD CHECK (VALUE < 5)", "n number")):
            self.assertIsNotNone(compare(self, self.cluster, turn.format(f"{change};", column), "COPY t FROM {} WITH (FORMAT csv)", rows))
        letter = "\u00e9".encode()
        tuples = b"".join(struct.pack("!hiii", 2, 4, x, len(letter)) + letter for x in range(1, 8))
        self.assertIsNone(compare(self, self.cluster, turn.format("PERFORM set_config('client_encoding', 'LATIN1', false);", "b text"),
                                  "COPY t FROM {} WITH (FORMAT binary)", b"PGCOPY\n\xff\r\n\0" + bytes(8) + tuples + b"\xff\xff"))

    def test_a_default_of_such_a_domain(self):
        """It is checked for every row, too: stock COPY does it."""
        self.same("CREATE TABLE t (id int DEFAULT nextval('s'), a int, b text, c watched DEFAULT 5)", NARROW, route=["a column has a volatile default"])


if __name__ == "__main__":
    unittest.main()
