"""Making runs: a batch of them in a fixed number of statements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from perdure.errors import InvalidInput
from perdure.model import Millis, OnConflict, Start, Started, State, Wait
from perdure.stores.base import Topic
from perdure.stores.sqlite import unique
from perdure.stores.sqlite.executor import Lane, Lanes, Transaction
from perdure.stores.sqlite.sql import encode, load
from perdure.stores.sqlite.ties import tie

_SQL = load("enqueue")
_INPUTS = load("exchange")["inputs"]
_SERVE = load("worker")["serve"]
_PAUSE_LANES = load("limits")["pause_lanes"]
_Existing = msgspec.json.Decoder(list[tuple[int, int, int]])
_LaneIds = msgspec.json.Decoder(list[tuple[str, str, str, int]])


def enqueue(
    transaction: Transaction,
    starts: Sequence[Start],
    makers: Sequence[int | None] = (),
    *,
    behind: Wait | None = None,
) -> list[Started]:
    """Makes runs in order; an id that exists, or came before in the batch, is left as it is and told of, and so is the
    run that a unique key leads to.

    `makers` names, for each, the running run whose checkpoint starts it. With `behind` a single run is made that waits.
    """
    if all(start.unique is None for start in starts):
        return _make(transaction, starts, makers, behind)
    _check(starts)
    resolved = unique.resolve(transaction, starts)
    _replace(transaction, resolved.replaced)
    made = _make(
        transaction,
        list(resolved.starts.values()),
        [makers[index] for index in resolved.starts] if makers else (),
        behind,
    )
    answers = dict(zip(resolved.starts, made, strict=True))
    answers.update({index: Started(run_id, existed=True, same=True) for index, run_id in resolved.led.items()})
    return [answers[index] for index in range(len(starts))]


def _make(
    transaction: Transaction, starts: Sequence[Start], makers: Sequence[int | None], behind: Wait | None
) -> list[Started]:
    if not starts:
        return []
    _check(starts)
    lanes = _lanes(transaction, {(start.queue, start.workflow, start.version) for start in starts})
    last = transaction.row(_SQL["last"])[0]
    rows: list[tuple[object, ...]] = []
    inputs: list[tuple[str, int, str, str]] = []
    for index, start in enumerate(starts):
        lane = lanes[start.queue, start.workflow, start.version]
        state, due, deadline = begin(start, transaction.now)
        if behind is not None:
            state, due, deadline = State.WAITING, None, None
        elif state is State.QUEUED and (start.group or start.session):
            state = State.SCHEDULED  # It comes into the queue when it is tied, by way of its group and its session.
        maker = makers[index] if makers else None
        rows.append((start.id, lane, start.priority, state, due, deadline, start.max_crashes, start.parent, maker))
        inputs.append((start.id, len(start.input.encode()), start.input, start.workflow))
    made = transaction.change(_SQL["runs"], {"runs": encode(rows), "last": last, "now": transaction.now})
    inputs_json = encode(inputs)
    if made:
        transaction.change(_SQL["inputs"], {"inputs": inputs_json})
        # Delayed runs count as well: workers may have to wake earlier than they meant to.
        transaction.tell.add(Topic.WORK)
    if made == len(starts):
        answers = [Started(start.id, existed=False, same=True) for start in starts]
    else:
        answers = _compare(transaction, starts, inputs_json, last)
    new = {index: starts[index] for index, answer in enumerate(answers) if not answer.existed}
    if any(start.group or start.session for start in new.values()):
        ties = tie(transaction, new.values())
        transaction.change(_SQL["tie"], {"ties": encode(ties.rows(new)), "last": last})
        transaction.change(_SQL["line_up"], {"last": last})
        for index, start in new.items():
            answers[index].group_limit = ties.other_limit(start)
    _belong(transaction, new, lanes, last)
    if behind is not None and made:
        wait = {"run": last + 1, "key": behind.key, "what": behind.what, "target": behind.target}
        transaction.change(_SQL["wait_behind"], wait)
        _, due, _ = begin(starts[0], transaction.now)
        transaction.change(_SQL["put_behind"], {"run": last + 1, "due": due, "timeout": starts[0].timeout})
    return answers


def _check(starts: Sequence[Start]) -> None:
    # SQLite would cut a text off at a NUL.
    for start in starts:
        if "\0" in start.group or "\0" in start.session:
            raise InvalidInput(f"the group or session of run {start.id} has a NUL in its key")
        if start.unique or start.labels or start.batch:
            texts = [start.unique.key if start.unique else "", start.batch, *start.labels, *start.labels.values()]
            if "\0" in "".join(texts):
                raise InvalidInput(f"the unique key, batch or a label of run {start.id} has a NUL, which can't be kept")


def _belong(transaction: Transaction, starts: dict[int, Start], lanes: Lanes, last: int) -> None:
    """Counts runs just made, by their places in the batch, where runs are counted; gives them what few runs have."""
    made = Counter([(start.queue, start.workflow, start.version) for start in starts.values()])
    transaction.change(_SQL["count"], {"made": encode([(lanes[lane], number) for lane, number in made.items()])})
    marks = [
        (index, start.batch or None, *_key(start)) for index, start in starts.items() if start.batch or start.unique
    ]
    if marks:
        transaction.change(_SQL["mark"], {"marks": encode(marks), "last": last})
        batches = Counter([start.batch for start in starts.values() if start.batch])
        transaction.change(_SQL["join_batches"], {"batches": encode(list(batches.items()))})
    labels = [(index, start.labels) for index, start in starts.items() if start.labels]
    if labels:
        transaction.change(_SQL["labels"], {"labels": encode(labels), "last": last})


def _key(start: Start) -> tuple[str | None, int | None]:
    if start.unique is None:
        return None, None
    return start.unique.key, 1 if start.unique.on_conflict is OnConflict.DEBOUNCE else None


def _replace(transaction: Transaction, replaced: dict[int, Start]) -> None:
    if not replaced:
        return
    unique.rewrite(transaction, [(run, *begin(start, transaction.now)) for run, start in replaced.items()])
    inputs = [(run, len(start.input.encode()), start.input) for run, start in replaced.items()]
    transaction.change(_INPUTS, {"inputs": encode(inputs)})
    transaction.tell.add(Topic.WORK)


def known(transaction: Transaction, starts: Sequence[Start]) -> list[Started]:
    """The answers to starts that were made before, whatever has become of their runs since."""
    if not starts:
        return []
    inputs = [(start.id, 0, start.input, start.workflow) for start in starts]
    found = transaction.row(_SQL["existing"], {"inputs": encode(inputs), "last": 2**63 - 1})[0]
    same = {index: bool(equal) for index, _, equal in _Existing.decode(found)}
    return [Started(start.id, existed=True, same=same.get(index, True)) for index, start in enumerate(starts)]


def begin(start: Start, now: Millis) -> tuple[State, Millis | None, Millis | None]:
    """The state that a run starts in, when it is due if that is later, and its deadline."""
    due = start.at if start.at is not None else now + (start.delay or 0)
    later = due > now
    deadline = None if start.timeout is None else (due if later else now) + start.timeout
    return (State.SCHEDULED if later else State.QUEUED), (due if later else None), deadline


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
