"""What can't be a store, or not with these rights, is refused when it is opened: each with its name, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.errors import StoreError, StoreUrlError
from perdure.model import Retention, Start
from perdure.stores import open_store
from perdure.stores.base import Registration, Topic
from perdure.stores.exchange import Exchange, Settle, To
from perdure.stores.redis import wire
from servers import redis as servers
from servers.redis import Cluster, RedisServer, installed, own_server, with_login

pytestmark = pytest.mark.anyio

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "redis.md"


@pytest.fixture(params=installed())
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with own_server(kind=request.param) as made:
        yield made


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with servers.cluster() as made:
        yield made


async def refused(url: str) -> str:
    """What is said when a store is opened that can't be."""
    store = open_store(url)
    try:
        with pytest.raises(StoreError) as caught:
            await store.open()
        return str(caught.value)
    finally:
        await store.close()


async def test_a_server_that_is_too_old(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_OLDEST", {"redis": (99, 0), "valkey": (99, 0)})
    said = await refused(server.url)
    assert said.startswith(f"the store {server.url} is on ")
    assert said.endswith("which is too old: Perdure needs Redis 7.0 or Valkey 8.0, or newer")


async def test_a_password(server: RedisServer) -> None:
    server.run("CONFIG", "SET", "requirepass", "right")
    assert "wants a password: give it in the URL, as in redis://user:password@host" in await refused(server.url)
    said = await refused(with_login(server.url, "default", "secret"))
    assert "refused the user or the password: correct them in the URL" in said and "secret" not in said
    server.url = with_login(server.url, "default", "right")
    store = open_store(server.url)
    await store.open()
    await store.close()


async def test_a_user_that_lacks_commands(server: RedisServer) -> None:
    """Those that functions call are looked at before one runs: it would be refused halfway, and leave what it wrote."""
    url = with_login(server.url, "ann", "pw")
    server.run(
        "ACL",
        "SETUSER",
        "ann",
        "on",
        ">pw",
        "~{perdure}*",
        "&{perdure}*",
        "+hello",
        "+@read",
        "+@write",
        "+pubsub|numsub",
    )
    server.run("ACL", "SETUSER", "ann", "-fcall", "-function|load", "-zadd", "-hset")
    assert "it lacks the command fcall; ACL SETUSER ann +fcall (" in await refused(url)
    server.run("ACL", "SETUSER", "ann", "+fcall")
    assert "it lacks the command function|load; ACL SETUSER ann +function|load (" in await refused(url)
    server.run("ACL", "SETUSER", "ann", "+function|load")
    said = await refused(url)
    assert "it lacks the commands hset, ping, publish, subscribe, time, unsubscribe, zadd; ACL SETUSER" in said
    assert said.endswith("+zadd '&{perdure}*'")
    server.run("ACL", "SETUSER", "ann", "+hset", "+ping", "+time", "+zadd", "+publish", "+unsubscribe")
    assert "it lacks the commands subscribe; ACL SETUSER ann +subscribe" in await refused(url)
    server.run("ACL", "SETUSER", "ann", "+subscribe")
    store = open_store(url)
    await store.open()
    await store.enqueue([Start("r", "leaf", "default", "{}")])
    await store.close()
    server.run("ACL", "SETUSER", "ann", "resetchannels")
    said = await refused(url)
    assert "it lacks the commands publish, subscribe; ACL SETUSER ann +publish +subscribe '&{perdure}*'" in said
    server.run("ACL", "SETUSER", "ann", "allchannels", "resetkeys", "~other*")
    assert "it lacks keys; ACL SETUSER ann '~{perdure}*' (" in await refused(url)


async def test_the_rights_in_the_documentation_are_enough(server: RedisServer) -> None:
    lines = re.findall(r"^ACL SETUSER (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    for line in lines:
        server.run("ACL", "SETUSER", *line.split())
    assert len(lines) == 2
    store = open_store(f"{with_login(server.url, 'shop', 'secret')}?namespace=shop")
    await store.open()
    await store.enqueue([Start("r", "leaf", "default", "{}")])
    await (await store.subscribe(Topic.WORK, lambda: None)).close()
    await store.close()


async def test_the_rights_in_the_documentation_of_a_cluster_are_enough(cluster: Cluster) -> None:
    page = PAGE.with_name("redis-cluster.md").read_text(encoding="utf-8")
    lines = re.findall(r"^ACL SETUSER (.+)$", page, re.MULTILINE)
    assert len(lines) == 2
    for node in cluster.servers:
        for line in lines:
            node.run("ACL", "SETUSER", *line.split())
    url = f"{with_login(cluster.url, 'shop', 'secret')}?namespace=shop"
    store = open_store(url)
    await store.open()
    for n in range(20):
        await store.enqueue([Start(f"r{n}", "leaf", "default", "{}")])
    await (await store.subscribe(Topic.WORK, lambda: None)).close()
    await store.close()
    for node in cluster.servers:
        node.run("ACL", "SETUSER", "shop", "-cluster|slots")
    assert "ACL SETUSER shop +cluster|slots" in await refused(
        f"{with_login(cluster.url, 'shop', 'secret')}?namespace=shop"
    )


async def test_what_is_said_to_be_enough_is(server: RedisServer) -> None:
    """A user with what the errors name one after the other, and nothing more, can do everything that a worker does."""
    url = with_login(server.url, "ann", "pw")
    server.run("ACL", "SETUSER", "ann", "on", ">pw", "-@all", "+hello")
    store = open_store(url)
    for _ in range(10):
        try:
            await store.open()
            break
        except StoreError as error:
            advice = str(error).partition("ACL SETUSER ann ")[2].partition(" (")[0]
            server.run("ACL", "SETUSER", "ann", *(right.strip("'") for right in advice.split()))
    await store.enqueue([Start("r", "leaf", "default", "{}")])
    registration = Registration(
        name="w", host="", pid=0, queues=["default"], workflows=["leaf"], concurrency=1, lease=600_000
    )
    worker = await store.register(registration)
    [claim] = (await store.exchange(Exchange(worker, 1, slots=1))).claims
    await store.exchange(Exchange(worker, 2, settles=[Settle(claim.ref, claim.token, To.SUCCEEDED, "7")]))
    assert await store.prune([Retention(count=0)], limit=10) == 1
    await store.retire(worker)
    await store.close()


async def test_kinds_of_servers_that_are_mixed_up(server: RedisServer, cluster: Cluster) -> None:
    node = cluster.url.partition("://")[2].split(",")[0]
    assert "is a node of a cluster: write redis+cluster:// instead of redis://" in await refused(f"redis://{node}")
    plain = server.url.replace("redis://", "redis+cluster://")
    assert "is one server, and no cluster: write redis:// instead of redis+cluster://" in await refused(plain)
    sentinel = server.url.replace("redis://", "redis+sentinel://")
    assert "is no sentinel; sentinels listen on another port, 26379 unless set" in await refused(f"{sentinel}/shop")


async def test_databases(server: RedisServer, cluster: Cluster) -> None:
    assert "has no such database: correct its number in the URL" in await refused(f"{server.url}/99")
    with pytest.raises(
        StoreUrlError, match=r"a cluster has no databases but 0; use \?namespace=… to tell stores apart"
    ):
        open_store(f"{cluster.url}/1")


async def test_a_policy_that_evicts(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """It is no reason to refuse: it is named when the store is opened, and by `perdure doctor`."""
    server.run("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    store = open_store(server.url)
    await store.open()
    await store.close()
    assert not caplog.records  # Without a limit none go.
    server.run("CONFIG", "SET", "maxmemory", "100mb")
    await store.open()
    assert "on a server with maxmemory-policy allkeys-lru: when its memory is full it throws away keys" in caplog.text
    [finding] = [each for each in await store.check() if "maxmemory-policy" in each.what]
    await store.close()
    assert (
        "maxmemory-policy is allkeys-lru: when memory is full the server throws away keys, and with them runs"
        in str(finding)
    )
    assert "CONFIG SET maxmemory-policy noeviction, and in the server's configuration" in finding.advice
