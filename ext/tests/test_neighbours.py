"""Other libraries' hooks, loaded before and after; every way of loading pgsluice."""

import unittest

from . import cluster as clusters
from .cluster import Cluster, Refused

WATCH = "SELECT calls, rows FROM pg_stat_statements WHERE query LIKE 'COPY t %' ORDER BY 1, 2"


@unittest.skipUnless(clusters.has("pg_stat_statements"), "pg_stat_statements is not there")
class Neighbours(unittest.TestCase):
    """pg_stat_statements and auto_explain in either order."""

    def watched(self, shared, session, route):
        """Loads three times; gives what pg_stat_statements has counted."""
        server = Cluster([f"shared_preload_libraries = '{shared}'", f"session_preload_libraries = '{session}'",
                          "auto_explain.log_min_duration = 0"])
        self.addCleanup(server.remove)
        server.sql("CREATE EXTENSION pgsluice; CREATE EXTENSION pg_stat_statements; CREATE TABLE t (a int, b text)")
        path = server.file("rows.csv", b"".join(b"%d,x\n" % i for i in range(1000)))
        copy = f"COPY t FROM '{path}' WITH (FORMAT csv)"
        last = "SELECT route FROM pgsluice.last_copy"
        self.assertEqual(server.sql(f"SET pgsluice.copy = on; {copy}; {last}"), route)
        self.assertEqual(server.sql(f"SET pgsluice.copy = on; BEGIN; {copy}; SAVEPOINT s; {copy}; ROLLBACK TO s; COMMIT; {last}"), route)
        self.assertEqual(server.sql("SELECT count(*) FROM t"), "2000")
        with self.assertRaises(Refused):
            server.sql("SET pgsluice.copy = on; COPY t FROM STDIN", b"x\ty\n")
        return server.sql(WATCH)

    def test_pgsluice_first(self):
        """It is the innermost hook."""
        self.assertEqual(self.watched("pgsluice, pg_stat_statements, auto_explain", "", "insert"), "3|3000")

    def test_pgsluice_last(self):
        """Its work is done inside of the others' hooks."""
        self.assertEqual(self.watched("pg_stat_statements, auto_explain, pgsluice", "", "insert"), "3|3000")

    def test_per_session(self):
        """session_preload_libraries come after the shared ones."""
        self.assertEqual(self.watched("pg_stat_statements", "auto_explain, pgsluice", "insert"), "3|3000")

    def test_without_the_extension(self):
        """Then stock COPY does it; by hand, the function refuses."""
        server = Cluster(["shared_preload_libraries = 'pg_stat_statements'", "session_preload_libraries = ''"])
        self.addCleanup(server.remove)
        server.sql("CREATE TABLE t (a int, b text)")
        copy = "LOAD 'pgsluice'; SET pgsluice.copy = on; COPY t FROM '/dev/null' WITH (pgsluice 'require')"
        with self.assertRaises(Refused) as refused:
            server.sql(copy)
        self.assertIn("CREATE EXTENSION pgsluice is missing", str(refused.exception))
        server.sql("CREATE EXTENSION pgsluice;" + copy)
        with self.assertRaises(Refused) as refused:
            server.sql("SELECT pgsluice.inside()")
        self.assertIn("55000", str(refused.exception))


if __name__ == "__main__":
    unittest.main()
