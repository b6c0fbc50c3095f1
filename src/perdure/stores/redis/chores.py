"""What one script only begins: it decides, and says what is left to be done; the rest follows in rounds.

A script takes up a bounded number of runs, so that it keeps the server busy for a few milliseconds at most. What is
left is put down in the store, under a number. Whoever began it goes on until it is done; where that is gone, workers
do.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from perdure.stores.redis.session import Session


class _Gone(Struct):
    more: bool
    runs: int
    """How many runs were taken back."""


_Goings = msgspec.msgpack.Decoder(_Gone)


async def finish(db: Session, number: int | None = None) -> int:
    """Goes on with all chores that were begun up to those of a number, or with all that there are; returns how many
    runs were taken back by that."""
    asked = {} if number is None else {"number": number}
    runs = 0
    while True:
        found = await db.call("go_on", asked, durable=True, reads=_Goings)
        runs += found.runs
        if not found.more:
            return runs


async def finish_left(db: Session, number: int | None) -> None:
    """Goes on with what a script has left to be done, if there is anything."""
    if number:
        await finish(db, number)
