"""COPY into private tables: keys of one index are kept while its rows are installed."""

import unittest

from .cluster import Cluster, OnCluster
from .twins import check, pages

LAST = "SELECT method || ' ' || scan FROM pgsluice.last_index_build;"
ROWS = 60000


def lines(count=ROWS, extra=""):
    """CSV lines with unique keys in no order."""
    return "".join(f"{n * 7919 % 100003},{'word' * (n % 9)} {n % 501}\n" for n in range(count)) + extra


class Kept(OnCluster):
    """Tables with one index, which is the one whose keys are kept."""

    def load(self, table, content, settings=""):
        """What built the index `i` of a table that is filled; it is whole, and as the stock build's."""
        path = self.cluster.file("input", content.encode())
        said = self.sql(
            f"DROP TABLE IF EXISTS t; SET pgsluice.copy = on; {settings} BEGIN; {table};"
            f"COPY t FROM '{path}' WITH (FORMAT csv, pgsluice 'require'); COMMIT; {LAST}"
        )
        check(self.cluster, "i")
        kept = pages(self.cluster, "i")
        self.sql("SET max_parallel_maintenance_workers = 0; REINDEX INDEX i")
        self.assertTrue(kept == pages(self.cluster, "i"))
        return said

    def test_the_table_is_not_read_again(self):
        """Numbers, text of C and of another collation, several columns; one process or several."""
        for index in ("UNIQUE INDEX i ON t (a)", "INDEX i ON t (b)", "INDEX i ON t (b DESC, a)",
                      'INDEX i ON t (b COLLATE "C") INCLUDE (a)'):
            for workers in (0, 2):
                said = self.load(f"CREATE TABLE t (a int, b text); CREATE {index}", lines(),
                                 f"SET pgsluice.workers = {workers};")
                self.assertEqual(said, "sorted kept", index)

    def test_runs_are_spilled(self):
        """More keys than the memory holds."""
        for column in ("a", "b"):
            said = self.load(f"CREATE TABLE t (a int, b text); CREATE INDEX i ON t ({column})", lines(),
                             "SET maintenance_work_mem = '1MB';")
            self.assertEqual(said, "sorted kept")
        path = self.cluster.home / "input"
        self.assertEqual(self.sql(
            "DROP TABLE t; SET pgsluice.copy = on; SET maintenance_work_mem = '1MB'; BEGIN;"
            f"CREATE TABLE t (a int, b text); CREATE INDEX i ON t (a); COPY t FROM '{path}' CSV; COMMIT;"
            "SELECT rows, spilled_bytes > 0 FROM pgsluice.last_index_build"), f"{ROWS}|t")

    def test_a_value_that_an_index_stores_in_another_form(self):
        """A row with one lets the table be read after all."""
        long = f"-1,{'long' * 300}\n"
        said = self.load("CREATE TABLE t (a int, b text); CREATE INDEX i ON t (b)", lines(extra=long))
        self.assertEqual(said, "sorted pages")
        said = self.load("CREATE TABLE t (a int, b text); CREATE INDEX i ON t (a)", lines(extra=long))
        self.assertEqual(said, "sorted kept")

    def test_rows_that_something_else_puts_there(self):
        """A domain's check that inserts into the table, and is not said to be volatile: its rows are in the
        index, which is built by reading."""
        table = (
            "SET check_function_bodies = off;"
            "CREATE FUNCTION add(x int) RETURNS void LANGUAGE sql AS $$ INSERT INTO t VALUES (-x * 9973, 'more') $$;"
            "CREATE FUNCTION more(x int) RETURNS bool LANGUAGE plpgsql STABLE AS $$ BEGIN"
            " IF x % 9973 = 1 THEN PERFORM add(x); END IF; RETURN true; END $$;"
            "CREATE DOMAIN adding AS int CHECK (more(VALUE)); CREATE TABLE t (a adding, b text); CREATE INDEX i ON t (a)"
        )
        self.assertEqual(self.load(table, lines()), "sorted pages")
        self.assertGreater(int(self.sql("SELECT count(*) FROM t")), ROWS)


class Synced(unittest.TestCase):
    """What a build leaves to the next checkpoint."""

    def test_the_next_checkpoint_syncs_the_index(self):
        """Its file is among those that the checkpointer syncs, or was synced in the build."""
        cluster = Cluster(["checkpoint_timeout = 1h", "log_checkpoints = on", "log_min_messages = debug1"],
                          durable=True)
        try:
            path = cluster.sql(
                "CREATE TABLE t AS SELECT n FROM generate_series(1, 50000) n; CHECKPOINT;"
                f"SET pgsluice.index_build = on; CREATE INDEX i ON t (n); SELECT pg_relation_filepath('i')")
            cluster.sql("CHECKPOINT")
            self.assertIn(f"file={path} ", cluster.log.read_text(encoding="utf-8"))
        finally:
            cluster.remove()


if __name__ == "__main__":
    unittest.main()
