"""Steps that commit their effect and their checkpoint together, by the driver that they use."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, closing, contextmanager
from typing import Any, cast

import asyncpg
import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from perdure import App, Retry, State, step
from perdure.errors import DefinitionError, RunFailed, kept_type
from perdure.model import Checkpoint, Kind, Outcome, Start
from perdure.stores.base import Registration, joining
from perdure.stores.exchange import Claim, Exchange, Save
from servers.drivers import ASYNC, SYNC, Transaction
from servers.postgres import migrated_postgres

pytestmark = pytest.mark.anyio


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    url = migrated_postgres(request.node.nodeid)
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE effect (note text)")
    return url


@pytest.fixture
async def app(url: str) -> AsyncGenerator[App]:
    app = App(url)
    yield app
    await app.close()


def effects(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute("SELECT note FROM effect ORDER BY note")]


def note(own: Transaction, text: str) -> Any:
    return own.run(f"INSERT INTO effect VALUES ('{text}')")


def shown(connection: Any) -> Transaction:
    """A transaction by its own means."""
    return Transaction(connection, connection.execute)


@contextmanager
def blocking(url: str) -> Generator[psycopg.Connection[Any]]:
    with psycopg.connect(url) as connection:
        yield connection


@asynccontextmanager
async def suspending(url: str) -> AsyncGenerator[asyncpg.Connection[Any]]:
    connection: asyncpg.Connection[Any] = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()


class _Once:
    """Fails the first time that it is asked to."""

    def __init__(self) -> None:
        self.left = 1

    def fail(self) -> None:
        if self.left:
            self.left -= 1
            raise ConnectionResetError("gone")


async def test_a_step_in_a_step_that_is_tried_again_is_kept_in_the_place_of_its_error(app: App, url: str) -> None:
    once = _Once()

    @step(transaction=lambda: suspending(url))
    async def inner(connection: Any) -> str:
        await connection.execute("INSERT INTO effect VALUES ('paid')")
        once.fail()
        return "paid"

    @step(retry=Retry(attempts=2, delay=0))
    async def outer() -> str:
        return await inner()

    @app.workflow
    async def buy() -> str:
        return await outer()

    async with app.worker():
        run = await buy.start()
        assert await run.result(30) == "paid"
    assert effects(url) == ["paid"]


@pytest.mark.parametrize("driver", ASYNC)
async def test_effect_and_checkpoint_of_an_async_step(driver: str, app: App, url: str) -> None:
    once, opened = _Once(), ASYNC[driver]

    @asynccontextmanager
    async def begin() -> AsyncGenerator[Any]:
        async with opened(url) as own:
            wrapped[id(own.connection)] = own
            yield own.connection

    wrapped: dict[int, Transaction] = {}

    @step(transaction=begin)
    async def pay(connection: Any, cents: int, *, to: str = "ada") -> str:
        await note(wrapped[id(connection)], f"{cents} to {to}")
        return f"paid {cents}"

    @app.workflow(retry=Retry(attempts=2, delay=0))
    async def buy(cents: int) -> str:
        first, second = await asyncio.gather(pay(cents), pay(cents + 1, to="bob"))
        once.fail()
        return f"{first}, {second}"

    async with app.worker():
        run = await buy.start(5)
        assert await run.result(10) == "paid 5, paid 6"
    assert effects(url) == ["5 to ada", "6 to bob"]
    assert sorted((each.key, each.attempts) for each in await run.history()) == [("pay", 1), ("pay#2", 1)]
    await pay(9)  # outside of a run: the same without a checkpoint
    assert effects(url) == ["5 to ada", "6 to bob", "9 to ada"]


@pytest.mark.parametrize("driver", SYNC)
async def test_effect_and_checkpoint_of_a_plain_step(driver: str, app: App, url: str) -> None:
    once, opened = _Once(), SYNC[driver]
    local = threading.local()

    @contextmanager
    def begin() -> Generator[Any]:
        with opened(url) as own:
            local.own = own
            yield own.connection

    @step(transaction=begin)
    def pay(connection: Any, cents: int) -> str:
        note(local.own, str(cents))
        return f"paid {cents}"

    @app.workflow(retry=Retry(attempts=2, delay=0))
    def buy(cents: int) -> str:
        paid = pay(cents).wait()
        once.fail()
        return paid

    async with app.worker():
        assert await buy.run(5) == "paid 5"
    assert effects(url) == ["5"]


@pytest.mark.parametrize("is_async", [True, False])
async def test_what_fails_leaves_no_effect(is_async: bool, app: App, url: str) -> None:
    tries: list[int] = []

    def attempt() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise ValueError("no money")

    @step(transaction=lambda: suspending(url), retry=Retry(attempts=3, delay=0))
    async def pay(connection: asyncpg.Connection[Any]) -> int:
        await connection.execute("INSERT INTO effect VALUES ('a')")
        attempt()
        return len(tries)

    @step(transaction=lambda: blocking(url), retry=Retry(attempts=3, delay=0))
    def pay_in_thread(connection: psycopg.Connection[Any]) -> int:
        connection.execute("INSERT INTO effect VALUES ('a')")
        attempt()
        return len(tries)

    @step(transaction=lambda: suspending(url))
    async def fail(connection: asyncpg.Connection[Any]) -> object:
        await connection.execute("INSERT INTO effect VALUES ('b')")
        return object()

    @app.workflow
    async def buy() -> int:
        return await (pay() if is_async else pay_in_thread())

    @app.workflow
    async def break_() -> None:
        await fail()

    async with app.worker():
        assert await buy.run() == 3
        with pytest.raises(RunFailed, match="can't be written as JSON"):
            await break_.run()
    assert effects(url) == ["a"]


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("committed", [True, False])
async def test_the_reply_to_a_commit_is_lost(is_async: bool, committed: bool, app: App, url: str) -> None:
    @asynccontextmanager
    async def begin() -> AsyncGenerator[asyncpg.Connection[Any]]:
        connection: asyncpg.Connection[Any] = await asyncpg.connect(url)
        transaction = connection.transaction()
        await transaction.start()
        yield connection
        await (transaction.commit() if committed else transaction.rollback())
        await connection.close()
        raise ConnectionResetError("the reply is lost")

    @contextmanager
    def begin_in_thread() -> Generator[psycopg.Connection[Any]]:
        with psycopg.connect(url) as connection:
            yield connection
            (connection.commit if committed else connection.rollback)()
        raise ConnectionResetError("the reply is lost")

    @step(transaction=begin)
    async def pay(connection: asyncpg.Connection[Any]) -> str:
        await connection.execute("INSERT INTO effect VALUES ('a')")
        return "paid"

    @step(transaction=begin_in_thread)
    def pay_in_thread(connection: psycopg.Connection[Any]) -> str:
        connection.execute("INSERT INTO effect VALUES ('a')")
        return "paid"

    @app.workflow
    async def buy() -> str:
        return await (pay() if is_async else pay_in_thread())

    async with app.worker():
        if committed:
            assert await buy.run() == "paid"
        else:
            with pytest.raises(RunFailed, match="the reply is lost"):
                await buy.run()
    assert effects(url) == (["a"] if committed else [])


async def test_a_commit_that_the_server_does_only_later(app: App, url: str) -> None:
    pending: list[tuple[asyncpg.Connection[Any], Any]] = []
    lost = asyncio.Event()

    @asynccontextmanager
    async def begin() -> AsyncGenerator[asyncpg.Connection[Any]]:
        connection: asyncpg.Connection[Any] = await asyncpg.connect(url)
        transaction = connection.transaction()
        await transaction.start()
        yield connection
        pending.append((connection, transaction))
        lost.set()
        raise ConnectionResetError("the reply is lost")

    @step(transaction=begin, retry=Retry(attempts=5, delay=0))
    async def pay(connection: asyncpg.Connection[Any]) -> str:
        await connection.execute("INSERT INTO effect VALUES ('a')")
        return "paid"

    @app.workflow
    async def buy() -> str:
        return await pay()

    @app.workflow
    async def other() -> str:
        return "done"

    async with app.worker():
        run = await buy.start()
        await asyncio.wait_for(lost.wait(), 10)
        assert await other.run() == "done"  # The worker goes on meanwhile, and exchanges.
        assert (await run.status()).state is State.RUNNING
        (connection, transaction), *more = pending
        assert not more
        await transaction.commit()
        await connection.close()
        assert await run.result(10) == "paid"
    assert effects(url) == ["a"]


@pytest.mark.parametrize("committed", [True, False])
async def test_the_time_of_a_step_is_over_while_it_commits(committed: bool, app: App, url: str) -> None:
    @asynccontextmanager
    async def begin() -> AsyncGenerator[asyncpg.Connection[Any]]:
        connection: asyncpg.Connection[Any] = await asyncpg.connect(url)
        transaction = connection.transaction()
        await transaction.start()
        yield connection
        try:
            await asyncio.Event().wait()
        finally:
            await (transaction.commit() if committed else transaction.rollback())
            await connection.close()

    @step(transaction=begin, timeout=0.2)
    async def pay(connection: asyncpg.Connection[Any]) -> str:
        await connection.execute("INSERT INTO effect VALUES ('a')")
        return "paid"

    @app.workflow
    async def buy() -> str:
        return await pay()

    async with app.worker():
        if committed:
            assert await buy.run() == "paid"
        else:
            with pytest.raises(RunFailed, match="took longer than its timeout"):
                await buy.run()
    assert effects(url) == (["a"] if committed else [])


async def test_nothing_overtakes_a_commit_that_is_under_way(app: App, url: str) -> None:
    """What the code sees first is also what replay delivers first."""
    keeping, done = asyncio.Event(), asyncio.Event()
    seen: list[str] = []

    @asynccontextmanager
    async def begin() -> AsyncGenerator[asyncpg.Connection[Any]]:
        async with suspending(url) as connection:
            yield connection
            keeping.set()
            await done.wait()

    @step(transaction=begin)
    async def pay(connection: asyncpg.Connection[Any]) -> str:
        return "pay"

    @step
    async def look() -> str:
        await keeping.wait()
        asyncio.get_running_loop().call_later(0.3, done.set)
        return "look"

    @app.workflow(retry=Retry(attempts=2, delay=0))
    async def race() -> list[str]:
        came = [await each for each in asyncio.as_completed([look(), pay()])]
        seen.append(",".join(came))
        if len(seen) == 1:
            raise ConnectionResetError
        return came

    async with app.worker():
        assert await race.run() == ["pay", "look"]
    assert seen == ["pay,look", "pay,look"]


# --- what the store promises


def _worker(name: str, lease: int = 60_000) -> Registration:
    return Registration(name=name, host="h", pid=1, queues=["default"], workflows=["buy"], concurrency=1, lease=lease)


async def _claimed(app: App, lease: int = 60_000) -> Claim:
    store = await app.client.store()
    await store.enqueue([Start("r", "buy", "default", "{}")])
    worker = await store.register(_worker("w", lease))
    return (await store.exchange(Exchange(worker, 1, slots=1))).claims[0]


def _save(claim: Claim, body: str = "1") -> Save:
    return Save(claim.ref, claim.token, Checkpoint("pay", Kind.STEP, Outcome.OK, body, digest="d"))


async def test_an_open_transaction_keeps_the_worker_but_not_its_exchanges(app: App, url: str) -> None:
    claim = await _claimed(app, lease=1)
    store = await app.client.store()
    while await store.workers():  # whose lease has not ended
        await asyncio.sleep(0.01)
    async with suspending(url) as connection:
        kept = await joining(store).within(connection).keep(_save(claim))
        assert kept.transaction and not kept.refused
        assert not await joining(store).is_over(kept.transaction)
        assert (await asyncio.wait_for(store.reclaim(), 4)).count == 0
        reply = await asyncio.wait_for(store.exchange(Exchange(claim.token >> 40, 2, slots=1)), 4)
        assert not reply.gone
        await store.cancel("r", "because")  # may be asked for
    assert await joining(store).is_over(kept.transaction)
    assert (await store.reclaim()).count == 1
    assert [each.body for each in await store.history("r")] == ["1"]


async def test_a_transaction_that_nobody_goes_on_with_is_ended_by_the_server(app: App, url: str) -> None:
    claim = await _claimed(app, lease=40_000)
    joined = joining(await app.client.store())
    bound = "SELECT setting::int FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'"
    async with suspending(url) as connection:
        await joined.within(connection).keep(_save(claim))
        assert 40_000 < await connection.fetchval(bound) <= 80_000
        await connection.execute("ROLLBACK")
        assert await connection.fetchval(bound) == 0, "it is of that transaction alone"
        await connection.execute("SET idle_in_transaction_session_timeout = '3s'")
        await connection.execute("BEGIN")
        await joined.within(connection).keep(_save(claim))
        assert await connection.fetchval(bound) == 3_000, "the application's own is shorter"
    assert [each.body for each in await (await app.client.store()).history("r")] == ["1"]


async def test_of_two_the_second_waits_and_gives_way(app: App, url: str) -> None:
    claim = await _claimed(app)
    joined = joining(await app.client.store())
    async with suspending(url) as first, suspending(url) as second:
        await joined.within(first).keep(_save(claim))
        waits = asyncio.create_task(joined.within(second).keep(_save(claim, "2")))
        async with suspending(url) as third:
            while not await third.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
                await asyncio.sleep(0.01)
        await first.execute("COMMIT")
        assert (await waits).refused == "kept"
        await first.execute("BEGIN")
    assert [each.body for each in await (await app.client.store()).history("r")] == ["1"]


async def test_only_the_claim_that_owns_the_run_may(app: App, url: str) -> None:
    claim = await _claimed(app)
    store = await app.client.store()
    await store.bury("w")
    async with suspending(url) as connection:
        assert (await joining(store).within(connection).keep(_save(claim))).refused == "lost"
    await store.register(_worker("v"))
    async with suspending(url) as connection:
        assert (await joining(store).within(connection).keep(_save(claim))).refused == "lost"
    assert await store.history("r") == []


async def test_a_step_that_waits_for_another_try_is_replaced_and_counts_as_progress(app: App, url: str) -> None:
    claim = await _claimed(app)
    store = await app.client.store()
    await store.bury("w")
    worker = await store.register(_worker("v"))
    again = (await store.exchange(Exchange(worker, 1, slots=1))).claims[0]
    assert (again.ref, again.crashes) == (claim.ref, 1)
    opened = Save(again.ref, again.token, Checkpoint("pay", Kind.STEP, Outcome.OPEN, "1", digest="d"))
    await store.exchange(Exchange(worker, 2, saves=[opened]))
    async with suspending(url) as connection:
        assert not (await joining(store).within(connection).keep(_save(again))).refused
    await store.exchange(Exchange(worker, 3))
    record = await store.load("r")
    assert record is not None and record.crashes == 0
    assert [(each.outcome, each.body) for each in await store.history("r")] == [(Outcome.OK, "1")]


# --- what can't be


async def test_definitions_that_can_not_work(url: str) -> None:
    with pytest.raises(DefinitionError, match="it gets the connection as its first argument"):

        @cast("Any", step(transaction=lambda: blocking(url)))
        def without() -> None: ...

    with pytest.raises(DefinitionError, match="is a function that opens a transaction"):

        @step(transaction=5)  # pyright: ignore[reportCallIssue, reportArgumentType]
        def wrong(connection: Any) -> None: ...

    with pytest.raises(DefinitionError, match="leave out process="):
        step(transaction=lambda: blocking(url), process=True)  # pyright: ignore[reportCallIssue]


async def test_the_transaction_has_to_be_of_the_steps_kind(app: App, url: str) -> None:
    @step(transaction=lambda: blocking(url))
    async def pay(connection: Any) -> None: ...

    @step(transaction=lambda: suspending(url))
    def pay_in_thread(connection: Any) -> None: ...

    @app.workflow
    async def buy(plain: bool) -> None:
        await (pay_in_thread() if plain else pay())

    async with app.worker():
        with pytest.raises(RunFailed, match="has to give an async context manager"):
            await buy.run(plain=False)
        with pytest.raises(RunFailed, match="has to give a plain context manager"):
            await buy.run(plain=True)


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_transaction_that_is_not_committed_at_its_end(is_async: bool, app: App, url: str) -> None:
    """Like `transaction=sessions`, where it is to be `sessions.begin`."""
    tries: list[int] = []

    @asynccontextmanager
    async def connect() -> AsyncGenerator[asyncpg.Connection[Any]]:
        connection: asyncpg.Connection[Any] = await asyncpg.connect(url)
        try:
            await connection.execute("BEGIN")
            yield connection
        finally:
            await connection.close()

    @contextmanager
    def connect_in_thread() -> Generator[psycopg.Connection[Any]]:
        with closing(psycopg.connect(url)) as connection:
            yield connection

    @step(transaction=connect, retry=Retry(attempts=3, delay=0))
    async def pay(connection: asyncpg.Connection[Any]) -> None:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("try again")
        await connection.execute("INSERT INTO effect VALUES ('a')")

    @step(transaction=connect_in_thread, retry=Retry(attempts=3, delay=0))
    def pay_in_thread(connection: psycopg.Connection[Any]) -> None:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("try again")
        connection.execute("INSERT INTO effect VALUES ('a')")

    @app.workflow
    async def buy() -> None:
        await (pay() if is_async else pay_in_thread())

    async with app.worker():
        with pytest.raises(RunFailed, match=r"was not committed .*pass sessions\.begin, not sessions") as caught:
            await buy.run()
    assert caught.value.info.type == kept_type(DefinitionError)
    assert (effects(url), tries) == ([], [1, 1])


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_without_a_transaction_nothing_is_called(driver: str, app: App, url: str) -> None:
    tries: list[int] = []

    @asynccontextmanager
    async def connect() -> AsyncGenerator[asyncpg.Connection[Any]]:
        connection: asyncpg.Connection[Any] = await asyncpg.connect(url)
        try:
            yield connection
        finally:
            await connection.close()

    engine = create_engine(
        url.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT", poolclass=NullPool
    )

    @step(transaction=connect, retry=Retry(attempts=3, delay=0))
    async def pay(connection: asyncpg.Connection[Any]) -> None:
        tries.append(1)

    @step(transaction=engine.begin, retry=Retry(attempts=3, delay=0))
    def pay_in_thread(connection: Any) -> None:
        tries.append(1)

    @app.workflow
    async def buy() -> None:
        await (pay() if driver == "asyncpg" else pay_in_thread())

    async with app.worker():
        with pytest.raises(RunFailed, match="has no transaction open") as caught:
            await buy.run()
    assert caught.value.info.type == kept_type(DefinitionError)
    assert tries == []


async def test_a_step_that_was_seen_to_commit_is_looked_after_no_more(
    app: App, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @step(transaction=lambda: suspending(url))
    async def pay(connection: asyncpg.Connection[Any], note: str) -> None:
        await connection.execute("INSERT INTO effect VALUES ($1)", note)

    @app.workflow
    async def buy() -> None:
        await pay("a")
        await pay("b")

    store = await app.client.store()
    looked: list[str] = []
    find = store.find

    async def watched(run_id: str, key: str) -> Checkpoint | None:
        looked.append(key)
        return await find(run_id, key)

    monkeypatch.setattr(store, "find", watched)
    async with app.worker():
        await buy.run()
        await buy.run()
    assert effects(url) == ["a", "a", "b", "b"]
    assert looked == ["pay"]


async def test_another_store_can_not(url: str) -> None:
    app = App("sqlite://")

    @step(transaction=lambda: suspending(url))
    async def pay(connection: Any) -> None:
        raise AssertionError

    @app.workflow
    async def buy() -> None:
        await pay()

    async with app, app.worker():
        with pytest.raises(RunFailed, match="transaction= needs a store on PostgreSQL"):
            await buy.run()
    assert effects(url) == []


async def test_a_transaction_that_can_not_see_who_owns_the_run_keeps_nothing(app: App, url: str) -> None:
    @asynccontextmanager
    async def begin() -> AsyncGenerator[asyncpg.Connection[Any]]:
        async with suspending(url) as connection:
            await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            yield connection

    @step(transaction=begin)
    async def pay(connection: Any) -> None:
        await connection.execute("INSERT INTO effect VALUES ('paid')")

    @app.workflow
    async def buy() -> None:
        await pay()

    async with app.worker():
        with pytest.raises(RunFailed, match="use READ COMMITTED, not REPEATABLE READ"):
            await (await buy.start()).result(10)
    assert effects(url) == []
