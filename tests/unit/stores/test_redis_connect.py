"""Calls of scripts: from any loop, through errors, to the server that has the keys, and as durable as asked for."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from perdure.errors import StoreError, StoreUnavailable
from perdure.model import Start
from perdure.stores import open_store
from perdure.stores.redis import connect, wire
from perdure.stores.redis.connect import Redis
from perdure.stores.redis.route import slot
from perdure.stores.redis.scripts import Script, libraries, ready
from perdure.stores.redis.url import parse_url
from servers import redis as servers
from servers.redis import Cluster, RedisServer, Sentinels, own_server, redis_url

PATIENCE = 30
ECHO = Script.of("echo", "return ARGV")
ADD = Script.of("add", "return redis.call('INCRBY', KEYS[1] .. ':n', ARGV[1])")
GET = Script.of("get", "return redis.call('GET', KEYS[1] .. ':n')")
DONE_BEFORE = Script.of(
    "done",
    "if ARGV[1] == 'durable' then redis.call('SET', KEYS[1] .. ':any', 1) end"
    " return redis.call('GET', KEYS[1] .. ':n')",
)
LONG = Script.of("long", "local n = 0 while n < 4e9 do n = n + 1 end")

pytestmark = pytest.mark.anyio


@pytest.fixture
async def redis() -> AsyncIterator[Redis]:
    made = Redis(parse_url(servers.redis().namespace()))
    await made.open()
    yield made
    await made.close()


@pytest.fixture
def own() -> Iterator[RedisServer]:
    with own_server() as server:
        yield server


@pytest.fixture
def durable() -> Iterator[RedisServer]:
    with own_server(durable=True) as server:
        yield server


def clients(server: servers.Redis) -> list[str]:
    """The names of those that are connected."""
    return [line.split(" name=")[1].split(" ")[0] for line in server.run("CLIENT", "LIST").decode().splitlines()]


async def until_gone(server: servers.Redis, count: int = 0) -> None:
    """Waits until only so many of ours are connected."""
    async with asyncio.timeout(PATIENCE):
        while clients(server).count("perdure") > count:
            await asyncio.sleep(0.01)


# --- replies


async def test_replies_and_any_bytes(redis: Redis) -> None:
    odd = bytes(range(256)) + b"\r\n$3\r\n"
    assert await redis.call(ECHO, odd, "ä", 7, b"") == [odd, "ä".encode(), b"7", b""]
    assert await redis.call(Script.of("kinds", "return {1, false, 'x', {2, {}}}")) == [1, None, b"x", [2, []]]
    assert await redis.call(Script.of("nothing", "return nil")) is None


async def test_calls_are_counted(redis: Redis) -> None:
    before = redis.calls
    await asyncio.gather(*(redis.call(ADD, 1) for _ in range(10)))
    assert redis.calls == before + 10


async def test_calls_side_by_side_share_a_connection(own: RedisServer) -> None:
    redis = Redis(parse_url(own.url))
    assert sorted(await asyncio.gather(*(redis.call(ADD, 1) for _ in range(100)))) == list(range(1, 101))
    assert clients(own).count("perdure") == 1
    await redis.close()
    await until_gone(own)


async def test_large_arguments_and_replies(redis: Redis) -> None:
    texts = [bytes([65 + n]) * (3 << 20) for n in range(4)]
    assert await asyncio.gather(*(redis.call(ECHO, text) for text in texts)) == [[text] for text in texts]


async def test_a_cancelled_call_leaves_the_connection_usable(own: RedisServer) -> None:
    redis = Redis(parse_url(own.url))
    await redis.open()
    own.freeze()
    call = asyncio.create_task(redis.call(ECHO, "first"))
    other = asyncio.create_task(redis.call(ECHO, "second"))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    own.freeze(frozen=False)
    assert await other == [b"second"]
    assert clients(own).count("perdure") == 1
    await redis.close()


# --- scripts


async def test_a_script_that_was_forgotten_is_loaded_again(own: RedisServer) -> None:
    redis = Redis(parse_url(own.url))
    assert await redis.call(ADD, 1) == 1
    own.run("SCRIPT", "FLUSH")
    assert sorted(await asyncio.gather(*(redis.call(ADD, 1) for _ in range(20)))) == list(range(2, 22))
    await redis.close()


async def test_a_server_that_was_opened_knows_all_functions(own: RedisServer) -> None:
    redis, other = Redis(parse_url(own.url)), Redis(parse_url(own.url))
    await asyncio.gather(redis.open(), other.open())
    assert len(own.run("FUNCTION", "LIST")) == len(libraries())
    own.run("CONFIG", "RESETSTAT")
    again = Redis(parse_url(own.url))
    await again.open()
    await again.close()
    assert b"function|load" not in own.run("INFO", "commandstats")
    own.run("FUNCTION", "FLUSH")
    await asyncio.gather(*(each.call(ready()) for each in (redis, other) for _ in range(20)))
    await redis.close()
    await other.close()


async def test_a_script_that_can_not_be_compiled(redis: Redis) -> None:
    with pytest.raises(StoreError, match="failed: ERR Error compiling script"):
        await redis.call(Script.of("bad", "return return"))


# --- loops


async def test_each_loop_has_a_connection_that_ends_with_it(own: RedisServer) -> None:
    redis = Redis(parse_url(own.url))
    assert await redis.call(ADD, 1) == 1
    assert await asyncio.to_thread(lambda: asyncio.run(redis.call(ADD, 1))) == 2
    await until_gone(own, 1)
    assert await redis.call(ADD, 1) == 3
    await redis.close()


async def test_closing_closes_what_other_loops_have(own: RedisServer) -> None:
    redis = Redis(parse_url(own.url))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(redis.call(ADD, 1), loop).result(PATIENCE)
        await redis.close()
        await until_gone(own)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE)
        loop.close()


async def test_closing_waits_for_what_is_under_way(own: RedisServer) -> None:
    redis = Redis(parse_url(own.url))
    await redis.open()
    own.freeze()
    call = asyncio.create_task(redis.call(ADD, 7))
    await asyncio.sleep(0)
    closing = asyncio.create_task(redis.close())
    await asyncio.sleep(0)
    own.freeze(frozen=False)
    await closing
    assert await call == 7


async def test_what_is_closed_takes_calls_when_it_is_opened_again(own: RedisServer) -> None:
    redis = Redis(parse_url(own.url))
    await redis.open()
    await redis.close()
    with pytest.raises(StoreError, match="is closed"):
        await redis.call(ADD, 1)
    await redis.open()
    assert await redis.call(ADD, 1) == 1
    await redis.close()


# --- servers that go, hang, or are of another kind


async def test_a_server_that_goes_and_comes_back(durable: RedisServer) -> None:
    own = durable
    redis = Redis(parse_url(own.url))
    await redis.call(ADD, 1)
    own.freeze()
    under_way = [asyncio.create_task(redis.call(ADD, 1)) for _ in range(3)]
    await asyncio.sleep(0)
    own.kill9()
    for each in await asyncio.gather(*under_way, return_exceptions=True):
        assert isinstance(each, StoreUnavailable) and "broke the connection off" in str(each)
    for each in await asyncio.gather(*(redis.call(ADD, 1) for _ in range(3)), return_exceptions=True):
        assert isinstance(each, StoreUnavailable) and "can't be reached" in str(each)
    own.start()
    assert await redis.call(ADD, 1) == 2
    await redis.close()


async def test_a_server_that_says_nothing(own: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "FAREWELL", 0.1)
    redis = Redis(parse_url(f"{own.url}?call_timeout=200&connect_timeout=1"))
    await redis.open()
    own.freeze()
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="did not answer in time"):
            await redis.call(ADD, 1)
    own.freeze(frozen=False)
    assert await redis.call(GET) in (None, b"1")
    await redis.close()


async def test_a_script_that_takes_long(own: RedisServer) -> None:
    own.run("CONFIG", "SET", "busy-reply-threshold", 1)
    redis, other = Redis(parse_url(own.url)), Redis(parse_url(own.url))
    await redis.open()
    await other.open()
    call = asyncio.create_task(redis.call(LONG))

    async def keep_on() -> None:
        async with asyncio.timeout(PATIENCE):
            while True:
                await other.call(ADD, 1)

    with pytest.raises(StoreUnavailable, match="is busy with a script that takes long"):
        await keep_on()
    own.run("SCRIPT", "KILL")
    with pytest.raises(StoreError, match=r"failed: ERR .*killed"):
        await call
    await redis.close()
    await other.close()


async def test_a_replica_is_refused(own: RedisServer) -> None:
    with servers.replica(own) as follower, pytest.raises(StoreUnavailable, match="is a replica"):
        await Redis(parse_url(follower.url)).open()


async def test_a_server_that_becomes_a_replica(own: RedisServer) -> None:
    """The connection is dropped; the next one may lead to another server."""
    redis = Redis(parse_url(own.url))
    await redis.call(ADD, 1)
    own.run("REPLICAOF", "127.0.0.1", servers.free_port())
    with pytest.raises(StoreUnavailable, match="takes no writes"):
        await redis.call(ADD, 1)
    await until_gone(own)
    own.run("REPLICAOF", "NO", "ONE")
    assert await redis.call(ADD, 1) == 2
    await redis.close()


async def test_a_server_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_OLDEST", {"redis": (99, 0), "valkey": (99, 0)})
    with pytest.raises(StoreError, match=r"which is too old: Perdure needs Redis 7\.0 or Valkey 8\.0, or newer"):
        await Redis(parse_url(redis_url("connect"))).open()


async def test_a_server_that_is_no_redis() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(StoreError, match="answers in a way that is not Redis's"):
        await Redis(parse_url(f"redis://127.0.0.1:{port}")).open()
    server.close()


async def test_no_connection_left(own: RedisServer) -> None:
    redis, other = Redis(parse_url(own.url)), Redis(parse_url(own.url))
    await redis.open()
    own.run("CONFIG", "SET", "maxclients", 1)
    with pytest.raises(StoreUnavailable, match="has no connection left: raise its maxclients"):
        await other.open()
    await redis.close()


@pytest.mark.parametrize("kind", servers.installed())
async def test_a_full_server_does_all_of_a_script_or_nothing(kind: str) -> None:
    with own_server(kind=kind) as server:
        redis = Redis(parse_url(server.url))
        await redis.open()
        server.run("CONFIG", "SET", "maxmemory", 1)
        with pytest.raises(StoreUnavailable, match="is full: it uses more memory than its maxmemory"):
            await redis.call(ADD, 1)
        assert await redis.call(Script.of("frees", f"redis.call('DEL', KEYS[1] .. ':x') {ADD.source}"), 1) == 1
        assert await redis.call(Script.of("allowed", f"#!lua flags=allow-oom\n{ADD.source}"), 1) == 2
        with pytest.raises(StoreUnavailable, match="is full"):
            await redis.call(Script.of("refused", f"#!lua\n{ADD.source}"), 1)
        await redis.close()


# --- a cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with servers.cluster() as made:
        yield made


async def test_partitions_are_spread_over_a_cluster(cluster: Cluster) -> None:
    redis = Redis(parse_url(f"{cluster.url}?namespace=spread"))
    await redis.open()
    calls = (redis.call(ADD, number + 1, partition=number) for number in range(16))
    assert await asyncio.gather(*calls) == list(range(1, 17))
    assert {cluster.owner(prefix).port for prefix in redis.prefixes} == {each.port for each in cluster.primaries}
    assert all(clients(each).count("perdure") == 1 for each in cluster.primaries)
    await redis.close()


async def test_a_partition_that_moves(cluster: Cluster) -> None:
    """While the half of its keys is elsewhere no script runs, on neither node."""
    redis = Redis(parse_url(f"{cluster.url}?namespace=moving&partitions=1"))
    await redis.open()
    for number in range(10):
        await redis.call(Script.of("put", "return redis.call('SET', KEYS[1] .. ':' .. ARGV[1], 1)"), number)
    prefix = redis.prefixes[0]
    source = cluster.owner(prefix)
    target = next(each for each in cluster.primaries if each is not source)
    await asyncio.to_thread(cluster.begin_move, slot(prefix), source, target)
    await asyncio.to_thread(cluster.move_keys, slot(prefix), source, target, 5)
    count = Script.of("count", "return redis.call('EXISTS', unpack(ARGV))")
    keys = [prefix + b":%d" % number for number in range(10)]
    call = asyncio.create_task(redis.call(count, *keys))
    done, _ = await asyncio.wait([call], timeout=0.2)
    assert not done
    await asyncio.to_thread(cluster.end_move, slot(prefix), source, target)
    assert await call == 10
    assert cluster.owner(prefix) is target
    await redis.close()


async def test_a_move_that_does_not_end(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "_PATIENCE", 0.05)
    redis = Redis(parse_url(f"{cluster.url}?namespace=stuck&partitions=1"))
    await redis.open()
    prefix = redis.prefixes[0]
    source = cluster.owner(prefix)
    target = next(each for each in cluster.primaries if each is not source)
    cluster.begin_move(slot(prefix), source, target)
    with pytest.raises(StoreUnavailable, match="is moving the keys of a partition"):
        await redis.call(ADD, 1)
    cluster.end_move(slot(prefix), source, target)
    assert await redis.call(ADD, 1) == 1
    await redis.close()


async def test_the_nodes_of_the_url_need_not_all_be_there(cluster: Cluster) -> None:
    hosts = cluster.url.partition("://")[2].split(",")
    redis = Redis(parse_url(f"redis+cluster://127.0.0.1:{servers.free_port()},{hosts[0]}"))
    await redis.open()
    await redis.close()


async def test_kinds_of_servers_that_are_mixed_up(cluster: Cluster) -> None:
    plain = servers.redis().url.partition("://")[2]
    node = cluster.url.partition("://")[2].split(",")[0]
    for url, says in [
        (f"redis://{node}", r"is a node of a cluster: write redis\+cluster://"),
        (f"redis+cluster://{plain}", "is one server, and no cluster: write redis://"),
        (f"redis+sentinel://{plain}/shop", "is no sentinel"),
    ]:
        with pytest.raises(StoreError, match=says) as caught:
            await Redis(parse_url(url)).open()
        assert type(caught.value) is StoreError


# --- sentinels


@pytest.fixture
def sentinels() -> Iterator[Sentinels]:
    with servers.sentinel() as made:
        yield made


async def test_sentinels_lead_to_the_server_that_takes_writes(sentinels: Sentinels) -> None:
    redis = Redis(parse_url(f"{sentinels.url}?durability=replicated"))
    await redis.open()
    assert await redis.call(ADD, 1, durable=True) == 1
    gone = sentinels.acting()
    await asyncio.to_thread(sentinels.fail_over)
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                assert await redis.call(GET) == b"1"
                break
            except StoreUnavailable:
                await asyncio.sleep(0.01)
    assert sentinels.acting() is not gone
    await redis.close()
    wrong = sentinels.url.replace("/shop", "/wrong")
    with pytest.raises(StoreError, match="knows no 'wrong'"):
        await Redis(parse_url(wrong)).open()
    hosts = sentinels.url.partition("://")[2].split(",")[0]
    with pytest.raises(StoreError, match=r"is a sentinel: write redis\+sentinel://"):
        await Redis(parse_url(f"redis://{hosts}")).open()


# --- durability


async def test_a_durable_call_waits_for_replicas(own: RedisServer) -> None:
    url = f"{own.url}?durability=replicated&wait_timeout=100"
    redis = Redis(parse_url(url))
    await redis.open()
    says = "had a write on 0 of the 1 replicas that the URL asks for within 100 ms"
    with pytest.raises(StoreUnavailable, match=says):
        await redis.call(ADD, 1, durable=True)
    assert await redis.call(GET) == b"1"
    # Another connection, and a repetition that writes nothing, has to wait for the first one's write.
    again = Redis(parse_url(url))
    with pytest.raises(StoreUnavailable, match=says):
        await again.call(DONE_BEFORE, durable=True)
    with servers.replica(own) as follower:
        follower.wait_until_following()
        # Also when it was open before, and all that it has written itself was confirmed.
        assert await again.call(ADD, 0, durable=True) == 1
        assert follower.pid is not None
        os.kill(follower.pid, signal.SIGSTOP)
        with pytest.raises(StoreUnavailable, match=says):
            await redis.call(ADD, 0, durable=True)
        with pytest.raises(StoreUnavailable, match=says):
            await again.call(DONE_BEFORE, durable=True)
        os.kill(follower.pid, signal.SIGCONT)
        await again.close()
        assert await redis.call(ADD, 1, durable=True) == 2
        calls = (redis.call(ADD, 1, durable=True) for _ in range(50))
        assert sorted(await asyncio.gather(*calls)) == list(range(3, 53))
        assert int(follower.run("GET", "{perdure}:n")) == 52
    waits = int(own.run("INFO", "commandstats").split(b"cmdstat_wait:calls=")[1].split(b",")[0])
    assert waits < 10, "calls that come at once share a wait"
    await redis.close()


async def test_a_start_that_is_repeated_waits_for_what_the_first_one_wrote(own: RedisServer) -> None:
    stores = [open_store(f"{own.url}?durability=replicated&wait_timeout=100") for _ in range(2)]
    with servers.replica(own) as follower:
        follower.wait_until_following()
        for number, store in enumerate(stores):  # What each connection has written itself is confirmed.
            await store.open()
            await store.enqueue([Start(f"before-{number}", "leaf", "default", "1")])
        follower.freeze()
        for store in stores:  # The second one finds the run, and makes none.
            with pytest.raises(StoreUnavailable, match="had a write on 0 of the 1 replicas"):
                await store.enqueue([Start("a", "leaf", "default", "1")])
        follower.freeze(frozen=False)
    for store in stores:
        await store.close()


async def test_a_durable_call_finds_what_takes_writes_after_its_server_became_a_replica(own: RedisServer) -> None:
    redis = Redis(parse_url(f"{own.url}?durability=replicated&wait_timeout=1000"))
    await redis.open()
    with servers.replica(own) as other:
        other.wait_until_following()
        assert await redis.call(ADD, 1, durable=True) == 1
        # The address stays, and leads to a replica for a while.
        other.run("REPLICAOF", "NO", "ONE")
        own.run("REPLICAOF", "127.0.0.1", other.port)
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="is a replica, or became one in a failover"):
                await redis.call(ADD, 1, durable=True)
        own.run("REPLICAOF", "NO", "ONE")
        other.run("REPLICAOF", "127.0.0.1", own.port)
        other.wait_until_following()
        assert await redis.call(ADD, 1, durable=True) == 2
    await redis.close()


async def test_a_server_that_becomes_a_replica_while_it_is_waited_for(own: RedisServer) -> None:
    redis = Redis(parse_url(f"{own.url}?durability=replicated&replicas=2&wait_timeout=20000"))
    await redis.open()
    with servers.replica(own) as other:
        other.wait_until_following()
        going = asyncio.ensure_future(redis.call(ADD, 1, durable=True))
        async with asyncio.timeout(PATIENCE):
            while b"blocked_clients:1" not in own.run("INFO", "clients"):
                await asyncio.sleep(0.01)
        other.run("REPLICAOF", "NO", "ONE")
        own.run("REPLICAOF", "127.0.0.1", other.port)
        with pytest.raises(StoreUnavailable, match=r"became a replica in a failover|broke the connection off"):
            await going
    await redis.close()


async def test_a_durable_call_waits_for_the_disk() -> None:
    with own_server({"appendfsync": "everysec"}, kind="valkey", durable=True) as server:
        redis = Redis(parse_url(f"{server.url}?durability=fsync"))
        await redis.open()
        assert await redis.call(ADD, 1, durable=True) == 1
        server.kill9()
        server.start()
        assert server.run("GET", "{perdure}:n") == b"1"
        await redis.close()


@pytest.mark.parametrize("kind", servers.installed())
async def test_a_server_that_has_no_file_to_wait_for(kind: str) -> None:
    says = {"valkey": "needs its setting appendonly", "redis": r"needs its setting appendonly|needs Redis 7\.2"}
    with own_server(kind=kind) as server, pytest.raises(StoreError, match=says[kind]):
        await Redis(parse_url(f"{server.url}?durability=fsync")).open()
