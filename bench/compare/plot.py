"""Draws results as an SVG: a panel for each store and workload, a bar for each system.

Runs in the environment `plot`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median

import matplotlib as mpl

mpl.use("svg")

from matplotlib import pyplot
from tables import FLOOR, PERDURE, figures

_SHOWN = ("c1", "c50", "steps3", "latency", "enqueue", "bulk")


def main(source: Path, target: Path) -> None:
    results = json.loads(source.read_text(encoding="utf-8"))
    workloads = [each for each in results["workloads"] if each["name"] in _SHOWN]
    stores = list(results["stores"])
    size = (3.2 * len(workloads), 3.4 * len(stores))
    mpl.rcParams["svg.hashsalt"] = "perdure"  # the same results make the same file
    mpl.rcParams["svg.fonttype"] = "none"  # text, not drawn letters
    figure, panels = pyplot.subplots(len(stores), len(workloads), figsize=size, squeeze=False, layout="constrained")
    for row, store in zip(panels, stores, strict=True):
        for panel, workload in zip(row, workloads, strict=True):
            bars = []
            for key, about in results["systems"].items():
                values = figures(results["cells"][workload["name"]].get(key, {}), workload["figure"])
                if about["store"] == store and values:
                    bars.append((about["name"], median(values), min(values), max(values)))
            bars.sort(key=lambda bar: bar[1], reverse=not workload["more_is_better"])
            colors = ["#0b7285" if bar[0] == PERDURE else "#ced4da" if bar[0] == FLOOR else "#868e96" for bar in bars]
            spread = [[bar[1] - bar[2] for bar in bars], [bar[3] - bar[1] for bar in bars]]
            panel.barh([bar[0] for bar in bars], [bar[1] for bar in bars], color=colors, xerr=spread)
            panel.set_title(f"{workload['title']}\n{store}, {workload['unit']}", fontsize=8)
            panel.tick_params(labelsize=7)
            panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
