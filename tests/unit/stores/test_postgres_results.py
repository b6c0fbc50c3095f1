"""Results that come with the notification that a run has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from perdure.model import Ended, Start, State
from perdure.stores.base import Registration, Topic
from perdure.stores.exchange import Claim, Exchange, Settle, To
from perdure.stores.postgres import PostgresStore
from perdure.stores.postgres.listen import channel
from perdure.stores.postgres.url import parse_url
from perdure.stores.shared import results
from servers.postgres import Postgres, store_schema

PATIENCE = 30


class Scene:
    """A client that listens, and a worker."""

    def __init__(self, store: PostgresStore, other: PostgresStore) -> None:
        self.store, self.other = store, other
        self.woken = asyncio.Event()
        self.worker = self.serial = 0

    async def start(self, *run_ids: str) -> None:
        await self.store.enqueue([Start(id=run_id, workflow="f", queue="q", input="1") for run_id in run_ids])

    async def claim(self) -> list[Claim]:
        self.serial += 1
        return (await self.other.exchange(Exchange(self.worker, self.serial, slots=200))).claims

    async def end(self, body: str) -> None:
        """Ends what is queued, in one exchange."""
        settles = [Settle(claim.ref, claim.token, To.SUCCEEDED, body) for claim in await self.claim()]
        self.serial += 1
        await self.other.exchange(Exchange(self.worker, self.serial, settles=settles))

    async def hears(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self.woken.wait()
        self.woken.clear()

    async def asks(self, *run_ids: str) -> tuple[list[Ended], int]:
        """What the store says of runs, and in how many calls."""
        before = self.store.calls
        return await self.store.ended(run_ids), self.store.calls - before


@pytest.fixture
async def scene(postgres: Postgres, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    monkeypatch.setattr(results, "_TRUSTED", 3600.0)
    monkeypatch.setattr(results, "_KEPT", 3600.0)
    postgres.run(store_schema(postgres_url), url=postgres_url)
    store, other = (PostgresStore(parse_url(postgres_url)) for _ in range(2))
    scene = Scene(store, other)
    await store.open()
    await other.open()
    scene.worker = await other.register(
        Registration(name="w", host="", pid=0, queues=["q"], workflows=["f"], concurrency=200, lease=60_000)
    )
    subscription = await store.subscribe(Topic.ENDED, scene.woken.set)
    yield scene
    await subscription.close()
    await store.close()
    await other.close()


@pytest.mark.anyio
async def test_of_a_run_that_was_started_here_nobody_has_to_ask(scene: Scene) -> None:
    await scene.start("a")
    assert await scene.asks("a") == ([], 0)
    before = scene.store.calls
    assert await scene.store.missing(["a"]) == [] and scene.store.calls == before
    await scene.end("7")
    await scene.hears()
    assert await scene.asks("a") == ([Ended("a", State.SUCCEEDED, "7")], 0)
    # Who asks once more, such as another one that waits for it, is not put off.
    assert await scene.asks("a") == ([Ended("a", State.SUCCEEDED, "7")], 1)


@pytest.mark.anyio
async def test_a_run_that_another_one_started_is_asked_for_once(scene: Scene) -> None:
    await scene.other.enqueue([Start(id="a", workflow="f", queue="q", input="1")])
    assert await scene.asks("a") == ([], 1)
    assert await scene.asks("a") == ([], 0)
    await scene.end("null")
    await scene.hears()
    assert await scene.asks("a") == ([Ended("a", State.SUCCEEDED, "null")], 0)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("runs", "body"), [(1, '"' + "x" * 9_000 + '"'), (3, '"' + "x" * 3_000 + '"'), (64, '"' + "x" * 100 + '"')]
)
async def test_what_does_not_fit_is_asked_for(scene: Scene, runs: int, body: str) -> None:
    run_ids = [f"run {number}" for number in range(runs)]
    await scene.start(*run_ids)
    await scene.end(body)
    await scene.hears()
    ended, calls = await scene.asks(*run_ids)
    assert sorted(each.id for each in ended) == sorted(run_ids)
    assert {each.body for each in ended} == {body} and calls == 1


@pytest.mark.anyio
async def test_a_run_that_is_cancelled_is_told_of_as_well(scene: Scene) -> None:
    await scene.start("a")
    await scene.other.cancel("a", "enough")
    await scene.hears()
    assert await scene.asks("a") == ([Ended("a", State.CANCELLED, '"enough"')], 0)


@pytest.mark.anyio
async def test_results_are_told_where_only_those_hear_them_who_may_read_them(
    scene: Scene, postgres: Postgres, postgres_url: str
) -> None:
    await scene.start("a")
    await scene.asks("a")
    said = '[["a","succeeded","666",false]]'
    postgres.run(f"SELECT pg_notify('{channel('perdure')}', 'e{said}')", url=postgres_url)
    await scene.hears()
    assert await scene.asks("a") == ([], 1)  # on a channel that everybody knows it is a hint, and no more
    (secret,) = postgres.run("SELECT channel FROM perdure.confidential", url=postgres_url)
    assert secret[0] != channel("perdure") and len(secret[0]) == len("perdure_") + 32


@pytest.mark.anyio
async def test_what_is_deleted_or_tried_again_is_not_believed_to_be_as_it_was(scene: Scene) -> None:
    await scene.start("a", "b")
    await scene.end("1")
    await scene.hears()
    await scene.store.delete("a")
    assert await scene.store.missing(["a", "b"]) == ["a"]
    assert await scene.asks("a") == ([], 1)
    await scene.store.cancel("b", "late")
    assert await scene.asks("b") == ([Ended("b", State.SUCCEEDED, "1")], 0)
