"""Fuzzed COPY streams into a running backend: random bytes, split at random.

The oracle is stock COPY: the same rows, or the same error. The server never crashes. PGSLUICE_SOAK=n is n rounds of 100
streams for each format.
"""

import os
import random
import re
import socket
import struct
import unittest

from .cluster import MAJOR, OnCluster

ROUNDS = 100 * int(os.environ.get("PGSLUICE_SOAK", "1"))
SEED = os.environ.get("PGSLUICE_SEED", "1")
TABLE = "CREATE TABLE t (a int, b text, c numeric(8,2) DEFAULT 1, d timestamptz, e int[], f jsonb, g bool NOT NULL DEFAULT true)"


class Client:
    """A client that sends the protocol as bytes, so that messages may be truncated or wrong anywhere."""

    def __init__(self, server):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(600)
        self.socket.connect(f"{server.home}/.s.PGSQL.{server.port}")
        start = b"\0\3\0\0user\0postgres\0database\0postgres\0\0"
        self.socket.sendall(struct.pack("!i", len(start) + 4) + start)
        self.stream = self.socket.makefile("rb")
        self.until("Z")

    def close(self):
        """Disconnects without a Terminate message."""
        self.stream.close()
        self.socket.close()

    def message(self):
        """The next message: its type and its body."""
        head = self.stream.read(5)
        if len(head) < 5:
            raise EOFError
        return chr(head[0]), self.stream.read(struct.unpack("!i", head[1:])[0] - 4)

    def until(self, *types):
        """Reads up to one of these types; returns it, with the errors, tags and rows before it."""
        said = []
        while True:
            kind, body = self.message()
            if kind in "EC":
                fields = [f for f in body.split(b"\0") if f[:1] in b"CMDW" or kind == "C"]
                said.append(b" | ".join(fields).decode(errors="replace"))
            if kind == "D":
                said.append(body[6:].decode(errors="replace"))
            if kind in types:
                return kind, said

    def query(self, sql):
        """Sends statements."""
        text = sql.encode() + b"\0"
        self.socket.sendall(b"Q" + struct.pack("!i", len(text) + 4) + text)

    def run(self, sql):
        """Runs statements without data; returns what they report."""
        self.query(sql)
        return self.until("Z")[1]

    def copy(self, sql, data, rng, end):
        """Runs one COPY of the data in messages of any size, sent in pieces of any size."""
        self.query(sql)
        kind, said = self.until("G", "Z")
        if kind == "Z":
            return said
        stream, at = bytearray(), 0
        while at < len(data):
            length = rng.choice((0, 1, 2, 7, 100, 8192, 65536, 300000))
            piece = data[at:at + length]
            stream += b"d" + struct.pack("!i", len(piece) + 4) + piece
            at += length
            if rng.random() < 0.05:
                stream += rng.choice((b"H\0\0\0\4", b"d\0\0\0\4"))
        stream += {"done": b"c\0\0\0\4", "fail": b"f\0\0\0\x0dno more\0\0"}[end]
        at = 0
        try:
            while at < len(stream):
                length = rng.choice((1, 5, 4096, len(stream)))
                self.socket.sendall(stream[at:at + length])
                at += length
        except BrokenPipeError:
            pass
        return self.until("Z")[1]


def field(rng):
    """Something that a field may hold, valid or not."""
    return rng.choice((
        b"", b"\\N", b"1", b"-7", b"2147483648", b"12.345", b"99999999.5", b"2024-02-30", b"2024-02-28 12:00+02", b"{1,2,NULL}", b"{1",
        b'"{""a"": [1, null]}"', b'{"a": 1}', b"t", b"no", b'"quoted, ""x"" \n line"', b'"', b"'", b"\\", b"\\.", b"\\x41\\101\\t", b"\r", b"\n",
        b"\0", b"\xc5\xbe", b"\xff\xfe", b"\xe2\x82", b"x" * rng.choice((10, 3000, 70000)), bytes(rng.randrange(256) for _ in range(8)),
    ))


