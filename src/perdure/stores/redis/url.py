"""Reads store URLs: which servers, which database and namespace, and how they are used."""

from __future__ import annotations

import difflib
from enum import Enum
from typing import TypeAlias
from urllib.parse import parse_qsl, unquote

from msgspec import Struct

from perdure.errors import StoreUrlError
from perdure.model import Millis
from perdure.wording import shown_url

Address: TypeAlias = tuple[str, int]
"""Host and port."""

_TLS = ("ca", "cert", "key", "verify")
_DURABLE = ("replicas", "wait_timeout")
_SENTINEL = ("sentinel_user", "sentinel_password")
OPTIONS = ("namespace", "durability", *_DURABLE, "partitions", "connect_timeout", "call_timeout", *_TLS, *_SENTINEL)
_PORT, _SENTINEL_PORT = 6379, 26379
_LONGEST = 3_600_000
_LONGEST_NAMESPACE = 200
_SPECIAL = frozenset("{}*?[]\\")
"""Braces end the hash tag of keys. The others make a pattern of a text: one by which somebody removes a namespace, or
grants the rights on it, would fit other stores as well."""
_MOST_PARTITIONS = 1024


class Kind(Enum):
    """What the hosts of a URL are."""

    PLAIN = ""
    """One server."""
    SENTINEL = "sentinel"
    """Sentinels, which know the server that takes writes just now."""
    CLUSTER = "cluster"
    """Some of the nodes of a Redis Cluster, which know the others."""


class Durability(Enum):
    """What has happened to a write before its call returns."""

    DEFAULT = "default"
    """The server has it; what a crash of it loses is up to its own settings."""
    REPLICATED = "replicated"
    """So many replicas have it (WAIT)."""
    FSYNC = "fsync"
    """The server has it in the append-only file, on disk, and so have so many replicas (WAITAOF)."""


class Tls(Struct, frozen=True):
    """How connections are encrypted."""

    ca: str | None = None
    """A file with the certificates that are trusted instead of the system's."""
    cert: str | None = None
    """A file with the certificate that this client shows."""
    key: str | None = None
    verify: bool = True
    """Whether the server's certificate has to be trusted, and of its name."""


class Location(Struct, frozen=True):
    """Where a store is and how it is used."""

    name: str
    """How messages call the store: without the password."""
    hosts: tuple[Address, ...]
    kind: Kind = Kind.PLAIN
    service: str = ""
    """What the sentinels call the servers."""
    db: int = 0
    user: str | None = None
    password: str | None = None
    sentinel_user: str | None = None
    sentinel_password: str | None = None
    tls: Tls | None = None
    namespace: str = "perdure"
    partitions: int = 1
    """How many parts, each with all its keys in one place, the runs are spread over."""
    durability: Durability = Durability.DEFAULT
    replicas: int = 0
    wait_timeout: Millis = 5_000
    """How long a call waits for the replicas, or the disk."""
    connect_timeout: int = 10
    """Seconds."""
    call_timeout: Millis = 30_000
    """After which a server that does not answer is given up."""

    @property
    def prefixes(self) -> tuple[bytes, ...]:
        """What the keys and channels of each partition begin with: a hash tag, and the number of a database but 0,
        since the databases of a server share its channels."""
        if self.kind is not Kind.CLUSTER:
            return (f"{{{self.namespace}}}{f'@{self.db}' if self.db else ''}".encode(),)
        return tuple(f"{{{self.namespace}:{number}}}".encode() for number in range(self.partitions))

    def __repr__(self) -> str:
        return f"Location({self.name!r}, namespace={self.namespace!r})"


def parse_url(url: str) -> Location:
    """Reads `redis://user:password@host:port/db?option=value`, `redis+sentinel://host,host/service/db` and
    `redis+cluster://host,host`; with `rediss` for TLS, and `valkey` and `valkeys` for the same.

    Options are `namespace`, `durability` (`default`, `replicated` or `fsync`) with `replicas` and `wait_timeout`
    (milliseconds), `partitions` (of a cluster), `connect_timeout` (seconds), `call_timeout` (milliseconds), `ca`,
    `cert`, `key` and `verify` (of TLS), `sentinel_user` and `sentinel_password`. Raises `StoreUrlError`, which shows no
    password.
    """
    _check_login(url)
    name = shown_url(url)
    if "\0" in unquote(url):
        raise StoreUrlError(f"{name!r} has a NUL character")
    scheme, _, rest = url.partition("://")
    server, _, way = scheme.partition("+")
    kind = (
        Kind(_one_of(name, "what follows 'redis+'", way, [each.value for each in Kind if each.value]))
        if way
        else Kind.PLAIN
    )
    options = _options(url, name)
    authority, _, path = rest.partition("?")[0].partition("/")
    login, at, hosts = authority.rpartition("@")
    user, _, password = login.partition(":")
    service, db = _path(name, kind, path)
    durability = _durability(name, options)
    return Location(
        name=name,
        hosts=_hosts(name, kind, hosts),
        kind=kind,
        service=service,
        db=db,
        user=unquote(user) or None if at else None,
        password=unquote(password) or None,
        sentinel_user=_only(name, options, "sentinel_user", kind is Kind.SENTINEL, "redis+sentinel://"),
        sentinel_password=_only(name, options, "sentinel_password", kind is Kind.SENTINEL, "redis+sentinel://"),
        tls=_tls(name, server in ("rediss", "valkeys"), options),
        namespace=_namespace(name, options.get("namespace", "perdure")),
        partitions=_partitions(name, kind, options),
        durability=durability,
        replicas=_number(name, options, "replicas", int(durability is Durability.REPLICATED), 0, 100),
        wait_timeout=_number(name, options, "wait_timeout", 5_000, 1, _LONGEST),
        connect_timeout=_number(name, options, "connect_timeout", 10, 1, 3600),
        call_timeout=_number(name, options, "call_timeout", 30_000, 1, _LONGEST),
    )


