"""What a dequeue costs, in three layouts of a queue on PostgreSQL, whatever else lies in it.

    PYTHONPATH=src:tests python bench/dequeue [--quick] [--scene NAME …] [--layout NAME …] [--url URL] [--json FILE]

The layouts: `before` (one query with an OR that walks the primary key), `fix` (a partial index, and that query when it
has nothing), and `perdure` (its real schema, its real calls). Each scene is built in a fresh database, on a server of
its own that does not wait for the disk, or on the one of `--url`, whose user may create databases. Ends with 1 when a
target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from layouts import make
from measure import Figures, measure
from report import table, targets
from scenes import SCENES

from servers.postgres import Postgres, PostgresServer, own_server

_NAMES = ["before", "fix", "perdure"]


def main() -> int:
    options = _options()
    server = (
        Postgres(options.url) if options.url else own_server(settings={"autovacuum": "off", "shared_buffers": "1GB"})
    )
    if isinstance(server, PostgresServer):
        server.start()
    try:
        found = _all(server, options.scene or [scene.name for scene in SCENES], options.layout or _NAMES, options.quick)
    finally:
        if isinstance(server, PostgresServer):
            server.remove()
    if options.json:
        Path(options.json).write_text(
            json.dumps([dataclasses.asdict(each) for each in found], indent=1), encoding="utf-8"
        )
    print("\n".join(table(found)))
    print()
    met = True
    for good, what in targets(found):
        print("met   " if good else "MISSED", what)
        met = met and good
    return 0 if met else 1


def _all(server: Postgres, scenes: Sequence[str], layouts: Sequence[str], quick: bool) -> list[Figures]:
    found: list[Figures] = []
    for scene in SCENES:
        if scene.name not in scenes:
            continue
        for name in layouts:
            url = server.database()
            figures = asyncio.run(
                measure(make(name, url), scene, share=0.02 if quick else 1, calls=100 if quick else 1000)
            )
            server.drop(url)
            if figures is not None:
                found.append(figures)
                costs = ", ".join(f"{kind}: {cost.processor:.3f} ms" for kind, cost in figures.costs.items())
                print(f"{scene.name}, {name}: {costs}", file=sys.stderr)
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/dequeue", description="What a dequeue costs.")
    parser.add_argument("--quick", action="store_true", help="a fiftieth of the rows, a tenth of the calls")
    parser.add_argument("--scene", action="append", choices=[scene.name for scene in SCENES], help="only this one")
    parser.add_argument("--layout", action="append", choices=_NAMES, help="only this one")
    parser.add_argument("--url", help="a server's maintenance database")
    parser.add_argument("--json", metavar="FILE", help="where the figures go as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
