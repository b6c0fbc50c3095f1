"""Calls that come while another one, that changes what they decide from, has not committed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from unittest.mock import patch

import asyncpg
import pytest

from conformance.kit import (
    URGENT,
    ManualClock,
    Worker,
    checkpoint,
    for_signal,
    ids,
    message,
    of_group,
    of_queue,
    record,
    save,
    settle,
    start,
    worker,
)
from perdure.errors import InvalidInput, RunNotEnded, RunNotFound
from perdure.model import MOST_LABELS, Limits, OnConflict, Rate, Retention, Start, State, Unique
from perdure.stores.base import Topic
from perdure.stores.exchange import Claim, To
from perdure.stores.postgres import PostgresStore
from perdure.stores.postgres.connect import Connection, connect
from perdure.stores.postgres.pool import Connections
from perdure.stores.postgres.url import Location, parse_url
from servers.postgres import Postgres, store_schema

PATIENCE = 30

T = TypeVar("T")

pytestmark = pytest.mark.anyio


class Held(Connections):
    """The connection of a store whose calls are over when `commit` is called."""

    def __init__(self, location: Location, connection: Connection, clock: ManualClock) -> None:
        super().__init__(location)
        self._connection = connection
        self._transaction = connection.transaction()
        with patch("perdure.stores.postgres.store.Connections", lambda _: self):
            self.store = PostgresStore(location, now=clock.now)

    async def begin(self) -> None:
        await self._transaction.start()

    async def commit(self) -> None:
        await self._transaction.commit()

    async def call(self, sql: str, *args: Any, reserved: bool = False) -> list[asyncpg.Record]:
        return await self._connection.fetch(sql, *args)

    def worker(self, of: Worker) -> Worker:
        """An incarnation that calls here; its next exchanges come before those of the original."""
        held = Worker(self.store, of.id, of.name, of.lease)
        held.serial = of.serial
        of.serial += 10
        return held


class Database:
    """A store, and transactions that are held open next to it."""

    def __init__(self, postgres: Postgres, url: str, clock: ManualClock) -> None:
        self._postgres = postgres
        self._url = url
        self._clock = clock
        self.location = parse_url(url)
        self.store = PostgresStore(self.location, now=clock.now)

    @asynccontextmanager
    async def held(self) -> AsyncGenerator[Held]:
        connection = await connect(self.location)
        try:
            held = Held(self.location, connection, self._clock)
            await held.begin()
            yield held
        finally:
            await connection.close()

    async def waiting(self, call: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A call that has begun to wait for a lock."""
        task = asyncio.create_task(call)
        database = self._url.rpartition("/")[2]
        waits = f"SELECT 1 FROM pg_stat_activity WHERE datname = '{database}' AND wait_event_type = 'Lock'"
        async with asyncio.timeout(PATIENCE):
            while not self._postgres.run(waits):
                assert not task.done(), "the call does not wait for the other one"
                await asyncio.sleep(0.01)
        return task

    def run(self, sql: str) -> list[Any]:
        return list(self._postgres.run(sql, url=self._url))


@pytest.fixture
async def database(postgres: Postgres, postgres_url: str, clock: ManualClock) -> AsyncIterator[Database]:
    postgres.run(store_schema(postgres_url), url=postgres_url)
    database = Database(postgres, postgres_url, clock)
    await database.store.open()
    yield database
    await database.store.close()


# --- groups


async def test_a_run_that_is_claimed_keeps_its_slot_when_a_better_one_joins_its_group(database: Database) -> None:
    store = database.store
    ada, bob = await worker(store), await worker(store)
    await store.enqueue([start("x", group="g")])
    async with database.held() as held:
        claim = await held.worker(ada).claim_one()
        better = await database.waiting(store.enqueue([start("y", group="g", priority=-1)]))
        await held.commit()
    await better
    assert (await record(store, "x")).state is State.RUNNING
    assert (await record(store, "y")).held == "group g is full (1 of 1: run x)"
    assert await bob.claim() == []
    assert (await ada.settle(claim)).refused == []
    assert ids(await bob.claim()) == ["y"]


async def test_a_run_that_is_claimed_goes_on_when_its_group_is_paused(database: Database) -> None:
    store = database.store
    ada = await worker(store)
    await store.enqueue([start("x", group="g"), start("y", group="g")])
    async with database.held() as held:
        claim = await held.worker(ada).claim_one()
        pause = await database.waiting(store.pause(of_group("g"), "me"))
        await held.commit()
    await pause
    assert (await record(store, "x")).state is State.RUNNING
    assert (await ada.settle(claim)).refused == []
    assert await ada.claim() == []


async def test_a_run_that_wakes_waits_for_one_that_is_claimed_where_the_limit_was_lowered(database: Database) -> None:
    store = database.store
    ada, bob = await worker(store), await worker(store)
    await store.enqueue([start("a", group="g", group_limit=2), start("b", group="g", group_limit=2)])
    for claim in await ada.claim():
        await ada.park(claim, for_signal())
    await store.set_limits(of_group("g"), Limits(1), "me")
    await store.signal(message("b"))
    async with database.held() as held:
        claim = await held.worker(ada).claim_one()
        wakes = await database.waiting(store.signal(message("a")))
        await held.commit()
    await wakes
    assert claim.id == "b"
    assert await bob.claim() == []
    assert (await ada.settle(claim)).refused == []
    assert ids(await bob.claim()) == ["a"]


