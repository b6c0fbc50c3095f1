"""How values become JSON and typed values again: the one place that knows how they travel.

What can travel: None, bool, int, float, str, bytes, Decimal, UUID, date and time types, enums, lists, tuples, sets,
dicts, dataclasses, msgspec Structs, attrs classes and pydantic models. A value of a subclass of str, int or float
travels as the plain value. There is no pickle: stored values can be read by anything, and run nothing when read.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import lru_cache
from math import isfinite
from typing import Any, Generic, Protocol, TypeVar, cast

import msgspec
from msgspec import json, msgpack

from perdure.errors import DecodingError, DefinitionError, EncodingError, ValueTooLarge

T = TypeVar("T")

MISSING = inspect.Parameter.empty
"""Stands for an annotation that isn't there; it is the same as `Any`."""


class _Model(Protocol):
    """A pydantic model, as far as we need to know it: pydantic itself is never imported."""

    @classmethod
    def model_validate_json(cls, json_data: bytes, **options: object) -> object: ...
    def model_dump(self, *, mode: str, round_trip: bool) -> object: ...


def encode(value: object, what: str, limit: int) -> str:
    """The value as JSON, at most `limit` bytes of it.

    `what` names the value in errors ("the result of step 'charge'"). Raises `EncodingError` for what can't be written
    without loss (naming where in the value it is), and `ValueTooLarge`.

    ```python
    encode({"at": datetime.now(UTC)}, "the result of step 'now'", 1_000_000)
    ```
    """
    return _checked(_encode_whole, value, what, limit)


def encode_input(value: object, what: str, limit: int) -> str:
    """Like `encode`, with the items of sets in sorted order: a start made again in another process is the same one."""
    return _checked(_encode_input, value, what, limit)


def encode_stable(value: object, what: str, limit: int) -> str:
    """Like `encode`, with dicts and sets in sorted order: equal values give equal texts, in every process.

    What a pydantic model writes by a serializer of its own stays in the order that this gives it.
    """
    return _checked(_encode_stable, value, what, limit)


class Decoder(Generic[T]):
    """Reads JSON as values of one type.

    Without an annotation (or with `Any`) they are plain JSON values. Raises `DefinitionError` when the type can't
    travel. `what` names the value in errors.

    ```python
    Decoder[Order](Order, "the input of workflow 'fulfil'").decode('{"id": "7", "cents": 100}')
    ```
    """

    __slots__ = ("_decode", "what")

    def __init__(self, annotation: object, what: str) -> None:
        self.what = what
        if annotation is MISSING or annotation is object:
            annotation = Any
        try:
            self._decode = cast(
                "Callable[[str], T]", json.Decoder(cast("type[object]", annotation), dec_hook=_from_plain).decode
            )
            unknown = next(_untransportable(msgspec.inspect.type_info(cast("type[object]", annotation))), None)
        except (TypeError, ValueError, NameError) as error:
            # msgspec tells of the type that it doesn't take, and of annotations inside of classes that don't resolve.
            raise DefinitionError(
                f"{what} has the type {type_name(annotation)}, which can't travel: {error}"
            ) from error
        if unknown is not None:
            raise DefinitionError(
                f"{what} has the type {type_name(annotation)}, and {type_name(unknown)} can't travel as JSON: "
                f"use a dataclass, a msgspec.Struct, a pydantic model or built-in types, "
                f"or pass an id to find the object by"
            )

    def decode(self, text: str) -> T:
        """The value that the text stands for. Raises `DecodingError` when it doesn't fit the type."""
        try:
            return self._decode(text)
        except Exception as error:
            # Anything can come from the constructors and validators of the user's own classes.
            raise DecodingError(f"{self.what} can't be read: {error}") from error


def type_name(annotation: object) -> str:
    """An annotation as a reader would write it."""
    if annotation is MISSING:
        return "Any"
    if isinstance(annotation, type) and not hasattr(annotation, "__args__"):
        return annotation.__qualname__
    return str(annotation).replace("typing.", "")


# --- what msgspec asks about values that it doesn't know


def _to_plain(value: object) -> object:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if _is_model(type(value)):
        # As JSON would have it, by the names of the fields, and only what the model can be made again from.
        return cast(_Model, value).model_dump(mode="json", round_trip=True)
    raise TypeError(f"a {_full_name(type(value))} can't be written as JSON")


def _from_plain(cls: type, value: object) -> object:
    if cls is object:
        return value
    # By way of JSON, because models in strict mode take a str for a datetime only from there.
    return cast("type[_Model]", cls).model_validate_json(_encode(value), **_options(cls))


