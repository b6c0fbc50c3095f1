"""Wake-ups: hints from whoever committed a change to those who wait for one, in this process and in others.

Each subscription of a file has a datagram socket, and a row that tells its path to everyone who uses the file. Where
there are no such sockets, and for stores in memory, subscribers of this process are woken directly, and those of
others find out by polling.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import socket
import sqlite3
import tempfile
import threading
from collections.abc import Awaitable, Callable

import msgspec

from perdure.errors import StoreError
from perdure.stores.base import Topic
from perdure.stores.sqlite.executor import Executor, Operation, Transaction
from perdure.stores.sqlite.sql import load

_SQL = load("wake")
_LONGEST_PATH = 100
"""Bytes of a socket's path that every system allows."""
_Listeners = msgspec.json.Decoder(list[tuple[str, str]])


class Wakeups:
    """The subscriptions of a store, and the sender of its wake-ups.

    `subscribe` runs in event loops, `tell` and `prune` in the thread that writes.
    """

    def __init__(self, *, shared: bool) -> None:
        self._sockets = shared and hasattr(socket, "AF_UNIX")
        self._lock = threading.Lock()
        self._local: dict[Local, Topic] = {}
        self._directory: str | None = None
        self._sender: socket.socket | None = None
        self._stale: set[str] = set()

    async def subscribe(self, topic: Topic, wake: Callable[[], None], writer: Executor) -> Local | Remote:
        """Begins to call `wake` in the running loop; for a file, others know of it when this returns."""
        loop = asyncio.get_running_loop()
        receiver = self._bind() if self._sockets else None
        if receiver is not None:
            subscription = Remote(loop, receiver, wake, writer.run)
            try:
                await subscription.announce(topic)
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
            self._stale.clear()

    def close(self) -> None:
        """Forgets all subscribers of this process, when nothing can be told any more."""
        with self._lock:
            self._local.clear()
        if self._sender is not None:
            self._sender.close()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _forget(self, local: Local) -> None:
        with self._lock:
            self._local.pop(local, None)

    def _bind(self) -> socket.socket | None:
        with self._lock:
            if self._directory is None:
                self._directory = tempfile.mkdtemp(prefix="perdure-")
        path = os.path.join(self._directory, secrets.token_hex(4))
        if len(os.fsencode(path)) > _LONGEST_PATH:
            return None
        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        receiver.setblocking(False)
        try:
            receiver.bind(path)
        except OSError:
            receiver.close()
            return None
        return receiver

    def _send(self, path: str) -> None:
        if self._sender is None:
            self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._sender.setblocking(False)
        try:
            self._sender.sendto(b"w", path)
        except (ConnectionRefusedError, FileNotFoundError):
            self._stale.add(path)
        except OSError:
            pass  # Full, or of another user: a wake-up is a hint.


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
        wake: Callable[[], None],
        write: Callable[[Operation[None]], Awaitable[None]],
    ) -> None:
        self._loop = loop
        self._receiver = receiver
        self._path = str(receiver.getsockname())
        self._wake = wake
        self._write = write
        self.listening = False

    async def announce(self, topic: Topic) -> None:
        """Listens, and tells everyone who uses the file; does nothing in a loop that can't watch sockets."""
        try:
            self._loop.add_reader(self._receiver, self._receive)
        except NotImplementedError:
            return
        self.listening = True
        row = {"path": self._path, "topic": topic.value, "pid": os.getpid()}
        await self._write(lambda transaction: _done(transaction.change(_SQL["listen"], row)))

    async def close(self) -> None:
        """Stops listening, and removes row, socket and file. For the loop that it was opened in."""
        if self._receiver.fileno() < 0:
            return
        listening = self.listening
        self.discard()
        if listening:
            paths = {"paths": msgspec.json.encode([self._path]).decode()}
            try:
                await self._write(lambda transaction: _done(transaction.change(_SQL["unlisten"], paths)))
            except StoreError:
                pass  # The store is closed or out of reach: the first wake-up that finds nobody removes the row.

    def discard(self) -> None:
        """Stops listening. The row, if there is one, goes with the first wake-up that finds nobody."""
        if self.listening:
            self._loop.remove_reader(self._receiver)
            self.listening = False
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
