"""How exceptions are kept: as type, message, arguments and traceback text, and made again from that."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from importlib import import_module
from math import isfinite
from pathlib import Path
from traceback import StackSummary, TracebackException
from typing import Any, TypeVar, cast

from msgspec import json

from perdure.errors import DecodingError, ErrorInfo, RunFailed, StepFailed, kept_type, main_module

E = TypeVar("E", bound=BaseException)

MAX_TRACEBACK = 20_000
MAX_MESSAGE = 10_000
MAX_ARGS = 10_000
"""Of JSON: longer arguments are not kept, and the exception is not made again."""
MAX_CAUSES = 8
MAX_MEMBERS = 10
"""Of an exception group that are told of in its message."""

_PACKAGE = Path(__file__).parent
_MACHINERY = (str(_PACKAGE / "engine"), str(_PACKAGE / "stores"))
_LIBRARIES = tuple(
    {path for name, path in sysconfig.get_paths().items() if name in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {"<frozen "}
)
_STEP = "_perdure_step"


def describe(error: BaseException) -> ErrorInfo:
    """What is kept of an exception. Never raises, whatever the exception's own methods do.

    The traceback is the text that Python would print, with the causes and without Perdure's own frames, shortened in
    the middle when it is long.
    """
    info = _describe(error, MAX_CAUSES)
    info.traceback = _traceback(error)
    return info


def encode_failure(error: BaseException) -> str:
    """An exception as JSON: `describe` as text."""
    return json.encode(describe(error)).decode()


def decode_failure(text: str) -> ErrorInfo:
    """What was kept of an exception. A text that can't be read gives an `ErrorInfo` that says so."""
    try:
        return json.decode(text, type=ErrorInfo)
    except Exception as error:
        return ErrorInfo(
            type=kept_type(DecodingError),
            message=f"what was kept of an error can't be read ({_text(error)}): {_shortened(text, 1000)}",
        )


def rebuild(info: ErrorInfo) -> BaseException | None:
    """The exception, made again, with the kept traceback as a note; None when that can't be done.

    It is made of a class that derives from `Exception`, in a module that is imported or can be, that takes the kept
    arguments and gives the same message with them.

    ```python
    error = rebuild(decode_failure(body)) or StepFailed(key, info)
    ```
    """
    cls = _find_class(info.type)
    if cls is None or info.args is None:
        return None
    try:
        error = cls(*info.args)
        for name, value in (info.attributes or {}).items():
            setattr(error, name, value)
        if type(error) is not cls or _shortened(_text(error), MAX_MESSAGE) != info.message:
            return None
        if info.traceback:
            error.add_note(f"The traceback of where it was raised first:\n\n{info.traceback.rstrip()}")
    except Exception:  # the class is the user's, and its constructor may want and do anything
        return None
    return error


def raised_by(error: E, step: str) -> E:
    """Notes which step an exception comes from, for `cause_of`."""
    try:
        setattr(error, _STEP, step)
    except AttributeError:  # a class of the user's may forbid it
        pass
    return error


def cause_of(error: BaseException) -> str:
    """Type and place of a failure, in few words that stay the same for failures alike: "ValueError in charge" (a step),
    or "KeyError in shop.orders:41" (module and line of the last frame that is neither Perdure's nor a library's)."""
    kind = error.info.type.rpartition(":")[2] if isinstance(error, StepFailed) else type(error).__qualname__
    place = getattr(error, _STEP, None) or _raised_at(error)
    return f"{kind} in {place}" if place else kind


def _raised_at(error: BaseException) -> str:
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        filename = frame.f_code.co_filename
        if not filename.startswith(_LIBRARIES) and not _is_ours(filename):
            place = f"{frame.f_globals.get('__name__', filename)}:{line}"
    return place


def _describe(error: BaseException, causes_left: int) -> ErrorInfo:
    args, attributes = _parts(error)
    info = ErrorInfo(
        type=kept_type(type(error)),
        message=_shortened(_message(error), MAX_MESSAGE),
        args=args,
        attributes=attributes or None,
    )
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None and causes_left:
        info.cause = _describe(cause, causes_left - 1)
    elif isinstance(error, StepFailed | RunFailed):
        info.cause = error.info  # the exception that could not be made again goes on being told of
    return info


