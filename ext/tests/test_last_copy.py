"""What `pgsluice.last_copy` and DEBUG1 messages report about a load."""

import unittest

from .cluster import Cluster, OnCluster

ROWS = 30000
DATA = b"".join(b"%d,text of row %d,\"(%d,2)\"\n" % (i, i, i) for i in range(ROWS))
TABLE = "DROP TABLE IF EXISTS t; CREATE TABLE t (a int PRIMARY KEY, b text, p point);"


class LastCopy(OnCluster):
    """Each field, compared with what is known about the load."""

    prepared = "CREATE ROLE reader"

    def ask(self, before, columns, after="", file=DATA, copy="COPY t FROM '{}' WITH (FORMAT csv, workers 0)"):
        """The columns of the view after this load."""
        path = self.cluster.file("rows", file)
        return self.sql(f"{TABLE} SET pgsluice.copy = on; {before} {copy.format(path)}; {after} SELECT {columns} FROM pgsluice.last_copy")

    def test_fields(self):
        """last_copy shows the relation, route, rows, bytes, workers, values read by the server, times of the phases, and WAL."""
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
        """A fallback shows its reason and stock COPY's route; a COPY with the setting off changes nothing. DEBUG1 reports the route, or the reason."""
        copy = "COPY t FROM '{}' WITH (FORMAT csv) WHERE random() >= 0"
        self.assertEqual(self.ask("", "relation, route, fell_back_because", copy=copy), "t|stock|the WHERE clause is volatile")
        self.assertEqual(self.ask("", "rows", "SET pgsluice.copy = off; COPY t FROM '/dev/null';"), str(ROWS))
        path = self.cluster.file("rows", DATA)
        for where, words in (("", "pgsluice: route "), ("WHERE random() >= 0", "the WHERE clause is volatile")):
            told = self.cluster.session(f"{TABLE}\nSET pgsluice.copy = on; SET client_min_messages = debug1;\nCOPY t FROM '{path}' WITH (FORMAT csv) {where};")[1]
            self.assertIn(words, told)
        self.assertEqual(self.sql("SET ROLE reader; SELECT count(*) FROM pgsluice.last_copy"), "0")


class Loading(unittest.TestCase):
    """A session that has not loaded the library: SET pgsluice.copy = on is accepted, and has no effect."""

    def setUp(self):
        """A server that preloads no library."""
        self.server = Cluster(["session_preload_libraries = ''"])
        self.addCleanup(self.server.remove)

    def test_how_to_load_it(self):
        """CREATE EXTENSION reports the command that makes later sessions load the library; the command does that, and keeps the libraries set before."""
        self.server.sql('CREATE DATABASE "SomeDb"; ALTER DATABASE "SomeDb" SET session_preload_libraries = \'auto_explain\'')
        with self.server.connect(database="SomeDb") as session:
            session.run("CREATE EXTENSION pgsluice; CREATE TABLE t (a int)")
            told = "".join(session.told)
            self.assertIn("INFO", told)
            command = told[told.index("ALTER DATABASE"):].split("\n")[0]
            self.assertEqual(command, "ALTER DATABASE \"SomeDb\" SET session_preload_libraries = 'pgsluice', 'auto_explain'")
            session.run(command)
        with self.server.connect(database="SomeDb") as session:
            self.assertEqual(session.run("SET pgsluice.copy = on; COPY t FROM PROGRAM 'echo 1'; SELECT route FROM pgsluice.last_copy; SHOW session_preload_libraries"),
                             "insert\npgsluice, auto_explain")
            session.run("DROP EXTENSION pgsluice; CREATE EXTENSION pgsluice")
            self.assertEqual("".join(session.told), "")

    def test_who_may_know_of_other_libraries(self):
        """A role that may not read session_preload_libraries does not get the names in it."""
        self.server.sql("CREATE EXTENSION pgsluice; CREATE ROLE plain LOGIN; ALTER DATABASE postgres SET session_preload_libraries = 'auto_explain'")
        for user, names in (("plain", False), ("postgres", True)):
            with self.server.connect(user=user) as session:
                session.run("SELECT * FROM pgsluice.last_copy")
                self.assertIn("pgsluice was not loaded in this session before this query", session.told[-1])
                self.assertEqual("auto_explain" in session.told[-1], names)

    def test_why_there_is_no_row(self):
        """If a view is empty, a message says why: the library was not loaded, nothing has run, or another user ran it."""
        self.server.sql("CREATE EXTENSION pgsluice; CREATE TABLE t (a int); CREATE ROLE plain LOGIN")
        with self.server.connect() as session:
            session.run("SET pgsluice.copy = on; COPY t FROM PROGRAM 'echo 1'")
            self.assertEqual(session.run("SELECT * FROM pgsluice.last_copy"), "")
            self.assertIn("pgsluice was not loaded in this session before this query", session.told[-1])
            self.assertIn("ALTER DATABASE postgres SET session_preload_libraries = 'pgsluice'", session.told[-1])
            for view, what in (("last_copy", "COPY FROM"), ("last_index_build", "build of an index")):
                self.assertEqual(session.run(f"SELECT * FROM pgsluice.{view}"), "")
                self.assertIn(f"no {what} has run in this session with pgsluice on", session.told[-1])
            session.run("COPY t FROM PROGRAM 'echo 1'")
            self.assertEqual(session.run("SELECT route FROM pgsluice.last_copy; SET ROLE plain; SELECT route FROM pgsluice.last_copy"), "insert")
            self.assertIn("the last COPY FROM of this session was run by another user", session.told[-1])


if __name__ == "__main__":
    unittest.main()
