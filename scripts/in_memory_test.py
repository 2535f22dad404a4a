"""Where scripts/in-memory puts temporary files, and that none are left."""

import importlib.machinery
import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.dont_write_bytecode = True
SCRIPT = Path(__file__).with_name("in-memory")
loader = importlib.machinery.SourceFileLoader("in_memory", str(SCRIPT))
in_memory = importlib.util.module_from_spec(importlib.util.spec_from_loader("in_memory", loader))
loader.exec_module(in_memory)


class InMemory(unittest.TestCase):
    def setUp(self):
        self.memory = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.enterContext(mock.patch.object(in_memory, "MEMORY", self.memory))
        self.needs(0)

    def needs(self, size):
        self.enterContext(mock.patch.object(in_memory, "NEEDED", size))

    def test_a_folder_for_everybody(self):
        made, why = in_memory.folder()
        self.assertEqual((Path(made).parent, why), (self.memory, None))
        self.assertEqual(os.stat(made).st_mode & 0o7777, 0o1777)
        in_memory.remove(made)
        self.assertEqual(list(self.memory.iterdir()), [])

    def test_no_room(self):
        self.needs(1 << 60)
        self.assertRegex(in_memory.folder()[1], "has room for [0-9]+ MB")

    def test_nothing_there(self):
        self.memory = self.memory / "none"
        with mock.patch.object(in_memory, "MEMORY", self.memory):
            self.assertIn("cannot be used", in_memory.folder()[1])

    def test_programs_are_not_run_there(self):
        with mock.patch("os.statvfs", return_value=mock.Mock(f_flag=os.ST_NOEXEC)):
            self.assertIn("programs cannot be run", in_memory.folder()[1])

    def test_a_command(self):
        done = subprocess.run([SCRIPT, "sh", "-c", 'touch "${TMPDIR:-/tmp}/pgsluice-$$" && rm "${TMPDIR:-/tmp}/pgsluice-$$" && echo "${TMPDIR:-disk}"; exit 3'],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 3)
        where = done.stdout.strip()
        self.assertTrue("stay on disk" in done.stderr or not os.path.exists(where), where)


if __name__ == "__main__":
    unittest.main()