async def test_workers_are_woken_for_a_group_that_another_call_had_in_hand(database: Database) -> None:
    store = database.store
    ada = await worker(store)
    await store.enqueue([start("x", group="g"), start("y", group="g")])
    claim = await ada.claim_one()
    woken = asyncio.Event()
    subscription = await store.subscribe(Topic.WORK, woken.set)
    async with database.held() as held:
        await held.call("SELECT 1 FROM perdure.grp FOR NO KEY UPDATE")
        woken.clear()
        assert (await ada.exchange(slots=1)).claims == []
        await ada.settle(claim)
        await held.commit()
    async with asyncio.timeout(PATIENCE):
        await woken.wait()
    await subscription.close()
    assert ids(await ada.claim()) == ["y"]


# --- lanes


async def test_a_lane_that_is_being_made_is_found_when_it_is_there(database: Database) -> None:
    store = database.store
    ada = await worker(store)
    assert await ada.claim() == []
    async with database.held() as held:
        await held.store.enqueue([start("x")])
        assert await ada.claim() == []  # The state of the lanes is another one by now.
        await store.enqueue([start("y", queue=URGENT)])
        assert ids(await ada.claim()) == ["y"]
        await held.commit()
    assert ids(await ada.claim()) == ["x"]


# --- sessions


async def test_a_run_that_is_claimed_keeps_its_seat_when_a_better_one_joins_its_session(database: Database) -> None:
    store = database.store
    ada = await worker(store, sessions=1)
    await store.enqueue([start("first", session="s")])
    await ada.claim_one()
    await store.enqueue([start(session="s") for _ in range(64)])
    last = "seq = (SELECT max(seq) FROM perdure.live)"
    async with database.held() as held:
        await held.call(
            f"UPDATE perdure.live SET state = 'running', worker = {ada.id}, token = 7, seat = 3 WHERE {last}"
        )
        better = await database.waiting(store.enqueue([start("better", session="s", priority=-1)]))
        await held.commit()
    await better
    assert database.run("SELECT seat, held FROM perdure.live WHERE token = 7") == [(3, None)]


async def test_a_session_stays_that_a_start_is_about_to_use(database: Database, clock: ManualClock) -> None:
    store = database.store
    ada, bob = await worker(store, sessions=1, session_idle=100), await worker(store, sessions=1)
    await store.enqueue([start("x", session="s")])
    await ada.settle(await ada.claim_one())
    clock.advance(ms=50)
    assert await store.prune([Retention(age=1)], limit=10) == 1
    clock.advance(ms=100)
    async with database.held() as held:
        await held.call("SELECT 1 FROM perdure.session FOR KEY SHARE")  # as a start does first
        await bob.exchange(slots=1)
        await held.store.enqueue([start("y", session="s")])
        await held.commit()
    assert ids(await bob.claim()) == ["y"]


# --- deleting, and labels


async def test_a_run_that_is_retried_is_not_deleted(database: Database) -> None:
    store = database.store
    ada = await worker(store)
    await store.enqueue([start("x")])
    await ada.settle(await ada.claim_one(), To.FAILED, '"e"')
    async with database.held() as held:
        await held.store.retry("x")
        delete = await database.waiting(store.delete("x"))
        await held.commit()
    with pytest.raises(RunNotEnded):
        await delete
    assert ids(await ada.claim()) == ["x"]


async def test_a_child_that_is_retried_is_deleted_as_what_it_has_become(database: Database) -> None:
    store = database.store
    ada = await worker(store)
    await store.enqueue([start("x"), start("kid", parent="x")])
    for claim in await ada.claim():
        await ada.settle(claim, To.FAILED, '"e"')
    async with database.held() as held:
        await held.store.retry("kid")
        delete = await database.waiting(store.delete("x", force=True))
        await held.commit()
    assert await delete == 2
    assert database.run("SELECT seq FROM perdure.live UNION ALL SELECT seq FROM perdure.ended") == []
    assert await ada.claim() == []


async def test_deleting_waits_for_a_checkpoint_that_a_transaction_keeps(database: Database) -> None:
    store = database.store
    ada = await worker(store)
    await store.enqueue([start("x")])
    claim = await ada.claim_one()
    connection = await connect(database.location)
    transaction = connection.transaction()
    await transaction.start()
    await store.within(connection).keep(save(claim, checkpoint("pay")))
    delete = await database.waiting(store.delete("x", force=True))
    await transaction.commit()
    await connection.close()
    assert await delete == 1
    assert database.run("SELECT run FROM perdure.checkpoint") == []


