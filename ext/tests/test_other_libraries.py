"""Other libraries' hooks, loaded before and after pgsluice; every way of loading it."""

import re
import unittest

from . import cluster as clusters
from .cluster import Cluster, Refused

WATCH = "SELECT calls, rows FROM pg_stat_statements WHERE query LIKE 'COPY t %' ORDER BY 1, 2"


@unittest.skipUnless(clusters.has("pg_stat_statements"), "pg_stat_statements is not there")
class OtherLibraries(unittest.TestCase):
    """pg_stat_statements and auto_explain in either order."""

    def watched(self, shared, session, route):
        """Loads three times; returns what pg_stat_statements has counted."""
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
        """If pgsluice is loaded first, its hook is the innermost: pg_stat_statements counts each COPY and its rows."""
        self.assertEqual(self.watched("pgsluice, pg_stat_statements, auto_explain", "", "insert"), "3|3000")

    def test_pgsluice_last(self):
        """If pgsluice is loaded last, it works inside the others' hooks: pg_stat_statements counts each COPY and its rows."""
        self.assertEqual(self.watched("pg_stat_statements, auto_explain, pgsluice", "", "insert"), "3|3000")

    def test_per_session(self):
        """In session_preload_libraries, pgsluice is loaded after the shared ones: pg_stat_statements counts each COPY and its rows."""
        self.assertEqual(self.watched("pg_stat_statements", "auto_explain, pgsluice", "insert"), "3|3000")

    def test_an_index_by_workers(self):
        """pg_stat_statements counts what workers read and write for an index as the statement's."""
        server = Cluster(["shared_preload_libraries = 'pgsluice, pg_stat_statements'", "wal_level = replica",
                          "max_worker_processes = 8", "max_parallel_workers = 8", "max_parallel_maintenance_workers = 1"])
        self.addCleanup(server.remove)
        server.sql("CREATE EXTENSION pgsluice; CREATE EXTENSION pg_stat_statements; CREATE TABLE t (a int) WITH (parallel_workers = 1);"
                   "INSERT INTO t SELECT * FROM generate_series(1, 100000)")
        built = "CREATE INDEX i ON t (a); SELECT workers FROM pgsluice.last_index_build"
        self.assertEqual(server.sql(f"SET pgsluice.index_build = on; {built}"), "1")
        self.assertEqual(server.sql("SELECT wal_bytes > pg_relation_size('i') / 2, shared_blks_hit + shared_blks_read >= "
                                    "pg_relation_size('t') / 8192 FROM pg_stat_statements WHERE query LIKE 'CREATE INDEX %'"), "t|t")

    def test_without_the_extension(self):
        """Before CREATE EXTENSION, pgsluice 'require' fails with a message; after it, it works. Calling pgsluice.inside() by hand is an error."""
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


