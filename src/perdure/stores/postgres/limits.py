"""Limits, rates and pauses of scopes."""

from __future__ import annotations

from perdure.model import LimitRecord, Limits, Revision, Scope
from perdure.stores.postgres.session import Session, encode
from perdure.stores.shared.limits import check_scope, read_limit, read_limits, read_revisions


async def set_limits(db: Session, scope: Scope, limits: Limits, who: str, *, declared: bool) -> LimitRecord:
    """Sets what holds for a scope from now on, as a revision if it differs; returns what holds."""
    check_scope(scope, limits)
    text = await db.get("change_scope", db.clock(), scope.kind, scope.name, who, encode(limits), None, declared)
    return read_limit(scope, text)


async def pause(db: Session, scope: Scope, who: str, *, paused: bool) -> LimitRecord:
    """Keeps runs of a scope from beginning, or lets them again, as a revision if it differs; returns what holds."""
    check_scope(scope, Limits())
    text = await db.get("change_scope", db.clock(), scope.kind, scope.name, who, None, paused, False)
    return read_limit(scope, text)


async def limits(db: Session) -> list[LimitRecord]:
    """What is stored for scopes, with how much of it is used."""
    return read_limits(await db.get("limits", None, None))


async def revisions(db: Session, scope: Scope | None, limit: int) -> list[Revision]:
    """The changes, latest first."""
    return read_revisions(await db.text("revisions", scope and scope.kind, scope and scope.name, limit))
