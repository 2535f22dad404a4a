"""Types that only the server reads, read by workers: the same rows, errors and messages."""

import os
import signal
import subprocess
import unittest

from .cluster import MAJOR, OnCluster, Refused, endless, has, wait_until
from .differential import compare
from .test_durability import check_heap
from .test_workers import ATTENDED, held_back, workers

TYPES = """
CREATE DOMAIN positive AS int CHECK (VALUE > 0 AND VALUE <> 13);
CREATE DOMAIN small AS positive CHECK (VALUE < 1000000);
CREATE DOMAIN email AS text CHECK (VALUE ~ '^[^@]+@[^@]+$' OR VALUE = 'none');
CREATE DOMAIN given AS text NOT NULL;
CREATE DOMAIN said AS text CHECK (VALUE IS NOT NULL);
CREATE DOMAIN filled AS int CHECK (coalesce(VALUE, 0) < 10000);
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TYPE pair AS (a small, b text, m mood[]);
CREATE TABLE base (a int, b text);
CREATE FUNCTION is_good(int) RETURNS boolean IMMUTABLE PARALLEL SAFE LANGUAGE plpgsql AS 'BEGIN RETURN $1 > 0; END';
CREATE DOMAIN good AS int CHECK (is_good(VALUE));
"""

TABLE = ("CREATE TABLE t (id serial, n int, p small, e email, c pair, x base, r int4range, m mood[], d daterange,"
         " k regtype, pt point, w tsvector, q numeric[], b text)")
COLUMNS = "n, p, e, c, x, r, m, d, k, pt, w, q, b"
COPY = f"COPY t ({COLUMNS}) FROM {{}} WITH (workers 2)"
# Workers have started when the data ends: the leader alone reads the first MB.
LATE = "PROGRAM $$head -c 1200000 {0}; sleep 0.1; tail -c +1200001 {0}$$ WITH (workers 2)"
TRIGGERS = "triggers or rules may run while rows are loaded"
# The view's columns that show who read values, and why.
SAID = "SELECT values_by_workers > 0, leader_reads_because FROM pgsluice.last_copy"


def row(i, **other):
    """One row in COPY's text format."""
    null = i % 11 == 3
    values = {
        "n": i, "p": "\\N" if null else i + 14, "e": "\\N" if i % 7 == 2 else f"u{i}@example.org",
        "c": f'({i + 14},"text {i}","{{sad,ok}}")' if i % 5 else '(,,)', "x": f"({i},b{i})", "r": f"[{i},{i + 9})",
        "m": "{ok,sad,NULL}", "d": "[2024-01-02,2024-03-04)", "k": "integer", "pt": f"({i},2.5)",
        "w": f"fat:1 rat{i}:2", "q": f"{{1.5,{i}e400}}", "b": "wide " * 900 if i % 500 == 7 else f"plain {i}",
    }
    values.update(other)
    return "\t".join(str(value) for value in values.values()) + "\n"


def rows(count):
    """Rows of all kinds."""
    return "".join(row(i) for i in range(count)).encode()


