"""Runs every test, then reports the tests left out and those that took longest: python3 -m tests, in ext/.

`python3 -m tests PART ...` runs only these parts: `version`, `newest` and `oldest`, which together are all tests.
"""

import sys
import time
import unittest

from .cluster import left_out


class Result(unittest.TextTestResult):
    """unittest's result, which also reports the reason for each skipped test and the time of the slowest ones."""

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
    """unittest's runner, with these results."""

    resultclass = Result


# These test what ext/compat/ has for each version: privileges, options and defaults of COPY, extending relations,
# their blocks, entries of B-trees, files of indexes, collations, workers' sessions, other libraries.
# `make test` runs them on every major. A name is that of a module, or of a class in one.
VERSION = {
    "blocks", "build", "foreign_key_sessions", "foreign_keys", "index_build.Index", "index_build.Languages", "index_build.Visibility",
    "index_crash.Keyed", "index_crash.Several", "index_crash.Sorted", "index_gin.GinLogged", "index_hash.HashLogged",
    "index_leaves.Appended", "index_live.Live", "insert", "other_libraries", "rejects",
    "routes", "security", "small", "statements", "unique_rivals", "workers",
}

# Of the others, `make test` runs these on the newest major and the rest on the oldest: the two parts take about as long.
NEWEST = {
    "binary", "btree_merge", "index_gin", "index_hash", "duplicates", "duplicates_private", "fuzz", "index_crash.Behind", "index_crash.Committed", "index_leaves.Behind",
    "index_private.Private", "readers", "types", "unique_merge",
}


def classes(suite):
    """The names of the classes of all tests, in order."""
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from classes(test)
        else:
            yield f"{type(test).__module__}.{type(test).__qualname__}"


def names(name):
    """The names by which a class of tests can be listed: its own and its module's."""
    name = name.removeprefix("tests.test_")
    return {name, name.split(".")[0]}


def part(name):
    """The part that a class of tests belongs to."""
    either = names(name)
    return "version" if either & VERSION else "newest" if either & NEWEST else "oldest"


PARTS = {"version", "newest", "oldest"}
if sys.argv[1:] and set(sys.argv[1:]) <= PARTS:
    if absent := sorted(PARTS - set(sys.argv[1:])):
        left_out(f"tests that the {' and the '.join(absent)} major runs; PGSLUICE_SOAK=1 runs all")
    found = dict.fromkeys(classes(unittest.defaultTestLoader.discover("tests", top_level_dir=".")))
    # A renamed module would silently leave its part.
    if unknown := (VERSION | NEWEST) - set().union(*map(names, found)):
        sys.exit(f"no test has the name {', '.join(sorted(unknown))}")
    chosen = [name for name in found if part(name) in sys.argv[1:]]
else:
    chosen = ["discover", "-t", ".", "-s", "tests", *sys.argv[1:]]
unittest.main(module=None, argv=["tests", *chosen], testRunner=Runner)
