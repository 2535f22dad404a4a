"""A panic or a failed allocation in the core is an ERROR in a live backend, which goes on.

The library is `make faulty.so`, installed in its own folder: the same C code over a core that fails where the data
requests it.
"""

import unittest

from .cluster import Cluster, wait_until
from .test_workers import workers

PANIC = "XX000: pgsluice: internal error in the core"
MEMORY = "53200: out of memory"
GOOD = b"1,one,\\x01\n2,two,\\x02\n"


def rows(count, fault):
    """Rows that make the core allocate for each value of the last column; the row in the middle requests the fault."""
    lines = [b"%d,%s,\\x%08x\n" % (n, b"plain text" * 4, n) for n in range(count)]
    lines[count // 2:count // 2] = [b"0,fault: %s,\\x00\n" % fault]
    return b"".join(lines)


class CoreFailures(unittest.TestCase):
    """One server that loads the faulty library. The extension's SQL objects are not there, since they name the other library."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(["dynamic_library_path = '$libdir/faulty:$libdir'"])
        cls.addClassCleanup(cls.cluster.remove)
        cls.cluster.sql("CREATE TABLE t (id int, a text, b bytea)")
        cls.good = cls.cluster.file("good", GOOD)

    def refused(self, copy, error):
        """The COPY fails with this error; the same backend then loads a good file, and only its rows are there."""
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
        """A fault in a small COPY, in one of many pages, or in chunks that workers form: one error, no rows, and the backend goes on."""
        for fault, error in ((b"panic", PANIC), (b"memory", MEMORY)):
            for count, options in ((10, ", workers 0"), (50000, ", workers 0"), (50000, ", workers 2")):
                with self.subTest(fault=fault, count=count, options=options):
                    path = self.cluster.file("rows", rows(count, fault))
                    self.refused(f"COPY t FROM '{path}' WITH (FORMAT csv, pgsluice 'require'{options})", error)

    def test_plan(self):
        """A fault while the plan is made, before the first row: one out-of-memory error, no rows, and the backend goes on."""
        path = self.cluster.file("rows", GOOD * 100)
        for fault in ("panic", "memory"):
            with self.subTest(fault=fault):
                self.refused(f"COPY t FROM '{path}' WITH (FORMAT csv, pgsluice 'require', NULL 'fault: {fault}')", MEMORY)


if __name__ == "__main__":
    unittest.main()
