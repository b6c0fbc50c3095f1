"""The Lua scripts: made of files, known to servers by the SHA-1 of their text."""

from __future__ import annotations

import functools
import hashlib
from importlib.resources import files

from msgspec import Struct

from perdure.model import (
    DEADLINE_PASSED,
    OVERDUE,
    PARENT_DEADLINE_PASSED,
    POISONED,
    deadline_exceeded,
    poisoned,
)

_CRASHES = 987654321
"""Stands for the number of crashes in the error of a run that is poison; the script puts the number in."""
_USES = "-- uses: "


class Script(Struct, frozen=True):
    """A script as servers are given it."""

    name: str
    source: str
    sha1: str

    @classmethod
    def of(cls, name: str, source: str) -> Script:
        """A script of this text."""
        return cls(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


@functools.cache
def load(name: str) -> Script:
    """The script of a file in `lua`, behind those that its first line says it uses."""
    text = _read(name)
    first = text.partition("\n")[0]
    used = first.removeprefix(_USES).split() if first.startswith(_USES) else []
    main = f"local function main()\n{text}end\nbegin_call(KEYS, ARGV)\nreturn main()\n"
    return Script.of(name, "".join((_words(), *map(_read, used), main)))


def _read(name: str) -> str:
    return (files("perdure.stores.redis") / "lua" / f"{name}.lua").read_text(encoding="utf-8")


def _words() -> str:
    """What scripts say themselves, in the words of the model."""
    words = {
        "DEADLINE_PASSED": DEADLINE_PASSED,
        "PARENT_DEADLINE_PASSED": PARENT_DEADLINE_PASSED,
        "PARENT_DEADLINE_BODY": f'"{PARENT_DEADLINE_PASSED}"',
        "OVERDUE": OVERDUE,
        "OVERDUE_ERROR": deadline_exceeded(),
        "POISONED": POISONED,
        "POISONED_ERROR": poisoned(_CRASHES),
    }
    return "".join(f"local {name} = [==[{text}]==]\n" for name, text in words.items())
