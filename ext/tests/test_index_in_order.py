"""COPY into private tables: leaves are appended to a unique index as long as its keys ascend."""

import re
import subprocess
import unittest

from . import test_index_private as private
from .cluster import Cluster, wait_until
from .test_index_private import COPY, rows
from .twins import LoadedTwice, check, refusal

TABLE = "CREATE TABLE t (a int PRIMARY KEY, b text, c bigint, d text); CREATE INDEX tb ON t USING hash (b); CREATE INDEX te ON t (upper(b));"
# How the last COPY got the entries of the key in, of how many rows in this way, and why not in a faster one.
HOW = ("SELECT i ->> 'way', i -> 'rows' ->> (i ->> 'way'), i ->> 'because' FROM pgsluice.last_copy, jsonb_array_elements(indexes) i"
       " WHERE i ->> 'index' = 't_pkey'")


def in_order(count):
    """CSV lines with keys in order, so wide that indexes wait from about the ten thousandth row on."""
    return [f"{2 * n + 1},{'abcxyz'[n % 6] * (n % 20)},{10 * n},{'word' * 40} {n}\n" for n in range(count)]


def out_of_order(line):
    """The line with a key below all but the first ones, which no other has."""
    return f"20,{line.split(',', 1)[1]}"


class InOrder(LoadedTwice):
    """Tables that were created or truncated in the same transaction, with one index that could be built."""

    maxDiff = None

    def load(self, path, setting, copy=COPY, before=TABLE, after=""):
        """As that of Private, with this table."""
        return private.Private.load(self, path, setting, copy, before, after)

    def whole(self):
        """Asserts that each index of TABLE has an entry for each row."""
        check(self.cluster, "t_pkey", "te")
        count = "SELECT count(*) FROM t WHERE b = 'aaaaaa'"
        self.assertEqual(self.sql(f"SET enable_seqscan = off; {count}"), self.sql(f"SET enable_indexscan = off; SET enable_bitmapscan = off; {count}"))

    def how(self, lines, copy=COPY):
        """HOW, after a load of these lines."""
        path = self.cluster.file("input", "".join(lines).encode())
        self.sql("DROP TABLE IF EXISTS t")
        return self.sql(f"SET pgsluice.copy = on; BEGIN; {TABLE} {copy.format(path)}; COMMIT; {HOW}").split("|")

    def test_keys_in_order(self):
        """If no other index can be built, leaves are appended to a unique one as long as its keys ascend, with workers and without; after rows whose keys do
        not, it is built from all rows. All indexes pass amcheck, and the load can be rolled back to a savepoint."""
        random_keys, ordered = rows(40000), in_order(40000)
        for copy in (COPY, COPY[:-1] + ", FREEZE)", COPY[:-1] + ", workers 0)"):
            self.same(ordered, copy=copy)
            self.whole()
            way, count, because = self.how(ordered, copy)
            self.assertEqual((way, because), ("leaves", ""))
            self.assertGreater(int(count), 25000)
        ways = "SELECT string_agg(way, ' ' ORDER BY index::regclass::text) FROM pgsluice.index_ways('t', true);"
        self.assertEqual(self.sql(f"{ways} CREATE INDEX t_d ON t (d); {ways}"), "leaves row row\nbuild build row row")
        self.assertEqual(self.how(random_keys)[:2], ["build", "40000"])
        for wrong in (20000, 39999):
            lines = [*ordered[:wrong], out_of_order(ordered[wrong]), *ordered[wrong + 1:]]
            self.same(lines)
            self.whole()
            self.assertEqual(self.how(lines), ["build", "40000", "some rows' keys are not above the index's"])
        self.same(ordered, before=TABLE + "SAVEPOINT s;", after="ROLLBACK TO s; INSERT INTO t SELECT n, 'n', n, 'n' FROM generate_series(1, 100) n;")
        self.whole()
        self.assertEqual(self.sql("SET enable_seqscan = off; SELECT count(*) FROM t WHERE a > 0"), "100")

    def test_keys_in_order_and_then_one_that_is_there(self):
        """For a key that is there already, the error is stock COPY's, with both lines in a hint; also if a unique index that cannot be built rejects a row before or after it."""
        ordered = in_order(30000)
        again = {"a": lambda at: ordered[at].split(",", 1)[0] + ",x,1,x\n", "c": lambda at: f"{10**6 + at},x,{ordered[at].split(',')[2]},x\n"}
        table = TABLE + "CREATE UNIQUE INDEX tu ON t ((c + 0));"
        for one, other in ((("a", 25000, 3), None), (("a", 25000, 20000), None), (("a", 29999, 29998), None), (("c", 25000, 3), None),
                           (("a", 29000, 28990), ("c", 29990, 7)), (("c", 20000, 5), ("a", 25000, 24999)), (("a", 20000, 5), ("a", 25000, 24999))):
            lines = list(ordered)
            for column, at, earlier in filter(None, (one, other)):
                lines[at] = again[column](earlier)
            column, at, earlier = one
            refusal = self.same(lines, before=table)
            self.assertIn(f"COPY t, line {at + 1}\n", refusal)
            self.assertIn("t_pkey" if column == "a" else "tu", refusal)
            self.assertEqual(self.lines, [(str(earlier + 1), str(at + 1))] if column == "a" else [])

    def test_keys_in_order_until_a_cursor_is_open(self):
        """If the COPY has opened a cursor on an index that leaves were appended to, and its keys are in order no longer, the rest of its entries go in one by one."""
        ordered = in_order(40000)
        table = TABLE + (
            "CREATE OR REPLACE FUNCTION peek(x int) RETURNS bool LANGUAGE plpgsql STABLE AS"
            f" $$ DECLARE c refcursor := 'peek'; BEGIN IF x = {ordered[30000].split(',')[0]} THEN"
            " OPEN c FOR SELECT a FROM t ORDER BY a; END IF; RETURN true; END $$;"
            "ALTER TABLE t ADD CHECK (peek(a)); SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off;"
        )
        for wrong in (20000, 21100, 22200, 35000):
            lines = [*ordered[:wrong], out_of_order(ordered[wrong]), *ordered[wrong + 1:]]
            self.same(lines, before=table, after="FETCH ALL FROM peek; CLOSE peek;")
            self.whole()
            self.assertIn('"t_pkey"', self.same([*lines, ordered[39000]], before=table))
        self.same(ordered, before=table, after="FETCH ALL FROM peek; CLOSE peek;")
        self.whole()

    def test_keys_in_order_beside_rows_of_a_function(self):
        """If a function of the COPY inserts rows with larger, smaller or equal keys, the rows are those of stock COPY, or the same error."""
        ordered = in_order(30000)
        path = self.cluster.file("input", "".join(ordered).encode())
        for key, index in (("10 * x", None), ("x + 1001", None), ("x - 1", None), ("x + 1000", "t_pkey"), ("x - 2000", "t_pkey"), ("x", "t_pkey")):
            table = TABLE + (f"CREATE OR REPLACE FUNCTION add_it(x int) RETURNS void LANGUAGE plpgsql AS $$ BEGIN INSERT INTO t VALUES ({key}, 'added', 10 * x, 'added'); END $$;"
                             "CREATE OR REPLACE FUNCTION is_sure(x int) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS"
                             f" $$ BEGIN IF x = {ordered[20000].split(',')[0]} THEN PERFORM add_it(x); END IF; RETURN true; END $$;"
                             "ALTER TABLE t ADD CHECK (b = 'added' OR is_sure(a));")
            said = []
            for setting in ("off", "on"):
                self.sql("DROP TABLE IF EXISTS t")
                refused = refusal(self.cluster, f"SET pgsluice.copy = {setting}; BEGIN; {table} {COPY.format(path)}; COMMIT")
                said.append(re.sub("^(CONTEXT|HINT|SQL).*\n?", "", refused, flags=re.M) if refused else
                            self.sql("SELECT count(*), md5(string_agg(t::text, ',' ORDER BY a)) FROM t"))
            self.assertEqual(*said)
            self.assertIn(index or "30001|", said[0])
            if index is None:
                self.whole()

    def test_keys_in_order_with_triggers(self):
        """A statement trigger that drops or rebuilds an index with leaves appended is refused with stock COPY's error, and finds the rows by it."""
        ordered = in_order(30000)
        for statement in ("DROP INDEX tb", "REINDEX INDEX t_pkey", "ASSERT (SELECT count(*) FROM t WHERE a > 0) = 30000"):
            refusal = self.same(ordered, before=TABLE + "CREATE OR REPLACE FUNCTION change() RETURNS trigger LANGUAGE plpgsql AS"
                                f" $$ BEGIN SET LOCAL enable_seqscan = off; {statement}; RETURN NULL; END $$;"
                                "CREATE TRIGGER change AFTER INSERT ON t FOR EACH STATEMENT EXECUTE FUNCTION change();")
            if not statement.startswith("ASSERT"):
                self.assertIn("55006", refusal, statement)
        self.whole()


