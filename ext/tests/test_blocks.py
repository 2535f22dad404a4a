"""Blocks added at the end of a relation: many with one write, and through any layer between the server and its files."""

import re
import subprocess
import unittest
from pathlib import Path

from .cluster import MAJOR, Cluster, as_user
from .differential import compare
from .test_durability import check_heap
from .test_routes import AGAIN, CSV, TABLE, UNLOGGED, csv

ROWS = 200_000


# The hooks that ptrack's patch adds to the server.
HOOKS = "void *mdextend_hook, *mdwrite_hook;"
# A file system that cannot reserve space.
UNRESERVED = """
#include <errno.h>
int fallocate(int fd, int mode, long at, long len) { errno = EOPNOTSUPP; return -1; }
int fallocate64(int fd, int mode, long at, long len) { errno = EOPNOTSUPP; return -1; }
"""


def layer(test, source, settings=()):
    """A server with a library that is loaded before the C library (LD_PRELOAD)."""
    server = Cluster(settings)
    test.addCleanup(server.remove)
    server.stop()
    made = server.home / "layer.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Werror", "-x", "c", "-o", made, "-", "-ldl"], input=source, text=True, check=True)
    server.environment = [f"LD_PRELOAD={made}"]
    server.start()
    server.sql("CREATE EXTENSION pgsluice")
    return server


def writes(server, live=False):
    """The route of one load, its write system calls, and the table's blocks: a fresh load of an unlogged table, or a live one."""
    path = server.file("input", csv(ROWS // 4 if live else ROWS))
    session = subprocess.Popen(server.command("-At"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def ask(sql):
        session.stdin.write(sql + "\n")
        return session.stdout.readline().strip()

    pid = ask(f"SET pgsluice.copy = on; SET pgsluice.workers = 0; {TABLE if live else f'{UNLOGGED}; BEGIN; TRUNCATE t'}; SELECT pg_backend_pid();")

    def count():
        # The servers' user may read this of its own processes, and root of all.
        told = subprocess.run(as_user(["cat", f"/proc/{pid}/io"]), capture_output=True, text=True, check=True).stdout
        return int(re.search(r"syscw: (\d+)", told).group(1))

    before = count()
    copy = CSV.format(f"'{path}'")
    route, blocks = ask(f"{copy}; SELECT route, pg_relation_size('t') / 8192 FROM pgsluice.last_copy;").split("|")
    done = count() - before
    session.communicate("" if live else "COMMIT;\n")
    return route, done, int(blocks)


class Blocks(unittest.TestCase):
    """Loads by the fresh route."""

    def test_many_at_once(self):
        """A fresh load writes many pages with one system call: fewer than one call for four blocks."""
        server = Cluster()
        self.addCleanup(server.remove)
        server.sql("CREATE EXTENSION pgsluice")
        route, done, blocks = writes(server)
        self.assertEqual(route, "fresh")
        self.assertGreater(blocks, 1000)
        self.assertLess(done, blocks / 4)

    @unittest.skipUnless(MAJOR < 17, "from 17 on the extension passes all of them to the storage manager at once")
    def test_blocks_are_noted(self):
        """On a server that tracks written blocks (it has ptrack's hooks), each block is written separately."""
        route, done, blocks = writes(layer(self, HOOKS))
        self.assertEqual(route, "fresh")
        self.assertGreaterEqual(done, blocks)

    def test_encrypted(self):
        """If a layer below the server encrypts files, fresh pages pass through it: the file contains the encrypted text and no plain text."""
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


@unittest.skipUnless(MAJOR == 15, "from 16 on the server itself adds many blocks at once")
class NewBlocks(unittest.TestCase):
    """Live loads, which add many blocks at once."""

    def server(self, source=None):
        """A server whose buffers hold all pages of the table, so that a load writes only zeros."""
        settings = ["shared_buffers = 128MB"]
        server = layer(self, source, settings) if source else Cluster(settings)
        self.addCleanup(server.remove)
        if not source:
            server.sql("CREATE EXTENSION pgsluice")
        return server

    def test_many_at_once(self):
        """A live load adds many blocks with one write of zeros: fewer than one write for two blocks."""
        route, done, blocks = writes(self.server(), live=True)
        self.assertEqual(route, "append")
        self.assertGreater(blocks, 500)
        self.assertLess(done, blocks / 2)

    def test_one_by_one(self):
        """Each block is written separately if the server tracks written blocks, or if the file system cannot reserve space."""
        for source in (HOOKS, UNRESERVED):
            server = self.server(source)
            route, done, blocks = writes(server, live=True)
            self.assertEqual(route, "append")
            self.assertGreaterEqual(done, blocks)
            check_heap(self, server)

    def test_encrypted(self):
        """If a layer below the server encrypts files, no added block is left as plain zeros in the file; after a crash all blocks can be read."""
        server = self.server(Path(__file__).with_name("file_layer.c").read_text())
        folder = server.home / "encrypted"
        subprocess.run(as_user(["mkdir", folder]), check=True)
        server.sql(f"CREATE TABLESPACE hidden LOCATION '{folder}'; {TABLE} TABLESPACE hidden; CHECKPOINT")
        copy = CSV.format(f"'{server.file('input', csv(ROWS // 4))}'")
        self.assertEqual(server.sql(f"SET pgsluice.copy = on; BEGIN; {copy}; SELECT route FROM pgsluice.last_copy; ROLLBACK"), "append")
        file = server.data / server.sql("SELECT pg_relation_filepath('t')").strip()
        server.stop("immediate")
        there = subprocess.run(as_user(["cat", file]), capture_output=True, check=True).stdout
        self.assertGreater(len(there), 100 * 8192)
        self.assertFalse(any(there[at:at + 8192] == bytes(8192) for at in range(0, len(there), 8192)))
        server.start()
        self.assertEqual(server.sql("VACUUM t; SELECT count(*) FROM t"), "0")
        server.sql(f"SET pgsluice.copy = on; {copy}")
        server.stop()
        server.start()
        self.assertEqual(server.sql("SELECT count(*) FROM t"), str(ROWS // 4))
        check_heap(self, server)
