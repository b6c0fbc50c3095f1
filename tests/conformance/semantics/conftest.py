"""Real workers on each store under test, with a clock that the test moves."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import pytest

from perdure import App
from perdure.call import Call
from perdure.stores.base import Store
from perdure.testing import CrashReport, Sandbox, VirtualClock, explore_crashes

Play: TypeAlias = Callable[..., Sandbox]
Explore: TypeAlias = Callable[..., Call[CrashReport]]
Open: TypeAlias = Callable[[VirtualClock], Store]


class Backend(Protocol):
    """A kind of store, as the suite around this one knows it."""

    def open(self, path: Path, clock: Any, /) -> Store: ...
    @property
    def in_one_partition(self) -> Backend: ...


@pytest.fixture
def empty_store(backend: Backend, tmp_path: Path) -> Open:
    """Opens an empty store of the kind under test, on the clock that is given. What partitions change is asked of the
    store by the suite around this one."""
    numbers = itertools.count()

    def open(clock: VirtualClock) -> Store:
        directory = tmp_path / f"store-{next(numbers)}"
        directory.mkdir()
        return backend.in_one_partition.open(directory, clock)

    return open


@pytest.fixture
def play(empty_store: Open) -> Play:
    """Runs an app in a sandbox: `async with play(app) as sandbox`."""

    def play(app: App, clock: VirtualClock | None = None, **options: Any) -> Sandbox:
        return Sandbox(app, clock or VirtualClock(), open=empty_store, **options)

    return play


@pytest.fixture
def explore(empty_store: Open) -> Explore:
    """Runs a workflow with a crash at each point of it: `(await explore(workflow, …)).check()`."""
    return partial(explore_crashes, open=empty_store)
