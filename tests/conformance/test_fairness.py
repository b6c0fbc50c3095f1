"""Turns: no backlog keeps others waiting beyond its share."""

from __future__ import annotations

import pytest

from conformance.kit import Worker, settle, start, worker
from perdure.stores.base import Claim, Store

pytestmark = pytest.mark.anyio

BACKLOG = 20_000


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
