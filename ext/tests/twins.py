"""The stock build as the oracle: both methods build the same index, equal to the byte."""

import re
import subprocess

from . import cluster as clusters
from .cluster import Cluster, Held, OnCluster, Refused

_LOCATION = re.compile(r"^LOCATION:.*\n?", re.M)
_TUPLE = re.compile(r"tuple \(\d+,\d+\)")
_PLACE = re.compile(r"^psql:[^:]*:\d+: ", re.M)
_PAGE = 8192
# The hint that an index built at the end of a COPY adds to stock COPY's error.
BOTH = re.compile(r"^HINT:  The key is first in line (\d+) and again in line (\d+)\.\n", re.M)

STOCK = "SET pgsluice.index_build = off; SET max_parallel_maintenance_workers = 0;"
SORTED = "SET pgsluice.index_build = on;"
LAST = "SELECT method || coalesce(' ' || scan, ': ' || fell_back_because) FROM pgsluice.last_index_build;"


def refusal(cluster, sql):
    """The server's error, or None."""
    try:
        cluster.sql(sql)
        return None
    except Refused as refused:
        return _PLACE.sub("", _LOCATION.sub("", str(refused)))


def pages(cluster, index):
    """An index's pages, without what two builds cannot share: LSN, checksum, the hole."""
    path = cluster.sql(f"SELECT pg_relation_filepath('{index}')")
    content = (cluster.data / path).read_bytes()
    assert len(content) % _PAGE == 0
    bare = []
    for at in range(0, len(content), _PAGE):
        page = bytearray(content[at:at + _PAGE])
        lower, upper = (int.from_bytes(page[where:where + 2], "little") for where in (12, 14))
        page[0:10] = bytes(10)
        page[lower:upper] = bytes(upper - lower)
        bare.append(bytes(page))
    return bare


def new_blocks(cluster, index, start=0):
    """How many of an index's blocks from byte `start` on are zeros: added, but not used yet."""
    cluster.sql("CHECKPOINT")
    content = (cluster.data / cluster.sql(f"SELECT pg_relation_filepath('{index}')")).read_bytes()
    return sum(not any(content[at:at + _PAGE]) for at in range(start, len(content), _PAGE))


def deleted_pages(cluster, index):
    """The pages of a B-tree that VACUUM has deleted and that are not in use again; None without pageinspect.

    A VACUUM that follows lets insertions use them, but only if a transaction has begun in between.
    """
    if not clusters.has("pageinspect"):
        return None
    return set(cluster.sql(
        f"CREATE EXTENSION IF NOT EXISTS pageinspect; SELECT n FROM generate_series(1, pg_relation_size('{index}') / 8192 - 1) n,"
        f" bt_page_stats('{index}', n::{'bigint' if clusters.MAJOR >= 16 else 'int'}) s WHERE s.type = 'd'").split())


def check_reuse(test, cluster, index, deleted):
    """Asserts that some of the deleted pages are in use again."""
    if deleted is not None:
        test.assertGreater(len(deleted - deleted_pages(cluster, index)), 0, f"{index}: {len(deleted)} pages were deleted")


def check_size(test, primary, standby, index):
    """Asserts that an index has the same blocks on a standby, except those at its end that were added but not used."""
    sizes = [int(cluster.sql(f"SELECT pg_relation_size('{index}')")) for cluster in (primary, standby)]
    test.assertEqual(sizes[0], sizes[1] + new_blocks(primary, index, sizes[1]) * _PAGE, index)


def check(cluster, *indexes):
    """Runs amcheck on these indexes, if amcheck is installed."""
    if clusters.has("amcheck"):
        cluster.sql("CREATE EXTENSION IF NOT EXISTS amcheck;" + "".join(f"SELECT bt_index_parent_check('{index}', true, true);" for index in indexes))


