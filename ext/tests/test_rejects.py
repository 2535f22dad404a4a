"""COPY's options rejects_to and max_rejects: bad records go to the reject table, good ones to the loaded table.

The oracle is stock COPY: it loads the good records alone, and rejects each bad one by itself with the message that the
reject table holds.
"""

import random
import unittest

from .cluster import MAJOR, OnCluster, Refused

TABLE = "CREATE TABLE t (a int PRIMARY KEY, b text NOT NULL, c numeric CHECK (c >= 0), d date)"
CSV = "FORMAT csv"
KEPT = "SELECT line, coalesce(column_name, ''), sqlstate, message FROM bad ORDER BY line"


class Rejects(OnCluster):
    """Every class of error, in every place of the data."""

    prepared = "CREATE ROLE loader LOGIN"

    def load(self, data, options=CSV, table=TABLE, target="t", more="", stdin=False, before="", user="postgres"):
        """Loads into a fresh table with a fresh reject table."""
        path = self.cluster.file("input", data)
        if table:
            self.cluster.sql(f"SET client_min_messages = error; DROP TABLE IF EXISTS t, parent CASCADE; {table};"
                            "DROP TABLE IF EXISTS bad; CREATE TABLE bad (LIKE pgsluice.reject)")
        source = "STDIN" if stdin else f"'{path}'"
        return self.cluster.sql(
            f"SET client_min_messages = error; {before} COPY {target} FROM {source} WITH ({options}, rejects_to 'bad'{more})",
            stdin=data if stdin else None, user=user)

    @staticmethod
    def without_end(line, end):
        """A record without the line end of the data. If the data ends within its quotes, it has none."""
        return line if line.count(b'"') % 2 else line.removesuffix(end)

    def check(self, lines, bad, options=CSV, table=TABLE, **more):
        """`bad` are the indexes of the lines that must be rejected; the others are as stock COPY loads them."""
        self.load(b"".join(lines), options, table, **more)
        # The first line determines what a line end is.
        end = next(end for end in (b"\r\n", b"\n", b"\r") if lines[0].endswith(end))
        kept = self.cluster.sql("SELECT encode(coalesce(record_bytes, convert_to(record, 'UTF8')), 'hex') FROM bad ORDER BY line").split("\n")
        self.assertEqual([bytes.fromhex(k) for k in kept], [self.without_end(lines[i], end) for i in bad])
        ours = self.cluster.sql("SELECT t FROM t ORDER BY t::text COLLATE \"C\"")
        self.cluster.sql("CREATE TEMP TABLE x AS SELECT 1; TRUNCATE t")
        good = self.cluster.file("good", b"".join(line for i, line in enumerate(lines) if i not in bad))
        self.cluster.sql(f"COPY t FROM '{good}' WITH ({options})")
        self.assertEqual(ours, self.cluster.sql("SELECT t FROM t ORDER BY t::text COLLATE \"C\""))
        for i in bad:
            # By itself, a record with other line ends needs a line before it that determines what a line end is.
            others = "csv" in options and set(b"\r\n") & set(self.without_end(lines[i], end))
            before = b"9000000,x,1," + end if others else b""
            alone = self.cluster.file("alone", before + lines[i])
            if len(bad) < 30:
                try:
                    self.cluster.sql(f"COPY t FROM '{alone}' WITH ({options})")
                except Refused as refused:
                    found = self.cluster.sql(f"SELECT sqlstate || ': ' || message FROM bad ORDER BY line LIMIT 1 OFFSET {bad.index(i)}")
                    self.assertIn(found.replace("\n", " ")[:60], str(refused).replace("\n", " "))
                else:
                    self.fail(f"stock COPY takes {lines[i]!r}")

    def test_every_class(self):
        """Bad conversions, columns, quoting, encoding, NULLs, CHECK and keys: each record is rejected with stock COPY's error, among good rows and alone."""
        lines = [b"%d,row %d,%d.5,2024-02-%02d\n" % (i, i, i, i % 28 + 1) for i in range(5000)]
        bad = {
            0: b"x,first,1,2024-01-01\n", 7: b"8000007,no date,1,2024-02-31\n", 8: b"8,next too,z,\n",
            900: b"8000900,too few\n", 901: b"8000901,too,1,2024-01-01,many\n", 1500: b"8001500,caf\xe9,1,\n",
            1501: b"8001501,nul\0,1,\n", 2000: b"8002000,,1,\n", 2500: b"8002500,negative,-1,\n",
            3000: b"12,again,1,\n", 3500: b"\n", 3501: b"99999999999,range,1,\n", 4000: b"8004000,a\rb,1,\n",
            4998: b"8004998,sure\xf0\x9f,1,\n", 4999: b'8004999,"no end,1,\n',
        }
        for i, record in bad.items():
            lines[i] = record
        self.assertIsNone(self.check(lines, sorted(bad)))
        said = self.cluster.sql(KEPT).splitlines()
        self.assertEqual(said[0], '1|a|22P02|invalid input syntax for type integer: "x"')
        self.assertEqual(said[3], '901||22P04|missing data for column "c"')
        self.assertEqual(said[7], '2001|b|23502|null value in column "b" of relation "t" violates not-null constraint')
        self.assertEqual(said[9], '3001||23505|duplicate key value violates unique constraint "t_pkey"')
        self.assertEqual(self.cluster.sql("SELECT record IS NULL, detail FROM bad WHERE line = 3001"), "f|Key (a)=(12) already exists.")
        self.assertEqual(self.cluster.sql("SELECT record IS NULL, record_bytes FROM bad WHERE line = 1501"),
                         "t|\\x" + bad[1500].rstrip().hex())
        self.check([b"x,y\n"], [0])
        self.check([b"1,y,1,\n", b"x,y\n", b"z"], [1, 2])

    def test_forms_of_the_data(self):
        """Text, each kind of line end, a header, quoted line ends and a custom escape: the bad records are rejected, with their line."""
        good = [b"%d\tx\\ty\\\\z\t1\t\\N\n" % i for i in range(50)]
        self.check(good + [b"x\ty\t1\t\\N\n", b"7\\\n8\ty\t1\t\\N\n"] + [b"99\ty\t1\t\\N\n", b"98\ttoo few\n"], [50, 51, 53], "FORMAT text")
        for end in (b"\n", b"\r\n", b"\r"):
            lines = [b"%d,x,1," % i + end for i in range(50)]
            lines[0], lines[30] = b"x,x,1," + end, b'y,"a' + end + b'b"" c",1,' + end
            self.check(lines, [0, 30])
        # Another line end is the fault, and belongs to the record. If the data ends within quotes, all line ends there do.
        for end, fault in ((b"\n", b"2,b,1,\r\n"), (b"\r\n", b"2,b,1,\n3,c,1,\r\n"), (b"\r", b"2,b,1,\n3,c,1,\r")):
            self.check([b"1,a,1," + end, fault, b"4,d,1," + end], [1])
            self.check([b"1,a,1," + end, b'9,"x' + end * 3], [1])
        lines = [b"%d,'x@'y@@',1,\n" % i for i in range(50)]
        lines[20] = b"1,'x@'\n,@@',z,\n"
        self.check(lines, [20], "FORMAT csv, QUOTE '''', ESCAPE '@'")
        self.load(b"a,b,c,d\nx,y,1,\n1,y,1,\n", "FORMAT csv, HEADER match")
        self.assertEqual(self.cluster.sql(KEPT), '2|a|22P02|invalid input syntax for type integer: "x"')
        with self.assertRaises(Refused) as refused:
            self.load(b"a,b,wrong,d\n1,y,1,\n", "FORMAT csv, HEADER match")
        self.assertIn("22P04", str(refused.exception))
        self.load(b"1,y,1,\n\\.\nx,y,1,\n" if MAJOR < 18 else b"1,y,1,\n", CSV)
        self.assertEqual(self.cluster.sql("SELECT count(*) FROM t; SELECT count(*) FROM bad"), "1\n0")

    @unittest.skipIf(MAJOR >= 18, "since 18 it is an error of its record")
    def test_a_marker_behind_a_record(self):
        """In text format, \\. after a record, good or bad, ends the data that a client sends, and not that of a file."""
        for record, bad in ((b"2\tx\t1\t\\N\\.\n", 0), (b"z\tx\t1\t\\N\\.\n", 1)):
            for stdin in (False, True):
                self.load(b"1\tx\t1\t\\N\n" + record + b"3\tx\t1\t\\N\ny\tx\t1\t\\N\n", "FORMAT text", stdin=stdin)
                kept = (2 - bad, bad) if stdin else (3 - bad, bad + 1)
                self.assertEqual(self.cluster.sql("SELECT count(*) FROM t; SELECT count(*) FROM bad"), "{}\n{}".format(*kept))

    @unittest.skipIf(MAJOR >= 18, "since 18 it is an error of its record")
    def test_a_marker_in_the_first_line(self):
        """In the first line of a file, CR alone ends a \\. after a record. The LF after it is the next line, as in stock COPY, and determines what a line end is."""
        kept = "SELECT string_agg(a::text, ' ' ORDER BY ctid) FROM t; SELECT string_agg(concat_ws(' ', line, sqlstate, encode(convert_to(record, 'UTF8'), 'hex')), ', ' ORDER BY line) FROM bad"
        cases = [(b"1\\.\r\n2\n", "1 2", "2 22P02"), (b"1\\.\r\n2\r\n", "1", "2 22P02 , 3 22P04 320d"), (b"1\\.\n2\r\n3\r\n", "1 2 3", ""),
                 (b"x\\.\r\n2\n", "2", "1 22P02 785c2e, 2 22P02"), (b"x\\.\n2\r\n3\r\n", "2 3", "1 22P02 785c2e"), (b"1\\.\r2\r", "1 2", "")]
        for data, good, bad in cases:
            with self.subTest(data=data):
                self.load(data, "FORMAT text", table="CREATE TABLE t (a int)")
                self.assertEqual(self.cluster.sql(kept).split("\n"), [good, bad] if bad else [good])
                self.load(data, "FORMAT text", table="CREATE TABLE t (a int)", stdin=True)
                self.assertEqual(self.cluster.sql("SELECT count(*) FROM t; SELECT count(*) FROM bad"), "1\n0" if data[:1] == b"1" else "0\n1")
        self.load(b"one\\.\r\ntwo\n", "FORMAT text", table="CREATE TABLE t (a text)")
        ours = self.cluster.sql("SELECT array_agg(a ORDER BY ctid) FROM t; TRUNCATE t")
        self.cluster.sql(f"SET pgsluice.copy = off; COPY t FROM '{self.cluster.home / 'input'}'")
        self.assertEqual(ours, self.cluster.sql("SELECT array_agg(a ORDER BY ctid) FROM t"))

    def test_a_marker_that_is_an_error(self):
        """In text format, \\. after a record does not end the data if stock COPY refuses it there: since 18, and before another line end than that of the data. The record is rejected, and those after it are loaded."""
        record = b"2\tC:\\temp\\."
        cases = [(b"\n", record + b"\r\n", record + b"\r"), (b"\r\n", record + b"\n0\tx\r\n", record + b"\n0\tx")]
        if MAJOR >= 18:
            cases += [(end, record + end, record) for end in (b"\n", b"\r\n", b"\r")]
        for end, line, kept in cases:
            for stdin in (False, True):
                with self.subTest(end=end, line=line, stdin=stdin):
                    self.load(b"1\tone" + end + line + b"3\tthree" + end + b"4\tfour" + end, "FORMAT text", table="CREATE TABLE t (a int, b text)", stdin=stdin)
                    self.assertEqual(self.cluster.sql("SELECT string_agg(a::text, ' ' ORDER BY a) FROM t; SELECT line, sqlstate, encode(convert_to(record, 'UTF8'), 'hex') FROM bad"),
                                     f"1 3 4\n2|22P04|{kept.hex()}")

    @unittest.skipUnless(MAJOR >= 19, "headers of several lines came with 19")
    def test_a_header_of_lines(self):
        """The lines of a header are skipped together, and counted in the line numbers of rejects."""
        for head in (b"first\nsecond\n", b'"one\nand two"\n', b"w" * 5_000_000 + b"\n" + b"x" * 5_000_000 + b"\n"):
            count = 1 if b"and" in head else 2
            for stdin in (False, True):
                # As stock COPY counts: a line end in quotes before the first one outside of quotes does not count.
                self.load(head + b"1,y,1,\nbad,y,1,\n2,y,1,\n", f"FORMAT csv, HEADER {count}", stdin=stdin)
                self.assertEqual(self.cluster.sql("SELECT string_agg(a::text, ',' ORDER BY a) FROM t; SELECT line, record FROM bad"), f"1,2\n{4 if count > 1 else 3}|bad,y,1,")
        self.load(b"one\n", "FORMAT csv, HEADER 2")
        self.assertEqual(self.cluster.sql("SELECT count(*) FROM t; SELECT count(*) FROM bad"), "0\n0")

    @unittest.skipIf(MAJOR >= 18, "18 refuses it")
    def test_a_marker_in_the_header(self):
        """\\. in place of the header, or at its end, ends the data of a client and of a file."""
        for head, form in ((b"a\tb\tc\td\\.\n", "text"), (b"a\tb\tc\td\\.\r\n", "text"), (b"\\.\n", "text"), (b"\\.\n", "csv")):
            for stdin in (False, True):
                with self.subTest(head=head, form=form, stdin=stdin):
                    self.load(head + b"1,x,1,\n".replace(b",", b"," if form == "csv" else b"\t") * 3, f"FORMAT {form}, HEADER", stdin=stdin)
                    self.assertEqual(self.cluster.sql("SELECT count(*) FROM t; SELECT count(*) FROM bad"), "0\n0")

    def test_no_records(self):
        """If there is no record, no default is evaluated: an empty file and a header alone are loaded, as by stock COPY."""
        table = ("CREATE OR REPLACE FUNCTION fails() RETURNS int LANGUAGE plpgsql STABLE AS $$ BEGIN RAISE 'not now'; END $$;"
                 "CREATE TABLE t (a int, b int DEFAULT fails())")
        for data, options in ((b"", CSV), (b"a\n", CSV + ", HEADER"), (b"a\n", "FORMAT text, HEADER match"), (b"", CSV + ", ENCODING 'LATIN1'")):
            for stdin in (False, True):
                with self.subTest(options=options, stdin=stdin):
                    self.load(data, options, table, target="t (a)", stdin=stdin)
                    self.assertEqual(self.cluster.sql("SELECT count(*) FROM t; SELECT count(*) FROM bad"), "0\n0")
        with self.assertRaises(Refused) as refused:
            self.load(b"1\n", CSV, table, target="t (a)")
        self.assertIn("not now", str(refused.exception))

    def test_a_line_end_that_is_data(self):
        """In text format, a line end after a backslash belongs to the record, even at the end of the data."""
        records = [b"z\tx\t1\t\\N\\\n", b"y\tx\t1\t\\\\", b"x\tx\t1\t\\\n\\\n"]
        self.load(records[0] + b"\n1\tx\t1\t\\N\n" + records[1] + b"\n" + records[2], "FORMAT text")
        self.assertEqual(self.cluster.sql("SELECT encode(convert_to(record, 'UTF8'), 'hex') FROM bad ORDER BY line"), "\n".join(record.hex() for record in records))
        self.assertEqual(self.cluster.sql("SELECT count(*) FROM t"), "1")

    def test_random(self):
        """Of records damaged at random, rarely or often, exactly the damaged ones are rejected, with workers and without."""
        rng = random.Random(7)
        for rate, workers in ((0.5, 0), (0.05, 0), (0.002, 2), (0.05, 2)):
            lines, bad = [], []
            for i in range(6000):
                line = b"%d,%s,%d,2024-01-01\n" % (i, rng.choice((b"word", b'"quoted, ""one"""', b'"two\nlines"')), rng.randrange(99))
                if rng.random() < rate:
                    bad.append(i)
                    line = rng.choice((b"x" + line, line[:-1] + b",\n", line.replace(b"2024-01-01", b"nodate"), b"3%d,,1,\n" % i,
                                       b"7%d,k\xff,1,\n" % i, b"5%d,c,-5,\n" % i))
                lines.append(line)
            with self.subTest(rate=rate, workers=workers):
                self.load(b"".join(lines), more=f", workers {workers}, max_rejects 'none'")
                said = self.cluster.sql("SELECT count(*), (SELECT count(*) FROM bad), (SELECT count(DISTINCT line) FROM bad) FROM t")
                self.assertEqual(said, f"{6000 - len(bad)}|{len(bad)}|{len(bad)}")
                kept = self.cluster.sql("SELECT encode(coalesce(record_bytes, convert_to(record, 'UTF8')), 'hex') FROM bad ORDER BY line").split("\n")
                self.assertEqual([bytes.fromhex(k) for k in kept], [lines[i][:-1] for i in bad])

    def test_long_records(self):
        """Records longer than what is read at once, from a file and from a client, are loaded or rejected as a whole."""
        wide = b"1,\"" + b"x\ny" * 500000 + b"\",1,\n"
        for stdin in (False, True):
            self.load(b"0,a,1,\n" + wide.replace(b"1,", b"z,", 1) + b"3,c,1,\nx,\n" + wide, stdin=stdin)
            self.assertEqual(self.cluster.sql("SELECT a, length(b) FROM t ORDER BY a"), "0|1\n1|1500000\n3|1")
            self.assertEqual(self.cluster.sql("SELECT line, length(record) FROM bad ORDER BY line"), f"500002|{len(wide) - 1}\n500004|2")

    def test_another_encoding(self):
        """Records are kept in the server's encoding; data that cannot be converted ends the statement."""
        self.load("1,ž,1,\nž,x,1,\n2,y,1,\n".encode("latin2"), "FORMAT csv, ENCODING 'LATIN2'")
        self.assertEqual(self.cluster.sql("SELECT a, b FROM t ORDER BY a; SELECT line, record FROM bad"), "1|ž\n2|y\n2|ž,x,1,")
        for more in ("", ", workers 2"):
            with self.assertRaises(Refused) as refused:
                self.load(b"1,x,1,\n" * 2 + b"2,\x81\xff,1,\n", "FORMAT csv, ENCODING 'WIN1252'", more=more)
            self.assertIn("22P05", str(refused.exception))

    def test_the_table_kinds(self):
        """Partitions, foreign keys, AFTER triggers, failing functions, domains and defaults: bad records are rejected, and all others are loaded once."""
        parts = ("CREATE TABLE t (a int, b text) PARTITION BY RANGE (a);"
                 "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (100); CREATE TABLE t2 (b text, a int);"
                 "ALTER TABLE t ATTACH PARTITION t2 FOR VALUES FROM (100) TO (200)")
        lines = [b"%d,x\n" % (i % 200) for i in range(3000)]
        lines[5], lines[1000], lines[2999] = b"200,nowhere\n", b"-1,nowhere\n", b"x,y\n"
        self.check(lines, [5, 1000, 2999], table=parts)
        keys = ("CREATE TABLE parent (a int PRIMARY KEY); INSERT INTO parent SELECT generate_series(0, 999);"
                "CREATE TABLE t (a int REFERENCES parent, b text)")
        lines = [b"%d,x\n" % (i % 1000) for i in range(3000)]
        lines[1234] = b"1000,orphan\n"
        self.check(lines, [1234], table=keys)
        function = ("CREATE OR REPLACE FUNCTION sure(a int) RETURNS bool LANGUAGE {} IMMUTABLE AS $$ {} $$;"
                    "CREATE TABLE t (a int CHECK (sure(a)), b text)")
        for language, body in (("plpgsql", "BEGIN IF a % 100 = 7 THEN RAISE 'no %', a; END IF; RETURN true; END"),
                               ("sql", "SELECT 1 / (CASE WHEN a % 100 = 7 THEN a - a ELSE 1 END) = 1")):
            lines = [b"%d,x\n" % i for i in range(1000)]
            self.check(lines, list(range(7, 1000, 100)), table=function.format(language, body))
        self.load(b"1,x\n2,y\nx,z\n3,w\n", table="CREATE TABLE t (a int, b text); CREATE OR REPLACE FUNCTION say() RETURNS trigger"
                  " LANGUAGE plpgsql AS $$ BEGIN IF NEW.b = 'y' THEN RAISE 'not y'; END IF; RETURN NEW; END $$;"
                  "CREATE TRIGGER say AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION say()")
        self.assertEqual(self.cluster.sql(KEPT), '2||P0001|not y\n3|a|22P02|invalid input syntax for type integer: "x"')
        domain = ("DROP DOMAIN IF EXISTS even CASCADE; CREATE DOMAIN even AS int CHECK (sure(VALUE));"
                  "CREATE TABLE t (s serial, a even, b text DEFAULT clock_timestamp()::text)")
        self.load(b"".join(b"%d\n" % i for i in range(300)), table=domain, target="t (a)")
        self.assertEqual(self.cluster.sql("SELECT count(*), count(DISTINCT s), count(b) FROM t; SELECT count(*) FROM bad"), "297|297|297\n3")
        unread = [b"%d\n" % i for i in range(300)]
        unread[8] = unread[9] = unread[250] = b"x\n"
        self.load(b"".join(unread), table=domain, target="t (a)")
        self.assertEqual(self.cluster.sql("SELECT count(*), count(DISTINCT s), count(b) FROM t; SELECT count(*) FROM bad"), "294|294|294\n6")
        self.cluster.sql("DROP TABLE t; DROP DOMAIN even")

    def test_memory(self):
        """Memory does not grow with the number of rejects, except for what the server keeps of a subtransaction."""
        self.load(b"", table="DROP TABLE IF EXISTS used; CREATE TABLE used (n serial, bytes bigint); CREATE TABLE t (a int); CREATE OR REPLACE FUNCTION measure() RETURNS trigger"
                  " LANGUAGE plpgsql AS $$ BEGIN INSERT INTO used (bytes) SELECT sum(used_bytes) FROM pg_backend_memory_contexts; RETURN NULL; END $$;"
                  "CREATE TRIGGER measure AFTER INSERT ON t FOR EACH STATEMENT EXECUTE FUNCTION measure()")
        few, many = (self.cluster.file(str(count), b"1\nx\n" * count) for count in (50, 1000))
        self.cluster.sql("SET client_min_messages = error;" + "".join(f"COPY t FROM '{path}' WITH (rejects_to 'bad');" for path in (few, few, many)))
        self.assertEqual(self.cluster.sql("SELECT count(*) FROM bad"), "1100")
        growth = self.cluster.sql("SELECT bytes - lag(bytes) OVER (ORDER BY n) FROM used ORDER BY n").split("\n")[-1]
        self.assertLess(int(growth), 150000)

    def test_limit(self):
        """If there are more bad records than max_rejects, the statement fails, and neither table keeps a row of it."""
        data = b"1,a,1,\nx,b,1,\n3,c,1,\ny,d,1,\n"
        self.load(data, more=", max_rejects 2")
        self.assertEqual(self.cluster.sql("SELECT count(*) FROM t; SELECT count(*) FROM bad"), "2\n2")
        self.assertEqual(self.cluster.sql("SET pgsluice.copy = off; COPY t FROM '/dev/null' WITH (rejects_to 'bad');"
                                         "SELECT rows, rejected FROM pgsluice.last_copy"), "0|0")
        for limit in (0, 1):
            with self.assertRaises(Refused) as refused:
                self.load(data, more=f", max_rejects {limit}")
            self.assertIn(f"22P02: COPY has more than {limit} records to reject", str(refused.exception))
            self.assertIn(f"COPY t, line {2 if limit == 0 else 4}", str(refused.exception))
            self.assertEqual(self.cluster.sql("SELECT count(*) FROM t; SELECT count(*) FROM bad"), "0\n0")

    def test_default_limit(self):
        """Without max_rejects, the limit is 1,000 rejects; with 'none', there is no limit."""
        for count, more, kept in ((1000, "", 1000), (1001, "", None), (1001, ", max_rejects 'none'", 1001)):
            for record in (b"x,b,1,\n", b"1,,1,\n", b"1\n"):
                with self.subTest(count=count, more=more, record=record):
                    try:
                        self.load(record * count + b"7,a,1,\n", more=more)
                    except Refused as refused:
                        self.assertIsNone(kept)
                        self.assertIn('COPY has more than 1000 records to reject (option "max_rejects")', str(refused))
                        self.assertIn("max_rejects 'none'", str(refused))
                    else:
                        self.assertEqual(self.cluster.sql("SELECT count(*) FROM bad"), str(kept))

    def transaction_ids(self, data, more="", **options):
        """How many transaction IDs a load takes."""
        self.load(b"", **options)
        path = self.cluster.file("input3", data)
        # The query itself takes none.
        last = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text"
        before = int(self.cluster.sql(last))
        self.cluster.sql(f"SET client_min_messages = error; COPY t FROM '{path}' WITH (FORMAT csv, rejects_to 'bad', max_rejects 'none'{more})")
        return int(self.cluster.sql(last)) - before

    def test_transaction_ids(self):
        """Records that cannot be read take no transaction ID; good rows take one for each group of thousands, whether the core or the server reads them."""
        count = 100000
        good = [b"%d,word %d,%d.5,2024-02-03\n" % (i, i, i) for i in range(count)]
        table = "CREATE TABLE t (a int, b text, c numeric, d date)"
        for column in (b"x,y,1,\n", b"1,y,z,\n", b"1,y,1,2024-02-31\n", b"x\n", b'1,"\n'):
            self.assertLessEqual(self.transaction_ids(column * count, table=table), 2)
            self.assertGreater(int(self.cluster.sql("SELECT count(*) FROM bad")), 0)
        for workers in (0, 2):
            self.assertLessEqual(self.transaction_ids(b"".join(good), f", workers {workers}"), 12)
            for bad in (b"%d,y,no number,\n", b"%d\n", b"%d,,1,\n", b'%d,caf\xe9,1,\n'):
                mixed = [bad % i if i % 50 == 7 else line for i, line in enumerate(good)]
                self.assertLessEqual(self.transaction_ids(b"".join(mixed), f", workers {workers}"), 12)
                self.assertEqual(self.cluster.sql("SELECT count(*) FROM t; SELECT count(*) FROM bad"), f"{count - count // 50}\n{count // 50}")
        # A duplicate key is found when its row is inserted: its group, the rows before it and the row itself are tried.
        twice = [b"%d,y,1,\n" % (i - 1) if i % 50 == 7 else line for i, line in enumerate(good[:20000])]
        self.assertLessEqual(self.transaction_ids(b"".join(twice)), 5 * 400)
        # Wide rows, which the server reads.
        wide = b"".join(b"%d,%s,1,\n" % (i, b"w" * 1500000) for i in range(20))
        self.assertLessEqual(self.transaction_ids(wide), 20)

    @unittest.skipIf(MAJOR < 16, "pg_stat_get_backend_subxact is new in 16")
    def test_snapshots_of_others(self):
        """Records that cannot be read do not overflow the session's list of subtransactions, which others' snapshots need; violations do."""
        shown = "SELECT subxact_overflowed FROM pg_stat_get_backend_idset() id, pg_stat_get_backend_subxact(id) WHERE pg_stat_get_backend_pid(id) = {}"
        rows = [b"%d,word,1,\n" % i for i in range(20000)]
        for bad, overflowed in ((b"%d,word,no number,\n", "f"), (b"%d,word,-1,\n", "t")):
            data = [bad % i if i % 100 == 7 else line for i, line in enumerate(rows)]
            self.load(b"")
            path = self.cluster.file("input4", b"".join(data))
            with self.cluster.connect() as session:
                pid = session.run("SELECT pg_backend_pid()")
                session.run(f"SET client_min_messages = error; BEGIN; COPY t FROM '{path}' WITH (FORMAT csv, rejects_to 'bad')")
                self.assertEqual(self.cluster.sql(shown.format(pid)), overflowed)
                session.run("COMMIT")
            self.assertEqual(self.cluster.sql("SELECT count(*) FROM t; SELECT count(*) FROM bad"), "19800\n200")

    def test_progress(self):
        """After rejects, pg_stat_progress_copy still shows the COPY."""
        self.load(b"x,1,1,\n1,a,1,\n2,,1,\n", table=TABLE + "; DROP TABLE IF EXISTS seen; CREATE TABLE seen (bytes bigint); CREATE OR REPLACE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS"
                  " $$ BEGIN INSERT INTO seen SELECT bytes_processed FROM pg_stat_progress_copy WHERE pid = pg_backend_pid() AND relid = 't'::regclass; RETURN NULL; END $$;"
                  "CREATE TRIGGER see AFTER INSERT ON t EXECUTE FUNCTION see()")
        self.assertEqual(self.cluster.sql("SELECT count(*) FROM bad; SELECT bytes FROM seen"), "2\n20")

    def test_names_of_objects(self):
        """A value that names no object is rejected; a trigger or function that misses an object ends the load."""
        self.load(b"pg_class\nnowhere\npg_type\n\"a\".b.c.d\n", table="CREATE TABLE t (a regclass)")
        self.assertEqual(self.cluster.sql("SELECT string_agg(a::text, ' ') FROM t; SELECT line, sqlstate FROM bad ORDER BY line"),
                         "pg_class pg_type\n2|42P01\n4|42601")
        missing = "CREATE OR REPLACE FUNCTION look(a int) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN PERFORM FROM missing; RETURN true; END $$;"
        trigger = ("CREATE OR REPLACE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM FROM missing; RETURN NULL; END $$;"
                   "CREATE TABLE t (a int); CREATE TRIGGER look AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION look()")
        for table in (trigger, missing + "CREATE TABLE t (a int CHECK (look(a)))"):
            with self.subTest(table=table), self.assertRaises(Refused) as refused:
                self.load(b"1\n2\n", table=table)
            self.assertIn('42P01: relation "missing" does not exist', str(refused.exception))
            self.assertEqual(self.cluster.sql("SELECT count(*) FROM t; SELECT count(*) FROM bad"), "0\n0")

    def test_not_the_data(self):
        """An error that any record would cause, such as a sequence's limit or a timeout, ends the statement."""
        for table, target, before, words in (
            ("CREATE SEQUENCE IF NOT EXISTS short MAXVALUE 2; SELECT setval('short', 2); CREATE TABLE t (s int DEFAULT nextval('short'), a int)", "t (a)", "", "2200H"),
            ("CREATE OR REPLACE FUNCTION slow(a int) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(9); RETURN true; END $$;"
             "CREATE TABLE t (a int CHECK (slow(a)))", "t", "SET statement_timeout = 500;", "57014"),
        ):
            with self.assertRaises(Refused) as refused:
                self.load(b"1\n2\n", table=table, target=target, before=before)
            self.assertIn(words, str(refused.exception))
            self.assertEqual(self.cluster.sql("SELECT count(*) FROM bad"), "0")

    def refused(self, sql, user="postgres"):
        """The server's error."""
        with self.assertRaises(Refused) as refused:
            self.cluster.sql(sql, user=user)
        return str(refused.exception)

    def test_rights_and_refusals(self):
        """INSERT is needed on both tables; options and foreign keys that do not go with rejects_to are errors that say so."""
        self.load(b"")
        copy = "COPY t FROM '/dev/null' WITH (FORMAT csv, {})"
        self.cluster.sql("GRANT INSERT ON t TO loader; GRANT pg_read_server_files TO loader")
        self.assertIn("42501: permission denied for table bad", self.refused(copy.format("rejects_to 'bad'"), "loader"))
        self.cluster.sql("GRANT INSERT ON bad TO loader; REVOKE INSERT ON t FROM loader")
        self.assertIn("42501: permission denied for table t", self.refused(copy.format("rejects_to 'bad'"), "loader"))
        self.cluster.sql("GRANT INSERT ON t TO loader")
        self.cluster.sql(copy.format("rejects_to 'public.bad'"), user="loader")
        self.cluster.sql("REVOKE pg_read_server_files FROM loader")
        self.assertIn("may not read files", self.refused(copy.format("rejects_to 'bad'"), "loader"))
        for options, words in (
            ("max_rejects 1", 'COPY option "max_rejects" cannot be used with no option "rejects_to"'),
            ("rejects_to 'bad', max_rejects -1", 'COPY option "max_rejects" must be zero or more, or "none"'),
            ("rejects_to 'bad', max_rejects 'all'", "max_rejects requires"),
            ("max_rejects 'none'", 'COPY option "max_rejects" cannot be used with no option "rejects_to"'),
            ("rejects_to 'nowhere'", '42P01: relation "nowhere" does not exist'),
            ("rejects_to 't'", 'COPY option "rejects_to" names the table that is being loaded'),
            ("rejects_to 'bad', rejects_to 'bad'", "conflicting or redundant options"),
            ("rejects_to 'bad', freeze", 'COPY option "rejects_to" cannot be used with FREEZE'),
            ("rejects_to 'bad', pgsluice 'off'", 'COPY option "rejects_to" cannot be used with pgsluice \'off\''),
            ("rejects_to 'shape'", 'table "shape" of COPY option "rejects_to" has no column "column_name" of type text'),
        ):
            self.cluster.sql("CREATE TABLE IF NOT EXISTS shape (line bigint)")
            self.assertIn(words, self.refused(copy.format(options)))
        self.assertIn("cannot be used with FORMAT binary", self.refused("COPY t FROM '/dev/null' WITH (FORMAT binary, rejects_to 'bad')"))
        self.cluster.sql("CREATE TABLE s (a int PRIMARY KEY, b int REFERENCES s)")
        self.assertIn("a foreign key of the table to itself", self.refused("COPY s FROM '/dev/null' WITH (rejects_to 'bad')"))
        self.cluster.sql("DROP TABLE s; CREATE TABLE s (a int PRIMARY KEY, b int REFERENCES s) PARTITION BY RANGE (a); CREATE TABLE s0 PARTITION OF s DEFAULT")
        self.assertIn("a foreign key of the table to itself", self.refused("COPY s0 FROM '/dev/null' WITH (rejects_to 'bad')"))
        # A foreign key of a partition itself, to that partition or to another one.
        for to in ("s0", "s1"):
            self.cluster.sql("DROP TABLE s; CREATE TABLE s (a int, b int) PARTITION BY RANGE (a); CREATE TABLE s0 PARTITION OF s DEFAULT;"
                             "CREATE TABLE s1 PARTITION OF s FOR VALUES FROM (0) TO (9); ALTER TABLE s0 ADD PRIMARY KEY (a); ALTER TABLE s1 ADD PRIMARY KEY (a);"
                             f"ALTER TABLE s0 ADD CONSTRAINT up FOREIGN KEY (b) REFERENCES {to}")
            self.assertIn("a foreign key of the table to itself", self.refused("COPY s FROM '/dev/null' WITH (rejects_to 'bad')"))
            self.cluster.sql("ALTER TABLE s0 ALTER CONSTRAINT up DEFERRABLE INITIALLY DEFERRED; COPY s FROM '/dev/null' WITH (rejects_to 'bad')")
        self.cluster.sql("DROP TABLE s; CREATE VIEW v AS SELECT 1 AS a")
        self.assertIn('Stock COPY has no option "rejects_to"', self.refused("COPY v FROM '/dev/null' WITH (rejects_to 'bad')"))
        self.cluster.sql("DROP VIEW v")

    def test_statement_triggers_and_rules(self):
        """A statement trigger of the rejects_to or duplicates_to table fires only if a row goes there. A rule may redirect the rows; one that drops them is an error at once."""
        self.load(b"")
        self.cluster.sql("CREATE TABLE twice (LIKE pgsluice.duplicate); CREATE TABLE moved (LIKE bad); CREATE TABLE fired (name text);"
                         "CREATE FUNCTION fire() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO fired VALUES (TG_TABLE_NAME); RETURN NULL; END $$;"
                         "CREATE TRIGGER fire BEFORE INSERT ON bad FOR EACH STATEMENT EXECUTE FUNCTION fire();"
                         "CREATE TRIGGER fire AFTER INSERT ON twice FOR EACH STATEMENT EXECUTE FUNCTION fire()")
        both = ", on_duplicate 'skip', duplicates_to 'twice'"
        self.load(b"1,a,1,\n2,b,1,\n", table="", more=both)
        self.assertEqual(self.cluster.sql("SELECT count(*) FROM t; SELECT count(*) FROM fired"), "2\n0")
        self.load(b"x,c,1,\n1,d,1,\n3,e,1,\n", table="", more=both)
        self.assertEqual(self.cluster.sql("SELECT count(*) FROM t; SELECT name, count(*) FROM fired GROUP BY 1 ORDER BY 1"), "3\nbad|1\ntwice|1")
        self.cluster.sql("CREATE RULE away AS ON INSERT TO bad DO INSTEAD INSERT INTO moved VALUES (NEW.*)")
        self.load(b"y,f,1,\n", table="")
        self.assertEqual(self.cluster.sql("SELECT count(*) FROM bad; SELECT record FROM moved"), "1\ny,f,1,")
        self.cluster.sql("CREATE OR REPLACE RULE away AS ON INSERT TO bad DO INSTEAD NOTHING")
        self.assertIn('42809: a rule of table "bad" of COPY option "rejects_to" does not insert the rows',
                      self.refused("COPY t FROM '/dev/null' WITH (rejects_to 'bad')"))
        self.cluster.sql("DROP RULE away ON bad; DROP TRIGGER fire ON bad; DROP TABLE twice, moved, fired; DROP FUNCTION fire()")

    def test_within_transactions(self):
        """With savepoints, a rollback, or TRUNCATE in the transaction, the load's rows and rejects are all there or none."""
        data = b"".join(b"%d,x,1,\n" % i if i % 10 else b"x%d,x,1,\n" % i for i in range(2000))
        path = self.cluster.file("input2", data)
        self.load(b"")
        copy = f"COPY t FROM '{path}' WITH (FORMAT csv, rejects_to 'bad');"
        self.cluster.sql(f"SET client_min_messages = error; BEGIN; SAVEPOINT s; {copy} ROLLBACK TO s; {copy} COMMIT")
        self.assertEqual(self.cluster.sql("SELECT count(*) FROM t; SELECT count(*) FROM bad"), "1800\n200")
        self.cluster.sql(f"SET client_min_messages = error; TRUNCATE t, bad; BEGIN; {copy} ROLLBACK")
        self.assertEqual(self.cluster.sql("SELECT count(*) FROM t; SELECT count(*) FROM bad"), "0\n0")
        self.cluster.sql(f"SET client_min_messages = error; BEGIN; TRUNCATE t; {copy} COMMIT")
        self.assertEqual(self.cluster.sql("SELECT count(*) FROM t; SELECT count(*) FROM bad"), "1800\n200")
        said = self.cluster.tail()
        self.assertNotIn("WARNING", said)


if __name__ == "__main__":
    unittest.main()
