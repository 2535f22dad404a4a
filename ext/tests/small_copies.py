"""Small COPYs through the extension against stock COPY: time, CPU and pages.

    make -C ext && PG_CONFIG=pg_config python3 -m ext.tests.small_copies [ROUNDS]

One session of libpq sends COPY FROM STDIN again and again, into two equal tables: by stock COPY
and by the extension in turns (A B B A ...). It prints the medians of a round, and of the rounds'
ratios: wall time, and CPU time of the server's process.
"""

import statistics
import sys
import time
from pathlib import Path

from .cluster import Cluster

TABLES = {
    "plain": ("(a int, b text, c bigint, d timestamp)", "a, b, c, d"),
    "serial key": ("(id serial PRIMARY KEY, a int, b text, c bigint, d timestamp)", "a, b, c, d"),
}
SIZES = (1, 10, 100, 1000)


def cpu(session):
    """CPU time of the session's process so far, in seconds."""
    return int(Path(f"/proc/{session.pid}/schedstat").read_text().split()[0]) / 1e9


def rows(count):
    """Lines in COPY's text format."""
    return "".join(f"{i}\tsome text of row {i}\t{i * 1000003}\t2024-01-02 03:04:05\n" for i in range(count)).encode()


def _round(session, which, columns, data, times):
    session.run(f"SET pgsluice.copy = {'on' if which == 'ours' else 'off'}")
    sql = f"COPY {which} ({columns}) FROM STDIN".encode()
    used, wall = cpu(session), time.perf_counter()
    for _ in range(times):
        session.copy(sql, data)
    return time.perf_counter() - wall, cpu(session) - used


def measure(session, table, size, rounds):
    """Medians over rounds: (seconds of stock, of ours, CPU ratio, wall ratio) for one COPY."""
    definition, columns = TABLES[table]
    data = rows(size)
    times = max(400 // (size + 9), 4) * 10
    samples = []
    for which in ("stock", "ours"):
        session.run(f"DROP TABLE IF EXISTS {which}; CREATE TABLE {which} {definition}")
    for number in range(rounds + 1):
        order = ("stock", "ours") if number % 2 else ("ours", "stock")
        taken = {which: _round(session, which, columns, data, times) for which in order}
        if number > 0:
            samples.append((taken["stock"][0] / times, taken["ours"][0] / times,
                            taken["ours"][1] / taken["stock"][1], taken["ours"][0] / taken["stock"][0]))
    return [statistics.median(column) for column in zip(*samples)]


def main():
    """Measures every size and prints a table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 21
    cluster = Cluster(["autovacuum = off", "synchronous_commit = off"])
    try:
        cluster.sql("CREATE EXTENSION pgsluice")
        session = cluster.connect()
        print(f"{'table':12}{'rows':>6}{'stock us':>10}{'ours us':>10}{'wall':>8}{'cpu':>8}   (ours / stock)")
        for table in TABLES:
            for size in SIZES:
                stock, ours, cpu, wall = measure(session, table, size, rounds)
                print(f"{table:12}{size:6}{stock * 1e6:10.1f}{ours * 1e6:10.1f}{wall:8.3f}{cpu:8.3f}", flush=True)
        session.close()
    finally:
        cluster.remove()


if __name__ == "__main__":
    main()
