"""What can be said about a start: names, keys, labels and times, checked where they are given."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from perdure.clock import epoch_millis, millis, time_limit
from perdure.engine.definitions import Key
from perdure.errors import InvalidInput
from perdure.model import MOST_LABELS, Millis, OnConflict, RunQuery, State

DEFAULT_QUEUE = "default"
_LONGEST = 200


@dataclass(frozen=True)
class StartOptions:
    """What holds for one start, where it differs from the workflow."""

    id: str | None = None
    queue: str | None = None
    priority: int | None = None
    delay: Millis | None = None
    at: Millis | None = None
    timeout: Millis | None = None
    group: str | None = None
    session: str | None = None
    unique: str | None = None
    on_conflict: OnConflict = OnConflict.EXISTING
    period: Millis = 0
    labels: dict[str, str] | None = None
    transaction: object | None = None


def start_options(
    *,
    id: str | None,
    queue: str | None,
    priority: int | None,
    delay: timedelta | float | None,
    at: datetime | None,
    timeout: timedelta | float | None,
    group: str | None,
    session: str | None,
    unique: str | None,
    on_conflict: OnConflict | str,
    debounce: timedelta | float | None,
    throttle: timedelta | float | None,
    labels: dict[str, str] | None,
    transaction: object | None,
    has_key: bool,
) -> StartOptions:
    """The options of a start, checked. `has_key` says that the workflow has a unique key of its own."""
    if delay is not None and at is not None:
        raise InvalidInput("give delay= or at=, not both")
    if debounce is not None and (delay is not None or at is not None):
        raise InvalidInput("debounce= says when the run begins: leave out delay= and at=")
    conflict, period = _conflict(on_conflict, debounce, throttle)
    if conflict is not OnConflict.EXISTING and unique is None and not has_key:
        raise InvalidInput("on_conflict=, debounce= and throttle= go with unique=: they are about runs of one key")
    return StartOptions(
        None if id is None else check_id(id),
        None if queue is None else check_queue(queue),
        None if priority is None else check_priority(priority),
        None if delay is None else millis(delay, "delay"),
        None if at is None else epoch_millis(at, "at"),
        time_limit(timeout),
        None if group is None else check_name(group, "a group"),
        None if session is None else check_name(session, "a session"),
        None if unique is None else check_name(unique, "a unique key"),
        conflict,
        period,
        None if labels is None else check_labels(labels),
        transaction,
    )


def _conflict(
    given: OnConflict | str, debounce: timedelta | float | None, throttle: timedelta | float | None
) -> tuple[OnConflict, Millis]:
    if given not in (OnConflict.EXISTING, OnConflict.REPLACE):
        raise InvalidInput(f"on_conflict is 'existing' or 'replace', not {given!r}; see also debounce= and throttle=")
    if debounce is None and throttle is None:
        return OnConflict(given), 0
    if debounce is not None and throttle is not None:
        raise InvalidInput("give debounce= or throttle=, not both")
    if given != OnConflict.EXISTING:
        raise InvalidInput("debounce= and throttle= say what a second start does: leave out on_conflict=")
    name, conflict = ("throttle", OnConflict.THROTTLE) if debounce is None else ("debounce", OnConflict.DEBOUNCE)
    period = millis(throttle if debounce is None else debounce, name)  # pyright: ignore[reportArgumentType]
    if not period:
        raise InvalidInput(f"{name}= must be longer than nothing")
    return conflict, period


def key_of(given: Key | None, what: str, workflow: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """A key that is given, or made of the input; "" when there is none."""
    if given is None:
        return ""
    if isinstance(given, str):
        return check_name(given, what)
    try:
        key = given(*args, **kwargs)
    except Exception as error:  # code of the user, which may raise anything
        raise InvalidInput(
            f"the function for {what} of workflow {workflow} raised {type(error).__name__}: {error}; it gets the"
            " arguments of the start, and gives a string"
        ) from error
    return check_name(key, what)


def check_key(given: Key | None, what: str) -> Key | None:
    """What a decorator gets for a key, or `InvalidInput`."""
    if given is None or callable(given):
        return given
    return check_name(given, what)


def check_name(name: str, what: str) -> str:
    """A key that the user makes up (of a group, a session, a unique run, a label), or `InvalidInput`.

    Separators and any script are fine; what can't be shown or stored is not.
    """
    if not isinstance(name, str):
        raise InvalidInput(f"{what} is named by a string, not by {name!r} ({type(name).__name__})")
    if not 0 < len(name) <= _LONGEST:
        shown = f"{name[:20]!r}… of {len(name):,}" if name else "none"
        raise InvalidInput(f"{what} is named by 1 to {_LONGEST} characters, not by {shown}")
    if any(unicodedata.category(each) in ("Cc", "Cs", "Zl", "Zp") for each in name):
        raise InvalidInput(f"{what} is named without control characters and line breaks, not by {name!r}")
    return name


def check_signal(name: str) -> str:
    """The name of a signal, or `InvalidInput`."""
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST or not name.isprintable():  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(f"a signal's name is a string of 1 to {_LONGEST} printable characters, not {name!r}")
    return name


def check_text(text: str, what: str) -> str:
    """A text that a store is asked about or keeps beside a run, or `InvalidInput` where no store could have it: with
    a NUL, or with lone surrogates, as file names may have. (Values are JSON, which writes a NUL in other characters.)
    """
    if not isinstance(text, str):
        raise InvalidInput(f"{what} is a string, not {text!r} ({type(text).__name__})")
    if "\0" in text or any("\ud800" <= each <= "\udfff" for each in text):
        raise InvalidInput(f"{what} can't have a NUL or a lone surrogate, as {text[:200]!a} has")
    return text


def check_filters(query: RunQuery) -> RunQuery:
    """What runs are looked for by, besides states and labels, or `InvalidInput`."""
    for name in ("workflow", "queue", "parent", "group", "batch", "cause"):
        value = getattr(query, name)
        if value is not None:
            check_text(value, name)
    return query


def check_id(run_id: str) -> str:
    """The id of a run or batch, or `InvalidInput`."""
    if not isinstance(run_id, str) or not 0 < len(run_id) <= _LONGEST or not run_id.isprintable():
        raise InvalidInput(f"an id is a string of 1 to {_LONGEST} printable characters, not {run_id!r}")
    return run_id


def check_flag(given: bool, what: str) -> bool:
    """True or False, or `InvalidInput`."""
    if not isinstance(given, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(f"{what} is True or False, not {given!r}")
    return given


def check_queue(queue: str) -> str:
    """The name of a queue, or `InvalidInput`."""
    if not isinstance(queue, str) or not 0 < len(queue) <= _LONGEST or not queue.isprintable() or "," in queue:
        raise InvalidInput(
            f"a queue's name is a string of 1 to {_LONGEST} printable characters without commas, not {queue!r}"
        )
    return queue


def check_priority(priority: int) -> int:
    """A priority, or `InvalidInput`."""
    if not isinstance(priority, int) or isinstance(priority, bool) or not -(2**31) <= priority < 2**31:
        raise InvalidInput(f"a priority is a whole number of 32 bits (lower runs first), not {priority!r}")
    return priority


def check_labels(labels: dict[str, str]) -> dict[str, str]:
    """Labels as they may be, or `InvalidInput`."""
    if not isinstance(labels, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(f"labels are a dict of texts by texts, not {labels!r}")
    if len(labels) > MOST_LABELS:
        raise InvalidInput(
            f"a run has at most {MOST_LABELS} labels, not {len(labels)}; larger data goes into its input"
        )
    for name, value in labels.items():
        check_name(name, "a label")
        check_name(value, f"the value of label {name}")
    return labels


def check_versions(given: Sequence[str]) -> tuple[str, ...]:
    """Names of versions, or `InvalidInput`."""
    if isinstance(given, str):
        raise InvalidInput(f"accepts= is a list of versions: write accepts=[{given!r}]")
    return tuple(check_name(one, "a version") for one in given)


def check_states(given: State | str | Iterable[State | str]) -> list[State]:
    """One state or several, by their names, or `InvalidInput`."""
    if isinstance(given, str) or not isinstance(given, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        return [_state(given)]
    return [_state(one) for one in given]


def _state(name: State | str) -> State:
    try:
        return State(name)
    except ValueError:
        close = difflib.get_close_matches(str(name), list(State), n=1)
        hint = f" (did you mean {str(close[0])!r}?)" if close else ""
        raise InvalidInput(f"there is no state {name!r}{hint}; the states are: {', '.join(State)}") from None
