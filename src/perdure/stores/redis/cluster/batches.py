"""Batches in a cluster: each with all of its runs, and its callback, in one partition: that of the run which opened it,
or else of its id."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.errors import not_of_batch
from perdure.model import BatchRecord, Start, Started
from perdure.stores.redis import batches
from perdure.stores.redis.cluster.parts import together
from perdure.stores.redis.cluster.places import Places, Placing
from perdure.stores.redis.session import Refused


async def open_batch(places: Places, batch: str, starts: Sequence[Start], callback: Start | None) -> list[Started]:
    """Makes all runs of a batch and its callback."""
    parts = places.parts
    made = [*starts] if callback is None else [*starts, callback]
    parents = await places.locate({start.parent for start in made if start.parent})
    partition = next(iter(parents.values()), parts.home(batch))
    for start in made:
        parts.target(start, partition, "parent" if start.parent else "batch")
    placing = Placing(places, [(start, partition) for start in made], of_runs=bool(parents))
    await placing.begin()
    while True:
        for run_id in await placing.existing():  # All of a batch are in one partition.
            raise not_of_batch(run_id)
        found = {start.id: place for start in made if (place := placing.place(start.id)) is not None}
        try:
            answers = await batches.open_batch(parts.sessions[partition], batch, starts, callback, found)
        except Refused as refused:
            await placing.follow([(refused.said[0], refused.said[1])])
            continue
        for start in starts:
            places.learn(start.id, partition)
        return answers


async def load_batch(places: Places, batch: str) -> BatchRecord | None:
    """How far a batch has come, or None."""
    sessions = places.parts.sessions
    home = sessions[places.parts.home(batch)]
    found = await batches.load_batch(home, batch)
    if found is None:
        others = [batches.load_batch(session, batch) for session in sessions if session is not home]
        found = next((each for each in await together(others) if each is not None), None)
    return found
