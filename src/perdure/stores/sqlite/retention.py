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
from perdure.stores.sqlite.control import end, find_run
from perdure.stores.sqlite.executor import Transaction
from perdure.stores.sqlite.sql import encode, load

PRUNE_ROWS = 10_000
"""The most checkpoints and signals that one transaction removes with their runs, unless it is one run."""

_SQL = load("retention")
_Ids = msgspec.json.Decoder(list[str])
_Sizes = msgspec.json.Decoder(list[int])
_Lanes = msgspec.json.Decoder(list[tuple[int, str, dict[State, int], dict[State, int]]])
_Family = msgspec.json.Decoder(list[tuple[int, int]])


class Ending(NamedTuple):
    """A run that ended: its place in the order of finishing, and its number."""

    finish: int
    seq: int


class Due(NamedTuple):
    """What is to be pruned, and the parents and batches that ended since some of their runs were passed over."""

    keepers: list[str]
    endings: list[Ending]
    sizes: list[int]
    """How many rows are kept of each."""
    empty: list[str]
    """Batches that have nothing that would take them along."""

    @property
    def nothing(self) -> bool:
        """Whether there is nothing to be done."""
        return not (self.keepers or self.endings or self.empty)

    def parts(self) -> Iterator[Due]:
        """What one transaction takes at a time: so many rows, but always one run."""
        first, rows = 0, 0
        for number, size in enumerate(self.sizes):
            if rows + size > PRUNE_ROWS and number > first:
                yield self._part(first, number)
                first, rows = number, 0
            rows += size
        yield self._part(first, len(self.sizes))

    def _part(self, first: int, end: int) -> Due:
        endings, sizes = self.endings[first:end], self.sizes[first:end]
        return Due([], endings, sizes, []) if first else Due(self.keepers, endings, sizes, self.empty)


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


def choose(policies: Sequence[Retention], workflow: str, state: State) -> Retention | None:
    """The policy that holds for runs of a workflow that ended in a state: the most specific one, the last of equals."""
    fitting = [policy for policy in policies if policy.workflow in (None, workflow) and policy.state in (None, state)]
    return max(
        reversed(fitting), key=lambda policy: (policy.workflow is not None, policy.state is not None), default=None
    )


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
