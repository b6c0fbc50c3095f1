"""The end of a claim: where it takes the run, and that nobody but the owner can."""

from __future__ import annotations

import pytest

from conformance.kit import (
    ManualClock,
    Worker,
    checkpoint,
    drain,
    for_signal,
    ids,
    keys,
    message,
    named,
    record,
    save,
    settle,
    start,
    with_token,
)
from perdure.model import Kind, Outcome, State
from perdure.stores.base import Store
from perdure.stores.exchange import Settle, To

pytestmark = pytest.mark.anyio

FINAL = [(To.SUCCEEDED, State.SUCCEEDED), (To.FAILED, State.FAILED), (To.CANCELLED, State.CANCELLED)]


@pytest.mark.parametrize(("to", "state"), FINAL)
async def test_a_run_ends_with_its_outcome(store: Store, ada: Worker, clock: ManualClock, to: To, state: State) -> None:
    await store.enqueue([start("r", timeout=60_000)])
    claim = await ada.claim_one()
    clock.advance(ms=7)
    reply = await ada.settle(claim, to, '{"is":"it"}')
    assert reply.refused == []
    run = await record(store, "r")
    assert (run.state, run.body, run.finished_at, run.worker) == (state, '{"is":"it"}', clock.now(), None)
    assert [(end.id, end.state, end.body) for end in await store.ended(["r"])] == [("r", state, '{"is":"it"}')]
    assert await drain(ada) == []


async def test_the_outcomes_asked_for_are_those_of_runs_that_ended(store: Store, ada: Worker) -> None:
    await store.enqueue([start("a"), start("b"), start("c")])
    a, b = await ada.claim(2)
    await ada.exchange(settles=[settle(a, body="1"), settle(b, To.FAILED, "2")])
    outcomes = {end.id: (end.state, end.body) for end in await store.ended(["c", "b", "missing", "a"])}
    assert outcomes == {"a": (State.SUCCEEDED, "1"), "b": (State.FAILED, "2")}
    assert await store.ended([]) == []


async def test_outcomes_of_thousands_can_be_asked_for_in_one_call(store: Store, ada: Worker) -> None:
    await store.enqueue([start(f"r{n}") for n in range(3000)])
    await ada.exchange(settles=[settle(claim, body="1") for claim in await drain(ada)])
    assert {end.id for end in await store.ended([f"r{n}" for n in range(3000)])} == {f"r{n}" for n in range(3000)}


