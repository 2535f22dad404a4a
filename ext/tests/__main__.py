"""Runs every test, says which were left out and which took longest: python3 -m tests, in ext/.

`python3 -m tests version` runs only the modules whose outcome depends most on the server's version.
"""

import sys
import time
import unittest

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


# What ext/compat*.h has for a version is used by what these test: privileges, options and defaults of COPY,
# extending relations, entries of B-trees, files of indexes, collations, workers' sessions, other libraries.
VERSION = (
    "build", "index", "index_append", "index_extend", "index_parallel", "insert", "neighbours", "rejects", "routes",
    "security", "small", "statements", "workers",
)

if sys.argv[1:] == ["version"]:
    left_out("modules of tests that depend less on the version than others, which other majors run here; PGSLUICE_SOAK=1 runs all")
    chosen = [f"tests.test_{name}" for name in VERSION]
else:
    chosen = ["discover", "-t", ".", "-s", "tests", *sys.argv[1:]]
unittest.main(module=None, argv=["tests", *chosen], testRunner=Runner)
