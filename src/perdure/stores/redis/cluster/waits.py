"""Waits of a run for runs of other partitions.

Before a run is parked, it is put down at the run that it waits for. When that one is over, its partition keeps mail for
the waiting one, which the next worker that has an exchange with the partition delivers, and removes only then. So the
wake-up may come late, but is not lost. Where the partition of the other one can't be reached, the run is parked all the
same, so that it takes no slot, and looks again after a while.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from perdure.errors import StoreUnavailable
from perdure.model import Ended, Millis, Wait, WaitFor
from perdure.stores.exchange import PAGE, PAGE_BYTES, Claim, Seen, Settle, To, Watch
from perdure.stores.redis.cluster.places import Places
from perdure.stores.redis.exchange import seen_among
from perdure.stores.redis.parking import hash_of, parked
from perdure.stores.redis.session import Session

logger = logging.getLogger("perdure.store")

LOOK: Millis = 1_000
"""How long it takes at most until a run that goes on learns that one of another partition has ended."""

PUT_OFF: Millis = 5_000
"""After so long a run looks again that could not be put down at all that it waits for."""

_CHUNK = 100
"""The most waits that one call puts down."""
_Bools = msgspec.msgpack.Decoder(list[bool])


async def put_down(
    places: Places, settles: Mapping[int, Iterable[Settle]], at: Mapping[str, int]
) -> dict[tuple[int, str], bool]:
    """Puts the runs that are to be parked, by their partitions, down at those of other partitions that they wait for;
    `at` has the partitions of these. Returns which they are, by the partition of the waiting run and the id of the
    other, and whether they are over."""
    asked: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for partition, each in settles.items():
        for settle in each:
            for target in targets_of(settle):
                if at.get(target, partition) != partition:
                    waiter = {"target": target, "partition": partition, "waiter": str(settle.ref)}
                    asked[at[target]].append(waiter)
    over: dict[tuple[int, str], bool] = {}

    async def put(session: Session, items: list[dict[str, Any]]) -> None:
        for first in range(0, len(items), _CHUNK):
            part = items[first : first + _CHUNK]
            found = await session.call("await", part, durable=True, reads=_Bools)
            over.update({(item["partition"], item["target"]): true for item, true in zip(part, found, strict=True)})

    await places.parts.some(asked, put)
    return over


def targets_of(settle: Settle) -> dict[str, None]:
    """The runs that one which is to be parked waits for."""
    if settle.to is not To.PARK:
        return {}
    return {wait.target: None for wait in settle.waits if wait.what is WaitFor.RUN}


def marked(
    partition: int, waits: Sequence[Wait], over: Mapping[tuple[int, str], bool], far: Container[str], until: Millis
) -> tuple[Any, ...]:
    """What a run waits for, as scripts take it; `far` are those that it is not put down at: if there are such, it looks
    again then."""
    kinds: list[str] = []
    is_true, looks = False, None
    for wait in waits:
        is_far = wait.what is WaitFor.RUN and wait.target in far
        is_over = over.get((partition, wait.target)) if wait.what is WaitFor.RUN else None
        kinds.append(wait.what if is_over is None and not is_far else "away")
        is_true |= bool(is_over)
        looks = until if is_far else looks
    return parked(waits, kinds, is_true=is_true, until=looks)


async def deliver(places: Places, mail: Mapping[int, list[tuple[int, str, str]]]) -> set[int]:
    """Delivers what partitions have for runs of others; returns the partitions that got something. What can't be
    delivered now stays where it is."""
    got: set[int] = set()
    out = places.parts.reach.out()

    async def carry(session: Session, letters: list[tuple[int, str, str]]) -> None:
        by_partition: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
        for partition, waiter, target in letters:
            by_partition[partition].append({"waiter": waiter, "target": target, "hash": hash_of(target)})
        try:
            await places.parts.some(by_partition, lambda other, told: other.call("told", told, durable=True))
            await session.call("sent", letters, durable=True)
        except StoreUnavailable as error:
            logger.warning("mail of a partition of %s has to wait (%s)", session.redis.location.name, error)
        else:
            got.update(by_partition)

    near = {
        partition: [letter for letter in letters if letter[0] not in out]
        for partition, letters in mail.items()
        if partition not in out
    }
    await places.parts.some({partition: letters for partition, letters in near.items() if letters}, carry)
    return got


async def tell(places: Places, claims: Iterable[tuple[Claim, Mapping[str, list[str]]]]) -> None:
    """Tells claimed runs how those ended that they were parked for and that their claims do not tell of: runs of other
    partitions, and such of which there are many. They come with the keys of the waits for them."""
    unseen = [(claim, target, keys) for claim, waits in claims for target, keys in waits.items()]
    if not unseen:
        return
    targets = [*dict.fromkeys(target for _, target, _ in unseen)]
    ended: dict[str, Ended] = {}
    missing: set[str] = set()
    while targets and len(ended) < PAGE and sum(map(_size, ended.values())) < PAGE_BYTES:
        some, gone = await _outcomes(places, targets[:PAGE])
        ended |= some
        missing |= gone
        del targets[:PAGE]
    left = {*targets}
    sizes = {claim.token: sum(map(_size, claim.ended)) for claim, _, _ in unseen}
    for claim, target, keys in unseen:
        if target in ended:
            sizes[claim.token] += _size(ended[target])
        if target in left or (target in ended and claim.ended and sizes[claim.token] > PAGE_BYTES):
            claim.unread.append(target)
        elif target in ended:
            claim.ended.append(ended[target])
        elif target in missing:
            claim.missing += keys


async def look(places: Places, watches: Iterable[Watch], seen: list[Seen], now: Millis) -> bool:
    """Adds to what scripts have `seen` which of some watched waits for runs are true that no script looks at: for those
    of other partitions, or of which there are many. Returns whether there are more of them than fit into a page."""
    asked = [*watches]
    if not asked:
        return False
    ended, missing = await _outcomes(places, dict.fromkeys(watch.wait.target for watch in asked))
    size = sum(_size(each.ended) for each in seen)
    for each in seen_among(asked, ended, missing, now):
        size += _size(each.ended)
        if seen and size > PAGE_BYTES:
            return True
        seen.append(each)
    return False


def _size(ended: Ended | None) -> int:
    return 0 if ended is None else len(ended.body or "")


async def _outcomes(places: Places, targets: Iterable[str]) -> tuple[dict[str, Ended], set[str]]:
    """Those of some runs that have ended, and those that are not there. Of what can't be reached nothing is known."""
    near = await places.in_reach(targets)
    try:
        ended = {each.id: each for each in await places.ended([*near])}
        return ended, {*await places.missing([target for target in near if target not in ended])}
    except StoreUnavailable as error:
        logger.warning("what became of runs that others wait for is asked again later (%s)", error)
        return {}, set()
