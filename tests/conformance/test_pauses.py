"""Pauses of queues, workflows, groups and the namespace: nothing begins, starts are accepted, what runs goes on."""

from __future__ import annotations

import pytest

from conformance.kit import (
    BILL,
    EVERYTHING,
    SHIP,
    URGENT,
    ManualClock,
    Worker,
    for_signal,
    ids,
    message,
    of_group,
    of_queue,
    of_workflow,
    record,
    settle,
    start,
    worker,
)
from perdure.model import Scope
from perdure.stores.base import Store
from perdure.stores.exchange import To

pytestmark = pytest.mark.anyio

SCOPES = [EVERYTHING, of_queue(), of_workflow(), of_group("g")]


@pytest.mark.parametrize("scope", SCOPES)
async def test_nothing_of_a_paused_scope_begins(store: Store, ada: Worker, scope: Scope) -> None:
    await store.enqueue([start("before", group="g")])
    assert (await store.pause(scope, "ada")).paused
    await store.enqueue([start("after", group="g")])
    reply = await ada.exchange(slots=5)
    assert (reply.claims, reply.more) == ([], False)
    assert not (await store.pause(scope, "ada", paused=False)).paused
    claim = await ada.claim_one()
    assert claim.id == "before"
    await ada.settle(claim)
    assert ids(await ada.claim()) == ["after"]


@pytest.mark.parametrize("scope", SCOPES)
async def test_what_runs_goes_on_to_its_end(store: Store, ada: Worker, scope: Scope) -> None:
    await store.enqueue([start("a", group="g"), start("b", group="g")])
    claim = await ada.claim_one()
    await store.pause(scope, "ada")
    reply = await ada.exchange(slots=5, settles=[settle(claim)])
    assert (reply.claims, reply.refused, reply.more) == ([], [], False)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("keep", [True, False])
async def test_what_wakes_meanwhile_begins_afterwards(store: Store, ada: Worker, scope: Scope, keep: bool) -> None:
    await store.enqueue([start("a", group="g", group_keep=keep)])
    await ada.park(await ada.claim_one(), for_signal())
    await store.pause(scope, "ada")
    await store.signal(message("a"))
    assert await ada.claim() == []
    assert "is paused by ada since" in str((await record(store, "a")).held)
    await store.pause(scope, "ada", paused=False)
    assert ids(await ada.claim()) == ["a"]


@pytest.mark.parametrize("to", [To.RELEASE, To.RETRY])
async def test_what_comes_back_while_its_group_is_paused_stays(store: Store, ada: Worker, to: To) -> None:
    await store.enqueue([start("a", group="g"), start("b", group="g", priority=-1, delay=10)])
    claim = await ada.claim_one()
    await store.pause(of_group("g"), "ada")
    await ada.settle(claim, to)
    assert await ada.claim() == []
    await store.pause(of_group("g"), "ada", paused=False)
    assert ids(await ada.claim()) == ["a"]


async def test_other_scopes_go_on(store: Store, ada: Worker) -> None:
    await store.enqueue([start(f"{q}/{w}", queue=q, workflow=w) for q in ("default", URGENT) for w in (SHIP, BILL)])
    await store.pause(of_queue(URGENT), "ada")
    await store.pause(of_workflow(BILL), "ada")
    assert ids(await ada.claim()) == ["default/ship"]


async def test_a_lane_that_two_scopes_pause_waits_for_both(store: Store, ada: Worker) -> None:
    await store.enqueue([start("a")])
    for scope in (of_queue(), of_workflow(), EVERYTHING):
        await store.pause(scope, "ada")
    for scope in (of_queue(), of_workflow()):
        await store.pause(scope, "ada", paused=False)
        assert await ada.claim() == []
    await store.pause(EVERYTHING, "ada", paused=False)
    assert ids(await ada.claim()) == ["a"]


async def test_what_is_new_under_a_pause_is_paused_too(store: Store, ada: Worker) -> None:
    """A queue that nobody used, and a worker that came later."""
    await store.pause(of_queue("fresh"), "ada")
    await store.pause(of_group("h"), "ada")
    await store.enqueue([start("a", queue="fresh"), start("b", group="h")])
    late = await worker(store, queues=["fresh", "default"])
    assert await late.claim() == []
    await store.pause(of_queue("fresh"), "ada", paused=False)
    await store.pause(of_group("h"), "ada", paused=False)
    assert sorted(ids(await late.claim())) == ["a", "b"]


async def test_the_reason_names_who_and_when(store: Store, clock: ManualClock) -> None:
    await store.enqueue([start("a")])
    await store.pause(of_queue(), "ada")
    clock.advance(ms=10_000)
    assert (await record(store, "a")).held == "queue default is paused by ada since 2023-11-14 22:13:20 UTC"
    await store.pause(of_queue(), "bob", paused=False)
    assert (await record(store, "a")).held is None


async def test_pauses_are_revisions(store: Store) -> None:
    await store.pause(of_queue(), "ada")
    await store.pause(of_queue(), "ada")
    await store.pause(of_queue(), "bob", paused=False)
    changes = [(each.who, each.was_paused, each.paused) for each in await store.revisions(of_queue())]
    assert changes == [("bob", True, False), ("ada", False, True)]
    nothing = await store.pause(of_queue(URGENT), "ada", paused=False)
    assert (nothing.paused, nothing.revision) == (False, 0)


async def test_a_paused_run_can_be_cancelled(store: Store, ada: Worker) -> None:
    await store.enqueue([start("a", group="g"), start("b", group="g")])
    await store.pause(of_group("g"), "ada")
    await store.cancel("a", "x")
    await store.pause(of_group("g"), "ada", paused=False)
    assert ids(await ada.claim()) == ["b"]


async def test_timers_and_deadlines_go_on_under_a_pause(store: Store, ada: Worker, clock: ManualClock) -> None:
    await store.enqueue([start("late", timeout=10), start("due", delay=5)])
    await store.pause(EVERYTHING, "ada")
    clock.advance(ms=20)
    assert await ada.claim() == []
    assert (await record(store, "late")).state == "failed"
    assert (await record(store, "due")).state == "queued"
