"""`perdure demo`: durable work on real files, with a worker killed half way, and the proof that nothing was lost."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import sysconfig
import tempfile
from pathlib import Path
from urllib.parse import quote

import click
from rich.console import Console

from perdure.cli.group import fail
from perdure.cli.output import console


@click.command()
@click.option(
    "--path",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The directory to analyse.  [default: the standard library of this Python]",
)
def demo(path: Path | None) -> None:
    """Watch durable work survive a killed worker.

    Two worker processes analyse every Python file of a directory: a run for each package, a step for each file. Half
    way one of them is killed. At the end the result is compared with a count that was made without Perdure.

    Where there are few files the steps are slowed down, so that there is something to see.
    """
    from perdure.demo import URL_VARIABLE
    from perdure.demo.analysis import find_packages

    root = (path or Path(sysconfig.get_path("stdlib"))).resolve()
    packages = find_packages(root)
    files = sum(map(len, packages.values()))
    if not files:
        fail(f"there are no Python files in {root}")
    directory = Path(tempfile.mkdtemp(prefix="perdure-demo-"))
    url = os.environ[URL_VARIABLE] = f"sqlite:///{quote(str(directory / 'demo.db'))}"

    # Not before the variable is set, which one of these modules reads.
    from perdure.demo.display import Display, show_proof, show_results
    from perdure.demo.proof import count_directly, prove
    from perdure.demo.stage import perform

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the workers are stopped then too
    out = console(wide=80)
    out.print(f"Analysing the {files:,} Python files of {root}:")
    out.print(f"a run for each of {len(packages):,} packages, a step for each file, two worker processes.")
    try:
        with Display(out, files) as display:
            outcome = asyncio.run(perform(root, files, directory, display))
            display.say("all runs have ended; counting once more, without Perdure")
            claims = prove(packages, count_directly(root, packages), outcome)
    except KeyboardInterrupt:
        out.print(f"Broken off. The store and the log of the workers are kept in {directory}.", soft_wrap=True)
        raise
    show_results(out, outcome.results)
    show_proof(out, claims)
    _suggest(out, url)
    if not all(claim.holds for claim in claims):
        fail("the proof does not hold")


def _suggest(out: Console, url: str) -> None:
    """What to try next."""
    command = shutil.which("perdure", path=os.path.dirname(sys.executable)) or f"{sys.executable} -m perdure"
    if command == shutil.which("perdure"):
        command = "perdure"
    out.print("The store and the log of the workers are kept. Try next:")
    out.print(f"  export PERDURE_URL={url}", soft_wrap=True)
    for example in ("runs show survey", "runs list --workflow package", "doctor", "demo --path YOUR/PROJECT"):
        out.print(f"  {command} {example}", soft_wrap=True)
