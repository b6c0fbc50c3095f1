"""How the arguments of a workflow or step become JSON, by name, and a call again.

By name, because then a parameter can be moved, and one with a default can be added, while calls are stored.
"""

from __future__ import annotations

import inspect
import reprlib
import sys
import typing
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import cached_property
from hashlib import blake2b
from inspect import Parameter
from types import SimpleNamespace
from typing import Any, Required, cast, get_origin

from msgspec import MsgspecError, json

from perdure.errors import DecodingError, DefinitionError, InvalidInput
from perdure.misspelt import misspelt
from perdure.values import MISSING, Decoder, encode, encode_input, encode_stable, type_name


def short_hash(text: str) -> str:
    """Tells two texts apart, with eight bytes, in every process alike."""
    return blake2b(text.encode(), digest_size=8).hexdigest()


_VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)

_NO_ARGUMENTS = ("{}", short_hash("{}"))


_EMPTY_CALL: tuple[tuple[object, ...], dict[str, object]] = ((), {})


class Signature:
    """The parameters of a function and how they travel.

    Nothing is looked at before it is needed, so that annotations may name what is defined further down in the file;
    `check` does it at once. `what` names the function in errors ("workflow 'fulfil'"). `*args` and `**kwargs` can be
    had with `open_ended` only. The first `given` parameters are left out: they don't travel. What can't be resolved, or
    can't travel, raises `DefinitionError` on first use.

    ```python
    signature = Signature(fulfil, "workflow 'fulfil'")
    text = signature.encode((order,), {}, limit=1_000_000)  # '{"order":{"id":"7"}}'
    args, kwargs = signature.decode(text)
    await fulfil(*args, **kwargs)
    ```
    """

    def __init__(self, fn: Callable[..., object], what: str, *, open_ended: bool = False, given: int = 0) -> None:
        self._fn = fn
        self._what = what
        self._open_ended = open_ended
        self._given = given

    def check(self) -> None:
        """Look at all of it now. Raises `DefinitionError`."""
        _ = self.names, self._decoder, self.returns

    @cached_property
    def returns(self) -> Decoder[Any]:
        """Reads what the function returns (of a coroutine function: what awaiting it gives)."""
        if inspect.isasyncgenfunction(self._fn) or inspect.isgeneratorfunction(self._fn):
            raise DefinitionError(f"{self._what} is a generator, and can't be kept half done: return a list")
        return Decoder(self._returned, f"the result of {self._what}")

    @cached_property
    def _returned(self) -> object:
        annotation = self._hints.get("return", MISSING)
        if get_origin(annotation) in (Coroutine, Awaitable):
            # A plain function that is declared to return something to await: the result is its last argument.
            annotation = typing.get_args(annotation)[-1]
        return MISSING if annotation in (typing.NoReturn, typing.Never) else annotation

    def encode_result(self, value: object, what: str, limit: int) -> tuple[str, Any]:
        """What the function returned as JSON, and as it will be read again. `what` names the function in errors.

        Raises `DecodingError` when it doesn't fit the annotation, and what `values.encode` raises.
        """
        text = encode(value, f"the result of {what}", limit)
        try:
            return text, self.returns.decode(text)
        except DecodingError as error:
            raise DecodingError(
                f"{what} returned {reprlib.repr(value)}, which is not what its annotation says,"
                f" {type_name(self._returned)}: {error.__cause__}"
            ) from error.__cause__

    def encode(self, args: tuple[object, ...], kwargs: dict[str, object], limit: int) -> str:
        """The arguments of a call as one JSON object, by name; defaults that were not passed are left out.

        Raises `InvalidInput` when they don't fit the parameters or their types, and what `values.encode` raises.
        """
        values = self._bind(args, kwargs)
        text = encode_input(values, f"the input of {self._what}", limit)
        read = self._check_types(text)
        whole = {name: read[name] for name, value in values.items() if type(value) is int and type(read[name]) is float}
        # A whole number for a float is one, so that a start that is made again with 1 or 1.0 is the same.
        return encode_input(values | whole, f"the input of {self._what}", limit) if whole else text

    def decode(self, text: str) -> tuple[tuple[object, ...], dict[str, object]]:
        """The call that the text stands for, as `args` and `kwargs` with typed values.

        Names that the function does not have (any more) are passed over. Raises `DecodingError`.
        """
        values = self._decoder.decode(text)
        if len(self._keywords) == len(self._parameters):
            return (), values
        args: list[object] = []
        kwargs: dict[str, object] = {}
        for name, parameter in self._parameters.items():
            if name not in values:
                continue
            if parameter.kind is Parameter.POSITIONAL_ONLY or (
                # What comes before *args has to be given by position when there is something in *args.
                parameter.kind is Parameter.POSITIONAL_OR_KEYWORD and self._var_positional in values
            ):
                args.append(values[name])
            elif parameter.kind is Parameter.VAR_POSITIONAL:
                args.extend(cast("list[object]", values[name]))
            elif parameter.kind is Parameter.VAR_KEYWORD:
                kwargs.update(cast("dict[str, object]", values[name]))
            else:
                kwargs[name] = values[name]
        return tuple(args), kwargs

    def from_json(self, text: str) -> str:
        """The arguments as one object by name, from JSON that a person wrote.

        An object whose names fit the parameters is taken as the arguments, an array as positional arguments. Where
        there is one parameter, anything else is its value. `null`, `{}` and nothing are a call without arguments.
        Raises `InvalidInput` when no reading fits, and for names that no field has: code passes over these, for newer
        code may have sent them, but of a person they are a slip. The size isn't limited.
        """
        try:
            given: object = json.decode(text) if text.strip() else None
        except (MsgspecError, UnicodeError) as error:
            raise self._misfit(
                f"what was given is not JSON ({error}); a text needs its quotes: '\"{text[:40]}\"'"
            ) from None
        misfits: list[InvalidInput] = []
        for args, kwargs in self._readings(given) if text.strip() else [_EMPTY_CALL]:
            try:
                encoded = self.encode(args, kwargs, limit=sys.maxsize)
            except InvalidInput as error:
                misfits.append(error)
            else:
                self._check_names(self._bind(args, kwargs))
                return encoded
        # Names that fit are what was meant, and `null` is. An array is rather the value of the one parameter.
        raise misfits[-1 if isinstance(given, list) else 0]

    def digest(self, args: tuple[object, ...], kwargs: dict[str, object], limit: int) -> tuple[str, str]:
        """The arguments as JSON, by name and in sorted order, and a short hash of that; types are not checked.

        A call gives the same digest in every process, and however the arguments are passed. Raises `InvalidInput`
        when they don't fit the parameters, and what `values.encode` raises.
        """
        if not args and not kwargs and not self._required:
            return _NO_ARGUMENTS
        text = encode_stable(self._bind(args, kwargs), f"the arguments of {self._what}", limit)
        return text, short_hash(text)

    # --- the parameters

    @cached_property
    def _parameters(self) -> dict[str, Parameter]:
        try:
            parameters = dict(list(_signature(self._fn).parameters.items())[self._given :])
        except (ValueError, TypeError, NameError) as error:
            raise DefinitionError(f"the parameters of {self._what} can't be told: {error}") from error
        if not self._open_ended:
            for parameter in parameters.values():
                if parameter.kind in _VARIADIC:
                    raise DefinitionError(
                        f"{self._what} has the parameter {parameter}: its input is stored by name and type, so name "
                        f"each parameter, or take a list or a dict"
                    )
        return parameters

    @cached_property
    def _var_positional(self) -> str | None:
        return next((n for n, p in self._parameters.items() if p.kind is Parameter.VAR_POSITIONAL), None)

    @cached_property
    def _hints(self) -> dict[str, object]:
        try:
            return typing.get_type_hints(self._annotated, include_extras=True)
        except NameError as error:
            raise DefinitionError(
                f"{self._what}: an annotation names {error.name!r}, which is not defined in its module; define it at "
                f"the top level, and import it outside of `if TYPE_CHECKING`"
            ) from error
        except Exception as error:  # an annotation in a string can be any expression
            raise DefinitionError(f"the annotations of {self._what} can't be evaluated: {error}") from error

    @property
    def _annotated(self) -> object:
        """The function, or what stands for it where not all of its annotations have to make sense to us."""
        if not self._given:
            return self._fn
        annotations = {name: parameter.annotation for name, parameter in self._parameters.items()}
        annotations["return"] = _signature(self._fn).return_annotation
        return SimpleNamespace(
            __annotations__={name: each for name, each in annotations.items() if each is not MISSING},
            __globals__=getattr(inspect.unwrap(self._fn), "__globals__", {}),
        )

    @cached_property
    def _decoder(self) -> Decoder[dict[str, object]]:
        """Reads the whole input: to a dict with those arguments that are there."""
        items: dict[str, object] = {}
        for name, parameter in self._parameters.items():
            hint = self._hints.get(name, Any)
            if hint is object:
                hint = Any
            Decoder[object](hint, f"the parameter {name!r} of {self._what}")  # names the parameter if it can't travel
            if parameter.kind is Parameter.VAR_POSITIONAL:
                hint = list[hint]
            elif parameter.kind is Parameter.VAR_KEYWORD:
                hint = dict[str, hint]
            items[name] = Required[hint] if name in self._required else hint
        fields = cast("Callable[..., object]", typing.TypedDict)("Input", items, total=False)
        return Decoder(fields, f"the input of {self._what}")

    # --- binding without inspect, which takes longer than all the rest of a step's bookkeeping

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Of the parameters that take one argument each, in order."""
        return tuple(name for name, p in self._parameters.items() if p.kind not in _VARIADIC)

    @cached_property
    def _positional(self) -> tuple[str, ...]:
        return tuple(n for n in self.names if self._parameters[n].kind is not Parameter.KEYWORD_ONLY)

    @cached_property
    def _keywords(self) -> frozenset[str]:
        return frozenset(n for n in self.names if self._parameters[n].kind is not Parameter.POSITIONAL_ONLY)

    @cached_property
    def _required(self) -> frozenset[str]:
        return frozenset(n for n in self.names if self._parameters[n].default is Parameter.empty)

    def _bind(self, args: tuple[object, ...], kwargs: dict[str, object]) -> dict[str, object]:
        values = dict(zip(self._positional, args, strict=False))
        if not kwargs and len(args) == len(values) == len(self.names):
            return values
        if kwargs:
            if len(args) > len(self._positional) or not kwargs.keys() <= self._keywords - values.keys():
                return self._bind_slowly(args, kwargs)
            values.update(kwargs)
            values = {name: values[name] for name in self.names if name in values}
        elif len(args) > len(self._positional):
            return self._bind_slowly(args, kwargs)
        return values if self._required <= values.keys() else self._bind_slowly(args, kwargs)

    def _bind_slowly(self, args: tuple[object, ...], kwargs: dict[str, object]) -> dict[str, object]:
        """For what is rare: variadic parameters, and calls that don't fit, with the message that Python has."""
        try:
            bound = inspect.Signature(list(self._parameters.values())).bind(*args, **kwargs)
        except TypeError as error:
            raise self._misfit(str(error)) from None
        return dict(bound.arguments)

    def _readings(self, given: object) -> Iterator[tuple[tuple[object, ...], dict[str, object]]]:
        """The calls that JSON of a person can mean, the likeliest first."""
        single = len(self.names) == 1
        if given is None and not single:
            yield _EMPTY_CALL
        elif isinstance(given, dict):
            named = cast("dict[str, object]", given)
            if not single or named.keys() <= set(self.names):
                yield (), named
        elif isinstance(given, list):
            yield tuple(cast("list[object]", given)), {}
        elif not single:
            raise self._misfit("give an object with the arguments by name, or an array with them in order")
        if single:
            yield ((), {self.names[0]: given}) if self.names[0] in self._keywords else ((given,), {})
            if given is None:
                yield _EMPTY_CALL

    def _check_types(self, text: str) -> dict[str, object]:
        try:
            return self._decoder.decode(text)
        except DecodingError as error:
            reason, _, path = str(error.__cause__).rpartition(" - at `$.")
            if not reason:
                raise self._misfit(str(error.__cause__)) from error
            place = path.rstrip("`")
            raise self._misfit(f"{place}: {reason[0].lower()}{reason[1:]}") from error

    def _check_names(self, values: dict[str, object]) -> None:
        for name, value in values.items():
            if (slip := misspelt(self._hints.get(name, Any), value, name)) is not None:
                raise self._misfit(slip)

    def _misfit(self, reason: str) -> InvalidInput:
        try:
            hints = self._hints
        except DefinitionError:  # of a step, which works without
            hints = {}
        parameters = ", ".join(_shown(each, hints.get(name, MISSING)) for name, each in self._parameters.items())
        return InvalidInput(f"{self._what}: {reason}; it takes ({parameters})")


def _shown(parameter: Parameter, annotation: object) -> str:
    stars = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    default = "" if parameter.default is Parameter.empty else f" = {parameter.default!r}"
    return f"{stars}{parameter.name}: {type_name(annotation)}{default}"


def _signature(fn: Callable[..., object]) -> inspect.Signature:
    """The signature with its annotations unevaluated: a step never needs what they name."""
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(fn, annotation_format=Format.FORWARDREF)
    return inspect.signature(fn)
