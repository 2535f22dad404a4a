"""Random tables with random histories and random loads, compared with stock COPY after each step; only with
PGSLUICE_SOAK.

A failure reports its seed and all statements; PGSLUICE_SEED starts from that seed.
"""

import os
import random
import re
import unittest

from .cluster import Cluster, Held, Refused, has

HISTORIES = 40
SEED = int(os.environ.get("PGSLUICE_SEED", "1"))
SETTINGS = ["max_worker_processes = 8", "checkpoint_timeout = 1h"]
MINIMAL = ["wal_level = minimal", "max_wal_senders = 0", "wal_skip_threshold = '1MB'"]

COLUMNS = "id bigint NOT NULL, ut text, k int, txt text, num numeric, ts timestamptz, u uuid, ar int[], pad text"
UNIQUE = ("(id)", "(id DESC)", "(id) INCLUDE (k)", "(id, k)", "(ut)", '(ut COLLATE "C" DESC)', "(id) WITH (fillfactor = 50)")
OTHERS = ("(k)", "(k DESC NULLS LAST)", "(txt)", '(txt COLLATE "C")', "(num)", "(ts, k)", "(u)", "(k) WITH (deduplicate_items = off)",
          "(k) WITH (fillfactor = 60)", "(k, id) INCLUDE (ts)", "(id DESC, txt)", "(ts) INCLUDE (num)", "(ar)",
          "(lower(txt))", "(txt) WHERE k > 100", "((k % 10))", "USING hash (txt)", "USING gin (ar)", "USING brin (id)")
NEW = ("SELECT n, 'ut' || n, nullif(n * 7919 % 500, 77)::int, nullif('t' || md5((n % 300)::text), 't' || md5('17')), n * 31 % 1000 / 8.0,"
       " '2020-01-01'::timestamptz + n * interval '61 s', md5('u' || n)::uuid, ARRAY[(n % 20)::int, (n % 7)::int],"
       " (SELECT string_agg(md5((n + g)::text), '') FROM generate_series(1, {width} / 32 + 1) g)")
ROWS = "SELECT count(*), md5(string_agg(md5(t::text), '' ORDER BY id, t::text)) FROM {} t"
TAKEN = "SELECT 'way:' || (i ->> 'way') FROM pgsluice.last_copy, jsonb_array_elements(indexes) i;"


