"""The messages that tell of runs that have ended, with their results."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from perdure.stores.base import Subscription
from perdure.stores.redis.listen import subscribe
from perdure.stores.redis.url import Location
from perdure.stores.shared.results import Receive, Told

VERSION = 1


class _Message(Struct):
    v: int
    runs: list[Told]


_Messages = msgspec.msgpack.Decoder(_Message)


async def listen(location: Location, receive: Receive) -> Subscription:
    """Hands them on, in the running loop. One of another version, which may mean something else by it, is as good as
    missed."""

    def take(message: bytes) -> None:
        try:
            told = _Messages.decode(message)
        except msgspec.MsgspecError:
            told = None
        receive(told.runs if told is not None and told.v == VERSION else None)

    return await subscribe(location, "ended", lambda: receive(None), on_message=lambda message, _: take(message))
