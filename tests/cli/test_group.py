"""The command itself: help, mistyped names, how errors are shown."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from perdure import App
from perdure.cli.group import Commands, verbose_option
from perdure.errors import PerdureError

from .conftest import Run
from .kit import environment


def test_help_lists_all_commands(perdure: Run) -> None:
    text = perdure("--help").output
    for name in ("worker", "start", "runs", "why", "workers", "migrate", "doctor", "bench", "demo"):
        assert f"\n  {name} " in text


@pytest.mark.parametrize(
    ("typed", "meant"),
    [(["wroker"], "worker"), (["runs", "lst"], "list"), (["dmeo"], "demo"), (["mirgate"], "migrate")],
)
def test_a_mistyped_command(perdure: Run, typed: list[str], meant: str) -> None:
    result = perdure(*typed)
    assert result.exit_code == 2
    assert f"there is no command '{typed[-1]}' (did you mean '{meant}'?)" in result.output


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys\nfrom perdure.cli import main\nsys.argv = ['perdure', '--help']\n"
        "try:\n    main()\nexcept SystemExit:\n"
        "    print([name for name in ('rich', 'uvloop', 'perdure.cli.bench', 'perdure.cli.demo', 'sqlite3', 'pydantic')"
        " if name in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60, env=environment()
    )
    assert found.stdout.splitlines()[-1] == "[]"


def test_python_m_perdure_is_the_command() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "perdure", "--version"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=environment(),
    )
    assert found.stdout.startswith("perdure, version ")


@click.group(cls=Commands)
@verbose_option
def failing() -> None:
    """A command that fails."""


@failing.command("fail")
@verbose_option
def fail_now() -> None:
    """Fails."""
    raise PerdureError("it went wrong; mend it")


def test_an_error_is_one_line() -> None:
    result = CliRunner().invoke(failing, ["fail"])
    assert (result.exit_code, result.output) == (1, "error: it went wrong; mend it\n")


@pytest.mark.parametrize(
    ("args", "env"), [(["-v", "fail"], {}), (["fail", "-v"], {}), (["fail"], {"PERDURE_DEBUG": "1"})]
)
def test_who_asks_for_more_gets_the_traceback(args: list[str], env: dict[str, str]) -> None:
    result = CliRunner().invoke(failing, args, env=env)
    assert isinstance(result.exception, PerdureError)


def test_a_terminal_that_lacks_a_character_shows_its_number(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"

    async def start() -> None:
        async with App(url) as app:
            greet = app.workflow(_greet)
            await greet.options(id="grüße").start()

    asyncio.run(start())
    shown = subprocess.run(
        [sys.executable, "-m", "perdure", "runs", "list", "--url", url],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=environment() | {"PYTHONIOENCODING": "ascii"},
    )
    assert "gr\\xfc\\xdfe" in shown.stdout


async def _greet() -> None: ...