def _check_login(url: str) -> None:
    """Refuses a login that has what ends it: the rest of a password would be shown as something else."""
    rest = url.partition("://")[2]
    before, _, query = rest.partition("?")
    authority, _, path = before.partition("/")
    if "@" in path or ("@" not in authority and "@" in query and "=" not in query.partition("@")[0]):
        raise StoreUrlError(
            "the URL of the store has an @ behind a / or a ?: if they belong to the user or the password, write %2F for"
            " the / and %3F for the ?"
        )


def _hosts(name: str, kind: Kind, hosts: str) -> tuple[Address, ...]:
    usual = _SENTINEL_PORT if kind is Kind.SENTINEL else _PORT
    found = tuple(_address(name, host, usual) for host in hosts.split(","))
    if kind is Kind.PLAIN and len(found) > 1:
        raise StoreUrlError(
            f"{name!r} has several hosts: write redis+sentinel:// if they are sentinels, redis+cluster:// if they are"
            " nodes of a cluster"
        )
    return found


def _address(name: str, host: str, usual: int) -> Address:
    # Of an IPv6 address in brackets only what follows can be a port.
    bracketed, closing, tail = host.rpartition("]")
    bare, _, port = tail.partition(":")
    if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise StoreUrlError(f"{name!r} has the port {port!r}; a port is a number from 1 to 65535")
    return (bracketed.removeprefix("[") if closing else unquote(bare)) or "localhost", int(port or usual)


def _path(name: str, kind: Kind, path: str) -> tuple[str, int]:
    """The service of sentinels, and the number of the database."""
    service, _, db = path.partition("/") if kind is Kind.SENTINEL else ("", "", path)
    if kind is Kind.SENTINEL and not service:
        raise StoreUrlError(f"{name!r} does not say what the sentinels call the servers: redis+sentinel://host/service")
    if db and not (db.isascii() and db.isdigit() and len(db) < 10):
        raise StoreUrlError(f"{name!r} has the database {db!r}; it is a number")
    if kind is Kind.CLUSTER and int(db or 0) != 0:
        raise StoreUrlError(f"{name!r}: a cluster has no databases but 0; use ?namespace=… to tell stores apart")
    return unquote(service), int(db or 0)


def _options(url: str, name: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for key, value in parse_qsl(url.partition("?")[2], keep_blank_values=True):
        if key not in OPTIONS:
            close = difflib.get_close_matches(key, OPTIONS, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise StoreUrlError(f"{name!r} has the unknown option {key!r}; {hint}there are {', '.join(OPTIONS)}")
        if key in options:
            raise StoreUrlError(f"{name!r} has the option {key!r} twice")
        options[key] = value
    return options


def _tls(name: str, wanted: bool, options: dict[str, str]) -> Tls | None:
    for option in _TLS:
        _only(name, options, option, wanted, "rediss://")
    if not wanted:
        return None
    if "key" in options and "cert" not in options:
        raise StoreUrlError(f"{name!r}: key is that of a certificate; give cert as well")
    verify = _one_of(name, "verify", options.get("verify", "yes"), ("yes", "no"))
    return Tls(options.get("ca"), options.get("cert"), options.get("key"), verify == "yes")


def _durability(name: str, options: dict[str, str]) -> Durability:
    value = options.get("durability", "default")
    durability = Durability(_one_of(name, "durability", value, [each.value for each in Durability]))
    for option in _DURABLE:
        _only(name, options, option, durability is not Durability.DEFAULT, "durability=replicated or durability=fsync")
    if durability is Durability.REPLICATED and options.get("replicas") == "0":
        raise StoreUrlError(f"{name!r}: durability=replicated needs replicas, one at least")
    return durability


def _partitions(name: str, kind: Kind, options: dict[str, str]) -> int:
    _only(name, options, "partitions", kind is Kind.CLUSTER, "redis+cluster://")
    return _number(name, options, "partitions", 16 if kind is Kind.CLUSTER else 1, 1, _MOST_PARTITIONS)


def _namespace(name: str, namespace: str) -> str:
    if not namespace or not namespace.isprintable() or set(namespace) & _SPECIAL:
        raise StoreUrlError(f"{name!r}: namespace can't be {namespace!r}; it is a text without any of {{ }} * ? [ ] \\")
    if len(namespace.encode()) > _LONGEST_NAMESPACE:
        raise StoreUrlError(f"{name!r}: namespace has {len(namespace)} characters; take at most {_LONGEST_NAMESPACE}")
    return namespace


def _only(name: str, options: dict[str, str], option: str, fits: bool, where: str) -> str | None:
    """An option that goes with something else alone."""
    if option in options and not fits:
        raise StoreUrlError(f"{name!r}: {option} goes with {where} alone")
    return options.get(option)


def _one_of(name: str, option: str, value: str, allowed: list[str] | tuple[str, ...]) -> str:
    if value not in allowed:
        raise StoreUrlError(f"{name!r}: {option} is one of {', '.join(allowed)}; it can't be {value!r}")
    return value


def _number(name: str, options: dict[str, str], option: str, usual: int, least: int, most: int) -> int:
    value = options.get(option, str(usual))
    if not (value.isascii() and value.isdigit()) or not least <= int(value) <= most:
        raise StoreUrlError(f"{name!r}: {option} is a number from {least} to {most}; it can't be {value!r}")
    return int(value)