async def test_a_run_that_is_pruned_gets_no_labels(database: Database, clock: ManualClock) -> None:
    store = database.store
    ada = await worker(store)
    await store.enqueue([start("x")])
    await ada.settle(await ada.claim_one())
    clock.advance(ms=50)
    async with database.held() as held:
        assert await held.store.prune([Retention(age=1)], limit=10) == 1
        label = await database.waiting(store.label("x", {"a": "b"}))
        await held.commit()
    with pytest.raises(RunNotFound):
        await label
    assert database.run("SELECT run FROM perdure.label") == []


async def test_two_that_label_at_once_keep_to_the_limit(database: Database) -> None:
    store = database.store
    await store.enqueue([start("x")])
    async with database.held() as held:
        await held.store.label("x", {f"one{n}": "1" for n in range(MOST_LABELS)})
        label = await database.waiting(store.label("x", {"two": "2"}))
        await held.commit()
    with pytest.raises(InvalidInput):
        await label
    assert len((await record(store, "x")).labels) == MOST_LABELS


async def test_a_label_that_comes_with_the_end_of_its_run_is_kept(database: Database) -> None:
    store = database.store
    ada = await worker(store)
    await store.enqueue([start("x")])
    claim = await ada.claim_one()
    async with database.held() as held:
        await held.worker(ada).settle(claim)
        label = await database.waiting(store.label("x", {"a": "b"}))
        await held.commit()
    await label
    assert (await record(store, "x")).labels == {"a": "b"}


# --- settles, limits


async def test_a_run_that_is_cancelled_while_it_parks_is_claimed_again_and_told(database: Database) -> None:
    store = database.store
    ada = await worker(store)
    await store.enqueue([start("r")])
    claim = await ada.claim_one()
    async with database.held() as held:
        assert await held.store.cancel("r", "not any more") is State.RUNNING
        park = await database.waiting(ada.park(claim, for_signal()))
        await held.commit()
    await park
    again = await ada.claim_one()
    assert again.cancelling is not None
    assert again.cancelling.reason == "not any more"


async def test_a_run_whose_deadline_passes_while_it_parks_is_claimed_again_and_told(
    database: Database, clock: ManualClock
) -> None:
    store = database.store
    ada, bob = await worker(store), await worker(store)
    await store.enqueue([start("r", timeout=1000)])
    claim = await ada.claim_one()
    clock.advance(ms=1000)
    async with database.held() as held:
        await held.worker(bob).exchange(slots=1)
        park = await database.waiting(ada.park(claim, for_signal()))
        await held.commit()
    await park
    again = await ada.claim_one()
    assert again.cancelling is not None
    assert again.cancelling.deadline


async def test_the_rate_of_a_group_holds_that_became_ready_while_a_claim_waited(database: Database) -> None:
    store = database.store
    ada = await worker(store)
    await store.set_limits(of_queue(), Limits(100), "me")
    await store.set_limits(of_group("g"), Limits(10, Rate(1, 3_600_000, 1)), "me")
    await store.enqueue([start("plain")])
    async with database.held() as held:
        await held.call("SELECT 1 FROM perdure.scope WHERE kind = 'queue' FOR NO KEY UPDATE")
        claiming = await database.waiting(ada.exchange(slots=10))
        await store.enqueue([start(f"g{n}", group="g", group_limit=10) for n in range(5)])
        await held.commit()
    reply = await claiming
    assert (ids(reply.claims), reply.more) == (["plain"], True)
    assert ids(await ada.claim()) == ["g0"]


# --- claims


@asynccontextmanager
async def claiming(database: Database, second: Start) -> AsyncGenerator[tuple[Held, asyncio.Task[list[Claim]]]]:
    """A claim of two runs that stands still when it has found both but locked the first one alone, whose checkpoints it
    weighs; it goes on when the transaction that has these commits."""
    store = database.store
    ada = await worker(store)
    await store.enqueue([start("first"), second])
    await ada.settle(await ada.claim_one(), To.RELEASE)
    async with database.held() as held:
        await held.call("LOCK TABLE perdure.checkpoint")
        yield held, await database.waiting(ada.claim(2))


async def test_a_run_that_is_replaced_during_a_claim_is_claimed_with_its_new_input(database: Database) -> None:
    unique = Unique("k", OnConflict.REPLACE)
    async with claiming(database, start("second", input="1", unique=unique)) as (held, task):
        await database.store.enqueue([start(input="2", unique=unique)])
        await held.commit()
        assert [(claim.id, claim.input) for claim in await task] == [("first", "null"), ("second", "2")]


async def test_a_run_that_another_one_had_during_a_claim_is_claimed_with_its_checkpoints(database: Database) -> None:
    bob = await worker(database.store)
    async with claiming(database, start("second")) as (held, task):
        there = held.worker(bob)
        claim = await there.claim_one()
        await there.exchange(saves=[save(claim, checkpoint("step:1"))], settles=[settle(claim, To.RELEASE)])
        await held.commit()
        first, second = await task
        assert (first.id, second.id, [each.key for each in second.checkpoints]) == ("first", "second", ["step:1"])
