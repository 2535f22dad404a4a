"""Stock COPY as the oracle: the same input through both, equal tables or equal refusals."""

import os
import re

from .cluster import MAJOR, Refused
from .twins import BOTH

# psql's verbose output names the server's source file and line.
_LOCATION = re.compile(r"^LOCATION:.*\n?", re.M)
_PLACE = re.compile(r"^psql:[^:]*:\d+: ", re.M)


# From 16 on, relations grow by many blocks, and how many depends on the batches:
# not even two runs of stock COPY have to leave the same order.
ORDER = "ctid" if MAJOR < 16 else "t::text COLLATE \"C\""


def outcome(cluster, table, copy, data, setup="", stock=False):
    """(refusal, rows in order, tag, route) of one load into a fresh table."""
    setting = "off" if stock else "on"
    path = cluster.file("input", data)
    last = "coalesce((SELECT coalesce(fell_back_because, route) FROM pgsluice.last_copy), '')"
    with cluster.connect(stops=False) as session:
        session.run(f"SET client_min_messages = warning; DROP TABLE IF EXISTS t CASCADE; {table}; SET pgsluice.copy = {setting}")
        tag = session.run(setup) + session.run(copy.format(f"'{path}'"), tags=True)
        if "BEGIN" in setup:
            session.run("COMMIT")
        # What it says beside the answer is not the COPY's.
        route = session.run(f"SET client_min_messages = warning; SELECT {last}")
        # As one value: each call into libpq for another one takes its time.
        rows = session.run(f"SELECT string_agg(t::text, E'\\n' ORDER BY {ORDER}) FROM t")
        refusal = _LOCATION.sub("", "".join(session.told))
    if not stock:
        refusal = BOTH.sub("", refusal)
    return refusal or None, rows, tag, route


# Stock COPY goes back to gaps that wider rows have left, by the free space map; a new file has none, and gets its rows in their order.
IN_ORDER = "BEGIN; TRUNCATE t;"

ROUTES = {"insert", "append", "fresh"}

# A module of tests may be run with PGOPTIONS="-c pgsluice.debug_force_routes=on" (or workers): small loads go by pages then.
FORCED = "pgsluice.debug_force_routes" in os.environ.get("PGOPTIONS", "")

# What is not longer goes through stock COPY's own loop, unless the statement names its workers.
SMALL_BYTES = 1024


def by_the_core(copy):
    """The same COPY with the core's parser whatever the data's size; None if it has an old list of options."""
    if "workers" in copy:
        return None
    if "WITH (" in copy:
        return copy.replace("WITH (", "WITH (workers 0, ", 1)
    return copy.replace("{}", "{} WITH (workers 0)") if copy.endswith("{}") or "{} WHERE" in copy else None


def compare(test, cluster, table, copy, data, setup="", route=ROUTES, ordered=True, stock=None):
    """Asserts that a load by the extension equals stock COPY's; gives the refusal.

    `route` is the one it must take, or several to choose from; None: any, also stock COPY's.
    `stock` is the outcome of stock COPY, where it is known.
    """
    stock = stock or outcome(cluster, table, copy, data, setup, stock=True)
    test.assertEqual(stock[3], "", "this was not stock COPY")
    copies = [copy]
    # An error of the statement itself shows its text.
    if len(data) <= SMALL_BYTES and by_the_core(copy) and "LINE 1" not in (stock[0] or ""):
        copies.append(by_the_core(copy))
    for statement in copies:
        ours = outcome(cluster, table, statement, data, setup)
        test.assertEqual(stock[0], ours[0], statement)
        # Stock COPY fills the gaps at the ends of earlier pages, whole pages do not.
        rows = [one if ordered and not FORCED else sorted(one.splitlines()) for one in (stock[1], ours[1])]
        test.assertEqual(*rows, statement)
        if stock[0] is None:
            test.assertEqual(stock[2], ours[2], f"command tag of {statement}")
            if route is not None and not (FORCED and route == "insert"):
                test.assertIn(ours[3], {route} if isinstance(route, str) else route, statement)
    return stock[0]
