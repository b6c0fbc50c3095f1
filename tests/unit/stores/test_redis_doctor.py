"""What `perdure doctor` finds at servers that are well, and at those that are not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from perdure.errors import StoreUnavailable
from perdure.model import Start
from perdure.stores import open_store
from perdure.stores.base import Finding, Severity
from perdure.stores.redis import doctor
from perdure.stores.redis.doctor import clocks, distance, examine
from perdure.stores.redis.url import parse_url
from servers import redis as servers
from servers.redis import RedisServer, installed, own_server, with_login

PATIENCE = 30

pytestmark = pytest.mark.anyio


@pytest.fixture(params=installed())
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with own_server({"maxmemory": "1gb"}, kind=request.param, durable=True) as made:
        yield made


async def found(url: str, says: str) -> Finding:
    """The one finding that says something."""
    findings = [each for each in await examine(parse_url(url)) if says in each.what]
    assert len(findings) == 1, findings
    return findings[0]


async def test_a_server_that_is_well(server: RedisServer) -> None:
    findings = await examine(parse_url(server.url))
    assert {each.severity for each in findings} == {Severity.OK}
    texts = "\n".join(each.what for each in findings)
    for says in [
        *("all rights that are needed", "clocks", "a round trip takes", "nothing is evicted", "of memory are used"),
        *("an append-only file", "no replicas", "connections are in use", "wake-ups come through"),
    ]:
        assert says in texts
    assert findings[0].what.startswith(("Redis 7", "Redis 8", "Valkey "))


async def test_eviction(server: RedisServer) -> None:
    server.run("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    finding = await found(server.url, "maxmemory-policy is allkeys-lru")
    assert finding.severity is Severity.PROBLEM
    server.run("CONFIG", "SET", "maxmemory", 0)
    assert (await found(server.url, "maxmemory-policy is allkeys-lru")).severity is Severity.WARNING
    assert (await found(server.url, "without a limit")).severity is Severity.OK


async def test_memory_that_is_nearly_full(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_FULL", 0.0001)
    assert (await found(server.url, "starts are refused when it is full")).severity is Severity.WARNING


async def test_what_is_kept_on_disk(server: RedisServer) -> None:
    server.run("CONFIG", "SET", "appendfsync", "everysec")
    assert (await found(server.url, "a crash of the machine loses the last one")).severity is Severity.OK
    server.run("CONFIG", "SET", "appendfsync", "no")
    assert (await found(server.url, "appendfsync is no")).severity is Severity.WARNING
    server.run("CONFIG", "SET", "appendonly", "no")
    assert (await found(server.url, "nothing is kept on disk")).severity is Severity.PROBLEM
    server.run("CONFIG", "SET", "save", "3600 1")
    assert (await found(server.url, "only snapshots are kept on disk")).severity is Severity.WARNING


async def test_replicas(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"{server.url}?durability=replicated&replicas=2"
    with servers.replica(server) as follower:
        follower.wait_until_following()
        async with asyncio.timeout(PATIENCE):
            while b"state=online" not in server.run("INFO", "replication"):
                await asyncio.sleep(0.01)
        assert (await found(server.url, "1 replicas, which follow")).severity is Severity.OK
        finding = await found(url, "asks for 2 replicas that have each write, and 1 follow")
        assert finding.severity is Severity.PROBLEM
        monkeypatch.setattr(doctor, "_LATE", 0)
        assert (await found(server.url, "a failover to it loses")).severity is Severity.WARNING


async def test_replicas_that_have_no_file() -> None:
    with own_server(kind="valkey", durable=True) as server, servers.replica(server) as follower:
        url = f"{server.url}?durability=fsync&replicas=1"
        follower.wait_until_following()
        async with asyncio.timeout(PATIENCE):
            while b"state=online" not in server.run("INFO", "replication"):
                await asyncio.sleep(0.01)
        follower.run("CONFIG", "SET", "appendonly", "no")
        finding = await found(url, "asks for 1 replicas that have each write on their disk, and 0 of 1 have")
        assert finding.severity is Severity.PROBLEM
        store = open_store(f"{url}&wait_timeout=50")
        await store.open()
        with pytest.raises(StoreUnavailable, match="on the disks of 0 of the 1 replicas that the URL asks for"):
            await store.enqueue([Start("r", "leaf", "default", "{}")])
        await store.close()
        follower.run("CONFIG", "SET", "appendonly", "yes")
        assert not [each for each in await examine(parse_url(url)) if "on their disk" in each.what]


async def test_what_a_user_may_not_do_is_no_crash(server: RedisServer) -> None:
    server.run("ACL", "SETUSER", "ann", "on", ">pw", "~{perdure}*", "&*", "+hello", "-@dangerous")
    url = with_login(server.url, "ann", "pw")
    for command in ("eval", "info", "time", "ping"):
        finding = await found(url, f"this user lacks the command {command}")
        assert (finding.severity, f"ACL SETUSER ann +{command}" in finding.advice) == (Severity.OK, True)
    server.run("ACL", "SETUSER", "ann", "+eval", "+fcall", "+subscribe", "+publish")
    finding = await found(url, "lacks commands")
    assert finding.severity is Severity.PROBLEM
    assert "+function|load" in finding.advice and "+unsubscribe" in finding.advice and "fcall" not in finding.advice
    server.run("ACL", "SETUSER", "ann", "+@all", "-config")
    assert (await found(url, "lacks the command config|get")).severity is Severity.OK
    assert (await found(url, "an append-only file")).severity is Severity.OK
    server.run("ACL", "SETUSER", "ann", "resetchannels")
    assert (await found(url, "no wake-ups come through")).severity is Severity.WARNING
    server.run("ACL", "SETUSER", "ann", "resetkeys", "~other*")
    assert "~{perdure}*" in (await found(url, "this user lacks keys")).advice


async def test_a_cluster_is_looked_at_node_by_node() -> None:
    with servers.cluster() as cluster:
        findings = await examine(parse_url(cluster.url))
        for node in cluster.primaries:
            assert f"node 127.0.0.1:{node.port}: all rights that are needed" in {each.what for each in findings}
        assert findings[-1].what == "wake-ups come through"


async def test_a_server_that_is_not_there(server: RedisServer) -> None:
    server.kill9()
    with pytest.raises(StoreUnavailable, match="can't be reached"):
        await examine(parse_url(server.url))


def test_clocks_and_distance() -> None:
    assert clocks(1000, 1005, 1003).severity is Severity.OK
    assert "9 s apart" in clocks(10_000, 10_005, 1_000).what
    assert clocks(10_000, 10_005, 20_000).severity is Severity.WARNING
    assert distance(0.0005).severity is Severity.OK
    assert "takes 12.00 ms" in distance(0.012).what
