"""A COPY that fails leaves transaction, session and server as stock COPY leaves them, whatever the error.

Every kind of load meets every class of error: within a PL/pgSQL block that handles it, as a statement by itself, and
after a savepoint. Another session then looks at what was committed.
"""

import collections
import contextlib
import os
import shutil
import subprocess
import threading
import time
import unittest

from .cluster import BIN, USER, OnCluster, Refused, left_out, wait_until
from .libpq import Session

# What goes wrong when a certain row is checked, selected by the setting test.fault.
PREPARED = """
    CREATE ROLE loader LOGIN IN ROLE pg_read_server_files;
    GRANT ALL ON SCHEMA public TO loader;
    CREATE TABLE secret (a int); CREATE TABLE contended (n int); INSERT INTO contended VALUES (0);
    CREATE SEQUENCE short MAXVALUE 2; SELECT setval('short', 2);
    CREATE TABLE marks (n serial, mark text);
    GRANT ALL ON contended, marks, marks_n_seq, short TO loader;
    CREATE FUNCTION fail() RETURNS void LANGUAGE plpgsql AS $$ BEGIN
        CASE current_setting('test.fault')
            WHEN 'cancel' THEN PERFORM pg_cancel_backend(pg_backend_pid()), pg_sleep(60);
            WHEN 'statement timeout' THEN PERFORM pg_sleep(60);
            WHEN 'lock timeout', 'deadlock' THEN PERFORM pg_advisory_xact_lock(1);
            WHEN 'serialization failure' THEN UPDATE contended SET n = n + 1;
            WHEN 'privilege' THEN PERFORM FROM secret;
            WHEN 'sequence limit' THEN PERFORM nextval('short');
            WHEN 'out of memory' THEN RAISE 'no memory' USING ERRCODE = '53200';
            WHEN 'terminate' THEN PERFORM pg_terminate_backend(pg_backend_pid()), pg_sleep(60);
            ELSE NULL;
        END CASE;
    END $$;
    CREATE FUNCTION sure(a int) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN
        IF a IN (450, 2200) THEN PERFORM fail(); END IF; RETURN true; END $$;
    CREATE FUNCTION fail_at_end() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM fail(); RETURN NULL; END $$
"""

# Class of error: its SQLSTATE, and what the session sets for it.
FAULTS = {
    "cancel": ("57014", ""),
    "statement timeout": ("57014", "SET statement_timeout = {}"),
    "lock timeout": ("55P03", "SET lock_timeout = 20"),
    "deadlock": ("40P01", "SELECT pg_advisory_lock(2)"),
    "serialization failure": ("40001", "SET default_transaction_isolation = 'repeatable read'"),
    "privilege": ("42501", ""),
    "sequence limit": ("2200H", ""),
    "out of memory": ("53200", ""),
    "terminate": (None, ""),
}

# Milliseconds. On a busy machine, a timeout may end a statement before the COPY or after it; then a longer one is tried.
TIMEOUTS = (200, 3000, 30000)

KEY = "PRIMARY KEY"
ROWS = "INSERT INTO t SELECT n, 'old' FROM generate_series(1, 10) n"
TRIGGER = "CREATE TRIGGER z AFTER INSERT ON t EXECUTE FUNCTION fail_at_end()"
# Kind of load: the key of its table, the check, what else is there, COPY's options, the input, and the route and method when it succeeds.
LOADS = {
    "rejects": (KEY, "sure(a)", ROWS, "rejects_to 'bad'", "rejects", "insert|row"),
    "plain": ("", "sure(a)", ROWS, "pgsluice 'require', workers 0", "good", "append|"),
    "with workers": ("", "sure(a)", ROWS, "pgsluice 'require', workers 2", "good", "append|"),
    "duplicates skipped": (KEY, "sure(a)", ROWS, "on_duplicate 'skip'", "twice", "insert|row"),
    "duplicates replaced": (KEY, "sure(a)", ROWS, "on_duplicate 'replace'", "twice", "insert|row"),
    "index appended to": (KEY, "sure(a)", ROWS, "pgsluice 'require', workers 0", "good", "append|leaves"),
    "index to be built": (KEY, "sure(a)", "", "lock 'exclusive', workers 0", "many", "append|build"),
    # The failure before it has left dead entries with the same keys. The first rows mark them dead, so the old file can be merged.
    "index built": (KEY, "true", TRIGGER, "lock 'exclusive', workers 0", "many", "append|merge"),
}

