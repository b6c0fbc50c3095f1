"""Why runs are kept from running: what the store decides by, when it is asked."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.model import Scope
from perdure.stores.postgres.session import Session
from perdure.stores.sqlite.claim import _budget, _Rows, _Running
from perdure.stores.sqlite.reasons import _FactsList, _head, _Pauses, _reason
from perdure.budget import scopes_of


async def reasons(db: Session, numbers: Sequence[int]) -> dict[int, str]:
    """For those of the runs that something keeps from running: what it is. A free slot or a worker may lack besides."""
    facts = await db.decode(_FactsList, "facts", list(numbers))
    if not facts:
        return {}
    groups = sorted({each.group for each in facts if each.group})
    pauses = {Scope(pause.kind, pause.name): pause for pause in await db.decode(_Pauses, "pauses", groups)}
    left = {Scope(row.kind, row.name): _budget(row) for row in await db.decode(_Rows, "budgets", groups)}
    if any(budget.left is not None for budget in left.values()):
        for queue, workflow, runs in await db.decode(_Running, "running"):
            for scope in scopes_of(queue, workflow):
                budget = left.get(scope)
                if budget is not None and budget.left is not None:
                    budget.left -= runs
    now = db.clock() or int(await db.get("now"))
    found = {each.run: _reason(each, pauses, left, now) for each in facts}
    return {run: reason for run, reason in found.items() if reason is not None}
