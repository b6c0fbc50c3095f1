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
