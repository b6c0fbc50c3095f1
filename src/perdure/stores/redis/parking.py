"""What a run that is parked waits for, as scripts take it and keep it."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import Any

import msgspec

from perdure.model import Wait, WaitFor
from perdure.stores.redis.session import as_text, encode

_MUCH = 4096
"""Bytes of waits that a script may read with each look at their run."""
_PART = 100
"""Values of conditions that a script reads at once."""
_Waits = msgspec.json.Decoder(list[Wait])


def parked(waits: Sequence[Wait], kinds: Sequence[str] | None = None, *, is_true: bool = False) -> tuple[Any, ...]:
    """What a run waits for, as scripts take it (see parking.lua); `kinds` has that of each, where it is another one.

    Where it is much, conditions are packed in parts, and what clients see is compressed: whatever a script is given
    makes the server's Lua collect garbage the sooner, which takes as long as all that the script does.
    """
    conditions: list[str] = []
    for wait, kind in zip(waits, kinds or [wait.what for wait in waits], strict=True):
        if kind != WaitFor.TIMER:
            conditions += (kind, wait.target)
    first = min((wait.at for wait in waits if wait.at is not None), default=False)
    shown = msgspec.json.encode(waits)
    if len(shown) <= _MUCH and len(conditions) <= _PART:
        return as_text(shown), first, is_true, conditions, False
    parts = [as_text(encode(conditions[at : at + _PART])) for at in range(0, len(conditions), _PART)]
    return as_text(base64.b64encode(zlib.compress(shown, 1))), first, is_true, parts, True


def waits_in(shown: str) -> list[Wait]:
    """What clients see of it, from what was kept."""
    return _Waits.decode(shown if shown.startswith("[") else zlib.decompress(base64.b64decode(shown)))
