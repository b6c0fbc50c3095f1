"""Deleting runs: whole trees, and nothing that a late worker says brings any of it back."""

from __future__ import annotations

import pytest

from conformance.kit import (
    ManualClock,
    Worker,
    all_runs,
    checkpoint,
    for_run,
    ids,
    message,
    record,
    save,
    settle,
    start,
    watch,
)
from perdure.errors import RunNotEnded, RunNotFound
from perdure.model import Kind, State
from perdure.stores.base import Store
from perdure.stores.exchange import To, Told

pytestmark = pytest.mark.anyio


async def left(store: Store) -> list[str]:
    return [run.id for run in await all_runs(store)]


async def test_a_run_goes_with_all_that_descends_from_it(store: Store, ada: Worker) -> None:
    await store.enqueue([start("p"), start("other")])
    await store.enqueue([start("c1", parent="p"), start("c2", parent="p"), start("d", parent="c2")])
    await store.cancel("p", "x")
    assert await store.delete("p") == 4
    assert await left(store) == ["other"]
    assert await store.load("p") is None and await store.history("p") == []
    with pytest.raises(RunNotFound):
        await store.delete("p")
    with pytest.raises(RunNotFound):
        await store.retry("p")


async def test_a_run_that_has_not_ended_is_not_deleted_unless_forced(store: Store, ada: Worker) -> None:
    await store.enqueue([start("p")])
    with pytest.raises(RunNotEnded):
        await store.delete("p")
    claim = await ada.claim_one()
    with pytest.raises(RunNotEnded):
        await store.delete("p")
    await ada.settle(claim, body="1")
    await store.enqueue([start("c", parent="p")])
    with pytest.raises(RunNotEnded, match="1 of the 2 runs"):
        await store.delete("p")
    assert await left(store) == ["p", "c"]
    assert await store.delete("p", force=True) == 2


async def test_a_late_worker_brings_nothing_back(store: Store, ada: Worker, bob: Worker) -> None:
    await store.enqueue([start("r")])
    claim = await ada.claim_one()
    await ada.save(claim, checkpoint("one"))
    assert await store.delete("r", force=True) == 1
    child = save(claim, checkpoint("child", kind=Kind.CHILD), starts=start("r/child", parent="r"))
    reply = await ada.exchange(
        saves=[save(claim, checkpoint("two")), child],
        told=[Told(claim.ref, claim.token, '"late"')],
        settles=[settle(claim, body="1")],
        watches=[watch(claim, for_run("x"))],
    )
    assert reply.refused == [claim.token] and reply.seen == []
    for to in To:
        assert (await ada.settle(claim, to, '"x"')).refused == [claim.token]
    assert (await ada.repeat()).refused == [claim.token]
    assert (await store.reclaim()).count == 0 and await store.bury(ada.name) == 0
    assert await left(store) == [] and await bob.claim() == []
    assert await store.counts() == []


async def test_a_worker_that_tells_what_it_owns_learns_of_what_is_gone(store: Store, ada: Worker, bob: Worker) -> None:
    await store.enqueue([start("r"), start("s"), start("t")])
    claims = await ada.claim()
    gone, ended, kept = claims
    await store.delete("r", force=True)
    assert (await ada.exchange()).refused == []
    owned = [(claim.ref, claim.token) for claim in claims]
    reply = await ada.exchange(owned=owned, settles=[settle(ended)])
    assert reply.refused == [gone.token]
    assert (await ada.repeat()).refused == [gone.token]
    assert (await ada.exchange(owned=[(kept.ref, kept.token)])).refused == []
    assert (await bob.exchange(owned=[(kept.ref, kept.token + 1)])).refused == [kept.token + 1]


async def test_ids_that_no_run_has(store: Store, ada: Worker) -> None:
    await store.enqueue([start("a"), start("b"), start("c")])
    await store.delete("b", force=True)
    await ada.settle(await ada.claim_one())
    assert sorted(await store.missing(["a", "b", "c", "d"])) == ["b", "d"]
    assert await store.missing([]) == []


