"""What a claim costs in a scene."""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

from layouts import LEASE, Claimer, Layout
from scenes import FREE, Scene

_WARM = 10
"""Calls before the first one that counts: from the sixth on, plans are those that are kept."""


@dataclass
class Cost:
    """Of calls of one kind: milliseconds by the clock and of the server's processor, the latter for each run that is
    claimed as well, and how many pages a call looks at. Where the server's processes can't be seen the clock stands for
    its processor."""

    median: float
    p99: float
    processor: float
    per_run: float
    buffers: int


@dataclass
class Figures:
    """What was found in one scene with one layout."""

    scene: str
    layout: str
    costs: dict[str, Cost] = field(default_factory=dict[str, Cost])
    """By "one" or "batch", and by whether the tables had been analysed."""
    in_order: bool = True
    index_bytes: dict[str, int] = field(default_factory=dict[str, int])
    claim_index: str = ""
    reclaimed_after: float | None = None
    """Seconds from the end of the lease until the last expired run was claimed again; infinite when it was not."""


async def measure(layout: Layout, scene: Scene, *, share: float, calls: int) -> Figures | None:
    """Builds the scene and claims in it; None when the layout knows nothing of the kind."""
    await layout.build()
    for what, number in scene.fills:
        if not await layout.fill(what, max(200, int(number * share))):
            return None
    figures = Figures(scene.name, layout.name)
    if scene.expired:
        figures.reclaimed_after = await _reclaimed(layout, scene.expired)
        return figures
    holder = await layout.connect()
    transaction = holder.transaction(isolation="repeatable_read")
    await transaction.start()
    if scene.passing:
        await holder.fetch("SELECT 1 FROM pg_class LIMIT 1")
        await layout.pass_through(max(200, int(scene.passing * share)))
    await layout.fill("free", FREE)
    for state in ("never analysed", "analysed"):
        if state == "analysed":
            await layout.run("ANALYZE")
        if scene.claimers > 1:
            figures.costs[f"one, {state}"] = await _together(layout, scene.claimers, calls)
            continue
        claimer = await layout.claimer()
        figures.costs[f"one, {state}"] = await _cost(claimer, figures, 1, calls)
        if layout.batch > 1:
            figures.costs[f"batch, {state}"] = await _cost(claimer, figures, layout.batch, max(5, calls // 25))
        await claimer.close()
    await transaction.rollback()
    await holder.close()
    figures.index_bytes = await layout.index_sizes()
    figures.claim_index = layout.claim_index.rpartition(".")[2]
    return figures


async def _cost(claimer: Claimer, figures: Figures, most: int, calls: int) -> Cost:
    times: list[float] = []
    busy: list[float] = []
    taken: list[int] = []
    pid = await claimer.pid()
    for call in range(_WARM + calls):
        spent = busy_for(pid)
        begin = time.perf_counter()
        got = await claimer.take(most)
        if call >= _WARM:
            times.append((time.perf_counter() - begin) * 1000)
            busy.append(busy_for(pid) - spent)
        taken += got
        await claimer.done()
        if len(got) != most:
            raise RuntimeError(f"{figures.layout} claimed {len(got)} of {most} runs in the scene {figures.scene}")
    figures.in_order = figures.in_order and taken == sorted(taken)
    buffers = [await claimer.buffers(most) for _ in range(5)]
    processor = statistics.median(busy) or statistics.median(times)
    p99 = statistics.quantiles(times, n=100)[98]
    return Cost(statistics.median(times), p99, processor, processor / most, int(statistics.median(buffers)))


async def _together(layout: Layout, number: int, calls: int) -> Cost:
    """The same when many claim at once; nobody gets what another one has."""
    claimers = [await layout.claimer() for _ in range(number)]
    each = max(2, calls // number)
    taken: list[int] = []
    times: list[float] = []

    async def claim(claimer: Claimer) -> None:
        for _ in range(each):
            begin = time.perf_counter()
            taken.extend(await claimer.take(1))
            times.append((time.perf_counter() - begin) * 1000)

    for claimer in claimers:
        for _ in range(_WARM):
            await claimer.take(1)
    pids = [await claimer.pid() for claimer in claimers]
    spent = sum(map(busy_for, pids))
    await asyncio.gather(*map(claim, claimers))
    processor = (sum(map(busy_for, pids)) - spent) / len(times)
    if len(set(taken)) != len(taken):
        raise RuntimeError(f"{layout.name} gave a run to two claimers")
    buffers = await claimers[0].buffers(1)
    for claimer in claimers:
        await claimer.close()
    median, p99 = statistics.median(times), statistics.quantiles(times, n=100)[98]
    return Cost(median, p99, processor or median, processor or median, buffers)


def busy_for(pid: int) -> float:
    """Milliseconds that a process of this machine has run; 0 when it can't be seen."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e6
    except FileNotFoundError:
        return 0.0


async def _reclaimed(layout: Layout, number: int) -> float:
    await layout.fill("expired", number)
    expires = time.time() + LEASE / 1000
    await layout.fill("free", FREE)
    claimer = await layout.claimer()
    missing = number
    looked = 0.0
    while missing and time.time() < expires + 10:
        if time.time() - looked >= 1:
            looked = time.time()
            await layout.look()
        taken = await claimer.take(layout.batch)
        missing -= sum(1 for each in taken if each <= number)
        await claimer.done()
        await layout.fill("free", len(taken))
    await claimer.close()
    return max(0.0, time.time() - expires) if not missing else float("inf")