@lru_cache(maxsize=1024)
def _options(cls: type[_Model]) -> dict[str, object]:
    """Lets a field with an alias be found by its name too, where the model's class knows how."""
    known = inspect.signature(cls.model_validate_json).parameters
    return {"by_alias": True, "by_name": True} if "by_name" in known else {}


def _is_model(cls: type) -> bool:
    return hasattr(cls, "model_validate_json") and hasattr(cls, "model_dump")


def _untransportable(node: object) -> Iterator[object]:
    """The classes in a type that neither msgspec nor we can make again from JSON."""
    seen: set[int] = set()
    pending: list[object] = [node]
    while pending:
        node = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, msgspec.inspect.CustomType):
            if node.cls is not object and not _is_model(node.cls):
                yield node.cls
        elif isinstance(node, msgspec.inspect.Type | msgspec.inspect.Field):
            pending.extend(getattr(node, name) for name in node.__struct_fields__)
        elif isinstance(node, tuple):
            pending.extend(cast("tuple[object, ...]", node))


_encode = json.Encoder(enc_hook=_to_plain).encode
_encode_sorted = json.Encoder(enc_hook=_to_plain, order="deterministic").encode
_pack = msgpack.Encoder(enc_hook=_to_plain).encode


class _SameKeys(ValueError):
    """Two keys of a dict are one in JSON, which would lose what one of them has."""


def _encode_whole(value: object) -> bytes:
    raw = _encode(value)
    if b'":' in raw:
        try:
            _encode_sorted(value)  # the quickest way to find out whether all keys are str, which can't be the same
        except TypeError:
            _check_keys(value, raw)
    return raw


_NESTED: frozenset[object] = frozenset({list, tuple, dict})


def _encode_input(value: object) -> bytes:
    raw = _encode_whole(value)
    return raw if b"[" not in raw else _encode(_plain_in_order(value))


def _encode_stable(value: object) -> bytes:
    try:
        raw = _encode_ordered(value)
    except TypeError:  # msgspec sorts dicts by str keys alone, and sets only of what has an order
        _check_keys(value, _encode(value))
    else:
        if b"[[" not in raw and b"[{" not in raw:
            return raw
        # It may have a set of frozensets, for which `<` is no order, or of what holds them.
    return _encode_sorted(_plain_in_order(value))


def _plain_in_order(value: object) -> object:
    return _in_order(value, msgspec.to_builtins(value, str_keys=True, enc_hook=_to_plain))


def _in_order(value: object, plain: object) -> object:
    """`plain`, which is `value` as JSON has it, with the items of what is a set in `value` sorted by their texts.

    What belongs together is told by places and names. Where that fails, because a class writes itself in a way of its
    own (a serializer of a model), all stays as it is.
    """
    if isinstance(plain, dict):
        fields = cast("dict[str, object]", plain)
        if not _has_nested(fields.values()):
            return fields
        value = _root(value)
        if isinstance(value, Mapping):
            parts = dict(zip(fields, cast("Mapping[object, object]", value).values(), strict=False))
        else:
            parts = _written(value)
        return {name: _in_order(parts.get(name), item) for name, item in fields.items()}
    if not isinstance(plain, list | tuple):
        return plain
    items, value = list(cast("Iterable[object]", plain)), _root(value)
    if _has_nested(items):
        places = list(cast("Iterable[object]", value) if isinstance(value, Collection) else _written(value).values())
        tags = len(items) - len(places)  # a Struct that is written as an array may have its tag before its fields
        if tags == 0 or (tags == 1 and isinstance(value, msgspec.Struct)):
            items[tags:] = map(_in_order, places, items[tags:])
    return sorted(items, key=_encode_sorted) if isinstance(value, set | frozenset) else items


def _has_nested(items: Iterable[object]) -> bool:
    return not _NESTED.isdisjoint(map(type, items))


def _root(value: object) -> object:
    """What a pydantic model stands for that is written as its one field."""
    return getattr(value, "root", None) if getattr(type(value), "__pydantic_root_model__", False) else value


def _written(value: object) -> dict[str, object]:
    """The parts of an object, by their names in JSON."""
    names = {name: name for name in _field_names(value)}
    if isinstance(value, msgspec.Struct):
        names = dict(zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True))
    parts: dict[str, object] = {written: getattr(value, name, None) for name, written in names.items()}
    if _is_model(type(value)):
        for name, field in cast("Mapping[str, object]", getattr(type(value), "model_fields", {})).items():
            parts[getattr(field, "serialization_alias", None) or name] = parts[name]
        parts |= cast("Mapping[str, object]", getattr(value, "__pydantic_extra__", None) or {})
    return parts


def _to_ordered(value: object) -> object:
    return _in_order(value, _to_plain(value))


