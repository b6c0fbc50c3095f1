"""What the demonstration looks like: live in a terminal, as plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from perdure.demo.analysis import Function, PackageFacts, total

if TYPE_CHECKING:
    from perdure.demo.proof import Claim

_TOP = 10
_PLAIN_EVERY = 0.1
"""The share of the files after which there is a new line where nothing can be drawn anew."""


class Display:
    """Progress while it is open, and lines at any time. `files` is how many there are."""

    def __init__(self, console: Console, files: int) -> None:
        self._console = console
        self._files = files
        self._began = time.monotonic()
        self._told = 0.0
        self._live = Live(console=console, transient=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._live.stop()

    def progress(self, done: int, busy: Mapping[int, Sequence[str]]) -> None:
        """Shows how many files were begun, and what packages the worker processes are at."""
        if self._console.is_terminal:
            head = Table.grid(padding=(0, 1))
            head.add_row("files", ProgressBar(self._files, done, width=40), f"{done:,} of {self._files:,}")
            lines = [Text(f"worker {pid}: {', '.join(names)}", "dim") for pid, names in sorted(busy.items())]
            for line in lines:
                line.truncate(self._console.width, overflow="ellipsis")
            self._live.update(Group(head, *lines))
        elif done >= self._files * (self._told + _PLAIN_EVERY):
            self._told = done / self._files
            self.say(f"{done:,} of {self._files:,} files")

    def say(self, text: str, style: str = "") -> None:
        """Adds a line, with the seconds since the beginning."""
        self._console.print(f"[{time.monotonic() - self._began:4.1f} s] {text}", style=style)


def show_results(out: Console, packages: Sequence[PackageFacts]) -> None:
    """What was found: the largest packages, and the modules that are imported most."""
    whole = total(packages)
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("package")
    for name in ("files", "lines", "functions", "classes"):
        table.add_column(name, justify="right")
    table.add_column("longest function", no_wrap=True, overflow="ellipsis")
    largest = sorted(packages, key=lambda package: package.lines, reverse=True)[:_TOP]
    for package in [*largest, whole]:
        numbers = (len(package.files), package.lines, package.functions, package.classes)
        cells = [package.name, *(f"{number:,}" for number in numbers), _function(package.longest)]
        table.add_row(*cells, style="bold" if package is whole else "")
    most = sorted(whole.imports.items(), key=lambda item: (-item[1], item[0]))[:_TOP]
    out.print()
    out.print(table)
    out.print("Imported by most files: " + ", ".join(f"{module} ({files:,})" for module, files in most))
    if whole.unparsed:
        out.print(f"Not valid Python, so only their lines are counted: {len(whole.unparsed):,} files")
    out.print()


def show_proof(out: Console, claims: Iterable[Claim]) -> None:
    """What was claimed, and whether it holds."""
    for claim in claims:
        out.print(Text.assemble(("  yes  ", "green") if claim.holds else ("  NO   ", "bold red"), claim.text))
    out.print()


def _function(function: Function | None) -> str:
    return "" if function is None else f"{function.name} ({function.lines:,} lines)"
