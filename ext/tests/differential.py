"""Stock COPY as the oracle: it and the extension load the same input, and must leave equal tables or report equal errors."""

import os
import re

from .cluster import MAJOR, Refused
from .twins import BOTH

# psql's verbose output names the server's source file and line.
_LOCATION = re.compile(r"^LOCATION:.*\n?", re.M)
_PLACE = re.compile(r"^psql:[^:]*:\d+: ", re.M)


# From 16 on, relations grow by many blocks, and how many depends on the batches: even two runs of stock COPY may leave different orders.
ORDER = "ctid" if MAJOR < 16 else "t::text COLLATE \"C\""


def outcome(cluster, table, copy, data, setup="", stock=False):
    """Loads into a fresh table; returns (error, rows in order, tag, route)."""
    setting = "off" if stock else "on"
    path = cluster.file("input", data)
    last = "coalesce((SELECT coalesce(fell_back_because, route) FROM pgsluice.last_copy), '')"
    with cluster.connect(stops=False) as session:
        session.run(f"SET client_min_messages = warning; DROP TABLE IF EXISTS t CASCADE; {table}; SET pgsluice.copy = {setting}")
        tag = session.run(setup) + session.run(copy.format(f"'{path}'"), tags=True)
        if "BEGIN" in setup:
            session.run("COMMIT")
        # Messages of this query are not the COPY's.
        route = session.run(f"SET client_min_messages = warning; SELECT {last}")
        # As one value: libpq needs a call for each value.
        rows = session.run(f"SELECT string_agg(t::text, E'\\n' ORDER BY {ORDER}) FROM t")
        refusal = _LOCATION.sub("", "".join(session.told))
    if not stock:
        refusal = BOTH.sub("", refusal)
    return refusal or None, rows, tag, route


# Stock COPY uses the free space map to fill gaps that wider rows have left. A new file has no such map, so its rows stay in order.
IN_ORDER = "BEGIN; TRUNCATE t;"

ROUTES = {"insert", "append", "fresh"}

# A module of tests may be run with PGOPTIONS="-c pgsluice.debug_force_routes=on" (or workers): then small loads write whole pages, too.
FORCED = "pgsluice.debug_force_routes" in os.environ.get("PGOPTIONS", "")

# Data up to this size goes through stock COPY's own loop, unless the statement has the option workers.
SMALL_BYTES = 1024


def by_the_core(copy):
    """The same COPY through the core's parser, whatever the size of the data; None if it has the option workers already, or the old option syntax."""
    if "workers" in copy:
        return None
    if "WITH (" in copy:
        return copy.replace("WITH (", "WITH (workers 0, ", 1)
    return copy.replace("{}", "{} WITH (workers 0)") if copy.endswith("{}") or "{} WHERE" in copy else None


def compare(test, cluster, table, copy, data, setup="", route=ROUTES, ordered=True, stock=None):
    """Asserts that a load by the extension equals stock COPY's; returns the error.

    `route` is the one it must take, or several to choose from; None: any, also stock COPY's. `stock` is the outcome of
    stock COPY, if it is known.
    """
    stock = stock or outcome(cluster, table, copy, data, setup, stock=True)
    test.assertEqual(stock[3], "", "this was not stock COPY")
    copies = [copy]
    # An error in the statement itself quotes its text.
    if len(data) <= SMALL_BYTES and by_the_core(copy) and "LINE 1" not in (stock[0] or ""):
        copies.append(by_the_core(copy))
    for statement in copies:
        ours = outcome(cluster, table, statement, data, setup)
        test.assertEqual(stock[0], ours[0], statement)
        # Stock COPY fills the gaps at the ends of earlier pages; whole pages do not.
        rows = [one if ordered and not FORCED else sorted(one.splitlines()) for one in (stock[1], ours[1])]
        test.assertEqual(*rows, statement)
        if stock[0] is None:
            test.assertEqual(stock[2], ours[2], f"command tag of {statement}")
            if route is not None and not (FORCED and route == "insert"):
                test.assertIn(ours[3], {route} if isinstance(route, str) else route, statement)
    return stock[0]
