"""Measures all cells, round after round."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from processes import CellError, LongerError, call
from systems import System, command
from throwaway import Postgres, Redis, Sqlite
from workloads import Cell, Figures, Sizes, Workload

Results = dict[str, Any]


class Runner:
    """The systems take turns at each workload, and each round begins with another one: a machine that gets slower does
    so for all of them."""

    def __init__(
        self,
        stores: Mapping[str, Sqlite | Postgres | Redis],
        systems: Sequence[System],
        workloads: Sequence[Workload],
        sizes: Sizes,
        rounds: int,
        machine: Mapping[str, str],
        paces: dict[str, dict[str, float]],
    ) -> None:
        self._stores = stores
        self._systems = systems
        self._workloads = workloads
        self._sizes = sizes
        self._rounds = rounds
        self._paces = paces
        self._about: dict[str, Results] = {}
        self._cells: dict[str, dict[str, Results]] = {workload.name: {} for workload in workloads}
        self._machine = dict(machine)

    def results(self) -> Iterator[Results]:
        """Measures; gives all results so far after each workload."""
        for system in self._systems:
            self._about[system.key] = _about(system)
        for number in range(self._rounds):
            for workload in self._workloads:
                for store in self._stores:
                    systems = [each for each in self._systems if each.store == store]
                    first = number % len(systems) if systems else 0
                    for system in systems[first:] + systems[:first]:
                        self._measure(workload, system)
                # A round counts when all workloads had it, but for the first one.
                yield self._so_far(number + 1 if workload is self._workloads[-1] else max(1, number))

    def _measure(self, workload: Workload, system: System) -> None:
        cell = self._cells[workload.name].setdefault(system.key, {"rounds": []})
        about = self._about[system.key]
        if why := about.get("missing"):
            cell["none"] = why
            return
        lacks = about.get("lacks", {})
        if why := next((lacks[need] for need in (*workload.needs, workload.name) if need in lacks), None):
            cell["none"] = why
            return
        if "none" in cell or len(cell.get("failures", [])) > 1:
            return  # It would only take time again.
        try:
            figures = self._figures(workload, system)
        except LongerError as error:
            # Measured, in its way: it would only take as long again.
            cell["none"] = str(error)
            print(f"{workload.name} {system.key}: {error}", file=sys.stderr, flush=True)
            return
        except CellError as error:
            cell.setdefault("failures", []).append(str(error))
            print(f"{workload.name} {system.key}: {error}", file=sys.stderr, flush=True)
            return
        cell["rounds"].append({name: round(value, 3) for name, value in figures.items()})
        if workload.figure in figures:
            print(f"{workload.name} {system.key}: {figures[workload.figure]:,.1f}", file=sys.stderr, flush=True)

    def _figures(self, workload: Workload, system: System) -> Figures:
        store = self._stores[system.store]
        paces = self._paces.setdefault(system.key, {})
        drains = workload.figure == "per_second" and workload.name not in ("enqueue", "bulk")
        figures: Figures = {}
        # The first drain of a system whose pace isn't known finds only that out.
        for _ in range(2 if drains and workload.name not in paces else 1):
            with store.fresh(system.name, self._setup(system)) as fresh:
                try:
                    figures = workload.measure(Cell(system, fresh, self._sizes, paces))
                finally:
                    if isinstance(store, Postgres) and workload.figure == "statements":
                        store.quiet()
        return figures

    def _setup(self, system: System) -> Callable[[str], None]:
        needed = self._about[system.key]["setup"]
        return lambda url: call(system, url, "setup", patience=180) if needed else None

    def _so_far(self, rounds: int) -> Results:
        return {
            "machine": self._machine,
            "finished": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
            "rounds": rounds,
            "stores": {name: store.settings for name, store in self._stores.items()},
            "systems": self._about,
            "workloads": [
                {
                    "name": each.name,
                    "title": each.title,
                    "unit": each.unit,
                    "figure": each.figure,
                    "more_is_better": each.more_is_better,
                    "table": each.table,
                }
                for each in self._workloads
            ],
            "cells": self._cells,
        }


def _about(system: System) -> Results:
    """What its script says about it, or why there is none."""
    base = {"name": system.name, "store": system.store}
    try:
        command(system)
        with tempfile.TemporaryDirectory() as folder:
            url = {"redis": "redis://127.0.0.1:1/0", "postgres": "postgresql://nobody@127.0.0.1:1/none"}.get(
                system.store, f"sqlite:///{folder}/store.db"
            )
            return base | call(system, url, "info", patience=60)
    except (RuntimeError, CellError) as error:
        return base | {"missing": str(error)}
