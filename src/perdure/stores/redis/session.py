"""Calls of scripts with arguments that are packed, and replies that are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast, overload

import msgspec

from perdure.model import Millis
from perdure.stores.redis.connect import Redis
from perdure.stores.redis.scripts import load

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()
encode, encode_into = _encoder.encode, _encoder.encode_into


def as_text(packed: bytes | bytearray) -> msgspec.Raw:
    """What is packed already, as a part that scripts get as it is: they know texts alone, of whatever bytes."""
    size = len(packed)
    if size < 1 << 8:
        header = b"\xd9" + size.to_bytes(1)
    elif size < 1 << 16:
        header = b"\xda" + size.to_bytes(2)
    else:
        header = b"\xdb" + size.to_bytes(4)
    return msgspec.Raw(header + packed)


class _Refusal(msgspec.Struct):
    refused: str
    said: list[Any] = msgspec.field(name="with")


class Refused(Exception):
    """A script did not do what it was asked for: `kind` is its word for why, `said` what it says besides."""

    def __init__(self, kind: str, said: list[Any]) -> None:
        super().__init__(kind)
        self.kind = kind
        self.said = said


class Session:
    """The scripts of one namespace, or of one partition of it, by the server's clock or another one."""

    def __init__(self, redis: Redis, now: Callable[[], Millis] | None, partition: int | None = None) -> None:
        self.redis = redis
        self.partition = partition or 0
        self._now = now
        self._more = () if partition is None else ("spread",)

    def clock(self) -> str:
        """The time by which a script goes; empty for that of the server."""
        return "" if self._now is None else str(self._now())

    def own_time(self) -> Millis | None:
        """The time of the clock that replaces the server's, if there is one."""
        return None if self._now is None else self._now()

    @overload
    async def call(self, name: str, args: object = ..., *, durable: bool = ...) -> Any: ...
    @overload
    async def call(
        self, name: str, args: object = ..., *, durable: bool = ..., reads: msgspec.msgpack.Decoder[T]
    ) -> T: ...
    async def call(
        self,
        name: str,
        args: object = None,
        *,
        durable: bool = False,
        reads: msgspec.msgpack.Decoder[Any] | None = None,
    ) -> Any:
        """Runs a script; `durable` for those that write what must not be lost. Raises `Refused`."""
        packed = encode({} if args is None else args)
        reply = await self.redis.call(
            load(name), self.clock(), packed, *self._more, partition=self.partition, durable=durable
        )
        if reads is not None:
            return reads.decode(reply)
        found: Any = msgspec.msgpack.decode(reply)
        if isinstance(found, dict) and "refused" in cast(dict[str, Any], found):
            refusal = msgspec.convert(cast(Any, found), _Refusal)
            raise Refused(refusal.refused, refusal.said)
        return cast(Any, found)
