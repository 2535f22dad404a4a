"""A panic of the core, and memory that is not there, in a live backend: an ERROR, and the backend lives on.

The library is `make faulty.so`, installed in a folder of its own: the same C, over a core that fails where
the data asks for it.
"""

import unittest

from .cluster import Cluster, wait_until
from .test_workers import workers

PANIC = "XX000: pgsluice: internal error in the core"
MEMORY = "53200: out of memory"
GOOD = b"1,one,\\x01\n2,two,\\x02\n"


def rows(count, fault):
    """Rows that make the core allocate for each value of the last column; the fault is asked for in mid-way."""
    lines = [b"%d,%s,\\x%08x\n" % (n, b"plain text" * 4, n) for n in range(count)]
    lines[count // 2:count // 2] = [b"0,fault: %s,\\x00\n" % fault]
    return b"".join(lines)


class CoreFailures(unittest.TestCase):
    """One server that loads the faulty library; the extension's SQL is not there, since it names the other one."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(["dynamic_library_path = '$libdir/faulty:$libdir'"])
        cls.addClassCleanup(cls.cluster.remove)
        cls.cluster.sql("CREATE TABLE t (id int, a text, b bytea)")
        cls.good = cls.cluster.file("good", GOOD)

    def refused(self, copy, error):
        """The COPY fails with this error; the same backend then loads a good file, and only that is there."""
        began = self.cluster.sql("SELECT pg_postmaster_start_time()")
        said, errors = self.cluster.session(
            f"TRUNCATE t; SET pgsluice.copy = on; SELECT pg_backend_pid(); {copy}; SELECT pg_backend_pid(), count(*) FROM t;"
            f"COPY t FROM '{self.good}' WITH (FORMAT csv, pgsluice 'require'); SELECT pg_backend_pid(), count(*) FROM t")
        self.assertIn(error, errors)
        self.assertEqual(errors.count("ERROR:"), 1, errors)
        pid = said.split("\n")[0]
        self.assertEqual(said.split("\n"), [pid, f"{pid}|0", f"{pid}|2"])
        self.assertEqual(self.cluster.sql("SELECT pg_postmaster_start_time()"), began)
        self.assertTrue(wait_until(lambda: not workers(self.cluster)))

    def test_rows(self):
        """In a small COPY, in one of many pages, and in chunks that workers form too."""
        for fault, error in ((b"panic", PANIC), (b"memory", MEMORY)):
            for count, options in ((10, ", workers 0"), (50000, ", workers 0"), (50000, ", workers 2")):
                with self.subTest(fault=fault, count=count, options=options):
                    path = self.cluster.file("rows", rows(count, fault))
                    self.refused(f"COPY t FROM '{path}' WITH (FORMAT csv, pgsluice 'require'{options})", error)

    def test_plan(self):
        """Before there is a row: the plan cannot be made."""
        path = self.cluster.file("rows", GOOD * 100)
        for fault in ("panic", "memory"):
            with self.subTest(fault=fault):
                self.refused(f"COPY t FROM '{path}' WITH (FORMAT csv, pgsluice 'require', NULL 'fault: {fault}')", MEMORY)


if __name__ == "__main__":
    unittest.main()
