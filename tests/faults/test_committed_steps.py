"""Workers that are killed while a step commits its effect: it happens exactly once."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from faults.committing import PLACES
from perdure import App
from servers.postgres import migrated_postgres

_PROGRAM = Path(__file__).parent / "committing.py"


def _serve(url: str, run_id: str, place: str = "") -> int:
    return subprocess.run(
        [sys.executable, _PROGRAM, url, run_id, place], check=False, timeout=60, stderr=subprocess.DEVNULL
    ).returncode


@pytest.mark.parametrize("thread", [False, True], ids=["async", "thread"])
@pytest.mark.parametrize("place", PLACES)
def test_an_effect_that_commits_with_its_checkpoint_happens_once(place: str, thread: bool) -> None:
    url = migrated_postgres(f"{__name__} {place} {thread}")
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE effect (cents int)")
    app = App(url)

    @app.workflow
    async def buy(cents: int, thread: bool) -> int: ...

    run = buy.options(id="r").start(5, thread).wait()
    assert _serve(url, "r", place) == -signal.SIGKILL
    committed = place in ("after the commit", "after the step")
    with psycopg.connect(url) as connection:
        kept = connection.execute("SELECT count(*) FROM perdure.checkpoint").fetchone()
        effects = connection.execute("SELECT count(*) FROM effect").fetchone()
    assert kept == effects == ((1,) if committed else (0,))
    assert _serve(url, "r") == 0
    assert run.result().wait() == 10
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT cents FROM effect").fetchall() == [(5,)]
    app.close().wait()
