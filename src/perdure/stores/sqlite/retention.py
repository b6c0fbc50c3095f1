"""What leaves the store: runs that retention lets go, and those that somebody deletes."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from perdure.errors import RunNotEnded
from perdure.model import Millis, Retention, State
from perdure.stores.base import Topic
from perdure.stores.shared.retention import Due, Ending, choose
from perdure.stores.sqlite.control import end, find_run
from perdure.stores.sqlite.executor import Transaction
from perdure.stores.sqlite.sql import encode, load

_SQL = load("retention")
_Ids = msgspec.json.Decoder(list[str])
_Sizes = msgspec.json.Decoder(list[int])
_Lanes = msgspec.json.Decoder(list[tuple[int, str, dict[State, int], dict[State, int]]])
_Family = msgspec.json.Decoder(list[tuple[int, int]])


class Held(NamedTuple):
    """The runs for which one policy holds: in which lanes and states they are, and how many there are of them."""

    places: list[tuple[int, State]]
    runs: int


def due(transaction: Transaction, policies: Sequence[Retention], limit: int) -> Due:
    """What policies let go, oldest end first, at most `limit`. Reads only, and little more than it returns."""
    keepers = _Ids.decode(transaction.row(_SQL["keepers"], {"limit": limit})[0])
    walks = [_let_go(transaction, policy, held) for policy, held in _apply(transaction, policies)]
    endings = list(islice(heapq.merge(*walks), limit))
    sizes = _Sizes.decode(transaction.row(_SQL["sizes"], {"runs": encode([ending.seq for ending in endings])})[0])
    return Due(keepers, endings, sizes, _empty(transaction, policies, limit))


def _empty(transaction: Transaction, policies: Sequence[Retention], limit: int) -> list[str]:
    """Batches without runs, which go when what succeeded does, of no workflow in particular."""
    policy = choose(policies, "", State.SUCCEEDED)
    if policy is None or policy.age is None:
        return []
    before = transaction.now - policy.age
    return _Ids.decode(transaction.row(_SQL["empty"], {"before": before, "limit": limit})[0])


def _apply(transaction: Transaction, policies: Sequence[Retention]) -> list[tuple[Retention, Held]]:
    places: dict[Retention, list[tuple[int, State]]] = defaultdict(list)
    runs: dict[Retention, int] = defaultdict(int)
    for lane, workflow, ended, kept in _Lanes.decode(transaction.row(_SQL["lanes"])[0]):
        for state, number in ended.items():
            policy = choose(policies, workflow, state) if number else None
            if policy is not None:
                places[policy].append((lane, state))
                runs[policy] += number - kept.get(state, 0)
    return [(policy, Held(places[policy], runs[policy])) for policy in places]


def _let_go(transaction: Transaction, policy: Retention, held: Held) -> Iterator[Ending]:
    """Runs in the order in which they ended, until one comes that is to stay; all that come after it stay as well."""
    surplus = 0 if policy.count is None else held.runs - policy.count
    latest = None if policy.age is None else transaction.now - policy.age
    walks: list[Iterator[tuple[int, Millis, int]]] = [
        transaction.connection.execute(_SQL["ended"], {"lane": lane, "state": state}) for lane, state in held.places
    ]
    for number, (finish, finished_at, seq) in enumerate(heapq.merge(*walks)):
        if number >= surplus and (latest is None or finished_at > latest):
            return
        yield Ending(finish, seq)


def prune(transaction: Transaction, due: Due) -> tuple[int, bool]:
    """Removes those of the runs that still are as they were when they were found, but for those whose parent or batch
    lives: these are not found again before that has ended.

    Returns how many were removed, and whether there may be others in their place.
    """
    changed = 0
    if due.keepers:
        changed += transaction.change(_SQL["let_go"], {"keepers": encode(due.keepers)})
    if due.empty:
        changed += transaction.change(_SQL["drop_empty"], {"batches": encode(due.empty)})
    changed += transaction.change(_SQL["pass_over"], {"runs": encode([ending.seq for ending in due.endings])})
    removed = transaction.change(_SQL["prune"], {"ended": encode(due.endings)})
    return removed, changed + removed > 0


def delete(transaction: Transaction, run_id: str, *, force: bool) -> int:
    """Removes a run and its descendants; returns how many. What has not ended is cancelled first, so that all that
    waits for its end goes on."""
    run, _ = find_run(transaction, run_id)
    family = _Family.decode(transaction.row(_SQL["family"], {"run": run})[0])
    live = [seq for seq, alive in family if alive]
    if live and not force:
        raise RunNotEnded(
            f"{len(live)} of the {len(family)} runs that go with run {run_id} have not ended: cancel it first, or force"
        )
    end(transaction, live, State.CANCELLED, encode("deleted"))
    if live:
        transaction.tell |= {Topic.ENDED, Topic.WORK}
    transaction.change(_SQL["delete"], {"runs": encode([seq for seq, _ in family])})
    return len(family)
