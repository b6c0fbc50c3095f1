"""A proxy before PostgreSQL that loses replies: the server has done what it was asked for, and nobody hears of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit, urlunsplit

_READY = b"Z"
"""The last message of a reply; the statement is committed when it comes."""


class Proxy:
    """Listens on a port of its own, for connections without TLS; `url` leads through it.

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
        port = self._server.sockets[0].getsockname()[1]
        through = self._to._replace(netloc=f"{self._to.username}@127.0.0.1:{port}", query="sslmode=disable")
        self.url = urlunsplit(through)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                there = await asyncio.open_connection(self._to.hostname, self._to.port)
                try:
                    await _Conversation(self._lose, self.lost).hold((reader, writer), there)
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


async def _packet(reader: asyncio.StreamReader) -> bytes:
    """A length that counts itself, and what comes with it."""
    size = await reader.readexactly(4)
    return size + await reader.readexactly(int.from_bytes(size) - 4)
