"""From a URL to a connection: parsing, checks, and the settings that every connection gets."""

from __future__ import annotations

import difflib
import math
import os
import random
import sqlite3
import time
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import parse_qsl, unquote

from msgspec import Struct

from perdure.errors import StoreError, StoreUrlError
from perdure.stores.sqlite.errors import translate
from perdure.stores.sqlite.filesystem import check_path

T = TypeVar("T")

OPTIONS = ("busy_timeout", "synchronous")
_SYNCHRONOUS = ("full", "normal")
_OLDEST = (3, 35, 0)
_LONGEST_TIMEOUT = 3_600_000


class Location(Struct, frozen=True):
    """Where a store is and how it is opened. `path` is absolute, or None for a store in memory."""

    path: str | None
    synchronous: str = "full"
    busy_timeout: int = 10_000

    @property
    def name(self) -> str:
        """How messages call the store."""
        return self.path or ":memory:"


def parse_url(url: str) -> Location:
    """Reads `sqlite:///relative.db`, `sqlite:////absolute.db` or `sqlite:///:memory:`, with options as its query.

    A relative path is taken from the working directory of now. Raises `StoreUrlError`.
    """
    rest = url.partition("://")[2]
    place, _, query = rest.partition("?")
    if place and not place.startswith("/"):
        raise StoreUrlError(f"{url!r} names a host; a file takes three slashes: 'sqlite:///{place}'")
    path = unquote(place[1:])
    if "\0" in path:
        raise StoreUrlError(f"{url!r} has a path with a NUL character")
    if place == "/":
        raise StoreUrlError(f"{url!r} names no file; write 'sqlite:///name.db', or 'sqlite:///:memory:'")
    options = _options(url, query)
    memory = path in ("", ":memory:")
    return Location(
        path=None if memory else os.path.abspath(path),
        synchronous=_one_of(url, "synchronous", options.get("synchronous", "full"), _SYNCHRONOUS),
        busy_timeout=_milliseconds(url, "busy_timeout", options.get("busy_timeout", "10000")),
    )


def _options(url: str, query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in OPTIONS:
            close = difflib.get_close_matches(name, OPTIONS, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise StoreUrlError(f"{url!r} has the unknown option {name!r}; {hint}there are {', '.join(OPTIONS)}")
        if name in options:
            raise StoreUrlError(f"{url!r} has the option {name!r} twice")
        options[name] = value
    return options


def _one_of(url: str, name: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        close = difflib.get_close_matches(value, choices, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise StoreUrlError(f"{url!r}: {name} can't be {value!r}; {hint}there are {', '.join(choices)}")
    return value


def _milliseconds(url: str, name: str, value: str) -> int:
    if not (value.isascii() and value.isdigit()) or int(value) > _LONGEST_TIMEOUT:
        raise StoreUrlError(f"{url!r}: {name} is in milliseconds, from 0 to {_LONGEST_TIMEOUT}; it can't be {value!r}")
    return int(value)


def connect(location: Location, *, read_only: bool = False) -> sqlite3.Connection:
    """A connection with the settings of the store. It may be used by any thread, by one at a time, and does not wait
    for locks by itself: see `patiently`.

    Raises `StoreError`, and `StoreUnavailable` when the file is locked for longer than `busy_timeout`.
    """
    if sqlite3.sqlite_version_info < _OLDEST:
        raise StoreError(f"SQLite {sqlite3.sqlite_version} is too old; the store needs 3.35 or newer: update Python")
    if location.path is not None:
        check_path(location.path)
    try:
        connection = sqlite3.connect(
            location.path or ":memory:",
            timeout=0,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=512,
        )
    except sqlite3.Error as error:
        raise translate(error, location.name) from error
    try:
        # Going over to WAL takes an exclusive lock, for which processes that open a new file at once have to queue.
        patiently(lambda: _settle_in(connection, location), max(1000, location.busy_timeout))
        if read_only:
            connection.execute("PRAGMA query_only = 1")
    except sqlite3.Error as error:
        connection.close()
        raise translate(error, location.name) from error
    except BaseException:
        connection.close()
        raise
    return connection


def patiently(call: Callable[[], T], busy_timeout: int, until: Callable[[], float] = lambda: math.inf) -> T:
    """Calls again while the file is locked, for at most so many milliseconds, and not beyond a time (of
    `time.monotonic`) that another thread may set meanwhile.

    SQLite's own way of waiting looks ever less often, up to ten times a second, so that beside busy processes one may
    wait for seconds. Short random pauses give each of them the same chance.
    """
    start = time.monotonic()
    while True:
        try:
            return call()
        except sqlite3.OperationalError as error:
            now = time.monotonic()
            waited = now - start
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or waited * 1000 >= busy_timeout or now >= until():
                raise
        time.sleep(random.uniform(0, min(0.025, 0.002 + waited / 8)))


def _settle_in(connection: sqlite3.Connection, location: Location) -> None:
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute("PRAGMA cache_size = -65536")
    if location.path is None:
        return
    _use_wal(connection, location)
    connection.execute(
        "PRAGMA synchronous = NORMAL" if location.synchronous == "normal" else "PRAGMA synchronous = FULL"
    )
    connection.execute("PRAGMA wal_autocheckpoint = 4000")
    connection.execute("PRAGMA journal_size_limit = 67108864")
    connection.execute("PRAGMA mmap_size = 268435456")


def _use_wal(connection: sqlite3.Connection, location: Location) -> None:
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise StoreError(f"the store {location.name} can't use a write-ahead log (it uses {mode!r}); use a local disk")
