"""The administrator's controls: switches, caps, accepted server versions, and who can see the statistics of a load."""

import subprocess
import unittest

from .cluster import MAJOR, Cluster, OnCluster, Refused, wait_until
from .test_workers import workers

ROWS = 20000
DATA = b"".join(b"%d,%d,%060d\n" % (i, i * 7919 % ROWS, i) for i in range(ROWS))
TABLE = "DROP TABLE IF EXISTS t; CREATE TABLE t (id serial, a int UNIQUE, b int, c text); CREATE INDEX t_b ON t (b); CREATE INDEX t_id ON t (id);"
SWITCHES = ("allow_whole_pages", "allow_index_append", "allow_index_leaf_merge", "allow_unique_leaf_merge", "allow_sequence_blocks", "allow_index_build", "allow_foreign_keys",
            "allow_expressions", "allow_gin_merge", "allow_hash_merge", "allow_compression", "allow_partition_pages")
WAYS = "SELECT x->>'index', x->>'way', x->>'rows', x->>'because' FROM pgsluice.last_copy, jsonb_array_elements(indexes) x ORDER BY 1;"


class Administered(OnCluster):
    """A cluster whose configuration the tests change while sessions are open."""

    def configure(self, session, **settings):
        """Changes settings of the server, and waits until this session has them."""
        for name, value in settings.items():
            session.run(f"ALTER SYSTEM SET pgsluice.{name} = '{value}'")
            self.addCleanup(self.sql, f"LOAD 'pgsluice'; ALTER SYSTEM RESET pgsluice.{name}; SELECT pg_reload_conf()")
        session.run("SELECT pg_reload_conf()")
        for name, value in settings.items():
            self.assertTrue(wait_until(lambda name=name, value=value: session.run(f"SHOW pgsluice.{name}") == str(value)), name)

    def load(self, session, options="workers 0"):
        """Loads the data."""
        path = self.cluster.file("rows", DATA)
        session.run(f"SET pgsluice.copy = on; COPY t (a, b, c) FROM '{path}' WITH (FORMAT csv, {options})")


