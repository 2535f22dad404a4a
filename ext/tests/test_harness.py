"""What the tests themselves rest on."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from .cluster import BIN, EXT, put, wait_until


class Harness(unittest.TestCase):
    """Installing, and what is left behind."""

    def test_a_library_in_use(self):
        """Whoever has the old file open or mapped keeps it as it was."""
        with tempfile.TemporaryDirectory() as folder:
            old, new = Path(folder, "library.so"), Path(folder, "new.so")
            old.write_text("old")
            new.write_text("new")
            with open(old, encoding="ascii") as loaded:
                put(new, old)
                self.assertEqual((loaded.read(), old.read_text()), ("old", "new"))
            self.assertEqual(len(list(Path(folder).iterdir())), 2, "nothing else stays there")

    def test_killed(self):
        """Of a test process that is killed neither servers nor folders stay."""
        program = ("from tests.cluster import Cluster; c = Cluster(); print((c.data / 'postmaster.pid').read_text().split()[0], c.home, flush=True);"
                   " input()")
        environment = {**os.environ, "PGSLUICE_INSTALLED": "yes", "PG_CONFIG": str(BIN / "pg_config")}
        with subprocess.Popen([sys.executable, "-c", program], cwd=EXT, env=environment, text=True,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            server, home = process.stdout.readline().split()
            self.assertTrue(Path(home).is_dir())
            process.kill()
        self.assertTrue(wait_until(lambda: not Path(home).parent.exists()), f"{home} is left behind")
        try:
            # Of a process that nobody collects nothing is left but its number.
            self.assertEqual(Path(f"/proc/{server}/cmdline").read_text(), "")
        except (FileNotFoundError, ProcessLookupError):
            pass


if __name__ == "__main__":
    unittest.main()
