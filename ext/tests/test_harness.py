"""What the tests themselves rest on."""

import tempfile
import unittest
from pathlib import Path

from .cluster import put


class Harness(unittest.TestCase):
    """Installing."""

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


if __name__ == "__main__":
    unittest.main()
