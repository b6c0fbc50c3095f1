"""Reads pages of Markdown and runs the code in them, so that what the documentation says is what the library does.

The ```python blocks of a page run one after the other as one module; `await` may stand at the top level. Blocks of
```bash run in the same directory when all of their commands are `perdure …`, `python …` or `pytest …`. What a block
needs beyond that is said in a comment above it, which readers don't see:

- `<!-- test: file shop.py -->` also writes the block to that file; later blocks and commands find it there.
- `<!-- test: worker -->` has a worker serve the page's `app` while the block runs.
- `<!-- test: background -->` starts the commands and goes on; they are ended with the page.
- `<!-- test: raises RunFailed -->` expects the last statement to raise that.
- `<!-- test: skip, because … -->` runs nothing.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType

from perdure import App

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"

_MARK = re.compile(r"<!-- test: (.+?) -->")
_FENCE = re.compile(r"^(\s*)```(\w*)\s*$")
_RUNNABLE = ("perdure", "python", "pytest", "export")


@dataclass
class Block:
    """A block of code, and where in the page its first line is."""

    language: str
    code: str
    line: int
    marks: list[str]

    def mark(self, name: str) -> str | None:
        """What a mark says after its name; None when it isn't there."""
        found = next((mark for mark in self.marks if mark.split(maxsplit=1)[0].rstrip(",") == name), None)
        return None if found is None else found[len(name) :].strip(" ,")


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    marks: list[str] = []
    lines = iter(enumerate(page.read_text(encoding="utf-8").splitlines(), 1))
    for number, line in lines:
        if fence := _FENCE.match(line):
            indent, language = fence.groups()
            code: list[str] = []
            for _, inner in lines:
                if inner.strip() == "```":
                    break
                code.append(inner.removeprefix(indent))
            found.append(Block(language, "\n".join(code) + "\n", number + 1, marks))
            marks = []
        elif mark := _MARK.search(line):
            marks.append(mark[1])
        elif line.strip():
            marks = []
    return found


class Reader:
    """Does what a reader would do who tries everything on a page, in an empty directory."""

    def __init__(self, page: Path, directory: Path) -> None:
        self._page = page
        self._directory = directory
        self._module = ModuleType(f"page_{page.stem.replace('-', '_').lower()}")
        self._background: list[subprocess.Popen[str]] = []
        self._runner = asyncio.Runner()
        binaries = directory / ".bin"
        binaries.mkdir()
        for name, module in (("perdure", "-m perdure"), ("python", ""), ("pytest", "-m pytest")):
            command = binaries / name
            command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {module} "$@"\n')
            command.chmod(0o755)
        self._environment = os.environ | {
            "PATH": f"{binaries}:{os.environ['PATH']}",
            "PYTHONPATH": f"{SOURCE}:{directory}",
            "NO_COLOR": "1",
        }

    def __enter__(self) -> Reader:
        sys.modules[self._module.__name__] = self._module
        sys.path.insert(0, str(self._directory))
        return self

    def __exit__(self, *_: object) -> None:
        try:
            for process in self._background:
                process.send_signal(signal.SIGTERM)
            for process in self._background:
                print(process.communicate(timeout=30)[0])
            for app in {value for value in vars(self._module).values() if isinstance(value, App)}:
                self._runner.run(_close(app))
        finally:
            self._runner.close()
            sys.path.remove(str(self._directory))
            for name, module in list(sys.modules.items()):
                if (getattr(module, "__file__", None) or "").startswith(str(self._directory)):
                    del sys.modules[name]
            sys.modules.pop(self._module.__name__, None)

    def run(self, block: Block) -> None:
        if block.mark("skip") is not None:
            return
        if (name := block.mark("file")) is not None:
            (self._directory / name).parent.mkdir(parents=True, exist_ok=True)
            (self._directory / name).write_text(block.code)
        if block.language == "python":
            self._python(block)
        elif block.language == "bash":
            self._bash(block)

    # --- python

    def _python(self, block: Block) -> None:
        tree = ast.parse("\n" * (block.line - 1) + block.code, str(self._page))
        code = compile(tree, str(self._page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        expected = block.mark("raises")
        with self._worker() if block.mark("worker") is not None else _nothing():
            try:
                self._execute(code)
            except Exception as error:
                if type(error).__name__ != expected:
                    raise
            else:
                assert expected is None, f"{self._page.name}:{block.line} did not raise {expected}"

    def _execute(self, code: CodeType) -> None:
        result = eval(code, vars(self._module))  # noqa: S307 - our own pages
        if inspect.iscoroutine(result):
            self._runner.run(result)

    @contextmanager
    def _worker(self) -> Generator[None]:
        """A worker in a thread of its own, as if it were in another process."""
        app = vars(self._module)["app"]
        assert isinstance(app, App)
        ready, loops = threading.Event(), list[tuple[asyncio.AbstractEventLoop, asyncio.Event]]()

        async def serve() -> None:
            done = asyncio.Event()
            async with app.worker(grace=0):
                loops.append((asyncio.get_running_loop(), done))
                ready.set()
                await done.wait()

        thread = threading.Thread(target=lambda: asyncio.run(serve()))
        thread.start()
        try:
            assert ready.wait(10)
            yield
        finally:
            for loop, done in loops:
                loop.call_soon_threadsafe(done.set)
            thread.join(10)

    # --- commands

    def _bash(self, block: Block) -> None:
        commands = [line for line in block.code.splitlines() if line and not line.startswith(("#", " "))]
        if not commands or not all(line.split()[0] in _RUNNABLE for line in commands):
            return
        if block.mark("background") is not None:
            self._background += [self._process(f"exec {command}") for command in commands]
            return
        process = self._process(block.code)
        output = process.communicate(timeout=60)[0]
        print(output)
        expected = int(block.mark("exit") or 0)
        assert process.returncode == expected, f"{self._page.name}:{block.line}: {output}"

    def _process(self, script: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", "-e", "-c", script],
            cwd=self._directory,
            env=self._environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )


@contextmanager
def _nothing() -> Generator[None]:
    yield


async def _close(app: App) -> None:
    await app.close()
