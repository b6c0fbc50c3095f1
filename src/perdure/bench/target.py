"""The store that is measured: the one that was named, or a file that is gone afterwards."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from urllib.parse import quote

from msgspec import Struct

from perdure.errors import InvalidInput
from perdure.stores import open_store
from perdure.stores.sqlite import parse_url


class Target(Struct, frozen=True):
    """A store to measure. One that is temporary needs no tidying up."""

    url: str
    temporary: bool


@contextmanager
def open_target(url: str | None) -> Generator[Target]:
    """What to measure; without a URL a new SQLite file, with the settings that every file gets. A store that can't be
    opened is refused here, before other processes are started that would fail at it."""
    if url is not None:
        asyncio.run(_reach(url))
        yield Target(url, temporary=False)
        return
    with TemporaryDirectory(prefix="perdure-bench-") as directory:
        yield Target(f"sqlite:///{quote(str(Path(directory) / 'bench.db'))}", temporary=True)


async def _reach(url: str) -> None:
    store = open_store(url)
    await store.open()
    await store.close()


def refuse_memory(target: Target) -> None:
    """`InvalidInput` for a store in memory: two processes can't share it, and it is gone when it is closed."""
    if target.url.startswith("sqlite://") and parse_url(target.url).path is None:
        raise InvalidInput("this can't be measured in memory; name a file, such as sqlite:///bench.db")


def new_queue() -> str:
    """A queue that nobody else serves, so that a store in use can be measured without touching what is in it."""
    return f"bench-{token_hex(4)}"


def settings(url: str) -> dict[str, object]:
    """What the figures depend on besides the machine."""
    scheme = url.partition("://")[0]
    durability = "as the server is configured"
    if scheme == "sqlite":
        location = parse_url(url)
        durability = "none (in memory)" if location.path is None else f"synchronous={location.synchronous.upper()}"
    return {"store": scheme, "durability": durability, "loop": "asyncio" if loop_factory() is None else "uvloop"}


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The event loop that `perdure worker` uses: uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def stored_bytes(url: str) -> int | None:
    """The size of what is in the store, or None where that can't be told from outside."""
    if not url.startswith("sqlite://") or (path := parse_url(url).path) is None or not os.path.exists(path):
        return None
    with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True)) as connection:
        pages, free, size = (
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
    return (pages - free) * size
