"""Why runs are kept from running: what the store decides by, when it is asked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perdure.budget import Budget, Head
from perdure.model import Scope
from perdure.stores.postgres.session import Session
from perdure.stores.shared.budgets import limited, read_budgets, take_running
from perdure.stores.shared.reasons import Facts, explain, heads_of, holders_of, read_facts, read_pauses, show_time


async def reasons(db: Session, numbers: Sequence[int]) -> dict[int, str]:
    """For those of the runs that something keeps from running: what it is. A free slot or a worker may lack besides."""
    facts = await _facts(db, numbers)
    if not facts:
        return {}
    holding = holders_of(facts)
    holders = await _facts(db, holding) if holding else []
    heads = heads_of([*facts, *holders])
    groups = sorted({head.group for head in heads if head.group})
    pauses = read_pauses(await db.text("pauses", groups))
    found = explain(facts, holders, pauses, await budgets(db, heads), await db.time())
    if put_off := [each.run for each in facts if each.held == "start"]:
        found.update(dict.fromkeys(put_off, await _opener(db)))
    return found


async def budgets(db: Session, heads: Iterable[Head]) -> dict[Scope, Budget]:
    """What is left of limits and rates, of all scopes that runs lie in."""
    left = read_budgets(await db.text("budgets", sorted({head.group for head in heads if head.group})))
    if limited(left):
        take_running(left, await db.text("running"))
    return left


async def _opener(db: Session) -> str:
    """Why what a run starts can't be made: a transaction has its id or unique key, or that of one for which others wait
    who make the first run of the same workflow and queue."""
    what = "what it starts has to wait for a transaction that is open"
    for row in await db.read("openers"):
        state = f", {row['state']}" if row["state"] else ""
        since = f" since {show_time(row['since'])}" if row["since"] else ""
        who = f"process {row['pid']} ({row['application']}, user {row['role']}{state}){since}"
        return f"{what}: that of {who}; let it commit, or SELECT pg_terminate_backend({row['pid']})"
    return what


async def _facts(db: Session, numbers: Sequence[int]) -> list[Facts]:
    return read_facts(await db.text("facts", list(numbers), db.clock()))
