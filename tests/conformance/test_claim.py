"""Claiming: order, lanes, bounds, tokens, and what a claim brings."""

from __future__ import annotations

import asyncio
import random

import pytest

from conformance.kit import (
    BILL,
    DEFAULT,
    SHIP,
    URGENT,
    ManualClock,
    Worker,
    checkpoint,
    drain,
    ids,
    message,
    record,
    save,
    start,
    worker,
)
from perdure.model import State
from perdure.stores.base import Store
from perdure.stores.exchange import CLAIM_BYTES, CLAIM_LIMIT, PAGE, Claim, To

pytestmark = pytest.mark.anyio


async def test_a_claim_owns_the_run_and_says_all_about_it(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue([start("r", workflow=BILL, queue=URGENT, input="[1]", timeout=9000, parent="p")])
    created = clock.now()
    clock.advance(ms=5)
    claim = await ada.claim_one()
    assert (claim.id, claim.workflow, claim.queue, claim.input) == ("r", BILL, URGENT, "[1]")
    assert (claim.attempt, claim.crashes, claim.cut_off, claim.cancelling) == (1, 0, False, None)
    assert (claim.created_at, claim.deadline, claim.parent) == (created, created + 9000, "p")
    assert (claim.checkpoints, claim.signals, claim.ended) == ([], [], [])
    assert (claim.more_checkpoints, claim.more_signals) == (False, False)
    run = await record(store, "r")
    assert (run.state, run.worker, run.started_at) == (State.RUNNING, ada.name, clock.now())


async def test_nothing_ready_is_nothing_claimed(ada: Worker, clock: ManualClock) -> None:
    reply = await ada.exchange(slots=10)
    assert (reply.claims, reply.more, reply.next_at, reply.gone) == ([], False, None, False)
    assert (reply.refused, reply.cancelled, reply.seen, reply.now) == ([], [], [], clock.now())


@pytest.mark.one_partition("the order within a queue")
async def test_a_lower_priority_number_is_first_and_then_the_order_of_enqueueing(store: Store, ada: Worker) -> None:
    priorities = [5, 0, -1, 0, 5, -1_000_000, 2**31 - 1, -(2**31)]
    await store.enqueue([start(f"{n}:{priority}", priority=priority) for n, priority in enumerate(priorities)])
    claims = await drain(ada)
    expected = sorted(range(len(priorities)), key=lambda n: (priorities[n], n))
    assert ids(claims) == [f"{n}:{priorities[n]}" for n in expected]


@pytest.mark.one_partition("the order within a queue")
async def test_order_holds_across_exchanges_of_any_size(store: Store, ada: Worker) -> None:
    rng = random.Random(7)
    starts = [start(priority=rng.randint(-2, 2)) for _ in range(200)]
    await store.enqueue(starts)
    claimed: list[str] = []
    while batch := await ada.claim(rng.randint(1, 20)):
        claimed += ids(batch)
    assert claimed == [each.id for each in sorted(starts, key=lambda each: each.priority)]


@pytest.mark.one_partition("the order within a queue")
async def test_order_holds_across_the_workflows_of_a_queue(store: Store, ada: Worker) -> None:
    await store.enqueue([start(f"r{n}", workflow=SHIP if n % 3 else BILL, priority=n // 10) for n in range(40)])
    assert ids(await drain(ada)) == [f"r{n}" for n in range(40)]


async def test_a_worker_claims_of_its_own_lanes_only(store: Store) -> None:
    await store.enqueue([start(f"{q}/{w}", queue=q, workflow=w) for q in (DEFAULT, URGENT) for w in (SHIP, BILL)])
    ship_only = await worker(store, queues=[DEFAULT], workflows=[SHIP])
    reply = await ship_only.exchange(slots=10)
    assert ids(reply.claims) == [f"{DEFAULT}/{SHIP}"]
    assert not reply.more
    urgent_only = await worker(store, queues=[URGENT], workflows=[SHIP, BILL])
    assert sorted(ids(await drain(urgent_only))) == [f"{URGENT}/{BILL}", f"{URGENT}/{SHIP}"]


async def test_a_worker_without_lanes_claims_nothing(store: Store) -> None:
    await store.enqueue([start()])
    idle = await worker(store, queues=[], workflows=[])
    assert await idle.claim() == []


async def test_a_run_that_nobody_serves_holds_up_no_other(store: Store, ada: Worker) -> None:
    await store.enqueue([start(workflow="unknown", priority=-9) for _ in range(500)] + [start("mine")])
    reply = await ada.exchange(slots=5)
    assert (ids(reply.claims), reply.more) == (["mine"], False)


async def test_a_workflow_that_nobody_served_runs_when_a_worker_for_it_comes(store: Store, ada: Worker) -> None:
    await store.enqueue([start("r", workflow="newer")])
    assert await ada.claim() == []
    newcomer = await worker(store, workflows=["newer"])
    assert ids(await newcomer.claim()) == ["r"]


@pytest.mark.one_partition("the order within a queue")
async def test_no_more_is_claimed_than_there_are_slots(store: Store, ada: Worker) -> None:
    await store.enqueue([start(f"r{n}") for n in range(5)])
    assert (await ada.exchange(slots=0)).claims == []
    reply = await ada.exchange(slots=3)
    assert (ids(reply.claims), reply.more) == (["r0", "r1", "r2"], True)
    reply = await ada.exchange(slots=2)
    assert (ids(reply.claims), reply.more) == (["r3", "r4"], False)


async def test_one_exchange_claims_up_to_the_limit(store: Store, ada: Worker) -> None:
    await store.enqueue([start() for _ in range(2 * CLAIM_LIMIT)])
    reply = await ada.exchange(slots=10 * CLAIM_LIMIT)
    assert (len(reply.claims), reply.more) == (CLAIM_LIMIT, True)
    reply = await ada.exchange(slots=10 * CLAIM_LIMIT)
    assert (len(reply.claims), reply.more) == (CLAIM_LIMIT, False)


@pytest.mark.one_partition("the order within a queue")
async def test_one_exchange_brings_a_bounded_number_of_bytes(store: Store, ada: Worker) -> None:
    third = '"' + "x" * (CLAIM_BYTES // 3) + '"'
    await store.enqueue([start(f"r{n}", input=third) for n in range(5)])
    sizes: list[int] = []
    claimed: list[str] = []
    more = True
    while more:
        reply = await ada.exchange(slots=10)
        sizes.append(sum(len(claim.input) for claim in reply.claims))
        claimed += ids(reply.claims)
        more = reply.more
    assert claimed == [f"r{n}" for n in range(5)]
    assert len(sizes) <= 3 and max(sizes) <= CLAIM_BYTES


async def test_a_run_that_is_over_the_bound_alone_is_brought_alone(store: Store, ada: Worker) -> None:
    huge = '"' + "x" * (CLAIM_BYTES + 1000) + '"'
    await store.enqueue([start("huge", input=huge), start("small")])
    reply = await ada.exchange(slots=10)
    assert (ids(reply.claims), reply.more) == (["huge"], True)
    assert ids(await ada.claim(10)) == ["small"]


@pytest.mark.one_partition("the order within a queue")
async def test_what_does_not_fit_is_not_overtaken(store: Store, ada: Worker) -> None:
    await store.enqueue([start("first"), start("big", input='"' + "x" * CLAIM_BYTES + '"'), start("third")])
    reply = await ada.exchange(slots=10)
    assert (ids(reply.claims), reply.more) == (["first"], True)
    assert ids(await drain(ada)) == ["big", "third"]


@pytest.mark.one_partition("the order within a queue")
async def test_checkpoints_count_towards_the_bound_in_bytes(store: Store, ada: Worker) -> None:
    await store.enqueue([start(f"r{n}") for n in range(3)])
    half = '"' + "é" * (CLAIM_BYTES // 4) + '"'
    for claim in await ada.claim(3):
        await ada.save(claim, checkpoint("half", half))
        await ada.settle(claim, To.RELEASE)
    for n in range(3):
        reply = await ada.exchange(slots=3)
        assert ids(reply.claims) == [f"r{n}"]
        assert reply.claims[0].checkpoints[0].body == half


@pytest.mark.one_partition("the serial in a token, which tells partitions apart")
async def test_tokens_are_made_of_the_worker_and_the_serial(store: Store, ada: Worker) -> None:
    await store.enqueue([start() for _ in range(150)])
    tokens: list[int] = []
    for _ in range(3):
        batch = [claim.token for claim in await ada.claim()]
        assert {token >> 8 for token in batch} == {(ada.id << 32) + ada.serial}
        tokens += batch
    assert len(set(tokens)) == 150


async def test_a_run_is_claimed_again_under_another_token(store: Store, ada: Worker) -> None:
    await store.enqueue([start()])
    tokens: set[int] = set()
    for _ in range(5):
        claim = await ada.claim_one()
        tokens.add(claim.token)
        await ada.settle(claim, To.RELEASE)
    assert len(tokens) == 5


async def test_two_workers_never_share_a_run(store: Store, ada: Worker, bob: Worker) -> None:
    await store.enqueue([start() for _ in range(10)])
    first, second = await ada.claim(6), await bob.claim(6)
    assert (len(first), len(second)) == (6, 4)
    assert not set(ids(first)) & set(ids(second))


async def test_workers_that_claim_side_by_side_never_share_a_run(store: Store) -> None:
    await store.enqueue([start() for _ in range(300)])
    workers = [await worker(store) for _ in range(6)]
    claimed = [claim.id for claims in await asyncio.gather(*map(drain_slowly, workers)) for claim in claims]
    assert len(claimed) == len(set(claimed)) == 300


async def test_two_processes_never_share_a_run(store: Store, other: Store) -> None:
    await store.enqueue([start() for _ in range(300)])
    workers = [await worker(each) for each in (store, other, store, other)]
    claimed = [claim.id for claims in await asyncio.gather(*map(drain_slowly, workers)) for claim in claims]
    assert len(claimed) == len(set(claimed)) == 300


async def drain_slowly(served: Worker) -> list[Claim]:
    claims: list[Claim] = []
    while batch := await served.claim(5):
        claims += batch
    return claims


async def test_a_claim_brings_the_checkpoints_in_order(store: Store, ada: Worker) -> None:
    await store.enqueue([start()])
    claim = await ada.claim_one()
    await ada.save(claim, checkpoint("b", '"1"'), checkpoint("a", '"2"'))
    await ada.save(claim, checkpoint("c", '"3"'))
    await ada.settle(claim, To.RELEASE)
    again = await ada.claim_one()
    assert [(kept.key, kept.body) for kept in again.checkpoints] == [("b", '"1"'), ("a", '"2"'), ("c", '"3"')]
    assert again.checkpoints == await store.history(again.id)


@pytest.mark.parametrize("number", [PAGE, PAGE + 44])
async def test_a_claim_brings_one_page_of_checkpoints(store: Store, ada: Worker, number: int) -> None:
    await store.enqueue([start("r")])
    claim = await ada.claim_one()
    await ada.exchange(saves=[save(claim, checkpoint(f"k{n}")) for n in range(number)])
    await ada.settle(claim, To.RELEASE)
    again = await ada.claim_one()
    assert [kept.key for kept in again.checkpoints] == [f"k{n}" for n in range(PAGE)]
    assert again.more_checkpoints == (number > PAGE)
    rest = await store.history("r", after=again.checkpoints[-1].position)
    assert [kept.key for kept in rest] == [f"k{n}" for n in range(PAGE, number)]


@pytest.mark.parametrize("number", [PAGE, PAGE + 44])
async def test_a_claim_brings_one_page_of_signals(store: Store, ada: Worker, number: int) -> None:
    await store.enqueue([start("r")])
    for n in range(number):
        await store.signal(message("r", body=str(n)))
    claim = await ada.claim_one()
    assert [arrived.body for arrived in claim.signals] == [str(n) for n in range(PAGE)]
    assert claim.more_signals == (number > PAGE)
    rest = await store.signals("r", after=claim.signals[-1].position)
    assert [arrived.body for arrived in rest] == [str(n) for n in range(PAGE, number)]


async def test_what_claims_bring_belongs_to_each_of_them(store: Store, ada: Worker) -> None:
    await store.enqueue([start(f"r{n}") for n in range(3)])
    for claim in await ada.claim(3):
        await ada.save(claim, checkpoint("who", f'"{claim.id}"'))
        await store.signal(message(claim.id, body=f'"{claim.id}"'))
        await ada.settle(claim, To.RELEASE)
    for claim in await ada.claim(3):
        assert [kept.body for kept in claim.checkpoints] == [f'"{claim.id}"']
        assert [arrived.body for arrived in claim.signals] == [f'"{claim.id}"']


async def test_thousands_of_timers_that_are_due_at_once_are_all_claimed(
    store: Store, ada: Worker, clock: ManualClock
) -> None:
    starts = [start(delay=1000) for _ in range(3000)]
    await store.enqueue(starts)
    clock.advance(ms=1000)
    assert sorted(ids(await drain(ada))) == sorted(each.id for each in starts)
    assert (await ada.exchange()).next_at is None
