"""Loads with workers: the same rows, the same errors."""

import functools
import os
import random
import signal
import subprocess
import threading
import unittest
from pathlib import Path

from .cluster import BIN, Cluster, OnCluster, endless, wait_until
from .differential import compare

TABLE = "CREATE TABLE t (id serial, a int, b text, c jsonb, d numeric DEFAULT 2.5)"
CSV = "COPY t (a, b, c) FROM {} WITH (FORMAT csv, workers 2)"
TEXT = "COPY t (a, b, c) FROM {} WITH (workers 2)"


@functools.cache
def csv(count, seed=1, eol="\n"):
    """Rows with quoted delimiters, quotes and line ends."""
    rng = random.Random(seed)
    out = []
    for i in range(count):
        kind = rng.randrange(8)
        text = "plain text " * rng.randrange(6)
        if kind == 0:
            text = '"' + f'a ""quoted"" one,{eol}over {eol}{eol}lines' * rng.randrange(1, 4) + '"'
        elif kind == 1:
            text = f'mid"dle, {i}"quotes'
        elif kind == 2:
            text = ""
        extra = '"{""k"": [1, 2]}"' if kind == 3 else ""
        out.append(f"{i},{text},{extra}{eol}")
    return "".join(out).encode()


@functools.cache
def text(count, seed=2):
    """Rows with escapes, also of line ends."""
    rng = random.Random(seed)
    pieces = ["word ", "\\t", "\\n", "\\\n", "\\\\", "\\x41", "\\101", "ž"]
    return "".join(f"{i}\t{''.join(rng.choices(pieces, k=rng.randrange(30)))}\t\\N\n" for i in range(count)).encode()


# In a PROGRAM: waits until its load has a worker, but not longer than about ten seconds. A load with the option workers starts them after its first MB.
ATTENDED = 'n=0; until grep -qs "[w]orker for PID $PPID" /proc/[0-9]*/cmdline || [ $n -ge 500 ]; do sleep 0.01; n=$((n + 1)); done'


def with_pauses(path, pause):
    """A PROGRAM for COPY from a file of over 1.5 MB, of which workers form a part: it waits for them, then sends more than a chunk, and in the second pause
    the leader waits for the next bytes, so it cannot form that chunk itself before a worker does."""
    return (f"PROGRAM 'head -c 1200000 {path}; {ATTENDED}; sleep {pause}; tail -c +1200001 {path} | head -c 300000; sleep {pause}; "
            f"tail -c +1500001 {path}'")


def held_back(first, gate, second, again=None):
    """A PROGRAM for COPY whose second part waits for a file. Until then `again`, or else the first part again, comes every second or so: workers leave
    after three without data."""
    return (f"PROGRAM 'n=0; cat {first}; while [ -e {first} ] && ! [ -e {gate} ]; do sleep 0.05; n=$((n + 1)); [ $((n % 20)) -gt 0 ] || cat {again or first}; done;"
            f" cat {second}'")


def workers(cluster):
    """The workers' process IDs, from /proc."""
    postmaster = int((cluster.data / "postmaster.pid").read_text().split()[0])
    children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
    found = []
    for pid in map(int, children):
        try:
            if b"pgsluice worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
        except OSError:
            pass
    return found