class Readers(OnCluster):
    """Workers in the leader's transaction."""

    prepared = TYPES

    def same(self, data, copy=COPY, table=TABLE, setup=""):
        """Loads by both, and asserts equal outcomes and that no worker is left; returns the error, or None."""
        refusal = compare(self, self.cluster, table, copy, data, setup, ordered=False)
        self.assertTrue(wait_until(lambda: not workers(self.cluster)))
        return refusal

    def read_by_workers(self, table, copy, data, before="", after="", first=""):
        """Repeats a load until workers have read some of it; returns its output and messages.

        With `first`, until the output begins with it, too.

        Each attempt gives workers twice the time once one is there: the second half of the data comes later.
        """
        half = data.index(b"\n", len(data) // 2) + 1
        paths = self.cluster.file("first", data[:half]), self.cluster.file("second", data[half:])
        for attempt in range(10):
            program = f"PROGRAM 'cat {paths[0]}; {ATTENDED}; sleep {0.1 * 2 ** attempt:.1f}; cat {paths[1]}'"
            out, err = self.cluster.session(
                f"SET client_min_messages = warning; DROP TABLE IF EXISTS t CASCADE; {table}; RESET client_min_messages;"
                f"SET pgsluice.copy = on; {before}\n{copy.format(program)};\n{after}\n{SAID};")
            if out.startswith(first) and out.splitlines()[-1] == "t|":
                return out, err
        self.fail(f"workers read nothing: {out} {err}")

    def why(self, table, copy, data, before=""):
        """Why the leader reads the values itself."""
        path = self.cluster.file("input", data)
        said = self.cluster.sql(f"DROP TABLE IF EXISTS t; {table}; SET pgsluice.copy = on; {before}"
                                f"{copy.format(repr(str(path)))}; {SAID}")
        self.assertTrue(said.startswith("f|"), said)
        return said[2:]

    def leader_reads(self, table, copy, data):
        """The same, if workers may have read some of them."""
        path = self.cluster.file("input", data)
        return self.cluster.sql(f"SET client_min_messages = warning; DROP TABLE IF EXISTS t; {table}; SET pgsluice.copy = on;"
                                f"{copy.format(repr(str(path)))}; SELECT leader_reads_because FROM pgsluice.last_copy")

    def test_rows(self):
        """In text, CSV and binary format, with a serial column, constraints, WHERE and partitions, rows are stock COPY's."""
        data = rows(6000)
        self.assertIsNone(self.same(data))
        self.assertIsNone(self.same(data, COPY + " WHERE n % 3 = 0", TABLE[:-1] +
                                    ", CHECK (n >= 0), UNIQUE (n), g int GENERATED ALWAYS AS (n + 1) STORED)"))
        self.assertIsNone(self.same(data, COPY, TABLE + " PARTITION BY HASH (n);"
                                    "CREATE TABLE t0 PARTITION OF t FOR VALUES WITH (MODULUS 2, REMAINDER 0);"
                                    "CREATE TABLE t1 PARTITION OF t FOR VALUES WITH (MODULUS 2, REMAINDER 1)"))
        self.cluster.sql(f"DROP TABLE IF EXISTS t CASCADE; {TABLE}; {COPY.format(repr(str(self.cluster.file('input', data)))).replace('workers 2', 'FORMAT text')}")
        for form in ("csv", "binary"):
            path = self.cluster.file("out", b"")
            path.chmod(0o666)
            self.cluster.sql(f"COPY t ({COLUMNS}) TO '{path}' WITH (FORMAT {form})")
            data = path.read_bytes()
            self.assertIsNone(self.same(data, COPY[:-1] + f", FORMAT {form})"))
            self.cluster.sql(f"DROP TABLE IF EXISTS t CASCADE; {TABLE}; COPY t ({COLUMNS}) FROM '{path}' WITH (FORMAT {form})")

    def test_workers_read(self):
        """last_copy shows that workers have read values, of citext and hstore, too; the loaded rows are complete."""
        out, _ = self.read_by_workers(TABLE, COPY, rows(16000), after="SELECT count(*), sum(n), sum(id) FROM t;")
        self.assertEqual(out.splitlines()[0], "16000|127992000|128008000")
        out, _ = self.read_by_workers(TABLE, COPY, rows(16000), "BEGIN ISOLATION LEVEL REPEATABLE READ;", "COMMIT; SELECT count(*) FROM t;")
        self.assertEqual(out.splitlines()[0], "16000")
        for module in ("citext", "hstore"):
            if has(module):
                self.cluster.sql(f"CREATE EXTENSION IF NOT EXISTS {module}")
                self.read_by_workers(f"CREATE TABLE t (a {module})", "COPY t FROM {} WITH (workers 2)", b"a=>1\n" * 500000)

    def test_pages(self):
        """Rows that workers have read go in by whole pages, and have stock COPY's bytes on disk."""
        # Enough for a worker's chunks, and no row that is too wide for a page.
        data = "".join(row(i, b=f"plain {i}") for i in range(12000)).encode()
        loads = ((TABLE, "", "", "append"),
                 (TABLE + " WITH (fillfactor = 60)", "", "", "append"),
                 (TABLE.replace("TABLE", "UNLOGGED TABLE"), "BEGIN; TRUNCATE t;", "COMMIT;", "fresh"))
        for table, before, after, route in loads:
            self.read_by_workers(table, COPY, data, before, after + "SELECT route FROM pgsluice.last_copy;", route)
            check_heap(self, self.cluster)
            ours = self.on_disk()
            self.cluster.sql(f"DROP TABLE t; {table}; {COPY.format(repr(str(self.cluster.file('input', data)))).replace('workers 2', 'FORMAT text')}")
            self.assertEqual(ours, self.on_disk())

    def on_disk(self):
        """Every row of t: the stored bytes by pageinspect, and the values by SQL."""
        stored = (
            "SELECT lp_len, t_xmax, t_infomask, t_infomask2, t_hoff, t_bits, t_data FROM generate_series(0,"
            " (pg_relation_size('t') / 8192 - 1)::int) n, heap_page_items(get_raw_page('t', n)) ORDER BY t_data;"
        ) if has("pageinspect") else ""
        if stored:
            self.cluster.sql("CREATE EXTENSION IF NOT EXISTS pageinspect")
        return self.cluster.sql(stored + "SELECT * FROM t ORDER BY id")

    def test_refusals(self):
        """The error is stock COPY's, wherever the row is that a worker read first."""
        for bad in ({"p": 13}, {"e": "nobody"}, {"c": "(1,x,{glad})"}, {"k": "nosuch"}, {"n": "x", "p": "y"}):
            with self.subTest(bad=bad):
                data = rows(9800) + row(7, **bad).encode() + row(8, p=-5).encode() + rows(900)
                self.assertIsNotNone(self.same(data, f"COPY t ({COLUMNS}) FROM {LATE}"))

    def test_null_in_domains(self):
        """A domain accepts or rejects NULL as with stock COPY."""
        for name, good in (("small", True), ("email", True), ("filled", True), ("given", False), ("said", False)):
            with self.subTest(domain=name):
                data = b"".join(b"%d@x\n" % i if name in ("email", "given", "said") else b"%d\n" % (i % 500 + 14) for i in range(9000))
                refusal = self.same(data + b"\\N\n" + data, "COPY t FROM {} WITH (workers 2)", f"CREATE TABLE t (v {name})")
                self.assertEqual(refusal is None, good)

    def test_what_the_transaction_has_made(self):
        """Types, settings and temporary tables that only the leader's transaction has are those of the workers, too."""
        data = "".join(f"{i}\tu{i}@example.org\t[01.02.2024,0{i % 3 + 2}.03.2024)\n" for i in range(1, 33000)).encode()
        table = ("CREATE TABLE IF NOT EXISTS t (); DROP TABLE t; DROP DOMAIN IF EXISTS count, mail; CREATE DOMAIN count AS int CHECK (VALUE < 32000);"
                 "CREATE DOMAIN mail AS text CHECK (VALUE <> 'nobody'); CREATE TABLE t (p count, e mail, d daterange)")
        free = "SAVEPOINT s; ALTER DOMAIN count DROP CONSTRAINT count_check;"
        narrow = "SAVEPOINT s; ALTER DOMAIN mail ADD CHECK (VALUE <> 'u31500@example.org');"
        for setup, refusal in (("SET datestyle = 'german, dmy';", True), ("BEGIN;" + free, False), ("BEGIN;" + free + "ROLLBACK TO s;", True),
                               ("BEGIN;" + free + "RELEASE s;" + narrow, True), ("BEGIN;" + free + "RELEASE s;" + narrow + "ROLLBACK TO s;", False),
                               ("BEGIN; SET LOCAL datestyle = 'iso, mdy';" + free, False)):
            with self.subTest(setup=setup):
                self.assertEqual(self.same(data, f"COPY t FROM {LATE}", table, setup) is not None, refusal)
        made = ("BEGIN; CREATE DOMAIN young AS int CHECK (VALUE > 0); CREATE TEMP TABLE fresh (a young, b text);"
                "CREATE TABLE t2 (y young, f fresh, m mood[]); ")
        out, _ = self.read_by_workers("DROP TABLE IF EXISTS t2 CASCADE", "COPY t2 FROM {} WITH (workers 2)",
                                      b"1\t(2,x)\t{ok}\n" * 200000, made, "SELECT count(*), sum(y), sum((f).a) FROM t2; ROLLBACK;")
        self.assertEqual(out.splitlines()[0], "200000|200000|400000")

    def test_labels_of_this_transaction(self):
        """An enum label that this transaction may not use yet is an error, also within an array."""
        data = b"{ok}\n" * 250000 + b"{ok,young}\n"
        refusal = self.same(data, f"COPY t FROM {LATE}", "CREATE TABLE t (m mood[])", "BEGIN; ALTER TYPE mood ADD VALUE 'young';")
        self.assertIn("55P04", refusal)

    def test_types_of_names(self):
        """Names in values are looked up along the leader's search_path."""
        self.cluster.sql("CREATE SCHEMA away; CREATE TABLE away.hidden ()")
        data = b"hidden\n" * 180000
        table, copy = "CREATE TABLE public.t (c regclass)", f"COPY public.t FROM {LATE}"
        self.assertIsNotNone(self.same(data, copy, table))
        self.assertIsNone(self.same(data, copy, table, "SET search_path = public, away;"))
        self.assertIsNone(self.same(data, copy, table, "CREATE TEMP TABLE hidden ();"))

    def test_messages(self):
        """A notice of an input function reaches the client as often as with stock COPY, whatever levels of messages are set."""
        data = (b"fat & rat\n" * 10000 + b"\n") * 30
        for level in ("", "SET client_min_messages = log;", "SET log_min_messages = log;"):
            _, said = self.read_by_workers("CREATE TABLE t (q tsquery)", "COPY t FROM {} WITH (workers 2)", data, level)
            self.assertEqual(said.count("NOTICE:"), 30, said)

    def test_rejects(self):
        """With rejects_to, a value that is rejected does not end the worker, and each bad record is kept."""
        data = "".join(row(i, p=-1) if i % 100 == 50 else row(i) for i in range(16000)).encode()
        copy = COPY[:-1] + ", rejects_to 'bad')"
        out, _ = self.read_by_workers(TABLE, copy, data, "CREATE TABLE IF NOT EXISTS bad (LIKE pgsluice.reject); TRUNCATE bad;",
                                      "SELECT count(*) FROM t; SELECT count(*), min(line), max(line), min(sqlstate), min(column_name) FROM bad;")
        self.assertEqual(out.splitlines()[:2], ["15840", "160|51|15951|23514|p"])

    def test_the_leader_reads(self):
        """The leader reads values if an input function is not parallel safe or not in C, or if the transaction is serializable; last_copy gives the reason."""
        data = b"1\n" * 60000
        copy = "COPY t FROM {} WITH (workers 2)"
        self.assertIn("not parallel safe or not in C", self.why("CREATE TABLE t (g good)", copy, data))
        self.assertIn("not parallel safe or not in C", self.why("CREATE TABLE t (g good[])", copy, b"{1}\n" * 60000))
        self.assertIn("serializable", self.why("CREATE TABLE t (p positive)", copy, data, "BEGIN ISOLATION LEVEL SERIALIZABLE;"))
        self.assertEqual("", self.why("CREATE TABLE t (p int, m mood)", copy, b"1\tok\n" * 60000))

    def test_triggers_while_rows_are_loaded(self):
        """The leader reads the values if triggers may run while rows are loaded. So a trigger may change a table of its transaction that workers would look at."""
        widen = ("CREATE OR REPLACE FUNCTION widen() RETURNS trigger LANGUAGE plpgsql AS"
                 " $$ BEGIN EXECUTE format('ALTER TABLE w ADD c%s int', NEW.line); RETURN NULL; END $$;")
        data = "".join(("nosuch" if i % 500 == 499 else "w") + f",{'x' * 80}\n" for i in range(60000)).encode()
        kept = "DROP TABLE IF EXISTS kept; CREATE TABLE kept (LIKE pgsluice.reject);"
        self.assertEqual(TRIGGERS, self.why(
            f"CREATE TABLE t (r regclass, b text); {kept} {widen} CREATE TRIGGER widen AFTER INSERT ON kept FOR EACH ROW EXECUTE FUNCTION widen()",
            "COPY t FROM {} WITH (FORMAT csv, workers 2, rejects_to 'kept', max_rejects 'none')", data, "BEGIN; CREATE TABLE w (a int);"))

        plain = "COPY t (p) FROM {} WITH (workers 2)"
        rejects = "COPY t (p) FROM {} WITH (workers 2, rejects_to 'kept')"
        nothing = "CREATE OR REPLACE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
        after = "CREATE TRIGGER nothing AFTER INSERT ON {} FOR EACH ROW EXECUTE FUNCTION nothing()"
        numbers = b"".join(b"%d\n" % i for i in range(20, 60000))
        parts = "CREATE TABLE t (p positive, n int DEFAULT 1) PARTITION BY LIST (n); CREATE TABLE t1 PARTITION OF t FOR VALUES IN (1);"
        for table, on in (("CREATE TABLE t (p positive);", "t"), (parts, "t1")):
            self.assertEqual(TRIGGERS, self.why(f"{kept} {nothing} {table} {after.format(on)}", rejects, numbers))
            self.assertEqual("", self.leader_reads(f"{table} {after.format(on)}", plain, numbers))
        self.assertEqual("", self.leader_reads(f"{kept} DROP TABLE IF EXISTS parent; CREATE TABLE parent (a int PRIMARY KEY);"
                                               "INSERT INTO parent SELECT generate_series(20, 60000);"
                                               "CREATE TABLE t (p positive REFERENCES parent)", rejects, numbers))
        self.cluster.sql("DROP TABLE t")
        lost = "DROP TABLE IF EXISTS lost; CREATE TABLE lost (LIKE pgsluice.duplicate); CREATE TABLE t (p positive PRIMARY KEY)"
        skip = "COPY t FROM {} WITH (workers 2, on_duplicate 'skip', duplicates_to 'lost')"
        self.assertEqual("", self.leader_reads(lost, skip, numbers))
        self.assertEqual(TRIGGERS, self.why(f"{lost}; {after.format('lost')}", skip, numbers))

    def test_a_partition_gets_a_trigger(self):
        """If a partition gets a trigger during the load, before its first row, workers end before the trigger runs, and all rows are loaded."""
        first = self.cluster.file("first", f"pg_class,1,{'x' * 80}\n".encode() * 30000)
        second = self.cluster.file("second", b"pg_class,2,x\n" * 1000)
        gate = self.cluster.home / "gate"
        runs = ("CREATE OR REPLACE FUNCTION makes() RETURNS trigger LANGUAGE plpgsql AS"
                " $$ BEGIN EXECUTE 'CREATE TABLE IF NOT EXISTS made ()'; RETURN NEW; END $$;"
                "CREATE TRIGGER makes {} INSERT ON t2 FOR EACH ROW EXECUTE FUNCTION makes()")
        for when, option in (("BEFORE", ""), ("AFTER", ", rejects_to 'kept'")):
            with self.subTest(when=when):
                gate.unlink(missing_ok=True)
                self.cluster.sql("SET client_min_messages = warning; DROP TABLE IF EXISTS t, kept, made; CREATE TABLE kept (LIKE pgsluice.reject);"
                                 "CREATE TABLE t (r regclass, n int, b text) PARTITION BY LIST (n);"
                                 "CREATE TABLE t1 PARTITION OF t FOR VALUES IN (1); CREATE TABLE t2 PARTITION OF t FOR VALUES IN (2)")
                with subprocess.Popen(self.cluster.command(
                        "-c", "SET client_min_messages = warning; SET pgsluice.copy = on;"
                        f"COPY t FROM {held_back(first, gate, second)}"
                        f" WITH (FORMAT csv, workers 2{option}); SELECT leader_reads_because, rows - 1000 FROM pgsluice.last_copy"),
                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
                    try:
                        self.assertTrue(wait_until(lambda: workers(self.cluster)))
                        self.cluster.sql(runs.format(when))
                    finally:
                        gate.touch()
                    said, told = process.communicate()
                because, rows = said.strip().split("|")
                self.assertEqual((because, int(rows) % 30000, told), (TRIGGERS, 0, ""))
                self.assertEqual(self.cluster.sql("SELECT n, count(*), count(r) FROM t GROUP BY n ORDER BY n; SELECT 'made'::regclass"),
                                 f"1|{rows}|{rows}\n2|1000|1000\nmade")
                self.assertEqual(workers(self.cluster), [])

    def load(self, source):
        """Starts a load."""
        self.cluster.sql(f"DROP TABLE IF EXISTS t; {TABLE}")
        return subprocess.Popen(self.cluster.command("-c", f"SET pgsluice.copy = on; {COPY.format(source)}"), stderr=subprocess.PIPE)

    def test_users(self):
        """Workers run as the leader's user, even if PUBLIC may not connect to the database."""
        self.cluster.sql(f"DROP TABLE IF EXISTS t; {TABLE}; CREATE ROLE loader LOGIN; GRANT pg_execute_server_program TO loader;"
                         "GRANT INSERT ON t TO loader; GRANT USAGE ON SEQUENCE t_id_seq TO loader;"
                         "REVOKE CONNECT ON DATABASE postgres FROM PUBLIC; GRANT CONNECT ON DATABASE postgres TO loader")
        self.addCleanup(self.cluster.sql, "GRANT CONNECT ON DATABASE postgres TO PUBLIC; DROP OWNED BY loader; DROP ROLE loader")
        copy = f"SET pgsluice.copy = on; {COPY.format(endless(self.cluster.file('input', rows(6000))))}"
        process = subprocess.Popen(self.cluster.command("-c", copy, user="loader"), stderr=subprocess.DEVNULL)
        users = "SELECT DISTINCT usename FROM pg_stat_activity WHERE backend_type = 'pgsluice worker'"
        they_came = wait_until(lambda: self.cluster.sql(users) == "loader")
        self.cluster.sql("SELECT pg_cancel_backend(pid) FROM pg_stat_progress_copy")
        process.wait()
        self.assertTrue(they_came, self.cluster.tail())
        self.assertTrue(wait_until(lambda: not workers(self.cluster)))

    def test_workers_end(self):
        """If workers are terminated or cancelled, the leader reads their rows: none is lost."""
        half, go = self.cluster.file("input", rows(6000) * 4), self.cluster.home / "go"
        # The second half of the data waits until the first worker has been ended.
        process = self.load(held_back(half, go, half))
        self.assertTrue(wait_until(lambda: workers(self.cluster)))
        ended = 0
        while process.poll() is None:
            if ended:
                go.touch()
            for pid in workers(self.cluster):
                try:
                    os.kill(pid, signal.SIGTERM if ended % 2 else signal.SIGINT)
                    ended += 1
                except ProcessLookupError:
                    pass
        self.assertEqual(process.wait(), 0, process.stderr.read())
        process.stderr.close()
        self.assertGreater(ended, 0)
        parts = int(self.cluster.sql("SELECT count(*) FROM t")) // 24000
        self.assertGreaterEqual(parts, 2)
        self.assertEqual(self.cluster.sql("SELECT count(*), sum(n) FROM t"), f"{parts * 24000}|{parts * 71988000}")

    def test_the_leader_ends(self):
        """If the leader is cancelled, is terminated or times out, no worker and no row is left."""
        for how in ("pg_cancel_backend", "pg_terminate_backend"):
            process = self.load(endless(self.cluster.file("input", rows(6000))))
            self.assertTrue(wait_until(lambda: workers(self.cluster)))
            self.cluster.sql(f"SELECT {how}(pid) FROM pg_stat_activity WHERE query LIKE '%COPY t (%' AND pid <> pg_backend_pid()"
                             " AND backend_type = 'client backend'")
            self.assertNotEqual(process.wait(), 0)
            process.stderr.close()
            self.assertTrue(wait_until(lambda: not workers(self.cluster)))
            self.assertEqual(self.cluster.sql("SELECT count(*) FROM t"), "0")
        self.assertIn("57014", self.refusal_in_time())

    def refusal_in_time(self):
        """The error of a load with too short a statement_timeout; its workers end first."""
        source = endless(self.cluster.file("input", rows(6000)))
        with self.assertRaises(Refused) as refused:
            self.cluster.sql(f"SET statement_timeout = 60; SET pgsluice.copy = on; {COPY.format(source)}")
        self.assertFalse(workers(self.cluster), "they go before the statement ends")
        return str(refused.exception)

    def test_a_worker_waits_for_a_lock(self):
        """A worker that waits for a lock does so for the leader: cancelling the leader ends both."""
        self.cluster.sql("DROP TABLE IF EXISTS t; CREATE TABLE t (x base)")
        path = self.cluster.file("input", b"(1,x)\n" * 100000)
        waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND backend_type = 'pgsluice worker'"
        with (subprocess.Popen(self.cluster.command("-f", "-"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as locker,
              subprocess.Popen(self.cluster.command("-f", "-"), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True) as leader):
            # The leader has the type in its cache, and needs no lock for it.
            leader.stdin.write("SELECT pg_backend_pid(), '(1,x)'::base;\n")
            leader.stdin.flush()
            pid = leader.stdout.readline().split("|")[0]
            locker.stdin.write("BEGIN; LOCK TABLE base; SELECT 'locked';\n")
            locker.stdin.flush()
            self.assertEqual(locker.stdout.readline(), "locked\n")
            leader.stdin.write(f"SET pgsluice.copy = on; COPY t FROM {endless(path)} WITH (workers 1);\n")
            leader.stdin.close()
            self.assertTrue(wait_until(lambda: self.cluster.sql(waiting)))
            self.cluster.sql(f"SELECT pg_cancel_backend({pid})")
            self.assertIn("57014", leader.stderr.read())
            self.assertTrue(wait_until(lambda: not workers(self.cluster)))
            locker.stdin.close()


if __name__ == "__main__":
    unittest.main()
