"""The code in the README and in the documentation runs, and what they name exists."""

from __future__ import annotations

import os
import re
import runpy
import shlex
from pathlib import Path

import click
import pytest

from perdure.cli import cli

from .pages import ROOT, Reader, blocks, pages

_LINK = re.compile(r"\]\(([^)#\s]+)(?:#([\w-]+))?\)")
_TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def _named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", pages(), ids=_named)
def test_code_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Reader(page, tmp_path) as reader:
        for block in blocks(page):
            reader.run(block)


@pytest.mark.parametrize("page", pages(), ids=_named)
def test_a_block_that_is_not_run_says_why(page: Path) -> None:
    skipped = [block for block in blocks(page) if block.mark("skip") is not None]
    assert all(len(block.mark("skip") or "") > 10 for block in skipped)


@pytest.mark.parametrize("page", pages(), ids=_named)
def test_commands_are_ones_that_there_are(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that are not run."""
    monkeypatch.setattr(click.Command, "invoke", lambda *_: None)
    for block in blocks(page):
        for line in block.code.splitlines() if block.language in ("bash", "console") else ():
            words = shlex.split(line.removeprefix("$ ").partition("|")[0], comments=True)
            if words[:1] == ["perdure"]:
                cli.main(words[1:], standalone_mode=False)  # raises a UsageError


@pytest.mark.parametrize("page", pages(), ids=_named)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in _LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        file = Path(os.path.normpath(page.parent / target))
        assert file.exists(), f"{_named(page)} links to {target}"
        if anchor:
            assert anchor in _anchors(file), f"{_named(page)} links to {target}#{anchor}"


@pytest.mark.parametrize("page", pages(), ids=_named)
def test_named_tests_exist(page: Path) -> None:
    for file, name in _TEST.findall(page.read_text(encoding="utf-8")):
        assert (ROOT / file).exists(), f"{_named(page)} names {file}"
        if name:
            text = (ROOT / file).read_text(encoding="utf-8")
            assert re.search(rf"def {name}\b", text), f"{_named(page)} names {file}::{name}"


def test_the_reference_is_current() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "make_reference.py"))
    for name, text in (("reference.md", made["reference"]()), ("cli.md", made["commands"]())):
        assert (ROOT / "docs" / name).read_text(encoding="utf-8") == text, "run: python docs/make_reference.py"


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
