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

    def failed(self, session, copy):
        """Runs a COPY that fails; asserts that it has no row, and returns the message that says so."""
        session.told.clear()
        session.run(copy)
        self.assertIn("ERROR", "".join(session.told))
        session.told.clear()
        self.assertEqual(session.run("SELECT * FROM pgsluice.last_copy"), "")
        self.assertIn("the last COPY FROM of this session failed", "".join(session.told))
        return "".join(session.told)

    def test_after_a_failure(self):
        """After a COPY that failed or was refused, no row is shown, and a NOTICE says that it failed, with the reason if it was left to stock COPY."""
        path = self.cluster.file("rows", DATA)
        copy = f"COPY t FROM '{path}' WITH (FORMAT csv)"
        shown = "SELECT relation, route <> 'stock' FROM pgsluice.last_copy"
        with self.cluster.connect(stops=False) as session:
            self.assertEqual(session.run(f"{TABLE} SET pgsluice.copy = on; {copy}; {shown}"), "t|t")
            self.assertNotIn("DETAIL", self.failed(session, copy))
            self.assertIn("DETAIL:  It was left to stock COPY: the WHERE clause is volatile.", self.failed(session, f"{copy} WHERE random() >= 0"))
            session.run("SET ROLE reader; SELECT * FROM pgsluice.last_copy; RESET ROLE")
            self.assertIn("the last COPY FROM of this session was run by another user", session.told[-1])
            self.assertEqual(session.run(f"TRUNCATE t; {copy}; {shown}"), "t|t")
            self.failed(session, f"COPY t FROM '{path}' WITH (FORMAT csv, pgsluice 'require') WHERE random() >= 0")
            self.failed(session, "COPY nosuch FROM '/dev/null'")

    def test_within_stock_copy(self):
        """A COPY that a trigger of stock COPY runs is not the last one: the outer one is, whether it fails or not."""
        path = self.cluster.file("rows", b"1,x\n2,y\n")
        reason = "the table has BEFORE or INSTEAD OF row triggers"
        with self.cluster.connect(stops=False) as session:
            session.run("CREATE TABLE called (a int, b text); CREATE TABLE calls (a int CHECK (a < 3), b text);"
                        f"CREATE FUNCTION load() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN COPY called FROM '{path}' WITH (FORMAT csv); RETURN NEW; END $$;"
                        "CREATE TRIGGER load BEFORE INSERT ON calls FOR EACH ROW EXECUTE FUNCTION load(); SET pgsluice.copy = on")
            said = session.run(f"COPY calls FROM '{path}' WITH (FORMAT csv); SELECT relation, route, fell_back_because FROM pgsluice.last_copy; SELECT count(*) FROM called")
            self.assertEqual(said, f"calls|stock|{reason}\n4")
            self.assertIn(reason, self.failed(session, "COPY calls FROM PROGRAM 'echo 3,z' WITH (FORMAT csv)"))


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
