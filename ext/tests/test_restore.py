"""pg_restore and psql, with the setting on and off, restore the same databases."""

import os
import subprocess
import unittest

from . import cluster as clusters
from .cluster import BIN, Cluster

# pgbench's tables, as `pgbench -i` creates them.
SCALE = 10 if os.environ.get("PGSLUICE_SOAK") else 1
PGBENCH = f"""
CREATE TABLE pgbench_history (tid int, bid int, aid int, delta int, mtime timestamp, filler char(22));
CREATE TABLE pgbench_tellers (tid int NOT NULL, bid int, tbalance int, filler char(84)) WITH (fillfactor = 100);
CREATE TABLE pgbench_accounts (aid int NOT NULL, bid int, abalance int, filler char(84)) WITH (fillfactor = 100);
CREATE TABLE pgbench_branches (bid int NOT NULL, bbalance int, filler char(88)) WITH (fillfactor = 100);
INSERT INTO pgbench_branches SELECT i, 0, NULL FROM generate_series(1, {SCALE}) i;
INSERT INTO pgbench_tellers SELECT i, (i - 1) / 10 + 1, 0, NULL FROM generate_series(1, {SCALE} * 10) i;
INSERT INTO pgbench_accounts SELECT i, (i - 1) / 100000 + 1, 0, '' FROM generate_series(1, {SCALE} * 100000) i;
INSERT INTO pgbench_history SELECT i % 10 + 1, 1, i, i * 7 % 5000, '2024-01-01'::timestamp + i * '1 second'::interval, NULL
  FROM generate_series(1, 5000) i;
ALTER TABLE pgbench_branches ADD PRIMARY KEY (bid);
ALTER TABLE pgbench_tellers ADD PRIMARY KEY (tid), ADD FOREIGN KEY (bid) REFERENCES pgbench_branches;
ALTER TABLE pgbench_accounts ADD PRIMARY KEY (aid), ADD FOREIGN KEY (bid) REFERENCES pgbench_branches;
ALTER TABLE pgbench_history ADD FOREIGN KEY (aid) REFERENCES pgbench_accounts;
"""

# Partitions of three kinds, foreign keys between them, arrays, jsonb, and values that need quoting.
VARIED = r"""
CREATE TYPE mood AS ENUM ('sad', 'it''s ok', 'happy');
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE TYPE pair AS (a int, b text);
CREATE TABLE customer (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL, m mood, tags text[], doc jsonb, p positive);
INSERT INTO customer (name, m, tags, doc, p)
  SELECT E'n\t' || i || E'\\ \n', (enum_range(NULL::mood))[i % 3 + 1], ARRAY['a' || i, NULL, '{"', ''],
         jsonb_build_object('i', i, 'list', jsonb_build_array(i, NULL, 'x"y')), nullif(i % 7, 0) FROM generate_series(1, 4000) i;
CREATE TABLE orders (id bigserial, customer int NOT NULL REFERENCES customer, at date NOT NULL, lines pair[], total numeric(12, 2),
  net numeric GENERATED ALWAYS AS (total * 0.8) STORED, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
CREATE TABLE orders_old PARTITION OF orders FOR VALUES FROM (MINVALUE) TO ('2024-01-01') PARTITION BY HASH (id);
CREATE TABLE orders_old_0 PARTITION OF orders_old FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE orders_old_1 PARTITION OF orders_old FOR VALUES WITH (MODULUS 2, REMAINDER 1);
CREATE TABLE orders_new (total numeric(12, 2), id bigint NOT NULL, net numeric GENERATED ALWAYS AS (total * 0.8) STORED, customer int NOT NULL,
  dropped text, at date NOT NULL, lines pair[]);
ALTER TABLE orders_new DROP COLUMN dropped;
ALTER TABLE orders ATTACH PARTITION orders_new DEFAULT;
INSERT INTO orders (customer, at, lines, total)
  SELECT i % 4000 + 1, '2023-01-01'::date + i % 700, ARRAY[(i, 'x,"' || i)::pair, NULL], i * 1.25 FROM generate_series(1, 20000) i;
CREATE TABLE notes (id int, lang text, body text, raw bytea, r int4range, tree tsvector) PARTITION BY LIST (lang);
CREATE TABLE notes_en PARTITION OF notes (CHECK (id > 0)) FOR VALUES IN ('en', 'fr');
CREATE TABLE notes_rest PARTITION OF notes DEFAULT;
INSERT INTO notes SELECT i, (ARRAY['en', 'fr', 'cs', NULL])[i % 4 + 1], repeat('ž' || i || ' ', i % 900), decode(md5(i::text), 'hex'),
  int4range(i, i + 5), to_tsvector('simple', 'word' || i) FROM generate_series(1, 4000) i;
CREATE INDEX ON notes USING gin (tree);
CREATE INDEX ON customer USING gin (doc);
CREATE UNIQUE INDEX ON customer (lower(name), p);
CREATE TABLE empty (a int, b text);
CREATE TABLE no_columns ();
INSERT INTO no_columns DEFAULT VALUES;
CREATE UNLOGGED TABLE fleeting AS SELECT i, i::text AS label FROM generate_series(1, 3000) i;
CREATE MATERIALIZED VIEW counted AS SELECT lang, count(*) FROM notes GROUP BY lang;
CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.p := 3; RETURN NEW; END';
CREATE TRIGGER touch BEFORE INSERT ON customer FOR EACH ROW EXECUTE FUNCTION touch();
"""

