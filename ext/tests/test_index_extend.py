"""COPY into tables that others can reach: entries of their indexes are sorted first."""

import random
import subprocess
import time
import unittest

from .twins import LoadedTwice, check

TABLE = (
    "DROP TABLE IF EXISTS t; CREATE TABLE t (a int PRIMARY KEY, b text, c numeric, d text, e int4range);"
    "CREATE INDEX tb ON t (b DESC, a); CREATE INDEX tc ON t (c); CREATE INDEX th ON t USING hash (b);"
    "CREATE INDEX te ON t (upper(b)); CREATE INDEX td ON t (d) WHERE a % 2 = 0; CREATE INDEX ti ON t (d) INCLUDE (c);"
    "INSERT INTO t SELECT -n, 'old ' || n % 300, n / 7.0, md5(n::text) FROM generate_series(1, 20000) n;"
)
BTREES = ("t_pkey", "tb", "tc", "te", "td", "ti")
COPY = "COPY t FROM '{}' WITH (FORMAT csv)"
SCANS = ("b", "c", "d", "b, a")


def rows(count, seed=1):
    """CSV lines: keys in no order, few values, NULLs, some long."""
    chance = random.Random(seed)
    keys = chance.sample(range(count * 3), count)
    return [
        f'{key},{chance.choice(["", "old 7", "new", "x" * chance.randrange(90)])},{chance.randrange(2000) / 8},'
        f'{chance.choice(["p", "q"]) * (900 if n % 500 == 3 else 3)}{chance.randrange(50)},\n'
        for n, key in enumerate(keys)
    ]


