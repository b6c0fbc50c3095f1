"""Replies that are lost: the store did it, the caller never heard, and says it again."""

from __future__ import annotations

import msgspec
import pytest

from conformance.kit import (
    ManualClock,
    Worker,
    all_runs,
    checkpoint,
    drain,
    for_run,
    for_signal,
    ids,
    keys,
    message,
    named,
    record,
    save,
    settle,
    start,
    watch,
    worker,
)
from perdure.errors import RunEnded
from perdure.model import Ended, Kind, Outcome, Started, State
from perdure.stores.base import Store
from perdure.stores.exchange import Cancelling, To

pytestmark = pytest.mark.anyio


async def test_an_enqueue_repeated_makes_nothing_twice(store: Store, ada: Worker) -> None:
    starts = [start("a"), start("b", delay=5), start("c")]
    await store.enqueue(starts)
    before = await all_runs(store)
    assert await store.enqueue(starts) == [Started(each.id, existed=True, same=True) for each in starts]
    assert await all_runs(store) == before
    assert ids(await drain(ada)) == ["a", "c"]


async def test_an_enqueue_repeated_after_the_run_began_changes_nothing(store: Store, ada: Worker) -> None:
    starts = [start("a"), start("b")]
    await store.enqueue(starts)
    await ada.settle(await ada.claim_one(), body="1")
    await store.enqueue(starts)
    assert await store.ended(["a"]) == [Ended("a", State.SUCCEEDED, "1")]
    assert ids(await drain(ada)) == ["b"]


async def test_a_signal_repeated_is_one_signal(store: Store) -> None:
    await store.enqueue([start("r")])
    sent = message("r", body="1")
    await store.signal(sent)
    await store.signal(sent)
    await store.signal(message("r", body="1"))
    assert [arrived.body for arrived in await store.signals("r")] == ["1", "1"]


