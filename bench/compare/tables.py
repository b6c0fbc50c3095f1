"""Results as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

PERDURE, FLOOR = "Perdure", "floor"
_STORES = {"redis": "Redis", "postgres": "PostgreSQL", "sqlite": "SQLite"}


def markdown(results: Mapping[str, Any], level: int = 2) -> str:
    """All tables, with the settings under which they came about; `level` is that of their headings."""
    mark = "#" * level
    parts = [_head(results)]
    for store in results["stores"]:
        systems = [key for key, about in results["systems"].items() if about["store"] == store]
        parts += [f"{mark} {_STORES[store]}", _settings(results["stores"][store])]
        for name in dict.fromkeys(each["table"] for each in results["workloads"]):
            workloads = [each for each in results["workloads"] if each["table"] == name]
            parts += [f"{mark}# {name}", _table(results, systems, workloads)]
        parts += [_list("More of the same cells:", _others(results, systems))]
        parts += [_list("What failed:", _failures(results, systems))]
        parts += [_list("Versions and settings:", _versions(results, systems))]
    return "\n\n".join(part for part in parts if part) + "\n"


def figures(cell: Mapping[str, Any], figure: str) -> list[float]:
    """What the rounds of a cell came to."""
    return [values[figure] for values in cell.get("rounds", []) if figure in values]


def _head(results: Mapping[str, Any]) -> str:
    machine = "; ".join(f"{name}: {value}" for name, value in results["machine"].items())
    rounds = results["rounds"]
    spread = f"Medians of {rounds} rounds, with the lowest and the highest." if rounds > 1 else "One round."
    return (
        f"{spread} In brackets: how many times as good Perdure is. The floor is a bare loop on the store's driver that"
        f" makes the same durable writes; behind Perdure stands its share of it.\n\n{machine}."
    )


def _settings(settings: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {value}" for name, value in settings.items()) + "."


def _table(results: Mapping[str, Any], systems: Sequence[str], workloads: Sequence[Mapping[str, Any]]) -> str:
    lines = ["| | " + " | ".join(f"{each['title']} ({each['unit']})" for each in workloads) + " |"]
    lines.append("|---|" + "---|" * len(workloads))
    for key in systems:
        name = results["systems"][key]["name"]
        if missing := results["systems"][key].get("missing"):
            lines.append(f"| {name} | {missing.replace('|', '/')} |" + " |" * (len(workloads) - 1))
            continue
        cells = (_cell(results["cells"][each["name"]], key, each) for each in workloads)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(cells: Mapping[str, Any], key: str, workload: Mapping[str, Any]) -> str:
    cell = cells.get(key, {})
    values = figures(cell, workload["figure"])
    if not values:
        return "failed" if "failures" in cell else cell.get("none", "–")
    text = _number(median(values))
    if len(values) > 1:
        text += f" ({_number(min(values))}–{_number(max(values))})"
    short = [each for each in cell["rounds"] if each.get("runs", 0) < each.get("asked", 0)]
    if short:
        least = min(short, key=lambda each: each["runs"] / each["asked"])
        text += f" ({least['runs']:,.0f} of {least['asked']:,.0f})"
    name, _, store = key.partition("/")
    if name == PERDURE:
        share = _times(cells, workload, f"{FLOOR}/{store}", key)
        return f"**{text}**" + ("" if share is None else f" [{share:.2f} of the floor]")
    times = None if name == FLOOR else _times(cells, workload, key, f"{PERDURE}/{store}")
    return text if times is None else f"{text} [{_ratio(times)}]"


def _times(cells: Mapping[str, Any], workload: Mapping[str, Any], base: str, other: str) -> float | None:
    """How many times as good the other one is."""
    values = [figures(cells.get(each, {}), workload["figure"]) for each in (base, other)]
    if not all(values) or not all(median(each) for each in values):
        return None
    times = median(values[1]) / median(values[0])
    return times if workload["more_is_better"] else 1 / times


def _list(head: str, lines: Sequence[str]) -> str:
    return head + "\n\n" + "\n".join(f"- {line}" for line in lines) if lines else ""


def _others(results: Mapping[str, Any], systems: Sequence[str]) -> list[str]:
    """The figures of a cell that its table has no room for: percentiles, processor time, sizes."""
    lines: list[str] = []
    for workload in results["workloads"]:
        hidden = {workload["figure"], "runs", "asked", "calls"}
        for key in systems:
            cell = results["cells"][workload["name"]].get(key, {})
            names = [name for name in (cell.get("rounds") or [{}])[0] if name not in hidden]
            if names:
                said = ", ".join(f"{name} {_number(median(figures(cell, name)))}" for name in names)
                lines.append(f"{workload['title']}, {results['systems'][key]['name']}: {said}")
    return lines


def _failures(results: Mapping[str, Any], systems: Sequence[str]) -> list[str]:
    lines: list[str] = []
    for workload in results["workloads"]:
        for key in systems:
            head = f"{workload['title']}, {results['systems'][key]['name']}"
            failures = results["cells"][workload["name"]].get(key, {}).get("failures", [])
            lines += [f"{head}: {why}" for why in dict.fromkeys(failures)]
    return lines


def _versions(results: Mapping[str, Any], systems: Sequence[str]) -> list[str]:
    lines: list[str] = []
    for key in systems:
        about = results["systems"][key]
        versions = ", ".join(f"{name} {value}" for name, value in about.get("versions", {}).items())
        settings = "; ".join(f"{name}: {value}" for name, value in about.get("settings", {}).items())
        if versions:
            lines.append(f"{about['name']}: {versions}{'. ' + settings if settings else ''}")
    return lines


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _ratio(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"
