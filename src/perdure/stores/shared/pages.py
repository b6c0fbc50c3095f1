"""Answers of any size, of which one call brings a part: no store gives more than some bytes at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from perdure.model import Arrived, Checkpoint, Ended
from perdure.stores.exchange import PAGE, PAGE_BYTES

T = TypeVar("T", Checkpoint, Arrived)
Item = TypeVar("Item")


async def all_of(
    read: Callable[[int, int], Awaitable[tuple[list[T], bool]]], after: int, limit: int, *, part: int
) -> list[T]:
    """A page, in order of position: `read` is asked for at most `part` behind a position, and says whether there are
    more."""
    found: list[T] = []
    more = True
    while more and len(found) < limit:
        some, more = await read(after, min(part, limit - len(found)))
        found += some
        after = some[-1].position if some else after
    return found


async def all_ended(
    read: Callable[[Sequence[str]], Awaitable[tuple[list[Ended], int]]], run_ids: Sequence[str]
) -> list[Ended]:
    """Those of runs that have ended: `read` says at how many of those that it is asked for it has looked."""
    found: list[Ended] = []
    looked = 0
    while looked < len(run_ids):
        some, more = await read(run_ids[looked:])
        found += some
        looked += more
    return found


def cut_to_page(items: list[Item], body: Callable[[Item], str | None], most: int = PAGE) -> bool:
    """Cuts a list to what a page holds; returns whether anything was cut."""
    size = 0
    for place, item in enumerate(items):
        size += len((body(item) or "").encode())
        if place == most or (place and size > PAGE_BYTES):
            del items[place:]
            return True
    return False
