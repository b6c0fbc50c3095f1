"""The operator's retry: a run that ended is queued once more, from where it failed or from a given step."""

from __future__ import annotations

import pytest

from conformance.kit import (
    ManualClock,
    Worker,
    checkpoint,
    drain,
    for_run,
    for_signal,
    ids,
    keys,
    message,
    record,
    start,
)
from perdure.errors import CheckpointNotFound, PerdureError, RunNotEnded, RunNotFound
from perdure.model import Kind, Outcome, State
from perdure.stores.base import Store
from perdure.stores.exchange import To

pytestmark = pytest.mark.anyio


async def ended(store: Store, served: Worker, to: To = To.FAILED) -> None:
    """A run `r` that kept a, b (an error) and c, and ended."""
    await store.enqueue([start("r", timeout=60_000)])
    claim = await served.claim_one()
    await served.save(claim, checkpoint("a"), checkpoint("b", outcome=Outcome.ERROR), checkpoint("c"))
    await served.settle(claim, to, '"over"')


@pytest.mark.parametrize("to", [To.FAILED, To.CANCELLED])
async def test_a_run_that_failed_or_was_cancelled_is_queued_once_more(
    store: Store, ada: Worker, clock: ManualClock, to: To
) -> None:
    await ended(store, ada, to)
    await store.retry("r")
    run = await record(store, "r")
    assert (run.state, run.attempt, run.crashes, run.deadline) == (State.QUEUED, 2, 0, None)
    assert (run.finished_at, run.cancelling) == (None, None)
    assert await store.ended(["r"]) == []
    clock.advance(ms=10**9)
    claim = await ada.claim_one()
    assert (claim.attempt, claim.cut_off, claim.deadline, claim.cancelling) == (2, False, None, None)
    assert [kept.key for kept in claim.checkpoints] == ["a", "c"]
    await ada.settle(claim, body="1")
    assert (await record(store, "r")).state == State.SUCCEEDED


async def test_a_run_that_somebody_cancelled_is_free_after_its_retry(store: Store, ada: Worker) -> None:
    await store.enqueue([start("asked"), start("ended")])
    claim = await ada.claim_one()
    await store.cancel("asked", "not wanted")
    await store.cancel("ended", "not wanted")
    await ada.settle(claim, To.CANCELLED, '"over"')
    for run_id in ("asked", "ended"):
        await store.retry(run_id)
    reply = await ada.exchange(slots=2)
    assert [(again.id, again.cancelling) for again in reply.claims] == [("asked", None), ("ended", None)]
    assert (reply.cancelled, (await ada.exchange()).cancelled) == ([], [])


async def test_a_poisoned_run_gets_all_its_crashes_back(store: Store, ada: Worker, bob: Worker) -> None:
    await store.enqueue([start("r", max_crashes=1)])
    await ada.claim_one()
    await store.bury(ada.name)
    poisoned = await record(store, "r")
    assert (poisoned.state, poisoned.crashes) == (State.FAILED, 1)
    await store.retry("r")
    claim = await bob.claim_one()
    assert (claim.crashes, claim.attempt, claim.cut_off) == (0, poisoned.attempt + 1, False)


async def test_a_run_is_restarted_from_a_step(store: Store, ada: Worker) -> None:
    await ended(store, ada)
    await store.retry("r", from_key="c")
    assert await keys(store, "r") == ["a"]
    assert (await ada.claim_one()).attempt == 2


