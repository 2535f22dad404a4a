"""Backends whose memory is limited: an ERROR, never the end of the server.

Rust aborts the process if an allocation fails that cannot report it, and the postmaster then ends every session. Here a
backend's address space is limited to what it has and a little more, with more at each try, until its COPY succeeds. So
memory runs out at one place after another, in C and in the core.
"""

import os
import re
import subprocess
import threading
import unittest
from pathlib import Path

from . import cluster as clusters
from .cluster import Cluster, OnCluster, Refused, wait_until

MEMORY = "53200: out of memory"
STEP = 300 << 10
PLAN = 13 << 20  # needed whatever the data is
LONG = 1_000_000  # bytes of a field; stock COPY reads longer records

# For each column type, a row for which the core allocates memory.
VALUES = {
    "bytea": "\\x" + "0f" * (LONG // 2),
    "bytea /* escaped */": "a\\\\\\001" * (LONG // 7),
    "text[]": '"{' + ",".join(['""a\\\\b c""'] * (LONG // 12)) + '}"',
    "text[] /* one element */": '"{""' + "\\\\" * (LONG // 2) + '""}"',
    "jsonb": '"[' + ",".join(['{""key"": [1.5, ""a\\nb""]}'] * 18_000) + ']"',
    "numeric": "1" * 4000 + "." + "2" * 3000,
    "varbit": "10" * (LONG // 2),
    "char(1000000)": "padded",
    "text /* with quotes */": '"' + 'a""' * (LONG // 3) + '"',
}


# Sets limits as the servers' user, who may do so even where root may not.
LIMITER = "while read pid bytes; do prlimit --pid $pid --as=$bytes: || exit; echo; done"


def address_space(pid):
    """Bytes of a process's address space."""
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[0]) * os.sysconf("SC_PAGE_SIZE")


class Memory(unittest.TestCase):
    """One server; in each test an idle session must survive."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(["session_preload_libraries = 'pgsluice'"])
        cls.addClassCleanup(cls.cluster.remove)
        cls.cluster.sql("CREATE EXTENSION pgsluice")
        cls.limiter = subprocess.Popen(clusters.as_user(["sh", "-c", LIMITER]), cwd="/", text=True,
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        cls.addClassCleanup(cls.limiter.communicate)

    def limit(self, session, more=None):
        """Limits a session's process to this many bytes more than it has; None: no limit."""
        limit = "unlimited" if more is None else address_space(session.pid) + more
        print(session.pid, limit, file=self.limiter.stdin, flush=True)
        self.assertEqual(self.limiter.stdout.readline(), "\n")

    def until_it_goes(self, before, copy, after, least=0, step=STEP):
        """Runs `copy` in new sessions with ever more memory until it succeeds; returns how often it failed.

        `before` runs first, so that catalogs are cached. After an error, the same session runs `after`.
        """
        bystander = self.enterContext(self.cluster.connect())
        for tries in range(100):
            with self.cluster.connect() as session:
                session.run(before)
                self.limit(session, least + tries * step)
                try:
                    session.run(copy)
                    return tries
                except Refused as refused:
                    self.assertIn(MEMORY, str(refused), self.cluster.tail())
                self.assertEqual(bystander.run("SELECT 1"), "1", self.cluster.tail())
                self.limit(session)
                session.told.clear()
                session.run(after)
        return self.fail(f"never goes: {copy}")

    def test_long_fields(self):
        """For a field of about 1 MB of every type that the core allocates memory for, COPY fails with "out of memory"
        until it has enough; session and server go on."""
        good = self.cluster.file("good", b"0,\n")
        for column, value in VALUES.items():
            with self.subTest(column=column):
                path = self.cluster.file("rows", f"1,{value}\n".encode())
                self.cluster.sql(f"DROP TABLE IF EXISTS t; CREATE TABLE t (id int, v {column.split(' /')[0]})")
                self.cluster.sql(f"COPY t FROM '{path}' WITH (FORMAT csv, pgsluice 'off')")
                expected = self.cluster.sql("SELECT md5(v::text) FROM t; TRUNCATE t")
                # Stock COPY comes first: memory that the core frees is not returned to the system, and would be there.
                stock, ours = (f"WITH (FORMAT csv, pgsluice '{way}', workers 0)" for way in ("off", "require"))
                refused = self.until_it_goes(f"COPY t FROM '{good}' {stock}", f"COPY t FROM '{path}' {ours}",
                                             f"COPY t FROM '{good}' {ours}", 0 if column == "bytea" else PLAN)
                self.assertGreater(refused, 0)
                self.assertEqual(self.cluster.sql("SELECT md5(v::text) FROM t WHERE id = 1"), expected)

    def test_indexes(self):
        """If memory runs out while entries are sorted, for a live table, a private one or CREATE INDEX, the statement fails, and the session goes on."""
        rows = self.cluster.file("rows", "".join(f"{n},{n * 7919 % 20_000:040}\n" for n in range(20_000)).encode())
        good = self.cluster.file("good", b"-1,\n")
        stock, ours = (f"WITH (FORMAT csv, pgsluice '{way}', workers 0)" for way in ("off", "require"))
        cases = {
            "live": (f"COPY t FROM '{rows}' {ours}", "TRUNCATE t"),
            "private": (f"BEGIN; CREATE TABLE f (LIKE t INCLUDING INDEXES); COPY f FROM '{rows}' {ours}; COMMIT",
                        "DROP TABLE IF EXISTS f"),
            "built": ("SET pgsluice.index_build = on; CREATE INDEX i ON filled (v, id)", "DROP INDEX IF EXISTS i"),
        }
        self.cluster.sql(f"""DROP TABLE IF EXISTS t; CREATE TABLE t (id int PRIMARY KEY, v text); CREATE INDEX ON t (v);
            CREATE TABLE filled (LIKE t); COPY filled FROM '{rows}' {stock}""")
        for name, (statements, undo) in cases.items():
            with self.subTest(name):
                refused = self.until_it_goes(
                    f"COPY t FROM '{good}' {stock}; TRUNCATE t", statements,
                    f"ROLLBACK; {undo}; COPY t FROM '{good}' {ours}; TRUNCATE t", step=3 * STEP)
                self.assertGreater(refused, 0)
                self.cluster.sql(undo)

    def test_subtransactions(self):
        """If memory runs out while records are rejected, duplicates replaced or indexes built, no row of the load is kept, and the session goes on."""
        lines = [f"{n},{n * 7919 % 20_000:0200}\n" for n in range(20_000)]
        lines[50::100] = [f"{n},bad\n" for n in range(50, 20_000, 100)]
        rows = self.cluster.file("rows", "".join(lines).encode())
        good = self.cluster.file("good", b"-1,\n")
        cases = {"rejected": "rejects_to 'bad'", "replaced": "on_duplicate 'replace'", "built": "lock 'exclusive', workers 0"}
        for name, options in cases.items():
            with self.subTest(name):
                self.cluster.sql("SET client_min_messages = error; DROP TABLE IF EXISTS t, bad; CREATE TABLE bad (LIKE pgsluice.reject);"
                                 f"CREATE TABLE t (id int PRIMARY KEY, v text {'' if name == 'built' else 'CHECK (true)'}); CREATE INDEX ON t (v)"
                                 + (";ALTER TABLE t ADD CHECK (v <> 'bad')" if name == "rejected" else ""))
                stock = f"COPY t FROM '{good}' WITH (FORMAT csv, pgsluice 'off'); TRUNCATE t"
                copy = f"BEGIN; COPY t FROM '{rows}' WITH (FORMAT csv, {options}); COMMIT"
                after = "ROLLBACK; BEGIN; SAVEPOINT s; INSERT INTO bad (line) VALUES (0); ROLLBACK TO s; COMMIT; SELECT 1 / (1 - count(*)) FROM (SELECT FROM t UNION ALL SELECT FROM bad LIMIT 1) _"
                refused = self.until_it_goes(stock, copy, after, step=STEP)
                self.assertGreater(refused, 0)
                self.assertEqual(self.cluster.sql("SELECT count(*) FROM t; SELECT count(*) FROM bad"), "19800\n200" if name == "rejected" else "20000\n0")

    def test_failed_loads_leave_nothing(self):
        """A failed COPY gives the core's memory back: 80 more of them, and 80 private ones, grow a session by less than 4 MB."""
        bad = self.cluster.file("rows", b"".join(b"%d,\\x%08x\n" % (n, n) for n in range(3000)) + b"x,\\x\n")
        self.cluster.sql("DROP TABLE IF EXISTS t; CREATE TABLE t (id int, v bytea); CREATE INDEX ON t (id)")
        with self.cluster.connect(stops=False) as session:
            copy = f"COPY t FROM '{bad}' WITH (FORMAT csv, pgsluice 'require', workers 0);"
            private = f"BEGIN; CREATE TABLE f (LIKE t INCLUDING INDEXES); {copy.replace('t FROM', 'f FROM')} ROLLBACK;"
            sizes = []
            for _ in range(2):
                session.run((copy + private) * 40)
                sizes.append(address_space(session.pid))
            self.assertEqual(len([told for told in session.told if "22P02" in told]), 160)
        # One plan of a COPY takes 8 MB.
        self.assertLess(sizes[1] - sizes[0], 4 << 20)


class Shown(OnCluster):
    """The core's large buffers are in a memory context that the server shows; after the load, they are gone."""

    CONTEXT = "pgsluice core"
    ROWS = 400_000

    def setUp(self):
        self.sql("DROP TABLE IF EXISTS t; CREATE TABLE t (a bigint, b text); CREATE INDEX ON t (a); INSERT INTO t VALUES (0)")
        text = "".join(f"{n * 7919 % 1_000_003},b\n" for n in range(self.ROWS))
        self.first = self.cluster.file("first", text.encode())
        self.second = self.cluster.file("second", text.encode())
        self.gate = self.cluster.home / "gate"
        self.gate.unlink(missing_ok=True)
        self.addCleanup(self.gate.touch)

    def copy(self, more="", workers=0):
        """A load that pauses in its middle until the gate file exists."""
        return (f"COPY t FROM PROGRAM 'cat {self.first}; while [ -e {self.first} ] && ! [ -e {self.gate} ]; do sleep 0.05; done; cat {self.second}{more}'"
                f" WITH (FORMAT csv, pgsluice 'require', workers {workers})")

    def held(self, session):
        """Bytes that a session's core holds between two statements, as counted by the server."""
        return int(session.run(f"SELECT sum(total_bytes) FROM pg_backend_memory_contexts WHERE name = '{self.CONTEXT}'"))

    def in_the_middle(self, copy, what=f"{CONTEXT}: "):
        """Bytes of the context in the middle of the load, as the backend logs them; then lets the load go on."""
        process = subprocess.Popen(self.cluster.command("-c", copy), stderr=subprocess.PIPE, text=True)
        self.assertTrue(wait_until(lambda: self.sql(f"SELECT 1 FROM pg_stat_progress_copy WHERE tuples_processed > {self.ROWS // 2}")))
        self.sql("SELECT pg_log_backend_memory_contexts(pid) FROM pg_stat_progress_copy")
        self.gate.touch()
        said = process.communicate()[1]
        self.gate.unlink()
        shown = re.findall(rf"{what}(\d+)", self.cluster.log.read_text(errors="replace"))
        return int(shown[-1]) if shown else 0, said

    def test_in_the_middle(self):
        """In the middle of a load, the context holds the keys of a live table's index, a word and a TID each, in at most twice that size."""
        keyed, said = self.in_the_middle(self.copy())
        self.assertEqual(said, "")
        self.sql("DROP INDEX t_a_idx")
        plain, said = self.in_the_middle(self.copy())
        self.assertEqual(said, "")
        self.assertGreater(keyed - plain, 10 * self.ROWS // 2)
        self.assertLess(keyed - plain, 2 * 16 * self.ROWS)

    def test_lines_that_are_not_consecutive(self):
        """In the middle of a load whose index waits for its end, the lines of rows with gaps between them take a quarter of maintenance_work_mem at most."""
        sizes = []
        for where in ("a >= 0", "a % 100 > 0"):
            load = f"SET maintenance_work_mem = '1MB'; TRUNCATE t; {self.copy()} WHERE {where}"
            size, said = self.in_the_middle(load, "Grand total: ")
            self.assertEqual(said, "")
            self.assertEqual(self.sql("SELECT count(*) > 0 FROM t"), "t")
            sizes.append(size)
        self.assertLess(sizes[1] - sizes[0], 600_000)

    def cancel(self, pid):
        """Cancels this session's load in its middle, and then lets it go on: the cancel is handled when data comes again."""
        try:
            wait_until(lambda: self.sql(f"SELECT 1 FROM pg_stat_progress_copy WHERE pid = {pid} AND tuples_processed > {self.ROWS // 2}"))
            self.sql(f"SELECT pg_cancel_backend({pid})")
        finally:
            self.gate.touch()

    def test_gone(self):
        """After a load that succeeds, fails on its data or is cancelled, the context is as small as before."""
        with self.cluster.connect(stops=False) as session:
            session.run("SET pgsluice.copy = on; COPY t FROM PROGRAM 'echo 1,a' WITH (FORMAT csv, workers 0)")
            little = self.held(session)
            self.assertLess(little, 100_000)
            self.gate.touch()
            session.run(self.copy())
            self.assertEqual(session.run("SELECT rows, indexes -> 0 ->> 'way' FROM pgsluice.last_copy"), f"{2 * self.ROWS}|sorted")
            self.assertEqual((self.held(session), session.told), (little, []))
            session.run(self.copy("; echo x,bad"))
            self.assertIn("22P02", "".join(session.told))
            self.assertEqual(self.held(session), little)
            self.gate.unlink()
            session.told.clear()
            canceller = threading.Thread(target=self.cancel, args=(session.pid,))
            canceller.start()
            session.run(self.copy())
            canceller.join()
            self.assertIn("57014", "".join(session.told))
            self.assertEqual(self.held(session), little)


if __name__ == "__main__":
    unittest.main()
