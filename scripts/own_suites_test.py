"""Where scripts/own-suites takes a source from, and what it does without one."""

import contextlib
import hashlib
import importlib.machinery
import importlib.util
import io
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.dont_write_bytecode = True


def program():
    """The script as a module."""
    loader = importlib.machinery.SourceFileLoader("own_suites", str(Path(__file__).with_name("own-suites")))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("own_suites", loader))
    loader.exec_module(module)
    return module


def listed(content, version):
    """What apt's list says of an archive."""
    return f" {hashlib.sha256(content).hexdigest()} {len(content)} postgresql-19_{version}.orig.tar.bz2\n"


class Sources(unittest.TestCase):
    def setUp(self):
        self.script = program()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "v19rc1").mkdir()
        (self.folder / "v19rc1/postgresql-19rc1.tar.bz2").write_bytes(b"source")
        self.script.UPSTREAM = self.folder.as_uri()

    def test_the_archive_that_debian_lists(self):
        self.script.fetch_upstream(19, self.folder, listed(b"source", "19~rc1"))
        self.assertEqual((self.folder / "postgresql-19_19~rc1.orig.tar.bz2").read_bytes(), b"source")

    def test_another_archive_fails(self):
        with self.assertRaisesRegex(self.script.Failed, "not the one that Debian lists"):
            self.script.fetch_upstream(19, self.folder, listed(b"other", "19~rc1"))
        self.assertEqual(list(self.folder.glob("*.bz2")), [])

    def test_no_archive(self):
        for text, said in (("", "lists no source"), (listed(b"source", "19~rc2"), "source of 19rc2")):
            with self.assertRaisesRegex(self.script.NoSource, said):
                self.script.fetch_upstream(19, self.folder, text)

    def test_without_a_source_the_suites_are_left_out(self):
        self.script.ROOT = self.folder
        self.script.fetch = mock.Mock(side_effect=self.script.NoSource("there is none"))
        out = io.StringIO()
        with mock.patch.object(sys, "argv", ["own-suites", "19"]), contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            self.assertEqual(self.script.main(), 0)
        self.assertEqual(out.getvalue(), "left out: PostgreSQL's own suites on 19, since there is none\n")


if __name__ == "__main__":
    unittest.main()
