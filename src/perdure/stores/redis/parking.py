"""What a run that is parked waits for, as scripts take it and keep it."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import Any

import msgspec

from perdure.model import Millis, Wait, WaitFor
from perdure.stores.redis.session import as_text, encode

_MUCH = 4096
"""Bytes of waits that a script may read with each look at their run."""
_PART = 100
"""About as many values of conditions as a script reads at once; half of that at least."""
_Waits = msgspec.json.Decoder(list[Wait])


def parked(
    waits: Sequence[Wait], kinds: Sequence[str] | None = None, *, is_true: bool = False, until: Millis | None = None
) -> tuple[Any, ...]:
    """What a run waits for, as scripts take it (see parking.lua); `kinds` has that of each, where it is another one;
    `until` is when it is to look again, whatever becomes of them.

    Where it is much, conditions are packed in parts, and what clients see is compressed: whatever a script is given
    makes the server's Lua collect garbage the sooner, which takes as long as all that the script does.
    """
    conditions: list[str] = []
    for wait, kind in zip(waits, kinds or [wait.what for wait in waits], strict=True):
        if kind != WaitFor.TIMER:
            conditions += (kind, wait.target)
    times = [*(wait.at for wait in waits if wait.at is not None), *([] if until is None else [until])]
    first = min(times, default=False)
    shown = msgspec.json.encode(waits)
    if len(shown) <= _MUCH and len(conditions) <= _PART:
        return as_text(shown), first, is_true, conditions, False
    # By their targets, so that of a run that is parked again most parts are as they were.
    parts: list[list[str]] = [[] for _ in range(1 << (len(conditions) // _PART).bit_length())]
    for kind, target in zip(conditions[::2], conditions[1::2], strict=True):
        parts[hash_of(target) % len(parts)] += (kind, target)
    packed = [as_text(encode(part)) for part in parts]
    return as_text(base64.b64encode(zlib.compress(shown, 1))), first, is_true, packed, True


def hash_of(target: str) -> int:
    """By which scripts find the part that a condition is in."""
    return zlib.crc32(target.encode())


def waits_in(shown: str) -> list[Wait]:
    """What clients see of it, from what was kept."""
    return _Waits.decode(shown if shown.startswith("[") else zlib.decompress(base64.b64decode(shown)))
