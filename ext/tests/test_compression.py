"""Values compressed by workers: the table and its TOAST table must be as after stock COPY."""

import base64
import random
import subprocess
import unittest

from .cluster import Cluster, OnCluster, endless, wait_until
from .differential import compare
from .test_admin import Administered
from .test_durability import check_heap
from .test_workers import ATTENDED, with_pauses, workers

COPY = "COPY t (id, a, b, c) FROM {} WITH (FORMAT csv)"
TABLE = "CREATE TABLE t (id int, a text, b text, c text)"
# The stored sizes and compression methods of each row's values, and the chunks of the TOAST table.
STORED = """
SELECT id, pg_column_size(a), pg_column_compression(a), pg_column_size(b), pg_column_compression(b), pg_column_size(c), pg_column_compression(c), md5(t::text) FROM t ORDER BY 1, 8;
SELECT toast.chunks('t')"""
CHUNKS = """
CREATE SCHEMA toast; CREATE FUNCTION toast.chunks(r regclass) RETURNS text LANGUAGE plpgsql AS $$
DECLARE found text; BEGIN
  EXECUTE format('SELECT string_agg(one, '' '' ORDER BY one) FROM (SELECT count(*) || md5(string_agg(chunk_data, NULL ORDER BY chunk_seq)) AS one FROM %s GROUP BY chunk_id) x',
                 (SELECT reltoastrelid::regclass FROM pg_class WHERE oid = r)) INTO found;
  RETURN found; END $$;
"""


