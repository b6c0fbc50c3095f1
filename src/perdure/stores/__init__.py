"""Where runs live: the contract in `base`, and a package for each kind of store."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable

from perdure.errors import StoreUrlError
from perdure.model import Millis
from perdure.stores.base import Store

_SCHEMES = ("sqlite", "postgresql", "redis", "valkey")
_REDIS = ("redis", "rediss", "valkey", "valkeys")


def open_store(url: str, *, now: Callable[[], Millis] | None = None) -> Store:
    """The store that a URL names, not connected yet. `now` replaces the store's clock, for tests.

    Raises `StoreUrlError` when the URL can't be read.
    """
    if not isinstance(url, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise StoreUrlError(f"a store URL is a string such as 'sqlite:///name.db', not {url!r}")
    scheme, separator, _ = url.partition("://")
    if separator and scheme == "sqlite":
        from perdure.stores.sqlite import SqliteStore, parse_url

        return SqliteStore(parse_url(url), now=now)
    if separator and scheme in ("postgresql", "postgres"):
        from perdure.stores.postgres import PostgresStore, parse_url

        return PostgresStore(parse_url(url), now=now)
    if separator and scheme.partition("+")[0] in _REDIS:
        from perdure.stores.redis import open_redis

        return open_redis(url, now=now)
    if not separator:
        shown = "a text with an @ or a =" if "@" in url or "=" in url else repr(url)  # There may be a password in it.
        raise StoreUrlError(
            f"{shown} is not a store URL; write 'sqlite:///name.db', 'postgresql://host/name' or 'redis://host'"
        )
    close = difflib.get_close_matches(scheme, _SCHEMES, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    # Without the rest of the URL, in which a password may be.
    raise StoreUrlError(
        f"the URL of the store has the unknown scheme {scheme!r}; {hint}there are {', '.join(_SCHEMES)}"
    )


def is_missing(url: str) -> bool:
    """Whether there is certainly no store at a URL, as far as can be told without connecting.

    For those who only want to look: opening an embedded store makes it. Raises `StoreUrlError`.
    """
    if not url.startswith("sqlite://"):
        return False
    from perdure.stores.sqlite import parse_url

    path = parse_url(url).path
    return path is not None and not os.path.lexists(path)