async def test_what_came_before_the_step_is_kept(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r")])
    claim = await ada.claim_one()
    for key in ("one", "two", "three", "four"):
        await ada.save(claim, checkpoint(key))
    await ada.settle(claim, To.FAILED, '"x"')
    await store.retry("r", from_key="three")
    assert await keys(store, "r") == ["one", "two"]


@pytest.mark.parametrize("step", ["s*[a-z]", "step", "s\\\\t^e?p"])
@pytest.mark.parametrize("many", [3, 300])
async def test_what_the_step_had_called_goes_with_it(store: Store, ada: Worker, step: str, many: int) -> None:
    await store.enqueue([start("r")])
    await store.signal(message("r", body="1"))
    claim = await ada.claim_one()
    within = [f"{step}/in#{number}" for number in range(many)]
    others = ["one", f"{step}#2/in", f"{step}son", f"{step}0", f"o/{step}/in", "step\\in", "sx[a-z]/in", "sxd/in"]
    await ada.save(claim, checkpoint(f"{step}/got", "1", kind=Kind.SIGNAL), consumes=claim.signals[0].position)
    await ada.save(claim, *map(checkpoint, [*others, *within, f"{step}/in/deep", "beside", step, "last"]))
    await ada.settle(claim, To.SUCCEEDED, "1")
    await store.retry("r", from_key=step)
    assert await keys(store, "r") == [*others, "beside"]
    assert [arrived.body for arrived in (await ada.claim_one()).signals] == ["1"]


async def test_a_run_that_succeeded_is_restarted_from_a_step_only(store: Store, ada: Worker) -> None:
    await ended(store, ada, To.SUCCEEDED)
    with pytest.raises(PerdureError):
        await store.retry("r")
    assert (await record(store, "r")).state == State.SUCCEEDED
    await store.retry("r", from_key="a")
    run = await record(store, "r")
    assert (run.state, run.attempt) == (State.QUEUED, 2)
    assert await store.history("r") == []


async def test_a_step_that_is_not_there_restarts_nothing(store: Store, ada: Worker) -> None:
    await ended(store, ada)
    before = await record(store, "r")
    with pytest.raises(CheckpointNotFound):
        await store.retry("r", from_key="missing")
    assert await record(store, "r") == before
    assert await keys(store, "r") == ["a", "b", "c"]


async def test_a_run_that_has_not_ended_is_not_retried(store: Store, ada: Worker) -> None:
    await store.enqueue([start("parked"), start("running"), start("queued"), start("scheduled", delay=1000)])
    parked, _ = await ada.claim(2)
    await ada.park(parked, for_signal())
    for run_id in ("parked", "running", "queued", "scheduled"):
        before = await record(store, run_id)
        with pytest.raises(RunNotEnded):
            await store.retry(run_id)
        assert await record(store, run_id) == before


async def test_a_run_that_is_not_there_is_not_retried(store: Store) -> None:
    with pytest.raises(RunNotFound):
        await store.retry("missing")


@pytest.mark.one_partition("the order within a queue")
async def test_a_retried_run_keeps_its_place(store: Store, ada: Worker) -> None:
    await ended(store, ada)
    await store.enqueue([start("younger")])
    await store.retry("r")
    assert ids(await drain(ada)) == ["r", "younger"]


async def test_a_retried_run_can_be_signalled_parked_and_waited_for_again(store: Store, ada: Worker) -> None:
    await ended(store, ada)
    await store.retry("r")
    await ada.park(await ada.claim_one(), for_signal())
    await store.enqueue([start("parent")])
    await ada.park(await ada.claim_one(), for_run("r"))
    assert (await record(store, "parent")).state == State.WAITING
    await store.signal(message("r", body="1"))
    claim = await ada.claim_one()
    assert (claim.id, [arrived.body for arrived in claim.signals]) == ("r", ["1"])
    await ada.settle(claim, body='"done"')
    parent = await ada.claim_one()
    assert (parent.id, [end.body for end in parent.ended]) == ("parent", ['"done"'])


async def test_the_claim_that_ended_the_run_owns_nothing_after_the_retry(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r")])
    stale = await ada.claim_one()
    await ada.settle(stale, To.FAILED, '"x"')
    await store.retry("r")
    await ada.settle(stale, To.FAILED, '"x"')
    assert (await record(store, "r")).state == State.QUEUED
    assert (await ada.save(stale, checkpoint("k"))).refused == [stale.token]


async def taken(store: Store, served: Worker, *bodies: str) -> None:
    """A run `r` that consumed signals, one by one, each with a step behind it, and failed."""
    await store.enqueue([start("r")])
    for body in bodies:
        await store.signal(message("r", body=body, id=f"signal {body}"))
    claim = await served.claim_one()
    for arrived in claim.signals:
        got = checkpoint(f"got {arrived.body}", arrived.body, kind=Kind.SIGNAL)
        await served.save(claim, got, consumes=arrived.position)
        await served.save(claim, checkpoint(f"used {arrived.body}"))
    await served.settle(claim, To.FAILED, '"x"')


async def test_what_cleared_checkpoints_consumed_waits_again(store: Store, ada: Worker) -> None:
    await taken(store, ada, "1", "2", "3")
    await store.retry("r", from_key="used 1")
    assert await keys(store, "r") == ["got 1"]
    await store.signal(message("r", body="4"))
    claim = await ada.claim_one()
    assert [arrived.body for arrived in claim.signals] == ["2", "3", "4"]
    positions = [arrived.position for arrived in claim.signals]
    assert positions == sorted(set(positions))
    assert await store.signals("r") == claim.signals


async def test_what_waits_again_is_consumed_once_more(store: Store, ada: Worker) -> None:
    await taken(store, ada, "1", "2")
    await store.retry("r", from_key="got 1")
    claim = await ada.claim_one()
    await ada.save(claim, checkpoint("got 1", kind=Kind.SIGNAL), consumes=claim.signals[0].position)
    await ada.settle(claim, To.SUCCEEDED, "1")
    assert [arrived.body for arrived in await store.signals("r")] == ["2"]
    await store.retry("r", from_key="got 1")
    assert [arrived.body for arrived in (await ada.claim_one()).signals] == ["1", "2"]


async def test_what_kept_checkpoints_consumed_stays_consumed(store: Store, ada: Worker) -> None:
    await taken(store, ada, "1")
    await store.retry("r")
    claim = await ada.claim_one()
    assert (claim.signals, [kept.key for kept in claim.checkpoints]) == ([], ["got 1", "used 1"])


async def test_a_run_that_parks_for_what_it_got_back_is_queued_at_once(store: Store, ada: Worker) -> None:
    await taken(store, ada, "1")
    await store.retry("r", from_key="got 1")
    await ada.park(await ada.claim_one(), for_signal())
    assert (await record(store, "r")).state == State.QUEUED


async def test_a_signal_that_was_given_back_is_still_known(store: Store, ada: Worker) -> None:
    await taken(store, ada, "1")
    await store.retry("r", from_key="got 1")
    await store.signal(message("r", body="1", id="signal 1"))
    assert [arrived.body for arrived in await store.signals("r")] == ["1"]


async def test_a_repeated_save_does_not_consume_for_another_checkpoint(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r")])
    await store.signal(message("r", body="1"))
    claim = await ada.claim_one()
    for _ in range(2):
        await ada.save(claim, checkpoint("got", kind=Kind.SIGNAL), consumes=claim.signals[0].position)
    await ada.settle(claim, To.FAILED, '"x"')
    await store.retry("r", from_key="got")
    assert [arrived.body for arrived in await store.signals("r")] == ["1"]
