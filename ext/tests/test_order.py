"""Rows are stored in the order of the data: on every route, with any number of workers."""

import functools
import struct
import subprocess
import unittest

from .cluster import OnCluster, has

CSV = "COPY t (a, b) FROM {} WITH (FORMAT csv{})"
TEXT = "COPY t (a, b) FROM {} WITH (FORMAT text{})"
BINARY = "COPY t (a, b) FROM {} WITH (FORMAT binary{})"
TABLE = "CREATE TABLE t (a int, b text)"
# The server reads values of this type.
ASKED = "DROP DOMAIN IF EXISTS small CASCADE; CREATE DOMAIN small AS int CHECK (VALUE % 1000 <> -1)"
RANDOM_WIDTHS = (5, 20, 100, 47, 310, 3, 900, 61, 150, 1700)

DISORDER = "SELECT count(*) FROM (SELECT a, lag(a) OVER (ORDER BY ctid) AS before FROM {} {}) x WHERE a < before"
# Rows of one load have one transaction ID.
BY_LOAD = "SELECT count(*) FROM (SELECT a, lag(a) OVER (PARTITION BY xmin::text ORDER BY ctid) AS before FROM t) x WHERE a < before"
WHOLE = "SELECT count(*), sum(hashtext(t::text)::numeric) FROM t"


@functools.cache
def lines(size, separator=",", wide=0, blank=0):
    """Rows of this size in all; one in `wide` has an out-of-line value, one in `blank` an empty one."""
    out, total, i = [], 0, 0
    while total < size:
        text = "x" * RANDOM_WIDTHS[i * 7 % 11 % 10]
        if wide and i % wide == wide - 1:
            # This does not compress.
            text = "".join(chr(33 + (i * k * k + k) % 90) for k in range(9000)).replace(",", "y").replace('"', "z").replace("\\", "z")
        if blank and i % blank == blank - 1:
            text = ""
        out.append(f"{i}{separator}{text}\n")
        total += len(out[-1])
        i += 1
    return "".join(out).encode()


@functools.cache
def tuples(size):
    """The same rows in COPY's binary format."""
    out = [b"PGCOPY\n\xff\r\n\0" + struct.pack("!ii", 0, 0)]
    for line in lines(size).splitlines():
        number, text = line.split(b",")
        out.append(struct.pack("!hiii", 2, 4, int(number), len(text)) + text)
    return b"".join(out) + struct.pack("!h", -1)


