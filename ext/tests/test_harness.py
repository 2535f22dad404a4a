"""The test harness: installation, cleanup and sessions."""

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from .cluster import BIN, EXT, OnCluster, Refused, put, wait_until


class Harness(unittest.TestCase):
    """Installation, and cleanup after a killed process."""

    def test_a_library_in_use(self):
        """When a library is replaced, a process that has the old file open still reads the old content."""
        with tempfile.TemporaryDirectory() as folder:
            old, new = Path(folder, "library.so"), Path(folder, "new.so")
            old.write_text("old")
            new.write_text("new")
            with open(old, encoding="ascii") as loaded:
                put(new, old)
                self.assertEqual((loaded.read(), old.read_text()), ("old", "new"))
            self.assertEqual(len(list(Path(folder).iterdir())), 2, "nothing else stays there")

    def test_killed(self):
        """A test process that is killed leaves no servers and no folders."""
        program = ("from tests.cluster import Cluster; c = Cluster(); print((c.data / 'postmaster.pid').read_text().split()[0], c.home, flush=True);"
                   " input()")
        environment = {**os.environ, "PGSLUICE_INSTALLED": "yes", "PG_CONFIG": str(BIN / "pg_config")}
        with subprocess.Popen([sys.executable, "-c", program], cwd=EXT, env=environment, text=True,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            server, home = process.stdout.readline().split()
            self.assertTrue(Path(home).is_dir())
            process.kill()
        self.assertTrue(wait_until(lambda: not Path(home).parent.exists()), f"{home} is left behind")
        try:
            # Of a process that nobody reaps, only its process ID is left.
            self.assertEqual(Path(f"/proc/{server}/cmdline").read_text(), "")
        except (FileNotFoundError, ProcessLookupError):
            pass


class Sessions(OnCluster):
    """A session within this process prints and reports what psql does."""

    def test_as_psql(self):
        """Statements split at semicolons, values of many forms, and messages with all their fields are those of psql."""
        begin = "SET client_min_messages = error; DROP TABLE IF EXISTS t; CREATE TABLE t (a int PRIMARY KEY); RESET client_min_messages;"
        for script in (
            "SELECT 1, NULL, 'two\nlines', ''; SELECT; SELECT '';; ; SELECT n, n * 2 FROM generate_series(1, 3) n -- no; end\n",
            "SELECT ';', E'\\';', $$;$$, $a$ $$;$$ $a$, \";\" FROM (SELECT 1 AS \";\") t /* ; */; SELECT (SELECT 2);",
            "CREATE TABLE IF NOT EXISTS t (); CREATE RULE r AS ON DELETE TO t DO ALSO (SELECT 1; SELECT 2);"
            "INSERT INTO t VALUES (1), (2) RETURNING a; COPY t TO STDOUT; DELETE FROM t; EXPLAIN (COSTS off) SELECT 1",
            "INSERT INTO t VALUES (3); INSERT INTO t VALUES (3);\n  SELECT nothing; BEGIN; SELECT 1 / 0; SELECT 1; COMMIT; SELECT 4",
            "DO $$ BEGIN RAISE WARNING 'of %', 1 USING DETAIL = 'more', HINT = 'less'; RAISE 'end;'; END $$; SELECT 'žluť'",
            "BEGIN; DECLARE c CURSOR FOR SELECT 5; FETCH c; MOVE c; SHOW work_mem; SET LOCAL work_mem = '1MB'; ROLLBACK; COPY t FROM '/nowhere'",
            "SELECT 6; SELECT pg_terminate_backend(pg_backend_pid()); SELECT 7",
        ):
            with self.subTest(script=script), self.cluster.connect(stops=False) as session:
                printed, said = self.cluster.psql(begin + script)
                self.assertEqual(session.run(begin + script).strip("\n"), printed)
                said = re.sub(r"^psql:<stdin>:\d+: ", "", said, flags=re.M)
                self.assertEqual("".join(session.told), re.sub(r"^(error: )?connection to server was lost\n", "", said, flags=re.M))

    def test_the_first_error_ends_it(self):
        """A script ends at its first error, with the statements before it done; once the session is closed, its server process is gone."""
        self.sql("DROP TABLE IF EXISTS t; CREATE TABLE t (a int)")
        with self.assertRaises(Refused) as refused:
            self.sql("INSERT INTO t VALUES (1); INSERT INTO t VALUES ('x'); INSERT INTO t VALUES (2)")
        self.assertIn("22P02: invalid input syntax", str(refused.exception))
        self.assertEqual(self.sql("SELECT a FROM t"), "1")
        there = "SELECT count(*) FROM pg_stat_activity WHERE pid = "
        with self.cluster.connect() as session:
            self.assertEqual(self.sql(f"{there}{session.pid}"), "1")
        self.assertEqual(self.sql(f"{there}{session.pid}"), "0")


if __name__ == "__main__":
    unittest.main()
