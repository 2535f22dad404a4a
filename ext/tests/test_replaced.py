"""The library's file is replaced while a session has it loaded: its workers would load another one."""

import re
import shutil
import tempfile
import unittest
from pathlib import Path

from .cluster import EXT, Cluster, Held, Refused, library

REPLACED = "the library pgsluice has been replaced since this session loaded it"
ROWS = 200000


class Replaced(unittest.TestCase):
    """A server that finds the library in the test's own folder, and the extension's functions by its plain name."""

    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="pgsluice-lib-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.folder.chmod(0o755)
        cls.library = cls.folder / "pgsluice.so"
        shutil.copy(library("pgsluice"), cls.library)
        cls.cluster = Cluster([f"dynamic_library_path = '{cls.folder}:$libdir'"])
        cls.addClassCleanup(cls.cluster.remove)
        objects = (EXT / "sql" / "pgsluice--0.1.sql").read_text().replace("MODULE_PATHNAME", "pgsluice")
        cls.cluster.sql(re.sub(r"^\\echo.*$", "", objects, flags=re.M))

    def replace(self):
        """Puts another build of the library in its place."""
        content = self.library.read_bytes()
        number = re.search(rb"pgsluice build (\d+-\d+)\0", content)[1]
        self.library.unlink()
        self.library.write_bytes(content.replace(number, number.translate(bytes.maketrans(b"0123456789", b"1234567890"))))

    def test_workers_leave(self):
        """In the old session, COPY goes on without workers and records why, and CREATE INDEX fails; new sessions have workers."""
        path = self.cluster.file("input", b"".join(b"%d,\"[%d,%d)\"\n" % (i, i, i + 1) for i in range(ROWS)))
        copy = (f"SET pgsluice.copy = on; TRUNCATE t; COPY t FROM '{path}' WITH (FORMAT csv, workers 2);"
                "SELECT workers, coalesce(leader_reads_because, 'no'), count(*), sum(a) FROM pgsluice.last_copy, t GROUP BY 1, 2")
        loaded = f"{ROWS}|{ROWS * (ROWS - 1) // 2}"
        build = ("SET pgsluice.index_build = on; SET min_parallel_table_scan_size = 0; SET max_parallel_maintenance_workers = 1;"
                 "SET pgsluice.workers = 1;"
                 "DROP INDEX IF EXISTS t_a; CREATE INDEX t_a ON t (a)")
        # Workers that read text have no database; those that read ranges join the leader's session.
        for kind in ("text", "int4range"):
            held = Held(self.cluster)
            held.run(f"SET client_min_messages = warning; DROP TABLE IF EXISTS t; CREATE TABLE t (a int, b {kind})")
            self.assertEqual(held.run(copy), f"2|no|{loaded}")
            held.run(build)
            self.replace()
            self.assertEqual(held.run(copy), f"0|{REPLACED}|{loaded}")
            self.assertIn("pgsluice worker ends: " + REPLACED, self.cluster.tail())
            with self.assertRaises(Refused) as refused:
                held.run(build)
            self.assertIn(REPLACED, str(refused.exception))
            held.end()
            self.assertEqual(self.cluster.sql(f"{copy}; {build}"), f"2|no|{loaded}")

    def test_workers_of_indexes_leave(self):
        """In the old session, a COPY that starts workers only for its indexes builds all of them without workers; a new session has workers."""
        path = self.cluster.file("small", b"".join(b"%d,%d\n" % (i, i - ROWS) for i in reversed(range(ROWS // 2))))
        settings = "SET pgsluice.copy = on; SET pgsluice.workers = 1; SET max_parallel_maintenance_workers = 1; SET enable_seqscan = off"
        copy = (f"BEGIN; TRUNCATE u; COPY u FROM '{path}' WITH (FORMAT csv); COMMIT;"
                "SELECT workers, (SELECT count(*) FROM u WHERE a >= 0), (SELECT count(*) FROM u WHERE b <= 0) FROM pgsluice.last_index_build")
        held = Held(self.cluster)
        held.run(f"CREATE TABLE u (a int PRIMARY KEY, b int UNIQUE); {settings}")
        self.assertEqual(held.run(copy), f"1|{ROWS // 2}|{ROWS // 2}")
        self.replace()
        self.assertEqual(held.run(copy), f"0|{ROWS // 2}|{ROWS // 2}")
        self.assertIn("pgsluice worker ends: " + REPLACED, self.cluster.tail())
        held.end()
        self.assertEqual(self.cluster.sql(f"{settings}; {copy}"), f"1|{ROWS // 2}|{ROWS // 2}")


if __name__ == "__main__":
    unittest.main()