class Order(OnCluster):
    """No row is stored before one that it follows in the data."""

    def stock(self, table, copy, data):
        """The number and sum of rows that stock COPY leaves."""
        path = self.cluster.file("input", data)
        return self.cluster.sql(f"SET client_min_messages = error; DROP TABLE IF EXISTS t CASCADE; {table}; SET pgsluice.copy = off; {copy.format(repr(str(path)), '')}; {WHOLE}")

    def ordered(self, table=TABLE, copy=CSV, data=None, workers=(0, 1, 2, 4), before="", tables=("t",), options="", by_stock=True):
        """Loads with default settings and with each number of workers, from the first byte on: rows are in order and those of stock COPY."""
        data = data or lines(1 << 20)
        path = self.cluster.file("input", data)
        stock = self.stock(table, copy, data) if by_stock else None
        for count in (None, *workers):
            with self.subTest(table=table, copy=copy, size=len(data), workers=count, before=before):
                statement = copy.format(repr(str(path)), options + (", pgsluice 'require'" if count is None else f", pgsluice 'require', workers {count}"))
                found = self.cluster.sql(f"SET client_min_messages = error; DROP TABLE IF EXISTS t CASCADE; {table}; SET pgsluice.copy = on; {before} {statement}; "
                                         + ("COMMIT; " if "BEGIN" in before else "") + ";".join([WHOLE, *(DISORDER.format(one, "") for one in tables)]))
                found = found.strip().split("\n")
                self.assertEqual(found[1:], ["0"] * len(tables))
                if stock:
                    self.assertEqual(found[0], stock.strip())

    def test_sizes(self):
        """Loads of 500 bytes to 6.5 MB, below and above what is loaded before workers start: rows are in order."""
        self.ordered(data=lines(500))
        self.ordered(data=lines(50_000))
        self.ordered(data=lines(600_000))
        self.ordered(data=lines(2_500_000))
        self.ordered(data=lines(6_500_000), workers=(2,))

    def test_formats(self):
        """In text and binary format, rows are in order."""
        self.ordered(copy=TEXT, data=lines(1 << 20, "\t"), workers=(2,))
        self.ordered(copy=BINARY, data=tuples(1 << 20), workers=(2,))

    def test_routes(self):
        """On the fresh route, with keys and indexes, a sequence, CHECK, WHERE, generated columns and a fillfactor, rows are in order."""
        self.ordered(TABLE.replace("TABLE", "UNLOGGED TABLE"), before="BEGIN; TRUNCATE t;", workers=(0, 2))
        self.ordered(TABLE + "; CREATE INDEX ON t (b); CREATE UNIQUE INDEX ON t (a)", workers=(0, 2))
        self.ordered(TABLE + "; CREATE INDEX ON t (b); CREATE UNIQUE INDEX ON t (a)", workers=(0, 2), before="BEGIN; TRUNCATE t;")
        self.ordered("CREATE TABLE t (id serial, a int CHECK (a >= 0), b text)", workers=(0, 2))
        self.ordered(copy=CSV + " WHERE a % 3 > 0", workers=(0, 2))
        self.ordered("CREATE TABLE t (a int, b text, g int GENERATED ALWAYS AS (a + 1) STORED)", workers=(0, 2))
        self.ordered(TABLE + " WITH (fillfactor = 40)", workers=(0, 2))

    def test_rows_outside_of_pages(self):
        """With out-of-line values and values that the server reads, rare or frequent, with indexes, too, rows are in order."""
        for often in (3, 200):
            wide = lines(2 << 20, wide=often)
            self.ordered(data=wide, workers=(0, 2))
            self.ordered(TABLE + "; CREATE INDEX ON t (a)", data=wide, workers=(0, 2))
        self.ordered(f"{ASKED}; CREATE TABLE t (a small, b text)", workers=(0, 2))
        self.ordered("CREATE TABLE t (a int, b tsvector)", data=lines(1 << 20), workers=(0, 2))

    def test_partitions(self):
        """Each partition has its rows in order."""
        self.ordered("CREATE TABLE t (a int, b text) PARTITION BY HASH (a);"
                     + ";".join(f"CREATE TABLE t{n} PARTITION OF t FOR VALUES WITH (MODULUS 3, REMAINDER {n})" for n in range(3)),
                     workers=(0, 2), tables=("t0", "t1", "t2"))

    @unittest.skipUnless(has("pageinspect"), "pageinspect is not there")
    def test_ranges_of_blocks(self):
        """The ranges of a BRIN index are together no wider than after stock COPY, and the widest has at most a fifth more rows, without workers and with two."""
        self.cluster.sql("CREATE EXTENSION IF NOT EXISTS pageinspect")
        path = self.cluster.file("input", lines(1 << 21))
        widths = ("SELECT sum(width), max(width) FROM (SELECT v[2]::int - v[1]::int AS width FROM generate_series(2, pg_relation_size('r') / 8192 - 1) n,"
                  " brin_page_items(get_raw_page('r', n), 'r') i, regexp_match(i.value, '([0-9]+) .. ([0-9]+)') v) _")
        found = []
        for setting, options, wanted in (("off", "", "stock"), ("on", ", workers 0", "append"), ("on", ", workers 2", "append")):
            said = self.cluster.sql(f"DROP TABLE IF EXISTS t CASCADE; {TABLE}; CREATE INDEX r ON t USING brin (a) WITH (pages_per_range = 2); SET pgsluice.copy = {setting};"
                                    f"{CSV.format(repr(str(path)), options)}; SELECT coalesce(max(route), 'stock') FROM pgsluice.last_copy; SELECT brin_summarize_new_values('r') >= 0; {widths}")
            route, _, last = said.split("\n")
            self.assertEqual(route, wanted)
            found.append([int(width) for width in last.split("|")])
        stock, *ours = found
        for total, widest in ours:
            self.assertGreater(widest, 0)
            self.assertLessEqual(total, stock[0])
            # Pages begin at other rows.
            self.assertLess(widest, stock[1] * 1.2)

    def test_rejects_and_duplicates(self):
        """If some rows are rejected or skipped, the others are in order."""
        data = lines(300_000).replace(b"\n77,", b"\nno number,")
        kept = "DROP TABLE IF EXISTS bad; CREATE TABLE bad (LIKE pgsluice.reject)"
        self.ordered(f"{kept}; {TABLE}", data=data, options=", rejects_to 'bad'", by_stock=False)
        twice = lines(300_000) + lines(20_000)
        self.ordered("CREATE TABLE t (a int PRIMARY KEY, b text)", data=twice, options=", on_duplicate 'skip'", by_stock=False)

    def test_small_pieces(self):
        """If a client sends 7 kB at a time, rows are in order."""
        data = lines(2_000_000)
        for count in (0, 2):
            self.cluster.sql(f"DROP TABLE IF EXISTS t CASCADE; {TABLE}")
            copy = f"SET pgsluice.copy = on; {CSV.format('STDIN', f', workers {count}')}"
            with subprocess.Popen(self.cluster.command("-c", copy), stdin=subprocess.PIPE) as process:
                for at in range(0, len(data), 7001):
                    process.stdin.write(data[at : at + 7001])
                    process.stdin.flush()
            self.assertEqual(process.returncode, 0)
            self.assertEqual(self.cluster.sql(DISORDER.format("t", "")), "0")

    def test_again_after_vacuum(self):
        """After VACUUM has recorded the ends of pages and part-filled pages in the free space map, the next load does not fill them: its rows are in order."""
        self.cluster.sql(f"DROP TABLE IF EXISTS t CASCADE; {TABLE}")
        path = self.cluster.file("input", lines(1_500_000))
        for count in (2, 0, 2, 0):
            self.cluster.sql(f"SET pgsluice.copy = on; {CSV.format(repr(str(path)), f', workers {count}')}")
            self.cluster.sql("VACUUM t")
        self.assertEqual(self.cluster.sql(BY_LOAD), "0")

    def test_two_at_once(self):
        """If four loads into one table run at once, each one's rows are in order, in batches and in whole pages."""
        server = self.cluster
        for size, route in ((600_000, "insert"), (1 << 20, "append")):
            server.sql("DROP TABLE IF EXISTS t CASCADE; CREATE TABLE t (a int, b text)")
            path = server.file("input", lines(size))
            copy = f"SET pgsluice.copy = on; COPY t (a, b) FROM '{path}' WITH (FORMAT csv, pgsluice 'require')"
            started = [subprocess.Popen(server.command("-c", copy, "-c", "SELECT route FROM pgsluice.last_copy"), stdout=subprocess.PIPE, text=True) for _ in range(4)]
            self.assertEqual([(process.communicate()[0], process.returncode) for process in started], [(f"{route}\n", 0)] * 4)
            self.assertEqual(server.sql(BY_LOAD), "0")


if __name__ == "__main__":
    unittest.main()
