"""The messages that tell of runs that have ended, with their results."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from perdure.stores.base import Subscription
from perdure.stores.redis.listen import subscribe
from perdure.stores.redis.url import Location
from perdure.stores.shared.results import Receive, Told


class _Message(Struct):
    v: int
    runs: list[Told]


_Messages = msgspec.msgpack.Decoder(_Message)


async def listen(location: Location, receive: Receive) -> Subscription:
    """Hands them on, in the running loop. One of a version that says it in another way is as good as missed."""

    def take(message: bytes) -> None:
        try:
            runs = _Messages.decode(message).runs
        except msgspec.MsgspecError:
            receive(None)
        else:
            receive(runs)

    return await subscribe(location, "ended", lambda: receive(None), on_message=lambda message, _: take(message))
