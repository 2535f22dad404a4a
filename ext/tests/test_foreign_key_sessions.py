"""Foreign keys beside other sessions, after a kill and on a standby: outcomes are stock COPY's, and parents stay locked."""

import re
import subprocess
import unittest

from .cluster import Cluster, Held, OnCluster, Refused, wait_until
from .test_foreign_keys import PARENTS, TABLES, data, modulo


class Beside(OnCluster):
    """Other sessions change parents during a load."""

    def test_parents_are_held(self):
        """After the COPY, no session can delete a parent, change a column of a unique index or lock it FOR UPDATE before the transaction ends; its other columns can be updated."""
        path = self.cluster.file("rows", data(modulo, 3000))
        self.sql(f"SET client_min_messages = warning; DROP TABLE IF EXISTS t; {PARENTS} {TABLES[0]}")
        holder = Held(self.cluster)
        holder.run(f"SET pgsluice.copy = on; BEGIN; COPY t FROM '{path}' CSV")
        for change in ("DELETE FROM p WHERE a = 99", "UPDATE p SET a = 1000 WHERE a = 0", "UPDATE p SET b = 'x' WHERE a = 3",
                       "SELECT FROM p WHERE a = 4 FOR UPDATE"):
            with self.assertRaises(Refused) as refused:
                self.sql(f"SET lock_timeout = 100; {change}")
            self.assertIn("55P03", str(refused.exception))
        self.sql("SET lock_timeout = 100; SELECT FROM p WHERE a = 4 FOR NO KEY UPDATE; UPDATE p SET c = 1 WHERE a = 5")
        holder.end("COMMIT")
        with self.assertRaises(Refused) as refused:
            self.sql("DELETE FROM p WHERE a = 99")
        self.assertIn("23503", str(refused.exception))

    def test_a_parent_that_is_being_deleted(self):
        """If another transaction is deleting a parent, the check waits for its end: the load succeeds after ROLLBACK and fails after COMMIT."""
        path = self.cluster.file("rows", data(modulo, 3000))
        for end, wanted in (("ROLLBACK", ""), ("COMMIT", "23503")):
            self.sql(f"SET client_min_messages = warning; DROP TABLE IF EXISTS t; {PARENTS} {TABLES[0]}")
            deleter = Held(self.cluster)
            deleter.run("BEGIN; DELETE FROM p WHERE a = 50")
            process = subprocess.Popen(self.cluster.command("-c", f"SET pgsluice.copy = on; COPY t FROM '{path}' CSV"), stderr=subprocess.PIPE, text=True)
            self.assertTrue(wait_until(lambda: self.sql("SELECT count(*) FROM pg_locks WHERE NOT granted") == "1"))
            deleter.end(end)
            self.assertIn(wanted, process.communicate()[1])
            self.assertEqual(self.sql("SELECT count(*) FROM t"), "0" if wanted else "3000")


