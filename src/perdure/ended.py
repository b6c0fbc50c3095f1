"""Runs as they end: those of a batch, or whichever are given."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.call import Stream
from perdure.engine.scope import holds_slot, wait_in_step
from perdure.run import Run, check_handles
from perdure.stores.base import Store, Topic

if TYPE_CHECKING:
    from perdure.client import Client

R = TypeVar("R")
T = TypeVar("T")

_ASKED = 1000
"""Runs of which one call to the store asks."""

_UNSURE = 1.0
"""Seconds, at least, between two questions whether runs are still there."""


def as_ended(client: Client, runs: Iterable[Run[R]]) -> Stream[Run[R]]:
    """See `App.as_ended`."""
    waiting = check_handles(client, runs, "as_ended()")
    sure_until = 0.0

    async def look(store: Store) -> list[str]:
        nonlocal sure_until
        found = await ended_among(store, waiting)
        if not found and time.monotonic() >= sure_until:
            found = await among(store.missing, waiting)
            sure_until = time.monotonic() + _UNSURE
        return found

    return as_they_end(client, waiting, look, "as_ended()")


def as_they_end(
    client: Client, waiting: dict[str, Run[R]], look: Callable[[Store], Coroutine[Any, Any, list[str]]], what: str
) -> Stream[Run[R]]:
    """The runs that are `waiting`, whenever `look` names some of them, until none is left. One subscription tells when
    to look.

    Raises `NotDurable` in a workflow, where their order would be another one at each replay; and in a step
    `WouldDeadlock`, once it would have to wait.
    """
    in_step = holds_slot(client)

    async def follow() -> AsyncGenerator[Run[R]]:
        async with aclosing(client.follow(look, Topic.ENDED)) as looks:
            async for found in looks:
                for run_id in found:
                    yield waiting.pop(run_id)
                if not waiting:
                    return
                if in_step and not found and not await _over(await client.store(), next(iter(waiting))):
                    raise wait_in_step(what)

    return client.stream(follow, what)


async def _over(store: Store, run_id: str) -> bool:
    """Whether a run has ended or is gone, by the run itself: what else is known of ends may come a moment later."""
    record = await store.load(run_id)
    return record is None or record.state.final


async def ended_among(store: Store, run_ids: Iterable[str]) -> list[str]:
    """Those of the runs that have ended."""
    return [ended.id for ended in await among(store.ended, run_ids)]


async def among(ask: Callable[[list[str]], Awaitable[list[T]]], run_ids: Iterable[str]) -> list[T]:
    """What the store says of some runs, asked for a bounded number of them at a time."""
    asked = list(run_ids)
    return [found for first in range(0, len(asked), _ASKED) for found in await ask(asked[first : first + _ASKED])]