def good(rng, i, csv):
    """A valid row."""
    text = rng.choice((b"plain", b"\xc5\xbelu\xc5\xa5", b"", b"a b" * 50))
    if csv:
        return b'%d,%s,%d.5,2024-01-01,"{1,%d}","{""k"": %d}",t' % (i, text, i, i, i)
    return b'%d\t%s\t%d.5\t2024-01-01\t{1,%d}\t{"k": %d}\tt' % (i, text, i, i, i)


def records(rng, csv):
    """Text of records, most of them valid, some of them mutated."""
    end = rng.choice((b"\n", b"\n", b"\r\n", b"\r"))
    badness = rng.choice((0, 0, 0.002, 0.02, 1))
    lines = []
    for i in range(rng.choice((3, 50, 1500))):
        if rng.random() < badness:
            lines.append((b"," if csv else b"\t").join(field(rng) for _ in range(rng.choice((1, 6, 7, 7, 7, 8)))))
        else:
            lines.append(good(rng, i, csv))
    data = bytearray(end.join(lines) + (end if rng.random() < 0.9 else b""))
    for _ in range(rng.choice((0, 0, 0, 1, 3))):
        if data:
            at = rng.randrange(len(data))
            data[at:at + rng.choice((0, 1, 1, 5))] = rng.choice((b"", b'"', b"\\", b"\n", b"\0", b"\xff", b"\r", b","))
    return bytes(data)


def binary(rng):
    """Data in COPY's binary format, valid or not."""
    data = bytearray(b"PGCOPY\n\xff\r\n\0" + struct.pack("!ii", 0, 0))
    for i in range(rng.choice((1, 20, 1000))):
        data += struct.pack("!h", 2) + struct.pack("!ii", 4, i) + struct.pack("!i", 5) + b"text!"
    data += struct.pack("!h", -1)
    for _ in range(rng.choice((0, 1, 4))):
        at = rng.randrange(len(data))
        data[at:at + rng.choice((0, 1, 2))] = bytes(rng.randrange(256) for _ in range(rng.choice((0, 1, 2))))
    return bytes(data)


