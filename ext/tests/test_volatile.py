"""Volatile CHECK constraints and conditions may read the loaded table, so stock COPY does the work; with rejects_to, pgsluice does it row by row."""

import unittest

from .cluster import OnCluster
from .differential import ROUTES, compare

REASON = "a CHECK constraint or a condition is volatile"
CSV = "COPY t (a, b) FROM {} CSV"
DATA = "".join(f"{'' if i % 7 == 3 else i},row {i}\n" for i in range(3500)).encode()


class Volatile(OnCluster):
    """Each call records how many rows of the load are in the table by then."""

    prepared = (
        "CREATE TABLE log (x int, seen bigint);"
        "CREATE FUNCTION looks(x int) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN INSERT INTO log SELECT x, (SELECT count(*) FROM t); RETURN x IS DISTINCT FROM 13; END $$;"
        "CREATE DOMAIN looked AS int CHECK (looks(VALUE)); CREATE DOMAIN above AS looked CHECK (VALUE IS NOT NULL OR looks(-1));"
        "CREATE TYPE pair AS (x looked, y text); CREATE FUNCTION ignore() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
    )

    def left(self, table, data=b"1,x\n2,y\n" * 20, copy=CSV, reason=REASON):
        """The load falls back to stock COPY for this reason."""
        compare(self, self.cluster, table, copy, data, route=reason)

    def test_where_it_is(self):
        """A volatile CHECK of the table, a domain, an array's element, an attribute or a partition makes the load fall back to stock COPY."""
        self.left("CREATE TABLE t (id serial, a int CHECK (looks(a)), b text)")
        for kind in ("looked", "above"):
            self.left(f"CREATE TABLE t (id serial, a {kind}, b text); CREATE INDEX ON t (id)")
        self.left("CREATE TABLE t (id serial, a int, b text) PARTITION BY HASH (a); CREATE TABLE t0 PARTITION OF t FOR VALUES WITH (MODULUS 2, REMAINDER 0);"
                  "CREATE TABLE t1 PARTITION OF t (CHECK (looks(a))) FOR VALUES WITH (MODULUS 2, REMAINDER 1)")
        self.left("CREATE TABLE t (id serial, a looked[], b text)", b'"{1,2}",x\n' * 20)
        self.left("CREATE TABLE t (id serial, a pair, b text)", b'"(1,z)",x\n' * 20)
        self.left("CREATE TABLE t (id serial, a int, b text, c looked DEFAULT 5)", reason=REASON)

    def test_conditions(self):
        """A volatile cast in WHERE, or trigger condition of the table or a partition, makes the load fall back, even
        if the session has loaded the table before."""
        fires = "CREATE TRIGGER w AFTER INSERT ON {} FOR EACH ROW WHEN (looks(NEW.a)) EXECUTE FUNCTION ignore()"
        self.left(f"CREATE TABLE t (id serial, a int, b text); {fires.format('t')}")
        self.left("CREATE TABLE t (id serial, a int, b text)", copy=CSV + " WHERE a::looked >= 0")
        path = self.cluster.file("input", b"1,x\n2,y\n")
        copy = f"COPY t (a, b) FROM '{path}' CSV; SELECT coalesce(fell_back_because, 'taken over') FROM pgsluice.last_copy;"
        said = self.sql("DROP TABLE IF EXISTS t; CREATE TABLE t (id serial, a int, b text) PARTITION BY HASH (a); CREATE TABLE t0 PARTITION OF t FOR VALUES WITH (MODULUS 2, REMAINDER 0);"
                        f"CREATE TABLE t1 PARTITION OF t FOR VALUES WITH (MODULUS 2, REMAINDER 1); SET pgsluice.copy = on; {copy} {fires.format('t1')}; {copy}")
        self.assertEqual(said.split("\n"), ["taken over", REASON])

    def test_not_volatile(self):
        """If the function of the CHECK is immutable, pgsluice does the work."""
        self.sql("CREATE FUNCTION fits(int) RETURNS bool IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN $1 IS DISTINCT FROM 13; END'")
        compare(self, self.cluster, "CREATE TABLE t (id serial, a int CHECK (fits(a)), b text)", CSV, DATA, route=ROUTES)

    def test_rejects(self):
        """With rejects_to, each row that the constraint rejects is kept, and the function sees the rows before it."""
        path = self.cluster.file("input", DATA)
        said = self.sql("DROP TABLE IF EXISTS t; TRUNCATE log; CREATE TABLE t (id serial, a int CHECK (looks(a)), b text); CREATE TABLE bad (LIKE pgsluice.reject);"
                        f"COPY t (a, b) FROM '{path}' WITH (FORMAT csv, rejects_to 'bad'); SELECT count(*) FROM t; SELECT count(*), min(line), min(sqlstate) FROM bad;"
                        "SELECT max(seen) > 2000 FROM log")
        self.assertEqual(said.split("\n"), ["3499", "1|14|23514", "t"])


if __name__ == "__main__":
    unittest.main()
