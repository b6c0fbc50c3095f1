"""What is measured: each workload makes one cell, on a store that nobody else uses."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import quantiles

from processes import CellError, LongerError, board, call, memory_of, processor_of, workers
from systems import System
from throwaway import Fresh

Figures = dict[str, float]

_MOST_BYTES = 128 * 1024 * 1024
"""What the payloads of a drain have together, at most."""


@dataclass(frozen=True)
class Sizes:
    """How much is done in a cell."""

    seconds: float
    """How long a drain, enqueueing or calling should take, for a system of any speed."""
    most_runs: int
    calls: int
    waiting: int
    naps: int
    noisy: int
    recovery: float
    """The seconds that a killed worker's run may take to go on."""
    idle: float
    deadline: float
    """The seconds that anything else may take."""


QUICK = Sizes(2.0, 60_000, 300, 20_000, 200, 500, 20, 5, 30)
FULL = Sizes(4.0, 100_000, 1_000, 100_000, 1_000, 5_000, 120, 60, 180)
TINY = Sizes(0.1, 300, 10, 50, 20, 50, 20, 0.5, 30)


@dataclass
class Cell:
    """Where a workload is measured for a system."""

    system: System
    store: Fresh
    sizes: Sizes
    pace: dict[str, float]
    """Runs per second that were seen before, by workload, so that a drain takes about the time that it should."""


@dataclass(frozen=True)
class Workload:
    """One row of a table."""

    name: str
    title: str
    unit: str
    measure: Callable[[Cell], Figures]
    needs: tuple[str, ...] = ("nothing",)
    """The kinds of runs and abilities that a system must have."""
    more_is_better: bool = True
    figure: str = "per_second"
    """The one that the table shows."""
    quick: bool = False
    table: str = "Throughput"
    """The one that it stands in."""


