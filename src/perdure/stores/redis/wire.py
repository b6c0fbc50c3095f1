"""One connection: commands go out as they come, several at a time, and replies come in their order.

It is a protocol of asyncio over the parser of hiredis, since a call costs a third of what redis-py's takes that way
(see the decision record on the driver).
"""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias, cast

import hiredis

from perdure.errors import StoreError, StoreUnavailable
from perdure.stores.redis.errors import Lost, Unheard
from perdure.stores.redis.url import Address, Kind, Location, Tls

Argument: TypeAlias = bytes | str | int
_pack = cast("Callable[[tuple[Argument, ...]], bytes]", hiredis.pack_command)  # Its types are too narrow.

_OLDEST = {"redis": (7, 0), "valkey": (8, 0)}
_MORE = object()
"""What the parser says when it needs more to read."""
FAREWELL = 5.0
"""Seconds that closing waits for calls that are under way."""
_CONFIRMS = (b"subscribe", b"ssubscribe")
"""What of that which a server pushes is the reply to a command."""


def pack(*command: Argument) -> bytes:
    """A command as it travels."""
    return _pack(command)


class Connection(asyncio.Protocol):
    """Belongs to the event loop that it was made in. `pushed` gets what the server sends unasked."""

    def __init__(self, timeout: float, pushed: Callable[[list[Any]], None] | None = None) -> None:
        self.hello: dict[bytes, Any] = {}
        """What the server said of itself."""
        self.lost = asyncio.Event()
        """Set when it has ended."""
        self._loop = asyncio.get_running_loop()
        self._timeout = timeout
        self._pushed = pushed
        self._reader = hiredis.Reader(notEnoughData=_MORE)
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._outgoing: list[bytes] = []
        self._watch: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    def send(self, command: bytes) -> asyncio.Future[Any]:
        """Sends a packed command; the future has the reply, which may be a `ReplyError`.

        What is sent while other calls are under way goes out together with all that comes in the same turn of the loop.
        The future fails with `OSError` when the connection ends or no reply comes in time.
        """
        future = self._loop.create_future()
        transport = self._transport
        if transport is None:
            future.set_exception(Lost("it is closed"))
            return future
        if self._outgoing:
            self._outgoing.append(command)
        elif self._waiting:
            self._outgoing.append(command)
            self._loop.call_soon(self._flush)
        else:
            transport.write(command)
        self._waiting.append((future, self._loop.time()))
        if self._watch is None:
            self._watch = self._loop.call_later(self._timeout, self._look)
        return future

    def tell(self, command: bytes) -> None:
        """Sends a packed command that has no reply."""
        if self._transport is not None:
            self._flush()
            self._transport.write(command)

    def keep(self, *command: str) -> asyncio.Future[Any]:
        """Has the server keep a script, as `send` does."""
        return self.send(pack(*command))

    async def run(self, *command: Argument) -> Any:
        """Sends a command and returns its reply. Raises `ReplyError`, and as `send` does."""
        reply = await self.send(pack(*command))
        if isinstance(reply, hiredis.ReplyError):
            raise reply
        return reply

    def abort(self, why: Exception | None = None) -> None:
        """Ends it at once; calls that are under way fail."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        self._outgoing.clear()
        error = why or Lost("it was closed while a call was under way")
        while self._waiting:
            future, _ = self._waiting.popleft()
            if not future.done():
                future.set_exception(error)
        self.lost.set()

    async def close(self) -> None:
        """Ends it after the calls that are under way, within some seconds."""
        until = self._loop.time() + FAREWELL
        while self._waiting and self._loop.time() < until:  # What follows from a reply is sent before this goes on.
            await asyncio.wait([self._waiting[-1][0]], timeout=until - self._loop.time())
        self.abort()

    # --- what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not _MORE:
                if isinstance(reply, hiredis.PushNotification) and reply[0] not in _CONFIRMS:
                    if self._pushed is not None:
                        self._pushed(reply)
                elif self._waiting:
                    future, _ = self._waiting.popleft()
                    if not future.done():
                        future.set_result(reply)
                else:  # Such as: that it takes no more clients.
                    return self.abort(reply if isinstance(reply, hiredis.ReplyError) else None)
        except hiredis.ProtocolError as error:
            self.abort(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self.abort(Lost(str(exc) if exc is not None else "the server closed it"))

    def _flush(self) -> None:
        if self._transport is not None:
            self._transport.write(b"".join(self._outgoing))
        self._outgoing.clear()

    def _look(self) -> None:
        """Replies come in order: if the first one is in time, so are all."""
        self._watch = None
        if not self._waiting:
            return
        left = self._waiting[0][1] + self._timeout - self._loop.time()
        if left > 0:
            self._watch = self._loop.call_later(left, self._look)
        else:
            self.abort(TimeoutError("no reply came in time"))


async def dial(
    location: Location,
    address: Address,
    *,
    timeout: float | None = None,
    pushed: Callable[[list[Any]], None] | None = None,
    any_role: bool = False,
) -> Connection:
    """A connection to a server that takes writes (or to a replica, with `any_role`), ready for use.

    `timeout` (seconds) is how long a reply may take. Errors are those of the driver, except `StoreError` for a server
    that is too old or of another kind than the URL says, and `StoreUnavailable` for a replica.
    """
    limit = location.call_timeout / 1000 if timeout is None else timeout
    try:
        async with asyncio.timeout(location.connect_timeout):
            connection = await _connect(address, location.tls, limit, pushed)
            try:
                await _greet(connection, location.user, location.password)
                check(location, connection.hello, any_role=any_role)
                if location.db:
                    await connection.run("SELECT", location.db)
            except BaseException:
                connection.abort()
                raise
    except (TimeoutError, Lost) as error:
        raise Unheard(error, with_tls=location.tls is not None) from error
    return connection


async def ask_sentinels(location: Location) -> Address:
    """The address of the server that takes writes, as the first sentinel that answers has it. Errors as `dial`'s."""
    failed: Exception | None = None
    for address in location.hosts:
        try:
            found = await _ask(location, address)
        except (hiredis.HiredisError, OSError) as error:
            failed = error
            continue
        if found is not None:
            return found[0].decode(), int(found[1])
        failed = StoreError(
            f"the store {location.name}: its sentinel {address[0]}:{address[1]} knows no {location.service!r}:"
            " correct the name behind the hosts in the URL"
        )
    raise failed or StoreUnavailable(f"the store {location.name} has no sentinels")


