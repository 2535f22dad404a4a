"""Data in another encoding than the server's, and databases whose encoding is not UTF8."""

import random
import unittest

from .cluster import OnCluster
from .differential import IN_ORDER, compare, outcome

TABLE = "CREATE TABLE t (a int, b text, c varchar(5), d char(4), e json, f varchar(3)[])"
CSV = "COPY t (a, b) FROM {} WITH (FORMAT csv"


class Database:
    """One database of a cluster, for functions of differential.py that take a cluster."""

    def __init__(self, cluster, name, encoding):
        self.cluster = cluster
        self.name = name
        self.shown = "sql_ascii" if encoding == "SQL_ASCII" else "utf8"
        cluster.sql(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'")
        cluster.sql("CREATE EXTENSION pgsluice", database=name)

    def file(self, name, content):
        """A file that the server can read."""
        return self.cluster.file(name, content)

    def connect(self, stops=True):
        """A session that prints UTF-8, if the database can convert to it."""
        session = self.cluster.connect(self.name, stops=stops)
        session.run(f"SET client_encoding = {self.shown}")
        return session


class Encodings(OnCluster):
    """ENCODING and client_encoding, valid and invalid data, also across the ends of buffers and chunks."""

    def same(self, data, encoding, copy=CSV, where=None, route="insert", rest="", client=False):
        """Loads by both with the option ENCODING, and with `client` by client_encoding, too; returns the error, or None."""
        where = where or self.cluster
        with self.subTest(encoding=encoding, copy=copy, data=data[:60]):
            statement = f"{copy}, ENCODING '{encoding}'{rest})"
            stock = outcome(where, TABLE, statement, data, IN_ORDER, stock=True)
            refusal = compare(self, where, TABLE, statement, data, route=route, stock=stock)
            if client:
                compare(self, where, TABLE, f"SET client_encoding = '{encoding}';\n{copy}{rest});\nSET client_encoding = utf8", data, route=None)
            return refusal

    def test_conversions(self):
        """Single-byte and multibyte encodings, some of whose bytes look like ASCII, are converted as by stock COPY, with workers, too."""
        samples = {
            "LATIN1": "žluť café ÿ", "WIN1252": "café € “x”", "LATIN2": "žluťoučký kůň", "KOI8R": "тест", "EUC_JP": "日本語テスト",
            "SJIS": "表ソ能日本語", "BIG5": "功許蓋中文", "GBK": "中文誠", "GB18030": "中文€", "UHC": "한국어",
        }
        codecs = {"LATIN1": "latin-1", "WIN1252": "cp1252", "LATIN2": "iso8859-2", "KOI8R": "koi8-r", "SJIS": "cp932", "UHC": "cp949"}
        random.seed(5)
        for encoding, sample in samples.items():
            codec = codecs.get(encoding, encoding.lower())
            sample = sample.encode(codec, "ignore").decode(codec)
            lines = "".join(f'{i},"{sample * random.randrange(1, 4)} ""{i}"""\n' for i in range(2500))
            data = lines.encode(codec)
            self.assertIsNone(self.same(data, encoding, rest=", workers 2"))
            self.assertIsNone(self.same(data[:120].rpartition(b"\n")[0], encoding, client=True))
            self.same(lines.replace('"', "").replace(",", "\t").encode(codec), encoding, "COPY t (a, b) FROM {} WITH (FORMAT text", route=None)

    def test_what_cannot_be_converted(self):
        """Data that cannot be converted gets stock COPY's error with its line and bytes, wherever it is."""
        self.refused = 0
        bads = {"WIN1252": b"\x81", "LATIN1": b"\0", "EUC_JP": b"\x8f\xa1", "SJIS": b"\x85\xff", "BIG5": b"\xa1", "GB18030": b"\x84\x30\xff", "KOI8R": b"\0"}
        for encoding, bad in bads.items():
            for before in (0, 1, 40, 3000, *((40000,) if encoding in ("WIN1252", "SJIS") else ())):
                rows = b"".join(b"%d,some text\n" % i for i in range(before))
                for data in (rows + b"7," + bad, rows + b"7,x" + bad + b"y\n8,z\n", rows + bad + b"\n", rows + b'7,"quoted\n\n' + bad + b'"\n'):
                    self.refused += self.same(data, encoding, route=None, client=before == 40) is not None
                    if before == 40000:
                        self.same(data, encoding, route=None, rest=", workers 2")
                        self.same(data, encoding, rest=" , HEADER", route=None)
        self.assertGreater(self.refused, 110)
        self.same(b"1,x\n\\.\n\x81\n", "WIN1252", route=None)
        self.same(b"1,x\n", "nonsense", route=None)
        self.same(b"1,caf\xe9\n", "SQL_ASCII", route=None)

    def test_databases_of_single_bytes(self):
        """In LATIN1, WIN1252 and SQL_ASCII databases, length limits count bytes, and data in their own encoding and
        in UTF8 loads or fails as with stock COPY. An EUC_JP database falls back to it."""
        full = "COPY t FROM {} WITH (FORMAT csv"
        rows = [
            "1,café,éééé,é,\"{\"\"ü\"\": \"\"\\u00e9\"\"}\",\"{ééé,a}\"\n", "2,\"é\"\"é\",ééééé,éééé,,{}\n", "3,ÿ,abc,abcd,[],\n",
        ]
        bad = ["4,x,éééééé,,,\n", "4,x,,ééééé,,\n", "4,x,,,,{éééé}\n", "é,x,,,,\n", "4,x,,,{é},\n", "4,x,\u00a0\n"]
        for name, encoding in (("latin", "LATIN1"), ("win", "WIN1252"), ("ascii", "SQL_ASCII")):
            database = Database(self.cluster, name, encoding)
            codecs = {"WIN1252": "cp1252", "SQL_ASCII": "latin-1"}
            for data in ("".join(rows), "".join(rows * 400), "".join(rows + ["1,\0\n"]), "".join(rows * 400 + ["1,\0\n"]),
                         *("".join(rows * 20) + line for line in bad)):
                for other in (encoding, "UTF8"):
                    codec = codecs.get(other, other)
                    self.same(data.encode(codec), other, full, database, route=None)
                text = data.replace('"', "").replace(",", "\t").encode(codec)
                self.same(text, other, "COPY t FROM {} WITH (FORMAT text", database, route=None)
            self.assertIsNone(self.same("".join(rows * 400).encode("cp1252"), encoding, full, database, client=True))
            # A Unicode escape in jsonb becomes a character of the database's encoding, or is an error.
            for value in ('"\\u00e9"', '{"\\u00e9": 1, "é": 2}', '["é", "\\n"]', '"\\u65e5"'):
                escaped = "".join(f"{i}\t{value}\n" for i in range(100)).replace("\\", "\\\\")
                compare(self, database, "CREATE TABLE t (a int, b jsonb)", f"COPY t FROM {{}} WITH (ENCODING '{encoding}')",
                        escaped.encode(codecs.get(encoding, encoding)), route=None)
            self.same("1,日本\n".encode(), "UTF8", where=database, route=None)
            self.same(b"1,caf\\351 \\xe9\n" * 100, encoding, "COPY t (a, b) FROM {} WITH (DELIMITER ','", database)
        wide = Database(self.cluster, "wide", "EUC_JP")
        self.same("1,日本\n".encode(), "UTF8", where=wide, route="the database's encoding is neither UTF8 nor one of single bytes")


if __name__ == "__main__":
    unittest.main()
