"""A folder with an app in it, and the command run in this process."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from click.testing import CliRunner

from perdure import App
from perdure.cli import cli
from perdure.cli.target import load_app

from .kit import SHOP


@dataclass(frozen=True)
class Outcome:
    """How a command ended and what it said."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


Run: TypeAlias = Callable[..., Outcome]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory. What is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in ("PERDURE_APP", "PERDURE_URL", "PERDURE_DEBUG", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def shop(folder: Path) -> Path:
    """The folder, with shop.py in it."""
    (folder / "shop.py").write_text(SHOP)
    return folder


@pytest.fixture
def app(shop: Path) -> Iterator[App]:
    """The app of shop.py."""
    app = load_app("shop")
    yield app
    app.close().wait()


@pytest.fixture
def perdure(folder: Path) -> Run:
    """Runs the command; gives its exit code and output."""

    # Before click 8.2 the two streams were mixed unless told otherwise.
    options: dict[str, Any] = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}

    def run(*args: str, input: str | None = None, env: dict[str, str | None] | None = None) -> Outcome:
        result = CliRunner(**options).invoke(cli, args, prog_name="perdure", input=input, env=env)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Outcome(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture
def drain(app: App) -> Callable[[], None]:
    """Runs a worker until nothing is left that it could do."""

    async def drained() -> None:
        async with app, app.worker():
            while await _busy(app):
                await asyncio.sleep(0.01)

    return lambda: asyncio.run(drained())


async def _busy(app: App) -> bool:
    """Whether there are runs that don't wait for a signal."""
    for status in await app.runs(state=["scheduled", "queued", "running", "waiting"]):
        if not any(wait.what == "signal" for wait in status.record.waits):
            return True
    return False
