"""Sessions of libpq within this process: what psql would print, without starting it.

The suite has thousands of short sessions, and starting psql takes longer than most of them. Scripts are split into
statements as psql splits them. Output is that of `psql -qAt`, with messages as for VERBOSITY=verbose. psql's own
commands are not supported.
"""

import ctypes
import functools
import os
import re
import select
import socket
from pathlib import Path

_BAD = 1  # status of a connection; the others are of results
_EMPTY, _DONE, _ROWS, _COPY_OUT, _COPY_IN = range(5)
_VERBOSE = 2

# A semicolon ends a statement unless it is within one of these, or in parentheses.
_TOKEN = re.compile(
    r"""[eE]'(?:[^'\\]|\\.)*' | '[^']*' | "[^"]*" | (?<![\w$])(\$\w*\$).*?\1 | --[^\n]* | /\*.*?\*/ | [();]""",
    re.S | re.X,
)
_NOTICE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p)
_POINTER, _TEXT, _INT = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
_FUNCTIONS = {
    "PQconnectdb": (_POINTER, _TEXT), "PQstatus": (_INT, _POINTER), "PQfinish": (None, _POINTER), "PQsocket": (_INT, _POINTER),
    "PQbackendPID": (_INT, _POINTER), "PQerrorMessage": (_TEXT, _POINTER), "PQsetErrorVerbosity": (_INT, _POINTER, _INT),
    "PQsetNoticeProcessor": (_POINTER, _POINTER, _NOTICE, _POINTER), "PQsendQuery": (_INT, _POINTER, _TEXT),
    "PQisBusy": (_INT, _POINTER), "PQgetResult": (_POINTER, _POINTER),
    "PQresultStatus": (_INT, _POINTER), "PQresultErrorMessage": (_TEXT, _POINTER),
    "PQcmdStatus": (_TEXT, _POINTER), "PQntuples": (_INT, _POINTER), "PQnfields": (_INT, _POINTER),
    "PQgetvalue": (_TEXT, _POINTER, _INT, _INT), "PQclear": (None, _POINTER), "PQfreemem": (None, _POINTER),
    "PQgetCopyData": (_INT, _POINTER, ctypes.POINTER(_POINTER), _INT),
    "PQputCopyData": (_INT, _POINTER, _TEXT, _INT), "PQputCopyEnd": (_INT, _POINTER, _TEXT),
}


class Refused(Exception):
    """The server reported an error; the text is what psql prints, SQLSTATE included."""


@functools.cache
def _library(programs):
    """The libpq of the server's own package; if there is none, the system's."""
    found = sorted(Path(programs).parent.glob("**/libpq.so.5*")) + ["libpq.so.5"]
    pq = ctypes.CDLL(str(found[0]))
    for name, (result, *arguments) in _FUNCTIONS.items():
        function = getattr(pq, name)
        function.restype, function.argtypes = result, arguments
    return pq


def statements(script):
    """The statements of a script, each with its semicolon."""
    found, start, depth = [], 0, 0
    for token in _TOKEN.finditer(script):
        mark = token.group()
        depth = max(depth + (mark == "(") - (mark == ")"), 0)
        if mark == ";" and depth == 0:
            found.append(script[start:token.end()])
            start = token.end()
    found.append(script[start:])
    return [text for text in map(str.lstrip, found) if text.strip(";")]


class Session:
    """One connection. `said` is the output so far, `told` the messages; if `stops`, an error ends the script."""

    def __init__(self, programs, where, stops=True):
        self.pq = _library(programs)
        self.stops = stops
        self.said, self.told = [], []
        self.conn = self.pq.PQconnectdb(where.encode())
        if self.pq.PQstatus(self.conn) == _BAD:
            error = self._decoded(self.pq.PQerrorMessage(self.conn))
            self.close()
            raise Refused(f"psql: error: {error}")
        self.pid = self.pq.PQbackendPID(self.conn)
        self.pq.PQsetErrorVerbosity(self.conn, _VERBOSE)
        # Kept: libpq calls it as long as there is a connection.
        self.notice = _NOTICE(lambda _, text: self.told.append(self._decoded(text)))
        self.pq.PQsetNoticeProcessor(self.conn, self.notice, None)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    @staticmethod
    def _decoded(text):
        return text.decode(errors="replace")

    def close(self):
        """Closes the connection and waits until the server's process is gone: it has then released its locks and reported its statistics."""
        number = self.pq.PQsocket(self.conn)
        gone = socket.socket(fileno=os.dup(number)) if number >= 0 else None
        self.pq.PQfinish(self.conn)
        self.conn = None  # closing twice does no harm
        if gone:
            with gone:
                gone.settimeout(180)
                try:
                    while gone.recv(4096):
                        pass
                except OSError:
                    pass

    def run(self, script, tags=False):
        """Runs statements one by one; returns what they print, with `tags` also the command tags."""
        before = len(self.said)
        for statement in statements(script):
            if self.pq.PQstatus(self.conn) == _BAD:
                break
            refused = self._one(statement, tags)
            if refused and self.stops:
                raise Refused("".join(self.told))
        return "\n".join(self.said[before:])

    def _one(self, statement, tags):
        """Runs one statement; returns whether it failed."""
        refused = not self.pq.PQsendQuery(self.conn, statement.encode())
        if refused:
            self.told.append(self._decoded(self.pq.PQerrorMessage(self.conn)))
        while result := self._next():
            refused |= self._result(result, tags)
            self.pq.PQclear(result)
        return refused

    def _next(self):
        """Waits for the next result. It waits here rather than within libpq until the result begins, so that Ctrl-C works."""
        if self.pq.PQisBusy(self.conn):
            select.select([self.pq.PQsocket(self.conn)], [], [])
        return self.pq.PQgetResult(self.conn)

    def _result(self, result, tags):
        """Takes one result; returns whether it is an error."""
        status = self.pq.PQresultStatus(result)
        if status == _ROWS:
            value, columns = self.pq.PQgetvalue, range(self.pq.PQnfields(result))
            self.said += [self._decoded(b"|".join([value(result, row, column) for column in columns]))
                          for row in range(self.pq.PQntuples(result)) if columns]
        elif status == _COPY_OUT:
            self._copy_out()
        elif status == _COPY_IN:
            self.pq.PQputCopyEnd(self.conn, None)
        elif status == _DONE:
            if tags:
                self.said.append(self._decoded(self.pq.PQcmdStatus(result)))
        elif status != _EMPTY:
            self.told.append(self._decoded(self.pq.PQresultErrorMessage(result)))
            return True
        return False

    def _copy_out(self):
        """The lines of a COPY TO STDOUT."""
        line = _POINTER()
        while (length := self.pq.PQgetCopyData(self.conn, ctypes.byref(line), 0)) > 0:
            self.said.append(self._decoded(ctypes.string_at(line, length)).removesuffix("\n"))
            self.pq.PQfreemem(line)

    def copy(self, statement, data):
        """Runs COPY FROM STDIN with the data."""
        self.pq.PQsendQuery(self.conn, statement)
        self._wanted(_COPY_IN)
        self.pq.PQputCopyData(self.conn, data, len(data))
        self.pq.PQputCopyEnd(self.conn, None)
        self._wanted(_DONE)
        self.pq.PQgetResult(self.conn)

    def _wanted(self, status):
        """Takes a result that must have this status."""
        result = self.pq.PQgetResult(self.conn)
        found, error = self.pq.PQresultStatus(result), self._decoded(self.pq.PQresultErrorMessage(result))
        self.pq.PQclear(result)
        if found != status:
            raise Refused(error)
