"""Names that a person wrote and no field has. Code passes over them, since newer code may have sent them; of a person
they are a slip."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from msgspec import inspect

from perdure.wording import did_you_mean

_OBJECTS = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType, inspect.NamedTupleType)
_ITEMS = (inspect.ListType, inspect.SetType, inspect.FrozenSetType, inspect.VarTupleType, inspect.CollectionType)


def misspelt(annotation: object, value: object, place: str) -> str | None:
    """The first name in a value, which fits the type, that none of the type's fields has, in words; None if there is
    none. Classes that read their own values, such as those of pydantic, see to that themselves."""
    return next(_within(inspect.type_info(cast("type[object]", annotation)), value, place), None)


def _within(kind: inspect.Type, value: object, place: str) -> Iterator[str]:
    if isinstance(kind, inspect.UnionType):
        found = [next(_within(each, value, place), None) for each in kind.types if _may_be(each, value)]
        if found and None not in found:
            yield cast(str, found[0])
    elif isinstance(value, dict):
        yield from _within_object(kind, cast("dict[str, Any]", value), place)
    elif isinstance(value, list):
        yield from _within_list(kind, cast("list[Any]", value), place)


def _within_object(kind: inspect.Type, value: dict[str, Any], place: str) -> Iterator[str]:
    if isinstance(kind, inspect.DictType):
        for name, each in value.items():
            yield from _within(kind.value_type, each, f"{place}.{name}")
    elif isinstance(kind, _OBJECTS):
        fields = {field.encode_name: field.type for field in kind.fields}
        tag = kind.tag_field if isinstance(kind, inspect.StructType) else None
        for name, each in value.items():
            if name in fields:
                yield from _within(fields[name], each, f"{place}.{name}")
            elif name != tag:
                yield f"{place}: {kind.cls.__name__} has no field {name!r}{did_you_mean(name, fields)}"


def _within_list(kind: inspect.Type, value: list[Any], place: str) -> Iterator[str]:
    kinds: list[inspect.Type] = []
    if isinstance(kind, _ITEMS):
        kinds = [kind.item_type] * len(value)
    elif isinstance(kind, inspect.TupleType):
        kinds = list(kind.item_types)
    elif isinstance(kind, _OBJECTS):
        kinds = [field.type for field in kind.fields]
    for number, (of, each) in enumerate(zip(kinds, value, strict=False)):
        yield from _within(of, each, f"{place}[{number}]")


def _may_be(kind: inspect.Type, value: object) -> bool:
    """Whether a value that fits one of several types may be of this one."""
    if isinstance(kind, inspect.AnyType | inspect.CustomType):
        return True
    if isinstance(value, dict):
        if isinstance(kind, inspect.StructType) and kind.tag_field is not None:
            return cast("dict[str, Any]", value).get(kind.tag_field) == kind.tag
        return isinstance(kind, inspect.DictType) or (isinstance(kind, _OBJECTS) and not _is_array(kind))
    return isinstance(value, list) and (isinstance(kind, (*_ITEMS, inspect.TupleType)) or _is_array(kind))


def _is_array(kind: inspect.Type) -> bool:
    """Whether it has fields, and travels as an array."""
    return isinstance(kind, inspect.NamedTupleType) or (isinstance(kind, inspect.StructType) and kind.array_like)
