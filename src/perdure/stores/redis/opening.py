"""Which of the stores a URL is of: one server, or a cluster."""

from __future__ import annotations

from collections.abc import Callable

from perdure.model import Millis
from perdure.stores.redis.cluster import ClusterStore
from perdure.stores.redis.store import RedisStore
from perdure.stores.redis.url import Kind, parse_url


def open_redis(url: str, *, now: Callable[[], Millis] | None = None) -> RedisStore | ClusterStore:
    """The store of a URL, not connected yet. Raises `StoreUrlError`."""
    location = parse_url(url)
    store = ClusterStore if location.kind is Kind.CLUSTER else RedisStore
    return store(location, now=now)