CONTENTS = """
SELECT format($$SELECT '%s', count(*), md5(string_agg(t::text, E'\\n' ORDER BY t::text COLLATE "C")) FROM ONLY %s t$$, oid::regclass, oid::regclass)
  FROM pg_class WHERE relkind IN ('r', 'm') AND relnamespace = 'public'::regnamespace ORDER BY relname COLLATE "C" \\gexec
SELECT sequencename, last_value FROM pg_sequences ORDER BY 1;
SELECT c.relname, indisvalid FROM pg_index JOIN pg_class c ON c.oid = indexrelid WHERE relnamespace = 'public'::regnamespace
  ORDER BY relname COLLATE "C";
"""


class Restore(unittest.TestCase):
    """Dumps of two databases, restored in each way."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(["max_wal_size = 2GB"])
        for name, sql in (("bench", PGBENCH), ("varied", VARIED)):
            cls.cluster.sql(f"CREATE DATABASE {name}")
            cls.cluster.sql(sql, database=name)
            cls.run_program("pg_dump", "-Fc", "-Z0", "-f", cls.cluster.home / f"{name}.dump", "-d", name)
            cls.run_program("pg_dump", "-f", cls.cluster.home / f"{name}.sql", "-d", name)
            cls.run_program("pg_dump", "-s", "-f", cls.cluster.home / f"{name}.schema", "-d", name)

    @classmethod
    def tearDownClass(cls):
        cls.cluster.remove()

    @classmethod
    def run_program(cls, program, *options, setting="off"):
        """Runs a program of PostgreSQL against this server."""
        done = subprocess.run(
            [str(part) for part in (BIN / program, "-h", cls.cluster.home, "-p", cls.cluster.port, "-U", "postgres", *options)],
            capture_output=True, check=False, env={**os.environ, "PGOPTIONS": f"-c pgsluice.copy={setting} -c log_min_messages=debug1"},
        )
        if done.returncode != 0:
            raise RuntimeError(f"{program}: {done.stderr.decode(errors='replace')}")

    def restored(self, name, how, setting):
        """Restores a database; returns its contents and schema, and how many COPYs the extension did."""
        self.cluster.sql("DROP DATABASE IF EXISTS target WITH (FORCE)")
        self.cluster.sql("CREATE DATABASE target")
        before = self.cluster.log.read_text(errors="replace").count("pgsluice: route")
        dump = self.cluster.home / f"{name}.{'sql' if how == 'psql' else 'dump'}"
        if how == "psql":
            self.run_program("psql", "-Xq", "-v", "ON_ERROR_STOP=1", "-d", "target", "-f", dump, setting=setting)
        else:
            self.run_program("pg_restore", *how.split(), "-d", "target", dump, setting=setting)
        done = self.cluster.log.read_text(errors="replace").count("pgsluice: route") - before
        if clusters.has("amcheck"):
            self.cluster.sql("CREATE EXTENSION amcheck; SELECT bt_index_check(indexrelid, true) FROM pg_index JOIN pg_class c ON c.oid = indexrelid"
                             " WHERE relam = (SELECT oid FROM pg_am WHERE amname = 'btree') AND relkind = 'i' AND indrelid > 16384;"
                             "SELECT verify_heapam(oid) FROM pg_class WHERE relkind = 'r' AND oid > 16384; DROP EXTENSION amcheck", database="target")
        self.run_program("pg_dump", "-s", "-f", self.cluster.home / "target.schema", "-d", "target")
        return self.cluster.sql(CONTENTS, database="target"), self.schema("target"), done

    def schema(self, name):
        """The lines of a schema dump, without the two restrict lines, which differ in each dump."""
        return [line for line in (self.cluster.home / f"{name}.schema").read_text().split("\n") if "restrict " not in line]

    def test_restore(self):
        """Restored by psql, by pg_restore, with two jobs and in one transaction, a database has the source's contents
        and schema; with the setting on, the extension does each COPY."""
        for name, copies in (("bench", 4), ("varied", 9)):
            source = self.cluster.sql(CONTENTS, database=name)
            ways = ("psql", "", "-j 2", "--single-transaction")
            for how in ways:
                for setting in ("on", "off") if how == ways[-1] or os.environ.get("PGSLUICE_SOAK") else ("on",):
                    with self.subTest(database=name, how=how, setting=setting):
                        contents, schema, done = self.restored(name, how, setting)
                        self.assertEqual(contents, source)
                        self.assertEqual(schema, self.schema(name))
                        self.assertEqual(done, copies if setting == "on" else 0)

    def test_extension_in_the_template(self):
        """The schema pgsluice is a member of the extension, so no dump creates it: a dump can be restored into a database that has the extension."""
        self.cluster.sql("CREATE DATABASE extended")
        self.cluster.sql("CREATE EXTENSION pgsluice; CREATE TABLE t AS SELECT 1 AS a", database="extended")
        self.run_program("pg_dump", "-f", self.cluster.home / "having.sql", "-d", "extended")
        dumped = (self.cluster.home / "having.sql").read_text()
        self.assertNotIn("CREATE SCHEMA", dumped)
        self.assertIn("CREATE EXTENSION IF NOT EXISTS pgsluice", dumped)
        self.run_program("pg_dump", "-Fc", "-f", self.cluster.home / "having.dump", "-d", "extended")
        # The second case stands for a database created from a template1 that has the extension.
        for before in ("", "CREATE EXTENSION pgsluice"):
            self.cluster.sql("DROP DATABASE IF EXISTS target WITH (FORCE)")
            self.cluster.sql("CREATE DATABASE target")
            self.cluster.sql(before, database="target")
            self.run_program("pg_restore", "-1", "-d", "target", self.cluster.home / "having.dump")
            self.assertEqual(self.cluster.sql("SELECT a FROM t; SELECT count(*) FROM pgsluice.last_copy", database="target"), "1\n0")
        self.cluster.sql("DROP EXTENSION pgsluice", database="target")
        self.assertEqual(self.cluster.sql("SELECT count(*) FROM pg_namespace WHERE nspname = 'pgsluice'", database="target"), "0")


if __name__ == "__main__":
    unittest.main()