_encode_ordered = json.Encoder(enc_hook=_to_ordered, order="deterministic").encode


def _check_keys(value: object, raw: bytes) -> None:
    if _encode(json.decode(raw)) != raw and _locate(value, _has_same_keys) is not None:
        raise _SameKeys


def _has_same_keys(value: object) -> bool:
    if isinstance(value, Mapping):
        keys = dict.fromkeys(cast("Mapping[object, object]", value))
        if len(json.decode(_encode(keys))) < len(keys):
            return True
    return any(_has_same_keys(child) for _, child in _children(cast("object", value)))


# --- errors; the values are only walked here, after something went wrong or might have


def _checked(encoder: Callable[[object], bytes], value: object, what: str, limit: int) -> str:
    try:
        raw = encoder(value)
        text = raw.decode()
    except Exception as error:
        # Not only what msgspec raises: models and properties run code of their own.
        raise _refused(value, what, error) from error
    if len(raw) > limit:
        raise ValueTooLarge(
            f"{what} takes {len(raw):,} bytes as JSON, and the limit is {limit:,}: "
            f"keep it elsewhere and pass a reference to it, or raise the app's max_value_bytes"
        )
    if b"null" in raw and _may_hold_nonfinite(value):
        place = _locate(value, _holds_nonfinite)
        if place is not None:
            path, leaf = place
            raise EncodingError(f"{what} can't be written as JSON: {path} is {leaf!r}; pass None or a str instead")
    return text


def _refused(value: object, what: str, error: Exception) -> EncodingError:
    if isinstance(error, RecursionError):
        return EncodingError(f"{what} can't be written as JSON: it contains itself, or is nested too deeply")
    bad = _has_same_keys if isinstance(error, _SameKeys) else _fails
    path, part = _locate(value, bad) or ("$", value)
    kind = _full_name(type(part))
    if isinstance(error, UnicodeError):
        reason = f"{path} is a {kind} with lone surrogates; pass bytes, or text that is valid Unicode"
    elif isinstance(error, _SameKeys):
        reason = f"{path} is a {kind} with keys that are the same in JSON, as 1 and '1' are; use keys of one type"
    elif isinstance(part, dict):
        reason = f"{path} is a {kind} with a key that can't be one in JSON; use str or int keys"
    elif isinstance(error, TypeError) and "can't be written as JSON" in str(error):
        reason = (
            f"{path} is a {kind}; pass a dataclass, a msgspec.Struct, a pydantic model or built-in types, "
            f"or an id to find the object by"
        )
    else:
        reason = f"{path} is a {kind}: {error}"
    return EncodingError(f"{what} can't be written as JSON: {reason}")


_NONFINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")


def _may_hold_nonfinite(value: object) -> bool:
    """Whether NaN or an infinity may have become `null`: MessagePack keeps them, and that is one quick search.

    A float there is 0xCB and its eight bytes. Other bytes can look the same, but valid UTF-8 can't.
    """
    try:
        return _NONFINITE.search(_pack(value)) is not None
    except Exception:  # MessagePack takes less than JSON does: integers beyond 64 bits, for example
        return True


def _holds_nonfinite(value: object) -> bool:
    if isinstance(value, float):
        return not isfinite(value)
    return any(_holds_nonfinite(child) for _, child in _children(value))


def _fails(value: object) -> bool:
    try:
        _encode(value)
    except Exception:
        return True
    return False


def _locate(value: object, bad: Callable[[object], bool]) -> tuple[str, object] | None:
    """The innermost part of a value that is bad by itself, with its path; None when nothing is."""
    if not bad(value):
        return None
    path = "$"
    while True:
        found = next(((step, child) for step, child in _children(value) if bad(child)), None)
        if found is None:
            return path, value
        path, value = path + found[0], found[1]


def _children(value: object) -> Iterable[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, child in cast("Mapping[object, object]", value).items():
            yield (f".{key}" if isinstance(key, str) else f"[{key!r}]"), child
    elif isinstance(value, list | tuple | set | frozenset):
        for index, child in enumerate(cast("Iterable[object]", value)):
            yield f"[{index}]", child
    elif isinstance(value, Enum):
        yield ".value", value.value
    elif not isinstance(value, type):
        for name in _field_names(value):
            if hasattr(value, name):
                yield f".{name}", getattr(value, name)


def _field_names(value: object) -> Iterable[str]:
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    if is_dataclass(value):
        return [field.name for field in fields(value)]
    if _is_model(type(value)):
        return cast("Iterable[str]", getattr(type(value), "model_fields", ()))
    return [attribute.name for attribute in getattr(type(value), "__attrs_attrs__", ())]


def _full_name(cls: type) -> str:
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
