"""What the verbs need of a connection: statements by their names, and replies as values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import msgspec

from perdure.model import Millis
from perdure.stores.postgres.pool import Connections
from perdure.stores.postgres.sql import load

T = TypeVar("T")

_FILES = ("call", "read", "list")


class Session:
    """The statements of a schema, on the connections of a store; `reserved` are those for its workers."""

    def __init__(
        self, connections: Connections, schema: str, now: Callable[[], Millis] | None, *, reserved: bool = False
    ) -> None:
        self._call = partial(connections.call, reserved=reserved)
        self._now = now
        self.sql: Mapping[str, Mapping[str, str]] = {file: load(file, schema) for file in _FILES}
        self._calls, self._reads = self.sql["call"], self.sql["read"]

    def clock(self) -> Millis | None:
        """The time to be taken for the server's; None for its own."""
        return None if self._now is None else self._now()

    async def time(self) -> Millis:
        """The store's time."""
        return self.clock() or int(await self.get("now"))

    async def text(self, name: str, *args: Any) -> str | None:
        """The one text that a statement that reads gives, as a rule JSON."""
        return (await self._call(self._reads[name], *args))[0][0]

    async def call(self, name: str, *args: Any) -> Any:
        """Calls a function of the schema; returns its row."""
        return (await self._call(self._calls[name], *args))[0]

    async def get(self, name: str, *args: Any) -> Any:
        """Calls a function of the schema that returns one value."""
        return (await self._call(self._calls[name], *args))[0][0]

    async def rows(self, sql: str, *args: Any) -> list[Any]:
        """The rows of a statement that is put together elsewhere."""
        return await self._call(sql, *args)

    async def read(self, name: str, *args: Any) -> list[Any]:
        """The rows of a statement that reads."""
        return await self._call(self._reads[name], *args)

    async def decode(self, decoder: msgspec.json.Decoder[list[T]], name: str, *args: Any) -> list[T]:
        """What a statement that reads gives as one JSON list; NULL is the empty one."""
        return parse(decoder, (await self._call(self._reads[name], *args))[0][0])


def parse(decoder: msgspec.json.Decoder[list[T]], text: str | None) -> list[T]:
    """A JSON list, where NULL is the empty one."""
    return [] if text is None else decoder.decode(text)


def encode(value: object) -> str:
    """JSON for a parameter."""
    return msgspec.json.encode(value).decode()


def unless_all(usual: object, values: list[Any]) -> list[Any] | None:
    """An array for a parameter; None, which costs nothing, when all of it is what the statement takes then."""
    return None if values.count(usual) == len(values) else values