class Live(LoadedTwice):
    """Tables with rows and indexes in place."""

    settings = ["maintenance_work_mem = '1MB'", "max_prepared_transactions = 2"]

    def load(self, path, setting, table=TABLE, before="", after=""):
        """What the COPY says, or what is in the table after it, by rows and by each index."""
        return self.left_by(setting, "SET client_min_messages = error;" + table, f"{before} {COPY.format(path)}; {after}")

    def answers(self):
        """Scans of the indexes in both directions, and of the table."""
        said = [self.sql("SELECT count(*), md5(string_agg(t::text, ',' ORDER BY a)) FROM t")]
        for order in SCANS:
            # 2.0 and 2.00 are equal: which one comes first is the place of the row.
            shown = "trim_scale(c)" if order == "c" else order
            for direction in ("", " DESC"):
                by = ", ".join(column + direction for column in order.split(", "))
                said.append(self.sql(
                    "SET enable_seqscan = off; SET enable_bitmapscan = off;"
                    f"SELECT md5(string_agg(v::text, ',')) FROM (SELECT ROW({shown}) v FROM t ORDER BY {by}) _"))
        return said

    def checked(self):
        """amcheck of every index, every row in each."""
        for index in BTREES:
            check(self.cluster, index)

    def test_all_rows_are_in_all_indexes(self):
        """More entries than memory holds, more values than can be ranked, rows that cannot wait."""
        self.same(rows(60000))
        self.checked()
        self.same(rows(5))
        self.checked()

    def test_refusals_are_those_of_stock(self):
        """Unique, deferrable, exclusion, NOT NULL, CHECK, too large: each with its line."""
        good = rows(8000)
        twice = list(good)
        twice[5000] = good[100]
        self.assertIn("COPY t, line 5001", self.same(twice))
        self.assertIn("23505", self.same(twice[:7200] + ["x\n"]))
        self.assertIn("line 7001", self.same(good[:7000] + ["x\n"] + good[7000:]))
        deferred = TABLE + "ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t ADD CONSTRAINT u UNIQUE (a) DEFERRABLE INITIALLY DEFERRED;"
        self.assertIn('constraint "u"', self.same(twice, table=deferred))
        self.same(twice, table=deferred, after="DELETE FROM t x USING t y WHERE x.a = y.a AND x.ctid > y.ctid;")
        excluded = TABLE + "ALTER TABLE t ADD EXCLUDE USING gist (e WITH &&);"
        ranges = [line.replace(",\n", f',"[{n},{n + 1})"\n') for n, line in enumerate(good)]
        self.same(ranges, table=excluded)
        ranges[6000] = ranges[6000].replace("[6000", "[5990")
        self.assertIn("COPY t, line 6001", self.same(ranges, table=excluded))
        self.assertIn("COPY t, line", self.same(good, table=TABLE + "ALTER TABLE t ADD CHECK (c < 249.8) NOT VALID;"))
        noise = "".join(format(n * 7919 % 104729, "x") for n in range(1500))
        large = good[:3000] + [f"999999,{noise},1,d,\n"] + good[3000:]
        self.assertIn("exceeds btree version 4 maximum", self.same(large))

    def test_triggers_find_the_rows_by_the_indexes(self):
        """AFTER triggers, a key that refers to the table, a transition table."""
        table = TABLE + (
            "CREATE OR REPLACE FUNCTION seen() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE n int; BEGIN"
            " SET LOCAL enable_seqscan = off; SELECT count(*) INTO n FROM t WHERE c = 17.5 AND a >= 0;"
            " RAISE 'rows %', n; END $$;"
            "CREATE TRIGGER seen AFTER INSERT ON t FOR EACH STATEMENT EXECUTE FUNCTION seen();"
        )
        self.assertRegex(self.same(rows(9000), table=table), r"rows [1-9]")
        own = TABLE + "ALTER TABLE t ADD UNIQUE (b, a); ALTER TABLE t ADD f int REFERENCES t;"
        self.same([line.replace(",\n", f",,{line.split(',', 1)[0]}\n") for line in rows(5000)], table=own)

    def test_rolled_back_and_prepared(self):
        """A savepoint, a rollback, a prepared transaction."""
        self.same(rows(6000), before="SAVEPOINT s;", after="ROLLBACK TO s;")
        self.checked()
        self.same(rows(6000), after="SAVEPOINT s; DELETE FROM t WHERE a % 3 = 0;")
        self.checked()
        path = self.cluster.file("input", "".join(rows(6000)).encode())
        self.sql("SET client_min_messages = error;" + TABLE)
        self.sql(f"SET pgsluice.copy = on; BEGIN; {COPY.format(path)}; PREPARE TRANSACTION 'p'")
        self.cluster.kill()
        self.cluster.start()
        self.sql("COMMIT PREPARED 'p'")
        self.checked()
        self.assertEqual(self.sql("SELECT count(*) FROM t"), "26000")

    def test_then_inserts_deletes_and_vacuum(self):
        """The indexes go on as any others do."""
        self.same(rows(20000))
        self.sql("DELETE FROM t WHERE a % 3 = 0; VACUUM t; INSERT INTO t SELECT 1000000 + n, 'again', n % 50, 'z' FROM generate_series(1, 5000) n")
        for n in range(4):
            self.sql(f"UPDATE t SET e = int4range({n}, 100) WHERE a > 0; UPDATE t SET c = c + 1 WHERE a % 7 = {n}")
        self.checked()

    def test_beside_readers_and_writers(self):
        """Others insert and read in the same indexes meanwhile."""
        path = self.cluster.file("input", "".join(rows(40000)).encode())
        self.sql("SET client_min_messages = error;" + TABLE)
        writer = subprocess.Popen(self.cluster.command("-f", "-"), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        writer.stdin.write("".join(
            f"INSERT INTO t VALUES ({500000 + n}, 'old {n % 300}', {n % 2000} / 8.0, 'q{n % 50}');"
            f"SELECT count(*) FROM t WHERE b = 'old {n % 300}';\n" for n in range(3000)).encode())
        writer.stdin.close()
        self.sql(f"SET pgsluice.copy = on; {COPY.format(path)}")
        self.assertEqual(writer.wait(), 0)
        self.checked()
        self.assertEqual(self.sql("SELECT count(*) FROM t"), "63000")

    def test_killed_in_the_middle(self):
        """Nothing of a load that a crash has ended can be seen, and the indexes are whole."""
        path = self.cluster.file("input", "".join(rows(60000)).encode())
        for delay in (0.3, 0.7, 1.2):
            self.sql("SET client_min_messages = error;" + TABLE + "CHECKPOINT")
            load = subprocess.Popen(self.cluster.command("-c", f"SET pgsluice.copy = on; {COPY.format(path)}"),
                                    stderr=subprocess.DEVNULL)
            time.sleep(delay)
            self.cluster.kill()
            load.wait()
            self.cluster.start()
            self.assertIn(self.sql("SELECT count(*) FROM t"), ("20000", "80000"))
            self.checked()
            self.sql("INSERT INTO t SELECT -1000000 - n, 'old 1', n, 'q1' FROM generate_series(1, 2000) n")
            self.checked()


if __name__ == "__main__":
    unittest.main()
