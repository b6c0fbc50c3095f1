"""A sandbox on a store of several partitions, whose wake-ups come too late to count."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from perdure import App, wait_signal
from perdure.errors import RunCancelled
from perdure.stores import open_store
from perdure.stores.base import Store, Topic
from perdure.stores.redis import listen
from perdure.stores.redis.url import Location
from perdure.testing import Sandbox, VirtualClock
from servers.redis import cluster_url

PARTITIONS = 8
RUNS = 3 * PARTITIONS

pytestmark = pytest.mark.anyio

app = App("sqlite:////nowhere/at/all.db")  # a sandbox never opens it


@app.workflow
async def listener() -> int:
    return await wait_signal("go", int)


@app.workflow
async def waiter(target: str) -> str:
    try:
        await app.run(target).result()
    except RunCancelled:
        return "was cancelled"
    return "has ended"


@pytest.fixture
def sandbox(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    """One in which no worker hears of which partition has work."""
    hear = listen.subscribe

    def hear_no_work(
        location: Location,
        topic: str,
        wake: Callable[[], None],
        on_message: Callable[[bytes, int], None] | None = None,
    ) -> Awaitable[listen.ChannelSubscription]:
        if topic == Topic.WORK:
            return hear(location, topic, lambda: None, lambda *_: None)
        return hear(location, topic, wake, on_message)

    def open_cluster(clock: VirtualClock) -> Store:
        return open_store(cluster_url(request.node.nodeid, PARTITIONS), now=clock.now)

    monkeypatch.setattr(listen, "subscribe", hear_no_work)
    return Sandbox(app, VirtualClock(), open=open_cluster)


async def test_settling_takes_in_what_clients_did_in_any_partition(sandbox: Sandbox) -> None:
    async with sandbox:
        runs = [await listener.options(id=f"listener-{n}").start() for n in range(RUNS)]
        await sandbox.settle()
        assert {(await run.status()).state for run in runs} == {"waiting"}
        for run in runs:
            await run.signal("go", 1)
            await sandbox.settle()
            assert (await run.status()).state == "succeeded"


async def test_settling_takes_in_what_partitions_tell_one_another(sandbox: Sandbox) -> None:
    async with sandbox:
        target = await listener.options(id="target", delay=3600).start()
        runs = [await waiter.options(id=f"waiter-{n}").start(target.id) for n in range(RUNS)]
        await sandbox.settle()
        assert {(await run.status()).state for run in runs} == {"waiting"}
        await target.cancel("enough")
        await sandbox.settle()
        assert {(await run.status()).state for run in runs} == {"succeeded"}
