"""Nothing is kept of a run that is over, and no garbage collector has to find that out."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure import App, step
from perdure.engine.execution import Execution
from perdure.engine.scope import scope_needed

pytestmark = pytest.mark.anyio


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("steps", [0, 2])
async def test_an_execution_is_gone_with_its_run(steps: int, tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'store.db'}")
    begun: list[weakref.ref[Execution]] = []

    @step
    async def work(number: int) -> int:
        return number

    @app.workflow
    async def each() -> int:
        begun.append(weakref.ref(scope_needed("this").execution))
        return sum([await work(number) for number in range(steps)])

    async with app, app.worker():
        for _ in range(2):
            await each.run()
        assert [kept() for kept in begun] == [None, None]