class Workers(OnCluster):
    """`workers n` in the statement starts them at once."""

    def same(self, data, copy=CSV, table=TABLE):
        """Loads by both, and asserts equal outcomes and that no worker is left; returns the error, or None."""
        refusal = compare(self, self.cluster, table, copy, data, ordered=False)
        self.assertTrue(wait_until(lambda: not workers(self.cluster)))
        return refusal

    def test_they_come(self):
        """last_copy shows how many workers there were: two, or none with max_parallel_workers = 0."""
        path = self.cluster.file("input", csv(40000))
        said = self.cluster.sql(
            f"DROP TABLE IF EXISTS t; {TABLE}; SET pgsluice.copy = on; {CSV.format(repr(str(path)))}; SELECT workers FROM pgsluice.last_copy")
        self.assertEqual(said, "2")
        said = self.cluster.sql(
            f"SET max_parallel_workers = 0; SET pgsluice.copy = on; {CSV.format(repr(str(path)))}; SELECT workers FROM pgsluice.last_copy")
        self.assertEqual(said, "0")

    def test_rows(self):
        """Data of many chunks, which are split only at the ends of records, loads as by stock COPY."""
        self.assertIsNone(self.same(csv(60000)))
        self.assertIsNone(self.same(csv(60000, eol="\r\n")))
        self.assertIsNone(self.same(csv(60000, eol="\r")))
        self.assertIsNone(self.same(csv(30000)[:-1]))
        self.assertIsNone(self.same(text(60000), TEXT))
        self.assertIsNone(self.same(text(30000) + b"\\.\n" + text(30000), TEXT))
        self.assertIsNone(self.same(csv(9000) + b'1,"' + b"wide\n" * 200000 + b'",\n' + csv(40000)))

    def test_checked_rows(self):
        """With CHECK, WHERE, unique keys and generated columns, rows or errors are stock COPY's."""
        self.assertIsNone(self.same(csv(40000), CSV + " WHERE a % 3 = 0",
                                    TABLE[:-1] + ", CHECK (a >= 0), UNIQUE (a), g int GENERATED ALWAYS AS (a + 1) STORED)"))
        self.assertIsNotNone(self.same(csv(40000), CSV, TABLE[:-1] + ", CHECK (a <> 35000))"))
        self.assertIsNotNone(self.same(csv(40000) + b"7,x,\n", CSV, TABLE[:-1] + ", UNIQUE (a))"))

    def test_records_longer_than_a_chunk(self):
        """A record longer than a chunk, and the rows after it, load in CSV and text format, in another encoding, too."""
        for length in (262_144, 300_000, 1_500_000):
            for data, copy in ((csv(40000) + b'7,"' + b"x\n" * (length // 2) + b'",\n' + csv(9000, seed=5), CSV),
                               (text(30000) + b"7\t" + b"y" * length + b"\t\\N\n" + text(9000, seed=6), TEXT)):
                self.assertIsNone(self.same(data, copy))
                self.assertIsNone(self.same(data, copy[:-1] + ", ENCODING 'LATIN2')"))

    def test_refusals(self):
        """An error far into the data is stock COPY's, with its line."""
        for bad in (b"x,y,\n", b"1,y\n", b"1,y,{\n", b"1,\xff,\n", b"1,y\rz,\n", b'1,"y,\n', b"1,nul\0,\n"):
            for rest in (b"", csv(20000)):
                self.assertIsNotNone(self.same(csv(30000) + bad + rest))

    def test_from_stdin(self):
        """A client's stream loads completely; if the client is killed in the middle, no rows and no workers are left."""
        self.cluster.sql(f"DROP TABLE IF EXISTS t; {TABLE}")
        copy = "SET pgsluice.copy = on; " + CSV.format("STDIN")
        self.cluster.sql(copy, stdin=csv(60000))
        self.assertEqual(self.cluster.sql("SELECT count(*), sum(a) FROM t"), "60000|1799970000")
        process = subprocess.Popen(self.cluster.command("-c", copy), stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)

        def send():
            process.stdin.write(csv(30000))
            process.stdin.flush()

        send()
        self.assertTrue(wait_until(lambda: workers(self.cluster), send))
        process.kill()
        process.wait()
        process.stdin.close()
        self.assertTrue(wait_until(lambda: self.cluster.sql(
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%COPY t%' AND pid <> pg_backend_pid()") == "0"))
        self.assertTrue(wait_until(lambda: not workers(self.cluster)))
        self.assertEqual(self.cluster.sql("SELECT count(*) FROM t"), "60000")

    def test_a_worker_is_terminated(self):
        """If a worker is terminated, the leader forms its chunk: no row is lost."""
        self.cluster.sql(f"DROP TABLE IF EXISTS t; {TABLE}")
        process = subprocess.Popen(self.cluster.command("-c", "SET pgsluice.copy = on; " + CSV.format("STDIN")),
                                   stdin=subprocess.PIPE)
        sent = []

        def send():
            process.stdin.write(csv(60000))
            process.stdin.flush()
            sent.append(60000)

        def terminate():
            """How many workers it has terminated."""
            ended = 0
            for pid in workers(self.cluster):
                try:
                    os.kill(pid, signal.SIGTERM)
                    ended += 1
                except ProcessLookupError:
                    pass
            return ended

        send()
        self.assertTrue(wait_until(lambda: workers(self.cluster), send))
        # They are terminated while more data comes.
        writer = threading.Thread(target=send)
        writer.start()
        ended = terminate()
        writer.join()
        self.assertTrue(ended or wait_until(terminate, send))
        # Only now does the data end, and with it the load that needs the workers.
        process.communicate()
        self.assertEqual(process.returncode, 0)
        self.assertEqual(self.cluster.sql("SELECT count(*), count(DISTINCT a) FROM t"), f"{sum(sent)}|60000")

    def test_no_shared_memory(self):
        """If memory for the workers cannot be reserved, the load goes on without them; a load that needs less has its worker."""
        server = Cluster()
        self.addCleanup(server.remove)
        server.sql("CREATE EXTENSION pgsluice")
        server.stop()
        # In units of 512 bytes: more than is written to any file, and less than the chunks of 16 workers need.
        server._run(["sh", "-c", f"ulimit -f {30 << 11}; exec '{BIN}/pg_ctl' -D '{server.data}' -l '{server.log}' -w start"])
        path = server.file("input", csv(20000))
        with server.connect() as session:
            session.run(f"{TABLE}; SET pgsluice.copy = on; SET max_parallel_workers = 16")
            for count, came in ((16, 0), (1, 1)):
                session.run(CSV.replace("workers 2", f"workers {count}").format(repr(str(path))))
                self.assertEqual(session.run("SELECT rows, workers FROM pgsluice.last_copy").strip(), f"20000|{came}")
            self.assertEqual(session.run("SELECT count(*), sum(a) FROM t").strip(), "40000|399980000")
            self.assertEqual(session.told, [])

    def test_cancelled(self):
        """A cancelled load leaves no workers and no rows."""
        self.cluster.sql(f"DROP TABLE IF EXISTS t; {TABLE}")
        copy = "SET pgsluice.copy = on; " + CSV.format(endless(self.cluster.file("input", csv(20000))))
        process = subprocess.Popen(self.cluster.command("-c", copy), stderr=subprocess.PIPE, text=True)
        self.assertTrue(wait_until(lambda: workers(self.cluster)))
        self.cluster.sql("SELECT pg_cancel_backend(pid) FROM pg_stat_progress_copy")
        self.assertIn("57014", process.communicate()[1])
        self.assertTrue(wait_until(lambda: not workers(self.cluster)))
        self.assertEqual(self.cluster.sql("SELECT count(*) FROM t"), "0")


if __name__ == "__main__":
    unittest.main()