async def test_a_signal_repeated_after_it_was_consumed_is_not_delivered_again(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r")])
    sent = message("r")
    await store.signal(sent)
    claim = await ada.claim_one()
    await ada.save(claim, checkpoint("got", kind=Kind.SIGNAL), consumes=claim.signals[0].position)
    await store.signal(sent)
    assert await store.signals("r") == []
    await ada.park(claim, for_signal())
    await store.signal(sent)
    assert (await record(store, "r")).state == State.WAITING


async def test_a_signal_repeated_after_the_run_ended_was_delivered(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r")])
    sent = message("r")
    await store.signal(sent)
    await ada.settle(await ada.claim_one(), body="1")
    await store.signal(sent)
    with pytest.raises(RunEnded):
        await store.signal(message("r"))


@pytest.mark.one_partition("the order within a queue")
async def test_a_claim_whose_reply_was_lost_is_found_again(store: Store, ada: Worker) -> None:
    await store.enqueue([start(f"r{n}") for n in range(5)])
    first = await ada.exchange(slots=3)
    again = await ada.repeat()
    assert again.claims == first.claims
    assert ids(again.claims) == ["r0", "r1", "r2"]
    assert again.gone is False
    assert (await ada.settle(again.claims[0], body="1")).refused == []
    assert ids(await ada.claim()) == ["r3", "r4"]


@pytest.mark.one_partition("the order within a queue")
async def test_a_claim_may_be_asked_for_many_times(store: Store, ada: Worker, bob: Worker) -> None:
    await store.enqueue([start(f"r{n}") for n in range(2)])
    first = await ada.exchange(slots=1)
    assert ids(await bob.claim()) == ["r1"]
    for _ in range(3):
        assert (await ada.repeat()).claims == first.claims


async def test_a_claim_found_again_brings_all_that_the_first_did(store: Store, ada: Worker, bob: Worker) -> None:
    await store.enqueue([start("r", timeout=10**9), start("child", parent="r")])
    claim, child = named(await ada.claim(2), "r", "child")
    await store.signal(message("r", body="1"))
    await ada.save(claim, checkpoint("a"), checkpoint("b", outcome=Outcome.ERROR))
    await ada.park(claim, for_run("child"), for_signal("never"))
    await ada.settle(child, body="7")
    first = await bob.exchange(slots=1)
    assert first.claims[0].ended == [Ended("child", State.SUCCEEDED, "7")]
    assert (await bob.repeat()).claims == first.claims


async def test_a_claim_found_again_still_tells_of_the_crash_before_it(store: Store, ada: Worker, bob: Worker) -> None:
    await store.enqueue([start("r")])
    await ada.claim_one()
    await store.bury(ada.name)
    first = await bob.exchange(slots=1)
    assert first.claims[0].cut_off
    assert (await bob.repeat()).claims == first.claims


async def test_an_exchange_that_never_arrived_takes_effect_when_repeated(store: Store, ada: Worker) -> None:
    await store.enqueue([start("a"), start("b")])
    claim = await ada.claim_one()
    ada.serial += 1
    assert ada.last is not None
    ada.last = msgspec.structs.replace(
        ada.last, serial=ada.serial, saves=[save(claim, checkpoint("k"))], settles=[settle(claim, body="1")], slots=1
    )
    reply = await ada.repeat()
    assert (ids(reply.claims), reply.refused) == (["b"], [])
    assert await keys(store, "a") == ["k"]
    assert (await ada.repeat()).claims == reply.claims


@pytest.mark.parametrize("to", list(To))
async def test_saves_and_settles_repeated_are_accepted_and_count_once(store: Store, ada: Worker, to: To) -> None:
    await store.enqueue([start("r"), start("s")])
    await store.signal(message("r", body="1"))
    await store.signal(message("r", body="2"))
    claim = await ada.claim_one()
    child = start("child", priority=9, parent="r")
    first = await ada.exchange(
        saves=[
            save(claim, checkpoint("got", kind=Kind.SIGNAL), consumes=claim.signals[0].position),
            save(claim, checkpoint("child", kind=Kind.CHILD), starts=child),
        ],
        settles=[settle(claim, to, '"x"', delay=60_000, waits=[for_signal("never")])],
    )
    before = await all_runs(store), await store.history("r"), await store.signals("r")
    again = await ada.repeat()
    assert first.refused == again.refused == []
    assert (await all_runs(store), await store.history("r"), await store.signals("r")) == before
    assert [arrived.body for arrived in await store.signals("r")] == ["2"]


async def test_saves_of_a_run_that_goes_on_may_be_repeated(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r")])
    await store.signal(message("r", body="1"))
    await store.signal(message("r", body="2"))
    claim = await ada.claim_one()
    await ada.exchange(
        saves=[
            save(claim, checkpoint("a", '"a"')),
            save(claim, checkpoint("b", '"b"'), consumes=claim.signals[0].position),
            save(claim, checkpoint("c", '"c"', kind=Kind.CHILD), starts=start("child")),
        ]
    )
    for _ in range(2):
        assert (await ada.repeat()).refused == []
    assert await keys(store, "r") == ["a", "b", "c"]
    assert [arrived.body for arrived in await store.signals("r")] == ["2"]
    assert [run.id for run in await all_runs(store)] == ["r", "child"]


async def test_a_release_and_a_claim_of_one_exchange_may_be_repeated(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r")])
    stale = await ada.claim_one()
    first = await ada.exchange(settles=[settle(stale, To.RELEASE)], slots=1)
    again = await ada.repeat()
    assert (ids(first.claims), again.claims, again.refused) == (["r"], first.claims, [])
    assert (await ada.settle(again.claims[0], body="1")).refused == []


async def test_a_park_repeated_does_not_park_again(store: Store, ada: Worker, bob: Worker) -> None:
    await store.enqueue([start("r")])
    await ada.park(await ada.claim_one(), for_signal())
    await store.signal(message("r"))
    claim = await bob.claim_one()
    again = await ada.repeat()
    assert again.refused == []
    assert (await record(store, "r")).state == State.RUNNING
    assert (await record(store, "r")).waits == []
    assert (await bob.settle(claim, body="1")).refused == []


async def test_a_settle_repeated_after_the_next_owner_ended_the_run_changes_nothing(
    store: Store, ada: Worker, bob: Worker
) -> None:
    await store.enqueue([start("r")])
    await ada.settle(await ada.claim_one(), To.RETRY, '"boom"')
    await bob.settle(await bob.claim_one(), body="1")
    before = await record(store, "r")
    await ada.repeat()
    assert await record(store, "r") == before


async def test_what_was_seen_or_asked_is_told_again(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r")])
    claim = await ada.claim_one()
    await store.signal(message("r"))
    await store.cancel("r", "not wanted")
    first = await ada.exchange(watches=[watch(claim, for_signal())])
    again = await ada.repeat()
    assert len(first.seen) == 1 and again.seen == first.seen
    assert again.cancelled == first.cancelled == [(claim.token, Cancelling("not wanted"))]


async def test_a_worker_that_was_buried_meanwhile_finds_nothing_again(store: Store, ada: Worker, bob: Worker) -> None:
    await store.enqueue([start("r")])
    await ada.claim_one()
    await store.bury(ada.name)
    assert ids(await bob.claim()) == ["r"]
    reply = await ada.repeat()
    assert (reply.claims, reply.gone) == ([], True)


async def test_registering_again_under_one_name_leaves_nothing_behind(store: Store) -> None:
    first = await worker(store, name="w")
    again = await worker(store, name="w")
    await store.enqueue([start("r")])
    await again.claim_one()
    assert await store.bury("w") == 1
    assert await store.workers() == []
    assert (await first.exchange()).gone and (await again.exchange()).gone


async def test_a_cancel_a_bury_and_a_retirement_may_be_repeated(store: Store, ada: Worker, bob: Worker) -> None:
    await store.enqueue([start("a"), start("b"), start("c")])
    await ada.claim_one()
    assert [await store.cancel("c", "x"), await store.cancel("c", "x")] == [State.CANCELLED, State.CANCELLED]
    assert [await store.bury(ada.name), await store.bury(ada.name)] == [1, 0]
    await bob.claim_one()
    await store.retire(bob.id)
    await store.retire(bob.id)
    assert ids(await drain(await worker(store))) == ["a", "b"]


async def test_a_reply_lost_long_ago_changes_nothing_now(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue([start("r")])
    claim = await ada.claim_one()
    await ada.settle(claim, To.RETRY, '"boom"', delay=10)
    clock.advance(ms=1000)
    assert (await ada.repeat()).claims == []
    again = await ada.claim_one()
    assert (again.id, again.attempt) == ("r", 2)