class Neighbour(unittest.TestCase):
    """With the library tests/neighbour.c, which must have seen each statement that it is asked about, and forbids programs and COPY to one role."""

    def server(self, shared, session, *settings):
        """A server that loads these libraries."""
        server = Cluster([f"shared_preload_libraries = '{shared}'", f"session_preload_libraries = '{session}'",
                          "neighbour.forbidden_role = 'barred'", *settings])
        self.addCleanup(server.remove)
        server.sql("CREATE EXTENSION pgsluice; CREATE ROLE plain LOGIN; CREATE ROLE barred LOGIN; CREATE TABLE t (a int, b text);"
                   "CREATE TABLE v (a int, b text, c text DEFAULT set_config('a.b', '1', true)); CREATE TABLE bad (LIKE pgsluice.reject);"
                   "GRANT INSERT ON t, bad TO plain, barred; GRANT pg_read_server_files TO barred")
        return server

    def asked(self, server, copy, setting):
        """How often the library is asked about this COPY, the errors, and the route or the reason to fall back."""
        said, told = server.session(f"SET client_min_messages = debug1; SET pgsluice.copy = {setting};\n{copy};\nRESET client_min_messages;\n"
                                    "SELECT coalesce(fell_back_because, route) FROM pgsluice.last_copy")
        return (told.count("the neighbour is asked"), re.findall(r"ERROR: .*", told)), said

    def check(self, server, done):
        """COPYs that take this route or fall back: the library is asked as often as with stock COPY, and its errors stand."""
        path = server.file("rows", b"".join(b"%d,x\n" % i for i in range(1000)))
        for copy, way in ((f"COPY t FROM '{path}' CSV", done("insert")),
                          (f"COPY v (a, b) FROM '{path}' CSV", done("a column has a volatile default")),
                          (f"COPY t FROM '{path}' CSV WHERE random() >= 0", done("the WHERE clause is volatile")),
                          (f"COPY t FROM PROGRAM 'cat {path}' CSV", None)):
            with self.subTest(copy=copy):
                stock, ours = (self.asked(server, copy, setting) for setting in ("off", "on"))
                self.assertEqual(stock[0], ours[0])
                self.assertEqual(stock[0][1] == [], way is not None, stock)
                if way:
                    self.assertEqual(ours[1], way)
        self.assertEqual(server.sql("SELECT count(*) FROM t; SELECT count(*) FROM v"), "4000\n2000")

    def check_barred(self, server):
        """A role to which the other library forbids COPY cannot COPY, whatever options the statement or session sets."""
        for options in ("", "WITH (pgsluice 'on')", "WITH (pgsluice 'require')", "WITH (workers 1)", "WITH (rejects_to 'bad')", "WITH (lock 'exclusive')"):
            with self.assertRaises(Refused, msg=options), server.connect(user="barred") as session:
                session.run(f"SET pgsluice.copy = on; COPY t FROM '/dev/null' {options}")
        with self.assertRaises(Refused) as refused:
            server.sql("SET pgsluice.copy = on; COPY t FROM '/dev/null'", user="barred")
        self.assertIn('the neighbour forbids COPY to role "barred"', str(refused.exception))

    def test_it_came_first(self):
        """If the other library was loaded first, stock COPY does the work, so that the library sees it; options that
        stock COPY lacks are errors. Only superusers set harmless_hooks."""
        server = self.server("neighbour", "pgsluice")
        reason = 'library "neighbour" was loaded before pgsluice and is not in pgsluice.harmless_hooks'
        self.check(server, lambda way: reason)
        self.check_barred(server)
        for option in ("pgsluice 'require'", "rejects_to 'bad'", "on_duplicate 'skip'", "lock 'exclusive'"):
            with self.assertRaises(Refused) as refused:
                server.sql(f"COPY t FROM STDIN WITH ({option})", b"1\tx\n")
            self.assertIn("0A000: pgsluice cannot take over this COPY: " + reason, str(refused.exception))
        with self.assertRaises(Refused) as refused:
            server.sql("SET pgsluice.harmless_hooks = 'neighbour'", user="plain")
        self.assertIn("permission denied to set parameter", str(refused.exception))

    def test_one_behind_a_harmless_one(self):
        """Only the first hook of a chain can be seen, so a library loaded before a harmless one counts as the owner of a hook: stock COPY does the work."""
        if not clusters.has("pg_stat_statements"):
            return
        server = self.server("neighbour, pg_stat_statements", "pgsluice")
        self.check(server, lambda way: 'library "neighbour" was loaded before pgsluice and is not in pgsluice.harmless_hooks')
        self.check_barred(server)

    def test_it_came_first_and_is_listed(self):
        """A library listed as harmless sees a CALL, and is asked within it. Without EXECUTE on pgsluice.inside(),
        COPY falls back, and pgsluice 'require' fails."""
        server = self.server("neighbour", "pgsluice", "pgsluice.harmless_hooks = 'neighbour'")
        path = server.file("rows", b"".join(b"%d,x\n" % i for i in range(1000)))
        self.assertEqual(*(self.asked(server, f"COPY t FROM '{path}' CSV", setting)[0] for setting in ("off", "on")))
        server.sql("SET client_min_messages = error; COPY t FROM STDIN WITH (FORMAT csv, rejects_to 'bad')", b"1,x\ny,z\n")
        self.assertEqual(server.sql("SELECT record FROM bad"), "y,z")
        server.sql("REVOKE EXECUTE ON FUNCTION pgsluice.inside() FROM PUBLIC")
        server.sql("SET pgsluice.copy = on; COPY t FROM STDIN", b"1\tx\n", user="plain")
        with self.assertRaises(Refused) as refused:
            server.sql("COPY t FROM STDIN WITH (pgsluice 'require')", b"1\tx\n", user="plain")
        self.assertIn("may not execute pgsluice.inside()", str(refused.exception))
        server.sql("SET pgsluice.copy = on; DROP EXTENSION pgsluice CASCADE; COPY t FROM STDIN", b"1\tx\n")
        self.assertEqual(server.sql("SELECT count(*) FROM t"), "2003")

    def test_one_that_swallows_the_copy(self):
        """If a library listed as harmless does not execute the CALL, the COPY is an error, and not a success without rows."""
        server = self.server("neighbour", "pgsluice", "pgsluice.harmless_hooks = 'neighbour'", "neighbour.swallows_call = on")
        with self.assertRaises(Refused) as refused:
            server.sql("SET pgsluice.copy = on; COPY t FROM STDIN", b"1\tx\n")
        self.assertIn("0A000: a library that was loaded before pgsluice has not executed the COPY", str(refused.exception))
        self.assertEqual(server.sql("SELECT count(*) FROM t"), "0")
        server.sql("SET neighbour.swallows_call = off; SET pgsluice.copy = on; COPY t FROM STDIN", b"1\tx\n")
        self.assertEqual(server.sql("SELECT count(*) FROM t"), "1")

    def test_it_came_last(self):
        """A library loaded after pgsluice sees the COPY, even if the extension's objects have been dropped."""
        server = self.server("pgsluice, neighbour", "")
        self.check(server, lambda way: way)
        self.check_barred(server)
        server.sql("SET pgsluice.copy = on; DROP EXTENSION pgsluice CASCADE; COPY t FROM STDIN WITH (pgsluice 'require')", b"1\tx\n")
        self.assertEqual(server.sql("SELECT count(*) FROM t"), "4001")

    def test_limits_of_the_server(self):
        """With rejects_to, an error of SQLSTATE 54000 that any record would cause (no transaction IDs are left) ends the statement; any other rejects the record."""
        server = self.server("pgsluice, neighbour", "")
        server.sql("CREATE FUNCTION fail(text) RETURNS bool LANGUAGE c IMMUTABLE STRICT AS 'neighbour', 'neighbour_fail';"
                   "CREATE TABLE c (a int, b text CHECK (fail(b)))")
        copy = "SET client_min_messages = error; COPY c FROM STDIN WITH (FORMAT csv, rejects_to 'bad')"
        for function in ("GetNewTransactionId", "GetNewMultiXactId", "mdextend"):
            with self.assertRaises(Refused) as refused:
                server.sql(copy, f"1,\n2,{function}\n3,\n".encode())
            self.assertIn(f"54000: a limit is reached in {function}", str(refused.exception))
            self.assertEqual(server.sql("SELECT count(*) FROM c; SELECT count(*) FROM bad"), "0\n0")
        server.sql(copy, b"1,\n2,index_form_tuple\n3,\n")
        self.assertEqual(server.sql("SELECT a FROM c ORDER BY a; SELECT sqlstate, record FROM bad"), "1\n3\n54000|2,index_form_tuple")


if __name__ == "__main__":
    unittest.main()
