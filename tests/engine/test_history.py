"""What a run has behind it is read in pages, once, and patiently."""

from __future__ import annotations

import asyncio

import pytest

from engine.fakes import PagedStore, as_store, claim, ended, kept
from perdure.engine.history import Ends, History, Inbox
from perdure.errors import StoreUnavailable
from perdure.model import Arrived
from perdure.stores.exchange import PAGE

pytestmark = pytest.mark.anyio


def past(count: int) -> list[tuple[str, int]]:
    return [(f"s{number}", number) for number in range(1, count + 1)]


def history(store: PagedStore) -> History:
    first = store.checkpoints[:PAGE]
    more = len(store.checkpoints) > PAGE
    return History(claim(checkpoints=first, more_checkpoints=more), as_store(store))


async def look_up(history: History, key: str) -> bool:
    found = history.take(key)
    if found is None and not history.complete:
        found = await history.fetch(key)
    return found is not None and found.key == key


async def test_a_checkpoint_is_taken_once() -> None:
    here = history(PagedStore([kept("a", 1)]))
    assert here.complete
    assert here.take("a") == kept("a", 1)
    assert here.take("a") is None


async def test_a_long_past_is_read_page_by_page_as_replay_gets_there() -> None:
    store = PagedStore([kept(*each) for each in past(3 * PAGE + 10)])
    here = history(store)
    for key, _ in past(3 * PAGE + 10):
        assert await look_up(here, key)
        assert len(here._loaded) <= PAGE
    assert store.reads == [f"history after {number * PAGE}" for number in (1, 2, 3)]
    assert here.complete
    assert not await look_up(here, "new")
    assert len(store.reads) == 3


async def test_steps_side_by_side_read_each_page_once() -> None:
    store = PagedStore([kept(*each) for each in past(4 * PAGE)])
    here = history(store)
    assert all(await asyncio.gather(*(look_up(here, key) for key, _ in past(4 * PAGE))))
    assert store.reads[:3] == [f"history after {number * PAGE}" for number in (1, 2, 3)]
    assert len(store.reads) <= 4


async def test_what_comes_in_another_order_is_looked_up_by_its_key() -> None:
    store = PagedStore([kept(*each) for each in past(4 * PAGE)])
    here = history(store)
    last = f"s{4 * PAGE}"
    assert await look_up(here, last)
    assert store.reads == [f"history after {PAGE}", f"find {last}"]


async def test_what_is_new_is_found_to_be_so_though_pages_are_left() -> None:
    store = PagedStore([kept(*each) for each in past(4 * PAGE)])
    here = history(store)
    assert not await look_up(here, "new")
    assert await look_up(here, f"s{PAGE + 1}")


async def test_reading_goes_on_when_the_store_is_back() -> None:
    store = PagedStore([kept(*each) for each in past(PAGE + 1)])
    store.errors = [StoreUnavailable("away"), StoreUnavailable("still away")]
    here = history(store)
    assert await look_up(here, f"s{PAGE + 1}")
    assert len(store.reads) == 3


# --- signals


def arrived(*names: str) -> list[Arrived]:
    return [Arrived(position, name, f'"{position}"') for position, name in enumerate(names, 1)]


async def test_signals_of_a_name_are_taken_in_order_each_once() -> None:
    inbox = Inbox(claim(signals=arrived("a", "b", "a", "b")), as_store(PagedStore()))
    order = [await inbox.take(name) for name in ("b", "a", "b", "a", "a", "c")]
    assert [None if each is None else each.position for each in order] == [2, 1, 4, 3, None, None]


async def test_signals_behind_the_first_page_are_read_when_needed() -> None:
    signals = arrived(*["a"] * (2 * PAGE), "b")
    store = PagedStore(signals=signals)
    store.errors = [StoreUnavailable("away")]
    inbox = Inbox(claim(signals=signals[:PAGE], more_signals=True), as_store(store))
    found = await inbox.take("b")
    assert found is not None and found.position == 2 * PAGE + 1
    assert [(await inbox.take("a") or found).position for _ in range(2 * PAGE)] == list(range(1, 2 * PAGE + 1))
    assert await inbox.take("a") is None


async def test_waits_side_by_side_get_different_signals() -> None:
    signals = arrived(*["x"] * PAGE, "a", "a", "a")
    inbox = Inbox(claim(signals=signals[:PAGE], more_signals=True), as_store(PagedStore(signals=signals)))
    taken = await asyncio.gather(*(inbox.take("a") for _ in range(4)))
    assert sorted(each.position for each in taken if each is not None) == [PAGE + 1, PAGE + 2, PAGE + 3]


async def test_a_signal_that_a_watch_saw_is_not_taken_again() -> None:
    inbox = Inbox(claim(signals=arrived("a")), as_store(PagedStore()))
    first, later = arrived("a", "a")
    assert await inbox.take("a") == first
    assert not inbox.accept(first)
    assert inbox.accept(later)
    assert not inbox.accept(later)


async def test_ends_that_a_claim_does_not_tell_of_are_read_page_by_page_once() -> None:
    names = [f"r{number}" for number in range(PAGE + 10)]
    store = PagedStore(ended=[ended(name) for name in names if name not in ("r3", "r4")], runs=[*names[:4], *names[5:]])
    store.errors = [StoreUnavailable("away")]
    ends = Ends(claim(ended=[ended("told")], missing=["gone"], unread=names), as_store(store))
    assert ends.of("w", "told") == (ended("told"), False)
    assert ends.of("gone", "nobody") == (None, True)
    await asyncio.gather(*(ends.read(name) for name in names))
    assert [ends.of(name, name)[0] for name in names if name not in ("r3", "r4")] == store.ends
    assert (ends.of("w", "r3"), ends.of("w", "r4")) == ((None, False), (None, True))
    assert not any(map(ends.unread, names))
    assert store.reads == ["ended r0", "ended r0", "missing r3", f"ended r{PAGE}"]
