"""Why a run is in the state that it is in: answered from what the store decides by, not from a guess beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from msgspec import json

from perdure.clock import moment
from perdure.failures import decode_failure
from perdure.model import Checkpoint, Millis, Outcome, RunRecord, State, Wait, WaitFor, WorkerRecord
from perdure.options import DEFAULT_QUEUE
from perdure.stores.base import Store
from perdure.wording import counted, did_you_mean, does

_MOST_COUNTED = 1000
_RETRY = ".retry"
"""Ends the key of a wait for a step's next attempt, behind the key of the step."""
_MOST_NAMED = 10
"""Waits that are named; a run may have thousands, side by side. The others are counted."""


async def reason_of(store: Store, run: RunRecord, workers: Sequence[WorkerRecord] | None = None) -> str:
    """`explain`, with what the store has to be asked for besides. `workers` are the live ones, if they are known."""
    ahead = await store.ahead(run.id) if run.state is State.QUEUED else 0
    tried = [key for wait in run.waits[:_MOST_NAMED] if (key := _tried(wait)) is not None]
    found = await asyncio.gather(*(store.find(run.id, key) for key in tried))
    failed = {kept.key: kept for kept in found if kept is not None and kept.outcome is Outcome.OPEN}
    live = await store.workers() if workers is None else workers
    now = await store.now() if run.state is State.RUNNING else 0
    return explain(run, live, ahead, failed, now=now)


def explain(
    run: RunRecord,
    workers: Sequence[WorkerRecord],
    ahead: int,
    failed: Mapping[str, Checkpoint] | None = None,
    *,
    now: Millis = 0,
) -> str:
    """One sentence: the reason, and what would change it. `ahead` counts ready runs that come before a queued one;
    `failed` has the steps that back off, by their keys; `now` is the store's time, by which leases have ended."""
    match run.state:
        case State.SCHEDULED:
            return _scheduled(run)
        case State.QUEUED:
            return _queued(run, workers, ahead)
        case State.RUNNING:
            return _running(run, workers, now)
        case State.WAITING:
            return _waiting(run.waits, failed or {})
        case State.SUCCEEDED:
            return f"succeeded at {_time(run.finished_at)}"
        case State.FAILED:
            error = decode_failure(run.body or "null")
            return f"failed at {_time(run.finished_at)}: {error}; `perdure runs retry` tries it again"
        case State.CANCELLED:
            reason = json.decode(run.body, type=str) if run.body else "no reason given"
            return f"was cancelled at {_time(run.finished_at)}: {reason}"


def unserved(run: RunRecord, workers: Sequence[WorkerRecord]) -> str | None:
    """Why none of the workers would take a run, whenever it is ready; None when one would."""
    if any(run.queue in worker.queues and run.workflow in worker.workflows for worker in workers):
        return None
    return _unserved(run, workers)


def _scheduled(run: RunRecord) -> str:
    until = _time(run.wake_at)
    if run.held is not None:
        return f"is held until {until}: {run.held}"
    if run.cut_off:
        crashes = f"; that is crash {run.crashes} without progress" if run.crashes > 1 else ""
        return f"backs off until {until} after attempt {run.attempt - 1} was cut off when its worker died{crashes}"
    if run.body is not None:
        return f"backs off until {until} after attempt {run.attempt - 1} failed: {decode_failure(run.body)}"
    return f"is to start at {until}"


def _queued(run: RunRecord, workers: Sequence[WorkerRecord], ahead: int) -> str:
    if run.held is not None:
        return f"is held: {run.held}"
    knowing = [worker for worker in workers if run.queue in worker.queues and run.workflow in worker.workflows]
    serving = [worker for worker in knowing if not run.version or run.version in worker.versions.get(run.workflow, ())]
    if not serving:
        return _unserved_version(run, knowing) if knowing else _unserved(run, workers)
    if run.session and not any(worker.sessions for worker in serving):
        return (
            f"no live worker takes sessions, and the run belongs to session {run.session}: start one with"
            " `--sessions 10`"
        )
    if run.session and all(worker.owned_sessions >= worker.sessions for worker in serving):
        return (
            f"is ready, and no live worker has room for its session {run.session}: each owns as many as it may; start"
            " one more, or raise `--sessions`"
        )
    free = sum(max(0, worker.concurrency - worker.running) for worker in serving)
    if free > ahead:
        return "is ready: a worker takes it in a moment"
    more = "at least " if ahead >= _MOST_COUNTED else ""
    before = f"{more}{counted(ahead, 'run')} of queue {run.queue} {does(ahead, 'comes')} before it"
    slots = sum(worker.concurrency for worker in serving)
    if slots == 1:
        return f"is ready, {before}, and the one slot of the one live worker is taken"
    return f"is ready, {before}, and all {slots:,} slots of {_workers(len(serving))} are taken"


