"""The throw-away servers of a comparison, and a fresh store on them for each cell."""

from __future__ import annotations

import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from systems import CACHE

from servers.postgres import PostgresServer
from servers.postgres import own_server as postgres_server
from servers.redis import RedisServer
from servers.redis import own_server as redis_server

_ASKED = "all that came before has been counted"

_LOGGED = {"save": "", "appendonly": "yes", "auto-aof-rewrite-percentage": "0"}
"""Without rewrites of the file: one would begin in the cell of whoever comes then."""

PERSISTENCE = {
    "none": {"save": "", "appendonly": "no"},
    "everysec": {**_LOGGED, "appendfsync": "everysec"},
    "always": {**_LOGGED, "appendfsync": "always"},
}
"""What a Redis server keeps on the disk, by the name that the command line has for it."""


@dataclass
class Fresh:
    """A store that only one cell uses."""

    url: str
    statements: Callable[[], int | None]
    """How many statements or commands it has had; None where that can't be seen from outside."""
    size: Callable[[], int]
    """The bytes that all that is in there takes."""


class Sqlite:
    """A file of its own for each cell, on the disk of `folder`."""

    def __init__(self, folder: Path) -> None:
        self.settings = {"server": "SQLite in the process", "durability": "as each system has it: see there"}
        self._folder = folder
        self._made: dict[str, Path] = {}

    @contextmanager
    def fresh(self, system: str, setup: Callable[[str], None]) -> Iterator[Fresh]:
        if system not in self._made:
            made = Path(tempfile.mkdtemp(prefix=f"{system}-", dir=self._folder))
            setup(_file_url(made))
            self._made[system] = made
        folder = Path(tempfile.mkdtemp(prefix=f"{system}-", dir=self._folder))
        try:
            shutil.copytree(self._made[system], folder, dirs_exist_ok=True)
            yield Fresh(_file_url(folder), lambda: None, lambda: sum(f.stat().st_size for f in folder.iterdir()))
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _file_url(folder: Path) -> str:
    return f"sqlite:///{folder / 'store.db'}"


class Postgres:
    """A server of our own, durable as PostgreSQL comes; a database of its own for each cell."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        version = server.run("SHOW server_version")[0][0].split()[0]
        self.settings = {
            "server": f"PostgreSQL {version}",
            "durability": "fsync=on, synchronous_commit=on, wal_sync_method as it comes",
            **{name: value for name, value in server.settings.items() if name in ("shared_buffers", "max_wal_size")},
        }

    @contextmanager
    def fresh(self, system: str, setup: Callable[[str], None]) -> Iterator[Fresh]:
        url = self._server.copy(system, setup)
        self._server.run("CHECKPOINT")
        name = urlsplit(url).path[1:]
        try:
            yield Fresh(
                url,
                lambda: self._statements(name),
                lambda: self._server.run(f"SELECT pg_database_size('{name}')")[0][0],
            )
        finally:
            self._server.drop(url)

    def _statements(self, name: str) -> int:
        """What the log has of this database. Asking begins the logging: the first answer is where to count from."""
        for setting in ("log_statement = 'all'", "log_line_prefix = '%d '"):
            self._server.run(f"ALTER SYSTEM SET {setting}")
        self._server.run("SELECT pg_reload_conf()")
        head = f"{name} LOG:"
        with self._server.log.open(encoding="utf-8", errors="replace") as log:
            return sum(line.startswith(head) and (" statement: " in line or " execute " in line) for line in log)

    def quiet(self) -> None:
        """Ends the logging of statements, which costs time."""
        self._server.run("ALTER SYSTEM RESET ALL")
        self._server.run("SELECT pg_reload_conf()")


class Redis:
    """A Valkey or Redis server of our own, emptied for each cell."""

    def __init__(self, server: RedisServer, persistence: str) -> None:
        self._server = server
        info = self._info("server")
        found = f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {info['redis_version']}"
        kept = ", ".join(f"{name} {value or 'off'}" for name, value in PERSISTENCE[persistence].items())
        self.settings = {"server": found, "persistence": kept, "maxmemory-policy": "noeviction"}

    @contextmanager
    def fresh(self, system: str, setup: Callable[[str], None]) -> Iterator[Fresh]:
        for command in (("FLUSHALL", "SYNC"), ("FUNCTION", "FLUSH"), ("SCRIPT", "FLUSH")):
            self._server.run(*command)
        url = f"{self._server.url}/0"
        setup(url)
        with _Monitor(self._server) as monitor:
            yield Fresh(url, monitor.commands, lambda: int(self._info("memory")["used_memory"]))

    def _info(self, section: str) -> dict[str, str]:
        lines = self._server.run("INFO", section).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)


class _Monitor:
    """Counts the commands that clients send: the server's own counters have those inside of scripts too."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._lines: BinaryIO | None = None
        self._count = 0

    def __enter__(self) -> _Monitor:
        return self

    def __exit__(self, *_: object) -> None:
        if self._lines is not None:
            self._lines.close()

    def commands(self) -> int:
        """How many there were since the first call, which begins the watching: that costs time. Asking is none."""
        if self._lines is None:
            with socket.create_connection(("127.0.0.1", self._server.port), 60) as connection:
                connection.sendall(b"MONITOR\r\n")
                self._lines = connection.makefile("rb")  # keeps the connection open
            self._lines.readline()
        self._server.run("ECHO", _ASKED)
        for line in self._lines:
            if line.endswith(f'"{_ASKED}"\r\n'.encode()):
                return self._count
            if not line.partition(b"]")[0].endswith(b" lua"):
                self._count += 1
        raise RuntimeError("the server has ended the watching")


@contextmanager
def stores(names: list[str], persistence: str) -> Iterator[dict[str, Sqlite | Postgres | Redis]]:
    """The stores that were asked for, until the comparison ends."""
    with ExitStack() as stack:
        # Where the disk is: a folder for temporary files may lie in memory, which makes fsync free.
        CACHE.mkdir(exist_ok=True)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stores-", dir=CACHE)))
        found: dict[str, Sqlite | Postgres | Redis] = {}
        for name in names:
            if name == "sqlite":
                found[name] = Sqlite(folder)
            elif name == "redis":
                found[name] = Redis(stack.enter_context(redis_server(PERSISTENCE[persistence])), persistence)
            else:
                server = postgres_server(settings={"shared_buffers": "512MB", "max_wal_size": "4GB"}, durable=True)
                stack.callback(server.remove)
                server.start()
                found[name] = Postgres(server)
        yield found
