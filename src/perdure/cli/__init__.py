"""The command `perdure`: workers, runs and the store, from a terminal."""

from __future__ import annotations

import errno
import os
import sys
from io import TextIOWrapper
from typing import cast

import click

from perdure.cli.admin import doctor, migrate, prune, workers
from perdure.cli.batches import batches
from perdure.cli.group import Commands, fail, verbose_option
from perdure.cli.limits import limits
from perdure.cli.queues import queues, top
from perdure.cli.runs import failures, runs, why
from perdure.cli.schedules import schedules
from perdure.cli.start import start
from perdure.cli.worker import worker


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    later={
        "bench": ("perdure.cli.bench:bench", "Measure what this machine and store can do."),
        "demo": ("perdure.cli.demo:demo", "Watch durable work survive a killed worker."),
    },
)
@click.version_option(package_name="perdure")
@verbose_option
def cli() -> None:
    """Durable workflows and job queues in plain Python.

    Commands that look at a store take --app MODULE:APP or --url URL, or PERDURE_APP or PERDURE_URL from the
    environment.
    """


for _command in (
    worker,
    start,
    runs,
    why,
    failures,
    queues,
    top,
    limits,
    schedules,
    batches,
    workers,
    prune,
    migrate,
    doctor,
):
    cli.add_command(_command)


_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


def main() -> None:
    """The entry point."""
    out = cast("TextIOWrapper", sys.stdout)
    # A terminal that lacks a character shows its number.
    out.reconfigure(errors="backslashreplace")
    try:
        try:
            cli(prog_name="perdure")
        finally:
            out.flush()
    except OSError as error:
        if error.errno not in _UNWRITABLE or error.filename is not None:
            raise
        # What is left to be written can't be either, and Python would try once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
        fail(f"the output could not be written: {error.strerror}")
