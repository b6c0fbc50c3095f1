"""What clients, and deadlines, do to runs that exist: signals, cancelling, retrying."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perdure.causes import DEADLINE_PASSED, OVERDUE, PARENT_DEADLINE_PASSED, deadline_exceeded
from perdure.errors import CheckpointNotFound, KeyTaken, RunEnded, RunNotEnded, RunNotFound
from perdure.model import Json, Signal, State
from perdure.stores.base import Topic
from perdure.stores.sqlite.executor import Transaction
from perdure.stores.sqlite.settle import keep_causes, take_numbers
from perdure.stores.sqlite.sql import encode, load
from perdure.stores.sqlite.unique import taken

_SQL = load("control")
_GIVE_BACK = load("exchange")["give_back"]
_Numbers = msgspec.json.Decoder(list[int])
_Ids = msgspec.json.Decoder(list[str])
_Held = msgspec.json.Decoder(list[tuple[int, str, bool]])
_Tree = msgspec.json.Decoder(list[tuple[int, int]])


def deliver(transaction: Transaction, signal: Signal) -> None:
    """Keeps a signal and wakes its run; one that was kept before is left as it is, even if the run has ended since."""
    run, state = find_run(transaction, signal.run_id)
    if transaction.first(_SQL["delivered"], {"run": run, "id": signal.id}) is not None:
        return
    if state.final:
        raise RunEnded(f"run {signal.run_id} has ended ({state}): it takes no signals any more")
    message = {"run": run, "id": signal.id, "name": signal.name, "body": signal.body}
    transaction.change(_SQL["deliver"], message)
    woken = state is State.WAITING and transaction.change(_SQL["wake"], {"run": run, "name": signal.name})
    if woken or state is State.RUNNING:
        transaction.tell |= {Topic.WORK, Topic.STATUS}


def cancel(transaction: Transaction, run_id: str, reason: str, *, children: bool) -> State:
    """Ends a run and its descendants, or asks for it where one is running; returns the state that the run has now.

    One that has ended stays as it is, but what descends from it and goes on is cancelled.
    """
    run, state = find_run(transaction, run_id)
    _stop(transaction, encode([run]), reason, children=children)
    return state if state is State.RUNNING or state.final else State.CANCELLED


def expire(transaction: Transaction, overdue: str) -> None:
    """Ends runs (a JSON list of their numbers) whose deadline has passed as failed, where they are not running.

    Those that are running are asked to end, and what descends from either kind is cancelled, whatever its state.
    """
    idle, running = _tree(transaction, overdue, children=False)
    descend = encode(idle + running)
    end(transaction, idle, State.FAILED, deadline_exceeded())
    if idle:
        keep_causes(transaction, idle, OVERDUE)
    _ask(transaction, running, DEADLINE_PASSED, overdue=True)
    _stop(transaction, descend, PARENT_DEADLINE_PASSED, children=True)


def retry(transaction: Transaction, run_id: str, from_key: str | None) -> None:
    """Queues a run that ended once more, with what succeeded, or what came before a checkpoint outside of it."""
    run, state = find_run(transaction, run_id)
    if not state.final:
        raise RunNotEnded(f"run {run_id} is {state}: it can be retried when it has ended")
    if state is State.SUCCEEDED and from_key is None:
        raise RunNotEnded(f"run {run_id} has succeeded: name the checkpoint from which to do it again")
    if taken(transaction, encode([run])):
        raise KeyTaken(f"run {run_id} can't be retried: its unique key is another live run's; cancel that one first")
    if from_key is not None:
        found = transaction.first(_SQL["position"], {"run": run, "key": from_key})
        if found is None:
            raise CheckpointNotFound(f"run {run_id} has no checkpoint {from_key!r}")
        transaction.change(_SQL["rewind"], {"run": run, "position": found[0]})
        transaction.change(_SQL["rewind_within"], {"run": run, "key": from_key})
    _again(transaction, encode([run]))


def retry_many(transaction: Transaction, runs: str, *, dry_run: bool) -> list[str]:
    """Queues failed or cancelled runs (a JSON list of their numbers) once more; returns the ids of those that it does.

    Left out are those whose unique key is another live run's, and all but the first of those that share one.
    """
    out = taken(transaction, runs)
    chosen = [run for run in _Numbers.decode(runs) if run not in out]
    listed = encode(chosen)
    if chosen and not dry_run:
        _again(transaction, listed)
    return _Ids.decode(transaction.row(_SQL["ids"], {"runs": listed})[0])


def _again(transaction: Transaction, runs: str) -> None:
    transaction.change(_SQL["drop_errors"], {"runs": runs})
    transaction.change(_GIVE_BACK, {"runs": runs})
    transaction.change(_SQL["drop_outcomes"], {"runs": runs})
    transaction.change(_SQL["drop_failures"], {"runs": runs})
    transaction.change(_SQL["again"], {"runs": runs})
    transaction.tell |= {Topic.WORK, Topic.STATUS}


def find_run(transaction: Transaction, run_id: str) -> tuple[int, State]:
    """The number and the state of a run; raises `RunNotFound`."""
    found = transaction.first(_SQL["run"], {"id": run_id})
    if found is None:
        raise RunNotFound(f"there is no run {run_id!r} in this store")
    return found[0], State(found[1])


def _stop(transaction: Transaction, roots: str, reason: str, *, children: bool) -> None:
    idle, running = _tree(transaction, roots, children=children)
    end(transaction, idle, State.CANCELLED, encode(reason))
    _ask(transaction, running, reason)


def end_held(transaction: Transaction, runs: Sequence[int], leaving: int | None = None) -> None:
    """Ends those of runs that came back while they are being cancelled that nobody may claim, to have their code clean
    up (see `perdure.blame`). A worker that is `leaving` claims nothing any more."""
    held = _Held.decode(transaction.row(_SQL["held"], {"runs": encode(runs), "leaving": leaving})[0])
    late = [run for run, _, overdue in held if overdue]
    if late:
        end(transaction, late, State.FAILED, deadline_exceeded())
        keep_causes(transaction, late, OVERDUE)
    stopped: dict[str, list[int]] = {}
    for run, reason, overdue in held:
        if not overdue:
            stopped.setdefault(reason, []).append(run)
    for reason, runs_of_it in stopped.items():
        end(transaction, runs_of_it, State.CANCELLED, encode(reason))


def _ask(transaction: Transaction, running: list[int], reason: str, *, overdue: bool = False) -> None:
    if running:
        transaction.change(_SQL["ask"], {"runs": encode(running), "reason": reason, "overdue": overdue})
        transaction.tell |= {Topic.WORK, Topic.STATUS}


def _tree(transaction: Transaction, roots: str, *, children: bool) -> tuple[list[int], list[int]]:
    """Those of the runs, and of what descends from them, that have not ended: the idle ones, the running ones."""
    found = _Tree.decode(transaction.row(_SQL["tree"], {"roots": roots, "children": children})[0])
    return [run for run, running in found if not running], [run for run, running in found if running]


def end(transaction: Transaction, runs: list[int], state: State, body: Json) -> None:
    """Ends runs that nobody owns, or whose owner is to find nothing of them any more."""
    if not runs:
        return
    listed = encode(runs)
    transaction.change(_SQL["same_outcome"], {"runs": listed, "body": body})
    finish = take_numbers(transaction, len(runs))
    params = {"runs": listed, "state": state, "now": transaction.now, "finish": finish}
    transaction.change(_SQL["end"], params)
    # Ending wakes those who are parked for these runs, and those who watch them.
    transaction.tell |= {Topic.ENDED, Topic.WORK}
