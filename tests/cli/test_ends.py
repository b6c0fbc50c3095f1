"""How a command ends that can't go on: a line that says why, and an exit code."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .kit import Perdure, environment, until


@pytest.mark.parametrize("args", [["--help"], ["runs", "list", "--json", "--url", "sqlite://"]])
@pytest.mark.parametrize("buffered", [True, False])
def test_an_output_that_is_full(args: list[str], buffered: bool) -> None:
    env = environment()
    if buffered:
        del env["PYTHONUNBUFFERED"]
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "perdure", *args],
            stdout=full,
            stderr=subprocess.PIPE,
            env=env,
            check=False,
            text=True,
        )
    assert ended.stderr == "error: the output could not be written: No space left on device\n"
    assert ended.returncode == 1


SLOW = """
import signal, threading
from pathlib import Path

signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests run in the background
Path("importing").touch()
threading.Event().wait()
"""


@pytest.mark.parametrize(
    "args", [["worker", "slow:app"], ["start", "slow:app", "flow"], ["runs", "list", "-a", "slow"]]
)
def test_ctrl_c_while_the_app_is_imported(tmp_path: Path, args: list[str]) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    with Perdure(tmp_path, *args) as command:
        until((tmp_path / "importing").exists, "the import")
        command.signal(signal.SIGINT)
        assert command.ended() == 128 + signal.SIGINT
    assert command.output == ""