def rows(count=150, seed=1):
    """CSV of three texts of any length in each row. They compress well, a little, or not at all."""
    rng = random.Random(seed)

    def text():
        length = rng.choice((0, 5, 20, 40, 200, 700, 1500, 1900, 2100, 4000, 9000, 30000))
        kind = rng.random()
        if kind < 0.1:
            return ""
        if kind < 0.45:
            return ("word " * (length // 5 + 1))[:length]
        if kind < 0.7:
            words = [f"{rng.randrange(1 << 20):x}" for _ in range(20)]
            return " ".join(rng.choices(words, k=length // 6 + 1))
        return "".join(rng.choices("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/", k=length))

    return "".join(f"{i},{text()},{text()},{text()}\n" for i in range(count)).encode()


def documents(count):
    """CSV of wide rows that are worth compressing."""
    return "".join(f"{i},{f'{i} and some words of it again and again; ' * 150},x,y\n" for i in range(count)).encode()


def long_documents(count=200):
    """CSV of documents of 6 to 20 kB: some compress well, others to about half, and are stored out of line."""
    rng = random.Random(9)
    words = [f"{rng.randrange(1 << 24):x}" for _ in range(400)]
    made = []
    for i in range(count):
        length = rng.randrange(6000, 20000)
        text = " ".join(rng.choices(words, k=length // 6)) if i % 3 else f"document {i} " * (length // 12)
        made.append(f"{i},{text},x,y\n")
    return "".join(made).encode()


class Compression(OnCluster):
    """Comparison with stock COPY."""

    prepared = CHUNKS

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.methods = ["pglz"]
        if "lz4" in cls.sql("SELECT enumvals FROM pg_settings WHERE name = 'default_toast_compression'"):
            cls.methods.append("lz4")

    def stored(self, table, setting, workers, copy=COPY, pause=0.0):
        """The rows as stored by a load of the file, and how many values its workers have compressed."""
        source = with_pauses(self.path, pause) if pause else f"'{self.path}'"
        copy = copy.replace("(FORMAT csv)", f"(FORMAT csv, workers {workers})") if setting == "on" else copy
        with self.cluster.connect() as session:
            session.run(f"SET client_min_messages = warning; DROP TABLE IF EXISTS t CASCADE; {table}; SET pgsluice.copy = {setting};")
            session.run(copy.format(source))
            said = session.run("SELECT coalesce(sum(values_compressed), 0) FROM pgsluice.last_copy").strip()
            return session.run(STORED), int(said)

    def same(self, table, data, compressed=True, copy=COPY):
        """Asserts that the table is equal to the byte, without workers and with two, and whether these compress."""
        self.path = self.cluster.file("input", data)
        stock, none = self.stored(table, "off", 0, copy)
        self.assertEqual((stock, none), self.stored(table, "on", 0, copy))
        count, pause = 0, 0.1
        while True:
            ours, count = self.stored(table, "on", 2, copy, pause)
            self.assertEqual(stock, ours)
            check_heap(self, self.cluster)
            if count > 0 or not compressed or pause > 5:
                break
            pause *= 2
        self.assertEqual(count > 0, compressed)

    def test_to_the_byte(self):
        """Rows of all lengths are stored to the byte as by stock COPY, with each compression method, several storage types and toast_tuple_target values."""
        for method in self.methods:
            table = TABLE.replace("text", f"text COMPRESSION {method}")
            for more in ("", " WITH (toast_tuple_target = 256)", " WITH (toast_tuple_target = 7000)"):
                for storage in ("", "; ALTER TABLE t ALTER b SET STORAGE EXTERNAL", "; ALTER TABLE t ALTER a SET STORAGE MAIN, ALTER c SET STORAGE PLAIN",
                                "; ALTER TABLE t ADD id2 bigserial"):
                    if "PLAIN" in storage and more:
                        continue
                    with self.subTest(method=method, more=more, storage=storage):
                        data = rows(seed=len(more) + len(storage))
                        if "PLAIN" in storage:
                            # A plain value has to fit into a page.
                            data = b"".join(line.rpartition(b",")[0] + b",z\n" for line in data.splitlines())
                        # The first rows often do not compress, and workers might stop trying.
                        self.same(table + more + storage, documents(150) + data)

    def test_default_method(self):
        """A column without its own method uses the session's default_toast_compression, and workers compress by it."""
        for method in self.methods:
            self.same(f"{TABLE}; SET default_toast_compression = {method}", documents(250))

    def test_left_to_the_leader(self):
        """Workers compress nothing if the stored row is not the one they form (generated columns), or if an index
        would store compressed values. Partitions: rows are those of stock COPY."""
        for table in (TABLE[:-1] + ", g int GENERATED ALWAYS AS (length(a)) STORED)", TABLE + "; CREATE INDEX ON t USING hash (a)",
                      TABLE + "; CREATE INDEX ON t (left(a, 10))", TABLE + " PARTITION BY HASH (id); CREATE TABLE p PARTITION OF t FOR VALUES WITH (MODULUS 1, REMAINDER 0)"):
            with self.subTest(table):
                if "PARTITION" in table:
                    self.assertIsNone(compare(self, self.cluster, table, COPY.replace("csv", "csv, workers 2"), documents(250), "", None, False))
                else:
                    self.same(table, documents(250), compressed=False)

    def test_beside_others(self):
        """With constraints, WHERE, keys, sequences, range values and NULLs, workers compress and the table is as after stock COPY; errors are also the same."""
        for table, copy in ((TABLE[:-1] + ", CHECK (length(a) < 100000), n bigserial PRIMARY KEY, UNIQUE (id, n))", COPY), (TABLE, COPY + " WHERE id % 3 > 0"),
                            (TABLE[:-1] + ", r int4range DEFAULT '[1,2)')", COPY)):
            self.same(table, documents(250) + rows(100), copy=copy)
        ranges = b"".join(line + b',"[%d,%d)"\n' % (i, i + 3) for i, line in enumerate(documents(250).splitlines()))
        self.same(TABLE[:-1] + ", r int4range)", ranges, copy=COPY.replace("c)", "c, r)"))
        bad = documents(250).replace(b"\n200,", b"\n200x,")
        for more, data in ((")", bad), (", CHECK (id <> 200))", documents(250))):
            self.assertIsNotNone(compare(self, self.cluster, TABLE[:-1] + more, COPY.replace("csv", "csv, workers 2"), data, "", None, False))

    def test_how_values_are_stored(self):
        """A WHERE condition, trigger or CHECK constraint that looks at how a value is stored sees the value as COPY has read it; workers then compress nothing."""
        size = "pg_column_size(a) < 4000"
        self.same(TABLE, documents(250), compressed=False, copy=COPY + f" WHERE {size} OR id % 3 = 0")
        self.same(TABLE + f"; DROP TABLE IF EXISTS seen; CREATE TABLE seen (id int); CREATE OR REPLACE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO seen VALUES (NEW.id); RETURN NULL; END';"
                  f"CREATE TRIGGER note AFTER INSERT ON t FOR EACH ROW WHEN ({size.replace('(a)', '(NEW.a)')}) EXECUTE FUNCTION note()", documents(250), compressed=False)
        self.assertEqual(self.sql("SELECT count(*) FROM seen"), "0")
        refusal = compare(self, self.cluster, f"{TABLE[:-1]}, CHECK (id < 200 OR {size}))", COPY.replace("csv", "csv, workers 2"), documents(250), "", None, False)
        self.assertIn("violates check constraint", refusal)
        self.same(TABLE + "; DROP TABLE IF EXISTS sizes; CREATE TABLE sizes (id int, size int); CREATE OR REPLACE FUNCTION note_all() RETURNS trigger LANGUAGE plpgsql AS"
                  " 'BEGIN INSERT INTO sizes SELECT id, pg_column_size(a) FROM new; RETURN NULL; END';"
                  "CREATE TRIGGER note AFTER INSERT ON t REFERENCING NEW TABLE AS new FOR EACH STATEMENT EXECUTE FUNCTION note_all()", documents(250), compressed=False)
        self.assertEqual(self.sql("SELECT count(*) FROM sizes WHERE size < 4000"), "0")

    def test_in_vain(self):
        """Data that cannot be compressed is stored as by stock COPY, and workers report no compressed values."""
        rng = random.Random(7)
        data = b"".join(b"%d,%s,x,y\n" % (i, base64.b64encode(rng.randbytes(6000))) for i in range(500))
        self.same(TABLE, data, compressed=False)

    def test_by_itself(self):
        """Without debug settings, workers compress the values of wide rows, and not those of narrow rows."""
        half, go = self.cluster.file("half", documents(1000)), self.cluster.home / "go"
        go.unlink(missing_ok=True)
        narrow = self.cluster.file("narrow", b"".join(b"%d,some text,x,y\n" % i for i in range(400000)))
        wide = f"PROGRAM 'cat {half}; {ATTENDED}; sleep 0.2; cat {half}'"
        for source, compresses in ((wide, "t"), (f"'{narrow}'", "f")):
            load = (f"DROP TABLE IF EXISTS t; {TABLE}; SET pgsluice.copy = on; SET pgsluice.workers = 1; {COPY.format(source)};"
                    "SELECT values_compressed > 0 FROM pgsluice.last_copy")
            if compresses == "f":
                self.assertEqual(self.sql(load), "f")
            else:
                self.assertTrue(wait_until(lambda load=load: self.sql(load) == "t"))

    def test_indexes_whose_entries_wait(self):
        """Workers compress no value that an index gets, also if entries of the index wait when workers start."""
        columns, value = [f"c{i}" for i in range(10)], ("some words again; " * 24)[:430]
        half = self.cluster.file("half", "".join(f"{i}," + ",".join(f"{i}{value}" for _ in columns) + "\n" for i in range(1300)).encode())
        source = f"PROGRAM 'cat {half}; {ATTENDED}; sleep 0.2; cat {half}'"
        for indexed, compresses in (("id", "t"), ("c0", "f")):
            load = (f"DROP TABLE IF EXISTS t; CREATE TABLE t (id int, {', '.join(f'{column} text' for column in columns)}); CREATE INDEX ON t ({indexed});"
                    f"SET pgsluice.copy = on; SET pgsluice.workers = 1; COPY t FROM {source} (FORMAT csv);"
                    "SELECT values_compressed > 0, workers FROM pgsluice.last_copy")
            said = []
            self.assertTrue(wait_until(lambda load=load, said=said, wanted=f"{compresses}|1": said.append(self.sql(load)) or said[-1] == wanted), said)
            # What the leader forms is not compressed, so one good answer proves nothing.
            self.assertFalse(compresses == "f" and any(one.startswith("t") for one in said), said)

    def test_ended_in_the_middle(self):
        """After SIGKILL to all server processes during a load, none of its rows is there; the next load is complete."""
        path = self.cluster.file("wide", documents(2000))
        self.sql(f"DROP TABLE IF EXISTS t; {TABLE}")
        process = subprocess.Popen(self.cluster.command(
            "-c", f"SET pgsluice.copy = on; {COPY.format(endless(path))[:-1]}, workers 2)"), stderr=subprocess.DEVNULL)
        self.assertTrue(wait_until(lambda: self.sql("SELECT 1 FROM pg_stat_progress_copy WHERE tuples_processed > 3000")))
        self.cluster.kill()
        self.cluster.start()
        self.assertNotEqual(process.wait(), 0)
        self.assertEqual(self.sql("SELECT count(*) FROM t"), "0")
        self.same(TABLE, documents(250))
        self.assertFalse(workers(self.cluster))


class Replayed(unittest.TestCase):
    """Values that workers have compressed, on a standby and after a crash."""

    def server(self, settings, **more):
        """A server with the functions and a table that stock COPY has filled; sets what is stored in it, and the file."""
        server = Cluster(settings, **more)
        self.addCleanup(server.remove)
        self.path = server.file("documents", long_documents())
        server.sql(f"CREATE EXTENSION pgsluice; {CHUNKS} {TABLE}; COPY t FROM '{self.path}' WITH (FORMAT csv)")
        self.stored = server.sql(STORED)
        check_heap(self, server)
        self.assertGreater(int(server.sql("SELECT count(*) FROM t WHERE pg_column_compression(a) <> '' AND pg_column_size(a) > 2000")), 50)
        return server

    def load(self, server, before="", after=""):
        """Loads the file; workers compress some of its values."""
        for pause in (0.2, 0.5, 2, 5):
            said = server.sql(f"TRUNCATE t; CHECKPOINT; SET pgsluice.copy = on; {before} COPY t FROM {with_pauses(self.path, pause)} WITH (FORMAT csv, workers 2); {after}"
                              "SELECT values_compressed FROM pgsluice.last_copy")
            if int(said) > 0:
                return
        self.fail("workers have compressed nothing")

    def test_standby(self):
        """A standby replays each page as on the primary (wal_consistency_checking), also after a rolled-back load, and stores what stock COPY stores; amcheck finds no error."""
        primary = self.server(["wal_level = replica", "wal_consistency_checking = 'all'", "wal_keep_size = 1GB"])
        standby = Cluster(["hot_standby = on"], copy_of=primary)
        self.addCleanup(standby.remove)
        self.load(primary, "BEGIN;", "ROLLBACK;")
        self.load(primary)
        standby.follow(primary)
        self.assertEqual(primary.sql(STORED), self.stored)
        self.assertEqual(standby.sql(STORED), self.stored)
        standby.stop()
        (standby.data / "standby.signal").unlink()
        standby.start()
        check_heap(self, standby)

    def test_killed_after_the_commit(self):
        """After SIGKILL to all server processes right after the COMMIT, all rows are there as stock COPY stores them; amcheck finds no error."""
        server = self.server(["max_wal_size = 64MB"], durable=True)
        for before, after in (("", ""), ("BEGIN;", "COMMIT;"), ("BEGIN; TRUNCATE t;", "COMMIT;")):
            self.load(server, before, after)
            server.kill()
            server.start()
            self.assertEqual(server.sql(STORED), self.stored)
            check_heap(self, server)


class Switched(Administered):
    """The administrator's switch."""

    def test_off(self):
        """With allow_compression off, workers compress nothing, and last_copy names the switch."""
        with self.cluster.connect() as session:
            self.configure(session, allow_compression="off")
            session.run(f"DROP TABLE IF EXISTS t; {TABLE}; SET pgsluice.copy = on; SET pgsluice.workers = 2;"
                        + COPY.format(f"'{self.cluster.file('input', documents(250))}'"))
            self.assertEqual(session.run("SELECT values_compressed, switched_off FROM pgsluice.last_copy"), "0|pgsluice.allow_compression")


if __name__ == "__main__":
    unittest.main()
