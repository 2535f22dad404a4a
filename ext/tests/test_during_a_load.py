"""What other sessions do while a load is paused in its middle: backups, deletes, locks, kills."""

import os
import re
import signal
import struct
import subprocess
import unittest

from .cluster import Cluster, Held, OnCluster, Refused, has, wait_until
from .test_durability import SUM, TABLE, check_heap, rows
from .test_fuzz import Client
from .test_workers import held_back, workers

INDEXED = TABLE.format(kind="") + "; CREATE UNIQUE INDEX ON t (id); CREATE INDEX ON t (left(a, 50))"
PARENTS = ("DROP TABLE IF EXISTS p CASCADE; CREATE TABLE p (a int PRIMARY KEY); INSERT INTO p SELECT generate_series(0, 29999);"
           "DROP TABLE IF EXISTS t; CREATE TABLE t (id int REFERENCES p, a text, b bigint, c jsonb, d numeric)")


class ChangedPartitions:
    """Loads of a partitioned table that wait in their middle while its partitions change."""

    route = "insert"  # partitions have no pages of their own at wal_level logical

    def start_partitions(self, setting, table, more="", options=""):
        """Starts the load of a partitioned table whose other leaves get their first rows after the gate; returns its process."""
        self.sql(f"DROP TABLE IF EXISTS t, log, far, bad; {table}; CREATE TABLE bad (LIKE pgsluice.reject); CREATE TABLE log (n serial, seen bigint, a int)")
        first = self.cluster.file("first", "".join(f"{n},1,{'x' * 200}\n" for n in range(10000, 22000)).encode())
        second = self.cluster.file("second", ("".join(f"{n},{n % 3 + 1},x\n" for n in range(2000, 3000)) + more).encode())
        self.gate = self.cluster.home / "gate"
        self.gate.unlink(missing_ok=True)
        self.addCleanup(self.gate.touch)
        load = (f"SET client_min_messages = warning; SET pgsluice.copy = {setting}; COPY t FROM PROGRAM 'cat {first}; while [ -e {first} ] && ! [ -e {self.gate} ]; do sleep 0.05; done; cat {second}'"
                f" WITH (FORMAT csv{options}); SELECT route, rows FROM pgsluice.last_copy")
        process = subprocess.Popen(self.cluster.command("-c", load), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertTrue(wait_until(lambda: self.sql("SELECT 1 FROM pg_stat_progress_copy WHERE tuples_processed >= 1000")), "no half of a load")
        return process

    def changed_partitions(self, setting, table, change, more="", options=""):
        """Loads a partitioned table whose other leaves get their first rows after `change`; returns the error, the rows and the log."""
        process = self.start_partitions(setting, table, more, options)
        self.sql(change)
        self.gate.touch()
        said, refusal = process.communicate()
        if setting == "on":
            self.assertEqual(said, "" if refusal else f"{self.route}|{self.sql('SELECT count(*) FROM t')}\n")
        return (refusal.split("LOCATION")[0], self.sql("SELECT tableoid::regclass, count(*), sum(a), min(b), max(b) FROM t GROUP BY 1 ORDER BY 1"),
                self.sql("SELECT seen, a FROM log ORDER BY n"))

    def test_a_partition_changes(self):
        """If a leaf gets a BEFORE trigger, or a foreign leaf is attached, before its first row, rows, triggers and
        errors are stock COPY's. With rejects_to this is an error."""
        parts = ("CREATE TABLE t (a int, p int, b text, c int GENERATED ALWAYS AS (a * 2) STORED) PARTITION BY LIST (p);"
                 "CREATE TABLE t1 PARTITION OF t FOR VALUES IN (1); CREATE TABLE t2 (b text, p int, a int CHECK (a <> 2999) PRIMARY KEY, c int GENERATED ALWAYS AS (a * 2) STORED);"
                 "ALTER TABLE t ATTACH PARTITION t2 FOR VALUES IN (2); CREATE TABLE t3 PARTITION OF t FOR VALUES IN (3)")
        trigger = ("CREATE OR REPLACE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
                   " INSERT INTO log (seen, a) VALUES ((SELECT count(*) FROM t), NEW.a); NEW.b := 'seen';"
                   " IF NEW.a % 5 = 0 THEN RETURN NULL; ELSIF NEW.a = 3998 THEN NEW.p := 3; END IF; RETURN NEW; END $$;"
                   "CREATE TRIGGER look BEFORE INSERT ON {} FOR EACH ROW EXECUTE FUNCTION look()")
        # The last record of each moves to another leaf, violates a key or a CHECK constraint, or cannot be parsed.
        cases = [(parts, trigger.format("t2"), more) for more in ("", "3998,2,moves\n", "2002,2,again\n", "2999,2,refused\n", "x,2,bad\n")]
        cases += [(parts, trigger.format("t3"), more) for more in ("", "2002,2,again\n")]
        below = ("CREATE TABLE t (a int, p int, b text) PARTITION BY LIST (p); CREATE TABLE t1 PARTITION OF t FOR VALUES IN (1);"
                 "CREATE TABLE t2 PARTITION OF t FOR VALUES IN (2) PARTITION BY RANGE (a); CREATE TABLE t3 PARTITION OF t FOR VALUES IN (3); CREATE TABLE far (a int, p int, b text)")
        attach = ("CREATE FOREIGN TABLE t2f (a int, p int, b text) SERVER here OPTIONS (table_name 'far'); ALTER TABLE t2 ATTACH PARTITION t2f FOR VALUES FROM (2000) TO (3000)")
        if has("postgres_fdw"):
            self.sql("CREATE EXTENSION IF NOT EXISTS postgres_fdw; DROP SERVER IF EXISTS here CASCADE;"
                     f"CREATE SERVER here FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '{self.cluster.home}', dbname 'postgres');"
                     "CREATE USER MAPPING FOR postgres SERVER here")
            cases += [(below, attach, more) for more in ("", "x,2,bad\n")]
        for table, change, more in cases:
            with self.subTest(change=change, more=more):
                stock, ours = (self.changed_partitions(setting, table, change, more) for setting in ("off", "on"))
                self.assertEqual(stock, ours)
                self.assertEqual(bool(more), bool(ours[0]))
        with self.subTest("options that stock COPY does not have"):
            self.assertIn("55006", self.changed_partitions("on", parts, trigger.format("t2"), options=", rejects_to 'bad'")[0])

    def test_a_partition_gets_a_volatile_check(self):
        """Before its first row, a leaf gets a CHECK that reads the table by an index: it sees at least the rows that it sees in stock COPY."""
        table = ("CREATE TABLE t (a int, p int, b text) PARTITION BY LIST (p); CREATE TABLE t1 PARTITION OF t FOR VALUES IN (1, 3); CREATE TABLE t2 PARTITION OF t FOR VALUES IN (2);"
                 "CREATE INDEX ON t1 (a)")
        change = ("CREATE OR REPLACE FUNCTION look(a int) RETURNS boolean LANGUAGE plpgsql SET enable_seqscan = off AS $$ BEGIN"
                  " INSERT INTO log (seen, a) VALUES ((SELECT count(*) FROM t1 WHERE t1.a < 30000), look.a); RETURN true; END $$;"
                  "ALTER TABLE t2 ADD CHECK (a < 2900 OR look(a))")
        stock, ours = (self.changed_partitions(setting, table, change) for setting in ("off", "on"))
        self.assertEqual((stock[0], stock[1]), (ours[0], ours[1]))
        self.assertEqual(ours[0], "")
        seen, least = ([[int(value) for value in line.split("|")] for line in one[2].split("\n")] for one in (ours, stock))
        self.assertEqual([a for _, a in seen], [a for _, a in least])
        # Stock COPY may show such a function fewer rows: those of its last flush. Here all earlier rows are there.
        self.assertTrue(all(count >= other for (count, _), (other, _) in zip(seen, least)), (seen, least))


class DuringALoad(ChangedPartitions, OnCluster):
    """The first part of the data is being loaded; the rest waits for a gate."""

    settings = ["wal_level = logical", "wal_keep_size = 1GB", "autovacuum = off"]

    def start_load(self, table=INDEXED, toast=False, setting="on", options=""):
        """Starts the load and waits until it has put rows into the table; returns its process."""
        self.sql(f"DROP TABLE IF EXISTS t; {table}")
        data = rows(30000, toast)
        cut = data.index(b"\n", len(data) * 2 // 3) + 1
        first, second = self.cluster.file("first", data[:cut]), self.cluster.file("second", data[cut:])
        self.gate = self.cluster.home / "gate"
        self.gate.unlink(missing_ok=True)
        program = f"PROGRAM 'cat {first}; while [ -e {first} ] && ! [ -e {self.gate} ]; do sleep 0.05; done; cat {second}'"
        if "workers" in options:
            # What comes again has no keys.
            program = held_back(first, self.gate, second, self.cluster.file("again", re.sub(rb"(?m)^\d+", b"", data[:cut])))
        process = subprocess.Popen(self.cluster.command("-c", f"SET pgsluice.copy = {setting}; COPY t FROM {program} WITH (FORMAT csv{options})"),
                                   stderr=subprocess.PIPE, text=True)
        # Whatever happens to the test or its folder, the program must end.
        self.addCleanup(self.gate.touch)
        self.assertTrue(wait_until(lambda: self.sql("SELECT 1 FROM pg_stat_progress_copy WHERE tuples_processed > 0")), "no half of a load")
        return process

    def finish(self, process):
        """Lets the rest of the data through; returns the load's error, or nothing."""
        self.gate.touch()
        refusal = process.communicate()[1].split("LOCATION")[0]
        self.assertEqual(process.returncode != 0, bool(refusal))
        return refusal

    def restored(self, backup, target):
        """A server recovered from the backup to this target, and no further."""
        server = Cluster([f"restore_command = 'cp {self.cluster.data}/pg_wal/%f %p'", target, "recovery_target_action = promote"], copy_of=backup)
        self.addCleanup(server.remove)
        self.assertTrue(wait_until(lambda: server.sql("SELECT pg_is_in_recovery()") == "f"), server.tail())
        return server

    def test_backup(self):
        """A base backup taken during a load recovers to before, during and after it: none of its rows are there, or all, and amcheck finds no error."""
        process = self.start_load(INDEXED + "; INSERT INTO t SELECT -i, 'before' FROM generate_series(1, 100) i", toast=True)
        before = self.sql(SUM)
        backup = self.cluster.home / "backup"
        self.cluster.backup(backup, "-X", "none")
        during = self.sql("INSERT INTO t VALUES (-1000, 'during'); SELECT pg_current_wal_insert_lsn()")
        with_it = self.sql(SUM)
        self.assertEqual(self.finish(process), "")
        after, committed = self.sql(f"{SUM}; SELECT pg_current_wal_insert_lsn()").split("\n")
        self.sql("TRUNCATE t; SELECT pg_switch_wal()")
        for target, wanted in (("recovery_target = 'immediate'", before), (f"recovery_target_lsn = '{during}'", with_it),
                               (f"recovery_target_lsn = '{committed}'", after)):
            with self.subTest(target=target):
                server = self.restored(backup, target)
                self.assertEqual(server.sql(SUM), wanted)
                check_heap(self, server)
                server.remove()

    def test_parents_are_deleted(self):
        """A parent deleted before its check fails the load with stock COPY's error; once checked, a parent cannot be
        deleted. Stock COPY checks no row before its end."""
        said = []
        for setting in ("off", "on"):
            process = self.start_load(PARENTS, setting=setting)
            self.sql("DELETE FROM p WHERE a = 29000")
            if setting == "on":
                with self.assertRaises(Refused) as refused:
                    self.sql("SET lock_timeout = 100; DELETE FROM p WHERE a = 100")
                self.assertIn("55P03", str(refused.exception))
            said.append(self.finish(process))
            self.assertEqual(self.sql("SELECT count(*) FROM t"), "0")
            process = self.start_load(PARENTS, setting=setting)
            deleter = Held(self.cluster)
            deleter.run("BEGIN; DELETE FROM p WHERE a = 29000")
            self.gate.touch()
            self.assertTrue(wait_until(lambda: self.sql("SELECT count(*) FROM pg_locks WHERE NOT granted") == "1"))
            deleter.end("ROLLBACK")
            self.assertEqual(self.finish(process), "")
            holder = Held(self.cluster)
            holder.run(f"SET pgsluice.copy = {setting}; BEGIN; TRUNCATE t; COPY t FROM '{self.cluster.home}/first' CSV")
            with self.assertRaises(Refused) as refused:
                self.sql("SET lock_timeout = 100; DELETE FROM p WHERE a = 100")
            self.assertIn("55P03", str(refused.exception))
            holder.end("COMMIT")
            with self.assertRaises(Refused) as refused:
                self.sql("DELETE FROM p WHERE a = 100")
            self.assertIn("23503", str(refused.exception))
        self.assertIn("23503", said[0])
        self.assertEqual(*said)

    def test_a_trigger_deletes_a_parent(self):
        """A partition gets a trigger, before its first row, that deletes a parent of rows already loaded: these are
        found by their index, and the load fails as with stock COPY."""
        table = ("CREATE TABLE t (a int, p int, b text) PARTITION BY LIST (p); CREATE TABLE t1 PARTITION OF t FOR VALUES IN (1, 3); CREATE TABLE t2 PARTITION OF t FOR VALUES IN (2);"
                 "DROP TABLE IF EXISTS parent CASCADE; CREATE TABLE parent (p int PRIMARY KEY); INSERT INTO parent VALUES (1), (2), (3); ALTER TABLE t ADD FOREIGN KEY (p) REFERENCES parent; CREATE INDEX ON t1 (p, a DESC);"
                 "SET enable_seqscan = off; ALTER DATABASE postgres SET enable_seqscan = off")
        change = ("CREATE OR REPLACE FUNCTION away() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN DELETE FROM parent WHERE p = 3; RETURN NEW; END $$;"
                  "CREATE TRIGGER away BEFORE INSERT ON t2 FOR EACH ROW EXECUTE FUNCTION away()")
        try:
            stock, ours = (self.changed_partitions(setting, table, change) for setting in ("off", "on"))
        finally:
            self.sql("ALTER DATABASE postgres RESET enable_seqscan")
        self.assertEqual(stock, ours)
        self.assertIn("is still referenced", ours[0])

    def test_a_trigger_deletes_a_parent_with_its_children(self):
        """If that trigger's DELETE takes the children with it, a later row with the same value is checked again, and the load fails as with stock COPY."""
        table = ("CREATE TABLE t (a int, p int, b text) PARTITION BY LIST (p); CREATE TABLE t1 PARTITION OF t FOR VALUES IN (1, 3); CREATE TABLE t2 PARTITION OF t FOR VALUES IN (2);"
                 "DROP TABLE IF EXISTS parent CASCADE; CREATE TABLE parent (p int PRIMARY KEY); INSERT INTO parent VALUES (1), (2), (3);"
                 "ALTER TABLE t ADD FOREIGN KEY (p) REFERENCES parent ON DELETE CASCADE")
        change = ("CREATE OR REPLACE FUNCTION away() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN DELETE FROM parent WHERE p = 3 AND NEW.a = 2500; RETURN NEW; END $$;"
                  "CREATE TRIGGER away BEFORE INSERT ON t2 FOR EACH ROW EXECUTE FUNCTION away()")
        stock, ours = (self.changed_partitions(setting, table, change) for setting in ("off", "on"))
        self.assertEqual(stock, ours)
        self.assertIn("is not present in table", ours[0])

    def test_vacuum_of_a_parent(self):
        """While a load waits for its data, VACUUM (FREEZE) of a parent of its rows does not wait for it."""
        table = ("CREATE TABLE t (a int, p int, b text) PARTITION BY LIST (p); CREATE TABLE t1 PARTITION OF t FOR VALUES IN (1, 2, 3);"
                 "DROP TABLE IF EXISTS parent CASCADE; CREATE TABLE parent (p int PRIMARY KEY); INSERT INTO parent VALUES (1), (2), (3);"
                 "ALTER TABLE t ADD FOREIGN KEY (p) REFERENCES parent")
        change = "SET statement_timeout = '30s'; VACUUM (FREEZE) parent"
        stock, ours = (self.changed_partitions(setting, table, change) for setting in ("off", "on"))
        self.assertEqual(stock, ours)
        self.assertEqual(ours[0], "")

    def test_a_temporary_table_of_another_session(self):
        """COPY into a temporary table of another session fails with stock COPY's error."""
        path = self.cluster.file("rows", b"".join(b"%d\n" % n for n in range(200000)))
        other = Held(self.cluster)
        other.run("CREATE TEMP TABLE mine AS SELECT 1 AS a; SELECT 1")
        name = self.sql("SELECT nspname FROM pg_namespace JOIN pg_class c ON relnamespace = pg_namespace.oid WHERE relname = 'mine'")
        said = []
        for setting in ("off", "on"):
            with self.assertRaises(Refused) as refused:
                self.sql(f"SET pgsluice.copy = {setting}; COPY {name}.mine FROM '{path}'")
            said.append(str(refused.exception).split("LOCATION")[0])
        self.assertEqual(*said)
        self.assertIn("temporary tables of other sessions", said[0])
        other.end("SELECT 1")

    def test_locks(self):
        """During a load, statements that conflict with its lock wait. An index created concurrently has every row, and a snapshot from before its commit sees none."""
        process = self.start_load(TABLE.format(kind=""))
        for sql in ("ALTER TABLE t ADD z int", "ALTER TABLE t ALTER b TYPE text", "ALTER TABLE t DISABLE TRIGGER ALL", "TRUNCATE t", "DROP TABLE t", "VACUUM FULL t",
                    "CREATE INDEX ON t (id)", "BEGIN; LOCK TABLE t IN SHARE MODE"):
            with self.assertRaises(Refused) as refused:
                self.sql("SET lock_timeout = 20; " + sql)
            self.assertIn("55P03", str(refused.exception))
        reader = Held(self.cluster)
        reader.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM t")
        self.sql("VACUUM t; ANALYZE t; INSERT INTO t SELECT -i, 'beside' FROM generate_series(1, 2000) i; DELETE FROM t WHERE id < -1000; VACUUM (TRUNCATE) t")
        building = subprocess.Popen(self.cluster.command("-c", "CREATE UNIQUE INDEX CONCURRENTLY one ON t (id)"), stderr=subprocess.PIPE, text=True)
        self.assertTrue(wait_until(lambda: self.sql("SELECT count(*) FROM pg_index WHERE indexrelid = 'one'::regclass") == "1"
                                   if self.sql("SELECT to_regclass('one')") else False))
        self.assertEqual(self.finish(process), "")
        self.assertEqual(reader.end("SELECT count(*) FROM t; COMMIT")[1].strip(), "0")
        self.assertEqual(building.communicate()[1], "")
        self.assertEqual(self.sql("SELECT count(*), count(DISTINCT id), (SELECT indisvalid FROM pg_index WHERE indexrelid = 'one'::regclass) FROM t"), "31000|31000|t")
        check_heap(self, self.cluster)

    def test_slow_writer(self):
        """A cancel takes effect with the next data that comes through a named pipe, as with stock COPY."""
        piece, pipe = b"seven b\n" * 16384, self.cluster.home / "pipe"
        os.mkfifo(pipe)
        pipe.chmod(0o666)
        process = subprocess.Popen(self.cluster.command(
            "-c", f"DROP TABLE IF EXISTS t; CREATE TABLE t (a text); SET pgsluice.copy = on; COPY t FROM '{pipe}' WITH (pgsluice 'require', workers 0)"),
            stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        with open(pipe, "wb", buffering=0) as writer:
            writer.write(piece)
            self.assertTrue(wait_until(lambda: self.sql("SELECT pg_cancel_backend(pid) FROM pg_stat_progress_copy") == "t"))
            try:
                writer.write(piece)
            except BrokenPipeError:
                pass
            self.assertIn("57014", process.communicate(timeout=180)[1])

    def test_progress(self):
        """bytes_processed counts each byte once, also those that stock COPY's parser reads again, the header's included."""
        data = b"a,b\n" + b"1,x\n" * 100
        client = Client(self.cluster)
        client.run("DROP TABLE IF EXISTS t; CREATE TABLE t (a int, b text); SET pgsluice.copy = on")
        client.query("COPY t FROM STDIN WITH (FORMAT csv, HEADER, pgsluice 'require')")
        client.until("G")
        client.socket.sendall(b"d" + struct.pack("!i", len(data) + 4) + data)
        said = "SELECT bytes_processed FROM pg_stat_progress_copy"
        self.assertTrue(wait_until(lambda: self.sql(said) == str(len(data))), self.sql(said))
        client.socket.sendall(b"c\0\0\0\4")
        self.assertIn("COPY 100", client.until("Z")[1][0])
        client.close()

    def test_killed(self):
        """After SIGKILL to a worker or to the leader, the server restarts; none of the load's rows, workers or locks are left."""
        for whom in ("worker", "leader"):
            process = self.start_load(options=", pgsluice 'require', workers 2")
            leader = int(self.sql("SELECT pid FROM pg_stat_progress_copy"))
            starts = self.starts()
            self.assertTrue(wait_until(lambda: self.strike(whom, leader)), "nobody was killed")
            # A worker that was about to leave anyway does not end the others.
            self.assertTrue(wait_until(lambda: self.answers(starts), lambda: self.starts() > starts or self.strike(whom, leader)), self.cluster.tail())
            # The program has the connection, too: psql notices that it has ended when both are gone.
            self.gate.touch()
            process.communicate()
            self.assertNotEqual(process.returncode, 0)
            self.assertFalse(workers(self.cluster))
            self.assertEqual(self.sql("SELECT count(*) FROM t"), "0")
            self.assertEqual(self.sql("SELECT count(*) FROM pg_locks WHERE relation = 't'::regclass AND pid <> pg_backend_pid()"), "0")
            check_heap(self, self.cluster)

    def strike(self, whom, leader):
        """Kills a worker, or the leader if it has workers; returns whether there was one to kill."""
        try:
            there = workers(self.cluster)
            if there:
                os.kill(there[0] if whom == "worker" else leader, signal.SIGKILL)
            return bool(there)
        except (FileNotFoundError, ProcessLookupError):
            return False

    def starts(self):
        """How many times the server has restarted."""
        return self.cluster.log.read_text(errors="replace").count("all server processes terminated; reinitializing")

    def answers(self, starts):
        """Whether the server accepts queries after restarting more than `starts` times."""
        try:
            return self.starts() > starts and self.sql("SELECT 1") == "1"
        except Refused:
            return False


# A key, and leaves that have rows before the gate (t1) or get their first rows after it: t2a, below another level, and t3.
LEAVES = ("CREATE TABLE t (a int, p int, b text, PRIMARY KEY (p, a)) PARTITION BY LIST (p); CREATE TABLE t1 PARTITION OF t FOR VALUES IN (1);"
          "CREATE TABLE t2 PARTITION OF t FOR VALUES IN (2) PARTITION BY RANGE (a); CREATE TABLE t2a PARTITION OF t2 FOR VALUES FROM (2000) TO (2500);")


class PartitionsDuringALoad(ChangedPartitions, OnCluster):
    """Partitions change while their rows go into whole pages."""

    settings = ["wal_level = replica"]
    route = "append"

    def test_a_leaf_is_attached(self):
        """A leaf is attached or detached before its first row: it gets its rows, or the load fails, as with stock COPY."""
        attach = "SET lock_timeout = '20s'; CREATE TABLE {0} (b text, a int NOT NULL, p int NOT NULL); ALTER TABLE {1} ATTACH PARTITION {0} FOR VALUES {2}"
        third = LEAVES + "CREATE TABLE t3 PARTITION OF t FOR VALUES IN (3)"
        below = attach.format("t2b", "t2", "FROM (2500) TO (4000)")
        for table, change, more, refused in (
                (third, below, "", ""), (third, below, "2500,2,again\n", "23505"), (third, "SELECT 1", "", "23514"), (third, below, "4000,2,none\n", "23514"),
                (third, below + "; ALTER TABLE t2 DETACH PARTITION t2a", "", "23514"),
                # The root's partitions are those of the beginning.
                (third, f"{below}; {attach.format('t4', 't', 'IN (4)')}", "3001,4,x\n", "23514"),
                (LEAVES + "CREATE TABLE t9 PARTITION OF t DEFAULT", f"{below}; {attach.format('t3', 't', 'IN (3)')}", "", "23514")):
            with self.subTest(change=change, more=more):
                stock, ours = (self.changed_partitions(setting, f"DROP TABLE IF EXISTS t2a, t2b, t3, t4; {table}", change, more) for setting in ("off", "on"))
                self.assertEqual(stock, ours)
                (self.assertIn if refused else self.assertEqual)(refused, ours[0])
                for leaf in ("t1", "t2b"):
                    if change != "SELECT 1":
                        check_heap(self, self.cluster, leaf)

    def detached(self, setting, leaf, parent):
        """Loads the table while a leaf is detached concurrently; returns the error, the rows that are left, and the leaf's."""
        process = self.start_partitions(setting, "DROP TABLE IF EXISTS t1, t2a, t2b, t3; " + LEAVES
                                        + "CREATE TABLE t2b PARTITION OF t2 FOR VALUES FROM (2500) TO (4000); CREATE TABLE t3 PARTITION OF t FOR VALUES IN (3)")
        detach = subprocess.Popen(self.cluster.command("-c", f"ALTER TABLE {parent} DETACH PARTITION {leaf} CONCURRENTLY"), stderr=subprocess.PIPE, text=True)
        self.assertTrue(wait_until(lambda: detach.poll() is not None or self.sql("SELECT count(*) FROM pg_locks WHERE NOT granted") != "0"))
        waits = detach.poll() is None
        self.gate.touch()
        said, refusal = process.communicate()
        self.assertEqual((detach.communicate()[1], detach.returncode), ("", 0))
        if setting == "on":
            self.assertEqual(said, "" if refusal else "append|13000\n")
            check_heap(self, self.cluster, leaf)
        what = "SELECT count(*), sum(a), min(b), max(b) FROM {}; "
        return refusal.split("LOCATION")[0], waits, self.sql("SELECT tableoid::regclass, count(*), sum(a) FROM t GROUP BY 1 ORDER BY 1;" + what.format(leaf))

    def test_a_leaf_is_detached_concurrently(self):
        """DETACH CONCURRENTLY of a leaf, with rows of the load or without, ends as with stock COPY: of the table itself it waits for the load, whose rows the leaf keeps."""
        for leaf, parent, refused in (("t1", "t", ""), ("t3", "t", ""), ("t2a", "t2", "23514")):
            with self.subTest(leaf=leaf):
                stock, ours = (self.detached(setting, leaf, parent) for setting in ("off", "on"))
                self.assertEqual(stock, ours)
                self.assertEqual(ours[1], not refused)
                (self.assertIn if refused else self.assertEqual)(refused, ours[0])


if __name__ == "__main__":
    unittest.main()
