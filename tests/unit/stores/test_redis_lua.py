"""The text of the Lua functions."""

from __future__ import annotations

import re
from importlib.resources import files
from importlib.resources.abc import Traversable

import pytest

_FILES = sorted(
    (each for each in (files("perdure.stores.redis") / "lua").iterdir() if each.name.endswith(".lua")),
    key=lambda each: each.name,
)
_COMPARED = re.compile(r"\b(?:\w+\.)?(?:member|place|id|name|key|first)(?:\[1\])? [<>] |\[1\] [<>] ")


@pytest.mark.parametrize("file", _FILES, ids=lambda file: file.name)
def test_members_and_names_are_not_compared_by_lua_itself(file: Traversable) -> None:
    """Lua's own comparison goes by the locale that the server was started with."""
    text = file.read_text(encoding="utf-8")
    assert not [line for line in text.splitlines() if _COMPARED.search(line)]


def test_what_few_runs_have_is_marked() -> None:
    """Nothing of it is kept of a run that is not marked, so whoever gives a run some of it has marked it before."""
    runs = next(each for each in _FILES if each.name == "runs.lua").read_text(encoding="utf-8")
    rare = re.findall(r"'(\w+)'", runs.split("local RARE = {")[1].split("}")[0])
    assert "awaited" in rare
    given = re.compile(rf"\s*(?:s|\w+\.s|\w+\(.*\))\.(?:{'|'.join(rare)})\b(?:, [\w.]+)* = (.*)")
    unmarked: list[str] = []
    for file in _FILES:
        marked = False
        for line in file.read_text(encoding="utf-8").splitlines():
            marked = "mark(" in line or (marked and "function" not in line)
            found = given.match(line)
            if found and not marked and set(found[1].split(", ")) != {"nil"}:
                unmarked.append(f"{file.name}: {line.strip()}")
    assert not unmarked
