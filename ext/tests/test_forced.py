"""pgsluice.debug_force_routes: a few rows take the paths that only many rows take otherwise."""

import unittest

from .cluster import OnCluster, Refused, wait_until
from .differential import compare, outcome

CSV = "COPY t FROM {} WITH (FORMAT csv)"
TABLE = "CREATE TABLE t (a int, b text)"
ROWS = b"3,c\n1,a\n2,b\n"


class Forced(OnCluster):
    """Every size threshold that selects a path is zero."""

    def test_three_rows(self):
        """Three rows are written as whole pages, in live and in private tables; without the setting, stock COPY's loop inserts them."""
        self.assertEqual(outcome(self.cluster, TABLE, CSV, ROWS)[3], "insert")
        for table, setup, route in ((TABLE, "", "append"), (TABLE.replace("TABLE", "UNLOGGED TABLE"), "BEGIN; TRUNCATE t;", "fresh")):
            for force in ("on", "workers"):
                with self.subTest(table=table, force=force):
                    setup_forced = f"SET pgsluice.debug_force_routes = {force}; SET pgsluice.workers = 1; {setup}"
                    stock = outcome(self.cluster, table, CSV, ROWS, stock=True)
                    self.assertIsNone(compare(self, self.cluster, table, CSV, ROWS, setup_forced, route, stock=stock))

    def test_end_of_data_marker(self):
        """Rows before an end-of-data marker are written as whole pages, too, and data after the marker is ignored."""
        copy, rows = "COPY t FROM {}", b"3\tc\n1\ta\n2\tb\n\\.\n"
        stock = outcome(self.cluster, TABLE, copy, rows, stock=True)
        for force in ("on", "workers"):
            for more in (b"", b"9\tz\n"):
                with self.subTest(force=force, more=more):
                    forced = f"SET pgsluice.debug_force_routes = {force}; SET pgsluice.workers = 1;"
                    self.assertIsNone(compare(self, self.cluster, TABLE, copy, rows + more, forced, "append",
                                              stock=None if more else stock))

    def test_workers_form_the_rows(self):
        """With `workers`, 300 lines are several chunks, and workers form all rows but the first."""
        path = self.cluster.file("lines", b"".join(b"%d,(%d)\n" % (i, i) for i in range(300)))
        self.cluster.sql("DROP TABLE IF EXISTS t; DROP TYPE IF EXISTS one; CREATE TYPE one AS (x int); CREATE TABLE t (a int, b one)")
        load = (f"TRUNCATE t; SET pgsluice.copy = on; SET pgsluice.debug_force_routes = workers; SET pgsluice.workers = 1; COPY t FROM '{path}' WITH (FORMAT csv);"
                "SELECT rows, workers, values_by_server, values_by_workers FROM pgsluice.last_copy; SELECT count(*), sum(a), sum((b).x) FROM t")
        # The leader waits for its worker, but not longer than a second (FORCED_WAIT). The rows are always the same.
        said = []
        self.assertTrue(wait_until(lambda: said.append(self.cluster.sql(load)) or said[-1].startswith("300|1|1|299\n")), said)
        for one in said:
            self.assertRegex(one, r"^300\|.*\n300\|44850\|44850$")

    def test_indexes(self):
        """The index entries of 400 rows take each of the paths for many: sorted, leaves, build and merge."""
        path = self.cluster.file("rows", b"".join(b"%d,%d\n" % (i + 1000, i % 7) for i in range(400)))
        ways = "SELECT i ->> 'index', i ->> 'way' FROM pgsluice.last_copy, jsonb_array_elements(indexes) i ORDER BY 1"
        table = "CREATE TABLE t (a int PRIMARY KEY, b int); CREATE INDEX b ON t (b)"
        copy = f"SET pgsluice.copy = on; SET pgsluice.debug_force_routes = on; {{}} COPY t FROM '{path}' WITH (FORMAT csv);"
        for before, taken in (("", "b|sorted\nt_pkey|leaves"), ("BEGIN; TRUNCATE t;", "b|build\nt_pkey|build"),
                              ("INSERT INTO t SELECT n, n FROM generate_series(1, 300) n; BEGIN; LOCK t;", "b|merge\nt_pkey|leaves")):
            with self.subTest(before=before):
                self.cluster.sql(f"DROP TABLE IF EXISTS t; {table}")
                said = self.cluster.sql(copy.format(before) + ("COMMIT;" if "BEGIN" in before else "") + ways)
                self.assertEqual(said.strip(), taken)
                self.assertEqual(self.cluster.sql("SET enable_seqscan = off; SELECT count(*) FROM t WHERE b >= 0 AND a >= 1000"), "400")

    def test_superusers_only(self):
        """Only a superuser can set debug_force_routes."""
        self.cluster.sql("DROP ROLE IF EXISTS loader; CREATE ROLE loader")
        with self.assertRaisesRegex(Refused, "permission denied to set parameter"):
            self.cluster.sql("SET ROLE loader; SET pgsluice.debug_force_routes = on")


if __name__ == "__main__":
    unittest.main()
