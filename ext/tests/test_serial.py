"""Sequence values drawn for many rows at once: rows get the same values, and the sequence ends in the same state."""

import random
import struct
import subprocess
import unittest

from .cluster import MAJOR, Held, OnCluster, wait_until
from .test_fuzz import Client

CSV = "COPY t (a, b) FROM {} WITH (FORMAT csv)"
STATE = "SELECT currval('s'), lastval(), (SELECT (last_value, log_cnt, is_called) FROM s), min(id), max(id), count(DISTINCT id), sum(id * a) FROM t"


def rows(count):
    """`count` rows; the server reads every tenth."""
    return b"".join(b"%d,x\n" % i if i % 10 else b"0%d ,x\n" % i for i in range(count))


class Serial(OnCluster):
    """A column whose default is nextval of a sequence."""

    # After a checkpoint, the sequence's next value is written to WAL again: log_cnt shows it.
    settings = ["max_wal_size = 1GB", "checkpoint_timeout = 1h"]

    def both(self, sequence, data, table="CREATE TABLE t (id bigint DEFAULT nextval('s'), a bigint, b text)",
             before="SELECT 1", after=STATE, copy=CSV):
        """The results of a load by stock COPY, which must be those of one by the extension."""
        path = self.cluster.file("input", data)
        seen = []
        for setting in ("off", "on"):
            said, refusal = self.cluster.session(
                f"SET client_min_messages = warning; SET pgsluice.copy = {setting}; DROP TABLE IF EXISTS t; DROP SEQUENCE IF EXISTS s;"
                f"CREATE {sequence}; {table};\n{before};\n{copy.format(repr(str(path)))};\n{after};\n"
                # Otherwise a temporary sequence is dropped after the session's end, and its locks would block the next DROP.
                "DISCARD TEMP;"
            )
            seen.append((said, refusal.split("\n")[0]))
        self.assertEqual(*seen)
        return seen[0]

    def test_the_sequence_afterwards(self):
        """Values, currval, lastval, last_value and even log_cnt are those after stock COPY."""
        counts = [0, 1, 2, 3, 32, 33, 34, 35, 66, 67, 999, 1000, 1001, 5000, 12345]
        for sequence in ("SEQUENCE s", "SEQUENCE s INCREMENT 7 START 100", "SEQUENCE s INCREMENT -3 MINVALUE -100000",
                         "SEQUENCE s CACHE 50", "TEMP SEQUENCE s", "SEQUENCE s INCREMENT -9223372036854775807"):
            for count in counts:
                with self.subTest(sequence=sequence, count=count):
                    self.both(sequence, rows(count))
        random.seed(3)
        for _ in range(10):
            drawn, count = random.randrange(1, 80), random.randrange(3, 3000)
            self.both("SEQUENCE s", rows(count), before=f"SELECT max(nextval('s')) FROM generate_series(1, {drawn})")
            self.both("SEQUENCE s", rows(count), before="SELECT nextval('s'); CHECKPOINT")

    def test_rejects(self):
        """With rejects_to, the values are in the order of the rows, and currval and lastval are those of the last row."""
        table = "CREATE TABLE t (id serial, a int, b text DEFAULT 'x')"
        load = f"DROP TABLE IF EXISTS t, bad; {table}; CREATE TABLE bad (LIKE pgsluice.reject); SET client_min_messages = warning;"
        path = self.cluster.file("input", b"".join(b"%d,p\n" % i if i != 5 else b"x,p\n" for i in range(1, 11)))
        said = self.cluster.sql(
            f"{load} COPY t (a, b) FROM '{path}' WITH (FORMAT csv, rejects_to 'bad');"
            "SELECT currval('t_id_seq'), lastval(), max(id), count(*) FROM t")
        self.assertEqual(said, "9|9|9|9")
        if MAJOR >= 16:
            data = b"".join(b"%d,%s\n" % (i, b"\\D" if i % 3 == 0 else b"p") for i in range(1, 20))
            path = self.cluster.file("input", data)
            said = self.cluster.sql(
                f"{load} COPY t (a, b) FROM '{path}' WITH (FORMAT csv, DEFAULT '\\D', rejects_to 'bad');"
                "SELECT count(*), bool_and(id = a), count(*) FILTER (WHERE b = 'x') FROM t")
            self.assertEqual(said, "19|t|6")

    def test_bounds(self):
        """If a sequence ends, cycles, or is too wide for its column, values and errors are stock COPY's."""
        for count in (900, 1000, 1001, 2500):
            self.both("SEQUENCE s MAXVALUE 1000 CYCLE", rows(count))
            self.both("SEQUENCE s INCREMENT -7 MINVALUE -1000 MAXVALUE 50 CYCLE", rows(count))
            self.both("SEQUENCE s MAXVALUE 1000", rows(count), after="SELECT count(*) FROM t")
        refusal = self.both("SEQUENCE s MAXVALUE 1000", rows(1001), after="SELECT last_value FROM s")[1]
        self.assertIn("2200H: nextval: reached maximum value of sequence", refusal)
        limit = 9223372036854775807
        for start in (limit - 1500, limit - 1000, limit - 999):
            self.both(f"SEQUENCE s START {start}", rows(1000), after="SELECT min(id), max(id), count(*) FROM t")
        for kind, start in (("smallint", 32000), ("int", 2147483000)):
            table = f"CREATE TABLE t (id {kind} DEFAULT nextval('s'), a int, b text)"
            self.assertIn("out of range", self.both(f"SEQUENCE s START {start}", rows(5000), table, after="SELECT count(*) FROM t")[1])

    def test_other_users_of_it(self):
        """With columns that share a sequence, constraints that read it, WHERE, partitions and workers, values are stock COPY's."""
        two = "CREATE TABLE t (id bigint DEFAULT nextval('s'), a bigint, b text, c bigint DEFAULT nextval('s'))"
        self.both("SEQUENCE s", rows(2500), two, after="SELECT sum(id * c), sum(id * a), max(c) FROM t")
        first = "CREATE TABLE t (id bigint DEFAULT nextval('s') * 10, a bigint, b text, c bigint DEFAULT nextval('s'))"
        self.both("SEQUENCE s", rows(2500), first, after="SELECT sum(id * c), sum(id * a), max(c), currval('s') FROM t")
        looks = "CREATE TABLE t (id bigint DEFAULT nextval('s'), a bigint, b text, CHECK (currval('s') = id))"
        self.both("SEQUENCE s", rows(2500), looks)
        self.both("SEQUENCE s", rows(2500), copy=CSV + " WHERE a % 3 = 0")
        self.both("SEQUENCE s", rows(20000), copy=CSV[:-1] + ", HEADER)")
        identity = "CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY, a int, b text, c smallserial)"
        self.both("SEQUENCE s", rows(2500), identity, after="SELECT sum(id * a), max(id), max(c), currval('t_id_seq'), lastval() FROM t")
        leaves = ("CREATE TABLE t (id bigint DEFAULT nextval('s'), a bigint, b text) PARTITION BY HASH (a);"
                  + "".join(f"CREATE TABLE t{i} PARTITION OF t FOR VALUES WITH (MODULUS 3, REMAINDER {i});" for i in range(3)))
        self.both("SEQUENCE s", rows(2500), leaves)
        many = rows(60000)
        path = self.cluster.file("input", many)
        self.both("SEQUENCE s", many)
        with_workers = self.cluster.sql(
            "DROP TABLE IF EXISTS t; CREATE TABLE t (id serial, a int, b text);"
            f"COPY t (a, b) FROM '{path}' WITH (FORMAT csv, pgsluice 'require', workers 2);"
            "SELECT count(*) FILTER (WHERE id = a + 1), max(id), currval('t_id_seq'), workers FROM t, pgsluice.last_copy GROUP BY workers")
        self.assertEqual(with_workers, "60000|60000|60000|2")

    def test_altered_meanwhile(self):
        """If a sequence is altered before the client sends anything, the load uses it as altered."""
        self.cluster.sql("DROP TABLE IF EXISTS t, bad; DROP SEQUENCE IF EXISTS s; CREATE SEQUENCE s; CREATE TABLE bad (LIKE pgsluice.reject);"
                         "CREATE TABLE t (id bigint DEFAULT nextval('s'), a bigint, b text)")
        client = Client(self.cluster)
        self.addCleanup(client.close)
        client.query("COPY t (a, b) FROM STDIN WITH (FORMAT csv, rejects_to 'bad')")
        client.until("G")
        waits = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'COPY t %' AND state = 'active' AND wait_event = 'ClientRead'"
        self.assertTrue(wait_until(lambda: self.cluster.sql(waits) == "1"))
        self.cluster.sql("ALTER SEQUENCE s INCREMENT 10")
        data = rows(100)
        client.socket.sendall(b"d" + struct.pack("!i", len(data) + 4) + data + b"c\0\0\0\4")
        self.assertIn("COPY 100", client.until("Z")[1][-1])
        self.assertEqual(self.cluster.sql("SELECT min(id), max(id), count(DISTINCT id) FROM t"), "1|991|100")

    def test_rights(self):
        """nextval('…') without privileges on the sequence is stock COPY's error."""
        path = self.cluster.file("input", rows(2000))
        self.cluster.sql("DROP TABLE IF EXISTS t; DROP SEQUENCE IF EXISTS s; DROP ROLE IF EXISTS weak; CREATE ROLE weak IN ROLE pg_read_server_files;"
                         "CREATE SEQUENCE s; CREATE TABLE t (id int DEFAULT nextval('s'), a int, b text); GRANT INSERT ON t TO weak")
        said = [self.cluster.session(f"SET ROLE weak; SET pgsluice.copy = {setting};\n{CSV.format(repr(str(path)))};")[1]
                .replace("psql:<stdin>:2: ", "") for setting in ("off", "on")]
        self.assertIn("42501: permission denied for sequence s", said[0])
        self.assertEqual(said[0].split("LOCATION")[0], said[1].split("LOCATION")[0])

    def test_no_value_twice(self):
        """While loads and other callers of nextval run at once, no value is drawn twice or left out."""
        path = self.cluster.file("input", rows(40000))
        self.cluster.sql("DROP TABLE IF EXISTS t, drawn; DROP SEQUENCE IF EXISTS s; CREATE SEQUENCE s; CREATE TABLE drawn (id bigint);"
                         "CREATE TABLE t (id bigint DEFAULT nextval('s'), a int, b text)")
        loads = [f"COPY t (a, b) FROM '{path}' WITH (FORMAT csv, pgsluice 'require')", f"COPY t (a, b) FROM '{path}' WITH (FORMAT csv, pgsluice 'require')",
                 f"COPY t (a, b) FROM '{path}' WITH (FORMAT csv, pgsluice 'off')", "INSERT INTO drawn SELECT nextval('s') FROM generate_series(1, 40000)"]
        running = [subprocess.Popen(self.cluster.command("-c", sql), stdout=subprocess.DEVNULL) for sql in loads]
        self.assertEqual([process.wait() for process in running], [0] * 4)
        self.assertEqual(self.cluster.sql("SELECT count(*), count(DISTINCT id), max(id) FROM (SELECT id FROM t UNION ALL SELECT id FROM drawn) x"),
                         "160000|160000|160000")

    def test_crash(self):
        """After a crash, no value is drawn again, whether or not the load was committed."""
        path = self.cluster.file("input", rows(3000))
        self.cluster.sql("DROP TABLE IF EXISTS t; CREATE TABLE t (id serial, a int, b text)")
        highest = 0
        for ending in ("COMMIT;", "CHECKPOINT;", ""):
            self.cluster.sql(f"COPY t (a, b) FROM '{path}' WITH (FORMAT csv, pgsluice 'require')")
            load = Held(self.cluster)
            highest = int(load.run(f"BEGIN; COPY t (a, b) FROM '{path}' WITH (FORMAT csv, pgsluice 'require');{ending} SELECT max(id) FROM t"))
            if not ending:
                # Uncommitted changes may not be in the WAL on disk yet; a later commit writes them.
                self.cluster.sql("CREATE TABLE IF NOT EXISTS later (a int); INSERT INTO later VALUES (1)")
            self.cluster.kill()
            load.end()
            self.cluster.start()
            self.assertGreater(int(self.cluster.sql("SELECT nextval('t_id_seq')")), highest, ending)
            self.assertEqual(self.cluster.sql("SELECT count(*) - count(DISTINCT id) FROM t"), "0")


if __name__ == "__main__":
    unittest.main()
