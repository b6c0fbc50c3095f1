"""`perdure worker --reload`: the code is what is in the files."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from perdure import App
from perdure.cli.reload import Sources

from .kit import QUITS, SHOP, Perdure, pids, start, until

READY = "Ctrl-C stops"


def test_a_change_starts_it_anew(app: App, shop: Path) -> None:
    with Perdure(shop, "worker", "shop:app", "--reload") as worker:
        worker.says(READY)
        (shop / "shop.py").write_text(SHOP.replace("* 100", "* 7"))
        worker.says("shop.py changed: starting anew")
        worker.says(READY, times=2)
        start(app, "sell", "apple", id="one")
        assert app.run("one").result(timeout=30).wait() == 35
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0


def test_a_syntax_error_is_shown_and_mended(app: App, shop: Path) -> None:
    with Perdure(shop, "worker", "shop:app", "--reload") as worker:
        worker.says(READY)
        (shop / "shop.py").write_text(SHOP + "\ndef broken(:\n")
        worker.says("SyntaxError")
        worker.says("The worker ended with exit code 1; waiting for a change.")
        (shop / "shop.py").write_text(SHOP)
        worker.says(READY, times=2)
        worker.signal(signal.SIGINT)
        assert worker.ended() == 0


def test_runs_of_a_process_that_had_to_be_killed_go_on_at_once(app: App, shop: Path) -> None:
    start(app, "block", "b", id="b")
    with Perdure(shop, "worker", "shop:app", "--reload", "--grace", "0.1", "--lease", "3600") as worker:
        until(lambda: pids(shop, "b"), "the run")
        (shop / "shop.py").write_text(SHOP.replace("while True", "while False"))
        worker.says("does not end; it is killed")
        assert app.run("b").result(timeout=30).wait() is None


def test_runs_of_a_process_that_ended_by_itself_go_on_after_the_next_change(shop: Path) -> None:
    (shop / "quits.py").write_text(QUITS)
    with Perdure(shop, "worker", "quits", "--reload", "--lease", "3600") as worker:
        worker.says(READY)
        with Perdure(shop, "start", "quits", "quit", "--wait") as run:
            worker.says("The worker ended with exit code 0; waiting for a change.")
            (shop / "quits.py").touch()
            assert run.ended() == 0


def test_several_processes_are_started_anew_together(app: App, shop: Path) -> None:
    with Perdure(shop, "worker", "shop:app", "--reload", "--processes", "2") as workers:
        workers.says("serving as", times=2)
        (shop / "shop.py").touch()
        workers.says("serving as", times=4)
        workers.signal(signal.SIGTERM)
        assert workers.ended() == 0


def test_which_files_count(tmp_path: Path) -> None:
    for folder in ("deep/er", ".git", "node_modules", "env"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "env/pyvenv.cfg").touch()
    sources = Sources(tmp_path)
    assert sources.changed() == []
    for name in ("a.py", "a.txt", "deep/er/b.py", ".git/c.py", "node_modules/d.py", "env/e.py"):
        (tmp_path / name).touch()
    assert sources.changed() == ["a.py", os.path.join("deep", "er", "b.py")]
    (tmp_path / "a.py").write_text("changed = True")
    assert sources.changed() == ["a.py"]
    (tmp_path / "a.py").unlink()
    assert sources.changed() == ["a.py"]
    assert sources.changed() == []
