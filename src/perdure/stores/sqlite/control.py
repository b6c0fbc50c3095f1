"""What clients, and deadlines, do to runs that exist: signals, cancelling, retrying."""

from __future__ import annotations

import msgspec

from perdure.errors import CheckpointNotFound, RunEnded, RunNotEnded, RunNotFound
from perdure.model import Json, Signal, State, deadline_exceeded
from perdure.stores.base import Topic
from perdure.stores.sqlite.executor import Transaction
from perdure.stores.sqlite.sql import encode, load

_SQL = load("control")
_Tree = msgspec.json.Decoder(list[tuple[int, int]])

DEADLINE = "deadline"
"""The reason of a cancellation that a deadline asks for."""


def deliver(transaction: Transaction, signal: Signal) -> None:
    """Keeps a signal and wakes its run; one that was kept before is left as it is, even if the run has ended since."""
    run, state = _run(transaction, signal.run_id)
    if transaction.first(_SQL["delivered"], {"run": run, "id": signal.id}) is not None:
        return
    if state.final:
        raise RunEnded(f"run {signal.run_id} is {state}: it takes no signals any more")
    message = {"run": run, "id": signal.id, "name": signal.name, "body": signal.body}
    transaction.change(_SQL["deliver"], message)
    woken = state is State.WAITING and transaction.change(_SQL["wake"], {"run": run, "name": signal.name})
    if woken or state is State.RUNNING:
        transaction.tell.add(Topic.WORK)


def cancel(transaction: Transaction, run_id: str, reason: str, *, children: bool) -> State:
    """Ends a run and its descendants, or asks for it where one is running; returns the state that the run has now.

    One that has ended stays as it is, but what descends from it and goes on is cancelled.
    """
    run, state = _run(transaction, run_id)
    _stop(transaction, encode([run]), reason, children=children)
    return state if state is State.RUNNING or state.final else State.CANCELLED


def expire(transaction: Transaction, overdue: str) -> None:
    """Ends runs (a JSON list of their numbers) whose deadline has passed as failed, where they are not running.

    Those that are running are asked to end, and what descends from either kind is cancelled.
    """
    idle, running = _tree(transaction, overdue, children=False)
    descend = encode(idle + running)
    _end(transaction, idle, State.FAILED, deadline_exceeded())
    _stop(transaction, descend, DEADLINE, children=True)


def retry(transaction: Transaction, run_id: str, from_key: str | None) -> None:
    """Queues a run that ended once more, with what succeeded, or what came before a checkpoint."""
    run, state = _run(transaction, run_id)
    if not state.final:
        raise RunNotEnded(f"run {run_id} is {state}: it can be retried when it has ended")
    if state is State.SUCCEEDED and from_key is None:
        raise RunNotEnded(f"run {run_id} has succeeded: name the checkpoint from which to do it again")
    position = 2**63 - 1
    if from_key is not None:
        found = transaction.first(_SQL["position"], {"run": run, "key": from_key})
        if found is None:
            raise CheckpointNotFound(f"run {run_id} has no checkpoint {from_key!r}")
        position = found[0]
    transaction.change(_SQL["rewind"], {"run": run, "position": position})
    transaction.change(_SQL["drop_outcome"], {"run": run})
    transaction.change(_SQL["again"], {"run": run})
    transaction.tell.add(Topic.WORK)


def _run(transaction: Transaction, run_id: str) -> tuple[int, State]:
    found = transaction.first(_SQL["run"], {"id": run_id})
    if found is None:
        raise RunNotFound(f"there is no run {run_id!r} in this store")
    return found[0], State(found[1])


def _stop(transaction: Transaction, roots: str, reason: str, *, children: bool) -> None:
    idle, running = _tree(transaction, roots, children=children)
    _end(transaction, idle, State.CANCELLED, encode(reason))
    if running:
        transaction.change(_SQL["ask"], {"runs": encode(running), "reason": reason})
        transaction.tell.add(Topic.WORK)


def _tree(transaction: Transaction, roots: str, *, children: bool) -> tuple[list[int], list[int]]:
    """Those of the runs, and of what descends from them, that have not ended: the idle ones, the running ones."""
    found = _Tree.decode(transaction.row(_SQL["tree"], {"roots": roots, "children": children})[0])
    return [run for run, running in found if not running], [run for run, running in found if running]


def _end(transaction: Transaction, runs: list[int], state: State, body: Json) -> None:
    if not runs:
        return
    listed = encode(runs)
    transaction.change(_SQL["same_outcome"], {"runs": listed, "body": body})
    transaction.change(_SQL["end"], {"runs": listed, "state": state, "now": transaction.now})
    # Ending wakes those who are parked for these runs, and those who watch them.
    transaction.tell |= {Topic.ENDED, Topic.WORK}