async def test_a_run_that_ended_has_no_deadline_left(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue([start("r", timeout=1000)])
    await ada.settle(await ada.claim_one(), body="1")
    assert (await ada.exchange()).next_at is None
    clock.advance(ms=5000)
    await ada.exchange()
    assert (await record(store, "r")).state == State.SUCCEEDED


async def test_a_retry_comes_after_its_delay_as_the_next_attempt(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue([start("r")])
    reply = await ada.settle(await ada.claim_one(), To.RETRY, '"boom"', delay=500)
    assert reply.next_at == clock.now() + 500
    run = await record(store, "r")
    assert (run.state, run.attempt, run.crashes, run.body) == (State.SCHEDULED, 2, 0, '"boom"')
    assert (run.wake_at, run.worker, run.finished_at) == (clock.now() + 500, None, None)
    clock.advance(ms=499)
    assert await ada.claim() == []
    clock.advance(ms=1)
    claim = await ada.claim_one()
    assert (claim.id, claim.attempt, claim.cut_off) == ("r", 2, False)


async def test_a_retry_without_delay_is_ready_in_the_same_exchange(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r")])
    claim = await ada.claim_one()
    reply = await ada.exchange(settles=[settle(claim, To.RETRY, '"boom"')], slots=1)
    assert [(again.id, again.attempt) for again in reply.claims] == [("r", 2)]


async def test_a_retry_keeps_what_succeeded_and_clears_what_failed(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r")])
    claim = await ada.claim_one()
    failed = checkpoint("failed", '"no"', outcome=Outcome.ERROR)
    await ada.save(claim, checkpoint("good"), failed, checkpoint("child", '"c"', kind=Kind.CHILD))
    await ada.settle(claim, To.RETRY, '"boom"')
    assert await keys(store, "r") == ["good", "child"]
    assert await store.find("r", "failed") is None


@pytest.mark.parametrize("to", [To.RETRY, To.RELEASE])
@pytest.mark.one_partition("the order within a queue")
async def test_a_run_that_comes_back_keeps_its_place(store: Store, ada: Worker, to: To) -> None:
    await store.enqueue([start(f"r{n}") for n in range(4)])
    _, second = await ada.claim(2)
    await ada.settle(second, to, '"again"')
    assert ids(await drain(ada)) == ["r1", "r2", "r3"]


async def test_a_released_run_is_handed_back_without_counting(store: Store, ada: Worker, bob: Worker) -> None:
    await store.enqueue([start("r")])
    claim = await ada.claim_one()
    await ada.save(claim, checkpoint("failed", '"no"', outcome=Outcome.ERROR))
    await ada.settle(claim, To.RELEASE)
    assert (await record(store, "r")).state == State.QUEUED
    again = await bob.claim_one()
    assert (again.attempt, again.crashes, again.cut_off) == (1, 0, False)
    assert [kept.key for kept in again.checkpoints] == ["failed"]


async def test_a_run_that_continues_begins_anew_under_its_id(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r", input="1")])
    claim = await ada.claim_one()
    await ada.settle(claim, To.RETRY, '"boom"')
    claim = await ada.claim_one()
    await ada.save(claim, checkpoint("good"), checkpoint("bad", outcome=Outcome.ERROR))
    reply = await ada.exchange(settles=[settle(claim, To.CONTINUE, "2")], slots=1)
    assert [(again.id, again.input, again.attempt) for again in reply.claims] == [("r", "2", 1)]
    assert reply.claims[0].checkpoints == []
    assert await store.history("r") == []
    assert (await record(store, "r")).input == "2"


async def test_a_run_that_continues_keeps_the_signals_that_wait(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r")])
    await store.signal(message("r", body="1"))
    await store.signal(message("r", body="2"))
    claim = await ada.claim_one()
    await ada.save(claim, checkpoint("got", kind=Kind.SIGNAL), consumes=claim.signals[0].position)
    await ada.settle(claim, To.CONTINUE, "null")
    assert [arrived.body for arrived in (await ada.claim_one()).signals] == ["2"]


async def test_a_signal_is_known_until_the_run_has_continued_twice(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r")])
    first = message("r", body="1", id="first")
    await store.signal(first)
    claim = await ada.claim_one()
    await ada.save(claim, checkpoint("got", kind=Kind.SIGNAL), consumes=claim.signals[0].position)
    for _ in range(2):
        await store.signal(first)
        assert await store.signals("r") == []
        await ada.settle(claim, To.CONTINUE, "null")
        claim = await ada.claim_one()
    await store.signal(first)
    assert [arrived.body for arrived in await store.signals("r")] == ["1"]


async def test_what_a_run_consumed_before_it_continued_does_not_come_back(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r")])
    await store.signal(message("r", body="1"))
    claim = await ada.claim_one()
    await ada.save(claim, checkpoint("got", kind=Kind.SIGNAL), consumes=claim.signals[0].position)
    await ada.settle(claim, To.CONTINUE, "null")
    claim = await ada.claim_one()
    await ada.save(claim, checkpoint("step"))
    await ada.settle(claim, To.FAILED, '"x"')
    await store.retry("r", from_key="step")
    assert await store.signals("r") == []


async def test_an_attempt_that_failed_gives_back_what_a_cleared_checkpoint_consumed(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r")])
    await store.signal(message("r", body="1"))
    await store.signal(message("r", body="2"))
    claim = await ada.claim_one()
    one, two = (arrived.position for arrived in claim.signals)
    await ada.save(claim, checkpoint("bad", kind=Kind.SIGNAL, outcome=Outcome.ERROR), consumes=one)
    await ada.save(claim, checkpoint("good", kind=Kind.SIGNAL), consumes=two)
    await ada.settle(claim, To.RETRY, '"boom"')
    assert [arrived.body for arrived in (await ada.claim_one()).signals] == ["1"]


async def test_checkpoints_after_continuing_are_found_under_their_old_keys(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r")])
    for n in range(3):
        claim = await ada.claim_one()
        await ada.save(claim, checkpoint("k", str(n)))
        assert [kept.body for kept in await store.history("r")] == [str(n)]
        await ada.settle(claim, To.CONTINUE, str(n))


@pytest.mark.parametrize("to", list(To))
async def test_the_same_settle_repeated_is_answered_as_the_first(store: Store, ada: Worker, to: To) -> None:
    await store.enqueue([start("r")])
    claim = await ada.claim_one()
    end = settle(claim, to, '"x"', delay=60_000, waits=[for_signal()])
    await ada.exchange(settles=[end])
    before = await record(store, "r")
    reply = await ada.exchange(settles=[end])
    assert (reply.refused, reply.gone) == ([], False)
    assert await record(store, "r") == before


async def test_a_settle_repeated_after_another_worker_claimed_does_nothing(
    store: Store, ada: Worker, bob: Worker
) -> None:
    await store.enqueue([start("r")])
    claim = await ada.claim_one()
    await ada.settle(claim, To.RETRY, '"boom"')
    theirs = await bob.claim_one()
    reply = await ada.settle(claim, To.RETRY, '"boom"')
    assert reply.refused == []
    run = await record(store, "r")
    assert (run.state, run.attempt, run.worker) == (State.RUNNING, 2, bob.name)
    assert (await bob.settle(theirs, body="1")).refused == []


@pytest.mark.parametrize("to", list(To))
async def test_a_claim_that_was_settled_can_do_nothing_more(store: Store, ada: Worker, bob: Worker, to: To) -> None:
    await store.enqueue([start("r")])
    stale = await ada.claim_one()
    await ada.settle(stale, To.RELEASE)
    await bob.claim_one()
    before = await record(store, "r")
    await ada.settle(stale, to, '"x"')
    await ada.save(stale, checkpoint("stale"))
    assert await record(store, "r") == before
    assert await store.history("r") == []


@pytest.mark.parametrize("to", list(To))
async def test_a_forged_token_is_refused(store: Store, ada: Worker, to: To) -> None:
    await store.enqueue([start("r"), start("other")])
    claim, other = await ada.claim(2)
    forged = with_token(claim, claim.token + 100)
    reply = await ada.settle(forged, to, '"x"')
    assert reply.refused == [forged.token]
    reply = await ada.settle(with_token(claim, other.token), to, '"x"')
    assert reply.refused == [other.token]
    for run_id in ("r", "other"):
        run = await record(store, run_id)
        assert (run.state, run.attempt, run.body) == (State.RUNNING, 1, None)


async def test_a_run_that_nobody_claimed_can_not_be_settled(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r")])
    claim = await ada.claim_one()
    await ada.settle(claim, To.RELEASE)
    for token in (0, claim.token + 1, -1):
        assert (await ada.settle(with_token(claim, token), body="1")).refused == [token]
    assert (await record(store, "r")).state == State.QUEUED


async def test_one_bad_settle_in_a_batch_fails_alone(store: Store, ada: Worker) -> None:
    await store.enqueue([start(f"r{n}") for n in range(3)])
    first, second, third = named(await ada.claim(3), "r0", "r1", "r2")
    forged = with_token(second, second.token + 100)
    reply = await ada.exchange(
        saves=[save(first, checkpoint("k")), save(forged, checkpoint("k")), save(third, checkpoint("k"))],
        settles=[settle(first, body="1"), settle(forged, body="2"), settle(third, To.FAILED, "3")],
    )
    assert set(reply.refused) == {forged.token}
    assert (await record(store, "r0")).body == "1"
    assert (await record(store, "r1")).state == State.RUNNING
    assert (await record(store, "r2")).body == "3"
    assert [await keys(store, f"r{n}") for n in range(3)] == [["k"], [], ["k"]]


async def test_a_ref_that_names_no_run_is_refused(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r"), start("ended")])
    claim, ended = await ada.claim(2)
    unknown = ended.ref + 1_000_000 if isinstance(ended.ref, int) else f"{ended.ref}-unknown"
    reply = await ada.exchange(
        settles=[Settle(ref=unknown, token=claim.token + 9, to=To.FAILED, body="0"), settle(claim, body="1")]
    )
    assert reply.refused == [claim.token + 9]
    assert (await record(store, "r")).state == State.SUCCEEDED


async def test_of_two_settles_of_one_claim_the_first_counts(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r")])
    claim = await ada.claim_one()
    await ada.exchange(settles=[settle(claim, body="1"), settle(claim, To.FAILED, "2")])
    run = await record(store, "r")
    assert (run.state, run.body) == (State.SUCCEEDED, "1")


async def test_what_is_saved_with_the_settle_of_its_run_is_kept(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r")])
    claim = await ada.claim_one()
    reply = await ada.exchange(saves=[save(claim, checkpoint("last"))], settles=[settle(claim, body="1")])
    assert reply.refused == []
    assert await keys(store, "r") == ["last"]


async def test_a_slot_freed_in_an_exchange_is_filled_in_it(store: Store, ada: Worker) -> None:
    await store.enqueue([start("a"), start("b")])
    claim = await ada.claim_one()
    reply = await ada.exchange(settles=[settle(claim, body="1")], slots=1)
    assert ids(reply.claims) == ["b"]


async def test_hundreds_of_runs_settle_in_one_exchange(store: Store, ada: Worker) -> None:
    await store.enqueue([start(f"r{n}") for n in range(500)])
    claims = await drain(ada)
    reply = await ada.exchange(settles=[settle(claim, body=f'"{claim.id}"') for claim in claims])
    assert reply.refused == []
    outcomes = {end.id: end.body for end in await store.ended([f"r{n}" for n in range(500)])}
    assert outcomes == {f"r{n}": f'"r{n}"' for n in range(500)}
