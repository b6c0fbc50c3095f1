"""Long batches on Redis: made in parts, by whoever is there, and whole or not at all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from conformance.kit import ManualClock, all_runs, start
from perdure.errors import IdConflict
from perdure.model import BatchRecord, State
from perdure.stores import open_store
from perdure.stores.base import Store
from perdure.stores.redis.session import Session
from servers.redis import redis_url

pytestmark = pytest.mark.anyio

STARTS = [start(f"r{n}") for n in range(1_000)]
MINUTE = 60_000


class Crash(Exception):
    """The process that opens the batch ends."""


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Store]:
    store = open_store(redis_url(str(tmp_path)), now=clock.now)
    await store.open()
    yield store
    await store.close()


async def open_and_crash(store: Store, patch: pytest.MonkeyPatch, script: str, calls: int) -> None:
    """Opens the batch, but for what comes after so many calls of a script."""
    made, call = 0, Session.call

    async def some(self: Session, name: str, *args: Any, **options: Any) -> Any:
        nonlocal made
        made += name == script
        if made > calls:
            raise Crash
        return await call(self, name, *args, **options)

    with patch.context() as within:
        within.setattr(Session, "call", some)
        with pytest.raises(Crash):
            await store.open_batch("b", STARTS, start("done"))


async def states(store: Store) -> dict[State, int]:
    return {count.state: count.runs for count in await store.counts()}


async def test_what_was_not_opened_goes(store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    await open_and_crash(store, monkeypatch, "stage_batch", 2)
    assert await store.batch("b") is None
    assert set(await states(store)) == {State.WAITING}, "none of them begins"
    await store.reclaim()
    assert await all_runs(store), "it may still be opened"
    clock.advance(ms=MINUTE)
    await store.reclaim()
    assert await all_runs(store) == []


async def test_what_was_opened_is_let_in(store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    await open_and_crash(store, monkeypatch, "commit_batch", 1)
    assert await store.batch("b") == BatchRecord("b", 1_000, 0, 0, 0, "done")
    clock.advance(ms=MINUTE)
    await store.reclaim()
    assert await states(store) == {State.QUEUED: 1_000, State.WAITING: 1}


@pytest.mark.parametrize(("script", "calls"), [("stage_batch", 2), ("commit_batch", 0), ("commit_batch", 1)])
async def test_opening_it_again_goes_on(store: Store, monkeypatch: pytest.MonkeyPatch, script: str, calls: int) -> None:
    await open_and_crash(store, monkeypatch, script, calls)
    await store.open_batch("b", STARTS, start("done"))
    assert await store.batch("b") == BatchRecord("b", 1_000, 0, 0, 0, "done")
    assert await states(store) == {State.QUEUED: 1_000, State.WAITING: 1}


async def test_a_conflict_in_a_later_part_takes_back_the_earlier_ones(store: Store) -> None:
    await store.enqueue([start("r900", input="1")])
    with pytest.raises(IdConflict, match="r900"):
        await store.open_batch("b", STARTS, None)
    assert [run.id for run in await all_runs(store)] == ["r900"]
