"""The exchange: what a worker says, as the script takes it, and the reply."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from perdure.model import Arrived, Fire, Millis, Overlap
from perdure.stores.base import (
    CLAIM_BYTES,
    PAGE,
    Cancelling,
    Exchange,
    Exchanged,
    Existed,
    Seen,
)
from perdure.stores.redis.claims import ShownClaim, ShownEnd, claim_of, end_of, token_number, token_text
from perdure.stores.redis.pushes import Hands, Push
from perdure.stores.redis.session import Session
from perdure.stores.redis.starts import ask
from perdure.stores.redis.timetable import Row, records


class _Seen(Struct):
    id: str
    token: str
    key: str
    signal: Arrived | None = None
    ended: ShownEnd | None = None
    missing: bool = False


class _Existed(Struct):
    token: str
    key: str
    id: str
    same: bool


class Reply(Struct):
    """What the script answers."""

    now: Millis
    refused: list[str] = []
    existed: list[_Existed] = []
    gone: bool = False
    claims: list[ShownClaim] = []
    cancelled: list[tuple[str, Cancelling]] = []
    seen: list[_Seen] = []
    due: list[Row] = []
    next_at: Millis | None = None
    more: bool = False
    pushes: list[Push] = []
    misplaced: list[tuple[str, str]] = []
    """In a cluster: nothing was done, since these runs are not to be made here; with the places to be looked at."""
    mail: list[tuple[int, str, str]] = []
    """In a cluster: partition and id of a run that waits for one which is over, and the id of that."""
    bytes: int = 0
    """In a cluster: how many the claims bring."""
    sessions: int = 0
    """In a cluster: how many the worker owns here."""
    wants: bool = False
    """In a cluster: whether runs are ready of sessions that nobody owns."""


Replies = msgspec.msgpack.Decoder(Reply)


async def exchange(db: Session, hands: Hands, said: Exchange) -> Exchanged:
    """One call per wake of a worker; none where what was pushed to it is all that it can be told."""
    hand = await hands.hand(said.worker)
    if hand is None:
        return told_by(said, await _call(db, said, asked_of(said)))
    answer = hand.answer(said, db.own_time())
    if answer is not None:
        return answer
    asked = asked_of(said)
    told = hand.ask(asked)
    found = await _call(db, said, asked)
    reply = told_by(said, found)
    hand.heard(told, reply, found.pushes)
    return reply


async def _call(db: Session, said: Exchange, asked: dict[str, Any]) -> Reply:
    durable = bool(said.saves or said.settles or said.fires)
    return await db.call("exchange", asked, durable=durable, reads=Replies)


def told_by(said: Exchange, reply: Reply) -> Exchanged:
    """The reply to an exchange."""
    return Exchanged(
        now=reply.now,
        claims=[claim_of(each, said.worker, said.serial) for each in reply.claims],
        refused=sorted(map(token_number, reply.refused)),
        cancelled=[(token_number(token), why) for token, why in reply.cancelled],
        seen=[
            Seen(each.id, token_number(each.token), each.key, each.signal, end_of(each.ended), each.missing)
            for each in reply.seen
        ],
        next_at=reply.next_at,
        more=reply.more,
        due=records(reply.due),
        gone=reply.gone,
        existed=[Existed(token_number(each.token), each.key, each.id, each.same) for each in reply.existed],
    )


def asked_of(said: Exchange) -> dict[str, Any]:
    """An exchange as the script takes it."""
    asked: dict[str, Any] = {
        "worker": said.worker,
        "serial": said.serial,
        "slots": said.slots,
        "after": said.after,
        "bytes": CLAIM_BYTES,
        "page": PAGE,
    }
    if said.repeated:
        asked["repeated"] = True
    if said.draining:
        asked["draining"] = True
    if said.skips:
        asked["skips"] = said.skips
    if said.saves:
        asked["saves"] = [
            {
                "id": save.ref,
                "token": token_text(save.token),
                "checkpoint": save.checkpoint,
                **({} if save.consumes is None else {"consumes": save.consumes}),
                **({} if save.starts is None else {"starts": ask(save.starts, parent=str(save.ref))}),
            }
            for save in said.saves
        ]
    if said.settles:
        asked["settles"] = [
            {
                "id": settle.ref,
                "token": token_text(settle.token),
                "to": settle.to,
                "delay": settle.delay,
                **({} if settle.body is None else {"body": settle.body}),
                **({} if settle.cause is None else {"cause": settle.cause}),
                **({"waits": settle.waits} if settle.waits else {}),
            }
            for settle in said.settles
        ]
    if said.watches:
        asked["watches"] = [
            {"id": watch.ref, "token": token_text(watch.token), "wait": watch.wait} for watch in said.watches
        ]
    if said.told:
        asked["told"] = [{"id": told.ref, "token": token_text(told.token), "status": told.status} for told in said.told]
    if said.owned is not None:
        asked["owned"] = [{"id": ref, "token": token_text(token)} for ref, token in said.owned]
    if said.fires:
        asked["fires"] = [_fire(fire) for fire in said.fires]
    return asked


def _fire(fire: Fire) -> dict[str, Any]:
    asked: dict[str, Any] = {"name": fire.name, "slot": fire.slot, "starts": [ask(start) for start in fire.starts]}
    if fire.next_slot is not None:
        asked["next_slot"] = fire.next_slot
    if fire.overlap is not Overlap.ALLOW:
        reason = f"the next run of schedule {fire.name} began"
        asked.update(overlap=fire.overlap, reason=reason, body=msgspec.json.encode(reason).decode())
    return asked
