"""The partitions of a store, and which of them a name belongs to."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from perdure.errors import InvalidInput, StoreUnavailable
from perdure.model import Millis, Start
from perdure.stores.redis.cluster.reach import Reach
from perdure.stores.redis.connect import Redis
from perdure.stores.redis.route import slot
from perdure.stores.redis.session import Session

T = TypeVar("T")

_OF_CHILD = re.compile(r"(?:/[^/]+\.[0-9a-f]{8}(?:/\d+)?)+$")
"""What an id that was made for a child, or for a batch and its runs, has behind that of its parent."""


class Parts:
    """A session for each partition. `back` is told of one that can be reached again."""

    def __init__(self, redis: Redis, now: Callable[[], Millis] | None, back: Callable[[int], None]) -> None:
        self.redis = redis
        self.now = now
        self.sessions = [Session(redis, now, partition) for partition in range(len(redis.prefixes))]
        self.reach = Reach(self.sessions, back)

    @property
    def first(self) -> Session:
        """That of the partition which keeps what there is once for all."""
        return self.sessions[0]

    def home(self, name: str) -> int:
        """The partition of a name: of what it has in braces, if it has that, as Redis Cluster does it with keys. An id
        that was made for a child goes by that of its parent, beside which it mostly lies."""
        return slot(_OF_CHILD.sub("", name).encode()) % len(self.sessions)

    def target(self, start: Start, given: int | None = None, why: str = "parent") -> int:
        """The partition in which a start makes its run: where its parent is, or its batch (`given`), its group, its
        session and its unique key.

        Raises `InvalidInput` when these lie in different ones: limits and keys hold within one partition alone.
        """
        names = {"group": start.group, "session": start.session}
        if start.batch and given is None:
            names["batch"] = start.batch
        if start.unique is not None:
            names["unique key"] = start.unique.key
        wanted = {what: self.home(name) for what, name in names.items() if name}
        if given is not None:
            wanted[why] = given
        if not wanted:
            return self.home(start.id)
        if len({*wanted.values()}) > 1:
            raise InvalidInput(
                f"run {start.id!r} can't be made in a cluster: its {' and its '.join(wanted)} lie in different"
                " partitions. Names with the same part in braces lie in one, such as group='{customer-3}' and"
                " id='order-7-{customer-3}'"
            )
        return next(iter(wanted.values()))

    async def each(self, do: Callable[[Session], Awaitable[T]]) -> list[T]:
        """Does something with all partitions at the same time."""
        return await together(do(session) for session in self.sessions)

    async def some(self, work: Mapping[int, T], do: Callable[[Session, T], Awaitable[object]]) -> None:
        """Does something with those partitions for which there is something to do; with none, if one of them is known
        to be out of reach."""
        for partition in work.keys() & self.reach.out():
            raise StoreUnavailable(f"partition {partition} of the store {self.redis.location.name} does not answer")
        await together(do(self.sessions[partition], each) for partition, each in work.items())


async def together(calls: Iterable[Awaitable[T]]) -> list[T]:
    """The results of calls that are made at the same time. Raises the first error, when all of them are over."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    found: list[T] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        found.append(result)
    return found
