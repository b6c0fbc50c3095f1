"""`perdure worker --reload`: a worker that begins anew whenever the code changes."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Iterator
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

import click

from perdure.cli.stopping import Stop
from perdure.engine.supervisor import Child, how_it_ended

if TYPE_CHECKING:
    from perdure.cli.worker import Options

_POLL = 0.3
_PASSED_OVER = {"__pycache__", "node_modules", "site-packages"}


class Sources:
    """The .py files below a directory, and what has changed among them since the last look."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._seen = dict(self._look())

    def changed(self) -> list[str]:
        """Files that came, went or changed since this was asked last, relative to the root."""
        seen = dict(self._look())
        before, self._seen = self._seen, seen
        return sorted(path for path in before.keys() | seen.keys() if before.get(path) != seen.get(path))

    async def change(self) -> list[str]:
        """Waits until something has changed."""
        while True:
            if changed := await asyncio.to_thread(self.changed):
                return changed
            await asyncio.sleep(_POLL)

    def _look(self) -> Iterator[tuple[str, tuple[int, int]]]:
        for folder, folders, files in os.walk(self._root):
            folders[:] = [
                name
                for name in folders
                if not name.startswith(".")
                and name not in _PASSED_OVER
                and not os.path.exists(os.path.join(folder, name, "pyvenv.cfg"))
            ]
            for name in files:
                if name.endswith(".py"):
                    path = os.path.join(folder, name)
                    try:
                        found = os.stat(path)
                    except OSError:
                        continue  # gone since it was listed
                    yield os.path.relpath(path, self._root), (found.st_mtime_ns, found.st_size)


async def reload(options: Options, stop: Stop) -> None:
    """Keeps one process that serves: ends it and starts it anew at each change, until stopped."""
    sources = await asyncio.to_thread(Sources, Path.cwd())
    dead: str | None = None
    while not stop.asked.is_set():
        name = f"{socket.gethostname()}-{os.getpid()}-{token_hex(4)}"
        successor = [] if dead is None else ["--instead-of", dead]
        child = await Child.spawn(
            name, options.command("--supervised-as", name, *successor, processes=options.processes)
        )
        changed = await _first(sources.change(), child.ended, stop.asked)
        if child.ended.done() and not stop.asked.is_set():
            click.echo(f"The worker {how_it_ended(child.ended.result())}; waiting for a change.", err=True)
            changed = changed or await _first(sources.change(), None, stop.asked)
        if changed:
            click.echo(f"{', '.join(changed[:3])} changed: starting anew.", err=True)
        await (child.ended if child.ended.done() else child.end(options.grace, stop.hurried))
        dead = name  # whatever its exit code: if it has left in order, there is nothing to hand back


async def _first(
    change: Awaitable[list[str]], ended: asyncio.Future[int] | None, asked: asyncio.Event
) -> list[str] | None:
    """Waits for a change, the end of the process or a request to stop; gives the change if it was that."""
    changing = asyncio.ensure_future(change)
    asking = asyncio.ensure_future(asked.wait())
    both: set[asyncio.Future[object]] = {changing, asking}  # pyright: ignore[reportAssignmentType]
    await asyncio.wait(both | ({ended} if ended else set()), return_when=asyncio.FIRST_COMPLETED)
    asking.cancel()
    if changing.done():
        return changing.result()
    changing.cancel()
    return None
