"""What a run can wait for, and the children that it starts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from secrets import token_hex
from typing import Any, NamedTuple, TypeVar

from msgspec import json

from perdure.codec import Decoder
from perdure.engine.execution import Execution
from perdure.engine.history import through_outages
from perdure.engine.turns import NEW
from perdure.errors import (
    DecodingError,
    InvalidInput,
    PerdureError,
    RunCancelled,
    RunFailed,
    RunNotFound,
    SignalTimedOut,
    StepFailed,
    WouldDeadlock,
)
from perdure.failures import decode_failure, encode_failure, rebuild
from perdure.model import Arrived, Checkpoint, Ended, Json, Kind, Millis, Outcome, Signal, Start, State, Wait, WaitFor

T = TypeVar("T")

_SEEN = json.Decoder(Ended | None)
_MISSING = "null"
"""What is kept of a wait for a run that there is not."""


async def sleep_for(execution: Execution, key: str, *, delay: Millis | None = None, at: Millis | None = None) -> None:
    """Sleeps until `at`, or for `delay` from now; what was fixed in an earlier attempt holds."""
    saved = await execution.saved(key, Kind.SLEEP)
    if saved is not None and saved.at is not None:
        until = saved.at
    else:
        await execution.live()
        now = execution.now()
        until = at if at is not None else now + (delay or 0)
        execution.save_soon(Checkpoint(key, Kind.SLEEP, Outcome.OPEN, at=until, started_at=now))
    if until > execution.now():
        await execution.wait(Wait(key, WaitFor.TIMER, at=until))
    await execution.replay(until)


async def signal_for(execution: Execution, key: str, name: str, decoder: Decoder[Any], timeout: Millis | None) -> Any:
    """The next signal of that name; `SignalTimedOut` when its time is over and none is there."""
    saved = await execution.saved(key, Kind.SIGNAL)
    if saved is not None and saved.outcome is not Outcome.OPEN:
        error = None if saved.outcome is Outcome.OK else _signal_error(saved)
        try:
            await execution.replay(saved.saved_at, saved.position)
        except asyncio.CancelledError:
            if not isinstance(error, SignalTimedOut):
                _give_back(execution, Checkpoint(key, Kind.SIGNAL, Outcome.OPEN, started_at=saved.started_at))
            raise
        if error is not None:
            raise error
        return decoder.decode(saved.body or "null")
    await execution.live()
    began = execution.now() if saved is None else saved.started_at
    at = saved.at if saved is not None else None if timeout is None else began + timeout
    with execution.in_flight():
        if saved is not None:
            # After the outcomes that are kept: one of these may be why the code cancels this wait, as it did before.
            await execution.replay(execution.now(), NEW)
        arrived = await execution.inbox.take(name)
    if arrived is None and (saved is None or execution.may_come(at)):
        if saved is None:
            execution.save_soon(Checkpoint(key, Kind.SIGNAL, Outcome.OPEN, at=at, started_at=began))
        seen = await execution.wait(Wait(key, WaitFor.SIGNAL, name, at))
        arrived = seen.signal if seen is not None else None
    with execution.in_flight():
        try:
            return await _consume(execution, key, name, decoder, began, arrived)
        except asyncio.CancelledError:
            if arrived is not None:
                undone = Checkpoint(key, Kind.SIGNAL, Outcome.OPEN, at=at, started_at=began)
                _give_back(execution, undone, arrived.position)
            raise


async def _consume(
    execution: Execution, key: str, name: str, decoder: Decoder[Any], began: Millis, arrived: Arrived | None
) -> Any:
    if arrived is None:
        error = SignalTimedOut(f"no signal {name!r} came in time")
        await execution.save(Checkpoint(key, Kind.SIGNAL, Outcome.ERROR, encode_failure(error), started_at=began))
        raise error
    try:
        value, error = decoder.decode(arrived.body), None
    except DecodingError as misfit:
        value = None
        error = DecodingError(
            f"{misfit}; catch DecodingError to wait for the next one, or mend the code and then retry"
        )
    # One that can't be read is taken too, as a failure: code may catch that and wait for the next one, and for a retry,
    # by code that can read it, it is where it was.
    kept = (Outcome.OK, arrived.body) if error is None else (Outcome.ERROR, encode_failure(error))
    await execution.save(Checkpoint(key, Kind.SIGNAL, *kept, started_at=began), consumes=arrived.position)
    if error is not None:
        raise error
    return value


def _signal_error(kept: Checkpoint) -> PerdureError:
    """Why a wait for a signal brought none: it was too late, or could not be read."""
    info = decode_failure(kept.body or "null")
    error = rebuild(info)
    return error if isinstance(error, DecodingError) else SignalTimedOut(info.message)


def _give_back(execution: Execution, undone: Checkpoint, position: int | None = None) -> None:
    """The workflow's code cancelled a wait whose signal was there, but had not come to the code yet: it waits again."""
    if execution.undisturbed:
        execution.inbox.give_back(position, execution.save_soon(undone, gives_back=True))


