"""Leases, renewed in the background of a process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from perdure.errors import StoreError, StoreUnavailable
from perdure.stores.redis.keeper import LeaseKeeper
from perdure.stores.redis.scripts import Script
from perdure.stores.redis.url import parse_url
from servers import redis as servers
from servers.redis import RedisServer, own_server

RENEW = Script.of("renew", "return redis.call('SET', KEYS[1] .. ':lease:' .. ARGV[1], ARGV[2], 'XX') and 1 or 0")


@pytest.fixture
def own() -> Iterator[RedisServer]:
    with own_server() as server:
        server.run("SET", "{perdure}:lease:7", 0)
        yield server


@pytest.fixture
def keeper(own: RedisServer) -> Iterator[LeaseKeeper]:
    keeper = LeaseKeeper(parse_url(own.url), 40_000, RENEW, lambda: (7, 40_000))
    yield keeper
    keeper.close()


@pytest.mark.anyio
async def test_a_lease_is_renewed_from_any_thread(keeper: LeaseKeeper, own: RedisServer) -> None:
    assert keeper.renew()  # also from one in which an event loop runs
    assert await asyncio.to_thread(keeper.renew)
    assert own.run("GET", "{perdure}:lease:7") == b"40000"
    own.run("DEL", "{perdure}:lease:7")
    assert not keeper.renew()


def test_a_renewal_after_an_error_connects_anew(keeper: LeaseKeeper, own: RedisServer) -> None:
    assert keeper.renew()
    own.kill9()
    with pytest.raises(StoreUnavailable):
        keeper.renew()
    own.start()
    assert not keeper.renew()
    own.run("SET", "{perdure}:lease:7", 0)
    own.run("SCRIPT", "FLUSH")
    assert keeper.renew()


def test_a_renewal_that_can_not_work(own: RedisServer) -> None:
    keeper = LeaseKeeper(parse_url(own.url), 40_000, Script.of("bad", "return nothing()"), tuple)
    with pytest.raises(StoreError, match="failed: ERR"):
        keeper.renew()
    keeper.close()


def test_a_renewal_gives_up_well_before_the_lease_ends(own: RedisServer) -> None:
    keeper = LeaseKeeper(parse_url(own.url), 100, RENEW, lambda: (7, 100))
    own.freeze()
    with pytest.raises(StoreUnavailable, match="did not answer in time"):
        keeper.renew()
    own.freeze(frozen=False)
    assert keeper.renew()
    keeper.close()


def test_a_lease_is_renewed_in_all_partitions() -> None:
    with servers.cluster() as cluster:
        location = parse_url(f"{cluster.url}?partitions=4")
        for prefix in location.prefixes:
            cluster.owner(prefix).run("SET", prefix + b":lease:7", 0)
        keeper = LeaseKeeper(location, 40_000, RENEW, lambda: (7, 40_000))
        assert keeper.renew()
        for prefix in location.prefixes:
            assert cluster.owner(prefix).run("GET", prefix + b":lease:7") != b"0"
        first, _, another, _ = location.prefixes
        cluster.owner(another).run("DEL", another + b":lease:7")
        assert keeper.renew()
        cluster.owner(first).run("DEL", first + b":lease:7")
        assert not keeper.renew()
        keeper.close()
