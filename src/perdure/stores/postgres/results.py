"""The notifications that tell of runs that have ended, with their results."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from perdure.model import State
from perdure.stores.base import Subscription, Topic
from perdure.stores.postgres.listen import subscribe
from perdure.stores.postgres.session import Session
from perdure.stores.postgres.told import ToldSubscription
from perdure.stores.postgres.url import Location
from perdure.stores.shared.results import Receive, Told


class _Run(Struct, array_like=True):
    id: str
    state: State
    body: str | None
    long: bool


_Runs = msgspec.json.Decoder(list[_Run])


async def listen(location: Location, db: Session, receive: Receive) -> Subscription:
    """Hands them on, in the running loop. One that does not say which runs, or in another way, is as good as missed."""

    def take(said: str) -> None:
        try:
            runs = _Runs.decode(said)
        except msgspec.MsgspecError:
            receive(None)
        else:
            receive(Told(run.id, run.state, run.body, run.long) for run in runs)

    inner = await subscribe(location, Topic.ENDED, lambda: receive(None), take)
    return await ToldSubscription.begin(db, Topic.ENDED, inner)
