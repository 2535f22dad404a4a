"""Live merges that end in a kill, a hundred times, beside writers and VACUUM.

Only with PGSLUICE_SOAK. PGSLUICE_KILLS=n kills n times, PGSLUICE_SEED changes the moments.
"""

import os
import random
import re
import subprocess
import unittest

from .cluster import MAJOR, OnCluster, has
from .test_unique_merge import COPY, WithTable, fields, lines, table

KILLS = int(os.environ.get("PGSLUICE_KILLS", "100"))
ROWS = 12000
SHARED = 1000
WRITERS = 2
STATEMENTS = 4000
OTHERS = "CREATE INDEX tgin ON t USING gin ((ARRAY[w, left(l, 3)])) WITH (fastupdate = off); CREATE INDEX thash ON t USING hash (l);"
MERGED = ("SELECT count(*), min(coalesce(CASE WHEN i->>'index' IN ('tgin', 'thash') THEN i->'rows'->>'sorted' ELSE i->'rows'->>'leaf_merge' END, '0')::int) >= 1000"
          " FROM pgsluice.last_copy, jsonb_array_elements(indexes) i")
BY_INDEX, BY_TABLE = "SET enable_seqscan = off;", "SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off;"


class Writer:
    """A session that inserts and deletes rows of its own keys, one statement for each, and shows the key of each statement that has committed."""

    def __init__(self, cluster, number, attempt):
        self.base = 10 ** 9 + (attempt * WRITERS + number) * STATEMENTS
        self.keys = [self.base + n // 2 if n % 2 == 0 else -(self.base + n // 2 - 3) for n in range(STATEMENTS) if n % 2 == 0 or n > 6]
        script = "".join(f"INSERT INTO t (u, w, l, k) VALUES (gen_random_uuid(), 'w{key % 300}', 'o{key}', {key}) RETURNING k;\n" if key > 0
                         else f"DELETE FROM t WHERE k = {-key} RETURNING -k;\n" for key in self.keys)
        path = cluster.file(f"writer{number}.sql", script.encode())
        self.said = cluster.home / f"writer{number}.said"
        with open(self.said, "wb") as said:
            self.process = subprocess.Popen(cluster.command("-f", str(path)), stdout=said, stderr=subprocess.PIPE, text=True)

    def after(self, count):
        """The keys that are there after so many statements."""
        there = set()
        for key in self.keys[:count]:
            (there.add if key > 0 else there.remove)(abs(key))
        return there

    def check(self, test):
        """What was acknowledged is there, and the statement in progress was done or not."""
        test.assertNotIn("ERROR", self.process.communicate()[1])
        said = [int(word) for word in self.said.read_text().split()]
        test.assertEqual(said, self.keys[:len(said)])
        found = {int(key) for key in test.sql(f"SELECT k FROM t WHERE k >= {self.base} AND k < {self.base + STATEMENTS}").split()}
        test.assertIn(found, (self.after(len(said)), self.after(len(said) + 1)))
        return len(said)


@unittest.skipUnless("PGSLUICE_SOAK" in os.environ, "PGSLUICE_SOAK=1 runs it")
class Kills(WithTable, OnCluster):
    """The server is killed a hundred times."""

    settings = ["wal_level = replica", "checkpoint_timeout = 1h", "maintenance_work_mem = '4MB'"]

    def checked_all(self):
        """Every B-tree passes amcheck; the GIN and the hash index find each row of the table once."""
        self.checked()
        self.assertEqual(*(self.sql(f"{way} SELECT string_agg((SELECT count(*) || ' ' || coalesce(sum(hashtext(l)), 0) FROM t WHERE ARRAY[w, left(l, 3)] @> ARRAY['w' || p]), ',')"
                                    " FROM generate_series(0, 59) p") for way in (BY_INDEX, BY_TABLE)))
        if MAJOR >= 18 and has("amcheck"):
            self.sql("SELECT gin_index_check('tgin')")
        self.assertEqual(self.sql("SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_material = off; SET enable_memoize = off;"
                                  "SELECT count(*) FROM (SELECT l FROM t) v, LATERAL (SELECT FROM t WHERE l = v.l) _"), self.sql(f"{BY_TABLE} SELECT count(l) FROM t"))
        for key in ("u", "k", "l", "long"):
            self.assertEqual(self.sql(f"{BY_TABLE} SELECT count({key}) - count(DISTINCT {key}) FROM t"), "0", key)

    def begin(self, attempt):
        """Starts two loads, which share keys in one of three attempts, and others; returns the keys of each load, the loads, the writers and the session that vacuums."""
        rows, half, shared = fields(ROWS, 1000 + attempt), ROWS // 2, SHARED // 2 if attempt % 3 == 0 else 0
        parts, loads = (rows[:half + shared], rows[half - shared:]), []
        for n, part in enumerate(parts):
            path = self.cluster.file(f"part{n}", "".join(lines(part)).encode())
            done = f"INSERT INTO done VALUES ({n}, {len(part)}, {sum(int(row[3]) for row in part)})"
            loads.append(subprocess.Popen(self.cluster.command("-c", "SET pgsluice.copy = on", "-c", f"BEGIN; {done}", "-c", COPY.format(path), "-c", MERGED, "-c", "COMMIT"),
                                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        vacuum = subprocess.Popen(self.cluster.command("-f", str(self.cluster.file("vacuum.sql", b"VACUUM t;\n" * 50))), stderr=subprocess.DEVNULL)
        return [{row[6].rstrip("y") for row in part} for part in parts], loads, [Writer(self.cluster, n, attempt) for n in range(WRITERS)], vacuum

    def watch(self, loads, target):
        """Waits until so much WAL is written, or the loads have ended; returns which of them have not, and how much WAL there is."""
        with self.cluster.connect() as session:
            start, written = session.run("SELECT pg_current_wal_insert_lsn()"), 0
            while written < target and any(load.poll() is None for load in loads):
                written = int(session.run(f"SELECT pg_current_wal_insert_lsn() - '{start}'"))
        return [n for n, load in enumerate(loads) if load.poll() is None], written

    def entries(self):
        """The keys in the index of long keys, also those of rows that have not committed."""
        self.sql("CHECKPOINT")
        content = (self.cluster.data / self.sql("SELECT pg_relation_filepath('tlong')")).read_bytes()
        return {key.decode() for key in re.findall(rb"([0-9a-f]{16}\d+)y{300}", content)}

    def attempt(self, number, target):
        """One attempt, which ends in a kill once so much WAL is written (None: in none). Returns whether a load was unfinished then, whether entries of it were in an
        index, how many statements of writers had committed, and how much WAL there was."""
        self.sql("DELETE FROM t WHERE k >= 1000000; TRUNCATE done; CHECKPOINT")
        keys, loads, writers, vacuum = self.begin(number)
        unfinished, wal = self.watch(loads, target or 1 << 60)
        if target is not None:
            self.cluster.kill()
            self.cluster.start()
        there, committed = self.entries(), self.sql("SELECT load FROM done").split()
        said, told = zip(*[load.communicate() for load in loads])
        acknowledged = sum(writer.check(self) for writer in writers)
        vacuum.wait()
        self.checked_all()
        if number % 3 > 0:
            self.assertNotIn("ERROR", "".join(told))
            self.assertEqual([n for n in range(2) if n not in unfinished and str(n) not in committed], [])
        if target is None:
            self.assertEqual(said, ("10|t\n", "10|t\n"))
        self.assertEqual(self.sql("SELECT count(*), sum(k) FROM t WHERE k >= 1000000 AND k < 1000000000"), self.sql("SELECT coalesce(sum(rows), 0), sum(keys) FROM done"))
        lost = [n for n in unfinished if str(n) not in committed]
        return bool(lost), any(keys[n] & there for n in lost), acknowledged, wal

    def test_a_hundred_kills_under_writers(self):
        """Two loads merge into unique, GIN and hash indexes beside writers and VACUUM, and the server is killed, at most times in the middle of their merges:
        what has committed is there exactly once, nothing else is, and indexes pass amcheck."""
        chance = random.Random(int(os.environ.get("PGSLUICE_SEED", "100")))
        self.sql(table(5000, more=OTHERS) + "CREATE TABLE done (load int, rows int, keys numeric)")
        *_, wal = self.attempt(1, None)
        ends = []
        for number in range(KILLS):
            with self.subTest(attempt=number):
                ends.append(self.attempt(number, int(wal * chance.uniform(0.05, 0.7))))
        unfinished, begun, acknowledged, _ = map(sum, zip(*ends))
        print(f"\n{KILLS} kills: {unfinished} during a load, {begun} of them when it had put entries into an index; {acknowledged} statements of writers had committed")
        self.assertGreaterEqual(begun, 0.6 * KILLS)
        self.assertGreater(acknowledged, 10 * KILLS)


if __name__ == "__main__":
    unittest.main()
