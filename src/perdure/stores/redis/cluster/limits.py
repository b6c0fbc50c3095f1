"""Limits, rates and pauses over partitions: the first one keeps them, with their revisions, and the others adopt them.

A group lies in one partition, and what is set for it holds there. Of what is set for a queue, a workflow or the
namespace each partition has its part: of a limit that is rounded up, so that at most one run less than there are
partitions goes beyond it; a rate runs out that much slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from perdure.model import LimitRecord, Limits, Scope
from perdure.stores.redis import limits as single
from perdure.stores.redis.cluster.parts import Parts, together
from perdure.stores.redis.session import Session

_Kept = msgspec.msgpack.Decoder(list[tuple[str, str, dict[str, Any]]])


async def set_limits(parts: Parts, scope: Scope, limits: Limits, who: str, *, declared: bool) -> LimitRecord:
    """Sets what holds for a scope; returns what holds."""
    return await _spread(parts, scope, await single.set_limits(parts.first, scope, limits, who, declared=declared))


async def pause(parts: Parts, scope: Scope, who: str, *, paused: bool) -> LimitRecord:
    """Keeps runs of a scope from beginning, or lets them again; returns what holds."""
    return await _spread(parts, scope, await single.pause(parts.first, scope, who, paused=paused))


async def limits(parts: Parts) -> list[LimitRecord]:
    """What is stored for scopes, with how much of it is used in all partitions."""
    first, *others = await parts.each(single.limits)
    known = {record.scope: record for record in first}
    for record in (each for records in others for each in records):
        if record.scope in known:
            _add(known[record.scope], record)
    return first


async def _spread(parts: Parts, scope: Scope, record: LimitRecord) -> LimitRecord:
    """Has the other partitions adopt what the first one keeps, also when it was there already: whoever set it may have
    come no further."""
    kept = await parts.first.call("scope", {"kind": scope.kind, "name": scope.name}, reads=_Kept)
    if kept:
        for other in await together(_adopt(session, kept) for session in parts.sessions[1:]):
            _add(record, other)
    return record


async def _adopt(session: Session, kept: Sequence[tuple[str, str, dict[str, Any]]]) -> LimitRecord:
    [(kind, name, holds)] = kept
    asked = {"kind": kind, "name": name, "kept": holds, **single.parts_of(session)}
    return single.record((await single.change(session, "adopt_limits", asked))[0])


def _add(record: LimitRecord, other: LimitRecord) -> None:
    record.running += other.running
    record.queues = max(record.queues, other.queues)