async def test_a_late_worker_does_no_harm_to_the_next_run_of_the_id(store: Store, ada: Worker, bob: Worker) -> None:
    await store.enqueue([start("r")])
    stale = await ada.claim_one()
    await store.delete("r", force=True)
    await store.enqueue([start("r", input='"new"')])
    claim = await bob.claim_one()
    late = await ada.exchange(saves=[save(stale, checkpoint("late"))], settles=[settle(stale, To.FAILED, '"late"')])
    assert late.refused == [stale.token]
    await bob.settle(claim, body='"fine"')
    assert (await record(store, "r")).body == '"fine"' and await store.history("r") == []


async def test_a_worker_whose_run_was_deleted_is_free_for_others(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r")])
    claim = await ada.claim_one()
    await store.delete("r", force=True)
    assert [worker.running for worker in await store.workers()] == [0]
    await store.enqueue([start("s")])
    reply = await ada.exchange(settles=[settle(claim, body="1")], slots=1)
    assert (reply.refused, ids(reply.claims)) == ([claim.token], ["s"])


async def test_those_who_are_parked_for_a_deleted_run_go_on(store: Store, ada: Worker) -> None:
    await store.enqueue([start("a"), start("b")])
    a, b = await ada.claim()
    await ada.park(b, for_run("a"))
    assert (await record(store, "b")).state == State.WAITING
    await store.delete("a", force=True)
    assert ids(await ada.claim()) == ["b"]
    assert (await ada.settle(a, body="1")).refused == [a.token]


async def test_signals_and_timers_of_a_deleted_run_are_gone(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue([start("r", delay=1000, timeout=1000)])
    await store.signal(message("r"))
    await store.delete("r", force=True)
    assert (await ada.exchange()).next_at is None
    with pytest.raises(RunNotFound):
        await store.signal(message("r"))
    clock.advance(ms=5000)
    assert await ada.claim() == []
    await store.enqueue([start("r")])
    assert await store.signals("r") == []


async def test_a_delete_may_be_asked_for_by_another_process(store: Store, other: Store, ada: Worker) -> None:
    await store.enqueue([start("r")])
    claim = await ada.claim_one()
    assert await other.delete("r", force=True) == 1
    assert (await ada.settle(claim, body="1")).refused == [claim.token]
    assert await left(other) == []


async def test_counts_follow_through_everything(store: Store, ada: Worker, bob: Worker, clock: ManualClock) -> None:
    """Counts are kept and not made anew: they must be what counting would find, after each kind of change."""

    async def check() -> None:
        counted: dict[tuple[str, str, State], int] = {}
        for run in await all_runs(store):
            key = run.queue, run.workflow, run.state
            counted[key] = counted.get(key, 0) + 1
        assert {(count.queue, count.workflow, count.state): count.runs for count in await store.counts()} == counted

    await store.enqueue([start("a"), start("b", workflow="bill"), start("c", delay=1000), start("d"), start("a")])
    await store.enqueue([start("a"), start("e", max_crashes=1), start("f", timeout=5000)])
    await check()
    a, b, d, _ = await ada.claim(4)
    await check()
    await ada.settle(a, To.FAILED, '"x"')
    await ada.park(b, for_run("c"))
    await ada.settle(d, To.RETRY, '"x"', delay=99_999)
    await check()
    await store.bury(ada.name)
    await store.retry("a")
    await check()
    clock.advance(ms=5000)
    await bob.exchange()
    await check()
    await store.cancel("d", "x")
    await store.delete("f")
    await check()
    claims = {claim.id: claim for claim in await bob.claim()}
    await bob.settle(claims["c"], body="1")
    await bob.settle(claims["a"], To.CONTINUE, "2")
    await check()
    await store.delete("c")
    await store.delete("a", force=True)
    await check()
