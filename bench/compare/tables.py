"""Results as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

PERDURE, FLOOR = "Perdure", "floor"
_STORES = {"redis": "Redis", "postgres": "PostgreSQL", "sqlite": "SQLite"}


def markdown(results: Mapping[str, Any]) -> str:
    """All tables, with the settings under which they came about."""
    parts = [_head(results)]
    for store in results["stores"]:
        systems = [key for key, about in results["systems"].items() if about["store"] == store]
        parts += [f"## {_STORES[store]}", _settings(results["stores"][store]), _table(results, systems)]
        parts += [_notes(results, systems), _versions(results, systems)]
    return "\n\n".join(part for part in parts if part) + "\n"


def figures(cell: Mapping[str, Any], figure: str) -> list[float]:
    """What the rounds of a cell came to."""
    return [values[figure] for values in cell.get("rounds", []) if figure in values]


def _head(results: Mapping[str, Any]) -> str:
    machine = ", ".join(f"{name}: {value}" for name, value in results["machine"].items())
    return (
        f"Medians of {results['rounds']} round{'s' if results['rounds'] > 1 else ''}, with the lowest and the highest where"
        " there are several; in brackets Perdure's figure as a multiple of it, the better way round: 2.0 is twice as good."
        f" The floor is a bare loop on the store's driver that makes the same durable writes.\n\n{machine}."
    )


def _settings(settings: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {value}" for name, value in settings.items()) + "."


def _table(results: Mapping[str, Any], systems: list[str]) -> str:
    workloads = results["workloads"]
    lines = ["| | " + " | ".join(f"{each['title']} ({each['unit']})" for each in workloads) + " |"]
    lines.append("|---|" + "---|" * len(workloads))
    for key in systems:
        name = results["systems"][key]["name"]
        cells = (_cell(results["cells"][each["name"]], key, each, systems) for each in workloads)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(cells: Mapping[str, Any], key: str, workload: Mapping[str, Any], systems: list[str]) -> str:
    cell = cells.get(key, {})
    values = figures(cell, workload["figure"])
    if not values:
        failures = cell.get("failures")
        return f"failed: {failures[-1]}".replace("|", "/") if failures else cell.get("none", "–")
    middle = median(values)
    text = _number(middle)
    if len(values) > 1:
        text += f" ({_number(min(values))}–{_number(max(values))})"
    ours = [each for each in systems if each.startswith(f"{PERDURE}/")]
    if not ours or key in ours:
        return f"**{text}**" if key in ours else text
    perdure = figures(cells.get(ours[0], {}), workload["figure"])
    if perdure and middle and median(perdure):
        times = median(perdure) / middle
        text += f" [{_ratio(times if workload['more_is_better'] else 1 / times)}]"
    return text


def _notes(results: Mapping[str, Any], systems: list[str]) -> str:
    """More than one figure of a cell, where there are: percentiles, processor time, sizes."""
    lines: list[str] = []
    for workload in results["workloads"]:
        for key in systems:
            rounds = results["cells"][workload["name"]].get(key, {}).get("rounds", [])
            others = [name for name in (rounds[0] if rounds else {}) if name not in (workload["figure"], "runs", "asked")]
            if others:
                said = ", ".join(f"{name} {_number(median(figures({'rounds': rounds}, name)))}" for name in others)
                lines.append(f"- {workload['title']}, {results['systems'][key]['name']}: {said}")
    return "More of the same cells:\n\n" + "\n".join(lines) if lines else ""


def _versions(results: Mapping[str, Any], systems: list[str]) -> str:
    lines: list[str] = []
    for key in systems:
        about = results["systems"][key]
        if why := about.get("missing"):
            lines.append(f"- {about['name']}: {why}")
            continue
        versions = ", ".join(f"{name} {value}" for name, value in about.get("versions", {}).items())
        settings = "; ".join(f"{name}: {value}" for name, value in about.get("settings", {}).items())
        lines.append(f"- {about['name']}: {versions}{'. ' + settings if settings else ''}")
    return "Versions and settings:\n\n" + "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _ratio(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"
