"""What a Redis URL may say, and what is said of one that can't be."""

from __future__ import annotations

import builtins
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure.errors import StoreUrlError
from perdure.stores.redis.url import OPTIONS, Durability, Kind, Location, Tls, parse_url


def test_a_bare_url() -> None:
    location = parse_url("redis://ann:se%40cret@db.example:6380/3")
    assert location == Location(
        name="redis://ann@db.example:6380/3", hosts=(("db.example", 6380),), db=3, user="ann", password="se@cret"
    )
    assert location.prefixes == (b"{perdure}@3",)
    assert parse_url("redis://db").prefixes == parse_url("redis://db/0").prefixes == (b"{perdure}",)
    assert "cret" not in repr(location)


def test_what_is_left_out() -> None:
    assert parse_url("redis://").hosts == (("localhost", 6379),)
    assert parse_url("valkey://[::1]").hosts == (("::1", 6379),)
    assert parse_url("redis://:secret@db").password == "secret"
    assert parse_url("redis://:secret@db").user is None


def test_sentinels() -> None:
    location = parse_url("redis+sentinel://:pw@a,b:5000/shop/2?sentinel_user=s&sentinel_password=sp")
    assert (location.kind, location.service, location.db) == (Kind.SENTINEL, "shop", 2)
    assert location.hosts == (("a", 26379), ("b", 5000))
    assert (location.password, location.sentinel_user, location.sentinel_password) == ("pw", "s", "sp")
    assert location.name == "redis+sentinel://@a,b:5000/shop/2"


def test_a_cluster() -> None:
    location = parse_url("valkey+cluster://a:1,b:2?partitions=3&namespace=shop")
    assert (location.kind, location.hosts) == (Kind.CLUSTER, (("a", 1), ("b", 2)))
    assert location.prefixes == (b"{shop:0}", b"{shop:1}", b"{shop:2}")
    assert parse_url("redis+cluster://a").partitions == 16


def test_tls() -> None:
    assert parse_url("redis://db").tls is None
    assert parse_url("rediss+cluster://db").tls == Tls()
    location = parse_url("valkeys://db?ca=%2Fca.pem&cert=%2Fc.pem&key=%2Fk.pem&verify=no")
    assert location.tls == Tls("/ca.pem", "/c.pem", "/k.pem", False)


def test_durability_and_limits() -> None:
    location = parse_url("redis://db?durability=replicated&connect_timeout=3&call_timeout=200")
    assert (location.durability, location.replicas, location.wait_timeout) == (Durability.REPLICATED, 1, 5000)
    assert (location.connect_timeout, location.call_timeout) == (3, 200)
    location = parse_url("redis://db?durability=fsync&replicas=2&wait_timeout=100")
    assert (location.durability, location.replicas, location.wait_timeout) == (Durability.FSYNC, 2, 100)
    assert parse_url("redis://db?durability=fsync").replicas == 0


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis://u:secret@db?namespce=x", "unknown option 'namespce'; did you mean 'namespace'?"),
        ("redis://u:secret@db?namespace=a&namespace=b", "'namespace' twice"),
        ("redis://u:secret@db?namespace={a}", "without any of { }"),
        *((f"redis://u:secret@db?namespace=sh{each}p", "a text without any of") for each in ("*", "?", "[o]", "%5C")),
        ("redis://u:secret@db?namespace=", "namespace can't be ''"),
        ("redis://u:secret@db?namespace=" + "x" * 201, "at most 200"),
        ("redis://u:secret@db/shop", "the database 'shop'; it is a number"),
        ("redis://u:secret@db:x", "a port is a number from 1 to 65535"),
        ("redis://u:secret@db:65536", "a port is a number from 1 to 65535"),
        ("redis://u:secret@a,b", "has several hosts"),
        ("redis+sentinel://u:secret@a", "what the sentinels call the servers"),
        ("redis+cluster://u:secret@a/1", "a cluster has no databases but 0"),
        ("redis+clster://u:secret@a", "can't be 'clster'"),
        ("redis://u:secret@db?partitions=2", "partitions goes with redis+cluster:// alone"),
        ("redis+cluster://u:secret@db?partitions=0", "partitions is a number from 1 to 1024"),
        ("redis://u:secret@db?ca=x", "ca goes with rediss:// alone"),
        ("rediss://u:secret@db?key=x", "give cert as well"),
        ("rediss://u:secret@db?verify=maybe", "verify is one of yes, no"),
        ("redis://u:secret@db?durability=disk", "durability is one of default, replicated, fsync"),
        ("redis://u:secret@db?replicas=1", "replicas goes with durability="),
        ("redis://u:secret@db?durability=replicated&replicas=0", "one at least"),
        ("redis://u:secret@db?sentinel_user=x", "sentinel_user goes with redis+sentinel:// alone"),
        ("redis://u:secret@db?call_timeout=-1", "call_timeout is a number"),
        ("redis://u:secret@db/%00", "NUL"),
        ("redis://u:p/secret@db", "write %2F for the / and %3F for the ?"),
        ("redis://u:p?secret@db", "write %2F for the / and %3F for the ?"),
        ("redis+unix://db", "one of sentinel, cluster"),
    ],
)
def test_what_cannot_be_is_named_without_the_password(url: str, says: str) -> None:
    with pytest.raises(StoreUrlError) as caught:
        parse_url(url)
    assert says in str(caught.value)
    assert "secret" not in str(caught.value)


def test_without_the_driver_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("perdure.stores.redis")]:
        monkeypatch.delitem(sys.modules, name)
    original = builtins.__import__

    def missing(name: str, *args: Any) -> Any:
        if name == "hiredis":
            raise ModuleNotFoundError(name)
        return original(name, *args)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(StoreUrlError, match=r"pip install 'perdure\[redis\]'"):
        importlib.import_module("perdure.stores.redis")


def test_the_documentation_has_each_option() -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "redis.md").read_text(encoding="utf-8")
    table = page.partition("| Option | Default | |\n")[2].partition("\n\n")[0]
    assert {option for option in OPTIONS if f"`{option}`" not in table} == set()
