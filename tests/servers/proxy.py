"""Proxies that lose replies: the server has done what it was asked for, and nobody hears of it."""

from __future__ import annotations

import asyncio
import re
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit, urlunsplit

_READY = b"Z"
"""The last message of a reply; the statement is committed when it comes."""
_FUNCTION = re.compile(rb"\r\nFCALL\r\n\$\d+\r\nperdure_(\w+)_[0-9a-f]{16}\r\n")
_MESSAGE = re.compile(rb">\d+\r\n\$\d+\r\ns?message\r\n")
_TEXTS = (b"$", b"=", b"!")
_LISTS = {b"*": 1, b"~": 1, b">": 1, b"%": 2}
"""What has parts, with the number of parts for each that it says it has."""


class Proxy:
    """Before PostgreSQL. Listens on a port of its own, for connections without TLS; `url` leads through it.

    `lose` is asked about each statement that is sent, by its text. When it says yes the reply is swallowed, and when it
    is complete the connection is cut.
    """

    def __init__(self, url: str, lose: Callable[[str], bool]) -> None:
        self._to = urlsplit(url)
        self._lose = lose
        self._connections: set[asyncio.Task[None]] = set()
        self.lost: Counter[str] = Counter()
        """How many replies were lost, by the text of the statement."""
        self.url = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1")
        self.url = self._through(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _through(self, port: int) -> str:
        through = self._to._replace(netloc=f"{self._to.username}@127.0.0.1:{port}", query="sslmode=disable")
        return urlunsplit(through)

    def _conversation(self) -> _Conversation:
        return _Conversation(self._lose, self.lost)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                there = await asyncio.open_connection(self._to.hostname, self._to.port)
                try:
                    await self._conversation().hold((reader, writer), there)
                finally:
                    there[1].transport.abort()
        finally:
            self._connections.discard(task)
            writer.transport.abort()


class _Conversation:
    """One connection, message by message."""

    def __init__(self, lose: Callable[[str], bool], lost: Counter[str]) -> None:
        self._lose = lose
        self._lost = lost
        self._statements: dict[bytes, str] = {}
        self._losing = ""
        """The statement whose reply is to be swallowed."""

    async def hold(
        self,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        """Until one of the two is gone, or a reply was lost."""
        ways = [
            asyncio.ensure_future(self._ask(client[0], server[1])),
            asyncio.ensure_future(self._answer(server[0], client[1])),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await _packet(reader))  # who comes, or what is to be cancelled: it has no type
        while True:
            kind = await reader.readexactly(1)
            packet = await _packet(reader)
            if kind == b"P":
                name, text, *_ = packet[4:].split(b"\0")
                self._statements[name] = text.decode()
            elif kind == b"B":
                statement = self._statements.get(packet[4:].split(b"\0")[1], "")
                if self._lose(statement):
                    self._losing = statement
            writer.write(kind + packet)
            await writer.drain()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            kind = await reader.readexactly(1)
            packet = await _packet(reader)
            if not self._losing:
                writer.write(kind + packet)
                await writer.drain()
            elif kind == _READY:
                self._lost[self._losing] += 1
                return


class RedisProxy(Proxy):
    """The same before Redis. `lose` is asked about each call of a function of ours, by its name, as in "exchange"; and
    about what is published, as "message"."""

    def _through(self, port: int) -> str:
        return urlunsplit(self._to._replace(netloc=f"127.0.0.1:{port}"))

    def _conversation(self) -> _Conversation:
        return _RedisConversation(self._lose, self.lost)


class _RedisConversation(_Conversation):
    """Replies come in the order of the commands."""

    def __init__(self, lose: Callable[[str], bool], lost: Counter[str]) -> None:
        super().__init__(lose, lost)
        self._asked: deque[str] = deque()
        """What is to be lost of the replies that are to come: the name of the function, or ""."""

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            command = await _resp(reader)
            called = _FUNCTION.search(command)
            name = called[1].decode() if called else ""
            self._asked.append(name if name and self._lose(name) else "")
            writer.write(command)
            await writer.drain()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            reply = await _resp(reader)
            if _MESSAGE.match(reply):
                if self._lose("message"):
                    self._lost["message"] += 1
                else:
                    writer.write(reply)
                continue
            losing = self._asked.popleft()
            if losing:
                self._lost[losing] += 1
                return
            writer.write(reply)
            await writer.drain()


async def _resp(reader: asyncio.StreamReader) -> bytes:
    """A command or a reply, whole."""
    line = await reader.readuntil(b"\r\n")
    kind, size = line[:1], line[1:-2]
    if kind in _TEXTS and size != b"-1":
        return line + await reader.readexactly(int(size) + 2)
    if kind in _LISTS:
        return line + b"".join([await _resp(reader) for _ in range(int(size) * _LISTS[kind])])
    return line


async def _packet(reader: asyncio.StreamReader) -> bytes:
    """A length that counts itself, and what comes with it."""
    size = await reader.readexactly(4)
    return size + await reader.readexactly(int.from_bytes(size) - 4)
