"""Entries that are merged into unique indexes beside other rows with their keys: those of dead rows and of open transactions."""

import random
import unittest

from .cluster import Held, OnCluster, Refused
from .test_unique_merge import COPY, MERGED, fields, lines, repeat, table
from .twins import check


class OtherRows(OnCluster):
    """Rows with the same keys, which stock COPY meets as well."""

    def test_deleted_rows_make_room(self):
        """If the rows of a full index are deleted and loaded again, it stays as large as after stock COPY (15 % and four blocks): entries of dead rows are removed first."""
        keys = random.Random(3).sample(range(10 ** 9), 50000)
        path = self.cluster.file("keys", "".join(f"{key}\n" for key in keys).encode())
        sizes = []
        for setting in ("off", "on"):
            self.sql("DROP TABLE IF EXISTS again; CREATE TABLE again (k bigint PRIMARY KEY) WITH (autovacuum_enabled = off);"
                     f"SET pgsluice.copy = off; COPY again FROM '{path}'")
            before = int(self.sql("SELECT pg_relation_size('again_pkey')"))
            self.sql("DELETE FROM again")
            merged = self.sql(f"SET pgsluice.copy = {setting}; COPY again FROM '{path}'; {MERGED if setting == 'on' else ''}")
            sizes.append(int(self.sql("SELECT pg_relation_size('again_pkey')")))
            self.assertLess(sizes[-1], before * 1.15 + 4 * 8192, setting)
        self.assertGreater(int(merged.removeprefix("again_pkey|")), 40000)
        self.assertLess(sizes[1], sizes[0] * 1.15 + 4 * 8192)
        self.assertEqual(self.sql("SELECT count(*), count(DISTINCT k) FROM again"), "50000|50000")
        check(self.cluster, "again_pkey")
        self.sql("DROP TABLE again")

    def test_a_wait_names_the_new_row(self):
        """If the wait for another transaction's key ends with an error, its CONTEXT has the TID of the row that is being loaded."""
        rows = fields(5000)
        repeat(rows, 4000, "n", -100)
        path = self.cluster.file("input", "".join(lines(rows)).encode())
        for setting in ("off", "on"):
            self.sql(f"{table(50)}; DROP INDEX tdk")
            other = Held(self.cluster)
            place = other.run("BEGIN; INSERT INTO t (n) VALUES (100.5) RETURNING ctid")
            with self.assertRaises(Refused) as refused:
                self.sql(f"SET lock_timeout = 300; SET pgsluice.copy = {setting}; {COPY.format(path)}")
            said = str(refused.exception)
            self.assertIn("55P03", said)
            self.assertRegex(said, r'while inserting index tuple \(\d+,\d+\) in relation "tn"\nCOPY t, line 4001')
            self.assertNotIn(f"tuple {place}", said)
            other.end("ROLLBACK")


if __name__ == "__main__":
    unittest.main()
