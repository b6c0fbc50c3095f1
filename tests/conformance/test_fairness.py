"""Turns: no backlog keeps others waiting beyond its share."""

from __future__ import annotations

import pytest

from conformance.kit import DEFAULT, URGENT, Worker, checkpoint, ids, of_queue, settle, start, worker
from perdure.model import Limits
from perdure.stores.base import Store
from perdure.stores.exchange import Claim

pytestmark = pytest.mark.anyio

BACKLOG = 20_000


@pytest.mark.one_partition("the turns of groups, and runs without one, within a queue")
async def test_a_group_with_a_backlog_starves_nobody(store: Store) -> None:
    """The last run of fifty small groups begins within 2 % of the time that all of it takes.

    The share of the small ones does not depend on the backlog: it is counted how many runs began before their last.
    """
    for n in range(0, BACKLOG, 2000):
        await store.enqueue([start(f"big{n + k}", group="big") for k in range(2000)])
    await store.enqueue([start(f"{g}:{n}", group=f"small{g}") for g in range(50) for n in range(20)])
    workers = [await worker(store, lease=10**9) for _ in range(2)]
    held: list[list[Claim]] = [[], []]
    began = small = 0
    while small < 1000:
        for each, claims in zip(workers, held, strict=True):
            reply = await each.exchange(slots=2, settles=[settle(claim) for claim in claims])
            claims[:] = reply.claims
            began += len(claims)
            small += sum(claim.group != "big" for claim in claims)
    assert began <= 1000 + 2 * 20  # With a backlog of 100,000 that is 1 % of all.


async def test_groups_take_turns(store: Store) -> None:
    await store.enqueue([start(f"{g}:{n}", group=g) for g in "abc" for n in range(5)])
    one = await worker(store)
    order: list[str] = []
    while claims := await one.claim(1):
        order += [claim.group for claim in claims]
        await one.settle(claims[0])
    assert order == [*"abc"] * 5


async def test_a_group_with_a_higher_limit_has_more_turns(store: Store) -> None:
    await store.enqueue([start(group="a", group_limit=3) for _ in range(30)])
    await store.enqueue([start(group="b") for _ in range(10)])
    one = await worker(store)
    order: list[str] = []
    while claims := await one.claim(1):
        order += [claim.group for claim in claims]
        await one.settle(claims[0])
    assert [order[:12].count(group) for group in "ab"] == [9, 3]


async def test_new_runs_come_before_the_backlog_of_a_group(store: Store, ada: Worker) -> None:
    await store.enqueue([start(group="big") for _ in range(100)])
    first = await ada.claim_one()
    await store.enqueue([start("new")])
    reply = await ada.exchange(slots=1, settles=[settle(first)])
    assert [claim.id for claim in reply.claims] == ["new"]


# --- queues of one worker

limited = pytest.mark.parametrize("limited", [False, True], ids=["without limits", "with limits"])


async def fill(store: Store, limited: bool, **queues: int) -> None:
    """Starts so many runs in each queue. Limits that keep nothing back have claims look at them all the same."""
    if limited:
        await store.set_limits(of_queue(DEFAULT), Limits(10**6), "ada")
    for queue, number in queues.items():
        await store.enqueue([start(f"{queue}{n}", queue=queue) for n in range(number)])


@limited
@pytest.mark.one_partition("the turns of queues")
async def test_queues_take_turns(store: Store, limited: bool) -> None:
    await fill(store, limited, b=2, a=4, c=3)
    one = await worker(store, queues=["c", "b", "a"])
    assert ids(await one.claim(20)) == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "c2", "a3"]


@limited
@pytest.mark.parametrize("slots", [1, 2, 4])
@pytest.mark.one_partition("the turns of queues")
async def test_turns_go_on_from_claim_to_claim(store: Store, limited: bool, slots: int) -> None:
    await fill(store, limited, b=2, a=4, c=3)
    one = await worker(store, queues=["a", "b", "c"])
    order: list[str] = []
    while claims := await one.claim(slots):
        order += ids(claims)
        await one.save(claims[0], checkpoint("s"))  # Whatever else the worker says meanwhile.
    assert order == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "c2", "a3"]


@limited
@pytest.mark.one_partition("the turns of queues")
async def test_a_queue_that_comes_later_has_its_turn_next(store: Store, limited: bool) -> None:
    await fill(store, limited, b=9)
    one = await worker(store, queues=["a", "b", "c"])
    assert ids(await one.claim(2)) == ["b0", "b1"]
    await fill(store, limited, a=2, c=1)
    assert ids(await one.claim(5)) == ["c0", "a0", "b2", "a1", "b3"]


@limited
@pytest.mark.one_partition("the turns of queues")
async def test_priority_counts_within_a_queue(store: Store, limited: bool, ada: Worker) -> None:
    await fill(store, limited, default=2, urgent=2)
    await store.enqueue([start("first", queue=URGENT, priority=-9)])
    assert ids(await ada.claim(9)) == ["default0", "first", "default1", "urgent0", "urgent1"]


@pytest.mark.one_partition("the turns of queues")
async def test_a_full_queue_misses_its_turns(store: Store, ada: Worker) -> None:
    await store.set_limits(of_queue(DEFAULT), Limits(1), "ada")
    await fill(store, False, default=3, urgent=3)
    assert ids(await ada.claim(9)) == ["default0", "urgent0", "urgent1", "urgent2"]


@limited
@pytest.mark.one_partition("the turns of queues")
async def test_a_noisy_queue_delays_no_other_beyond_its_share(store: Store, limited: bool, ada: Worker) -> None:
    for n in range(0, BACKLOG, 2000):
        await store.enqueue([start(f"noise{n + k}", queue=DEFAULT) for k in range(2000)])
    await fill(store, limited, urgent=20)
    began: list[str] = []
    while began.count(URGENT) < 20:
        [claim] = await ada.claim(1)
        began.append(claim.queue)
        await ada.settle(claim)
    assert len(began) <= 2 * 20
