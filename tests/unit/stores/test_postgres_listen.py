"""Wake-ups by LISTEN, and leases, in the background of a process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator

import pytest
from msgspec.structs import replace

from perdure.errors import StoreError, StoreUnavailable, StoreUrlError
from perdure.stores import open_store
from perdure.stores.base import Severity, Topic
from perdure.stores.postgres import listen
from perdure.stores.postgres.keeper import LeaseKeeper
from perdure.stores.postgres.listen import ChannelSubscription, channel, hears, subscribe
from perdure.stores.postgres.url import Location, parse_url
from servers.postgres import Postgres, PostgresServer, free_port, own_server

PATIENCE = 30


@pytest.fixture
def location(postgres_url: str) -> Location:
    return parse_url(f"{postgres_url}?schema=public")


@pytest.fixture
def own() -> Iterator[PostgresServer]:
    server = own_server()
    server.start()
    yield server
    server.remove()


class Ear:
    """A subscriber."""

    def __init__(self) -> None:
        self.woken = asyncio.Event()

    async def hears(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self.woken.wait()
        self.woken.clear()


@pytest.fixture
async def ear(location: Location) -> AsyncIterator[Ear]:
    ear = Ear()
    subscription = await subscribe(location, Topic.WORK, ear.woken.set)
    yield ear
    await subscription.close()


def notify(postgres: Postgres, location: Location, payload: str) -> None:
    postgres.run(f"SELECT pg_notify('perdure_' || left(md5(current_schema()), 16), '{payload}')", url=location.url)


async def listeners(postgres: Postgres, location: Location, count: int) -> None:
    """Waits until so many sessions are connected to the database of a store."""
    database = location.url.rpartition("/")[2]
    async with asyncio.timeout(PATIENCE):
        while len(postgres.run(f"SELECT 1 FROM pg_stat_activity WHERE datname = '{database}'")) != count:
            await asyncio.sleep(0.01)


@pytest.mark.anyio
async def test_each_topic_wakes_its_subscribers(ear: Ear, postgres: Postgres, location: Location) -> None:
    ended = Ear()
    subscription = await subscribe(location, Topic.ENDED, ended.woken.set)
    notify(postgres, location, "w")
    await ear.hears()
    assert not ended.woken.is_set()
    notify(postgres, location, "e some run")
    await ended.hears()
    assert not ear.woken.is_set()
    notify(postgres, location, "?")
    notify(postgres, location, "")
    notify(postgres, location, "w")
    await ear.hears()
    await subscription.close()


@pytest.mark.anyio
async def test_one_connection_for_all_subscribers_of_a_process(
    ear: Ear, postgres: Postgres, location: Location
) -> None:
    async def elsewhere() -> None:
        other = Ear()
        subscription = await subscribe(location, Topic.WORK, other.woken.set)
        await listeners(postgres, location, 1)
        notify(postgres, location, "w")
        await other.hears()
        await subscription.close()

    await asyncio.to_thread(lambda: asyncio.run(elsewhere()))
    await ear.hears()


@pytest.mark.anyio
async def test_the_connection_ends_with_the_last_subscriber(postgres: Postgres, location: Location) -> None:
    subscriptions = [await subscribe(location, Topic.STATUS, lambda: None) for _ in range(3)]
    for subscription in subscriptions:
        await listeners(postgres, location, 1)
        await subscription.close()
        await subscription.close()
    await listeners(postgres, location, 0)


@pytest.mark.anyio
async def test_schemas_do_not_hear_each_other(ear: Ear, postgres: Postgres, location: Location) -> None:
    assert channel("public") != channel("perdure")
    postgres.run(f"SELECT pg_notify('{channel('perdure')}', 'w')", url=location.url)
    notify(postgres, location, "e")
    await asyncio.sleep(0)
    assert not ear.woken.is_set()


@pytest.mark.anyio
async def test_a_cut_connection_comes_back_and_wakes_everybody(
    ear: Ear, postgres: Postgres, location: Location, caplog: pytest.LogCaptureFixture
) -> None:
    database = location.url.rpartition("/")[2]
    postgres.run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'")
    await ear.hears()
    notify(postgres, location, "w")
    await ear.hears()
    said = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert any("no wake-ups from" in line for line in said) and any("are back" in line for line in said)


@pytest.mark.anyio
async def test_a_server_that_comes_later(own: PostgresServer) -> None:
    own.stop()
    ear = Ear()
    subscription = await subscribe(parse_url(f"{own.url}?schema=public"), Topic.WORK, ear.woken.set)
    own.start()
    await ear.hears()
    notify(own, parse_url(own.url), "w")
    await ear.hears()
    await subscription.close()


@pytest.mark.anyio
async def test_a_silent_connection_is_tried(ear: Ear, own: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen, "_BEAT", 0.05)
    monkeypatch.setattr(listen, "_PATIENCE", 0.2)
    other = Ear()
    subscription = await subscribe(parse_url(f"{own.url}?connect_timeout=1"), Topic.WORK, other.woken.set)
    own.freeze()
    async with asyncio.timeout(PATIENCE):
        while not listen._listeners[subscription._key]._silent:
            await asyncio.sleep(0.01)
    own.freeze(frozen=False)
    await other.hears()
    await subscription.close()


@pytest.mark.anyio
async def test_the_doctor_can_tell_whether_notifications_come(location: Location, postgres: Postgres) -> None:
    assert await hears(location)


@pytest.mark.anyio
async def test_a_way_for_wake_ups_that_leads_elsewhere_is_named(
    location: Location, postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    """Or a worker would wait for what nobody says there, and a migration would make a schema there."""
    elsewhere = postgres.database()
    store = open_store(f"{location.url}?listen={elsewhere.replace('postgres@', 'postgres:secret@')}")
    name = elsewhere.rpartition("/")[2]
    says = f"has a ?listen=… that leads to another database, {name!r} of {elsewhere}: it has to lead to the same one"
    with pytest.raises(StoreUrlError) as caught:
        await store.migrate()
    assert says in str(caught.value)
    assert any(says in finding.what and finding.severity is Severity.PROBLEM for finding in await store.check())
    subscription = await store.subscribe(Topic.WORK, lambda: None)
    assert says in caplog.text and "secret" not in caplog.text
    await subscription.close()
    await store.close()
    assert postgres.run("SELECT 1 FROM pg_namespace WHERE nspname = 'perdure'", url=elsewhere) == []
    postgres.drop(elsewhere)


@pytest.mark.anyio
async def test_a_way_for_wake_ups_that_is_shut_is_named(location: Location, caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    store = open_store(f"{location.url}?listen=postgresql://ann:secret@127.0.0.1:{port}/shop")
    says = f"the store postgresql://ann@127.0.0.1:{port}/shop can't be reached"
    with pytest.raises(StoreUnavailable, match=says):
        await store.migrate()
    assert any(says in finding.what for finding in await store.check() if finding.what.startswith("wake-ups can't"))
    subscription = await store.subscribe(Topic.WORK, lambda: None)
    assert says in caplog.text and "secret" not in caplog.text
    await subscription.close()
    await store.close()


@pytest.mark.anyio
async def test_a_way_for_wake_ups_that_leads_to_the_same_database(postgres: Postgres, location: Location) -> None:
    other = replace(location, listen=location.url.replace("127.0.0.1", "localhost"))
    assert await hears(other)
    ear = Ear()
    subscription = await subscribe(other, Topic.WORK, ear.woken.set)
    await listeners(postgres, location, 1)
    notify(postgres, location, "w")
    await ear.hears()
    await subscription.close()


@pytest.mark.anyio
async def test_many_notifications_are_one_wake_up() -> None:
    calls: list[int] = []
    subscription = ChannelSubscription(
        asyncio.get_running_loop(), Topic.WORK, lambda: calls.append(1), ("", None, "", 0)
    )
    for _ in range(100):
        subscription.wake()
    await asyncio.sleep(0)
    assert calls == [1]
    subscription.wake()
    await asyncio.sleep(0)
    assert calls == [1, 1]


# --- leases


@pytest.fixture
def keeper(postgres: Postgres, location: Location) -> Iterator[LeaseKeeper]:
    postgres.run("CREATE TABLE worker (id bigint PRIMARY KEY, lease bigint)", url=location.url)
    postgres.run("INSERT INTO worker VALUES (7, 0)", url=location.url)
    postgres.run(
        "CREATE FUNCTION renew(clock bigint, worker bigint, lease bigint) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN "
        "UPDATE public.worker SET lease = $3 WHERE id = $2; RETURN FOUND; END $$",
        url=location.url,
    )
    keeper = LeaseKeeper(location, 7, 40_000)
    yield keeper
    keeper.close()


@pytest.mark.anyio
async def test_a_lease_is_renewed_from_any_thread(keeper: LeaseKeeper, postgres: Postgres, location: Location) -> None:
    assert keeper.renew()  # also from one in which an event loop runs
    assert await asyncio.to_thread(keeper.renew)
    assert postgres.run("SELECT lease FROM worker", url=location.url) == [(40_000,)]
    postgres.run("DELETE FROM worker", url=location.url)
    assert not keeper.renew()
    keeper.close()
    await listeners(postgres, location, 0)


def test_a_renewal_whose_connection_was_ended_connects_anew(
    keeper: LeaseKeeper, postgres: Postgres, location: Location
) -> None:
    assert keeper.renew()
    database = location.url.rpartition("/")[2]
    for _ in range(3):
        postgres.run(f"SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity WHERE datname = '{database}'")
        assert keeper.renew()
    postgres.run("DROP FUNCTION renew", url=location.url)
    with pytest.raises(StoreError, match="run `perdure migrate`"):
        keeper.renew()


def test_a_renewal_gives_up_well_before_the_lease_ends(own: PostgresServer) -> None:
    keeper = LeaseKeeper(parse_url(own.url), 7, 100)
    own.freeze()
    with pytest.raises(StoreUnavailable, match="did not answer in time"):
        keeper.renew()
    own.freeze(frozen=False)
    keeper.close()
