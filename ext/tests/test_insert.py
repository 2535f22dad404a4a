"""The insert route against stock COPY: values, errors, tables of every kind."""

import random
import struct
import unittest

from . import cluster as clusters
from .cluster import MAJOR, OnCluster, Refused
from .differential import ROUTES, compare

TABLE = "CREATE TABLE t (a int, b text, c bigint, d smallint)"
CSV = "COPY t FROM {} WITH (FORMAT csv)"
TEXT = "COPY t FROM {}"


class Insert(OnCluster):
    """Files through `COPY t FROM 'file'`."""

    def same(self, data, copy=CSV, table=TABLE, setup="", route="insert"):
        """Loads by both and asserts equal outcomes; returns the error, or None."""
        with self.subTest(copy=copy, table=table, data=data[:80]):
            return compare(self, self.cluster, table, copy, data, setup, route)

    def test_values(self):
        """Numbers in all notations, NULLs, quoted fields and line ends have stock COPY's values."""
        self.same(b"1,hello,5,6\n2,,,\n3,\"quoted \"\"x\"\"\",-7,0\n+4,\"\",9223372036854775807,-32768\n")
        self.same(b" 1 ,x,1,1\n0x10,y,1,1\n" if MAJOR >= 16 else b" 1 ,x,1,1\n")
        self.same(b"1\thello\\tworld\t\\N\t3\n\\N\t\\\\N\t1\t2\n\\.\n", TEXT)
        self.same("1,žluťoučký,2,3\n2,😀,2,3\n".encode())
        self.same(b"")
        self.same(b"1,last line without an end,2,3")
        self.same(b"1,\"a\nb\",2,3\n4,c,5,6\n")
        self.same(b"1,a,2,3\r\n4,b,5,6\r\n")
        self.same(b"1,a,2,3\r4,b,5,6\r")

    def test_refusals(self):
        """Each error has stock COPY's SQLSTATE, message, DETAIL and CONTEXT, wherever the bad row is."""
        good = b"1,a,2,3\n" * 1500
        for bad in (
            b"x,a,2,3\n", b"1,a,2\n", b"1,a,2,3,4\n", b"1,a,2,99999\n", b"1,a,99999999999999999999,1\n",
            b"1,\"unterminated,2,3\n", b"1,a\rb,2,3\n", b"1,caf\xe9,2,3\n", b"1,nul\0,2,3\n", b"1,\xed\xa0\x80,2,3\n",
            b"\n", b"2147483648,a,2,3\n", b"1," + b"long" * 40 + b",x,3\n", b"1,trunc\xc3",
        ):
            for data in (bad, good + bad, good + bad + good):
                self.assertIsNotNone(self.same(data))
        # An invalid byte at the start of a line: the reported line depends on the line ends.
        for end in (b"\n", b"\r", b"\r\n"):
            for rows in (3, 1500):
                self.assertIsNotNone(self.same(b"1,a,2,3".join([b"", *[end] * rows]) + b"\xff" + end))
        # Rows completed by the server go in early, as they are wide: the error must not name the last record read.
        wide = [b"%d,\"(%d,2)\",%s\n" % (i, i, b"wide" * 500) for i in range(1400)]
        wide[300] = wide[5]
        self.assertIn("line 301\n", self.same(b"".join(wide), CSV, "CREATE TABLE t (a int PRIMARY KEY, p point, b text)"))
        for bad in (b"1\tx\\\n", b"1\n", b"1\ta\t2\t3\t4\n", b"\\.x\n", b"a\\.\n", b"1\t\\x00\t2\t3\n"):
            self.same(b"1\ta\t2\t3\n" + bad, TEXT, route=None)

    def test_options(self):
        """For COPY's options on the format of the data, rows or errors are stock COPY's."""
        self.same(b"a,b,c,d\n1,x,2,3\n", CSV[:-1] + ", HEADER)")
        self.same(b"a,b,c,d\n1,x,2,3\n", CSV[:-1] + ", HEADER match)")
        self.assertIsNotNone(self.same(b"a,b,x,d\n1,x,2,3\n", CSV[:-1] + ", HEADER match)"))
        self.same(b"a\tb\tc\td\n1\tx\t2\t3\n", TEXT + " WITH (HEADER)")
        self.same(b"1;'it''s';NULL;3\n", CSV[:-1] + ", DELIMITER ';', QUOTE '''', NULL 'NULL')")
        self.same(b"1,\"a\\\"b\",2,3\n", CSV[:-1] + ", ESCAPE '\\')")
        self.same(b"1,,2,3\n1,\"\",2,3\n", CSV[:-1] + ", FORCE_NOT_NULL (b))")
        self.same(b"1,,2,3\n1,\"\",2,3\n", CSV[:-1] + ", FORCE_NULL (b))")
        self.same(b"1,,2,3\n1,\"\",2,3\n", CSV[:-1] + ", FORCE_NULL (b), FORCE_NOT_NULL (b))")
        self.same(b"x|7\n", "COPY t (b, d) FROM {} WITH (DELIMITER '|')")
        self.same(b"1,x,2,3\n5,y,2,3\n", CSV + " WHERE a > 2 AND b <> 'z'")
        self.same(b"1,x,2,3\n\\.\n5,y,2,3\n", CSV, route=None)
        if MAJOR >= 16:
            self.same(b"1,D,2,3\n1,\"D\",2,3\n", CSV[:-1] + ", DEFAULT 'D')",
                      TABLE.replace("b text", "b text DEFAULT 'from default'"))

    def test_tables(self):
        """With constraints, defaults, generated columns, identity and indexes, rows or errors are stock COPY's."""
        rows = b"".join(b"%d,x%d\n" % (i, i) for i in range(1, 2500))
        copy = "COPY t (a, b) FROM {} WITH (FORMAT csv)"
        for table in (
            "CREATE TABLE t (a int NOT NULL, b text NOT NULL)",
            "CREATE TABLE t (a int CHECK (a > 0), b text, CHECK (b LIKE 'x%'))",
            "CREATE TABLE t (a int, b text, c text DEFAULT 'given', d int DEFAULT 7, e bigint DEFAULT 1)",
            "CREATE TABLE t (id serial, a int, b text)",
            "CREATE TABLE t (a int, b text, id bigint GENERATED ALWAYS AS IDENTITY)",
            "CREATE TABLE t (a int, b text, g int GENERATED ALWAYS AS (a * 2) STORED, h text DEFAULT upper('q'))",
            "CREATE TABLE t (x int, a int, b text); ALTER TABLE t DROP COLUMN x; ALTER TABLE t ADD y int DEFAULT 5",
            "CREATE TABLE t (id serial PRIMARY KEY, a int UNIQUE, b text); CREATE INDEX ON t (b); CREATE INDEX ON t (lower(b)) WHERE a > 7",
            "CREATE TABLE t (a int, b text, EXCLUDE USING btree (a WITH =), UNIQUE (b) DEFERRABLE INITIALLY DEFERRED)",
            "CREATE UNLOGGED TABLE t (a int, b text)",
            "CREATE TABLE t (a int, b text, c int, d int, e int, f int, g int, h int, i int, j int)",
            "CREATE TABLE t (a int, b text, c date DEFAULT '2020-02-02', d numeric DEFAULT 1.5, u uuid DEFAULT '00000000-0000-0000-0000-0000000000ff')",
            "CREATE TABLE t (b text STORAGE PLAIN, a int)" if MAJOR >= 16 else
            "CREATE TABLE t (b text, a int); ALTER TABLE t ALTER b SET STORAGE PLAIN",
        ):
            self.assertIsNone(self.same(rows, copy, table))
        for table in (
            "CREATE TABLE t (a int UNIQUE, b text)",
            "CREATE TABLE t (a int, b text, UNIQUE (a) DEFERRABLE INITIALLY DEFERRED)",
            "CREATE TABLE t (a int CHECK (a < 2000), b text)",
            "CREATE TABLE t (a int, b text NOT NULL)",
            "CREATE TABLE t (a int, b text, id smallint GENERATED ALWAYS AS IDENTITY (MAXVALUE 1000))",
            "CREATE TABLE t (a int, b text, g int GENERATED ALWAYS AS (2499 / (a - 2400)) STORED)",
        ):
            self.assertIsNotNone(self.same(rows + b"1,\n", copy, table))

    def test_toast(self):
        """Wide values load as by stock COPY, with each storage type."""
        random.seed(1)
        wide = b"".join(
            b"%d,%s\n" % (i, bytes(random.choices(b"abcdefghijklmnopqrstuvwxyz", k=random.choice([10, 3000, 50000]))))
            for i in range(200)
        )
        copy = "COPY t (a, b) FROM {} WITH (FORMAT csv)"
        for storage in ("extended", "external", "main"):
            self.same(wide, copy, f"CREATE TABLE t (a int, b text); ALTER TABLE t ALTER b SET STORAGE {storage}")
        self.same(b"1," + b"z" * 3_000_000 + b"\n2,y\n", copy, "CREATE TABLE t (a int, b text)", route="append")

    @unittest.skipUnless(clusters.has("pg_walinspect"), "pg_walinspect is not there")
    def test_batches_end_where_stock_copys_do(self):
        """The WAL has stock COPY's inserts into the heap in the same order: a batch is a thousand rows, or 64 kB of lines."""
        self.cluster.sql("CREATE EXTENSION IF NOT EXISTS pg_walinspect")
        wide = b"".join(b"%d,%s\n" % (i, bytes(33 + (i * k * k + k) % 10 for k in range(5000 + i % 3))) for i in range(120))
        narrow = b"".join(b"%d,%s\r\n" % (i, b"x" * (i % 97)) for i in range(6000))
        even = b"".join(b"%05d,%s\n" % (i, b"x" * 80) for i in range(4000))
        binary = b"".join(struct.pack("!hiii", 2, 4, i, 600) + b"y" * 600 for i in range(1200))
        binary = b"PGCOPY\n\xff\r\n\0" + struct.pack("!ii", 0, 0) + binary + struct.pack("!h", -1)
        plain = "CREATE TABLE t (a int, b text)"
        parts = plain + " PARTITION BY HASH (a);" + ";".join(f"CREATE TABLE t{n} PARTITION OF t FOR VALUES WITH (MODULUS 2, REMAINDER {n})" for n in (0, 1))
        # If nothing can notice it, rows go into each partition in larger batches.
        after = "; CREATE TRIGGER after AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION nothing()"
        self.cluster.sql("CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
        csv = "COPY t (a, b) FROM {} WITH (FORMAT csv)"
        for table, copy, data in ((plain, csv, wide), (plain + "; ALTER TABLE t ALTER b SET STORAGE external", csv, wide), (plain, csv, narrow),
                                  (parts + after, csv, even), (parts + after, csv, wide), (plain + "; CREATE INDEX ON t (a)", csv, narrow),
                                  (plain, csv + " WHERE a % 3 > 0", narrow), (plain[:-1] + ", CHECK (a >= 0))", csv, wide),
                                  (plain, "COPY t FROM {} WITH (FORMAT binary)", binary)):
            with self.subTest(table=table, copy=copy, data=data[:30]):
                path = self.cluster.file("input", data)
                found = []
                for setting in ("off", "on"):
                    start, _, end = self.cluster.sql(
                        f"SET client_min_messages = error; DROP TABLE IF EXISTS t CASCADE; SET pgsluice.copy = {setting}; SET pgsluice.workers = 0; BEGIN; {table};"
                        # In a new table, but not in new partitions, stock COPY does not fill gaps by the free space map.
                        f"SELECT pg_current_wal_insert_lsn(); SELECT txid_current(); {copy.format(repr(str(path)))};"
                        "SELECT pg_current_wal_insert_lsn(); COMMIT").split("\n")
                    # Pages of the catalogs are pruned at any time, by any session that reads them.
                    found.append(self.cluster.sql("SELECT string_agg(record_type, ' ' ORDER BY start_lsn) FROM"
                                                  f" pg_get_wal_records_info('{start}', '{end}')"
                                                  " WHERE resource_manager LIKE 'Heap%' AND record_type LIKE '%INSERT%'"))
                self.assertIn("MULTI_INSERT", found[0])
                self.assertEqual(found[0], found[1])

    def test_triggers_and_keys(self):
        """AFTER triggers, transition tables and foreign keys use the ordinary queue: rows and errors are stock COPY's."""
        rows = b"".join(b"%d,x\n" % i for i in range(1, 1200))
        copy = "COPY t (a, b) FROM {} WITH (FORMAT csv)"
        log = (
            "DROP TABLE IF EXISTS log CASCADE; CREATE TABLE log (n bigint, s bigint);"
            "CREATE OR REPLACE FUNCTION each() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN INSERT INTO log VALUES (NEW.a, 1); RETURN NULL; END';"
            "CREATE OR REPLACE FUNCTION alltogether() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN INSERT INTO log SELECT count(*), sum(a) FROM new; RETURN NULL; END';"
            "CREATE TABLE t (a int, b text);"
            "CREATE TRIGGER x AFTER INSERT ON t FOR EACH ROW WHEN (NEW.a % 2 = 0) EXECUTE FUNCTION each();"
            "CREATE TRIGGER y AFTER INSERT ON t REFERENCING NEW TABLE AS new FOR EACH STATEMENT EXECUTE FUNCTION alltogether();"
        )
        self.assertIsNone(self.same(rows, copy, log))
        self.assertEqual(self.cluster.sql("SELECT count(*), sum(n), sum(s) FROM log"),
                         "600|360599|719999")
        parent = (
            "DROP TABLE IF EXISTS p CASCADE; CREATE TABLE p (a int PRIMARY KEY);"
            "INSERT INTO p SELECT generate_series(1, 1199); CREATE TABLE t (a int REFERENCES p, b text)"
        )
        self.assertIsNone(self.same(rows, copy, parent))
        self.assertIsNotNone(self.same(rows + b"5000,x\n", copy, parent))

    def test_volatile_defaults(self):
        """Volatile defaults are evaluated for every row; several sequences are each drawn from in order."""
        rows = b"".join(b"%d,x\n" % i for i in range(2500))
        copy = "COPY t (a, b) FROM {} WITH (FORMAT csv)"
        self.assertIsNone(self.same(rows, copy, "CREATE TABLE t (a int, b text, c float8 DEFAULT random() * 0, d serial, e bigserial,"
                                    " f timestamptz NOT NULL DEFAULT least(clock_timestamp(), '2000-01-01'), CHECK (d = e))"))
        self.assertIsNotNone(self.same(rows, copy, "CREATE TABLE t (a int, b text, c int NOT NULL DEFAULT nullif(length(gen_random_uuid()::text), 36))"))
        if MAJOR >= 19:
            self.assertIsNone(self.same(rows, copy, "CREATE TABLE t (a int, b text, " + ", ".join(
                f"{name} {kind} DEFAULT random({kind} '2000-01-01', {kind} '2000-01-01')" for name, kind in (("c", "date"), ("d", "timestamp"), ("e", "timestamptz"))) + ")"))
        path = self.cluster.file("input", rows)
        for function in ("gen_random_uuid", "uuidv4", "uuidv7") if MAJOR >= 18 else ("gen_random_uuid",):
            self.cluster.sql(f"DROP TABLE IF EXISTS t; CREATE TABLE t (a int, b text, u uuid DEFAULT {function}());"
                             f"COPY t (a, b) FROM '{path}' WITH (FORMAT csv, pgsluice 'require')")
            self.assertEqual(self.cluster.sql("SELECT count(DISTINCT u) FROM t"), "2500", function)

    def test_partitioned(self):
        """Rows are routed to partitions by hash, range and list, also of another shape or level: rows and errors are stock COPY's."""
        rows = b"".join(b"%d,x%d\n" % (i, i % 5) for i in range(5000))
        copy = "COPY t (a, b) FROM {} WITH (FORMAT csv)"
        hashed = "CREATE TABLE t (a int, b text, c serial) PARTITION BY HASH (a);" + "".join(
            f"CREATE TABLE t{i} PARTITION OF t FOR VALUES WITH (MODULUS 40, REMAINDER {i});" for i in range(40))
        ranged = (
            "DROP TABLE IF EXISTS r2 CASCADE; CREATE TABLE t (id serial, a int NOT NULL, b text DEFAULT 'd', UNIQUE (a)) PARTITION BY RANGE (a);"
            "CREATE TABLE r1 PARTITION OF t FOR VALUES FROM (0) TO (1000);"
            "CREATE TABLE r2 (x int, b text, g int GENERATED ALWAYS AS (length(b)) STORED, a int NOT NULL, id int NOT NULL);"
            "ALTER TABLE r2 DROP COLUMN x, DROP COLUMN g; ALTER TABLE t ATTACH PARTITION r2 FOR VALUES FROM (1000) TO (4000);"
            "CREATE TABLE r3 PARTITION OF t FOR VALUES FROM (4000) TO (6000) PARTITION BY LIST (a);"
            "CREATE TABLE r4 PARTITION OF r3 DEFAULT;"
        )
        listed = (
            "CREATE TABLE t (a int, b text, c jsonb DEFAULT '{}') PARTITION BY LIST (b);"
            "CREATE TABLE l1 PARTITION OF t (CHECK (a < 4999)) FOR VALUES IN ('x0', 'x1');"
            "CREATE TABLE l2 PARTITION OF t FOR VALUES IN ('x2', 'x3', 'x4')"
        )
        for table in (hashed, ranged, listed):
            self.assertIsNone(self.same(rows, copy, table))
            self.same(rows, copy + " WHERE a % 2 = 0", table)
        self.assertIsNotNone(self.same(rows + b"7000,x\n", copy, ranged))
        self.assertIsNotNone(self.same(rows + b"5000,x0\n", copy, listed))
        self.assertIsNotNone(self.same(b"1,x\n" * 2, copy, ranged))
        self.assertIsNone(self.same(rows[:5], "COPY t (a, b) FROM {} WITH (FORMAT csv)", ranged.replace("CREATE TABLE r4", "SELECT 1; CREATE TABLE r4")))
        self.same(rows, copy, "CREATE TABLE p (a int, b text) PARTITION BY RANGE (a); CREATE TABLE t PARTITION OF p FOR VALUES FROM (0) TO (9999)".replace("CREATE TABLE p", "DROP TABLE IF EXISTS p CASCADE; CREATE TABLE p"))

    def test_memory_of_partitions(self):
        """Loading more rows into many partitions needs no more memory; with indexes or foreign keys, at most what their settings allow."""
        few, many = (self.cluster.file(str(count), b"".join(b"%d,%d\n" % (i, i % 10) for i in range(count))) for count in (105000, 230000))
        for more, bound, route in (("", 50000, "append"), (", PRIMARY KEY (a)", 2000000, "append"), (", FOREIGN KEY (b) REFERENCES parent", 2000000, "insert")):
            checked = "FOREIGN" in more
            self.cluster.sql("SET client_min_messages = error; DROP TABLE IF EXISTS t, used, parent CASCADE; CREATE TABLE used (n serial, bytes bigint);"
                             "CREATE TABLE parent (b int PRIMARY KEY); INSERT INTO parent SELECT generate_series(0, 9);"
                             f"CREATE TABLE t (a int, b int{more}) PARTITION BY HASH (a);"
                             + "".join(f"CREATE TABLE t{i} PARTITION OF t FOR VALUES WITH (MODULUS 64, REMAINDER {i});{f'ALTER TABLE t{i} ADD CHECK (a >= 0);' if checked else ''}" for i in range(64)) +
                             "CREATE OR REPLACE FUNCTION measure() RETURNS trigger LANGUAGE plpgsql AS"
                             " $$ BEGIN INSERT INTO used (bytes) SELECT sum(used_bytes) FROM pg_backend_memory_contexts; RETURN NULL; END $$;"
                             "CREATE TRIGGER measure AFTER INSERT ON t FOR EACH STATEMENT EXECUTE FUNCTION measure()")
            # The fewest pages for all partitions together, which the rows of either file fill.
            taken = self.cluster.sql("SET pgsluice.copy = on; SET maintenance_work_mem = '2MB';" + "".join(
                f"TRUNCATE t; COPY t FROM '{path}' WITH (FORMAT csv, workers 0); SELECT route FROM pgsluice.last_copy;" for path in (few, few, many)))
            self.assertEqual(taken.split(), [route] * 3, more)
            growth = self.cluster.sql("SELECT bytes - lag(bytes) OVER (ORDER BY n) FROM used ORDER BY n").split("\n")[-1]
            self.assertLess(int(growth), bound, more)

    def test_left_to_stock(self):
        """A statement that is not supported falls back to stock COPY with a reason; with pgsluice 'require', it fails."""
        before = (
            "CREATE OR REPLACE FUNCTION b() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.a := 7; RETURN NEW; END';"
            "CREATE TABLE t (a int, b text); CREATE TRIGGER b BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION b()"
        )
        copy = "COPY t (a, b) FROM {} WITH (FORMAT csv)"
        self.same(b"1,x\n", copy, before, route="the table has BEFORE or INSTEAD OF row triggers")
        looks = "CREATE OR REPLACE FUNCTION looks() RETURNS bigint LANGUAGE plpgsql AS 'BEGIN RETURN count(*) FROM t; END';"
        self.same(b"1,x\n2,y\n", copy, looks + "CREATE TABLE t (a int, b text, c bigint DEFAULT looks())",
                  route="a column has a volatile default")
        path = self.cluster.file("input", b"1,x\n")
        with self.assertRaises(Refused) as refused:
            self.cluster.sql(f"COPY t (a, b) FROM '{path}' WITH (FORMAT csv, pgsluice 'require')")
        self.assertIn("0A000: pgsluice cannot take over this COPY: a column has a volatile default", str(refused.exception))

    @unittest.skipUnless(MAJOR >= 17, "ON_ERROR came with 17")
    def test_on_error(self):
        """ON_ERROR ignore skips the records that stock COPY skips, with its notices, counts and REJECT_LIMIT."""
        rows = b"".join(b"%d,x,%d,1\n" % (i, i) if i % 100 else b"%d,x,bad,1\n" % i for i in range(3000))
        ignore = CSV[:-1] + ", ON_ERROR ignore"
        notices = compare(self, self.cluster, TABLE, ignore + ")", rows, "SET client_min_messages = notice;")
        self.assertIn("30 rows were skipped due to data type incompatibility", notices)
        notices = compare(self, self.cluster, TABLE, ignore + ", LOG_VERBOSITY verbose)", rows, "SET client_min_messages = notice;")
        self.assertIn("skipping row due to data type incompatibility at line 1 for column", notices)
        self.same(rows, ignore + ", LOG_VERBOSITY verbose, workers 1)")
        self.same(rows + b"1,x\n", ignore + ")")
        self.same(rows, CSV[:-1] + ", ON_ERROR stop)")
        self.same(b"1,2\n3,x\n", "COPY t (a, p) FROM {} WITH (FORMAT csv, ON_ERROR ignore)", "CREATE TABLE t (a int, p point)")
        # Errors of later rows do not name the skipped record.
        for column in ("int CHECK (a <> 2)", "int PRIMARY KEY"):
            for good in (b"1,x,2,1\n2,y,2,1\n2,z,2,1\n", b"1,x,2,1\n" + b",x,2,1\n" * 2000 + b"2,x,2,1\n" * 2):
                self.assertNotIn("bad", self.same(b"0,x,bad,1\n" + good, ignore + ")", TABLE.replace("int", column, 1)))
        # Unless there are none: then the skipped record is the last one read when the rows go in. Some minor releases of 17 name its column in
        # CONTEXT and some do not; compare() has checked that the extension does as the server's own COPY.
        last = self.same(b"1,x,2,1\n1,y,2,1\n2,z,bad,1\n", ignore + ", LOG_VERBOSITY verbose)",
                         TABLE.replace("int", "int PRIMARY KEY", 1), "SET client_min_messages = notice;")
        self.assertRegex(last, 'skipping row .* "bad"(.|\n)*CONTEXT:  COPY t, line 2')
        if MAJOR >= 18:
            self.assertIn("skipped more than REJECT_LIMIT (5) rows", self.same(rows, ignore + ", REJECT_LIMIT 5)"))
            self.same(rows, ignore + ", REJECT_LIMIT 30, LOG_VERBOSITY silent)")

    @unittest.skipUnless(MAJOR >= 16, "DEFAULT came with 16, ON_ERROR later")
    def test_last_records_of_chunks(self):
        """Records that the server reads as a whole load as by stock COPY also where they are the last of a worker's chunk."""
        # After the first MB workers form chunks. The parser of 19 reads on within a record of more than 16 bytes, if it has met no backslash.
        cases = [("DEFAULT '@@'", "int", b"1234567890", b"1000000001\t@@\t1234567890\n")]
        if MAJOR >= 17:
            cases += [("ON_ERROR ignore", "int", b"1234567890", b"1000000001\ttext\tno number\n"),
                      ("ON_ERROR ignore", "point", b"(1.25,2.5)", b"1000000001\ttext\t(1.25,2.5)\n")]
        if MAJOR >= 19:
            cases.append(("ON_ERROR set_null", "int", b"1234567890", b"1000000001\ttext\tno number\n"))
        for option, kind, value, line in cases:
            data = (b"1000000001\t" + b"text" * 250 + b"\t" + value + b"\n") * 1100 + line * 15000
            for setup in ("", "SET pgsluice.debug_force_routes = workers;"):
                self.assertIsNone(self.same(data, TEXT + f" WITH ({option}, workers 1)", f"CREATE TABLE t (a bigint, b text DEFAULT 'x', c {kind})", setup, ROUTES))

    @unittest.skipUnless(MAJOR >= 19, "set_null came with 19")
    def test_values_set_to_null(self):
        """ON_ERROR set_null sets the values that stock COPY sets, with its notices and counts; where NULL is not allowed, errors are also stock COPY's."""
        rows = b"".join(b"%d,x,%d,1\n" % (i, i) if i % 100 else b"%d,x,bad,worse\n" % i for i in range(3000))
        option = CSV[:-1] + ", ON_ERROR set_null"
        notices = compare(self, self.cluster, TABLE, option + ")", rows, "SET client_min_messages = notice;")
        self.assertIn("in 30 rows, columns were set to null due to data type incompatibility", notices)
        notices = compare(self, self.cluster, TABLE, option + ", LOG_VERBOSITY verbose)", rows, "SET client_min_messages = notice;")
        self.assertIn("setting to null due to data type incompatibility at line 1 for column", notices)
        self.same(rows, option + ", LOG_VERBOSITY verbose, workers 1)")
        self.same(rows, option + ", LOG_VERBOSITY silent)")
        self.assertIsNotNone(self.same(rows + b"1,x\n", option + ")"))
        for column in ("bigint NOT NULL", "bigint CHECK (c IS NOT NULL)", "bigint PRIMARY KEY"):
            self.assertIsNotNone(self.same(rows, option + ")", TABLE.replace("bigint", column)))
        domain = "DROP DOMAIN IF EXISTS narrow CASCADE; CREATE DOMAIN narrow AS bigint {}; " + TABLE.replace("bigint", "narrow")
        self.same(rows, option + ")", domain.format("CHECK (value < 9000)"))
        self.assertIn("ON_ERROR SET_NULL cannot be applied", self.same(rows, option + ")", domain.format("NOT NULL")))

    @unittest.skipUnless(MAJOR >= 19, "headers of several lines came with 19")
    def test_header_lines(self):
        """HEADER with a number skips as many lines as stock COPY, also with quoted line ends, and if there are fewer lines."""
        for head, rows in ((b"what this is\na,b,c,d\n", b"1,x,1,1\n2,y,2,2\n"), (b'"two\nlines"\r\nanother\r\n', b"1,x,1,1\r\n"),
                           (b"w" * 5_000_000 + b"\na,b\n", b"1,x,1,1\n" * 1000)):
            for count in (0, 1, 2, 3, 2000):
                self.same(head + rows, CSV[:-1] + f", HEADER {count})")
                self.same((head + rows).replace(b",", b"\t"), f"COPY t FROM {{}} WITH (HEADER {count})")
        self.assertIn("line 4", self.same(b"1\n2\n1,x,1,1\nbad,x,1,1\n", CSV[:-1] + ", HEADER 2)"))
        self.same(b"a,b,c,d\n1,x,1,1\n", CSV[:-1] + ", HEADER match)")

    def test_statement_option(self):
        """The statement's option pgsluice overrides the setting, both ways."""
        self.cluster.sql("DROP TABLE IF EXISTS t; CREATE TABLE t (a int)")
        path = self.cluster.file("input", b"1\n")
        last = "SELECT route FROM pgsluice.last_copy"
        for option, setting, route in (("require", "off", "insert"), ("on", "off", "insert"), ("off", "on", "")):
            said = self.cluster.sql(f"SET pgsluice.copy = {setting}; COPY t FROM '{path}' WITH (pgsluice '{option}'); {last}")
            self.assertEqual(said, route)
        with self.assertRaises(Refused):
            self.cluster.sql(f"COPY t FROM '{path}' WITH (pgsluice 'maybe')")

    def test_privileges(self):
        """Exactly the privileges of COPY are needed."""
        self.cluster.sql(
            "DROP TABLE IF EXISTS t, s; CREATE TABLE t (a int, b text); CREATE TABLE s (a int);"
            "DROP ROLE IF EXISTS weak; CREATE ROLE weak LOGIN; GRANT INSERT (a) ON t TO weak"
        )
        for setting in ("off", "on"):
            run = lambda sql, data: self.cluster.sql(f"SET pgsluice.copy = {setting}; {sql}", data, user="weak")
            run("COPY t (a) FROM STDIN", b"1\n")
            for sql in ("COPY t FROM STDIN", "COPY s FROM STDIN", "COPY t (a) FROM '/dev/null'", "COPY t (a) FROM PROGRAM 'true'"):
                with self.assertRaises(Refused) as refused:
                    run(sql, b"1\tx\n")
                self.assertIn("42501", str(refused.exception))
        self.assertEqual(self.cluster.sql("SELECT count(*) FROM t"), "2")

    def test_freeze_and_stable_functions(self):
        """Frozen rows are seen by every snapshot: a CHECK or condition with a stable function finds those before it by an index, as in stock COPY."""
        path = self.cluster.file("input", b"".join(b"%d\n" % i for i in range(100_000)) + b"50000\n")
        twice = self.cluster.file("twice", b"".join(b"%d\t%d\n" % (i, i) for i in range(100_000)) + b"100000\t90000\n")
        function = "STABLE LANGUAGE plpgsql AS 'BEGIN RETURN NOT EXISTS (SELECT FROM public.t WHERE k = $1); END'"
        table = f"DROP TABLE IF EXISTS t; CREATE TABLE t (k int); CREATE INDEX ON t (k); CREATE OR REPLACE FUNCTION fresh(int) RETURNS bool {function}"
        for setting in ("off", "on"):
            with self.subTest(setting=setting):
                begin = f"SET pgsluice.copy = {setting}; BEGIN; TRUNCATE t; SET LOCAL enable_seqscan = off; COPY t FROM '{path}' WITH (FREEZE)"
                self.cluster.sql(table)
                self.assertEqual(self.cluster.sql(f"{begin} WHERE fresh(k); SELECT count(*) FROM t; COMMIT"), "100000")
                self.cluster.sql("ALTER TABLE t ADD CHECK (fresh(k)) NOT VALID")
                with self.assertRaises(Refused) as refused:
                    self.cluster.sql(f"{begin}; COMMIT")
                self.assertIn("23514", str(refused.exception))
                # The same as the constraint of a domain.
                self.cluster.sql("DROP TABLE t; CREATE TABLE t (k int); CREATE INDEX ON t (k); DROP DOMAIN IF EXISTS new; "
                                 "CREATE DOMAIN new AS int CHECK (fresh(VALUE)); ALTER TABLE t ADD v new")
                with self.assertRaises(Refused) as refused:
                    self.cluster.sql(f"{begin.replace(str(path), str(twice))}; COMMIT")
                self.assertIn("23514", str(refused.exception))

    def test_freeze_and_stable_defaults(self):
        """Frozen rows are seen by every snapshot: a default with a stable function that counts them has other values for later rows, as in stock COPY."""
        path = self.cluster.file("input", b"".join(b"%d\n" % i for i in range(3000)))
        self.cluster.sql("DROP TABLE IF EXISTS t; CREATE TABLE t (a int); CREATE OR REPLACE FUNCTION n() RETURNS bigint STABLE LANGUAGE sql AS 'SELECT count(*) FROM t'; "
                         "ALTER TABLE t ADD n bigint, ADD at timestamptz DEFAULT now(); ALTER TABLE t ALTER n SET DEFAULT n()")
        found = []
        for setting in ("off", "on"):
            self.cluster.sql(f"SET pgsluice.copy = {setting}; BEGIN; TRUNCATE t; COPY t (a) FROM '{path}' WITH (FREEZE); COMMIT")
            found.append(self.cluster.sql("SELECT n, count(*) FROM t GROUP BY n ORDER BY n"))
        self.assertEqual(found, ["0|1000\n1000|1000\n2000|1000"] * 2)
        # now() reads no table.
        self.cluster.sql("ALTER TABLE t ALTER n DROP DEFAULT")
        self.assertEqual(self.cluster.sql(f"SET pgsluice.copy = on; BEGIN; TRUNCATE t; COPY t (a) FROM '{path}' WITH (FREEZE, pgsluice 'require'); COMMIT; SELECT count(*) FROM t"), "3000")

    def test_freeze(self):
        """FREEZE works under exactly COPY's conditions; rows are frozen and their page is all-visible."""
        path = self.cluster.file("input", b"1\n2\n")
        copy = f"COPY t FROM '{path}' WITH (FREEZE)"
        for setting in ("off", "on"):
            self.cluster.sql("DROP TABLE IF EXISTS t; CREATE TABLE t (a int)")
            with self.assertRaises(Refused) as refused:
                self.cluster.sql(f"SET pgsluice.copy = {setting}; {copy}")
            self.assertIn("55000", str(refused.exception))
            self.cluster.sql(f"SET pgsluice.copy = {setting}; BEGIN; TRUNCATE t; {copy}; COMMIT")
            if clusters.has("pageinspect"):
                self.cluster.sql("CREATE EXTENSION IF NOT EXISTS pageinspect")
                bits = self.cluster.sql(
                    "SELECT t_infomask & 768, (SELECT flags & 4 FROM page_header(get_raw_page('t', 0)))"
                    " FROM heap_page_items(get_raw_page('t', 0))"
                )
                self.assertEqual(bits, "768|4\n768|4")


if __name__ == "__main__":
    unittest.main()