class Fuzz(OnCluster):
    """Each stream is loaded by stock COPY and by the extension, in separate sessions."""

    prepared = f"{TABLE}; CREATE TABLE bad (LIKE pgsluice.reject)"

    def both(self, number, copy, data, end="done"):
        """Asserts that the extension, with and without workers, reports and leaves what stock COPY does; returns the messages."""
        found = []
        for setting in ("off", "on", "on; SET pgsluice.workers = 2"):
            client = self.clients.setdefault(setting, None) or Client(self.cluster)
            self.clients[setting] = client
            client.run(f"SET client_min_messages = error; TRUNCATE t; SET pgsluice.copy = {setting}")
            said = client.copy(copy, data, random.Random(number), end)
            # Stock COPY of 19 requests more data before it takes the last bytes of a line: if the stream fails, it has not read that line.
            if end == "fail" and MAJOR >= 19:
                said = [re.sub(r"WCOPY t, line \d+", "WCOPY t", one) for one in said]
            found.append((said, client.run("SELECT md5(string_agg(t::text, '|' ORDER BY t::text COLLATE \"C\")), count(*) FROM t")))
        for other in found[1:]:
            if found[0] != other:
                path = self.cluster.file("failed", data)
                self.assertEqual(found[0], other, f"stream {SEED}/{number} ({len(data)} bytes, {path}): {copy}\n{data[:300]!r}")
        return found[0][0]

    def fuzz(self, what, copies, make):
        """Runs the streams of one format."""
        self.clients = {}
        refused = 0
        for number in range(ROUNDS):
            rng = random.Random(f"{SEED} {what} {number}")
            copy, data = rng.choice(copies), make(rng)
            # After a CR, stock COPY looks for an LF before it takes the line as read.
            end = "fail" if rng.random() < 0.05 and not data.endswith(b"\r") else "done"
            said = self.both(number, copy, data, end)
            refused += not said[-1].startswith("COPY")
        for client in self.clients.values():
            client.close()
        self.assertEqual(self.cluster.sql("SELECT 1"), "1")
        self.assertNotIn("terminated by signal", self.cluster.tail())
        self.assertGreater(refused, 0)
        self.assertLess(refused, ROUNDS)

    def test_csv(self):
        """For fuzzed CSV with several options, rows or errors are stock COPY's."""
        self.fuzz("csv", ("COPY t FROM STDIN WITH (FORMAT csv)",
                          "COPY t FROM STDIN WITH (FORMAT csv, NULL 'no', QUOTE '''')",
                          "COPY t (a, b) FROM STDIN WITH (FORMAT csv, ESCAPE '\\')",
                          "COPY t FROM STDIN WITH (FORMAT csv, HEADER)"), lambda rng: records(rng, True))

    def test_text(self):
        """For fuzzed text format, rows or errors are stock COPY's."""
        self.fuzz("text", ("COPY t FROM STDIN", "COPY t FROM STDIN WITH (NULL '')"), lambda rng: records(rng, False))

    def test_binary(self):
        """For fuzzed binary format, rows or errors are stock COPY's."""
        self.fuzz("binary", ("COPY t (a, b) FROM STDIN WITH (FORMAT binary)",), binary)

    def test_rejects(self):
        """With rejects_to, every fuzzed stream succeeds, and rejected records are kept with the bytes that they have in the data."""
        client = Client(self.cluster)
        for number in range(ROUNDS // 2):
            rng = random.Random(f"{SEED} rejects {number}")
            csv = rng.random() < 0.7
            data = records(rng, csv)
            client.run("SET client_min_messages = error; TRUNCATE t, bad")
            said = client.copy(f"COPY t FROM STDIN WITH (FORMAT {'csv' if csv else 'text'}, rejects_to 'bad', workers {rng.choice((0, 2))})",
                               data, rng, "done")
            self.assertTrue(said[-1].startswith("COPY "), f"{SEED}/{number}: {said} {data[:200]!r}")
            # Some of the rejected records: each must occur in the data.
            rejects = client.run("SELECT encode(coalesce(record_bytes, convert_to(record, 'UTF8')), 'hex') FROM bad ORDER BY md5(line::text) LIMIT 3")[:-1]
            for reject in rejects:
                record = bytes.fromhex(reject)
                self.assertIn(record, data)
        client.close()
        self.assertNotIn("terminated by signal", self.cluster.tail())

    def last_words(self, setting, data):
        """The server's final messages to a session that sends this after the start of a COPY, then disconnects."""
        client = Client(self.cluster)
        client.run(f"SET pgsluice.copy = {setting}; TRUNCATE t")
        client.query("COPY t FROM STDIN WITH (FORMAT csv)")
        client.until("G")
        client.socket.sendall(data)
        client.socket.shutdown(socket.SHUT_WR)
        told = []
        try:
            while True:
                kind, body = client.message()
                if kind in "EC":
                    told.append([field for field in body.split(b"\0") if field[:1] in b"CMW"])
        except (EOFError, ConnectionError):
            pass
        client.close()
        return told

    def test_protocol(self):
        """A message that is not allowed in a COPY, truncated or too long ends the connection with stock COPY's error, leaves no rows, and the server goes on."""
        rng = random.Random(1)
        rows = [good(rng, 5, True) + b"\n", good(rng, 5, True) + b"\nx\n", b"".join(good(rng, i, True) + b"\n" for i in range(50))]
        for wrong in (b"Q\0\0\0\x0dSELECT 1\0", b"d\0\0\0\1", b"d\xff\xff\xff\xff", b"\0\0\0\0\0", b"X\0\0\0\4", b"c\0\0\0\5x", b"d\x7f\0\0\0abc", b"d\0\0", b"c\0\0",
                      b"\0\0\0\0\4c\0\0\0\4"):
            for row in rows:
                data = b"d" + struct.pack("!i", len(row) + 4) + row + wrong
                stock, *others = (self.last_words(setting, data) for setting in ("off", "on", "on; SET pgsluice.workers = 2"))
                self.assertTrue(stock)
                for ours in others:
                    # After a bad row, a truncated message causes one more error than with stock COPY.
                    self.assertEqual(ours[:len(stock)], stock, (row[:80], wrong))
        self.assertEqual(self.cluster.sql("SELECT count(*) FROM t"), "0")
        self.assertNotIn("terminated by signal", self.cluster.tail())


if __name__ == "__main__":
    unittest.main()