class Switches(Administered):
    """Settings that only the configuration can change: no user, statement or role overrides them."""

    prepared = "CREATE TABLE k (LIKE pgsluice.reject)"

    def test_allow(self):
        """With `pgsluice.allow` off, even open sessions use stock COPY and stock builds, and options that stock COPY
        lacks are errors. No user can set it; on again, all is as before."""
        with self.cluster.connect() as session:
            session.run(f"{TABLE} SET pgsluice.copy = on; SET pgsluice.index_build = on")
            self.load(session, "pgsluice 'require'")
            self.configure(session, allow="off")
            session.run("TRUNCATE t")
            self.load(session, "pgsluice 'on', workers 4")
            self.assertEqual(session.run("SELECT route, fell_back_because FROM pgsluice.last_copy; SELECT count(*) FROM t"),
                             f"stock|pgsluice.allow is off\n{ROWS}")
            for build in ("CREATE INDEX i ON t (c)", "REINDEX INDEX i", "REINDEX TABLE t"):
                session.run(f"RESET pgsluice.index_build; SELECT 1 FROM pgsluice.last_index_build; SET pgsluice.index_build = on; {build}")
                self.assertEqual(session.run("SELECT method, rows, fell_back_because FROM pgsluice.last_index_build"), "stock||pgsluice.allow is off")
            for option in ("pgsluice 'require'", "rejects_to 'k'", "on_duplicate 'skip'"):
                with self.assertRaises(Refused) as refused:
                    self.cluster.sql(f"COPY t (a) FROM '/dev/null' WITH ({option})")
                self.assertIn("0A000: pgsluice cannot take over this COPY: pgsluice.allow is off", str(refused.exception))
            for attempt in ("SET pgsluice.allow = on", "SELECT set_config('pgsluice.allow', 'on', true)", "ALTER ROLE postgres SET pgsluice.allow = on",
                            "CREATE FUNCTION f() RETURNS void LANGUAGE SQL SET pgsluice.allow = on AS ''"):
                with self.assertRaises(Refused, msg=attempt) as refused:
                    self.cluster.sql(attempt)
                self.assertIn("55P02", str(refused.exception))
            self.configure(session, allow="on")
            session.run("TRUNCATE t")
            self.load(session, "pgsluice 'require'")
            self.assertEqual(session.run("SELECT route FROM pgsluice.last_copy"), "append")

    def test_set_before_the_library_is_loaded(self):
        """A value that a session sets before the library is loaded has no effect: the configuration's value counts."""
        with self.cluster.connect() as session:
            self.configure(session, allow="off", allow_whole_pages="off")
            session.run("CREATE ROLE early LOGIN SUPERUSER; ALTER ROLE early SET session_preload_libraries = plpgsql")
        with self.cluster.connect(user="early") as session:
            session.run(f"SET pgsluice.allow = on; SET pgsluice.allow_whole_pages = on; {TABLE}")
            session.run("SET client_min_messages = error; LOAD 'pgsluice'")
            self.assertEqual(session.run("SHOW pgsluice.allow; SHOW pgsluice.allow_whole_pages"), "off\noff")

    def test_each_path(self):
        """Each path can be switched off by itself: last_copy names the switch, the other paths are still used, and the rows are the same."""
        rows = set()
        with self.cluster.connect() as session:
            session.run("SET pgsluice.copy = on; SET pgsluice.index_build = on")
            for off in ("", *SWITCHES):
                with self.subTest(off=off):
                    if off:
                        self.configure(session, **{off: "off"})
                    session.run(TABLE)
                    self.load(session)
                    said = session.run(f"SELECT route, switched_off FROM pgsluice.last_copy; {WAYS}").split("\n")
                    self.assertEqual(said[0], ("insert|" if off == "allow_whole_pages" else "append|") + (off and f"pgsluice.{off}"))
                    if off == "allow_index_append":
                        self.assertEqual([line.split("|")[1] for line in said[1:]], ["sorted", "sorted", "sorted"])
                        self.assertNotIn("leaves", "".join(said[1:]))
                        self.assertEqual({line.split("|")[3] for line in said[1:]}, {"pgsluice.allow_index_append is off"})
                    else:
                        self.assertEqual([line.split("|")[1] for line in said[1:]], ["leaves", "sorted", "sorted"])
                    rows.add(session.run("SELECT md5(string_agg(t::text, ' ' ORDER BY id)), nextval('t_id_seq') FROM t"))
                    self.private(session, off)
                    if off:
                        self.configure(session, **{off: "on"})
        self.assertEqual(len(rows), 1)

    def private(self, session, off):
        """Checks how indexes are built at the end of a COPY into a table of the same transaction, and by CREATE INDEX."""
        session.run(f"BEGIN; {TABLE}")
        self.load(session)
        built = off != "allow_index_build"
        ways = {tuple(line.split("|")[i] for i in (1, 3)) for line in session.run(WAYS).split("\n")}
        self.assertEqual(ways, {("build", "") if built else ("row", "pgsluice.allow_index_build is off")})
        session.run("CREATE INDEX t_c ON t (c)")
        self.assertEqual(session.run("SELECT method, fell_back_because FROM pgsluice.last_index_build"),
                         "sorted|" if built else "stock|pgsluice.allow_index_build is off")
        session.run("COMMIT")

    def test_a_sequence(self):
        """With sequence blocks off, the load accesses the sequence for each row; with them on, for less than one row in ten."""
        hits = []
        with self.cluster.connect() as session:
            for value in ("on", "off"):
                self.configure(session, allow_sequence_blocks=value)
                session.run(f"{TABLE} SET pgsluice.copy = on")
                self.load(session)
                session.run("SELECT pg_stat_force_next_flush()")
                hits.append(int(session.run("SELECT blks_hit + blks_read FROM pg_statio_user_sequences WHERE relname = 't_id_seq'")))
        self.assertLess(hits[0], ROWS / 10)
        self.assertGreaterEqual(hits[1], ROWS)

    def test_memory_of_live_indexes(self):
        """The smaller of live_index_memory and maintenance_work_mem bounds the memory for indexes, and last_copy
        shows it; with little memory, the index is still complete."""
        with self.cluster.connect() as session:
            for value, size in (("64MB", 64 << 20), ("100kB", 100 << 10)):
                self.configure(session, live_index_memory=value)
                session.run(TABLE)
                self.load(session)
                self.assertEqual(session.run("SELECT index_memory FROM pgsluice.last_copy; SELECT count(*) FROM t WHERE b >= 0; "
                                             "SET enable_seqscan = off; SELECT count(*) FROM t WHERE b >= 0; RESET enable_seqscan"), f"{size}\n{ROWS}\n{ROWS}")
            session.run("SET maintenance_work_mem = '1MB'")
            self.configure(session, live_index_memory="2MB")
            session.run(TABLE)
            self.load(session)
            self.assertEqual(session.run("SELECT index_memory FROM pgsluice.last_copy"), str(1 << 20))

    def test_a_copy_under_way(self):
        """A COPY that is running when `pgsluice.allow` is switched off ends as it began, with all its rows."""
        self.sql(TABLE)
        copy = subprocess.Popen(self.cluster.command("-c", "SET pgsluice.copy = on; COPY t (a, b, c) FROM STDIN WITH (FORMAT csv, pgsluice 'require')"),
                                stdin=subprocess.PIPE)
        copy.stdin.write(DATA)
        copy.stdin.flush()
        self.assertTrue(wait_until(lambda: self.sql("SELECT count(*) FROM pg_stat_progress_copy") == "1"))
        with self.cluster.connect() as session:
            self.configure(session, allow="off")
        copy.communicate(b"-1,0,last\n")
        self.assertEqual((copy.returncode, self.sql("SELECT count(*) FROM t")), (0, str(ROWS + 1)))


