"""Runs every test, and says which were left out: python3 -m tests, in ext/."""

import sys
import unittest

from .cluster import left_out


class Result(unittest.TextTestResult):
    """As unittest's own, which only counts what was skipped."""

    def stopTestRun(self):
        super().stopTestRun()
        for test, reason in self.skipped:
            left_out(f"{reason} ({test.id()})")


class Runner(unittest.TextTestRunner):
    """As unittest's own, with these results."""

    resultclass = Result


unittest.main(module=None, argv=["tests", "discover", "-t", ".", "-s", "tests", *sys.argv[1:]], testRunner=Runner)
