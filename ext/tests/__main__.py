"""Runs every test, then reports the tests left out and those that took longest: python3 -m tests, in ext/.

`python3 -m tests PART ... [beside PART ...]` runs only these parts: `version`, `ends`, `newest` and `oldest`, which together are all tests.
Those behind `beside` run in another process, on the same major: they are not left out.
"""

import sys
import time
import unittest

from .cluster import MAJOR, left_out


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


# `make test` runs these on every major: COPY as a whole, and a test of all code in ext/compat/ that only 16, 17 or 18 uses. Such code is for COPY's
# options, defaults and random functions, its range table and target, the insertion into indexes, the search in B-trees, the scan of parents, and
# collations. Each name is that of a module, or of a class in a module.
VERSION = {
    "build", "forced", "foreign_keys.Proven", "index_build.Languages", "index_build.Visibility", "insert", "statements", "unique_rivals",
}

# `make test` runs these on the oldest and the newest major. On 16 to 18, the code in ext/compat/ that they need is the same as on one of the two, or
# VERSION has a test of it. They also run on the majors that are named here: 16 adds blocks as 19 does and writes them as 15 does, 17 has the builtin
# collation provider, 18 stores collations in another way, and on 18 `rejects` tests the insertion of rows that may be duplicates.
ENDS = {
    "blocks": {16}, "foreign_key_sessions": (), "foreign_keys": (), "index_build.Index": {17, 18}, "index_crash.Keyed": (), "index_crash.Several": (),
    "index_crash.Sorted": (), "index_gin.GinLogged": (), "index_hash.HashLogged": (), "index_in_order.InOrder": (), "index_leaves.Appended": (), "index_live.Live": (),
    "other_libraries": (), "rejects": {18}, "routes": {16}, "security": (), "small": (), "workers": (),
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
    if either & VERSION or any(MAJOR in ENDS.get(one, ()) for one in either):
        return "version"
    return "ends" if either & ENDS.keys() else "newest" if either & NEWEST else "oldest"


PARTS = {"version", "ends", "newest", "oldest"}
given = sys.argv[1:]
beside = given.index("beside") if "beside" in given else len(given)
parts, others = set(given[:beside]), set(given[beside + 1:])
if parts and parts | others <= PARTS:
    if absent := sorted({"newest", "oldest"} - parts - others):
        left_out(f"tests that the {' and the '.join(absent)} major runs; PGSLUICE_SOAK=1 runs all")
    found = dict.fromkeys(classes(unittest.defaultTestLoader.discover("tests", top_level_dir=".")))
    # A renamed module would silently leave its part.
    if unknown := (VERSION | ENDS.keys() | NEWEST) - set().union(*map(names, found)):
        sys.exit(f"no test has the name {', '.join(sorted(unknown))}")
    chosen = [name for name in found if part(name) in parts]
else:
    chosen = ["discover", "-t", ".", "-s", "tests", *given]
unittest.main(module=None, argv=["tests", *chosen], testRunner=Runner)