class Killed(unittest.TestCase):
    """A private table to whose unique index a COPY appends leaves."""

    def whole(self, server, rows):
        """The table has this number of rows, and every B-tree has them."""
        self.assertEqual(server.sql("SELECT count(*) FROM t"), str(rows))
        check(server, "t_pkey", "te")

    def killed(self, settings):
        """Kills a server with these settings after the commit and in the middle of loads; a standby follows it if one can."""
        server = Cluster([*settings, "checkpoint_timeout = 1h", "wal_keep_size = '1GB'"])
        self.addCleanup(server.remove)
        server.sql(f"CREATE EXTENSION pgsluice; {TABLE} INSERT INTO t VALUES (-1, 'old', -1, 'old')")
        path = server.file("input", "".join(in_order(60000)).encode())
        standby = None if "wal_level = minimal" in settings else Cluster(copy_of=server)
        load = f"SET pgsluice.copy = on; BEGIN; TRUNCATE t; COPY t FROM '{path}' WITH (FORMAT csv{{}}); COMMIT;"
        for _ in range(3):
            process = subprocess.Popen(server.command("-c", load.format(", workers 0")), stderr=subprocess.DEVNULL)
            wait_until(lambda: process.poll() is not None or int(server.sql("SELECT coalesce(sum(tuples_processed), 0) FROM pg_stat_progress_copy")) > 15000)
            server.kill()
            process.wait()
            server.start()
            rows = server.sql("SELECT count(*) FROM t")
            self.assertIn(rows, ("1", "60000"))
            self.whole(server, rows)
            server.sql("TRUNCATE t; INSERT INTO t VALUES (-1, 'old', -1, 'old')")
        for options in ("", ", FREEZE"):
            self.assertEqual(server.sql(load.format(options) + HOW).split("|")[0], "leaves")
            server.kill()
            server.start()
            self.whole(server, 60000)
        if standby:
            self.addCleanup(standby.remove)
            standby.follow(server)
            self.assertEqual(standby.sql("SET enable_seqscan = off; SELECT count(*), sum(a) FROM t WHERE a > 0"), server.sql("SELECT count(*), sum(a) FROM t"))

    def test_killed(self):
        """After a crash, all rows of a load are there if it was committed, and else those from before; every index passes amcheck. The standby's index has the rows."""
        self.killed(["wal_level = replica"])

    def test_killed_without_wal(self):
        """The same with wal_level minimal, where new files are synced instead of logged."""
        self.killed(["wal_level = minimal", "max_wal_senders = 0"])


if __name__ == "__main__":
    unittest.main()