async def _ask(location: Location, address: Address) -> list[bytes] | None:
    async with asyncio.timeout(location.connect_timeout):
        connection = await _connect(address, location.tls, location.connect_timeout, None)
        try:
            await _greet(connection, location.sentinel_user, location.sentinel_password)
            if connection.hello.get(b"mode") != b"sentinel":
                raise StoreError(
                    f"the store {location.name}: at {address[0]}:{address[1]} is no sentinel; sentinels listen on"
                    " another port, 26379 unless set"
                )
            return await connection.run("SENTINEL", "GET-MASTER-ADDR-BY-NAME", location.service)
        finally:
            connection.abort()


async def _connect(
    address: Address, tls: Tls | None, timeout: float, pushed: Callable[[list[Any]], None] | None
) -> Connection:
    _, connection = await asyncio.get_running_loop().create_connection(
        lambda: Connection(timeout, pushed), *address, ssl=None if tls is None else encryption(tls)
    )
    _keep_alive(connection)
    return connection


async def _greet(connection: Connection, user: str | None, password: str | None) -> None:
    login = () if password is None else ("AUTH", user or "default", password)
    connection.hello = await connection.run("HELLO", 3, *login, "SETNAME", "perdure")


def check(location: Location, hello: dict[bytes, Any], *, any_role: bool = False) -> None:
    """Refuses a server that can't be the store, by its answer to HELLO."""
    server, version = hello[b"server"].decode(), hello[b"version"].decode()
    oldest = _OLDEST.get(server, _OLDEST["redis"])
    if version_of(hello) < oldest:
        raise StoreError(
            f"the store {location.name} is on {server} {version}, which is too old: Perdure needs Redis 7.0 or"
            " Valkey 8.0, or newer"
        )
    mode = hello[b"mode"].decode()
    if mode == "sentinel":
        raise StoreError(
            f"the store {location.name} is a sentinel: write redis+sentinel://host/service instead of redis://host"
        )
    if mode == "cluster" and location.kind is not Kind.CLUSTER:
        raise StoreError(
            f"the store {location.name} is a node of a cluster: write redis+cluster:// instead of redis://"
        )
    if mode != "cluster" and location.kind is Kind.CLUSTER:
        raise StoreError(
            f"the store {location.name} is one server, and no cluster: write redis:// instead of redis+cluster://"
        )
    if hello[b"role"] != b"master" and not any_role:
        raise StoreUnavailable(
            f"the store {location.name} is a replica, or became one in a failover; the URL must lead to the primary"
        )


def version_of(hello: dict[bytes, Any]) -> tuple[int, int]:
    """Major and minor version of a server."""
    major, minor = hello[b"version"].decode().split(".")[:2]
    return int(major), int(minor)


@functools.cache
def encryption(tls: Tls) -> ssl.SSLContext:
    """What a TLS connection is made with. Raises `OSError` for files that are not there or can't be read, and
    `StoreError` for those that are of another kind."""
    try:
        context = ssl.create_default_context(cafile=tls.ca)
    except ssl.SSLError as error:
        raise StoreError(f"ca is {tls.ca!r}, and that file has no certificates in it (PEM) ({error})") from error
    if tls.cert is not None:
        try:
            context.load_cert_chain(tls.cert, tls.key)
        except ssl.SSLError as error:
            raise StoreError(
                f"cert is {tls.cert!r} and key is {tls.key or tls.cert!r}, and those are no certificate and its private"
                f" key (PEM) ({error})"
            ) from error
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _keep_alive(connection: Connection) -> None:
    """Has a server whose machine is gone found out within seconds, instead of when a call's time is over."""
    transport = connection._transport
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 10_000)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
