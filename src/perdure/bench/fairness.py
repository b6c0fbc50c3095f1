"""How long small groups wait beside a large one."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

from msgspec import Struct
from msgspec.structs import asdict

from perdure.app import App
from perdure.bench.report import Report
from perdure.bench.target import Target, new_queue

_LARGE = "large"


def _itself(group: str) -> str:
    return group


class Groups(Struct, frozen=True):
    """A large group whose runs are there first, and small ones that come after it."""

    large: int
    small: int
    each: int
    """How many runs each small group has."""

    @property
    def total(self) -> int:
        return self.large + self.small * self.each


async def measure(target: Target, groups: Groups, workers: int, concurrency: int) -> Report:
    """Lets workers drain all groups, and tells when the last run of the small ones began."""
    began: list[float] = []
    left = groups.total
    drained = asyncio.Event()
    async with App(target.url) as app, AsyncExitStack() as stack:

        @app.workflow(name="bench.turn", queue=new_queue(), group=_itself)
        async def turn(group: str) -> None:
            nonlocal left
            if group != _LARGE:
                began.append(time.perf_counter())
            left -= 1
            if not left:
                drained.set()

        await turn.start_many([_LARGE] * groups.large)
        await turn.start_many([f"small-{number}" for _ in range(groups.each) for number in range(groups.small)])
        start = time.perf_counter()
        for _ in range(workers):
            await stack.enter_async_context(app.worker(concurrency=concurrency, grace=1))
        await drained.wait()
        took = time.perf_counter() - start
    last = max(began, default=start) - start
    return Report(
        "fairness",
        target.url,
        {**asdict(groups), "workers": workers, "concurrency": concurrency},
        {"total_s": round(took, 3), "last_small_s": round(last, 3), "share": round(last / took, 4)},
        "Seconds until all runs have ended, and until the last run of the small groups began: in turns its share is"
        " small, in the order of starting it would be near 1.",
    )