def drain(
    name: str, *, concurrency: int, kind: str = "nothing", processes: int = 1, size: int = 16, groups: int = 0
) -> Callable[[Cell], Figures]:
    """Runs per second of runs that are there before the workers, from the first end to the last."""

    def measure(cell: Cell) -> Figures:
        pace = cell.pace.get(name)
        # A system that nobody has seen yet gets few, so as not to take minutes.
        count = 200 if pace is None else int(pace * cell.sizes.seconds)
        count = max(100 * processes, min(count, cell.sizes.most_runs, _MOST_BYTES // size))
        with board() as shown:
            words = ["--count", str(count), "--kind", kind, "--bytes", str(size), "--groups", str(groups)]
            call(cell.system, cell.store.url, "enqueue", "--bulk", *words, patience=cell.sizes.deadline)
            with workers(
                cell.system, cell.store.url, shown, concurrency=concurrency, kind=kind, count=processes
            ) as working:
                done, first, last = shown.wait(count, cell.sizes.deadline, working)
        if done < 2 or last <= first:
            raise CellError(f"{done} of {count} runs in {cell.sizes.deadline:.0f} s")
        rate = (done - 1) / (last - first)
        cell.pace[name] = rate
        return {"per_second": rate, "runs": done, "asked": count}

    return measure


def enqueue(bulk: bool) -> Callable[[Cell], Figures]:
    """Starts per second of one client."""

    def measure(cell: Cell) -> Figures:
        words = [
            "--seconds",
            str(cell.sizes.seconds),
            "--count",
            "1000000",
            "--warm",
            "3",
            *(["--bulk"] if bulk else []),
        ]
        said = call(cell.system, cell.store.url, "enqueue", *words, patience=cell.sizes.deadline)
        return {"per_second": said["count"] / said["seconds"], "runs": said["count"]}

    return measure


def latency(cell: Cell) -> Figures:
    """Milliseconds from a start until its result is there, with a worker that has nothing else to do."""
    with (
        board() as shown,
        workers(cell.system, cell.store.url, shown, concurrency=10, kind="nothing"),
    ):
        seconds = 3 * cell.sizes.seconds
        words = ["--count", str(cell.sizes.calls), "--seconds", str(seconds), "--warm", "5"]
        took = call(cell.system, cell.store.url, "call", *words, patience=cell.sizes.deadline)["milliseconds"]
    return {"p50": percentile(took, 50), "p99": percentile(took, 99), "calls": len(took)}


def recovery(cell: Cell) -> Figures:
    """Seconds from `kill -9` of the worker until another one, which was there before, goes on with its run."""
    with board() as shown, workers(cell.system, cell.store.url, shown, concurrency=10, kind="hold") as first:
        _enqueue(cell, "hold", 1)
        _until(lambda: len(shown.events("hold")) == 1, cell.sizes.deadline, "the run did not begin")
        with workers(cell.system, cell.store.url, shown, concurrency=10, kind="hold"):
            time.sleep(1.0)  # so that it listens: there is no sign of that which all systems give
            killed = time.monotonic()
            first.kill()
            try:
                _until(lambda: len(shown.events("hold")) > 1, cell.sizes.recovery, "")
            except CellError:
                raise LongerError(f"not within {cell.sizes.recovery:.0f} s") from None
            return {"seconds": shown.events("hold")[1] - killed}


def fairness(cell: Cell) -> Figures:
    """When the last run of ten small groups began, as a share of the time that all runs took."""
    small, each = 10, 5
    with board() as shown:
        words = ["--kind", "turn"]
        noisy = ["--group", "large", "--count", str(cell.sizes.noisy)]
        call(cell.system, cell.store.url, "enqueue", "--bulk", *words, *noisy, patience=cell.sizes.deadline)
        few = ["--groups", str(small), "--count", str(small * each)]
        call(cell.system, cell.store.url, "enqueue", "--bulk", *words, *few, patience=cell.sizes.deadline)
        with workers(cell.system, cell.store.url, shown, concurrency=10, kind="turn") as working:
            total = cell.sizes.noisy + small * each
            done, first, last = shown.wait(total, cell.sizes.deadline, working)
        turns = shown.events("turn:")
        if done < total or len(turns) < small * each:
            raise CellError(f"{done} of {total} runs in {cell.sizes.deadline:.0f} s")
        return {"percent": 100 * (max(turns) - first) / (last - first), "runs": done}


def idle(cell: Cell) -> Figures:
    """What a worker with nothing to do asks of the store and of the processor, in a minute."""
    with (
        board() as shown,
        workers(cell.system, cell.store.url, shown, concurrency=50, kind="idle") as working,
    ):
        _enqueue(cell, "nothing", 1)
        shown.wait(1, cell.sizes.deadline, working)
        cell.store.statements()
        time.sleep(1.0)  # what follows the only run
        statements, processor = cell.store.statements(), processor_of(working.tree())
        began = time.monotonic()
        time.sleep(cell.sizes.idle)
        after, used = cell.store.statements(), processor_of(working.tree()) - processor
        per_minute = 60 / (time.monotonic() - began)
        figures = {"processor_ms": used * 1000 * per_minute}
        if statements is not None and after is not None:
            figures["statements"] = (after - statements) * per_minute
        return figures


def lag(cell: Cell) -> Figures:
    """How late the worker's event loop was while durable runs were in a step, all at once."""
    count = cell.sizes.naps
    with board() as shown:
        _enqueue(cell, "nap", count)
        with workers(cell.system, cell.store.url, shown, concurrency=count, kind="nap") as working:
            done, _, _ = shown.wait(count, cell.sizes.deadline, working)
        if done < count:
            raise CellError(f"{done} of {count} runs in {cell.sizes.deadline:.0f} s")
        _, _, last = shown.read()
        # By when it was due: a stall under the last run is seen only after that run has ended.
        late = [milliseconds for at, milliseconds in shown.lags() if at - milliseconds / 1000 <= last]
        if len(late) < 2:
            raise CellError("its runs are in no event loop that can be watched")
        return {"p50": percentile(late, 50), "p99": percentile(late, 99), "most": max(late), "runs": done}


def waiting(cell: Cell) -> Figures:
    """What a run that waits takes: of the worker's memory, and of the store."""
    count = cell.sizes.waiting
    with (
        board() as shown,
        workers(cell.system, cell.store.url, shown, concurrency=50, kind="wait") as working,
    ):
        time.sleep(1.0)  # a worker that has just started grows by itself
        memory, size = memory_of(working.tree()), cell.store.size()
        count = _enqueue(cell, "wait", count)
        done, _, _ = shown.wait(count, cell.sizes.deadline, working)
        if done < min(count, 51):
            raise CellError(f"{done} of {count} runs in {cell.sizes.deadline:.0f} s")
        time.sleep(1.0)  # the last of them are on their way to the store
        return {
            "worker_bytes": max(0, memory_of(working.tree()) - memory) / done,
            "store_bytes": (cell.store.size() - size) / count,
            "runs": done,
            "asked": cell.sizes.waiting,
        }


STARTING, OTHER = "Starting", "Failure, fairness and rest"

WORKLOADS = (
    Workload("c1", "Drain, one at a time", "runs/s", drain("c1", concurrency=1), quick=True),
    Workload("c50", "Drain, 50 at a time", "runs/s", drain("c50", concurrency=50), quick=True),
    Workload(
        "steps3",
        "Three durable steps, 50 at a time",
        "runs/s",
        drain("steps3", concurrency=50, kind="steps"),
        ("steps",),
        quick=True,
    ),
    Workload(
        "groups10",
        "Ten groups of one at a time",
        "runs/s",
        drain("groups10", concurrency=50, kind="turn", groups=10),
        ("turn",),
    ),
    Workload(
        "latency", "Start to result, idle worker", "ms", latency, ("result",), False, "p50", quick=True, table=STARTING
    ),
    Workload("enqueue", "Enqueue, one at a time", "runs/s", enqueue(bulk=False), quick=True, table=STARTING),
    Workload("bulk", "Enqueue, in bulk", "runs/s", enqueue(bulk=True), ("bulk",), quick=True, table=STARTING),
    Workload("processes4", "Drain, four processes of 50", "runs/s", drain("processes4", concurrency=50, processes=4)),
    Workload(
        "payload64k", "Drain, 64 KB payloads, 50 at a time", "runs/s", drain("payload64k", concurrency=50, size=65_536)
    ),
    Workload(
        "recovery", "A killed worker's run goes on after", "s", recovery, ("hold",), False, "seconds", table=OTHER
    ),
    Workload(
        "fairness",
        "Last start of small groups beside a noisy one",
        "% of the time",
        fairness,
        ("turn",),
        False,
        "percent",
        table=OTHER,
    ),
    Workload("idle", "Idle worker", "statements/min", idle, (), False, "statements", table=OTHER),
    Workload("lag", "Event loop late, 1,000 durable runs", "ms, p99", lag, ("nap",), False, "p99", table=OTHER),
    Workload(
        "waiting",
        "A waiting run in the worker's memory",
        "bytes",
        waiting,
        ("wait",),
        False,
        "worker_bytes",
        table=OTHER,
    ),
)


def percentile(values: list[float], which: int) -> float:
    """The value that so many percent are not above."""
    return quantiles(values, n=100, method="inclusive")[which - 1] if len(values) > 1 else values[0]


def _enqueue(cell: Cell, kind: str, count: int) -> int:
    """Starts so many runs, or as many as go into half of the deadline; returns how many."""
    words = ["--kind", kind, "--count", str(count), "--seconds", str(cell.sizes.deadline / 2)]
    words += ["--bulk"] if count > 1 else []
    return call(cell.system, cell.store.url, "enqueue", *words, patience=cell.sizes.deadline)["count"]


def _until(true: Callable[[], bool], seconds: float, otherwise: str) -> None:
    until = time.monotonic() + seconds
    while not true():
        if time.monotonic() > until:
            raise CellError(otherwise)
        time.sleep(0.01)