def _unserved(run: RunRecord, workers: Sequence[WorkerRecord]) -> str:
    if not workers:
        what = f"version {run.version} of workflow {run.workflow}" if run.version else f"workflow {run.workflow}"
        start = "start one with `perdure worker MODULE:APP`"
        if run.queue == DEFAULT_QUEUE:
            return f"no live worker serves {what}: {start}"
        return (
            f"no live worker serves {what} on queue {run.queue}: {start}, and `--queues {run.queue}` unless the app"
            " names that queue"
        )
    knowing = [worker for worker in workers if run.workflow in worker.workflows]
    if knowing:
        queues = sorted({queue for worker in knowing for queue in worker.queues})
        return (
            f"no live worker serves queue {run.queue}{did_you_mean(run.queue, queues)}: those that know workflow"
            f" {run.workflow} serve {', '.join(queues)}; start one with `--queues {run.queue}`"
        )
    return (
        f"no live worker serves workflow {run.workflow}: {_workers(len(workers))} of this store"
        f" {does(len(workers), 'runs')} other code; start one whose app defines it"
    )


def _unserved_version(run: RunRecord, knowing: Sequence[WorkerRecord]) -> str:
    served = sorted({version for worker in knowing for version in worker.versions.get(run.workflow, ())})
    count = len(knowing)
    return (
        f"no live worker serves version {run.version} of workflow {run.workflow}: {_workers(count)} that"
        f" {does(count, 'knows')} it {does(count, 'serves')}"
        f" {'version ' + ', '.join(served) if served else 'no version'}; start one with that code, or let newer code"
        f" take it with accepts=[{run.version!r}]"
    )


def _running(run: RunRecord, workers: Sequence[WorkerRecord], now: Millis) -> str:
    where = f"runs on worker {run.worker}, attempt {run.attempt}"
    if run.lease_until is not None and run.lease_until <= now:
        where = (
            f"ran on worker {run.worker}, attempt {run.attempt}, until that one's lease ended at"
            f" {_time(run.lease_until)}: any live worker takes it over"
        )
        if (nobody := unserved(run, workers)) is not None:
            where += f"; {nobody}"
    return where if run.cancelling is None else f"{where}; it was asked to end: {run.cancelling}"


def _waiting(waits: Sequence[Wait], failed: Mapping[str, Checkpoint]) -> str:
    named = [_wait(wait, failed) for wait in waits[:_MOST_NAMED]]
    if more := len(waits) - len(named):
        named.append(f"{more:,} more")
    return "waits for " + " or ".join(named)


def _tried(wait: Wait) -> str | None:
    """The key of the step whose next attempt a wait is for; None for other waits."""
    backs_off = wait.what is WaitFor.TIMER and wait.key.endswith(_RETRY)
    return wait.key.removesuffix(_RETRY) if backs_off else None


def _wait(wait: Wait, failed: Mapping[str, Checkpoint]) -> str:
    limit = "" if wait.at is None else f" (until {_time(wait.at)})"
    match wait.what:
        case WaitFor.TIMER:
            key = _tried(wait)
            return f"{_time(wait.at)} ({wait.key})" if key is None else _next_attempt(key, wait.at, failed.get(key))
        case WaitFor.SIGNAL:
            return f"signal {wait.target}{limit}"
        case WaitFor.RUN:
            return f"run {wait.target} to end{limit}"
        case WaitFor.BATCH:
            return f"all runs of batch {wait.target} to end"
        case WaitFor.SCHEDULE:
            return f"the earlier runs of its schedule to end, the first of which is {wait.target}"


def _next_attempt(key: str, at: Millis | None, kept: Checkpoint | None) -> str:
    """What a step waits for that backs off."""
    if kept is None or kept.body is None:
        return f"{_time(at)}, when step {key} is tried again"
    return (
        f"{_time(at)}, when step {key} is tried again: attempt {kept.attempts} failed with {decode_failure(kept.body)}"
    )


def _workers(count: int) -> str:
    return "the one live worker" if count == 1 else f"the {count} live workers"


def _time(at: int | None) -> str:
    return "an unknown time" if at is None else moment(at).strftime("%Y-%m-%d %H:%M:%S UTC")
