"""PostgreSQL clusters for the extension's tests: install, create, start, kill."""

import atexit
import functools
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from .libpq import Refused, Session

EXT = Path(__file__).resolve().parent.parent
# Next to the servers: the user who runs them can go there, even if the clone is private.
BUILD = (EXT.parent / "build" / "servers").resolve().parent / "ext"
# Ends the processes and removes the files of a test process that is gone; the embedded server uses it, too.
BEHIND = EXT.parent / "crates" / "pgserver" / "src" / "behind.sh"


def _output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _user():
    """The user that the servers run as; None: the current one. PostgreSQL does not run as root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


USER = _user()


def put(file, target):
    """Copies a file or a folder to its place in one step.

    Overwriting a library in place would crash the servers that have it loaded, and a folder copied halfway would look
    complete.
    """
    fresh = target.with_name(f".{target.name}-{os.getpid()}")
    if file.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(file, fresh)
    else:
        shutil.copyfile(file, fresh)
        fresh.chmod(0o644)  # the server's user must read it, whatever umask the clone was made under
    os.replace(fresh, target)


def install():
    """Installs the extension where no root is needed; returns the folder of programs.

    PostgreSQL finds its files relative to its programs, so a copy of an installation is an installation. The clone's
    own servers are used as they are. If $PGSLUICE_INSTALLED is set, all this has been done.
    """
    config = Path(os.environ["PG_CONFIG"])
    if not config.is_absolute():
        config = Path(shutil.which(str(config)))
    bindir = Path(_output(config, "--bindir"))
    if "PGSLUICE_INSTALLED" in os.environ:
        return bindir
    if bindir.is_relative_to("/usr"):
        root = BUILD / _output(config, "--version").split()[1]
        for what in ("--bindir", "--pkglibdir", "--sharedir"):
            path = Path(_output(config, what))
            if what == "--pkglibdir" and path.is_relative_to(bindir.parent):
                continue
            tree = bindir.parent if what == "--bindir" else path
            copy = root / tree.relative_to("/")
            if not copy.exists():
                put(tree, copy)
        include = root / Path(_output(config, "--includedir-server")).relative_to("/")
        include.parent.mkdir(parents=True, exist_ok=True)
        if not include.exists():
            include.symlink_to(_output(config, "--includedir-server"))
        config = root / bindir.relative_to("/") / "pg_config"
        bindir = config.parent
    lib, share = (Path(_output(config, what)) for what in ("--pkglibdir", "--sharedir"))
    put(EXT / "pgsluice.so", lib / "pgsluice.so")
    if (EXT / "neighbour.so").exists():
        put(EXT / "neighbour.so", lib / "neighbour.so")
    if (EXT / "faulty.so").exists():
        (lib / "faulty").mkdir(exist_ok=True)
        put(EXT / "faulty.so", lib / "faulty" / "pgsluice.so")
    for file in (EXT / "pgsluice.control", *(EXT / "sql").glob("*.sql")):
        put(file, share / "extension" / file.name)
    return bindir


BIN = install()
MAJOR = int(re.search(r"\d+", _output(BIN / "postgres", "--version")).group())


def library(name):
    """The path of an installed library."""
    return Path(_output(BIN / "pg_config", "--pkglibdir")) / f"{name}.so"


def left_out(what):
    """Reports what the tests leave out, and why; scripts/test-extension and CI show these lines."""
    # On a line of its own, whatever unittest has printed.
    print(f"\nleft out: on PostgreSQL {MAJOR}: {what}", file=sys.stderr, flush=True)


@functools.cache
def has(module):
    """Whether a contrib module is installed; if not, that is reported once."""
    share = Path(_output(BIN / "pg_config", "--sharedir"))
    there = (share / "extension" / f"{module}.control").exists()
    if not there:
        left_out(f"what {module} would look at, which is not here")
    return there


@functools.cache
def has_program(name):
    """Whether the server was installed with a program; if not, that is reported once."""
    there = (BIN / name).exists()
    if not there:
        left_out(f"what {name} would look at, which is not here")
    return there


def wait_until(what, meanwhile=None):
    """Waits until `what()` is true, however slow the machine is; returns False after three minutes.

    `meanwhile()` is called every two seconds. A load that waits for data gets more by it: its workers leave after three seconds without
    any, perhaps before anybody has seen them.
    """
    deadline = time.monotonic() + 180
    again = time.monotonic() + 2
    while not what():
        if time.monotonic() > deadline:
            return False
        if meanwhile and time.monotonic() > again:
            meanwhile()
            again = time.monotonic() + 2
        time.sleep(0.02)
    return True


def _state(pid):
    """The state of a process in /proc: T is stopped, Z is a zombie, X is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def _runs(pid):
    """Whether a process still holds memory: a zombie does not."""
    return _state(pid) not in "ZX"