# What a client runs, and the marks that remain.
SHAPES = {
    "a block that handles it": (
        "DO $$ BEGIN INSERT INTO marks (mark) VALUES ('stays');"
        " BEGIN INSERT INTO marks (mark) VALUES ('undone'); {copy};"
        " EXCEPTION WHEN OTHERS OR query_canceled THEN INSERT INTO marks (mark) VALUES (SQLSTATE); END;"
        " INSERT INTO marks (mark) VALUES ('after'); END $$",
        "stays,{state},after"),
    "by itself": ("{copy}; INSERT INTO marks (mark) VALUES ('second'); INSERT INTO marks (mark) VALUES ('third')", "second,third"),
    "after a savepoint": (
        "BEGIN; INSERT INTO marks (mark) VALUES ('stays'); SAVEPOINT s; INSERT INTO marks (mark) VALUES ('undone'); {copy};"
        "ROLLBACK TO s; INSERT INTO marks (mark) VALUES ('after'); COMMIT",
        "stays,after"),
}
MARKS = "SELECT string_agg(mark, ',' ORDER BY n) FROM marks"
MOMENTS = 80 if os.environ.get("PGSLUICE_SOAK") else 20  # at which a load is cancelled, evenly over its time
COUNTS = "SELECT count(*) FROM t; SELECT count(*) FROM bad"
STATE = "SELECT state, xact_start IS NULL, (SELECT count(*) FROM pg_locks l WHERE l.pid = a.pid AND locktype = 'relation') FROM pg_stat_activity a WHERE pid = {}"
WAITS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND pid <> {}"


def pooler():
    """The path of PgBouncer's program, or None."""
    found = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/bin:" + os.environ.get("PATH", ""))
    if not found:
        left_out("PgBouncer, which is not here (Debian: apt-get install pgbouncer)")
    return found


