"""Waiting for results: one question for all that wait, and nobody is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import pytest

from engine.fakes import as_store, ended
from perdure import client as module
from perdure.client import Results
from perdure.errors import RunNotFound, StoreError, StoreUnavailable
from perdure.model import Ended
from perdure.stores.base import Topic

pytestmark = pytest.mark.anyio
T = TypeVar("T")


class FakeStore:
    """Runs that end when a test says so."""

    def __init__(self) -> None:
        self.runs: set[str] = set()
        self.over: set[str] = set()
        self.wakes: list[Callable[[], None]] = []
        self.asked: list[list[str]] = []
        self.checked: list[list[str]] = []
        self.errors: dict[str, list[Exception]] = {"subscribe": [], "ended": [], "missing": [], "close": []}
        self.closing = asyncio.Event()
        self.closing.set()
        self.closes = 0

    def fail(self, verb: str) -> None:
        if self.errors[verb]:
            raise self.errors[verb].pop(0)

    async def subscribe(self, topic: Topic, wake: Callable[[], None]) -> FakeStore:
        self.fail("subscribe")
        self.wakes.append(wake)
        return self

    async def close(self) -> None:
        self.closes += 1
        await self.closing.wait()
        self.fail("close")

    async def ended(self, run_ids: Sequence[str]) -> list[Ended]:
        self.asked.append(sorted(run_ids))
        self.fail("ended")
        return [ended(run_id) for run_id in run_ids if run_id in self.over]

    async def missing(self, run_ids: Sequence[str]) -> list[str]:
        self.checked.append(sorted(run_ids))
        self.fail("missing")
        return [run_id for run_id in run_ids if run_id not in self.runs]

    def end(self, *run_ids: str) -> None:
        self.over.update(run_ids)
        for wake in self.wakes:
            wake()


async def soon(work: Awaitable[T]) -> T:
    async with asyncio.timeout(20):
        return await work


async def settled(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> FakeStore:
    store = FakeStore()
    store.runs = {"a", "b", "c"}
    return store


async def test_all_that_wait_are_asked_for_with_one_question(store: FakeStore) -> None:
    results = Results(as_store(store))
    waits = [asyncio.ensure_future(results.wait(run_id)) for run_id in ("a", "b", "c", "a")]
    await settled(lambda: store.asked)
    assert store.asked == [["a", "b", "c"]]
    store.end("a", "b", "c")
    assert [each.id for each in await soon(asyncio.gather(*waits))] == ["a", "b", "c", "a"]
    assert len(store.wakes) == 1


async def test_who_asks_while_the_subscription_is_closed_is_served_as_well(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_POLL", 0.01)
    monkeypatch.setattr(module, "_LINGER", 0.0)
    results = Results(as_store(store))
    store.over.add("a")
    store.closing.clear()
    await soon(results.wait("a"))
    await settled(lambda: store.closes)  # nobody waits: it is being closed, which takes a while
    late = asyncio.ensure_future(results.wait("b"))
    store.over.add("b")
    assert (await soon(late)).id == "b"
    store.closing.set()


@pytest.mark.parametrize("verb", ["subscribe", "ended", "missing"])
async def test_an_outage_is_waited_out(store: FakeStore, verb: str) -> None:
    store.errors[verb] = [StoreUnavailable("away"), StoreUnavailable("away")]
    wait = asyncio.ensure_future(Results(as_store(store)).wait("a"))
    await settled(lambda: not store.errors[verb])
    store.end("a")
    assert (await soon(wait)).id == "a"


@pytest.mark.parametrize("verb", ["ended", "missing"])
async def test_a_run_that_is_not_there_is_told_of_even_after_an_outage(store: FakeStore, verb: str) -> None:
    store.errors[verb] = [StoreUnavailable("away")]
    with pytest.raises(RunNotFound, match="'nowhere'"):
        await soon(Results(as_store(store)).wait("nowhere"))


async def test_who_waits_for_a_run_that_goes_away_is_told(store: FakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_POLL", 0.01)
    results = Results(as_store(store))
    gone, kept = (asyncio.ensure_future(results.wait(run_id)) for run_id in ("a", "b"))
    await settled(lambda: ["a", "b"] in store.checked)
    store.runs.discard("a")
    with pytest.raises(RunNotFound, match="'a'"):
        await soon(gone)
    store.end("b")
    assert (await soon(kept)).id == "b"


async def test_a_wake_up_asks_for_outcomes_and_not_whether_runs_are_there(store: FakeStore) -> None:
    results = Results(as_store(store))
    waits = [asyncio.ensure_future(results.wait(run_id)) for run_id in ("a", "b")]
    await settled(lambda: store.checked)
    store.end("a")
    assert (await soon(waits[0])).id == "a"
    assert store.checked == [["a", "b"]]
    store.end("b")
    await soon(waits[1])


async def test_the_ends_of_others_do_not_close_the_subscription_between_two_results(store: FakeStore) -> None:
    results = Results(as_store(store))
    store.over.add("a")
    await soon(results.wait("a"))
    wakes = results._wake
    for _ in range(3):
        store.end("b")  # for which nobody waits
        await settled(lambda: not wakes.is_set())
    assert (await soon(results.wait("b"))).id == "b"
    assert (len(store.wakes), store.closes, store.asked) == (1, 0, [["a"], ["b"]])


async def test_an_error_that_stays_goes_to_all_that_wait(store: FakeStore) -> None:
    store.errors["ended"] = [StoreError("damaged")]
    results = Results(as_store(store))
    outcomes = await soon(asyncio.gather(results.wait("a"), results.wait("b"), return_exceptions=True))
    assert [str(outcome) for outcome in outcomes] == ["damaged", "damaged"]
    store.over.add("a")
    assert (await soon(results.wait("a"))).id == "a"  # whoever asks again is served


async def test_closing_tells_those_that_wait(store: FakeStore) -> None:
    results = Results(as_store(store))
    wait = asyncio.ensure_future(results.wait("a"))
    await settled(lambda: store.asked)
    store.errors["close"] = [StoreUnavailable("away")]
    await soon(results.close())
    with pytest.raises(StoreError, match="closed"):
        await soon(wait)


async def test_who_gives_up_waiting_leaves_nothing_behind(store: FakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_POLL", 0.01)
    monkeypatch.setattr(module, "_LINGER", 0.0)
    results = Results(as_store(store))
    wait = asyncio.ensure_future(results.wait("a"))
    await settled(lambda: store.asked)
    wait.cancel()
    await settled(lambda: store.closes)
    assert not results._waiting and not results._unsure
