"""Loads while other sessions use the table in every way."""

import subprocess
import unittest

from .cluster import Held, OnCluster, Refused
from .test_durability import check_heap


class Concurrency(OnCluster):
    """No row is lost or duplicated, and no session waits for more than COPY's lock."""

    settings = ["autovacuum_naptime = 1", "max_connections = 40", "max_prepared_transactions = 2"]

    def test_crowd(self):
        """Loads by the extension and by stock COPY, small inserts, VACUUM, reads and CREATE INDEX CONCURRENTLY run at
        once: all succeed, and every row is there once."""
        server = self.cluster
        server.sql("DROP TABLE IF EXISTS t, routes; CREATE TABLE t (a int, b text, c bigint); CREATE TABLE routes (route text)")
        path = server.file("rows.csv", b"".join(b"%d,text %d,%d\n" % (i, i, i) for i in range(100000)))
        small = server.file("small.sql", b"".join(b"INSERT INTO t VALUES (%d, 'small', 7);\n" % i for i in range(1000)))
        copy = f"COPY t FROM '{path}' WITH (FORMAT csv)"
        jobs = [["-c", f"SET pgsluice.copy = on; SET pgsluice.workers = {n % 2}; {copy}; INSERT INTO routes SELECT route FROM pgsluice.last_copy"] for n in range(4)]
        jobs += [["-c", copy]] * 2 + [["-f", str(small)]] * 2 + [["-c", "VACUUM t"]] * 3 + [["-c", "SELECT count(*) FROM t"]]
        jobs += [["-c", "CREATE INDEX CONCURRENTLY ON t (a)"]]
        running = [subprocess.Popen(server.command(*job), stdout=subprocess.DEVNULL) for job in jobs]
        for process in running:
            self.assertEqual(process.wait(), 0)
        self.assertEqual(server.sql("SELECT count(*), sum(a), count(*) FILTER (WHERE b = 'small') FROM t"),
                         f"602000|{6 * 4999950000 + 2 * 499500}|2000")
        self.assertIn("append", server.sql("SELECT route FROM routes").splitlines())
        self.assertEqual(server.sql("SET enable_seqscan = off; SELECT count(*) FROM t WHERE a = 500"), "8")
        check_heap(self, server)

    def test_locks_and_isolation(self):
        """A load holds no lock on the table but ROW EXCLUSIVE; other sessions can insert, and see none of its rows before the commit."""
        server = self.cluster
        server.sql("DROP TABLE IF EXISTS t; CREATE TABLE t (a int, b text, c bigint)")
        path = server.file("rows.csv", b"1,x,2\n" * 50000)
        holder = Held(server)
        holder.run(f"SET pgsluice.copy = on; BEGIN; COPY t FROM '{path}' WITH (FORMAT csv, pgsluice 'require')")
        self.assertEqual(server.sql("SELECT string_agg(DISTINCT mode, ',') FROM pg_locks WHERE locktype = 'relation' AND relation = 't'::regclass AND pid <> pg_backend_pid()"),
                         "RowExclusiveLock")
        server.sql("SET lock_timeout = 500; INSERT INTO t VALUES (2, 'beside', 3)")
        self.assertEqual(server.sql("SELECT count(*) FROM t"), "1")
        with self.assertRaises(Refused):
            server.sql("SET lock_timeout = 100; ALTER TABLE t ADD d int")
        self.assertEqual(holder.end("COMMIT"), (0, "", ""))
        self.assertEqual(server.sql("SELECT count(*) FROM t"), "50001")

    def test_two_phase(self):
        """A prepared transaction with a load outlives a restart; COMMIT PREPARED makes its rows visible."""
        server = self.cluster
        server.sql("DROP TABLE IF EXISTS t; CREATE TABLE t (a int)")
        path = server.file("rows.csv", b"1\n" * 5000)
        server.sql(f"SET pgsluice.copy = on; BEGIN; COPY t FROM '{path}' WITH (pgsluice 'require'); PREPARE TRANSACTION 'load'")
        server.stop("fast")
        server.start()
        self.assertEqual(server.sql("SELECT count(*) FROM t"), "0")
        server.sql("COMMIT PREPARED 'load'")
        self.assertEqual(server.sql("SELECT count(*) FROM t"), "5000")

    def test_serializable(self):
        """A read-write conflict between two loads fails one of them, as with stock COPY."""
        server = self.cluster
        few, many = server.file("few.csv", b"1\n"), server.file("many.csv", b"1234567\n" * 120000)
        for setting, path in (("off", few), ("on", few), ("on", many)):
            server.sql("DROP TABLE IF EXISTS x, y; CREATE TABLE x (a int); CREATE TABLE y (a int)")
            begin = f"SET pgsluice.copy = {setting}; BEGIN ISOLATION LEVEL SERIALIZABLE;"
            one, two = Held(server), Held(server)
            one.run(begin + "SELECT count(*) FROM x")
            two.run(begin + "SELECT count(*) FROM y")
            one.run(f"COPY y FROM '{path}'")
            two.run(f"COPY x FROM '{path}'")
            if path == many:
                self.assertEqual(one.run("SELECT route FROM pgsluice.last_copy"), "append")
            self.assertEqual(one.end("COMMIT"), (0, "", ""))
            self.assertIn("40001", two.end("COMMIT")[2])


if __name__ == "__main__":
    unittest.main()
