"""Which servers the library can be built for: those whose tuples and pages the core can form."""

import os
import subprocess
import unittest
from pathlib import Path

from .cluster import BIN

EXT = Path(__file__).resolve().parents[1]


class Build(unittest.TestCase):
    """Compiles the header that all parts include, with a property of the server redefined."""

    def said(self, otherwise):
        """The compiler's errors."""
        server = subprocess.run([BIN / "pg_config", "--includedir-server"], check=True, capture_output=True, text=True).stdout.strip()
        done = subprocess.run([os.environ.get("CC", "cc"), "-fsyntax-only", "-w", "-I", EXT, "-I", server, "-x", "c", "-"],
                              input=f'#include "postgres.h"\n{otherwise}\n#include "base/pgsluice.h"\n', capture_output=True, text=True, check=False)
        return done.stderr if done.returncode else ""

    def test_other_servers(self):
        """The header refuses to compile for servers that have another page size, are big-endian, or have 32 bits."""
        self.assertEqual(self.said(""), "")
        for otherwise in ("#undef BLCKSZ\n#define BLCKSZ 32768", "#define WORDS_BIGENDIAN 1", "#undef SIZEOF_VOID_P\n#define SIZEOF_VOID_P 4"):
            self.assertIn("pgsluice is built for servers of 64 bits, little-endian, with pages of 8 kB", self.said(otherwise), otherwise)


if __name__ == "__main__":
    unittest.main()