class Caps(Administered):
    """Limits on the workers of one COPY and of the server; idle workers are given back."""

    settings = ["max_worker_processes = 12", "max_parallel_workers = 12"]
    prepared = "CREATE ROLE plain LOGIN; GRANT CREATE ON SCHEMA public TO plain"

    def setUp(self):
        self.data = {}

    def copy(self, options="workers 2", user="postgres", table="t", data=DATA):
        """A COPY that has sent some rows and waits for more."""
        copy = subprocess.Popen(self.cluster.command("-c", f"SET pgsluice.copy = on; COPY {table} (a, b, c) FROM STDIN WITH (FORMAT csv, {options})", user=user),
                                stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        self.data[copy] = data
        self.more(copy)
        return copy

    def more(self, *copies):
        """Sends the rows of each again."""
        for copy in copies:
            copy.stdin.write(self.data[copy])
            copy.stdin.flush()

    def until(self, what, *copies):
        """Waits until workers of these COPYs are as wanted; returns how often each has got its rows again meanwhile, which keeps its workers from leaving."""
        again = []
        self.assertTrue(wait_until(what, lambda: again.append(self.more(*copies))))
        return len(again)

    def end(self, *copies):
        """Ends the data of these COPYs."""
        for copy in copies:
            said = copy.communicate()
            self.assertEqual(copy.returncode, 0, said)

    def test_of_one_copy(self):
        """max_workers_per_copy limits a COPY whose statement requests more workers, down to none; a session cannot set pgsluice.max_workers."""
        with self.cluster.connect() as session:
            session.run(TABLE)
            self.configure(session, max_workers_per_copy="1")
            self.load(session, "workers 16")
            self.assertEqual(session.run("SELECT workers FROM pgsluice.last_copy"), "1")
            self.configure(session, max_workers_per_copy="0")
            session.run("TRUNCATE t")
            self.load(session, "workers 16")
            self.assertEqual(session.run("SELECT workers FROM pgsluice.last_copy; SELECT count(*) FROM t"), f"0\n{ROWS}")
            with self.assertRaises(Refused) as refused:
                session.run("SET pgsluice.max_workers = 100")
            self.assertIn("55P02", str(refused.exception))

    def test_of_the_server(self):
        """All sessions together, index builds included, never have more than pgsluice.max_workers workers; pg_stat_activity shows each worker with its leader."""
        with self.cluster.connect() as session:
            session.run("DROP TABLE IF EXISTS t; CREATE TABLE t (a int, b int, c text); CREATE TABLE big (a int) WITH (parallel_workers = 2);"
                        "INSERT INTO big SELECT * FROM generate_series(1, 200000)")
            self.configure(session, max_workers="3")
            copies = [self.copy(), self.copy()]
            shown = "SELECT count(*), count(DISTINCT leader_pid) FROM pg_stat_activity WHERE backend_type = 'pgsluice worker' AND query = 'pgsluice worker for PID ' || leader_pid"
            # On a slow machine, workers are given back and start again, so a single look may see fewer.
            again = self.until(lambda: session.run(shown) == "3|2", *copies)
            self.assertLessEqual(len(workers(self.cluster)), 3)
            session.run("SET max_parallel_maintenance_workers = 2; SET pgsluice.index_build = on; SET pgsluice.workers = 2; CREATE INDEX ON big (a)")
            self.end(*copies)
            self.assertEqual(session.run("SELECT count(*) FROM pg_locks WHERE locktype = 'userlock'; SELECT count(*) FROM t"), f"0\n{2 * (1 + again) * ROWS}")
            session.run("CREATE INDEX ON big (a)")
            self.assertEqual(session.run("SELECT method, workers FROM pgsluice.last_index_build"), "sorted|2")
            self.configure(session, max_workers="1")
            session.run("CREATE INDEX ON big (a)")
            self.assertEqual(session.run("SELECT method, workers FROM pgsluice.last_index_build"), "sorted|1")

    def test_half_of_the_slots_by_default(self):
        """By default, COPYs of a role with only INSERT get at most half of the worker slots, whatever they request."""
        self.sql("DROP TABLE IF EXISTS t; CREATE TABLE t (a int, b int, c text); GRANT INSERT ON t TO plain")
        copy = self.copy("workers 16", user="plain")
        seen = "SELECT usename, count(*) FROM pg_stat_activity WHERE backend_type = 'pgsluice worker' GROUP BY 1"
        self.until(lambda: self.sql(seen) == "plain|6", copy)
        self.assertLessEqual(len(workers(self.cluster)), 6)
        self.end(copy)

    def test_of_an_idle_client(self):
        """Workers end when no data comes for some seconds, and start again when it flows; no row is lost."""
        self.sql("DROP TABLE IF EXISTS t, u; CREATE TABLE t (a int, b int, c text); CREATE TABLE u (a int, b int, c point)")
        # Both at once: each time, three seconds pass before the workers leave.
        copies = [self.copy(), self.copy(table="u", data=b"".join(b"%d,%d,\"(%d,1)\"\n" % (i, i, i) for i in range(ROWS)))]
        sent = 1
        for _ in range(2):
            for _ in range(3):
                self.more(*copies)
            sent += 3 + self.until(lambda: len(workers(self.cluster)) == 4, *copies)
            self.assertTrue(wait_until(lambda: not workers(self.cluster)))
            self.assertTrue(wait_until(lambda: self.sql("SELECT count(*) FROM pg_locks WHERE locktype = 'userlock'") == "0"))
        # A single row does not start them again.
        for copy in copies:
            copy.stdin.write(self.data[copy][:self.data[copy].index(b"\n") + 1])
            copy.stdin.flush()
        self.assertEqual(workers(self.cluster), [])
        self.end(*copies)
        for table in ("t", "u"):
            self.assertEqual(self.sql(f"SELECT count(*) FROM {table}"), str(sent * ROWS + 1), table)

    def test_cancelled_while_idle(self):
        """A COPY that is terminated while it waits for data gives its workers' slots back."""
        self.sql("DROP TABLE IF EXISTS t; CREATE TABLE t (a int, b int, c text)")
        copy = self.copy()
        self.until(lambda: workers(self.cluster), copy)
        self.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_progress_copy")
        copy.communicate()
        self.assertTrue(wait_until(lambda: not workers(self.cluster)))
        self.assertTrue(wait_until(lambda: self.sql("SELECT count(*) FROM pg_locks WHERE locktype = 'userlock'") == "0"))


class Release(unittest.TestCase):
    """A library built for another minor release than the server's; tests/neighbour.c simulates it."""

    def server(self, *settings):
        """A server whose library seems to be built for minor release 99 of its major version."""
        server = Cluster(["session_preload_libraries = 'pgsluice, neighbour'", f"neighbour.built_for = '{MAJOR}.99'", *settings])
        self.addCleanup(server.remove)
        server.sql("SET client_min_messages = error; CREATE EXTENSION pgsluice; CREATE TABLE t (a int)")
        return server

    def test_another_one(self):
        """Each session gets one WARNING; COPY and index builds are stock and record the reason; options that stock COPY lacks are errors."""
        server = self.server()
        rows, number = server.file("rows", b"1\n" * 10), server.sql("SHOW server_version_num")
        reason = f"the library was built for PostgreSQL {MAJOR}.99, and the server is {server.sql('SHOW server_version').split()[0]}"
        for _ in range(2):
            said, told = server.session(
                f"SET pgsluice.copy = on; SET pgsluice.index_build = on; COPY t FROM '{rows}'; COPY t FROM '{rows}'; CREATE INDEX ON t (a); REINDEX TABLE t;"
                "SELECT route, fell_back_because FROM pgsluice.last_copy; SELECT method, fell_back_because FROM pgsluice.last_index_build")
            self.assertEqual(told.count("WARNING"), 1, told)
            self.assertIn("pgsluice is not used: " + reason, told)
            self.assertIn(f"pgsluice.accept_server_version = {number}", told)
            self.assertEqual(said, f"stock|{reason}\nstock|{reason}")
        self.assertEqual(server.sql("SELECT count(*) FROM t"), "40")
        with self.assertRaises(Refused) as refused:
            server.sql("SET client_min_messages = error; COPY t FROM '/dev/null' WITH (lock 'exclusive')")
        self.assertIn("0A000: pgsluice cannot take over this COPY: " + reason, str(refused.exception))
        self.assertEqual(server.session("COPY t FROM '/dev/null'; SELECT 1")[1], "")

    def test_accepted(self):
        """pgsluice.accept_server_version in the configuration accepts the server's release if it names exactly that one; a session cannot set it."""
        server = self.server()
        rows, number = server.file("rows", b"1\n" * 10), int(server.sql("SHOW server_version_num"))
        for accepted, route in ((number, "insert"), (number + 1, "stock")):
            server.sql(f"ALTER SYSTEM SET pgsluice.accept_server_version = {accepted}; SELECT pg_reload_conf()")
            self.assertTrue(wait_until(lambda accepted=accepted: server.sql("SHOW pgsluice.accept_server_version") == str(accepted)))
            self.assertEqual(server.sql(f"SET client_min_messages = error; SET pgsluice.copy = on; COPY t FROM '{rows}';"
                                        "SELECT route FROM pgsluice.last_copy"), route)
        with self.assertRaises(Refused):
            server.sql(f"SET pgsluice.accept_server_version = {number}")

    def test_of_the_same_number(self):
        """Betas, release candidates and the first release of a major have the same server_version_num, so names are compared, without what a packager adds."""
        server = self.server()
        rows, release = server.file("rows", b"1\n" * 10), server.sql("SHOW server_version").split()[0]
        for built_for, route in ((f"{MAJOR}beta1", "stock"), (release, "insert"), (f"{release} (of another packager)", "insert"), (f"{release}9", "stock")):
            server.sql(f"ALTER SYSTEM SET neighbour.built_for = '{built_for}'; SELECT pg_reload_conf()")
            self.assertTrue(wait_until(lambda built_for=built_for: server.sql("SHOW neighbour.built_for") == built_for))
            self.assertEqual(server.sql(f"SET client_min_messages = error; SET pgsluice.copy = on; COPY t FROM '{rows}';"
                                        "SELECT route FROM pgsluice.last_copy"), route, built_for)


class Seen(OnCluster):
    """Who can see a session's last COPY and last index build."""

    prepared = ("CREATE ROLE plain LOGIN; CREATE ROLE watcher LOGIN IN ROLE pg_read_all_stats; CREATE TABLE hidden (a int);"
                "CREATE FUNCTION f() RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET pgsluice.copy = on SET pgsluice.index_build = on AS"
                " $$ BEGIN COPY hidden FROM PROGRAM 'echo 1'; CREATE INDEX ON hidden (a); END $$")
    shown = "SELECT count(*) FROM pgsluice.last_copy; SELECT count(*) FROM pgsluice.last_index_build"

    def test_by_whom(self):
        """Only the user who ran the COPY or build and members of pg_read_all_stats see it, even within the same session."""
        for user, count in (("plain", "0\n0"), ("watcher", "1\n1"), ("postgres", "1\n1")):
            self.assertEqual(self.cluster.sql(f"SET client_min_messages = error; SELECT FROM f(); {self.shown}", user=user), count)

    def test_builds_on_a_table_of_another_user(self):
        """An index build is shown to the user who ran the statement, and not to the owner of the table, as whom the server runs it."""
        self.sql("CREATE ROLE owner; CREATE ROLE loader LOGIN IN ROLE pg_read_server_files; CREATE TABLE owned (a int PRIMARY KEY);"
                 "ALTER TABLE owned OWNER TO owner; GRANT INSERT, TRUNCATE ON owned TO loader")
        path = self.cluster.file("rows", b"".join(b"%d\n" % n for n in range(100_000, 0, -1)))
        copy = f"SET pgsluice.copy = on; BEGIN; TRUNCATE owned; COPY owned FROM '{path}'; COMMIT"
        self.assertEqual(self.cluster.sql(f"{copy}; SELECT method FROM pgsluice.last_index_build", user="loader"), "sorted")
        for build in (copy, "CREATE INDEX ON owned (a)", "REINDEX TABLE owned"):
            shown = self.sql(f"SET client_min_messages = error; SET pgsluice.index_build = on; {build}; SELECT method FROM pgsluice.last_index_build;"
                             "SET ROLE owner; SELECT method FROM pgsluice.last_index_build")
            self.assertEqual(shown, "sorted", build)

    def test_builds_with_statements_within(self):
        """A statement that an event trigger runs as another user does not change to whom the index build is shown."""
        self.sql("CREATE ROLE other SUPERUSER; SET ROLE other; CREATE FUNCTION before() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER AS"
                 " $$ BEGIN EXECUTE 'SET LOCAL work_mem = 5000'; END $$; RESET ROLE;"
                 "CREATE ROLE builder LOGIN; CREATE TABLE built (a int); INSERT INTO built SELECT generate_series(1, 1000);"
                 "ALTER TABLE built OWNER TO builder; GRANT CREATE ON SCHEMA public TO builder;"
                 "CREATE EVENT TRIGGER before ON ddl_command_start EXECUTE FUNCTION before()")
        self.addCleanup(self.sql, "DROP EVENT TRIGGER before")
        build = "SET pgsluice.index_build = on; CREATE INDEX ON built (a); SELECT count(*) FROM pgsluice.last_index_build"
        self.assertEqual(self.cluster.sql(build, user="builder"), "1")

    def test_discard_all(self):
        """DISCARD ALL leaves nothing in last_copy and last_index_build for the next user of a pooled connection; DISCARD PLANS keeps them."""
        self.assertEqual(self.sql(f"SET client_min_messages = error; SELECT FROM f(); DISCARD PLANS; {self.shown}"), "1\n1")
        self.assertEqual(self.sql(f"SET client_min_messages = error; SELECT FROM f(); DISCARD ALL; {self.shown}"), "0\n0")


if __name__ == "__main__":
    unittest.main()
