"""`perdure demo`: durable work on real files, with a worker killed half way, and the proof that nothing was lost."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path
from urllib.parse import quote

import click

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
    """
    from perdure.demo.analysis import find_packages, total

    root = (path or Path(sysconfig.get_path("stdlib"))).resolve()
    packages = find_packages(root)
    files = sum(map(len, packages.values()))
    if not files:
        fail(f"there are no Python files in {root}")
    directory = Path(tempfile.mkdtemp(prefix="perdure-demo-"))
    url = f"sqlite:///{quote(str(directory / 'demo.db'))}"
    # Read by the module of the workflows, here and in the workers.
    os.environ["PERDURE_DEMO_URL"] = url

    from perdure.demo.display import Display, claim_lines, imports_line, packages_table
    from perdure.demo.proof import count_directly, prove
    from perdure.demo.stage import perform

    out = console(wide=80)
    out.print(f"Analysing the {files:,} Python files of {root}:")
    out.print(f"a run for each of {len(packages):,} packages, a step for each file, two worker processes.")
    with Display(out, files) as display:
        outcome = asyncio.run(perform(root, files, directory, display))
        display.say("all runs have ended; counting once more, without Perdure")
        direct = count_directly(root, packages)
    whole = total(outcome.results)
    out.print()
    out.print(packages_table(outcome.results, whole))
    out.print(imports_line(whole))
    if whole.unparsed:
        out.print(f"Not valid Python, so only their lines are counted: {len(whole.unparsed):,} files")
    out.print()
    claims = prove(packages, direct, outcome)
    for line in claim_lines(claims):
        out.print(line)
    out.print()
    command = _command()
    out.print("The store and the workers' log are kept. Try next:")
    out.print(f"  export PERDURE_URL={url}")
    for example in ("runs show survey", "runs list --workflow package", "doctor"):
        out.print(f"  {command} {example}")
    out.print(f"  {command} demo --path YOUR/PROJECT")
    if not all(holds for _, holds in claims):
        fail("the proof does not hold")


def _command() -> str:
    """How to call `perdure` from here."""
    found = shutil.which("perdure") or shutil.which("perdure", path=str(Path(sys.executable).parent))
    if found is None:
        return f"{sys.executable} -m perdure"
    near = os.path.relpath(found)
    return "perdure" if shutil.which("perdure") == found else found if near.startswith("..") else near
