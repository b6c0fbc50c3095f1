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


@contextmanager
def pgbouncer(url: str, *, connections: int = 3) -> Generator[str]:
    """The URL that leads to the same database through a pooler in transaction mode, with so many connections."""
    if PROGRAM is None:
        raise RuntimeError("pgbouncer is not installed")
    parts = urlsplit(url)
    directory = Path(tempfile.mkdtemp(prefix="perdure-pgbouncer-"))
    user = unprivileged()
    if "user" in user and "group" in user:
        chown(directory, user["user"], user["group"])
    port = free_port()
    prepared = "max_prepared_statements = 100" if version() >= (1, 21) else ""
    (directory / "pgbouncer.ini").write_text(
        f"""[databases]
* = host={parts.hostname} port={parts.port}
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
""".replace("* = ", f"{parts.path[1:]} = user={parts.username} dbname={parts.path[1:]} "),
        encoding="utf-8",
    )
    log = directory / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [PROGRAM, directory / "pgbouncer.ini"], stdout=output, stderr=output, cwd=directory, **user
        )
    try:
        through = urlunsplit(parts._replace(netloc=f"{parts.username}@127.0.0.1:{port}"))
        _wait_until_ready(process, through, log)
        yield through
    finally:
        process.kill()
        process.wait(_PATIENCE)
        shutil.rmtree(directory, ignore_errors=True)


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
