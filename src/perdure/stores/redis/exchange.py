"""The exchange: what a worker says, as the script takes it, and the reply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from perdure.model import Arrived, Checkpoint, Ended, Fire, Millis, Overlap, State
from perdure.stores.base import (
    CLAIM_BYTES,
    PAGE,
    Cancelling,
    Claim,
    Exchange,
    Exchanged,
    Existed,
    Seen,
)
from perdure.stores.redis.session import Session
from perdure.stores.redis.starts import ask
from perdure.stores.redis.timetable import Row, records

_LOW = (1 << 40) - 1


def token_text(token: int) -> str:
    """A token as scripts know it: its worker, and what is left. A number of Lua has no room for it."""
    return f"{token >> 40}-{token & _LOW}"


def token_number(text: str) -> int:
    """A token from its text."""
    worker, _, low = text.rpartition("-")
    return (int(worker) << 40) + int(low)


class _Ended(Struct):
    id: str
    state: State
    body: str | None = None


class _Claim(Struct):
    id: str
    number: int
    workflow: str
    queue: str
    input: str
    created_at: Millis
    attempt: int = 1
    crashes: int = 0
    cut_off: bool = False
    deadline: Millis | None = None
    parent: str | None = None
    cancelling: Cancelling | None = None
    checkpoints: list[Checkpoint] = []
    signals: list[Arrived] = []
    ended: list[_Ended] = []
    missing: list[str] = []
    group: str = ""
    session: str = ""
    version: str = ""
    labels: dict[str, str] = {}


class _Seen(Struct):
    id: str
    token: str
    key: str
    signal: Arrived | None = None
    ended: _Ended | None = None
    missing: bool = False


class _Existed(Struct):
    token: str
    key: str
    id: str
    same: bool


class _Reply(Struct):
    now: Millis
    refused: list[str] = []
    existed: list[_Existed] = []
    gone: bool = False
    claims: list[_Claim] = []
    cancelled: list[tuple[str, Cancelling]] = []
    seen: list[_Seen] = []
    due: list[Row] = []
    next_at: Millis | None = None
    more: bool = False


_Replies = msgspec.msgpack.Decoder(_Reply)


async def exchange(db: Session, said: Exchange) -> Exchanged:
    """One call per wake of a worker."""
    durable = bool(said.saves or said.settles or said.fires)
    reply = await db.call("exchange", _asked(said), durable=durable, reads=_Replies)
    first = (said.worker << 40) + (said.serial << 8)
    return Exchanged(
        now=reply.now,
        claims=[_claim(each, first + each.number) for each in reply.claims],
        refused=sorted(map(token_number, reply.refused)),
        cancelled=[(token_number(token), why) for token, why in reply.cancelled],
        seen=[
            Seen(each.id, token_number(each.token), each.key, each.signal, _end(each.ended), each.missing)
            for each in reply.seen
        ],
        next_at=reply.next_at,
        more=reply.more,
        due=records(reply.due),
        gone=reply.gone,
        existed=[Existed(token_number(each.token), each.key, each.id, each.same) for each in reply.existed],
    )


def _asked(said: Exchange) -> dict[str, Any]:
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
    if said.owned:
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


def _claim(claim: _Claim, token: int) -> Claim:
    return Claim(
        ref=claim.id,
        token=token,
        id=claim.id,
        workflow=claim.workflow,
        queue=claim.queue,
        input=claim.input,
        attempt=claim.attempt,
        crashes=claim.crashes,
        cut_off=claim.cut_off,
        created_at=claim.created_at,
        deadline=claim.deadline,
        parent=claim.parent,
        cancelling=claim.cancelling,
        checkpoints=claim.checkpoints[:PAGE],
        signals=claim.signals[:PAGE],
        ended=_ends(claim.ended),
        missing=claim.missing,
        more_checkpoints=len(claim.checkpoints) > PAGE,
        more_signals=len(claim.signals) > PAGE,
        group=claim.group,
        session=claim.session,
        version=claim.version,
        labels=claim.labels,
    )


def _end(found: _Ended | None) -> Ended | None:
    return None if found is None else _ends([found])[0]


def _ends(found: Sequence[_Ended]) -> list[Ended]:
    return [Ended(each.id, each.state, each.body) for each in found]
