"""Making runs: a batch of them in a fixed number of statements."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perdure.model import Millis, Start, Started, State
from perdure.stores.base import Topic
from perdure.stores.sqlite.executor import Lane, Lanes, Transaction
from perdure.stores.sqlite.sql import load
from perdure.stores.sqlite.ties import tie, untie

_SQL = load("enqueue")
_SERVE = load("worker")["serve"]
_PAUSE_LANES = load("limits")["pause_lanes"]
_Existing = msgspec.json.Decoder(list[tuple[int, int, int]])
_LaneIds = msgspec.json.Decoder(list[tuple[str, str, str, int]])


def enqueue(transaction: Transaction, starts: Sequence[Start], makers: Sequence[int | None] = ()) -> list[Started]:
    """Makes runs in order; an id that exists, or came before in the batch, is left as it is and told of.

    `makers` names, for each, the running run whose checkpoint starts it.
    """
    if not starts:
        return []
    lanes = _lanes(transaction, {(start.queue, start.workflow, start.version) for start in starts})
    ties = tie(transaction, starts)
    last = transaction.row(_SQL["last"])[0]
    rows: list[tuple[object, ...]] = []
    inputs: list[tuple[str, int, str, str]] = []
    for index, start in enumerate(starts):
        lane = lanes[start.queue, start.workflow, start.version]
        state, due, deadline = begin(start, transaction.now)
        group, session = ties.of(start)
        if state is State.QUEUED and (group or session):
            state = State.SCHEDULED  # It comes into the queue when it is there, by way of its group and its session.
        rows.append(
            (
                start.id,
                lane,
                start.priority,
                state,
                due,
                deadline,
                start.max_crashes,
                start.parent,
                makers[index] if makers else None,
                group,
                int(start.group_keep),
                session,
            )
        )
        inputs.append((start.id, len(start.input.encode()), start.input, start.workflow))
    made = transaction.change(_SQL["runs"], {"runs": encode(rows), "last": last, "now": transaction.now})
    inputs_json = encode(inputs)
    if made:
        transaction.change(_SQL["inputs"], {"inputs": inputs_json})
        # Delayed runs count as well: workers may have to wake earlier than they meant to.
        transaction.tell.add(Topic.WORK)
    if ties:
        transaction.change(_SQL["line_up"], {"last": last})
    if made == len(starts):
        return [Started(start.id, existed=False, same=True) for start in starts]
    untie(transaction, ties)
    return _compare(transaction, starts, inputs_json, last)


def begin(start: Start, now: Millis) -> tuple[State, Millis | None, Millis | None]:
    """The state that a run starts in, when it is due if that is later, and its deadline."""
    due = start.at if start.at is not None else now + (start.delay or 0)
    later = due > now
    deadline = None if start.timeout is None else (due if later else now) + start.timeout
    return (State.SCHEDULED if later else State.QUEUED), (due if later else None), deadline


def encode(value: object) -> str:
    """A batch as the one parameter of a statement. Texts that are JSON themselves stay texts in it."""
    return msgspec.json.encode(value).decode()


def _compare(transaction: Transaction, starts: Sequence[Start], inputs: str, last: int) -> list[Started]:
    answers: list[Started] = []
    made: set[str] = set()
    found = _Existing.decode(transaction.row(_SQL["existing"], {"inputs": inputs, "last": last})[0])
    for start, (_, existed, same) in zip(starts, sorted(found), strict=True):
        answers.append(Started(start.id, existed=bool(existed) or start.id in made, same=bool(same)))
        made.add(start.id)
    return answers


def _lanes(transaction: Transaction, wanted: set[Lane]) -> Lanes:
    known = transaction.lanes
    missing = [lane for lane in wanted if lane not in known]
    if missing:
        lanes = {"lanes": encode(missing)}
        if transaction.change(_SQL["lanes"], lanes):
            transaction.change(_PAUSE_LANES, {})
            transaction.change(_SERVE, {"worker": None})
        for queue, workflow, version, number in _LaneIds.decode(transaction.row(_SQL["lane_ids"], lanes)[0]):
            known[queue, workflow, version] = number
    return known