class Interleaved(OnCluster):
    """A COPY that waits in its middle, while another session's transaction is open or another COPY runs."""

    settings = ["max_prepared_transactions = 2"]

    def begin(self, setting, parts, table="t", level="READ COMMITTED"):
        """Starts a transaction of one COPY whose second part waits for a file, and waits until it has rows of the first; returns its process and that file."""
        gate = self.cluster.home / f"gate_{table}"
        gate.unlink(missing_ok=True)
        first, second = (self.cluster.file(f"{table}{n}", part) for n, part in enumerate(parts))
        load = subprocess.Popen(self.cluster.command(
            "-c", f"SET client_min_messages = debug1; SET pgsluice.copy = {setting}", "-c", f"BEGIN ISOLATION LEVEL {level}",
            "-c", f"COPY {table} FROM PROGRAM 'cat {first}; while [ -e {first} ] && ! [ -e {gate} ]; do sleep 0.01; done; cat {second}' CSV",
            "-c", "SELECT route, rows FROM pgsluice.last_copy", "-c", "COMMIT"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(gate.touch)
        self.assertTrue(wait_until(lambda: self.sql(f"SELECT 1 FROM pg_stat_progress_copy WHERE relid = '{table}'::regclass AND tuples_processed > 1000")), "no half of a load")
        return load, gate

    def ended(self, load):
        """How a COPY has ended: what it printed, and its error."""
        said, told = load.communicate()
        return said.strip(), "".join(re.findall("^ERROR:.*?(?=^LOCATION)", told, re.M | re.S)), re.findall(r"parents in .*: (\d+) locked, (\d+) left", told)

    def changed(self, setting, level, change, end, place, early):
        """The rows or the error of a COPY, while another transaction has changed a parent of rows of the part `place`; it ends before the second part, if `early`, or else when the COPY waits or has ended."""
        self.sql(f"SET client_min_messages = warning; DROP TABLE IF EXISTS t; {PARENTS} {TABLES[0]}")
        parts = [data(lambda n: (b"%d" % (n % 50), b"x" * 300), count) for count in (4500, 100)]
        parts[place] = data(lambda n: (b"777" if "INSERT" in change else b"50", b"x"), 3) + parts[place]
        other = Held(self.cluster)
        other.run(f"BEGIN ISOLATION LEVEL {level}; {change}")
        load, gate = self.begin(setting, parts, level=level)
        if early:
            self.assertEqual(other.end(end)[0], 0)
        gate.touch()
        if not early:
            wait_until(lambda: load.poll() is not None or self.sql("SELECT count(*) FROM pg_locks WHERE NOT granted") == "1")
            self.assertEqual(other.end(end)[0], 0)
        said, error, parents = self.ended(load)
        if setting == "on":
            self.assertEqual(said, "" if error else "append|4603")
            # Nothing is reported if the look-up itself has failed, as it can at SERIALIZABLE.
            self.assertIn(parents, ([("50", "1")], [("51", "0")], *([[]] if "40001" in error else [])))
        # At SERIALIZABLE, the look-up may report the conflict before the end of the statement, with a line of the COPY as CONTEXT.
        return error.partition("\nDETAIL:  Reason code")[0], self.sql("SELECT count(*), sum(a) FROM t")

    def at_level(self, level, code):
        """Every change, every end, early and late: the outcome is stock COPY's. `code` is the error if a parent is gone."""
        for change in ("DELETE FROM p WHERE a = 50", "UPDATE p SET a = 500 WHERE a = 50", "UPDATE p SET c = 1 WHERE a = 50", "INSERT INTO p VALUES (777)"):
            for end in ("COMMIT", "ROLLBACK"):
                for place, early in ((0, False), (int(end == "COMMIT"), True)):
                    with self.subTest(change=change, end=end, place=place, early=early):
                        stock, ours = (self.changed(setting, level, change, end, place, early) for setting in ("off", "on"))
                        self.assertEqual(stock, ours)
                        if "INSERT" in change:
                            there = end == "COMMIT" and early and level == "READ COMMITTED"
                            self.assertEqual("23503" in stock[0], not there)
                        else:
                            self.assertEqual(code in stock[0], end == "COMMIT" and "c = 1" not in change)
                            self.assertEqual(stock[0] == "", end == "ROLLBACK" or "c = 1" in change)

    def test_read_committed(self):
        """While another transaction deletes, rekeys, updates or inserts a parent, and then commits or rolls back, a COPY at READ COMMITTED has stock COPY's rows or error."""
        self.at_level("READ COMMITTED", "23503")

    def test_repeatable_read(self):
        """The same at REPEATABLE READ, where a parent that is gone is a serialization failure."""
        self.at_level("REPEATABLE READ", "40001")

    def test_serializable(self):
        """The same at SERIALIZABLE."""
        self.at_level("SERIALIZABLE", "40001")

    def test_two_loads_in_opposite_order(self):
        """Two loads that lock the same parents at once, in opposite order, both succeed; each locks all of them itself."""
        self.sql("SET client_min_messages = warning; DROP TABLE IF EXISTS t, t2; " + PARENTS + "INSERT INTO p SELECT generate_series(100, 4999);"
                 "CREATE TABLE t (id int, a int REFERENCES p, b text); CREATE TABLE t2 (LIKE t, FOREIGN KEY (a) REFERENCES p)")
        lines = data(lambda n: (b"%d" % n, b"x" * 600), 5000).splitlines(True)
        loads = [self.begin("on", (b"".join(given[:2500]), b"".join(given[2500:])), table) for table, given in (("t", lines), ("t2", lines[::-1]))]
        for _, gate in loads:
            gate.touch()
        for load, _ in loads:
            self.assertEqual(self.ended(load), ("append|5000", "", [("5000", "0")]))
        self.assertEqual(self.sql("SELECT count(*), sum(a) FROM t UNION ALL SELECT count(*), sum(a) FROM t2"), "5000|12497500\n5000|12497500")

    def test_the_parent_table_is_locked(self):
        """From a COPY's first rows to its commit, ALTER TABLE of the parent waits, and later readers wait behind it; with stock COPY, or with allow_foreign_keys off, it does not wait."""
        self.addCleanup(self.sql, "ALTER SYSTEM RESET pgsluice.allow_foreign_keys; SELECT pg_reload_conf()")
        for setting, allowed in (("off", "on"), ("on", "on"), ("on", "off")):
            self.sql(f"ALTER SYSTEM SET pgsluice.allow_foreign_keys = {allowed}")
            self.sql(f"SET client_min_messages = warning; SELECT pg_reload_conf(); DROP TABLE IF EXISTS t; {PARENTS} {TABLES[0]}")
            self.assertTrue(wait_until(lambda allowed=allowed: self.sql("SHOW pgsluice.allow_foreign_keys") == allowed))
            load, gate = self.begin(setting, [data(lambda n: (b"%d" % (n % 50), b"x" * 300), count) for count in (4500, 100)])
            alter = subprocess.Popen(self.cluster.command("-c", "ALTER TABLE p ADD z int"))
            read = "SET lock_timeout = 100; SELECT count(*) FROM p"
            if (setting, allowed) == ("on", "on"):
                self.assertTrue(wait_until(lambda: self.sql("SELECT count(*) FROM pg_locks WHERE NOT granted") == "1"))
                with self.assertRaises(Refused) as refused:
                    self.sql(read)
                self.assertIn("55P03", str(refused.exception))
                self.assertIsNone(alter.poll())
            else:
                self.assertEqual(alter.wait(), 0)
                self.assertEqual(self.sql(read), "100")
            gate.touch()
            self.assertEqual(self.ended(load)[1], "")
            self.assertEqual(alter.wait(), 0)

    def test_a_session_that_deletes_several_parents(self):
        """A session deletes a parent of later rows, then one of earlier rows: it and the load wait for each other, and the server ends one of them; stock COPY would not have locked the second."""
        for setting in ("off", "on"):
            self.sql(f"SET client_min_messages = warning; DROP TABLE IF EXISTS t; {PARENTS} {TABLES[0]}")
            load, gate = self.begin(setting, [data(lambda n, first=first: (b"%d" % (first + n % 50), b"x" * 300), count) for first, count in ((0, 4500), (50, 100))])
            deleter = Held(self.cluster)
            deleter.run("BEGIN; DELETE FROM p WHERE a = 60")
            if setting == "off":
                deleter.run("DELETE FROM p WHERE a = 10")
                deleter.end("COMMIT")
                gate.touch()
                self.assertIn("23503", self.ended(load)[1])
                continue
            deleter.process.stdin.write("DELETE FROM p WHERE a = 10;\n")
            deleter.process.stdin.flush()
            self.assertTrue(wait_until(lambda: self.sql("SELECT count(*) FROM pg_locks WHERE NOT granted") == "1"))
            gate.touch()
            self.assertIn("40P01", self.ended(load)[1] + deleter.end("COMMIT")[2])

    def test_a_prepared_load(self):
        """After SIGKILL, the prepared transaction of a load still holds its parents: a DELETE of one waits; after COMMIT PREPARED it fails, since a row refers to it."""
        path = self.cluster.file("rows", data(lambda n: (b"%d" % (n % 100), b"x" * 60), 20000))
        self.sql(f"SET client_min_messages = warning; DROP TABLE IF EXISTS t; {PARENTS} {TABLES[0]}")
        self.assertEqual(self.sql(f"SET pgsluice.copy = on; BEGIN; COPY t FROM '{path}' CSV; SELECT route, rows FROM pgsluice.last_copy; PREPARE TRANSACTION 'load'"), "append|20000")
        self.cluster.kill()
        self.cluster.start()
        for change in ("DELETE FROM p WHERE a = 50", "UPDATE p SET a = 500 WHERE a = 99", "TRUNCATE p CASCADE"):
            with self.assertRaises(Refused) as refused:
                self.sql(f"SET lock_timeout = 100; {change}")
            self.assertIn("55P03", str(refused.exception), change)
        self.sql("SET lock_timeout = 100; UPDATE p SET c = 1 WHERE a = 50; COMMIT PREPARED 'load'")
        self.assertEqual(self.sql("SELECT count(*), sum(a) FROM t"), "20000|990000")
        with self.assertRaises(Refused) as refused:
            self.sql("DELETE FROM p WHERE a = 50")
        self.assertIn("23503", str(refused.exception))


class Followed(unittest.TestCase):
    """A standby."""

    def test_standby(self):
        """A standby replays the locks of parents as on the primary (wal_consistency_checking), also of two loads at once; once it takes over, no parent can be deleted."""
        primary = Cluster(["wal_level = replica", "wal_consistency_checking = 'all'", "wal_keep_size = 4GB"])
        self.addCleanup(primary.remove)
        primary.sql(f"SET client_min_messages = warning; CREATE EXTENSION pgsluice; {PARENTS} {TABLES[1]}; CREATE TABLE t2 (LIKE t, FOREIGN KEY (a) REFERENCES p)")
        standby = Cluster(["hot_standby = on"], copy_of=primary)
        self.addCleanup(standby.remove)
        path = primary.file("rows", data(lambda n: (b"%d" % (n % 100), b"x" * 60), 20000))
        loads = [subprocess.Popen(primary.command("-c", f"SET pgsluice.copy = on; COPY {table} FROM '{path}' CSV; SELECT route, rows FROM pgsluice.last_copy"), stdout=subprocess.PIPE, text=True)
                 for table in ("t", "t2")]
        self.assertEqual([load.communicate()[0] for load in loads], ["append|20000\n"] * 2)
        standby.follow(primary)
        for table in ("t", "t2", "p"):
            what = f"SELECT count(*), md5(string_agg({table}::text || ctid::text, ',' ORDER BY ctid)) FROM {table}"
            self.assertEqual(standby.sql(what), primary.sql(what))
        standby.stop()
        (standby.data / "standby.signal").unlink()
        standby.start()
        with self.assertRaises(Refused) as refused:
            standby.sql("DELETE FROM p WHERE a = 50")
        self.assertIn("23503", str(refused.exception))
        standby.sql("DELETE FROM t; DELETE FROM t2; DELETE FROM p")


if __name__ == "__main__":
    unittest.main()