def compare(test, cluster, definition, settings="", scan="pages"):
    """Builds `definition` ("INDEX ON t (a)") by both methods and asserts equal pages; returns their number."""
    head, tail = definition.split(" ON ", 1)
    cluster.sql("SET lock_timeout = '3min'; DROP INDEX IF EXISTS stock, sorted")
    cluster.sql(f"{STOCK}{settings}CREATE {head} stock ON {tail}")
    said = cluster.sql(f"{SORTED}{settings}CREATE {head} sorted ON {tail}; {LAST}")
    test.assertEqual(said, f"sorted {scan}", definition)
    check(cluster, "sorted")
    stock, ours = pages(cluster, "stock"), pages(cluster, "sorted")
    test.assertEqual(len(stock), len(ours), definition)
    for block, (one, other) in enumerate(zip(stock, ours)):
        if one != other:
            first = next(at for at in range(_PAGE) if one[at] != other[at])
            test.fail(f"{definition}: block {block} differs from byte {first} on: "
                      f"{one[first:first + 24].hex()} {other[first:first + 24].hex()}")
    return len(ours)


def reader_conflicts(test, table, read, copies):
    """SERIALIZABLE: a session that has read a part of an index conflicts with the last COPY into it, even after other COPYs have changed its leaves."""
    begin = "BEGIN ISOLATION LEVEL SERIALIZABLE; SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off;"
    *others, last = copies
    for setting in ("off", "on"):
        test.sql(f"{table}; DROP TABLE IF EXISTS y; CREATE TABLE y (a int); ANALYZE t")
        one, two = Held(test.cluster), Held(test.cluster)
        one.run(begin + read)
        for copy in others:
            test.sql(f"SET pgsluice.copy = {setting}; {copy}")
        two.run(f"SET pgsluice.copy = {setting};" + begin + "SELECT count(*) FROM y")
        two.run(last)
        one.run("INSERT INTO y VALUES (1)")
        test.assertEqual(one.end("COMMIT"), (0, "", ""))
        test.assertIn("40001", two.end("COMMIT")[2], setting)


def standby_follows(test, load, scans, seen, indexes):
    """A standby without the library answers from its indexes during the load, always with one of `seen`, then takes over; returns it."""
    standby = Cluster(["hot_standby = on", "session_preload_libraries = ''"], copy_of=test.cluster)
    test.addCleanup(standby.remove)
    standby.follow(test.cluster)
    loading = subprocess.Popen(test.cluster.command("-c", load))
    answers = set()
    while loading.poll() is None:
        answers.add(standby.sql(f"SET enable_seqscan = off; SET enable_bitmapscan = off; {scans}"))
    test.assertEqual(loading.returncode, 0)
    test.assertLessEqual(answers, seen)
    if clusters.has("amcheck"):
        test.sql("CREATE EXTENSION IF NOT EXISTS amcheck")
    standby.follow(test.cluster)
    if clusters.has("amcheck"):
        for index in indexes:
            standby.sql(f"SELECT bt_index_check('{index}', true)")
    standby.stop()
    (standby.data / "standby.signal").unlink()
    standby.start()
    return standby


class LoadedTwice(OnCluster):
    """Tests whose load(path, setting) returns the result of a load with `pgsluice.copy` off or on."""

    def same(self, lines, **how):
        """Asserts that both loads have the same result; returns it."""
        path = self.cluster.file("input", "".join(lines).encode())
        stock, ours = (self.load(path, setting, **how) for setting in ("off", "on"))
        self.assertEqual(stock, ours)
        return ours

    def left_by(self, setting, table, load):
        """Loads the table in a transaction; returns its error, or else `answers()`."""
        self.sql(table)
        try:
            self.sql(f"SET pgsluice.copy = {setting}; BEGIN; {load} COMMIT")
        except Refused as refused:
            # Stock COPY fills gaps by the free space map, so rows have other TIDs.
            said = _TUPLE.sub("tuple", _PLACE.sub("", _LOCATION.sub("", str(refused))))
            return BOTH.sub("", said) if setting == "on" else said
        return self.answers()