class History:
    """One table in two schemas: every script that runs in `ours` runs in `stock`, too."""

    def __init__(self, cluster, seed):
        self.cluster, self.random = cluster, random.Random(seed)
        self.next_id, self.log, self.ways, self.files = 1, [], set(), 0
        self.indexes, self.unlogged, self.keyed = [], False, False

    def both(self, ours, stock=None):
        """Runs a script for each; errors must be equal."""
        said = []
        self.log.append(ours)
        for schema, setting, script in (("stock", "off", stock or ours), ("ours", "on", ours)):
            head = f"SET client_min_messages = error; SET search_path = {schema}, public; SET pgsluice.copy = {setting};"
            try:
                out = self.cluster.sql(head + script)
                self.ways.update(re.findall(r"^way:(.*)$", out, re.M))
                said.append(None)
            except Refused as refused:
                lines = re.sub(r"^psql:.*?: ", "", str(refused), flags=re.M).splitlines()
                said.append([line for line in lines if line.startswith(("ERROR", "DETAIL", "CONTEXT"))])
        assert said[0] == said[1], f"stock COPY says {said[0]}, ours {said[1]}"

    def create(self):
        """Creates the table and its indexes; some tables have no unique key but `id`, which decides what a duplicate is."""
        r = self.random
        self.keyed = r.random() < 0.4
        unique = ["(id)"] if self.keyed else r.sample(UNIQUE, r.randrange(3))
        names = [f"UNIQUE INDEX q{n} ON t {on}" for n, on in enumerate(unique)]
        names += [f"INDEX i{n} ON t {on}" for n, on in enumerate(r.sample(OTHERS, r.choice((0, 1, 2, 3, 5))))]
        r.shuffle(names)
        self.indexes, self.unlogged = names, r.random() < 0.3
        return (f"CREATE {'UNLOGGED' if self.unlogged else ''} TABLE t ({COLUMNS}) WITH (autovacuum_enabled = off,"
                f" fillfactor = {r.choice((100, 100, 70, 30))});" + "".join(f"CREATE {name};" for name in names))

    def insert(self, count, width):
        """New rows by INSERT."""
        first, self.next_id = self.next_id, self.next_id + count
        return f"INSERT INTO t {NEW.format(width=width)} FROM generate_series({first}, {self.next_id - 1}) n;" if count else ""

    def change(self):
        """A random change of the table's rows."""
        r = self.random
        return r.choice((f"DELETE FROM t WHERE id % {r.choice((2, 3, 10))} = 1;", "DELETE FROM t WHERE id < 200;",
                         f"UPDATE t SET pad = 'hot' || id WHERE id % {r.choice((3, 7))} = 0;",
                         f"UPDATE t SET k = k + 1, num = num + 1 WHERE id % {r.choice((5, 11))} = 0;",
                         "UPDATE t SET pad = repeat(md5(id::text), 40) WHERE id % 13 = 0;", self.insert(r.choice((3, 50)), 100)))

    def lines(self, count, twice):
        """CSV of new rows; `twice` says how many have existing keys: none, a few or many."""
        r = self.random
        widths = r.choice(((100,), (400,), (50, 300, 1500), (10, 900), (300, 300, 300, 300, 300, 9000), (0,)))
        keys = list(range(self.next_id, self.next_id + count))
        self.next_id += count
        order = r.choice(("shuffled", "ascending", "below"))
        if order == "shuffled":
            r.shuffle(keys)
        elif order == "below":
            keys = [-key for key in keys]
        chance = {"": 0, "few": 2 / count, "many": 0.6}[twice]
        for n in range(count):
            if r.random() < chance:
                keys[n] = r.randrange(1, self.next_id)
        made = []
        for key in keys:
            k = "" if r.random() < 0.1 else r.randrange(500)
            txt = "" if r.random() < 0.1 else f"t{r.randrange(300)}" + "é" * r.choice((0, 0, 3, 1))
            width = r.choice(widths)
            pad = f"{r.getrandbits(4 * width):x}" if width else ""
            made.append(f'{key},ut{key},{k},{txt},{r.randrange(10**6) / 100},2024-01-{r.randrange(1, 28):02} 10:00:00+00,'
                        f'{r.getrandbits(128):032x},"{{{key % 20},{key % 7}}}",{pad}\n')
        return made

    def file(self, lines):
        """Writes these lines to a file; returns its path in quotes."""
        self.files += 1
        return f"'{self.cluster.file(f'input{self.files}', ''.join(lines).encode())}'"

    def copy(self, alone):
        """One COPY for ours, and its equivalent for stock. `alone`: other sessions can reach the table."""
        r = self.random
        kind = r.choice(("plain", "plain", "duplicate", "rejects")) if self.keyed else "plain"
        twice = r.choice(("few", "many")) if kind == "duplicate" else "few" if kind == "plain" and r.random() < 0.15 else ""
        lines = self.lines(r.choice((1, 300, 3000, 3000, 12000)), twice)
        options = f"FORMAT csv, workers {r.choice((0, 0, 1))}" + ("" if alone else ", lock 'exclusive'")
        good = self.file(lines)
        if kind == "rejects":
            for _ in range(r.choice((0, 1, 20))):
                lines.insert(r.randrange(len(lines) + 1), r.choice(("x,1\n", "abc,,,,,,,,\n", "1,2,notint,,,,,,\n")))
            return f"COPY t FROM {self.file(lines)} WITH ({options}, rejects_to 'public.bad');{TAKEN}", f"COPY t FROM {good} WITH (FORMAT csv);"
        if kind == "plain":
            return f"COPY t FROM {good} WITH ({options});{TAKEN}", f"COPY t FROM {good} WITH (FORMAT csv);"
        mode = r.choice(("skip", "replace"))
        names = [column.split()[0] for column in COLUMNS.split(", ")]
        what = "NOTHING" if mode == "skip" else "UPDATE SET " + ", ".join(f"{name} = excluded.{name}" for name in names[1:])
        names = ", ".join(names)
        return (f"COPY t FROM {good} WITH ({options}, on_duplicate '{mode}', on_duplicate_index 'q0');{TAKEN}",
                f"CREATE TEMP TABLE g (LIKE t, line bigserial); COPY g ({names}) FROM {good} WITH (FORMAT csv);"
                f"INSERT INTO t SELECT {names} FROM (SELECT DISTINCT ON (id) * FROM g ORDER BY id, line {'DESC' if mode == 'replace' else ''}) _"
                f" ON CONFLICT (id) DO {what}; DROP TABLE g;")

    def transaction(self, begin=""):
        """Runs a COPY by itself, or several in a transaction, with savepoints and changes between them."""
        r = self.random
        if not begin and r.random() < 0.3:
            self.both(*self.copy(alone=True))
            return
        begin += r.choice(("LOCK TABLE t IN ACCESS EXCLUSIVE MODE;", "", "TRUNCATE t;")) + r.choice(("SET maintenance_work_mem = '1MB';", ""))
        scripts = [[begin], [begin]]
        for _ in range(r.choice((1, 1, 2, 3))):
            before, after = r.choice((("", ""),) * 6 + (("SAVEPOINT p;", "ROLLBACK TO p;"), ("SAVEPOINT p; TRUNCATE t;", "RELEASE p;")))
            after += self.change() if r.random() < 0.4 else ""
            for script, one in zip(scripts, self.copy(alone=False)):
                script.append(before + one + after)
        end = "ROLLBACK;" if r.random() < 0.08 else "COMMIT;"
        self.both(*(f"BEGIN; {' '.join(script)} {end}" for script in scripts))

    def check(self):
        """Both tables must have the same rows, and each index of ours must match its table."""
        sql = self.cluster.sql
        stock, ours = (sql(ROWS.format(f"{schema}.t")) for schema in ("stock", "ours"))
        assert stock == ours, f"stock COPY leaves {stock}, ours {ours}"
        if has("amcheck"):
            said = sql("SELECT * FROM verify_heapam('ours.t', check_toast => true)")
            assert not said, said
            sql("SELECT bt_index_parent_check(indexrelid, true, true) FROM pg_index JOIN pg_class c ON c.oid = indexrelid"
                " WHERE indrelid = 'ours.t'::regclass AND relam = 403")
        for index in self.indexes:
            by_index, by_table = self.answers(index)
            assert by_index == by_table, f"{index}: {by_index} by the index, {by_table} by the table"

    def answers(self, index):
        """A query's result by this index alone, and without any index."""
        column = re.search(r"\W(id|ut|k|txt|num|ts|u|ar)\W", index.split(" ON t ")[1])[1]
        where = {"hash": "txt = 't7'", "gin": "ar @> ARRAY[7]", "brin": "id BETWEEN -5000 AND 7000"}.get(
            (re.search(r"USING (\w+)", index) or [None] * 2)[1], "k > 100" if "WHERE" in index else "true")
        query = f"SELECT count(*), md5(string_agg(v, ',' ORDER BY v COLLATE \"C\")) FROM (SELECT {column}::text v FROM ours.t WHERE {where}) _"
        others = "".join(f"DROP INDEX {other.split(' ON ')[0].split()[-1]};" for other in self.indexes if other != index)
        return self.cluster.sql(f"BEGIN; SET LOCAL search_path = ours, public; {others} SET LOCAL enable_seqscan = off; {query};"
                                "SET LOCAL enable_seqscan = on; SET LOCAL enable_indexscan = off; SET LOCAL enable_indexonlyscan = off;"
                                f"SET LOCAL enable_bitmapscan = off; {query}; ROLLBACK").split("\n")

    def killed_midway(self):
        """Kills the server before the commit: the table must be as before."""
        before = self.cluster.sql(ROWS.format("ours.t"))
        script = self.random.choice(("LOCK TABLE t IN ACCESS EXCLUSIVE MODE;", "TRUNCATE t;")) + self.copy(alone=False)[0]
        self.log.append(f"BEGIN; {script} -- and the server is killed, to be started again")
        load = Held(self.cluster)
        try:
            load.run(f"SET search_path = ours, public; SET pgsluice.copy = on; BEGIN; {script} SELECT 1")
        except Refused:
            pass
        self.cluster.sql("CHECKPOINT")
        self.cluster.kill()
        self.cluster.start()
        load.process.communicate()
        after = self.cluster.sql(ROWS.format("ours.t"))
        assert after == before, f"{before} before a load that was killed, {after} after it"

    def watched(self):
        """Runs changes and a transaction that an older snapshot must not see, by any index."""
        before, logged = self.cluster.sql(ROWS.format("ours.t")), len(self.log)
        watcher = Held(self.cluster)
        watcher.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
        self.both(self.change())
        self.transaction()
        self.both("VACUUM t")
        watcher.run("SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off")
        keys = [re.search(r"ON t \(([^()]*)\)$", index) for index in self.indexes]
        # TRUNCATE is visible to all snapshots.
        for key in keys if "TRUNCATE" not in "".join(self.log[logged:]) else ():
            seen = watcher.run(ROWS.format(f"(SELECT * FROM ours.t ORDER BY {key[1]} OFFSET 0)")) if key else before
            assert seen == before, f"an older snapshot sees {seen} by {key[1]}, not {before}"
        watcher.end()

    def run(self):
        """Runs the history, from CREATE TABLE on."""
        r = self.random
        self.cluster.sql("SET client_min_messages = error; DROP SCHEMA IF EXISTS stock, ours CASCADE; CREATE SCHEMA stock; CREATE SCHEMA ours; TRUNCATE bad")
        width = r.choice((30, 300, 1200))
        past = self.insert(r.choice((0, 30, 1000, 5000)), width)
        if r.random() < 0.2:
            self.transaction(self.create() + past)
        else:
            self.both(self.create() + past)
        if self.cluster.sql("SELECT to_regclass('ours.t') IS NULL") == "t":
            return
        for _ in range(r.choice((1, 2, 3))):
            for _ in range(r.choice((0, 1, 3))):
                self.both(r.choice((self.change(), "VACUUM t", f"BEGIN; {self.insert(300, 50)} ROLLBACK")))
            r.choice((self.transaction,) * 6 + (self.watched,) * 3)()
            # If a TRUNCATE of an unlogged table was rolled back, a server killed then may not start again.
            if r.random() < 0.2 and not self.unlogged:
                self.killed_midway()
            self.check()