class Child(NamedTuple):
    """How a run knows one of its children: by the key of the checkpoint of its start, and a hash of its arguments."""

    key: str
    digest: str


async def start_child(execution: Execution, child: Child, start: Start, *, awaited: bool) -> str:
    """Starts a child run once, together with the checkpoint that says so; returns its id, or that of the run that has
    its unique key. One that is `awaited` at once is not started where the wait would be refused."""
    key, digest = child
    saved = await execution.saved(key, Kind.CHILD, digest)
    if saved is not None:
        await execution.replay(saved.saved_at, saved.position)
        return json.decode(saved.body or '""', type=str)
    await execution.live()
    if awaited:
        _check_groups(execution, start.queue, start.group, f"its child {start.id}")
    with execution.in_flight():
        body = json.encode(start.id).decode()
        existed = await execution.save(
            Checkpoint(key, Kind.CHILD, Outcome.OK, body, digest=digest, started_at=execution.now()), starts=start
        )
    return start.id if existed is None else existed.id


async def open_batch(
    execution: Execution, key: str, digest: str, batch: str, open: Callable[[str], Awaitable[object]]
) -> str:
    """Opens a batch of children once; returns its id. `open` may be repeated with the same id, after a crash."""
    saved = await execution.saved(key, Kind.CHILD, digest)
    if saved is not None:
        batch = json.decode(saved.body or '""', type=str)
        if saved.outcome is not Outcome.OPEN:
            await execution.replay(saved.saved_at, saved.position)
            return batch
    await execution.live()
    with execution.in_flight():
        began = execution.now() if saved is None else saved.started_at
        body = json.encode(batch).decode()
        if saved is None:  # the id is fixed before there is anything of it
            await execution.save(Checkpoint(key, Kind.CHILD, Outcome.OPEN, body, digest=digest, started_at=began))
        await through_outages(lambda: open(batch))
        await execution.save(Checkpoint(key, Kind.CHILD, Outcome.OK, body, digest=digest, started_at=began))
    return batch


def child_id(execution: Execution, key: str) -> str:
    """An id that says where the child comes from. It is random in part: the same key comes again when a run is
    retried or continues as new, and its checkpoint, not its id, makes a start happen once."""
    return f"{execution.claim.id}/{key}.{token_hex(4)}"


async def result_of(
    execution: Execution,
    key: str,
    run_id: str,
    decoder: Decoder[Any],
    *,
    timeout: Millis | None = None,
    child: Child | None = None,
) -> Any:
    """The result of another run: waits for its end, and keeps what it saw. `RunNotFound` when there is none.

    A child that did not succeed is marked in the checkpoint of its start too: when this run is retried,
    a new child is started, as a failed step is run again.
    """
    if run_id == execution.claim.id:
        led = "" if child is None else ": it has itself the unique key of what it started"
        raise InvalidInput(f"run {run_id} would wait for its own end{led}")
    saved = await execution.saved(key, Kind.RESULT)
    if saved is not None and saved.outcome is not Outcome.OPEN:
        await execution.replay(saved.saved_at, saved.position)
        return _outcome(run_id, saved.body, decoder)
    await execution.live()
    began = execution.now() if saved is None else saved.started_at
    at = saved.at if saved is not None else None if timeout is None else began + timeout
    if execution.ends.unread(run_id):
        with execution.in_flight():
            await execution.ends.read(run_id)
        await execution.check()
    ended, missing = execution.ends.of(key, run_id)
    if ended is None and not missing and (saved is None or execution.may_come(at)):
        if saved is None:
            await _check_group_of(execution, run_id)
            execution.save_soon(Checkpoint(key, Kind.RESULT, Outcome.OPEN, at=at, started_at=began))
        seen = await execution.wait(Wait(key, WaitFor.RUN, run_id, at))
        if seen is not None:
            ended, missing = seen.ended, seen.missing
    with execution.in_flight():
        body = json.encode(ended).decode() if ended is not None else _MISSING if missing else None
        good = ended is not None and ended.state is State.SUCCEEDED
        if body is not None and not good and child is not None:
            started = json.encode(run_id).decode()
            execution.save_soon(
                Checkpoint(child.key, Kind.CHILD, Outcome.ERROR, started, digest=child.digest, started_at=began)
            )
        await execution.save(
            Checkpoint(key, Kind.RESULT, Outcome.OK if good else Outcome.ERROR, body, started_at=began)
        )
    return _outcome(run_id, body, decoder)


