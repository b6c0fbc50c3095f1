"""PgBouncer for the tests, where it is installed."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from os import chown
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg

from servers.postgres import free_port, unprivileged

PROGRAM = shutil.which("pgbouncer")
_PATIENCE = 30.0


def version() -> tuple[int, ...]:
    """Of the installed one; empty when there is none."""
    if PROGRAM is None:
        return ()
    said = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(int(part) for part in said.split()[1].split(".")[:2])


class Pooler:
    """PgBouncer in transaction mode before a server, with so many connections to it; `url` leads through it to the
    same database. It may be stopped and started again, on the same port."""

    def __init__(self, url: str, *, connections: int = 3) -> None:
        if PROGRAM is None:
            raise RuntimeError("pgbouncer is not installed")
        self._program = PROGRAM
        parts = urlsplit(url)
        self._directory = Path(tempfile.mkdtemp(prefix="perdure-pgbouncer-"))
        self._as = unprivileged()
        if "user" in self._as and "group" in self._as:
            chown(self._directory, self._as["user"], self._as["group"])
        port = free_port()
        database = parts.path[1:]
        prepared = "max_prepared_statements = 100" if version() >= (1, 21) else ""
        (self._directory / "pgbouncer.ini").write_text(
            f"""[databases]
{database} = host={parts.hostname} port={parts.port} user={parts.username} dbname={database}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
user =
pool_mode = transaction
default_pool_size = {connections}
max_client_conn = 500
{prepared}
""",
            encoding="utf-8",
        )
        self.url = urlunsplit(parts._replace(netloc=f"{parts.username}@127.0.0.1:{port}"))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it takes connections."""
        log = self._directory / "log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [self._program, self._directory / "pgbouncer.ini"],
                stdout=output,
                stderr=output,
                cwd=self._directory,
                **self._as,
            )
        _wait_until_ready(self._process, self.url, log)

    def kill(self) -> None:
        """Ends it at once; all connections through it break."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_PATIENCE)
            self._process = None

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)


@contextmanager
def pgbouncer(url: str, *, connections: int = 3) -> Generator[str]:
    """The URL that leads to the same database through a pooler in transaction mode, with so many connections."""
    pooler = Pooler(url, connections=connections)
    try:
        pooler.start()
        yield pooler.url
    finally:
        pooler.remove()


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            psycopg.connect(url).close()
            return
        except psycopg.OperationalError:
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"PgBouncer did not start:\n{log.read_text(errors='replace')[-2000:]}") from None
            time.sleep(0.02)
