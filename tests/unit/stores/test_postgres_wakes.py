"""Who is told of new work: workers that have room for it and serve it, as long as there are any; nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from conformance.kit import (
    ManualClock,
    checkpoint,
    for_run,
    for_signal,
    message,
    of_queue,
    save,
    settle,
    start,
    worker,
)
from perdure.model import Limits, OnConflict, Unique
from perdure.stores.base import Topic
from perdure.stores.exchange import To
from perdure.stores.postgres import PostgresStore
from perdure.stores.postgres.listen import channel
from perdure.stores.postgres.url import parse_url
from servers.postgres import Postgres, store_schema

pytestmark = pytest.mark.anyio

PATIENCE = 30


@pytest.fixture
async def store(postgres: Postgres, postgres_url: str, clock: ManualClock) -> AsyncIterator[PostgresStore]:
    postgres.run(store_schema(postgres_url), url=postgres_url)
    store = PostgresStore(parse_url(postgres_url), now=clock.now)
    await store.open()
    yield store
    await store.close()


class Ear:
    """Hears all that workers are told."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        connection.execute(SQL("LISTEN {}").format(Identifier(channel("perdure"))))

    def calls(self) -> int:
        """How often workers were called since this was asked last. Calls are heard in the order of the commits."""
        self._connection.execute("SELECT pg_notify(%s, '?')", [channel("perdure")])
        calls = 0
        for notify in self._connection.notifies(timeout=PATIENCE):
            if notify.payload == "?":
                return calls
            calls += notify.payload == "w"
        raise AssertionError("the mark did not come")


@pytest.fixture
def ear(store: PostgresStore, postgres_url: str) -> Iterator[Ear]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield Ear(connection)


async def test_starts_call_who_serves_their_queue_and_workflow(store: PostgresStore, ear: Ear) -> None:
    await store.enqueue([start()])
    assert ear.calls() == 1  # Somebody may listen who will be a worker in a moment.
    await worker(store, queues=["mail"], workflows=["send"])
    for other in (start(), start(queue="mail"), start(workflow="send"), start(group="g"), start(delay=10)):
        await store.enqueue([other])
        assert ear.calls() == 0
    # Lanes that are made only now.
    await store.enqueue([start(queue="mail", workflow="send")])
    assert ear.calls() == 1
    await store.enqueue([start(), start(queue="mail", workflow="send", delay=10)])
    assert ear.calls() == 1
    await store.enqueue([start(), start(queue="mail", workflow="send", session="s")])
    assert ear.calls() == 1


async def test_starts_call_nobody_who_has_no_room(store: PostgresStore, ear: Ear) -> None:
    await worker(store, queues=["mail"])
    ada = await worker(store, concurrency=1)
    await store.enqueue([start()])
    claim = await ada.claim_one()
    ear.calls()
    await store.enqueue([start()])
    assert ear.calls() == 0
    await ada.settle(claim)
    ear.calls()
    await store.enqueue([start()])
    assert ear.calls() == 1


async def test_a_worker_that_was_not_there_until_now_looks_once_more(store: PostgresStore) -> None:
    """Who started a run in this moment did not see it."""
    woken = asyncio.Event()
    subscription = await store.subscribe(Topic.WORK, woken.set)
    ada = await worker(store)
    assert await ada.claim() == []
    async with asyncio.timeout(PATIENCE):
        await woken.wait()
    await subscription.close()


async def test_starts_that_are_pinned_call_who_has_the_version(store: PostgresStore, ear: Ear) -> None:
    ada = await worker(store, workflows=["f", "g"], versions={"f": ["1", "2"], "g": ["3"]})
    for workflow, version, calls in (
        ("f", "1", 1),
        ("f", "2", 1),
        ("f", "3", 0),
        ("g", "3", 1),
        ("g", "1", 0),
        ("g", "f", 0),
        ("f", "", 1),
    ):
        await store.enqueue([start(workflow=workflow, version=version)])
        assert ear.calls() == calls
    assert [claim.workflow for claim in await ada.claim()] == ["f", "f", "g", "f"]


async def test_a_batch_calls_who_serves_its_runs_or_its_callback(store: PostgresStore, ear: Ear) -> None:
    await worker(store, queues=["mail"])
    await store.open_batch("a", [start()], None)
    assert ear.calls() == 0
    await store.open_batch("b", [start(queue="mail")], None)
    assert ear.calls() == 1
    await store.open_batch("c", [], start(queue="mail"))
    assert ear.calls() == 1


async def test_a_start_that_changes_a_run_of_another_queue_calls_who_serves_that(
    store: PostgresStore, ear: Ear
) -> None:
    await worker(store, queues=["mail"])
    unique = Unique("k", OnConflict.REPLACE)
    await store.enqueue([start(queue="mail", unique=unique, delay=1000)])
    ear.calls()
    await store.enqueue([start(unique=unique)])
    assert ear.calls() == 1