class Subtransactions(OnCluster):
    """Each test is one shape."""

    settings = ["deadlock_timeout = 10ms", "max_worker_processes = 16"]
    prepared = PREPARED

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        rows = [f"{n},{'x' * 1900}\n" for n in range(11, 461)]
        bad = ["x,bad\n", "260,too,many\n", "5,again\n"]
        # One session makes all queries about the outcome: connecting takes longer than a query.
        cls.observer = cls.cluster.connect()
        cls.addClassCleanup(cls.observer.close)
        cls.files = {name: cls.cluster.file(name, "".join(lines).encode()) for name, lines in (
            ("good", rows), ("many", [f"{n},{'x' * 1900}\n" for n in range(1011, 2211)]), ("twice", [f"{n},new\n" for n in range(1, 6)] + rows),
            ("rejects", rows[:100] + bad[:1] + rows[100:300] + bad[1:] + rows[300:]))}

    def look(self, sql):
        """A query's result in another session."""
        return self.observer.run(sql).strip()

    @contextlib.contextmanager
    def others(self, fault, session):
        """Other sessions meanwhile do what causes the fault."""
        if fault not in ("lock timeout", "deadlock", "serialization failure"):
            yield
            return
        with self.cluster.connect(stops=False) as other:
            if fault != "serialization failure":
                # Of two sessions that wait for each other, the one whose time is over first gets the error.
                other.run("SET deadlock_timeout = '1h'; SELECT pg_advisory_lock(1)")
            else:
                other.run("BEGIN; UPDATE contended SET n = n + 1")
            waits = WAITS.format(other.pid)
            if fault == "deadlock":
                thread = threading.Thread(target=other.run, args=("SELECT pg_advisory_lock(2)",))
                waits = WAITS.format(session.pid)
            elif fault == "serialization failure":
                thread = threading.Thread(target=lambda: wait_until(lambda: self.look(waits) == "1") and other.run("COMMIT"))
            else:
                thread = threading.Thread()
            thread.start()
            if fault == "deadlock":
                self.assertTrue(wait_until(lambda: self.look(waits) == "1"))
            try:
                yield
            finally:
                if fault == "deadlock":
                    self.look(f"SELECT pg_cancel_backend({other.pid})")
                thread.join()

    def prepare(self, load):
        """Creates a table for this kind of load; returns its COPY, and the route and method expected."""
        key, check, more, options, file, taken = LOADS[load]
        self.look("SET client_min_messages = error; DROP TABLE IF EXISTS t, bad; TRUNCATE marks; CREATE TABLE bad (LIKE pgsluice.reject);"
                 f"CREATE TABLE t (a int {key}, b text CHECK ({check})); GRANT ALL ON t, bad TO loader; ALTER TABLE t OWNER TO loader; {more}")
        return f"COPY t FROM '{self.files[file]}' WITH (FORMAT csv, {options})", taken

    def timeless(self, session):
        """Ends the session's timeout, which may be too short even for that."""
        self.assertTrue(wait_until(lambda: session.run("RESET statement_timeout; SHOW statement_timeout") == "0"))

    def fails(self, load, fault, shape, session, timeout):
        """One load with one fault; the same load then succeeds in the same session. Returns False if the timeout was too short for that."""
        copy, taken = self.prepare(load)
        script, marks = SHAPES[shape]
        state, setting = FAULTS[fault]
        before = self.look(COUNTS)
        session.run(f"SET test.fault = '{fault}'; {setting.format(timeout)}")
        with self.others(fault, session):
            session.run(script.format(copy=copy))
        said = "".join(session.told)
        if fault == "statement timeout" and timeout < TIMEOUTS[-1] and said.count("ERROR:") != ("DO $$" not in script):
            session.run("ROLLBACK")
            self.timeless(session)
            return False
        if state is None:
            self.assertIn("terminating connection due to administrator command", said)
            self.assertEqual(self.look(f"{MARKS}; {COUNTS}"), before)
            return True
        if "DO $$" not in script:
            self.assertIn(f"ERROR:  {state}:", said)
            self.assertEqual(said.count("ERROR:"), 1, said)
        else:
            self.assertEqual(said, "")
        self.assertEqual(self.look(COUNTS), before)
        self.assertEqual(self.look(STATE.format(session.server_pid)), "idle|t|0")
        if fault == "statement timeout":
            self.timeless(session)
        session.told.clear()
        session.run("RESET ALL; SELECT pg_advisory_unlock_all(); SET client_min_messages = error; SET test.fault = 'none'; INSERT INTO marks (mark) VALUES ('later'); ROLLBACK")
        self.assertEqual(session.told, [])
        found = session.run(f"{copy}; SELECT route, indexes -> 0 ->> 'way' FROM pgsluice.last_copy; RESET ALL")
        self.assertEqual((found, session.told), (taken, []))
        self.assertEqual(self.look(STATE.format(session.server_pid)), "idle|t|0")
        session.close()
        self.assertEqual(self.look(MARKS), marks.format(state=state) + ",later")
        rows, rejects = (int(count) for count in before.split("\n"))
        rows += 1200 if LOADS[load][4] == "many" else 450
        self.assertEqual(self.look(COUNTS), f"{rows}\n{rejects + (3 if load == 'rejects' else 0)}")
        return True

    def every_fault(self, shape, connect, loads=tuple(LOADS)):
        """Each kind of load with each class of error."""
        for load in loads:
            for fault in FAULTS:
                with self.subTest(load=load, fault=fault):
                    for timeout in TIMEOUTS:
                        with connect() as session:
                            session.server_pid = session.run("SELECT pg_backend_pid()")
                            if self.fails(load, fault, shape, session, timeout):
                                break
        warnings = {line.partition("WARNING:")[2].strip() for line in self.cluster.log.read_text(errors="replace").splitlines() if "WARNING:" in line}
        self.assertLessEqual(warnings, {"there is no transaction in progress"})

    def direct(self):
        """A session directly on the server."""
        return self.cluster.connect(user="loader", stops=False)

    def test_a_block_that_handles_it(self):
        """If a PL/pgSQL block handles the error, the block's own work is undone; the work around it, and later work, remains."""
        self.every_fault("a block that handles it", self.direct)

    def test_by_itself(self):
        """After the error, the session runs its next statements, and commits each of them."""
        self.every_fault("by itself", self.direct)

    def test_after_a_savepoint(self):
        """ROLLBACK TO undoes the load and what came after the savepoint, and nothing else."""
        self.every_fault("after a savepoint", self.direct)

    def test_at_any_moment(self):
        """A cancel at any moment, even within a subtransaction, undoes all of the block, unless the block had ended."""
        bad = "".join(f"{n},{'bad' if n % 40 else 'x' * 1900}\n" if n % 7 else f"{n % 500},again\n" for n in range(11, 3000))
        many = self.cluster.file("moments", bad.encode())
        keys = self.cluster.file("keys", "".join(f"{n * 7919 % 60013 + 100},{n}\n" for n in range(40000)).encode())
        loads = {
            "rejects": ("(a int PRIMARY KEY, b text CHECK (b <> 'bad' OR a % 3 > 0))", "", f"'{many}' WITH (FORMAT csv, rejects_to 'bad', max_rejects 'none')"),
            "duplicates": ("(a int PRIMARY KEY, b text)", "", f"'{many}' WITH (FORMAT csv, on_duplicate 'skip')"),
            "indexes built": ("(a int PRIMARY KEY, b text)", "CREATE INDEX ON t (b)", f"'{keys}' WITH (FORMAT csv, lock 'exclusive', workers 0)"),
        }
        for load, (columns, index, source) in loads.items():
            with self.subTest(load), self.cluster.connect(user="loader", stops=False) as session:
                pid = session.run("SELECT pg_backend_pid()")
                self.look("SET client_min_messages = error; DROP TABLE IF EXISTS t, bad; CREATE TABLE bad (LIKE pgsluice.reject);"
                          f"CREATE TABLE t {columns}; {index}; {ROWS}; GRANT ALL ON t, bad TO loader; ALTER TABLE t OWNER TO loader")
                block = SHAPES["a block that handles it"][0].format(copy=f"COPY t FROM {source}")
                began = time.monotonic()
                session.run(f"SET test.fault = 'none'; SET client_min_messages = warning; BEGIN; {block}; ROLLBACK")
                self.assertEqual(session.told, [])
                whole = max(int(1000 * (time.monotonic() - began)), 10)
                ends = collections.Counter()
                # Evenly over its time, and again over its first part, which has the most steps.
                for moment in [*range(1, MOMENTS)] + [step / 4 for step in range(1, MOMENTS)]:
                    self.look("TRUNCATE marks, bad")
                    before = self.look(COUNTS)
                    began = time.monotonic()
                    session.run(f"SET statement_timeout = {max(int(whole * moment / MOMENTS), 1)}; {block}")
                    took = max(int(1000 * (time.monotonic() - began)), 10)
                    said = "".join(session.told)
                    self.timeless(session)
                    session.told.clear()
                    marks = self.look(MARKS)
                    ends[marks] += 1
                    self.assertEqual(marks == "", "57014" in said, said)
                    self.assertIn(marks, ("", "stays,57014,after", "stays,undone,after"))
                    if marks != "stays,undone,after":
                        self.assertEqual(self.look(COUNTS), before)
                    self.assertEqual(self.look(STATE.format(pid)), "idle|t|0")
                    session.run("INSERT INTO marks (mark) VALUES ('later')")
                    self.assertEqual((self.look(MARKS), session.told), (f"{marks},later".lstrip(","), []))
                    if marks == "stays,undone,after":
                        self.look(f"TRUNCATE t; {ROWS}")
                        # The machine may have been busy during the measurement.
                        whole = min(whole, took)
                self.assertGreater(ends["stays,57014,after"], MOMENTS // 4, ends)
                session.run(f"SELECT count(*) FROM t; {block}")
                self.assertEqual(session.told, [])

    @unittest.skipUnless(pooler(), "no PgBouncer")
    def test_through_a_pooler(self):
        """Through PgBouncer, the pooled session that had the error serves other clients, each with its own transactions."""
        with self.pooled() as connect:
            for shape in SHAPES:
                self.every_fault(shape, connect, ("rejects", "index to be built"))

    @staticmethod
    def accepts(where):
        """Whether a server listens there."""
        try:
            Session(BIN, where).close()
        except Refused:
            return False
        return True

    @contextlib.contextmanager
    def pooled(self):
        """PgBouncer in transaction mode with one session; yields a function that connects through it."""
        home = self.cluster.home
        users = self.cluster.file("users", b'"loader" ""\n')
        settings = self.cluster.file("pgbouncer.ini", (
            f"[databases]\n* = host={home} port=5432\n[pgbouncer]\npool_mode = transaction\ndefault_pool_size = 1\n"
            f"unix_socket_dir = {home}\nlisten_port = 6432\nauth_type = trust\nauth_file = {users}\n").encode())
        process = subprocess.Popen([pooler(), "-q", *(["-u", USER] if USER else []), settings], cwd=home, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        where = f"host={home} port=6432 user=loader dbname=postgres"
        try:
            self.assertTrue(wait_until(lambda: self.accepts(where) or process.poll() is not None))
            self.assertIsNone(process.poll())
            yield lambda: Session(BIN, where, False)
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    unittest.main()
