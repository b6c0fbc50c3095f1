"""The demonstration: its analysis as plain functions, and all of it on a small directory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.demo import journal
from perdure.demo.analysis import Function, PackageFacts, analyse, combine, find_packages, total
from perdure.demo.journal import Note
from perdure.demo.proof import count_directly, prove
from perdure.demo.stage import Crash, Outcome

from .kit import Perdure, until

SOURCE = """\
import os, os.path
import json as j
from collections import abc
from . import sibling


class One:
    def short(self): ...

    async def long(self):
        if True:
            from re import match

            def inner():
                pass
        return 1
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A directory with two packages and a module."""
    root = tmp_path / "tree"
    for number in range(12):
        file = root / f"pack/deep/m{number:02}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(SOURCE)
    (root / "pack" / "bad.py").write_text("def (:\n\n")
    (root / "pack" / "__pycache__").mkdir()
    (root / "pack" / "__pycache__" / "left_out.py").write_text("import left_out\n")
    (root / "other").mkdir()
    (root / "other" / "nul.py").write_bytes(b"a = 1\0\n")
    (root / "single.py").write_text("import json\n")
    (root / "notes.txt").write_text("not Python")
    return root


def test_a_file_is_analysed(tree: Path) -> None:
    facts = analyse(tree, "pack/deep/m00.py")
    assert (facts.lines, facts.functions, facts.classes) == (16, 3, 1)
    assert facts.longest == Function("long", "pack/deep/m00.py", 7)
    assert facts.imports == ["collections", "json", "os", "re"]
    assert facts.error is None


@pytest.mark.parametrize("file", ["pack/bad.py", "other/nul.py"])
def test_a_file_that_cannot_be_parsed_is_counted(tree: Path, file: str) -> None:
    facts = analyse(tree, file)
    assert facts.lines > 0
    assert facts.error is not None
    assert combine("pack", [facts]).unparsed == [file]


def test_a_file_that_cannot_be_read_says_why(tree: Path) -> None:
    assert "not_there.py" in (analyse(tree, "not_there.py").error or "")


def test_packages_are_found_largest_first(tree: Path) -> None:
    packages = find_packages(tree)
    assert list(packages) == ["pack", "single", "other"]
    assert packages["single"] == ["single.py"]
    assert len(packages["pack"]) == 13


def test_facts_add_up_in_any_order(tree: Path) -> None:
    files = [file for files in find_packages(tree).values() for file in files]
    facts = [analyse(tree, file) for file in files]
    whole = total([combine("a", facts[:5]), combine("b", facts[5:])])
    backwards = combine("total", facts[::-1])
    assert (whole.lines, whole.functions, whole.imports) == (backwards.lines, backwards.functions, backwards.imports)
    assert whole.longest == backwards.longest == Function("long", "pack/deep/m00.py", 7)
    assert whole.imports["json"] == 13
    assert sorted(whole.files) == sorted(files)


def test_the_journal_keeps_what_is_noted(tmp_path: Path) -> None:
    file = tmp_path / "journal"
    assert journal.read(file) == []
    journal.note(file, "run", "a b.py")
    journal.note(file, "run", "c.py")
    notes = [(note.pid, note.run, note.file) for note in journal.read(file)]
    assert notes == [(os.getpid(), "run", "a b.py"), (os.getpid(), "run", "c.py")]


# --- the proof finds what is wrong

FILES = {"pack": ["a.py", "b.py"]}


def facts_of(*files: str) -> list[PackageFacts]:
    return [PackageFacts("pack", list(files), [], 10, 1, 0, None, {})]


def outcome(results: list[PackageFacts], *begun: tuple[int, str], saved: set[str]) -> Outcome:
    notes = [Note(float(number), pid, "run", file) for number, (pid, file) in enumerate(begun)]
    return Outcome(results, notes, Crash(1, 1.5, {"run": "pack"}, saved))


@pytest.mark.parametrize(
    ("what", "wrong"),
    [
        (outcome(facts_of("a.py", "b.py"), (1, "a.py"), (1, "b.py"), (2, "b.py"), saved={"a.py"}), []),
        (outcome(facts_of("a.py"), (1, "a.py"), (1, "b.py"), saved={"a.py"}), [0, 1]),
        (outcome(facts_of("a.py", "b.py", "b.py"), (1, "a.py"), (1, "b.py"), saved=set()), [0, 1]),
        (outcome(facts_of("a.py", "b.py"), (1, "a.py"), saved={"a.py"}), [2]),
        (outcome(facts_of("a.py", "b.py"), (1, "a.py"), (1, "b.py"), (2, "a.py"), saved={"a.py"}), [3, 4]),
        (outcome(facts_of("a.py", "b.py"), (1, "a.py"), (2, "b.py"), (2, "b.py"), saved={"a.py"}), [4]),
    ],
    ids=["right", "missing", "twice", "not begun", "saved ran again", "ran again without a crash"],
)
def test_the_proof_holds_only_for_what_is_right(what: Outcome, wrong: list[int]) -> None:
    claims = prove(FILES, facts_of("a.py", "b.py"), what)
    assert [number for number, claim in enumerate(claims) if not claim.holds] == wrong


def test_without_a_crash_nothing_is_proved() -> None:
    claims = prove(FILES, facts_of("a.py", "b.py"), Outcome(facts_of("a.py", "b.py"), [], None))
    assert [claim.holds for claim in claims] == [False]


def test_the_direct_count_is_that_of_the_packages(tree: Path) -> None:
    packages = find_packages(tree)
    direct = count_directly(tree, packages)
    assert direct == [combine(name, [analyse(tree, file) for file in files]) for name, files in packages.items()]


# --- all of it, with real processes


def run_demo(tmp_path: Path, *args: str) -> subprocess.CompletedProcess[str]:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    return subprocess.run(
        [sys.executable, "-m", "perdure", *args],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "TMPDIR": str(temporary), "COLUMNS": "80"},
    )


def test_the_demo_survives_a_killed_worker(tree: Path, tmp_path: Path) -> None:
    done = run_demo(tmp_path, "demo", "--path", str(tree))
    log = "".join(file.read_text() for file in tmp_path.glob("temporary/*/workers.log"))
    assert done.returncode == 0, done.stdout + done.stderr + log
    assert "Analysing the 15 Python files" in done.stdout
    assert "(SIGKILL) at work on:" in done.stdout
    assert "each of the 15 files was counted exactly once" in done.stdout
    assert "NO" not in done.stdout
    assert all(len(line) <= 80 or str(tmp_path) in line or sys.executable in line for line in done.stdout.splitlines())

    (database,) = tmp_path.glob("temporary/*/demo.db")
    command = ["runs", "list", "--json", "--url", f"sqlite:///{database}"]
    listed = subprocess.run(
        [sys.executable, "-m", "perdure", *command], capture_output=True, text=True, timeout=60, check=True
    )
    assert {run["state"] for run in json.loads(listed.stdout)} == {"succeeded"}


def test_a_directory_without_python_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = run_demo(tmp_path, "demo", "--path", str(tmp_path / "empty"))
    assert done.returncode == 1
    assert "there are no Python files" in done.stderr


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are told by their environment")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_demo_that_is_broken_off_leaves_no_process(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with Perdure(tmp_path, "demo", "--path", str(tree)) as demo:
        until(lambda: any("Ctrl-C" in log.read_text() for log in tmp_path.glob("*/workers.log")), "the workers")
        demo.signal(number)
        assert demo.ended() == 130
        demo.says("Broken off. The store and the log of the workers are kept in")
        assert processes_of(tmp_path) == []


def processes_of(folder: Path) -> list[str]:
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"TMPDIR={folder}".encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text())
        except OSError:  # it has ended, or is somebody else's
            continue
    return found