async def test_signals_call_who_serves_the_run_that_they_wake(store: PostgresStore, ear: Ear) -> None:
    await worker(store, queues=["mail"])
    ada = await worker(store, concurrency=2)
    await store.enqueue([start("parked"), start("running")])
    parked, _ = await ada.claim(2)
    await ada.park(parked, for_signal())
    await store.enqueue([start("more")])
    await ada.claim_one()
    ear.calls()
    await store.signal(message("parked"))
    assert ear.calls() == 0
    await store.signal(message("running"))  # which may watch for it
    assert ear.calls() == 1


async def test_an_exchange_calls_who_has_room_for_what_it_made_ready(store: PostgresStore, ear: Ear) -> None:
    ada = await worker(store, queues=["q"], concurrency=1)
    await worker(store, queues=["mail"])
    await store.enqueue([start("parent", queue="q"), start("child", queue="q"), start("last", queue="q")])
    await ada.park(await ada.claim_one(), for_run("child"))
    child = await ada.claim_one()
    ear.calls()
    # Its parent is ready then; by the same call the worker is given that, and has no room for the last one.
    [parent] = (await ada.exchange(settles=[settle(child)], slots=1)).claims
    assert ear.calls() == 0
    await worker(store, queues=["q"], concurrency=1)
    await ada.exchange(settles=[settle(parent, To.RETRY)], slots=1)
    assert ear.calls() == 1


async def test_what_comes_free_calls_who_has_room_for_what_was_held(store: PostgresStore, ear: Ear) -> None:
    ada, bob = await worker(store, sessions=1), await worker(store, sessions=1)
    await worker(store, queues=["mail"], sessions=1)
    for _ in range(2):
        await store.enqueue([start(group="g")])
    claim = await ada.claim_one()
    ear.calls()
    await ada.settle(claim)
    assert ear.calls() == 1  # The next one of the group.
    await bob.settle(await bob.claim_one())
    for _ in range(2):
        await store.enqueue([start(session="s")])
    await ada.settle(await ada.claim_one())
    ear.calls()
    await ada.exchange(draining=True)
    assert ear.calls() == 1  # What is for the owner of the session no more.
    await bob.settle(await bob.claim_one())
    await store.set_limits(of_queue(), Limits(running=1), "ada")
    await store.enqueue([start(), start()])
    claim = await ada.claim_one()
    assert await bob.claim() == []
    ear.calls()
    await ada.settle(claim)
    assert ear.calls() == 1  # A place in the limit.
    await store.pause(of_queue(), "ada")
    ear.calls()
    await store.pause(of_queue(), "ada", paused=False)
    assert ear.calls() == 1


async def test_children_call_who_serves_them(store: PostgresStore, ear: Ear) -> None:
    ada = await worker(store, queues=["q"], concurrency=1)
    await worker(store, queues=["mail"])
    await store.enqueue([start(queue="q")])
    claim = await ada.claim_one()
    ear.calls()
    await ada.exchange(saves=[save(claim, checkpoint("a"), starts=start(queue="q"))])
    assert ear.calls() == 0
    await ada.exchange(saves=[save(claim, checkpoint("b"), starts=start(queue="mail"))])
    assert ear.calls() == 1


async def test_starts_of_transactions_call_who_serves_them_with_room_or_without(
    store: PostgresStore, ear: Ear, postgres_url: str
) -> None:
    ada = await worker(store, queues=["mail"], workflows=["send"], concurrency=1)
    with psycopg.connect(postgres_url) as connection:
        connection.execute("SELECT perdure.start('send', queue => 'elsewhere')")
        connection.commit()
        assert ear.calls() == 0
        connection.execute("SELECT perdure.start('send', queue => 'mail')")
        assert ear.calls() == 0
        connection.commit()
        assert ear.calls() == 1
        await ada.exchange()
        ear.calls()
        # Until the commit it may have got room.
        await ada.claim_one()
        ear.calls()
        connection.execute("SELECT perdure.start('send', queue => 'mail')")
        connection.commit()
        assert ear.calls() == 1


async def test_who_counts_the_starts_of_transactions_calls_nobody(
    store: PostgresStore, ear: Ear, postgres_url: str
) -> None:
    ada = await worker(store, queues=["mail"], workflows=["send"])
    await worker(store)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("SELECT perdure.start('send', queue => 'mail')")
        await ada.claim_one()  # and tells of a new lane
        connection.execute("SELECT perdure.start('send', queue => 'mail')")
        ear.calls()
        await ada.claim_one()
        assert ear.calls() == 0
        assert connection.execute("SELECT count(*) FROM perdure.recheck").fetchone() == (0,)
