"""How fast one worker process gets through runs that are there already, and how fast the store alone would."""

from __future__ import annotations

import asyncio
import gc
import time
from collections import deque
from statistics import median

from msgspec import Struct
from msgspec.structs import asdict, replace

from perdure.app import App
from perdure.bench.floor import Floor
from perdure.bench.report import Report
from perdure.bench.target import Target, new_queue
from perdure.context import current_run
from perdure.step import step
from perdure.workflow import Workflow

_WARM_UP = 200


class Shape(Struct, frozen=True):
    """What is drained."""

    runs: int
    concurrency: int
    steps: int
    children: int
    payload_bytes: int
    groups: int
    group_limit: int

    @property
    def total(self) -> int:
        """All runs, with the children that they start."""
        return self.runs * (1 + self.children)


class Drained:
    """Counts the runs of a round whose function has returned."""

    def __init__(self, total: int, concurrency: int) -> None:
        self.all = asyncio.Event()
        self.last: deque[str] = deque(maxlen=2 * concurrency)
        """The ids of those that came last: when these are settled in the store, all are."""
        self._left = total

    def count(self) -> None:
        self.last.append(current_run().id)
        self._left -= 1
        if not self._left:
            self.all.set()


@step(name="bench.work")
async def work(payload: str) -> str:
    """Does nothing, so that what is measured is the price of a step."""
    return payload


def define(app: App, shape: Shape, queue: str, drained: Drained) -> tuple[Workflow[[str], str], Workflow[[str], str]]:
    """The workflow that is drained, and that of its children."""

    @app.workflow(name="bench.leaf", queue=queue)
    async def leaf(payload: str) -> str:
        drained.count()
        return payload

    @app.workflow(
        name="bench.drain", queue=queue, group=_group if shape.groups else None, group_limit=shape.group_limit
    )
    async def drain(payload: str) -> str:
        for _ in range(shape.steps):
            await work(payload)
        if shape.children:
            await asyncio.gather(*(leaf.run(payload) for _ in range(shape.children)))
        drained.count()
        return payload

    return drain, leaf


async def measure(target: Target, shape: Shape, repeat: int) -> Report:
    """Measures floor and engine in turns, so that a machine that gets slower does so for both; medians count."""
    await _round(target.url, replace(shape, runs=min(shape.runs, _WARM_UP)))
    rounds = [await _round(target.url, shape) for _ in range(repeat)]
    floors, engines, calls = (median(figures) for figures in zip(*(each[:3] for each in rounds), strict=True))
    busy = [each[3] for each in rounds if each[3] is not None]
    return Report(
        "drain",
        target.url,
        {**asdict(shape), "repeat": repeat},
        {
            "per_second": round(engines, 1),
            "floor_per_second": round(floors, 1),
            "share_of_floor": round(engines / floors, 3),
            "calls_per_run": round(calls, 3),
            **({"server_us_per_run": round(median(busy), 1)} if busy else {}),
            "rounds": [{"floor": round(floor, 1), "engine": round(engine, 1)} for floor, engine, *_ in rounds],
        },
        "Runs that one worker process ends in a second (children count as runs), and what a bare loop makes of the same"
        " calls to the store: the share is what the engine leaves of it. A call is one statement with its commit, or a"
        " transaction of an embedded store; what the server spends on them is told where it can be.",
    )


async def _round(url: str, shape: Shape) -> tuple[float, float, float, float | None]:
    """Runs per second of the bare loop and of a worker, which get the same runs on two queues; the calls to the store
    for each run of the worker, and the microseconds of the server that these take."""
    queue, bare_queue = new_queue(), new_queue()
    payloads = [_payload(shape, number) for number in range(shape.runs)]
    async with App(url) as app:
        drained = Drained(shape.total, shape.concurrency)
        drain, leaf = define(app, shape, queue, drained)
        await drain.options(queue=bare_queue).start_many(payloads)
        await drain.start_many(payloads)
        gc.collect()
        floor = Floor(
            bare_queue,
            drain.name,
            leaf.name,
            slots=shape.concurrency,
            steps=shape.steps,
            children=shape.children,
        )
        store = await app.client.store()
        took_bare = await floor.drain(store)
        gc.collect()
        calls, busy = store.calls, await store.busy()
        took = await _drain(app, queue, shape.concurrency, drained)
        calls = store.calls - calls
        busy_now = await store.busy()
    spent = None if busy is None or busy_now is None else (busy_now - busy) * 1000 / shape.total
    return shape.total / took_bare, shape.total / took, calls / shape.total, spent


def _payload(shape: Shape, number: int) -> str:
    """The input of a run. It tells the group, if there are any: runs of all groups arrive mixed, as those of many
    customers do."""
    return (str(number % shape.groups) if shape.groups else "").rjust(shape.payload_bytes, "x")


def _group(payload: str) -> str:
    return payload.lstrip("x")


async def _drain(app: App, queue: str, concurrency: int, drained: Drained) -> float:
    """Seconds from the worker's start, on a store that is open, until the last run has ended in the store."""
    worker = app.worker(queues=[queue], concurrency=concurrency, grace=1)
    began = time.perf_counter()
    async with worker:
        await drained.all.wait()
        await asyncio.gather(*(app.run(run_id).result() for run_id in drained.last))
        return time.perf_counter() - began
