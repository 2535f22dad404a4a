"""Pages behind a relation's end: many with one write, and through whatever lies between the server and its files."""

import re
import subprocess
import unittest
from pathlib import Path

from .cluster import MAJOR, Cluster, as_user
from .differential import compare
from .test_durability import check_heap
from .test_routes import AGAIN, CSV, UNLOGGED, csv

ROWS = 200_000


# What ptrack's patch of the server adds.
HOOKS = "void *mdextend_hook, *mdwrite_hook;"


def layer(test, source):
    """A server with a library under it that is loaded before the C library."""
    server = Cluster()
    test.addCleanup(server.remove)
    server.stop()
    made = server.home / "layer.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Werror", "-x", "c", "-o", made, "-", "-ldl"], input=source, text=True, check=True)
    server.environment = [f"LD_PRELOAD={made}"]
    server.start()
    server.sql("CREATE EXTENSION pgsluice")
    return server


def writes(server):
    """Calls of the system by which one fresh load of an unlogged table has written, and the table's pages."""
    path = server.file("input", csv(ROWS))
    session = subprocess.Popen(server.command("-At"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def ask(sql):
        session.stdin.write(sql + "\n")
        return session.stdout.readline().strip()

    pid = ask(f"SET pgsluice.copy = on; SET pgsluice.workers = 0; {UNLOGGED}; BEGIN; TRUNCATE t; SELECT pg_backend_pid();")

    def count():
        # The servers' user may look at its own processes, and root at all.
        told = subprocess.run(as_user(["cat", f"/proc/{pid}/io"]), capture_output=True, text=True, check=True).stdout
        return int(re.search(r"syscw: (\d+)", told).group(1))

    before = count()
    copy = CSV.format(f"'{path}'")
    route, blocks = ask(f"{copy}; SELECT route, pg_relation_size('t') / 8192 FROM pgsluice.last_copy;").split("|")
    done = count() - before
    session.communicate("COMMIT;\n")
    return route, done, int(blocks)


class Blocks(unittest.TestCase):
    """Fresh loads."""

    def test_many_at_once(self):
        """One write takes many pages."""
        server = Cluster()
        self.addCleanup(server.remove)
        server.sql("CREATE EXTENSION pgsluice")
        route, done, blocks = writes(server)
        self.assertEqual(route, "fresh")
        self.assertGreater(blocks, 1000)
        self.assertLess(done, blocks / 4)

    @unittest.skipUnless(MAJOR < 17, "from 17 on the storage manager writes all of them, and is told")
    def test_blocks_are_noted(self):
        """Where the server notes which blocks are written, it writes each."""
        route, done, blocks = writes(layer(self, HOOKS))
        self.assertEqual(route, "fresh")
        self.assertGreaterEqual(done, blocks)

    def test_encrypted(self):
        """Where files hold something else than pages, that is what is written."""
        server = layer(self, Path(__file__).with_name("file_layer.c").read_text())
        folder = server.home / "encrypted"
        subprocess.run(as_user(["mkdir", folder]), check=True)
        server.sql(f"CREATE TABLESPACE hidden LOCATION '{folder}'")
        table = UNLOGGED.replace("a int", "a int PRIMARY KEY USING INDEX TABLESPACE hidden") + " TABLESPACE hidden"
        text = b"text of row"
        for workers in (0, 2):
            compare(self, server, table, CSV, csv(ROWS // 4), f"SET pgsluice.workers = {workers}; {AGAIN}", "fresh", False)
            check_heap(self, server)
            server.sql("CHECKPOINT")
            size = int(server.sql("SELECT pg_relation_size('t')"))
            file = server.data / server.sql("SELECT pg_relation_filepath('t')").strip()
            there = subprocess.run(as_user(["cat", file]), capture_output=True, check=True).stdout
            self.assertEqual(len(there), size)
            self.assertNotIn(text, there)
            self.assertIn(bytes(byte ^ 0x5A for byte in text), there)
