"""COPY into partitions with indexes: each partition's rows and index entries go in many at a time."""

import json
import random
import subprocess
import time
import unittest

from .cluster import OnCluster
from .twins import LoadedTwice, check

ROWS = 24000
TABLE = ("DROP TABLE IF EXISTS t; CREATE TABLE t (a bigint PRIMARY KEY, day int, b text) PARTITION BY HASH (a);"
         + "".join(f"CREATE TABLE t{n} PARTITION OF t FOR VALUES WITH (MODULUS 8, REMAINDER {n});" for n in range(8))
         + "CREATE INDEX t_day ON t (day); CREATE INDEX t_b ON t (b COLLATE \"C\");")
FILLED = TABLE + "INSERT INTO t SELECT n, n % 300, 'before ' || n FROM generate_series(-5000, -1) n;"
COPY = "COPY t FROM '{}' WITH (FORMAT csv{})"
LEAVES = "SELECT indexrelid::regclass FROM pg_index WHERE indrelid IN (SELECT relid FROM pg_partition_tree('t') WHERE isleaf)"


def row(n, word="row"):
    """A line whose key ascends with the number."""
    return f"{n},{n * 7919 % 1000},{word} {n * 31 % 9973}\n"


class Partitions(LoadedTwice):
    """Compares a load by stock COPY with one by the extension."""

    def load(self, path, setting, table=TABLE, before="", after="", options=""):
        """The COPY's error, or the answers by table scan and by each index after it."""
        return self.left_by(setting, "SET client_min_messages = error;" + table,
                            f"{before} {COPY.format(path, options if setting == 'on' else '')}; {after}")

    def answers(self):
        """The rows of each partition, and the rows that its indexes find."""
        return self.sql("SELECT tableoid::regclass, count(*), md5(string_agg(t::text, ',' ORDER BY a)) FROM t GROUP BY 1 ORDER BY 1;"
                        "SET enable_seqscan = off; SET enable_bitmapscan = off;"
                        + "".join(f"SELECT md5(string_agg(a::text, ',')) FROM (SELECT a FROM t ORDER BY {order}) _;" for order in ("a", "day, a", "b COLLATE \"C\", a")))

    def checked(self):
        """Runs amcheck on the indexes of every partition."""
        check(self.cluster, *self.sql(LEAVES).split("\n"))

    def ways(self, path, options=""):
        """Loads the file; returns how many entries of each index went in by each method."""
        said = self.sql(f"SET pgsluice.copy = on; {COPY.format(path, options)}; SELECT indexes FROM pgsluice.last_copy")
        return {index["index"]: index["rows"] for index in json.loads(said)}

    def test_many_at_a_time(self):
        """Into empty partitions and after existing rows, with workers and without, the load leaves stock COPY's rows, and its indexes answer the same."""
        lines = [row(n) for n in range(ROWS)]
        for table in (TABLE, FILLED):
            for options in (", workers 0", ", workers 2"):
                self.same(lines, table=table, options=options)
                self.checked()

    def test_by_which_way(self):
        """last_copy shows how many entries of each of the table's indexes went in by each method, over all partitions."""
        self.sql(TABLE)
        ways = self.ways(self.cluster.file("input", "".join(row(n) for n in range(5 * ROWS)).encode()), ", workers 0")
        self.assertEqual(set(ways), {"t_pkey", "t_day", "t_b"})
        self.assertGreater(ways["t_pkey"]["leaves"], 4 * ROWS)
        for index in ("t_day", "t_b"):
            self.assertGreater(ways[index].get("sorted", 0) + ways[index].get("leaves", 0), 4 * ROWS)
        self.assertEqual({sum(rows.values()) for rows in ways.values()}, {5 * ROWS})

    def test_keys_in_other_orders(self):
        """Shuffled, descending and batched keys, long values and NULLs: rows are stock COPY's, and indexes answer the same."""
        lines = [row(n) for n in range(ROWS)]
        chance = random.Random(7)
        wide = [line if n % 500 else f"{n},,{'w' * 2600}\n" for n, line in enumerate(lines)]
        for given in (lines[::-1], chance.sample(lines, ROWS), [lines[n ^ 63] for n in range(ROWS - ROWS % 64)], wide):
            self.same(given, table=FILLED)
            self.checked()

    def test_refusals(self):
        """Keys that are in the table or twice in the data, bad values, and rows without a partition: error and line are stock COPY's."""
        lines = [row(n) for n in range(ROWS)]
        for bad in (row(-5), row(17), row(15000), "x,1,y\n", f"{ROWS},1\n"):
            for at in (600, 20000):
                self.same(lines[:at] + [bad] + lines[at:], table=FILLED)
        ranges = "DROP TABLE IF EXISTS t; CREATE TABLE t (a bigint, day int, b text, PRIMARY KEY (a, day)) PARTITION BY RANGE (day);" + "".join(
            f"CREATE TABLE t{n} PARTITION OF t FOR VALUES FROM ({100 * n}) TO ({100 * n + 100});" for n in range(10))
        self.assertIn("no partition", str(self.same(lines[:9000] + ["1,1000,none\n"] + lines[9000:], table=ranges)))
        self.same(lines, table=ranges, before="SAVEPOINT s;", after="ROLLBACK TO s;")
        self.checked()

    def same_order(self, table, lines, on="t"):
        """Asserts that AFTER ROW triggers on this table see the rows in stock COPY's order."""
        trigger = ("CREATE TABLE IF NOT EXISTS log (n serial, a bigint); TRUNCATE log RESTART IDENTITY; CREATE OR REPLACE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS"
                   f" 'BEGIN INSERT INTO log (a) VALUES (NEW.a); RETURN NULL; END'; CREATE TRIGGER note AFTER INSERT ON {on} FOR EACH ROW EXECUTE FUNCTION note();")
        path = self.cluster.file("input", "".join(lines).encode())
        orders = []
        for setting in ("off", "on"):
            self.sql(f"SET client_min_messages = error; {table} {trigger} SET pgsluice.copy = {setting}; {COPY.format(path, '').replace('COPY t ', 'COPY t (a, day, b) ')}")
            orders.append(self.sql("SELECT string_agg(a::text, ',' ORDER BY n) FROM log"))
        self.assertEqual(*orders)

    def test_triggers_run_in_the_order_of_stock(self):
        """AFTER ROW triggers of the table or of one partition see the rows in stock COPY's order."""
        # With a default that differs from row to row, stock COPY inserts row by row.
        for on, default in (("t", ""), ("t3", ""), ("t", "ALTER TABLE t ADD id uuid DEFAULT gen_random_uuid();")):
            self.same_order(TABLE + default, [row(n) for n in range(3000)], on)

    def test_triggers_of_more_partitions_than_batches(self):
        """With more partitions than batches, the partition of the row that completes a thousand keeps its batch, and AFTER ROW triggers see the rows in stock COPY's order."""
        table = "DROP TABLE IF EXISTS t; CREATE TABLE t (a bigint, day int, b text) PARTITION BY LIST (day);" + "".join(
            f"CREATE TABLE t{n} PARTITION OF t FOR VALUES IN ({n});" for n in range(40))
        chance = random.Random(5)
        days = [n % 40 for n in range(5000)]
        # These are of the partition with the oldest batch, then of any.
        days[999], days[1999:] = 0, [chance.randrange(40) for _ in days[1999:]]
        self.same_order(table, [f"{n},{day},x\n" for n, day in enumerate(days)])

    def test_more_partitions_than_batches(self):
        """With more partitions than batches, these are closed and opened again, with the entries that wait: rows are stock COPY's, and indexes answer the same."""
        table = "DROP TABLE IF EXISTS t; CREATE TABLE t (a bigint, day int, b text, PRIMARY KEY (a, day)) PARTITION BY LIST (day);" + "".join(
            f"CREATE TABLE t{n} PARTITION OF t FOR VALUES IN ({n});" for n in range(80)) + "CREATE INDEX t_b ON t (b COLLATE \"C\");"
        lines = [f"{n},{n // 300 if n % 2 else n * 7 % 80},{n * 31 % 9973}\n" for n in range(ROWS)]
        self.same(lines, table=table)
        self.checked()

    def test_indexes_of_one_partition(self):
        """Indexes that only one partition has get all entries, and are not shown in last_copy."""
        table = TABLE + "CREATE INDEX mine ON t2 (day, b COLLATE \"C\");"
        lines = [row(n) for n in range(ROWS)]
        self.same(lines, table=table)
        self.checked()
        self.sql(table)
        self.assertNotIn("mine", self.ways(self.cluster.file("input", "".join(lines).encode())))


class Killed(OnCluster):
    """The server is killed in the middle, at any moment."""

    def test_all_or_nothing(self):
        """After recovery, all rows of the load are there or none, and every index passes amcheck."""
        chance = random.Random(11)
        path = self.cluster.file("input", "".join(row(n) for n in range(4 * ROWS)).encode())
        self.sql(FILLED)
        for _ in range(4):
            before = int(self.sql("SELECT count(*) FROM t"))
            load = subprocess.Popen(self.cluster.command("-c", f"SET pgsluice.copy = on; {COPY.format(path, '')}"), stderr=subprocess.DEVNULL)
            time.sleep(chance.uniform(0.02, 0.6))
            self.cluster.kill()
            load.wait()
            self.cluster.start()
            self.assertIn(int(self.sql("SELECT count(*) FROM t")) - before, (0, 4 * ROWS))
            check(self.cluster, *self.sql(LEAVES).split("\n"))
            self.sql("DELETE FROM t WHERE a >= 0; VACUUM t")


if __name__ == "__main__":
    unittest.main()