def endless(path):
    """A PROGRAM for COPY whose data never ends, so that the load can only end in its middle."""
    return f"PROGRAM 'while cat {path}; do :; done'"


def as_user(command):
    """The command as run by the servers' user."""
    command = [str(part) for part in command]
    return ["runuser", "-u", USER, "--", *command] if USER else command


@functools.cache
def _scratch():
    """The folder for all of this process. It is removed, and its servers ended, when the process is gone, even if killed."""
    folder = tempfile.mkdtemp(prefix="pgsluice-ext-")
    os.chmod(folder, 0o755)
    # In another session: Ctrl-C at the terminal must not end it first.
    behind = subprocess.Popen(["sh", BEHIND, folder], cwd="/", start_new_session=True, stdin=subprocess.PIPE,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    atexit.register(behind.communicate)
    return folder


def _folder():
    """A new folder that the server's user owns."""
    folder = Path(tempfile.mkdtemp(dir=_scratch()))
    folder.chmod(0o755)
    if USER:
        shutil.chown(folder, USER)
    return folder


def _run(command, folder):
    """Runs a program as the server's user; returns its output."""
    done = subprocess.run(as_user(command), capture_output=True, text=True, cwd=folder, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command}\n{done.stdout}{done.stderr}")
    return done.stdout


@functools.cache
def _template():
    """A cluster that has never run, which others are copied from: initdb takes a second."""
    folder = _folder()
    _run([BIN / "initdb", "--no-sync", "-D", folder / "data", "-k", "-U", "postgres", "-A", "trust",
          "-E", "UTF8", "--locale=C.UTF-8"], folder)
    return folder / "data"


class Cluster:
    """One server and its data, in its own folder below the temporary one.

    `copy_of` is a server, which this one then follows, or a backup, which is recovered.
    """

    def __init__(self, settings=(), copy_of=None, durable=False):
        self.home = _folder()
        self.data = self.home / "data"
        self.port = 5432  # in the socket's name: no cluster listens on TCP
        self.log = self.home / "log"
        self.environment = []  # "NAME=value", for its processes
        if copy_of is None:
            self._run(["cp", "-a", _template(), self.data])
        elif isinstance(copy_of, Cluster):
            copy_of.backup(self.data, "-R", "-X", "stream")
        else:
            self._run(["cp", "-a", copy_of, self.data])
            self._run(["touch", self.data / "recovery.signal"])
        with open(self.data / "postgresql.auto.conf", "a", encoding="utf-8") as conf:
            for line in (
                "listen_addresses = ''",
                f"unix_socket_directories = '{self.home}'",
                f"port = {self.port}",
                "shared_buffers = 64MB",
                "autovacuum_naptime = 1d",  # on a slow machine it would run in the middle of a test
                # By default, a standby that lags for half a minute cancels the queries of a test.
                "max_standby_streaming_delay = -1",
                "max_standby_archive_delay = -1",
                f"fsync = {'on' if durable else 'off'}",
                "session_preload_libraries = 'pgsluice'",
                *settings,
            ):
                conf.write(line + "\n")
        self.start()

    def _run(self, command):
        try:
            return _run(command, self.home)
        except RuntimeError as error:
            raise RuntimeError(f"{error}{self.tail()}") from None

    def tail(self):
        """The end of the server's log."""
        return self.log.read_text(errors="replace")[-4000:] if self.log.exists() else ""

    def start(self):
        """Starts the server and waits until it accepts connections."""
        self._run(["env", *self.environment, BIN / "pg_ctl", "-D", self.data, "-l", self.log, "-w", "-t", "600", "start"])

    def stop(self, mode="fast"):
        """Stops the server."""
        self._run([BIN / "pg_ctl", "-D", self.data, "-m", mode, "-w", "-t", "600", "stop"])

    def kill(self):
        """Sends SIGKILL to the postmaster and to each of its children, like a power cut."""
        postmaster = int((self.data / "postmaster.pid").read_text().split()[0])
        every = [postmaster]
        try:
            # Once stopped, it starts no other process between the listing and its death.
            os.kill(postmaster, signal.SIGSTOP)
            wait_until(lambda: _state(postmaster) in "TZX")
            every += map(int, Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            pass  # it was already exiting, as a server without room for WAL does
        for pid in every:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if not wait_until(lambda: not any(map(_runs, every))):
            raise TimeoutError(f"processes of the killed server {postmaster} are still there")
        # If nobody reaps the dead processes, the next postmaster takes their process IDs for live ones.
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        for lock in self.home.glob(".s.PGSQL.*"):
            lock.unlink()

    def remove(self):
        """Stops the server if it runs and deletes everything."""
        if (self.data / "postmaster.pid").exists():
            self.stop("immediate")
        shutil.rmtree(self.home, ignore_errors=True)

    def command(self, *options, database="postgres", user="postgres"):
        """The command line of psql for this server."""
        return [str(BIN / "psql"), "-XqAt", "-h", str(self.home), "-p", str(self.port), "-U", user,
                "-d", database, "-v", "ON_ERROR_STOP=1", "-v", "VERBOSITY=verbose", *options]

    def connect(self, database="postgres", user="postgres", stops=True):
        """A session within this process."""
        return Session(BIN, f"host={self.home} port={self.port} user={user} dbname={database}", stops)

    def sql(self, text, stdin=None, database="postgres", user="postgres"):
        """Runs SQL, with `stdin` as the data of its COPY FROM STDIN; returns the output."""
        # psql runs what may be one of its own commands, and reads the data.
        if stdin is None and "\\" not in text:
            with self.connect(database, user) as session:
                return session.run(text).strip()
        if stdin is None:
            command, given = self.command("-f", "-", database=database, user=user), text.encode()
        else:
            command, given = self.command("-c", text, database=database, user=user), stdin
        done = subprocess.run(command, input=given, capture_output=True, check=False)
        if done.returncode != 0:
            raise Refused(done.stderr.decode(errors="replace"))
        return done.stdout.decode(errors="replace").strip()

    def session(self, text):
        """Runs all of the SQL, whatever fails; returns the output and the errors."""
        if "\\" in text:
            return self.psql(text)
        with self.connect(stops=False) as session:
            return session.run(text).strip("\n"), "".join(session.told)

    def psql(self, text):
        """Like `session`, with psql's own commands."""
        done = subprocess.run(
            self.command("-v", "ON_ERROR_STOP=0", "-f", "-"), input=text.encode(),
            capture_output=True, check=False,
        )
        return done.stdout.decode(errors="replace").strip("\n"), done.stderr.decode(errors="replace")

    def file(self, name, content):
        """A file that the server can read."""
        path = self.home / name
        path.write_bytes(content)
        return path

    def backup(self, place, *options):
        """Takes a base backup."""
        self._run([BIN / "pg_basebackup", "-D", place, "-h", self.home, "-p", self.port, "-U", "postgres", "-c", "fast", *options])

    def follow(self, primary):
        """Waits until this standby has replayed all that the primary has flushed."""
        here = primary.sql("SELECT pg_current_wal_flush_lsn()")
        if not wait_until(lambda: self.sql(f"SELECT pg_last_wal_replay_lsn() >= '{here}'") == "t"):
            raise TimeoutError(f"the standby has not replayed {here}: {self.tail()}")

    def checksums(self):
        """Stops the cluster, runs pg_checksums if it is installed, and starts the cluster again."""
        known = self.sql("SELECT pg_relation_filepath(oid) FROM pg_class WHERE pg_relation_filepath(oid) IS NOT NULL").splitlines()
        self.stop()
        self._drop_cut_writes(set(known))
        if has_program("pg_checksums"):
            self._run([BIN / "pg_checksums", "--check", "-D", self.data])
        self.start()

    def _drop_cut_writes(self, known):
        """Removes what a SIGKILL during a write leaves and no server reads again.

        The system stops such a write at a page of its own, so in the middle of a block. That may be at the end of a
        file, where the server counts whole blocks (mdnblocks), or anywhere in a file of a transaction that wrote no WAL
        and never committed.
        """
        for folder in {name.rsplit("/", 1)[0] for name in known if name.startswith("base/")}:
            for file in (self.data / folder).iterdir():
                relation = re.fullmatch(r"(\d+)(_[a-z]+)?(\.\d+)?", file.name)
                if relation and f"{folder}/{relation[1]}" not in known:
                    file.unlink()
                elif relation and file.stat().st_size % 8192:
                    os.truncate(file, file.stat().st_size // 8192 * 8192)


class Held:
    """A session of psql that gets its statements one by one; an error ends it."""

    def __init__(self, cluster):
        self.process = subprocess.Popen(cluster.command("-f", "-"), stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, sql):
        """Runs the statements to their end; returns their output."""
        self.process.stdin.write(f"{sql};\n\\echo --done\n")
        self.process.stdin.flush()
        said = []
        for line in self.process.stdout:
            if line == "--done\n":
                return "".join(said).strip()
            said.append(line)
        raise Refused(self.process.stderr.read())

    def end(self, sql=""):
        """Runs the last statements and ends the session; returns the exit code, the rest of the output and the errors."""
        said, refusal = self.process.communicate(f"{sql};\n")
        return self.process.returncode, said, refusal


class OnCluster(unittest.TestCase):
    """Tests on one cluster that has the extension."""

    settings = []  # lines of postgresql.conf
    prepared = ""  # SQL for anything else the tests need

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(cls.settings)
        # Also if what follows fails: tearDownClass would not be called then.
        cls.addClassCleanup(cls.cluster.remove)
        cls.sql = cls.cluster.sql
        cls.sql(f"CREATE EXTENSION pgsluice; {cls.prepared}")