@unittest.skipUnless(os.environ.get("PGSLUICE_SOAK"), "takes minutes")
class Histories(unittest.TestCase):
    """Random histories at both WAL levels."""

    def histories(self, settings, seeds):
        """Runs histories on one server; returns the methods by which indexes got their entries."""
        cluster, ways = Cluster(SETTINGS + settings), set()
        self.addCleanup(cluster.remove)
        cluster.sql("CREATE EXTENSION pgsluice; CREATE TABLE bad (LIKE pgsluice.reject)" + ("; CREATE EXTENSION amcheck" if has("amcheck") else ""))
        for seed in seeds:
            history = History(cluster, seed)
            try:
                history.run()
            except (AssertionError, Refused) as error:
                self.fail(f"PGSLUICE_SEED={seed}: {error}\n" + "\n".join(history.log))
            ways |= history.ways
        return ways

    def test_logged(self):
        """At wal_level replica, random histories leave stock COPY's rows and sound indexes, and use all four methods for index entries."""
        self.assertLessEqual({"row", "sorted", "leaves", "build"}, self.histories([], range(SEED, SEED + HISTORIES)))

    def test_minimal(self):
        """At wal_level minimal, random histories leave stock COPY's rows and sound indexes, and use all four methods for index entries."""
        self.assertLessEqual({"row", "sorted", "leaves", "build"}, self.histories(MINIMAL, range(SEED, SEED + HISTORIES)))


if __name__ == "__main__":
    unittest.main()