def _outcome(run_id: str, body: Json | None, decoder: Decoder[Any]) -> Any:
    """What is kept of a wait for a run: its result, or an error raised."""
    if body is None:
        raise TimeoutError(f"run {run_id} has not ended in time; it goes on, and its result can be asked for again")
    ended = _SEEN.decode(body)
    if ended is None:
        raise RunNotFound(f"there is no run {run_id!r} to wait for; was it deleted or pruned, or is the id mistyped?")
    return result(ended, decoder)


async def _check_group_of(execution: Execution, run_id: str) -> None:
    """Refuses a wait that might never end. (One for a run that there is not ends: the store tells of that.)"""
    if not _keeps_place(execution):
        return
    with execution.in_flight():
        target = await through_outages(lambda: execution.runtime.store.load(run_id))
    if target is not None and not target.state.final:
        _check_groups(execution, target.queue, target.group, f"run {run_id}")


def _check_groups(execution: Execution, queue: str, group: str, what: str) -> None:
    """`WouldDeadlock` for a wait of a run that keeps its place in a group for another one of that group. The limit of
    the group does not matter: it may change, and any number of runs may wait like this at once."""
    claim = execution.claim
    if _keeps_place(execution) and (queue, group) == (claim.queue, claim.group):
        raise WouldDeadlock(
            f"run {claim.id} keeps its place in group {group} while it waits, so {what}, which is of that group too,"
            " might never begin: give it another group, or define workflow"
            f" {execution.definition.name} with group_keep=False"
        )


def _keeps_place(execution: Execution) -> bool:
    return bool(execution.claim.group) and execution.definition.group_keep


async def size_of(execution: Execution, key: str, ask: Callable[[], Awaitable[int]]) -> int:
    """How many runs a batch has, asked for once."""
    saved = await execution.saved(key, Kind.STEP)
    if saved is not None:
        await execution.replay(saved.saved_at, saved.position)
        return json.decode(saved.body or "0", type=int)
    await execution.live()
    with execution.in_flight():
        began, size = execution.now(), await through_outages(ask)
        body = json.encode(size).decode()
        await execution.save(Checkpoint(key, Kind.STEP, Outcome.OK, body, started_at=began))
    return size


async def send_signal(execution: Execution, key: str, signal: Signal) -> None:
    """Sends a signal once: its id is kept before it is sent, so that a repetition is the same signal."""
    saved = await execution.saved(key, Kind.SEND)
    if saved is not None and saved.outcome is not Outcome.OPEN:
        await execution.replay(saved.saved_at, saved.position)
        _raise_if_failed(saved)
        return
    await execution.live()
    with execution.in_flight():
        began = execution.now() if saved is None else saved.started_at
        if saved is None:
            body = json.encode(signal.id).decode()
            await execution.save(Checkpoint(key, Kind.SEND, Outcome.OPEN, body, started_at=began))
        else:
            body = saved.body or '""'
            signal.id = json.decode(body, type=str)
        await _or_keep(execution, key, began, lambda: execution.runtime.store.signal(signal))
        execution.save_soon(Checkpoint(key, Kind.SEND, Outcome.OK, body, started_at=began))


async def send_cancel(execution: Execution, key: str, run_id: str, reason: str, *, children: bool) -> State:
    """Cancels another run; what became of it is kept."""
    saved = await execution.saved(key, Kind.SEND)
    if saved is not None:
        await execution.replay(saved.saved_at, saved.position)
        _raise_if_failed(saved)
        return State(json.decode(saved.body or '""', type=str))
    await execution.live()
    with execution.in_flight():
        began = execution.now()
        state = await _or_keep(
            execution, key, began, lambda: execution.runtime.store.cancel(run_id, reason, children=children)
        )
        body = json.encode(state).decode()
        await execution.save(Checkpoint(key, Kind.SEND, Outcome.OK, body, started_at=began))
    return state


async def _or_keep(execution: Execution, key: str, began: Millis, call: Callable[[], Awaitable[T]]) -> T:
    """What the store answers; if it is an error (no such run), it is kept as one."""
    try:
        return await through_outages(call)
    except PerdureError as error:
        await execution.save(Checkpoint(key, Kind.SEND, Outcome.ERROR, encode_failure(error), started_at=began))
        raise


def _raise_if_failed(saved: Checkpoint) -> None:
    if saved.outcome is Outcome.ERROR:
        info = decode_failure(saved.body or "null")
        raise rebuild(info) or StepFailed(saved.key, info)


def result(ended: Ended, decoder: Decoder[Any]) -> Any:
    """The result of a run that ended, or its error raised."""
    if ended.state is State.SUCCEEDED:
        return decoder.decode(ended.body or "null")
    if ended.state is State.CANCELLED:
        raise RunCancelled(ended.id, json.decode(ended.body or '"no reason given"', type=str))
    raise RunFailed(ended.id, decode_failure(ended.body or "null"))
