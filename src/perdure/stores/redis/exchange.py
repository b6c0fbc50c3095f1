"""The exchange: what a worker says, as the script takes it, and the reply."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from perdure.errors import StoreUnavailable
from perdure.model import Arrived, Checkpoint, Ended, Fire, Millis, Overlap, WaitFor
from perdure.stores.exchange import (
    Cancelling,
    Exchange,
    Exchanged,
    Existed,
    Save,
    Seen,
    Settle,
    Told,
    Watch,
)
from perdure.stores.redis import owned, reads
from perdure.stores.redis.claims import (
    NO_MORE,
    Kind,
    ShownClaim,
    ShownEnd,
    claim_of,
    end_of,
    token_of,
    token_parts,
    unseen,
)
from perdure.stores.redis.parking import parked
from perdure.stores.redis.pushes import Hands, Push
from perdure.stores.redis.session import Session, as_text, encode_into
from perdure.stores.redis.starts import ask
from perdure.stores.redis.timetable import Row, records

logger = logging.getLogger("perdure.store")


class _Seen(Struct):
    id: str
    worker: int
    low: int
    key: str
    signal: Arrived | None = None
    ended: ShownEnd | None = None
    missing: bool = False


class _Existed(Struct):
    worker: int
    low: int
    key: str
    id: str
    same: bool


class Reply(Struct):
    """What the script answers."""

    now: Millis
    refused: list[tuple[int, int]] = []
    existed: list[_Existed] = []
    gone: bool = False
    claims: list[ShownClaim] = []
    kinds: list[Kind] = []
    cancelled: list[tuple[int, int, Cancelling]] = []
    seen: list[_Seen] = []
    due: list[Row] = []
    next_at: Millis | None = None
    more: bool = False
    pushes: list[Push] = []
    parked: bool = False
    """Whether what is started may be pushed to the worker."""
    misplaced: list[tuple[str, str]] = []
    """In a cluster: nothing was done, since these runs are not to be made here; with the places to be looked at."""
    mail: list[tuple[int, str, str]] = []
    """In a cluster: partition and id of a run that waits for one which is over, and the id of that."""
    crowded: bool = False
    """Nothing was done, since the worker owns so much: what was claimed before is to be looked for, and told."""
    unchecked: bool = False
    """What the worker owns was not compared with what it says, since that is so much."""
    bytes: int = 0
    """In a cluster: how many the claims bring."""
    sessions: int = 0
    """In a cluster: how many the worker owns here."""
    wants: bool = False
    """In a cluster: whether runs are ready of sessions that nobody owns."""


_Replies = msgspec.msgpack.Decoder(Reply)


WATCHED = 100
"""The most watches for runs that one script looks at."""
WIDTH = 8
"""How many values stand for a save, and for a settle, in their lists; the last one is what a cluster has changed."""


async def exchange(db: Session, hands: Hands, said: Exchange) -> Exchanged:
    """One call per wake of a worker, and more where that would take long; none where what was pushed to it is all that
    it can be told."""
    hand = await hands.hand(said.worker)
    answer = None if hand is None else hand.answer(said, db.own_time())
    if answer is not None:
        return answer
    said, watches = _parted(said)
    asked = asked_of(said)
    if watches:
        owners = {(watch.ref, watch.token): None for watch in watches}
        asked["checks"] = _flat((ref, *token_parts(token)) for ref, token in owners)
    told = [] if hand is None else hand.ask(said, asked)
    found = await ask_script(db, said, asked)
    reply = told_by(said, found)
    if hand is not None:
        hand.heard(told, reply, found.pushes, parked=found.parked)
        if reply.gone:
            await hands.forget(said.worker)
    if said.owned is not None:
        await compare(db, said, found, reply)
    if found.claims:
        await _tell(db, reply, found)
    if watches:
        await _look(db, reply, [watch for watch in watches if watch.token not in reply.refused])
    return reply


def _parted(said: Exchange) -> tuple[Exchange, list[Watch]]:
    """As much of what is said as one script looks at, and the other watches."""
    if len(said.watches) <= WATCHED:
        return said, []
    runs = [watch for watch in said.watches if watch.wait.what is WaitFor.RUN]
    others = [watch for watch in said.watches if watch.wait.what is not WaitFor.RUN]
    return replace(said, watches=[*others, *runs[:WATCHED]]), runs[WATCHED:]


async def _look(db: Session, reply: Exchanged, watches: Sequence[Watch]) -> None:
    """Looks at watches for runs that the script did not look at."""
    targets = [*{watch.wait.target: None for watch in watches}]
    try:
        ended, gone, left = await _first_of(db, targets)
    except StoreUnavailable as error:
        logger.warning("what became of runs that others watch is asked again later (%s)", error)
    else:
        unread = {*left}
        looked_at = [watch for watch in watches if watch.wait.target not in unread]
        reply.seen += seen_among(looked_at, {each.id: each for each in ended}, gone, reply.now)
        reply.more |= bool(left)


async def _first_of(db: Session, targets: Sequence[str]) -> tuple[list[Ended], set[str], Sequence[str]]:
    """Of runs a page of those that have ended, and those that are not there; and those that it did not look at."""
    ended: list[Ended] = []
    looked = 0
    while looked < len(targets) and not ended:
        ended, more = await reads.first_ended(db, targets[looked:])
        looked += more
    known = {each.id for each in ended}
    gone = await reads.missing(db, [target for target in targets[:looked] if target not in known])
    return ended, {*gone}, targets[looked:]


def seen_among(
    watches: Iterable[Watch], ended: Mapping[str, Ended], gone: Container[str], now: Millis
) -> Iterator[Seen]:
    """Which watched waits for runs are true, of which some have ended, and some are not there."""
    for watch in watches:
        wait = watch.wait
        if wait.target in ended:
            yield Seen(watch.ref, watch.token, wait.key, ended=ended[wait.target])
        elif wait.target in gone:
            yield Seen(watch.ref, watch.token, wait.key, missing=True)
        elif wait.at is not None and wait.at <= now:
            yield Seen(watch.ref, watch.token, wait.key)


async def _tell(db: Session, reply: Exchanged, found: Reply) -> None:
    """Looks at what claimed runs were parked for, where that is too much for the script."""
    for claim, shown in zip(reply.claims, found.claims, strict=False):
        waits = None if shown.more is NO_MORE else unseen(shown.more)
        if waits:
            try:
                ended, gone, left = await _first_of(db, [*waits])
            except StoreUnavailable as error:
                # It is parked again, and woken, and claimed with that.
                logger.warning("what became of runs that run %s waits for is asked again later (%s)", claim.id, error)
            else:
                claim.ended += ended
                claim.unread += left
                claim.missing += [key for target in gone for key in waits[target]]


async def ask_script(db: Session, said: Exchange, asked: dict[str, Any]) -> Reply:
    """Calls the script; and again, with what was claimed before, where it would have too much to look at for that."""
    durable = bool(said.saves or said.settles or said.fires)
    reply = await db.call("exchange", asked, durable=durable, reads=_Replies)
    if reply.crowded:
        asked["mine"] = await owned.claimed_by(db, said.worker, said.serial)
        reply = await db.call("exchange", asked, durable=durable, reads=_Replies)
    return reply


async def compare(db: Session, said: Exchange, found: Reply, reply: Exchanged) -> None:
    """Compares what a worker says that it owns with what it does, where the script has not."""
    if said.owned is not None and (found.unchecked or len(said.owned) > owned.MOST):
        await owned.check(db, said, reply)


def told_by(said: Exchange, reply: Reply) -> Exchanged:
    """The reply to an exchange."""
    return Exchanged(
        now=reply.now,
        claims=[claim_of(each, reply.kinds, said.worker, said.serial) for each in reply.claims],
        refused=sorted({token_of(*parts) for parts in reply.refused}) if reply.refused else [],
        cancelled=[(token_of(worker, low), why) for worker, low, why in reply.cancelled] if reply.cancelled else [],
        seen=_seen_of(reply.seen) if reply.seen else [],
        next_at=reply.next_at,
        more=reply.more,
        due=records(reply.due) if reply.due else [],
        gone=reply.gone,
        existed=_existed_of(reply.existed) if reply.existed else [],
    )


def _seen_of(seen: Iterable[_Seen]) -> list[Seen]:
    return [
        Seen(each.id, token_of(each.worker, each.low), each.key, each.signal, end_of(each.ended), each.missing)
        for each in seen
    ]


def _existed_of(existed: Iterable[_Existed]) -> list[Existed]:
    return [Existed(token_of(each.worker, each.low), each.key, each.id, each.same) for each in existed]


def asked_of(said: Exchange) -> dict[str, Any]:
    """An exchange as the script takes it."""
    asked: dict[str, Any] = {
        "worker": said.worker,
        "serial": said.serial,
        "slots": said.slots,
    }
    if said.after:
        asked["after"] = said.after
    if said.repeated:
        asked["repeated"] = True
    if said.draining:
        asked["draining"] = True
    if said.skips:
        asked["skips"] = said.skips
    if said.saves:
        asked["saves"] = _flat(map(_save, said.saves))
    if said.settles:
        asked["settles"] = _flat(map(_settle, said.settles))
    if said.watches:
        asked["watches"] = [{**_of(watch), "wait": watch.wait} for watch in said.watches]
    if said.told:
        asked["told"] = [{**_of(told), "status": told.status} for told in said.told]
    if said.owned is not None and len(said.owned) <= owned.MOST:
        asked["owned"] = _flat((ref, *token_parts(token)) for ref, token in said.owned)
    if said.fires:
        asked["fires"] = [_fire(fire) for fire in said.fires]
    return asked


def _of(said: Watch | Told) -> dict[str, Any]:
    worker, low = token_parts(said.token)
    return {"id": said.ref, "worker": worker, "low": low}


def _flat(items: Iterable[tuple[Any, ...]]) -> list[Any]:
    """One list of all: scripts read that with half the work. So nothing in it is None, where their lists end."""
    return [*chain.from_iterable(items)]


def _wanting(checkpoint: Checkpoint) -> bytearray:
    """A checkpoint as a packed map that wants two fields more, which the script adds: it has less than fourteen, so how
    many there are is in its first byte."""
    packed = bytearray()
    encode_into(checkpoint, packed)
    packed[0] += 2
    return packed


def _save(save: Save) -> tuple[Any, ...]:
    checkpoint = save.checkpoint
    if checkpoint.position or checkpoint.saved_at:
        checkpoint = replace(checkpoint, position=0, saved_at=0)
    return (
        save.ref,
        *token_parts(save.token),
        checkpoint.key,
        checkpoint.outcome,
        as_text(_wanting(checkpoint)),
        0 if save.gives_back else save.consumes or False,
        save.starts is not None and ask(save.starts, parent=str(save.ref)),
    )


def _settle(settle: Settle) -> tuple[Any, ...]:
    return (
        settle.ref,
        *token_parts(settle.token),
        settle.to,
        False if settle.body is None else settle.body,
        settle.cause or False,
        settle.delay,
        parked(settle.waits) if settle.waits else False,
    )


def _fire(fire: Fire) -> dict[str, Any]:
    asked: dict[str, Any] = {"name": fire.name, "slot": fire.slot, "starts": [ask(start) for start in fire.starts]}
    if fire.next_slot is not None:
        asked["next_slot"] = fire.next_slot
    if fire.overlap is not Overlap.ALLOW:
        reason = f"the next run of schedule {fire.name} began"
        asked.update(overlap=fire.overlap, reason=reason, body=msgspec.json.encode(reason).decode())
    return asked
