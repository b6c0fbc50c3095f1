"""Wake-ups: hints from whoever committed a change to those who wait for one, in this process and in others.

Each subscription of a file has a datagram socket, and a row that tells its path to everyone who uses the file. Where
there are no such sockets, and for stores in memory, subscribers of this process are woken directly, and those of
others find out by polling.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import sqlite3
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

import msgspec

from perdure.errors import StoreError
from perdure.stores.base import Topic
from perdure.stores.sqlite.executor import Operation, Transaction
from perdure.stores.sqlite.sockets import Directory, clear
from perdure.stores.sqlite.sql import load

T = TypeVar("T")

_SQL = load("wake")
_CHECK, _LONGEST_CHECK = 5.0, 80.0
"""Seconds after which a subscriber looks whether its row is there: somebody for whom it was out of reach for a moment
may have removed it. Where it is removed again and again, it comes back ever more rarely."""
_FAREWELL = 0.5
"""Seconds that closing a subscription may take in a file that is locked."""
_Listeners = msgspec.json.Decoder(list[tuple[str, str]])


class _Run(Protocol):
    def __call__(self, operation: Operation[T], /) -> Coroutine[Any, Any, T]: ...


class Wakeups:
    """The subscriptions of a store, and the sender of its wake-ups.

    `subscribe` runs in event loops, `tell` and `prune` in the thread that writes.
    """

    def __init__(self, *, shared: bool) -> None:
        self._sockets = shared and hasattr(socket, "AF_UNIX")
        self._lock = threading.Lock()
        self._local: dict[Local, Topic] = {}
        self._pid = os.getpid()
        self._directory = Directory()
        self._sender: socket.socket | None = None
        self._stale: set[str] = set()

    async def subscribe(self, topic: Topic, wake: Callable[[], None], write: _Run, read: _Run) -> Local | Remote:
        """Begins to call `wake` in the running loop; for a file, others know of it when this returns."""
        loop = asyncio.get_running_loop()
        receiver = self._bind() if self._sockets else None
        if receiver is not None:
            subscription = Remote(loop, receiver, topic, wake, write, read)
            try:
                await subscription.announce()
            except BaseException:
                subscription.discard()
                raise
            if subscription.listening:
                return subscription
            await subscription.close()
        local = Local(loop, wake, self._forget)
        with self._lock:
            self._local[local] = topic
        return local

    def tell(self, connection: sqlite3.Connection, topics: set[Topic]) -> None:
        """Wakes the subscribers of topics. Never blocks: one whose socket is full has wake-ups waiting already."""
        with self._lock:
            local = [subscription for subscription, topic in self._local.items() if topic in topics]
        for subscription in local:
            subscription.wake()
        if not self._sockets:
            return
        for path, topic in _Listeners.decode(connection.execute(_SQL["listeners"]).fetchone()[0]):
            if topic in topics:
                self._send(path)

    def prune(self, transaction: Transaction) -> None:
        """Removes the rows of subscribers that are gone, in a transaction that writes anyway."""
        if self._stale:
            transaction.change(_SQL["unlisten"], {"paths": msgspec.json.encode(sorted(self._stale)).decode()})
            for path in self._stale:
                clear(path)
            self._stale.clear()

    def close(self) -> None:
        """Forgets all subscribers of this process, when nothing can be told any more."""
        if self._pid != os.getpid():
            return  # What a forked child has a copy of is its parent's.
        with self._lock:
            self._local.clear()
        if self._sender is not None:
            self._sender.close()
        self._directory.remove()

    def _forget(self, local: Local) -> None:
        with self._lock:
            self._local.pop(local, None)

    def _bind(self) -> socket.socket | None:
        with self._lock:
            return self._directory.bind()

    def _send(self, path: str) -> None:
        try:
            if self._sender is None:
                self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._sender.setblocking(False)
            self._sender.sendto(b"w", path)
        except (ConnectionRefusedError, FileNotFoundError):
            self._stale.add(path)
        except OSError:
            pass  # Full, of another user, or no descriptors left: a wake-up is a hint.


class Local:
    """A subscription that is woken directly, by writers of this process."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None], forget: Callable[[Local], None]
    ) -> None:
        self._loop = loop
        self._wake = wake
        self._forget = forget

    def wake(self) -> None:
        """Calls the subscriber in its loop; may be called by any thread."""
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            self._forget(self)  # Its loop is closed.

    async def close(self) -> None:
        self._forget(self)


class Remote:
    """A subscription with a socket that writers of any process send to."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        receiver: socket.socket,
        topic: Topic,
        wake: Callable[[], None],
        write: _Run,
        read: _Run,
    ) -> None:
        self._loop = loop
        self._receiver = receiver
        self._path = str(receiver.getsockname())
        self._row = {"path": self._path, "topic": topic.value, "pid": os.getpid()}
        self._wake = wake
        self._write = write
        self._read = read
        self._pid = os.getpid()
        self._pause = _CHECK
        self._timer: asyncio.TimerHandle | None = None
        self._checking: asyncio.Task[None] | None = None
        self.listening = False

    async def announce(self) -> None:
        """Listens, and tells everyone who uses the file; does nothing in a loop that can't watch sockets."""
        try:
            self._loop.add_reader(self._receiver, self._receive)
        except NotImplementedError:
            return
        self.listening = True
        await self._write(lambda transaction: _done(transaction.change(_SQL["listen"], self._row)))
        self._check_later()

    def _check_later(self) -> None:
        self._timer = self._loop.call_later(self._pause * random.uniform(0.8, 1), self._check_soon)

    def _check_soon(self) -> None:
        self._checking = self._loop.create_task(self.check())

    async def check(self) -> None:
        """Comes back, if somebody could not send to it and took it for dead."""
        path = {"path": self._path}
        try:
            if await self._read(lambda transaction: bool(transaction.row(_SQL["listed"], path)[0])):
                self._pause = _CHECK
            elif self.listening:
                self._pause = min(self._pause * 2, _LONGEST_CHECK)
                await self._write(lambda transaction: _done(transaction.change(_SQL["listen"], self._row)))
                self._wake()  # What it was not told of meanwhile.
        except StoreError:
            pass  # It is closed, or out of reach for now.
        if self.listening:
            self._check_later()

    async def close(self) -> None:
        """Stops listening, and removes row, socket and file. For the loop that it was opened in."""
        if self._receiver.fileno() < 0 or self._pid != os.getpid():
            return
        listening = self.listening
        self.discard()
        if listening:
            paths = {"paths": msgspec.json.encode([self._path]).decode()}
            try:
                async with asyncio.timeout(_FAREWELL):
                    await self._write(lambda transaction: _done(transaction.change(_SQL["unlisten"], paths)))
            except (StoreError, TimeoutError):
                pass  # The store is closed or out of reach: the first wake-up that finds nobody removes the row.

    def discard(self) -> None:
        """Stops listening. The row, if there is one, goes with the first wake-up that finds nobody."""
        if self.listening:
            self._loop.remove_reader(self._receiver)
            self.listening = False
        if self._timer is not None:
            self._timer.cancel()
        if self._checking is not None:
            self._checking.cancel()
        self._receiver.close()
        try:
            os.unlink(self._path)
        except OSError:
            pass  # Whoever cleans up temporary files may have been faster.

    def _receive(self) -> None:
        try:
            while True:
                self._receiver.recv(16)
        except BlockingIOError:
            pass
        self._wake()


def _done(_: int) -> None:
    return None
