"""What `pgsluice.last_copy` and DEBUG1 say of a load."""

import unittest

from .cluster import OnCluster

ROWS = 30000
DATA = b"".join(b"%d,text of row %d,\"(%d,2)\"\n" % (i, i, i) for i in range(ROWS))
TABLE = "DROP TABLE IF EXISTS t; CREATE TABLE t (a int PRIMARY KEY, b text, p point);"


class LastCopy(OnCluster):
    """Each field against what is known of the load."""

    prepared = "CREATE ROLE reader"

    def ask(self, before, columns, after="", file=DATA, copy="COPY t FROM '{}' WITH (FORMAT csv, workers 0)"):
        """The columns of the view after this load."""
        path = self.cluster.file("rows", file)
        return self.sql(f"{TABLE} SET pgsluice.copy = on; {before} {copy.format(path)}; {after} SELECT {columns} FROM pgsluice.last_copy")

    def test_fields(self):
        """Relation, route, rows, bytes, workers, values of the server, times of the phases, WAL."""
        self.assertEqual(self.sql("SELECT count(*) FROM pgsluice.last_copy"), "0")
        self.assertEqual(self.ask("", "relation, rows, rows_by_server, values_by_server + values_by_workers, bytes, workers, rejected, duplicates_skipped,"
                                  " duplicates_replaced, fell_back_because IS NULL"), f"t|{ROWS}|0|{ROWS}|{len(DATA)}|0|0|0|0|t")
        phases = "seconds_reading, seconds_forming, seconds_heap, seconds_indexes_triggers"
        self.assertEqual(self.ask("", f"least({phases}) > 0, {phases.replace(',', ' +')} <= seconds"), "t|t")
        begin = "CREATE TEMPORARY TABLE place AS SELECT pg_current_wal_insert_lsn() AS lsn;"
        self.assertEqual(self.ask(begin, "wal_bytes > pg_relation_size('t') / 2, wal_bytes <= pg_current_wal_insert_lsn() - (SELECT lsn FROM place)"), "t|t")
        self.assertEqual(self.ask("ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t SET UNLOGGED;", "wal_bytes < 200000"), "t")
        self.assertEqual(self.ask("", "rows, bytes", copy="COPY t FROM '{}' WITH (FORMAT csv) WHERE a < 10"), f"10|{len(DATA)}")
        self.assertEqual(self.ask("", "rows, bytes, route", file=DATA[:DATA.index(b"\n") + 1]), "1|24|insert")

    def test_fall_back(self):
        """The reason, stock COPY's route; who asks for nothing changes nothing; DEBUG1 says the same of both."""
        copy = "COPY t FROM '{}' WITH (FORMAT csv) WHERE random() >= 0"
        self.assertEqual(self.ask("", "relation, route, fell_back_because", copy=copy), "t|stock|the WHERE clause is volatile")
        self.assertEqual(self.ask("", "rows", "SET pgsluice.copy = off; COPY t FROM '/dev/null';"), str(ROWS))
        path = self.cluster.file("rows", DATA)
        for where, words in (("", "pgsluice: route "), ("WHERE random() >= 0", "the WHERE clause is volatile")):
            told = self.cluster.session(f"{TABLE}\nSET pgsluice.copy = on; SET client_min_messages = debug1;\nCOPY t FROM '{path}' WITH (FORMAT csv) {where};")[1]
            self.assertIn(words, told)
        self.assertEqual(self.sql("SET ROLE reader; SELECT count(*) FROM pgsluice.last_copy"), "0")


if __name__ == "__main__":
    unittest.main()
