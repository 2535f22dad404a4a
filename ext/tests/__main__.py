"""Runs every test, says which were left out and which took longest: python3 -m tests, in ext/.

`python3 -m tests PART ...` runs only these parts: `version`, `newest` and `oldest`, which together are all modules.
"""

import sys
import time
import unittest
from pathlib import Path

from .cluster import left_out


class Result(unittest.TextTestResult):
    """As unittest's own, which only counts what was skipped, and times only the whole."""

    def __init__(self, *settings, **more):
        super().__init__(*settings, **more)
        self.seconds = {}

    def startTest(self, test):
        super().startTest(test)
        self.seconds[test.id()] = -time.monotonic()

    def stopTest(self, test):
        self.seconds[test.id()] += time.monotonic()
        super().stopTest(test)

    def stopTestRun(self):
        super().stopTestRun()
        for test, reason in self.skipped:
            left_out(f"{reason} ({test.id()})")
        for name in sorted(self.seconds, key=self.seconds.get, reverse=True)[:10]:
            print(f"{self.seconds[name]:6.1f} s {name}", file=sys.stderr)


class Runner(unittest.TextTestRunner):
    """As unittest's own, with these results."""

    resultclass = Result


# What ext/compat/ has for a version is used by what these test: privileges, options and defaults of COPY,
# extending relations, their blocks, entries of B-trees, files of indexes, collations, workers' sessions, other libraries.
# `make test` runs them on every major.
VERSION = (
    "blocks", "build", "foreign_keys", "index", "index_append", "index_extend", "index_parallel", "insert", "neighbours", "rejects", "routes",
    "security", "small", "statements", "workers",
)

# Of the other modules, `make test` runs these on the newest major and the rest on the oldest: about as long as each other.
NEWEST = ("binary", "duplicates", "duplicates_private", "fuzz", "index_behind", "index_copy", "readers", "types")

ALL = sorted(file.stem.removeprefix("test_") for file in Path(__file__).parent.glob("test_*.py"))
PARTS = {"version": VERSION, "newest": NEWEST, "oldest": [name for name in ALL if name not in VERSION + NEWEST]}

if sys.argv[1:] and set(sys.argv[1:]) <= set(PARTS):
    if absent := sorted(set(PARTS) - set(sys.argv[1:])):
        left_out(f"modules of tests that the {' and the '.join(absent)} major runs; PGSLUICE_SOAK=1 runs all")
    chosen = [f"tests.test_{name}" for part in sys.argv[1:] for name in PARTS[part]]
else:
    chosen = ["discover", "-t", ".", "-s", "tests", *sys.argv[1:]]
unittest.main(module=None, argv=["tests", *chosen], testRunner=Runner)
