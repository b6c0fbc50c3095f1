"""`why`: one sentence for each state, with what would change it."""

from __future__ import annotations

import pytest

from engine.fakes import record
from perdure.explain import explain
from perdure.failures import encode_failure
from perdure.model import RunRecord, State, Wait, WaitFor, WorkerRecord

NOON = 1_893_499_200_000  # 2030-01-01 12:00 UTC


def worker(
    *,
    queues: tuple[str, ...] = ("default",),
    workflows: tuple[str, ...] = ("ship",),
    slots: int = 2,
    running: int = 0,
    sessions: int = 0,
    owned_sessions: int = 0,
) -> WorkerRecord:
    return WorkerRecord(
        id=1,
        name="w",
        host="h",
        pid=1,
        queues=list(queues),
        workflows=list(workflows),
        concurrency=slots,
        started_at=0,
        lease_until=0,
        running=running,
        sessions=sessions,
        owned_sessions=owned_sessions,
    )


ERROR = encode_failure(ValueError("declined"))

CASES: list[tuple[RunRecord, list[WorkerRecord], int, str]] = [
    (record(State.SCHEDULED, wake_at=NOON), [], 0, "is to start at 2030-01-01 12:00:00 UTC"),
    (
        record(State.SCHEDULED, wake_at=NOON, attempt=2, body=ERROR),
        [],
        0,
        "backs off until 2030-01-01 12:00:00 UTC after attempt 1 failed: ValueError: declined",
    ),
    (
        record(State.SCHEDULED, wake_at=NOON, attempt=4, crashes=3, cut_off=True, body=ERROR),
        [],
        0,
        "backs off until 2030-01-01 12:00:00 UTC after attempt 3 was cut off when its worker died; that is crash 3",
    ),
    (
        record(State.SCHEDULED, wake_at=NOON, held="queue is paused"),
        [],
        0,
        "is held until 2030-01-01 12:00:00 UTC: queue is paused",
    ),
    (record(State.QUEUED, held="queue is paused"), [worker()], 0, "is held: queue is paused"),
    (record(State.QUEUED), [], 0, "no live worker serves workflow ship: start one"),
    (
        record(State.QUEUED, queue="mial"),
        [],
        0,
        "no live worker serves workflow ship on queue mial: start one with `perdure worker MODULE:APP`, and `--queues"
        " mial` unless the app names that queue",
    ),
    (record(State.QUEUED, queue="mial"), [worker(queues=("mail",))], 0, "serves queue mial (did you mean 'mail'?):"),
    (record(State.QUEUED, version="3"), [], 0, "no live worker serves version 3 of workflow ship: start one"),
    (
        record(State.QUEUED),
        [worker(workflows=("bill",))],
        0,
        "no live worker serves workflow ship: the one live worker of this store runs other code",
    ),
    (
        record(State.QUEUED, queue="slow"),
        [worker(), worker(queues=("quick",))],
        0,
        "no live worker serves queue slow: those that know workflow ship serve default, quick; start one with"
        " `--queues slow`",
    ),
    (record(State.QUEUED), [worker(running=1)], 0, "is ready: a worker takes it in a moment"),
    (
        record(State.QUEUED),
        [worker(running=2), worker(running=2)],
        3,
        "is ready, 3 runs of queue default come before it, and all 4 slots of the 2 live workers are taken",
    ),
    (
        record(State.QUEUED, session="s"),
        [worker(sessions=1, owned_sessions=1), worker()],
        0,
        "is ready, and no live worker has room for its session s: each owns as many as it may; start one more",
    ),
    (record(State.QUEUED, session="s"), [worker(sessions=2, owned_sessions=1)], 0, "is ready: a worker takes it"),
    (record(State.QUEUED), [worker(running=2)], 1000, "is ready, at least 1,000 runs of queue default come before it"),
    (
        record(State.QUEUED),
        [worker(running=1, slots=1)],
        1,
        "1 run of queue default comes before it, and the one slot of the one live worker is taken",
    ),
    (
        record(State.QUEUED, version="2"),
        [worker()],
        0,
        "the one live worker that knows it serves no version; start one with that code",
    ),
    (record(State.RUNNING, worker="w-1", attempt=3), [], 0, "runs on worker w-1, attempt 3"),
    (record(State.RUNNING, worker="w-1", cancelling="enough"), [], 0, "it was asked to end: enough"),
    (
        record(State.WAITING, waits=[Wait("sleep#2", WaitFor.TIMER, at=NOON)]),
        [],
        0,
        "waits for 2030-01-01 12:00:00 UTC (sleep#2)",
    ),
    (
        record(State.WAITING, waits=[Wait("out/charge#2.retry", WaitFor.TIMER, at=NOON)]),
        [],
        0,
        "waits for 2030-01-01 12:00:00 UTC, when step out/charge#2 is tried again",
    ),
    (
        record(
            State.WAITING,
            waits=[Wait("signal:approve", WaitFor.SIGNAL, "approve", NOON), Wait("x", WaitFor.RUN, "r2")],
        ),
        [],
        0,
        "waits for signal approve (until 2030-01-01 12:00:00 UTC) or run r2 to end",
    ),
    (
        record(State.WAITING, waits=[Wait(f"x{n}", WaitFor.RUN, f"r{n}") for n in range(10_000)]),
        [],
        0,
        "or run r8 to end or run r9 to end or 9,990 more",
    ),
    (record(State.SUCCEEDED, finished_at=NOON), [], 0, "succeeded at 2030-01-01 12:00:00 UTC"),
    (record(State.FAILED, finished_at=NOON, body=ERROR), [], 0, "failed at 2030-01-01 12:00:00 UTC: ValueError"),
    (record(State.FAILED, finished_at=NOON, body="not json"), [], 0, "can't be read"),
    (record(State.CANCELLED, finished_at=NOON, body='"enough"'), [], 0, "was cancelled at 2030-01-01 12:00:00 UTC"),
]


@pytest.mark.parametrize(("run", "workers", "ahead", "says"), CASES, ids=[case[3][:40] for case in CASES])
def test_it_says_why(run: RunRecord, workers: list[WorkerRecord], ahead: int, says: str) -> None:
    assert says in explain(run, workers, ahead)


@pytest.mark.parametrize(
    ("workers", "more"),
    [
        ([worker()], ""),
        ([], "; no live worker serves workflow ship: start one with `perdure worker MODULE:APP`"),
        (
            [worker(workflows=("pack",))],
            "; no live worker serves workflow ship: the one live worker of this store runs",
        ),
    ],
    ids=["served", "no worker", "not served"],
)
def test_a_run_whose_worker_is_dead_is_not_said_to_run(workers: list[WorkerRecord], more: str) -> None:
    run = record(State.RUNNING, worker="w-1", attempt=3, lease_until=NOON)
    assert explain(run, workers, 0, now=NOON - 1) == "runs on worker w-1, attempt 3"
    assert explain(run, workers, 0, now=NOON).startswith(
        "ran on worker w-1, attempt 3, until that one's lease ended at 2030-01-01 12:00:00 UTC: any live worker takes"
        f" it over{more}"
    )


@pytest.mark.parametrize("state", State)
def test_no_state_is_without_words(state: State) -> None:
    assert explain(record(state), [], 0)