def _message(error: BaseException) -> str:
    if isinstance(error, RunFailed):  # its traceback, which is in its text, is in the one that is kept beside this
        return error.summary
    if not isinstance(error, BaseExceptionGroup):
        return _text(error)
    group = cast("BaseExceptionGroup[BaseException]", error)
    parts = [f"{type(each).__qualname__}: {_text(each)}" for each in group.exceptions[:MAX_MEMBERS]]
    return f"{_text(group)}: {'; '.join(parts)}"


def _text(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException:  # not even an exit that is raised while an error is written down may lose the error
        return f"<str() of this {type(error).__qualname__} failed>"
    return _storable(text)


def _storable(text: str) -> str:
    """Without lone surrogates, which are in error messages when they are in file names."""
    return str.encode(text, errors="backslashreplace").decode()


def _parts(error: BaseException) -> tuple[list[object] | None, dict[str, object]]:
    """What it is made again from: the arguments, or None, and what of its attributes can be kept. As pickle takes it
    apart, which knows of arguments that are not in `args`, such as the name of a file."""
    args: tuple[object, ...] = error.args
    state: dict[str, object] = {}
    try:
        made, found, *more = cast("tuple[Any, ...]", error.__reduce__())
        if made is type(error):
            args, state = tuple(found), dict(more[0] if more and more[0] else {})
    except BaseException:  # the class is the user's; what is in `args` may do
        pass
    if isinstance(error, BaseExceptionGroup) or not all(map(_is_plain, args)) or not _fits(args):
        return None, {}
    kept = {name: value for name, value in state.items() if name != _STEP and _is_plain(value)}
    return list(args), kept if _fits(kept) else {}


def _fits(value: object) -> bool:
    try:
        return len(json.encode(value)) <= MAX_ARGS
    except (ValueError, OverflowError):  # surrogates, integers of thousands of digits
        return False


def _is_plain(value: object) -> bool:
    # The exact types: what comes back from JSON for a subclass would be something else.
    if type(value) is list:
        return all(map(_is_plain, cast("list[object]", value)))
    return value is None or type(value) in (str, int, bool) or (type(value) is float and isfinite(value))


def _traceback(error: BaseException) -> str:
    try:
        text = TracebackException.from_exception(error)
        _trim(text, MAX_CAUSES)
        return _shortened(_storable("".join(text.format())), MAX_TRACEBACK)
    except BaseException as failure:  # same as above: the error itself must not get lost
        return f"(no traceback: writing it failed with {type(failure).__qualname__})"


def _trim(text: TracebackException, depth: int) -> None:
    """Cut out our own frames, and what is further away than `depth` causes."""
    frames = [frame for frame in text.stack if not _is_ours(frame.filename)]
    if frames:
        text.stack = StackSummary.from_list(frames)
    if not depth:
        text.__cause__ = text.__context__ = None
    for inner in (text.__cause__, text.__context__, *(text.exceptions or ())):
        if inner is not None:
            _trim(inner, depth - 1 if depth else 0)


def _is_ours(filename: str) -> bool:
    # Not the command line, the demo or contrib: functions of users' kind live there.
    return filename.startswith(_MACHINERY) or Path(filename).parent == _PACKAGE


def _shortened(text: str, limit: int) -> str:
    """At most about `limit` characters, cut in the middle; the end says more than the beginning."""
    if len(text) <= limit:
        return text
    head, tail = limit // 4, limit - limit // 4
    return f"{text[:head]}\n[… {len(text) - limit:,} characters left out …]\n{text[-tail:]}"


def _find_class(name: str) -> type[Exception] | None:
    module, _, qualname = name.partition(":")
    found: object = sys.modules["__main__"] if module == main_module() else _imported(module)
    for part in qualname.split("."):
        # Through the dictionaries: `getattr` could run a module's `__getattr__`, and that may import.
        found = getattr(found, "__dict__", {}).get(part)
    return found if isinstance(found, type) and issubclass(found, Exception) else None


def _imported(module: str) -> object:
    """The module: what a step imports only when it runs may not have been imported where the run goes on."""
    try:
        return sys.modules.get(module) or import_module(module)
    except Exception:  # it is not here, or is broken
        return None
