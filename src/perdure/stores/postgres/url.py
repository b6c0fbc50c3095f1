"""Reads store URLs: which server, database and schema, and how it is used."""

from __future__ import annotations

import difflib
import os
from urllib.parse import parse_qsl, unquote, urlencode
from urllib.parse import quote as percent_encode

from msgspec import Struct

from perdure.errors import StoreUrlError
from perdure.stores.postgres.service import read_service
from perdure.wording import shown_url

_OURS = ("schema", "pool", "listen", "statement_timeout", "lock_timeout", "connect_timeout", "application_name")
_DRIVERS = (
    *("host", "port", "user", "password", "passfile", "dbname", "service", "target_session_attrs", "krbsrvname"),
    *("gsslib", "sslmode", "sslcert", "sslkey", "sslpassword", "sslrootcert", "sslcrl", "sslnegotiation"),
    *("ssl_min_protocol_version", "ssl_max_protocol_version"),
)
_SESSIONS = ("any", "primary", "standby", "read-write", "read-only", "prefer-standby")
OPTIONS = (*_OURS, *_DRIVERS)
_CLEAR = ":%!$&'()*+,;="
"""What may stand in a user or password as it is, beside letters and digits."""
_LONGEST = 3_600_000
_LONGEST_NAME = 63


class Location(Struct, frozen=True):
    """Where a store is and how it is used."""

    url: str
    """What the driver is given: without our options, but with the password."""
    name: str
    """How messages call the store: without the password."""
    schema: str = "perdure"
    pool: int = 4
    """The most connections of one event loop."""
    listen: str | None = None
    """Another way to the same database for LISTEN, past a pooler."""
    statement_timeout: int = 30_000
    """Milliseconds, as the next one."""
    lock_timeout: int = 5_000
    connect_timeout: int = 10
    """Seconds, as libpq has it."""
    application_name: str = "perdure"

    def __repr__(self) -> str:
        return f"Location({self.name!r}, schema={self.schema!r})"


def parse_url(url: str) -> Location:
    """Reads `postgresql://user:password@host:port/database?option=value`; what is left out comes from the `service` of
    libpq's file, and then from its environment variables.

    Options of ours are `schema`, `pool`, `listen`, `statement_timeout` and `lock_timeout` (milliseconds),
    `connect_timeout` (seconds) and `application_name`; those of libpq about hosts and TLS are passed on.
    Raises `StoreUrlError`, which shows no password.
    """
    _check_signs(url)
    name = shown_url(url)
    _check_hosts(url, name)
    options = _options(url, name)
    if service := options.pop("service", None) or os.environ.get("PGSERVICE"):
        name += f"?service={service}"
        options = {**read_service(service, name), **options}
    passed = {key: value for key, value in options.items() if key in _DRIVERS}
    for port in options.get("port", "").split(","):
        _check_port(port, name)
    if (wanted := options.get("target_session_attrs", "any")) not in _SESSIONS:
        raise StoreUrlError(f"{name!r}: target_session_attrs is one of {', '.join(_SESSIONS)}; it can't be {wanted!r}")
    hosts = options.get("host", "") + url.partition("://")[2].partition("/")[0].rpartition("@")[2]
    if "," in hosts and "target_session_attrs" not in passed:
        passed["target_session_attrs"] = "read-write"  # Of several servers, the one that takes writes.
    head = _head(url)
    return Location(
        url=f"{head}?{urlencode(passed)}" if passed else head,
        name=name,
        schema=_schema(name, options.get("schema", "perdure")),
        pool=_number(name, "pool", options.get("pool", "4"), 1, 100),
        listen=_listen(name, options.get("listen")),
        statement_timeout=_number(name, "statement_timeout", options.get("statement_timeout", "30000"), 0, _LONGEST),
        lock_timeout=_number(name, "lock_timeout", options.get("lock_timeout", "5000"), 0, _LONGEST),
        connect_timeout=_number(name, "connect_timeout", options.get("connect_timeout", "10"), 1, 3600),
        application_name=options.get("application_name", "perdure"),
    )


def quote(identifier: str) -> str:
    """An identifier as SQL has it."""
    return '"' + identifier.replace('"', '""') + '"'


def _head(url: str) -> str:
    """The URL up to its options, where the driver would stumble over what a user or password has in it."""
    scheme, _, rest = url.partition("?")[0].partition("://")
    user, at, hosts = rest.rpartition("@")
    # After a / the driver would look for no other name of the database, even if none is there.
    hosts = hosts.removesuffix("/") if hosts.count("/") == 1 else hosts
    return f"{scheme}://{percent_encode(user, safe=_CLEAR)}{at}{hosts}"


def _check_signs(url: str) -> None:
    """Refuses what is cut elsewhere than somebody meant it: then a part of the password could be anywhere, so that
    nothing of the URL is shown."""
    head, _, query = url.partition("://")[2].partition("?")
    authority, _, path = head.partition("/")
    # An @ may be in a value of an option; not in a name, nor where no port is that could be one.
    at_home = all(pair.partition("=")[0] in OPTIONS for pair in query.split("&") if "@" in pair) and (
        "@" in authority or all(_is_port(_port(host)) for host in authority.split(","))
    )
    if "#" in url or authority.count("@") > 1 or "@" in path or ("@" in query and not at_home):
        raise StoreUrlError(
            "the URL of the store has a / ? # or @ where it has to be percent-encoded, such as in a password: write "
            "%2F %3F %23 %40 there"
        )


def _check_hosts(url: str, name: str) -> None:
    authority = url.partition("://")[2].partition("?")[0].partition("/")[0]
    for host in authority.rpartition("@")[2].split(","):
        _check_port(_port(host), name)
        if host.startswith("[") is not ("]" in host):
            raise StoreUrlError(f"{name!r} has the host {host!r}; an IPv6 address has brackets around it")
    if "\0" in unquote(url):
        raise StoreUrlError(f"{name!r} has a NUL character")


def _port(host: str) -> str:
    """What follows a host: of an IPv6 address in brackets only what is behind these."""
    return host.rpartition("]")[2].partition(":")[2]


def _is_port(port: str) -> bool:
    return not port or (port.isascii() and port.isdigit() and 0 < int(port) < 65536)


def _check_port(port: str, name: str) -> None:
    if not _is_port(port):
        raise StoreUrlError(f"{name!r} has the port {port!r}; a port is a number from 1 to 65535")


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


def _schema(name: str, schema: str) -> str:
    if schema == "$user":  # In a search_path it stands for another name.
        raise StoreUrlError(f"{name!r}: schema can't be '$user'; write the name itself")
    if not schema or not schema.isprintable() or len(schema.encode()) > _LONGEST_NAME or schema.startswith("pg_"):
        raise StoreUrlError(
            f"{name!r}: schema can't be {schema!r}; it is a name of at most {_LONGEST_NAME} bytes without 'pg_' ahead"
        )
    return schema


def _number(name: str, option: str, value: str, least: int, most: int) -> int:
    if not (value.isascii() and value.isdigit()) or not least <= int(value) <= most:
        raise StoreUrlError(f"{name!r}: {option} is a number from {least} to {most}; it can't be {value!r}")
    return int(value)


def _listen(name: str, value: str | None) -> str | None:
    if value is None:
        return None
    if not value.startswith(("postgresql://", "postgres://")):
        raise StoreUrlError(f"{name!r}: listen is the URL of the server itself (postgresql://…), percent-encoded")
    return parse_url(value).url
