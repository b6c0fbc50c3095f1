from __future__ import annotations

import enum
import os
import subprocess
import sys
import types
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Generic, NamedTuple, NoReturn, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.codec import Decoder, encode
from perdure.errors import (
    DecodingError,
    DefinitionError,
    EncodingError,
    ErrorInfo,
    InvalidInput,
    StepFailed,
    ValueTooLarge,
)
from perdure.failures import MAX_MESSAGE, MAX_TRACEBACK, decode_failure, describe, encode_failure, rebuild
from perdure.signature import Signature
from perdure.values import encode_input, encode_stable

T = TypeVar("T")
LIMIT = 1_000_000


class Color(enum.Enum):
    RED = "red"


@dataclass
class Line:
    sku: str
    count: int = 1


@dataclass
class Order:
    id: str
    lines: list[Line] = field(default_factory=list[Line])
    weight: float | None = None


class Point(msgspec.Struct):
    x: int
    next: Point | None = None


class Pair(NamedTuple):
    a: int
    b: str


class Options(TypedDict):
    deep: bool


class User(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, extra="forbid")

    user_name: str = pydantic.Field(alias="userName")
    since: datetime
    tags: set[str] = set()

    @pydantic.computed_field
    @property
    def greeting(self) -> str:
        return f"hello {self.user_name}"


@dataclass
class Team:
    users: list[User]
    lead: User | None = None


ADA = User(userName="ada", since=datetime(2024, 1, 1, tzinfo=UTC), tags={"x"})


def round_trip(value: object, annotation: object) -> object:
    return Decoder[object](annotation, "it").decode(encode(value, "it", LIMIT))


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (datetime(2024, 2, 29, 12, 30, 1, 5, tzinfo=UTC), datetime),
        (datetime(2024, 2, 29), datetime),
        (date(2024, 2, 29), date),
        (time(1, 2, 3), time),
        (timedelta(days=1, microseconds=1), timedelta),
        (UUID(int=7), UUID),
        (Decimal("1.10"), Decimal),
        (b"\x00\xff", bytes),
        (Color.RED, Color),
        ({1, 2}, set[int]),
        (frozenset({"a"}), frozenset[str]),
        ((1, "a"), tuple[int, str]),
        ({1: Color.RED}, dict[int, Color]),
        (Order("7", [Line("a", 2)]), Order),
        (Point(1, Point(2)), Point),
        (Pair(1, "x"), Pair),
        ({"deep": True}, Options),
        (2**70, int),
        (-(2**63), int),
        (ADA, User),
        ([ADA, ADA], list[User]),
        (Team([ADA], ADA), Team),
        (None, User | None),
        (None, None),
        ([1, None], Any),
        ([1, "a"], list[object]),
        ("x", Annotated[str, msgspec.Meta(min_length=1)]),
    ],
)
def test_values_travel(value: object, annotation: object) -> None:
    again = round_trip(value, annotation)
    assert again == value
    assert type(again) is type(value)


finite = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=20,
)


@given(json_values)
def test_plain_values_travel_without_a_type(value: object) -> None:
    assert round_trip(value, Any) == value


@given(json_values, st.sampled_from([float("nan"), float("inf"), float("-inf")]), st.data())
def test_a_number_that_json_lacks_is_found_wherever_it_is(value: object, number: float, data: st.DataObject) -> None:
    wrap = data.draw(st.sampled_from([lambda v: v, lambda v: [value, v], lambda v: {"a": value, "b": [v, 2**80]}]))
    with pytest.raises(EncodingError, match=r"it can't be written as JSON: \$.* is (nan|-?inf)"):
        encode(wrap(number), "it", LIMIT)


class Odd(float): ...


class Word(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"a": [1, object()]}, r"\$\.a\[1\] is a object; pass a dataclass"),
        (Order("7", weight=float("nan")), r"\$\.weight is nan"),
        (Point(1, float("inf")), r"\$\.next is inf"),  # pyright: ignore[reportArgumentType]
        ({"a": Odd("nan"), "b": None}, r"\$\.a is nan"),
        ({"a": None, "b": b"\xcb\x7f\xf8", "c": [Decimal(1), float("inf")]}, r"\$\.c\[1\] is inf"),
        (["ok", "\ud800"], r"\$\[1\] is a str with lone surrogates"),
        ({"x": {(1, 2): 3}}, r"\$\.x is a dict with a key that can't be one"),
        ({"\ud800": 3}, r"\$ is a dict with lone surrogates"),
        (Team([object()]), r"\$\.users\[0\] is a object"),  # pyright: ignore[reportArgumentType]
        ([10**5000], r"\$\[0\] is a int"),
        (1j, r"\$ is a complex"),
        ([lambda: None], r"\$\[0\] is a function"),
        (sys, r"\$ is a module"),
        (Order, r"\$ is a type"),
    ],
)
def test_what_can_not_be_written_is_named_with_its_place(value: object, says: str) -> None:
    with pytest.raises(EncodingError, match="the result of step 'x' can't be written as JSON: " + says):
        encode(value, "the result of step 'x'", LIMIT)


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({1: "a", "1": "b"}, ""),
        ({"a": [{"x": 0}, {1.5: 1, "1.5": 2}]}, r"\.a\[1\]"),
        ({Color.RED: 1, "red": 2}, ""),
        (Order("7", weight={UUID(int=0): 1, str(UUID(int=0)): 2}), r"\.weight"),  # pyright: ignore[reportArgumentType]
        ({Word("a"): {Decimal("1.0"): 1, "1.0": 2}}, r"\.a"),
    ],
)
def test_keys_that_are_one_in_json_are_refused(value: object, place: str) -> None:
    says = r"can't be written as JSON: \$%s is a dict with keys that are the same in JSON"
    with pytest.raises(EncodingError, match=says % place):
        encode(value, "it", LIMIT)
    with pytest.raises(EncodingError, match=says % (r"\.count" + place)):
        Signature(maybe, "step 'm'", open_ended=True).digest((value,), {}, LIMIT)


@given(st.dictionaries(st.one_of(st.integers(), st.dates(), st.uuids(), finite), json_values))
def test_keys_of_other_types_travel(value: dict[object, object]) -> None:
    texts = msgspec.json.decode(msgspec.json.encode(dict.fromkeys(value)))
    if len(texts) == len(value):
        assert encode(value, "it", LIMIT) == msgspec.json.encode(value).decode()
    else:
        with pytest.raises(EncodingError, match="the same in JSON"):
            encode(value, "it", LIMIT)


def test_none_beside_bytes_that_look_like_nan_is_fine() -> None:
    assert encode([None, b"\xcb\x7f\xf8", 2**80], "it", LIMIT).startswith("[null,")


def test_a_value_that_contains_itself() -> None:
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(EncodingError, match="contains itself"):
        encode(loop, "it", LIMIT)


def test_code_of_the_value_that_fails_while_it_is_written() -> None:
    class Broken(pydantic.BaseModel):
        raw: bytes

    with pytest.raises(EncodingError, match=r"\$\[0\] is a .*Broken"):
        encode([Broken(raw=b"\xff")], "it", LIMIT)


def test_subclasses_of_plain_types_travel_as_these() -> None:
    assert encode([Word("a"), Odd(1.5)], "it", LIMIT) == '["a",1.5]'


def test_size() -> None:
    assert encode("é" * 10, "it", 22) == '"' + "é" * 10 + '"'
    with pytest.raises(ValueTooLarge, match=r"it takes 1,002 bytes as JSON, and the limit is 1,001"):
        encode("é" * 500, "it", 1001)


class Connection:
    pass


class Box(Generic[T]):
    pass


@dataclass
class Holder:
    connection: Connection


@dataclass
class Unresolved:
    x: Nowhere  # noqa: F821 # pyright: ignore[reportUndefinedVariable]


@pytest.mark.parametrize(
    ("annotation", "says"),
    [
        (Connection, "Connection can't travel"),
        (list[Connection], "Connection can't travel"),
        (Connection | None, "Connection can't travel"),
        (Holder, "Connection can't travel"),
        (Box[int], "Box can't travel"),
        (Callable[[], int], "Callable can't travel"),
        (type, "type can't travel"),
        (list[int] | set[int], "more than one array-like"),
        (User | int, "custom type"),
        (Unresolved, "Nowhere"),
    ],
)
def test_types_that_can_not_travel_are_refused_early(annotation: object, says: str) -> None:
    with pytest.raises(DefinitionError, match=f"the input of f has the type .*{says}"):
        Decoder(annotation, "the input of f")


@pytest.mark.parametrize(
    ("annotation", "text", "says"),
    [
        (int, '"x"', "Expected `int`, got `str`"),
        (Order, '{"id":"7","lines":[{}]}', r"required field `sku` - at `\$\.lines\[0\]`"),
        (Team, '{"users":[{"since":1}]}', "validation error"),
        (Any, "{", "truncated"),
        (Any, '"\ud800"', "surrogates"),
    ],
)
def test_what_does_not_fit_is_told(annotation: object, text: str, says: str) -> None:
    with pytest.raises(DecodingError, match=f"the result of f can't be read: [\\s\\S]*{says}"):
        Decoder(annotation, "the result of f").decode(text)


def test_models_are_read_by_field_name_and_by_alias() -> None:
    decoder = Decoder[User](User, "it")
    assert decoder.decode('{"user_name":"a","since":"2024-01-01T00:00:00Z"}').user_name == "a"
    assert decoder.decode('{"userName":"a","since":"2024-01-01T00:00:00Z"}').user_name == "a"


# --- signatures


async def fulfil(order: Order, cents: int = 3, *, note: str | None = None) -> list[Order]:
    raise NotImplementedError


def divide(a: int, b: int, /, c: int = 1) -> float:
    raise NotImplementedError


def anything(a: int, *rest: int, flag: bool = False, **more: str) -> None:
    raise NotImplementedError


def unannotated(a, b=2):
    raise NotImplementedError


def nothing() -> None:
    raise NotImplementedError


def only(lines: list[Line]) -> None:
    raise NotImplementedError


def chosen(order: Order) -> None:
    raise NotImplementedError


def mixed(things: dict[str, Order | list[Line] | None]) -> None:
    raise NotImplementedError


class Cat(msgspec.Struct, tag=True):
    name: str


class Dog(msgspec.Struct, tag=True):
    bark: int


def tagged(pet: Cat | Dog) -> None:
    raise NotImplementedError


def untyped(value: Any) -> None:
    raise NotImplementedError


def maybe(count: int | None = 5) -> None:
    raise NotImplementedError


FULFIL = Signature(fulfil, "workflow 'fulfil'")


def call(signature: Signature, *args: object, **kwargs: object) -> str:
    return signature.encode(args, kwargs, LIMIT)


def test_arguments_travel_by_name() -> None:
    order = Order("7")
    text = call(FULFIL, order, note="n")
    assert msgspec.json.decode(text).keys() == {"order", "note"}
    assert FULFIL.decode(text) == ((), {"order": order, "note": "n"})
    assert call(FULFIL, note="n", order=order) == text


def test_a_whole_number_for_a_float_travels_as_one() -> None:
    def scale(by: float, most: float | None = None, *, rest: object = 1) -> None: ...

    signature = Signature(scale, "f")
    assert call(signature, 1, 2, rest=3) == call(signature, 1.0, most=2.0, rest=3) == '{"by":1.0,"most":2.0,"rest":3}'
    assert signature.from_json("[1]") == '{"by":1.0}'


def test_positional_only_arguments_come_back_by_position() -> None:
    signature = Signature(divide, "f")
    assert signature.decode(call(signature, 1, 2)) == ((1, 2), {})
    assert signature.decode(call(signature, 1, 2, c=3)) == ((1, 2), {"c": 3})


def test_unannotated_and_empty() -> None:
    signature = Signature(unannotated, "f")  # pyright: ignore[reportUnknownArgumentType]
    assert signature.decode(call(signature, {"a": [1]})) == ((), {"a": {"a": [1]}})
    assert signature.returns.decode("[1]") == [1]
    assert Signature(nothing, "f").decode("{}") == ((), {})


def test_names_that_the_function_no_longer_has_are_passed_over() -> None:
    assert Signature(nothing, "f").decode('{"gone":1}') == ((), {})
    with pytest.raises(DecodingError, match="the input of f can't be read: Object missing required field `lines`"):
        Signature(only, "f").decode('{"gone":1}')


@pytest.mark.parametrize(
    ("args", "kwargs", "says"),
    [
        ((), {}, "missing a required.* argument: 'order'"),
        ((Order("1"), 2, 3), {}, "too many positional arguments"),
        ((Order("1"),), {"order": Order("1")}, "multiple values for argument 'order'"),
        ((Order("1"),), {"extra": 1}, "got an unexpected keyword argument 'extra'"),
        ((Order("1"), "x"), {}, "cents: expected `int`, got `str`"),
        (("x",), {}, "order: expected `object`, got `str`"),
        ((Order("1", [Line(1)]),), {}, r"order\.lines\[0\]\.sku: expected `str`, got `int`"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_arguments_that_do_not_fit(args: tuple[object, ...], kwargs: dict[str, object], says: str) -> None:
    takes = r"; it takes \(order: Order, cents: int = 3, note: (str \| None|Optional\[str\]) = None\)"
    with pytest.raises(InvalidInput, match="workflow 'fulfil': " + says + takes):
        FULFIL.encode(args, kwargs, LIMIT)


def test_arguments_that_can_not_be_written() -> None:
    with pytest.raises(EncodingError, match=r"the input of workflow 'fulfil' can't be .*\$\.order is a object"):
        call(FULFIL, object())
    with pytest.raises(ValueTooLarge, match="the input of workflow 'fulfil' takes"):
        FULFIL.encode((Order("7" * 100),), {}, 50)


def test_open_ended_parameters_are_for_steps() -> None:
    with pytest.raises(DefinitionError, match=r"workflow 'x' has the parameter \*rest.*name each parameter"):
        Signature(anything, "workflow 'x'").check()
    signature = Signature(anything, "step 'x'", open_ended=True)
    text, _ = signature.digest((1, 2, 3), {"flag": True, "color": "red"}, LIMIT)
    assert signature.decode(text) == ((1, 2, 3), {"flag": True, "color": "red"})
    assert signature.decode(signature.digest((1,), {}, LIMIT)[0]) == ((), {"a": 1})
    with pytest.raises(InvalidInput, match="step 'x': missing"):
        signature.digest((), {}, LIMIT)


def test_an_annotation_that_is_not_defined_is_named() -> None:
    def later(x: Undefined) -> None: ...  # noqa: F821 # pyright: ignore[reportUndefinedVariable, reportUnknownParameterType]

    with pytest.raises(DefinitionError, match="workflow 'later': an annotation names 'Undefined'"):
        Signature(later, "workflow 'later'").check()  # pyright: ignore[reportUnknownArgumentType]
    step = Signature(later, "step 'later'")  # pyright: ignore[reportUnknownArgumentType]
    assert step.digest((1,), {}, LIMIT)[0] == '{"x":1}'
    with pytest.raises(InvalidInput, match="step 'later': too many"):
        step.digest((1, 2), {}, LIMIT)


def test_a_parameter_that_can_not_travel_is_named() -> None:
    def bad(connection: Connection) -> None: ...
    def generator():
        yield 1

    with pytest.raises(DefinitionError, match="the parameter 'connection' of workflow 'bad' has the type Connection"):
        Signature(bad, "workflow 'bad'").check()
    with pytest.raises(DefinitionError, match="is a generator"):
        Signature(generator, "workflow 'g'").check()


def test_results_are_read_by_the_return_annotation() -> None:
    assert FULFIL.returns.decode('[{"id":"7"}]') == [Order("7")]

    def deferred() -> Awaitable[Order]: ...
    def never() -> NoReturn: ...

    assert Signature(deferred, "f").returns.decode('{"id":"7"}') == Order("7")
    Signature(never, "f").check()


@pytest.mark.parametrize(
    ("fn", "text", "expected"),
    [
        (fulfil, '{"order":{"id":"7"}}', ((), {"order": Order("7")})),
        (fulfil, '[{"id":"7"}, 5]', ((), {"order": Order("7"), "cents": 5})),
        (chosen, '{"order":{"id":"7"}}', ((), {"order": Order("7")})),
        (chosen, '{"id":"7"}', ((), {"order": Order("7")})),
        (chosen, '[{"id":"7"}]', ((), {"order": Order("7")})),
        (only, '[{"sku":"a"}]', ((), {"lines": [Line("a")]})),
        (only, "[]", ((), {"lines": []})),
        (maybe, "", ((), {})),
        (maybe, "null", ((), {"count": None})),
        (maybe, "7", ((), {"count": 7})),
        (maybe, "{}", ((), {})),
        (divide, "[1, 2]", ((1, 2), {})),
        (nothing, "", ((), {})),
        (nothing, " null ", ((), {})),
        (nothing, "{}", ((), {})),
        (nothing, "[]", ((), {})),
        (mixed, '[{"a":null,"b":{"id":"7"}}]', ((), {"things": {"a": None, "b": Order("7")}})),
        (tagged, '[{"type":"Dog","bark":1}]', ((), {"pet": Dog(1)})),
        (untyped, '[{"a":{"b":1}}]', ((), {"value": {"a": {"b": 1}}})),
    ],
)
def test_json_of_a_person(fn: Callable[..., object], text: str, expected: object) -> None:
    signature = Signature(fn, "workflow 'f'")
    assert signature.decode(signature.from_json(text)) == expected


@pytest.mark.parametrize(
    ("fn", "text", "says"),
    [
        (fulfil, "order-7", """what was given is not JSON .*; a text needs its quotes: '"order-7"'"""),
        (fulfil, "7", "give an object with the arguments by name"),
        (fulfil, "", "missing a required.* argument: 'order'"),
        (fulfil, '{"order":{}}', "order: object missing required field `id`"),
        (fulfil, '{"orders":1}', "missing a required.* argument: 'order'"),
        (chosen, '{"order":{}}', "order: object missing required field `id`"),
        (chosen, "[1]", "order: expected `object`, got `array`"),
        (maybe, '"x"', r"count: expected `int \| null`, got `str`"),
        (nothing, "1", "give an object"),
        (only, "null", "lines: expected `array`, got `null`"),
        (fulfil, '{"order":{"id":"7","lnes":[]}}', r"order: Order has no field 'lnes' \(did you mean 'lines'\?\)"),
        (chosen, '{"id":"7","count":1}', "order: Order has no field 'count'"),
        (chosen, '{"order":{"id":"7","count":1}}', "order: Order has no field 'count'"),
        (
            fulfil,
            '{"order":{"id":"7","lines":[{"sku":"a"},{"sku":"b","x":1}]}}',
            r"order\.lines\[1\]: Line has no field",
        ),
        (mixed, '[{"a":{"id":"7","count":1}}]', r"things\.a: Order has no field 'count'"),
        (mixed, '[{"a":[{"sku":"7"},{"suk":"7", "sku":"a"}]}]', r"things\.a\[1\]: Line has no field 'suk'"),
        (tagged, '[{"type":"Cat","name":"x","bark":1}]', "pet: Cat has no field 'bark'"),
    ],
)
def test_json_of_a_person_that_does_not_fit(fn: Callable[..., object], text: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=f"workflow 'f': {says}.*; it takes \\("):
        Signature(fn, "workflow 'f'").from_json(text)


def test_digests_depend_on_the_arguments_alone() -> None:
    signature = Signature(fulfil, "step 'f'", open_ended=True)

    def digest(*args: object, **kwargs: object) -> str:
        return signature.digest(args, kwargs, LIMIT)[1]

    assert digest(1, 2) == digest(1, cents=2) == digest(order=1, cents=2) == digest(cents=2, order=1)
    assert digest({"a": 1, "b": {"x", "y"}}) == digest({"b": {"y", "x"}, "a": 1})
    assert digest(1) != digest(2) != digest(1, 2)
    assert len(digest(1)) == 16
    empty = Signature(maybe, "step 'm'")
    assert empty.digest((), {}, LIMIT)[0] == "{}"
    assert empty.digest((), {}, LIMIT) == Signature(nothing, "step 'n'").digest((), {}, LIMIT)


# --- failures


class Names(pydantic.RootModel[frozenset[str]], frozen=True): ...


class Basket(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow", serialize_by_alias=True)

    names: Names
    by_number: dict[int, frozenset[str]] = pydantic.Field(alias="byNumber")
    teams: list[Team] = []
    sets: set[Names | frozenset[str]] = set()


class Row(msgspec.Struct, array_like=True, tag=True, frozen=True, rename="camel"):
    row_number: int
    row_names: frozenset[str]


class Cell(msgspec.Struct, frozen=True, rename="camel"):
    cell_names: frozenset[str]


@dataclass(frozen=True)
class Shade:
    names: frozenset[str]
    color: Color = Color.RED


class Hue(enum.Enum):
    BLUE = "blue"
    GREEN = "green"


def texts_of_sets() -> list[str]:
    """The texts of values that have sets in them, as arguments of a step and as the input of a run."""
    a, b, c = frozenset("abcdefgh"), frozenset("ijklmnop"), frozenset("qrstuvwx")
    team = Team([ADA.model_copy(update={"tags": set(a)})])
    values: list[object] = [
        Basket(names=Names(a), byNumber={2: b, 1: c}, teams=[team], sets={a, b, Names(c)}),
        Basket.model_validate({"names": a, "byNumber": {}, "more": {"x": [a, {"y": b}]}}),
        {"team": team, "names": Names(a)},
        {a, b, c},
        {(1, a), (1, b), (2, c)},
        [Row(1, a), {Row(1, b), Row(1, c)}],
        {Cell(a), Cell(b), Cell(c)},
        {Shade(a), Shade(b), Shade(c)},
        {Names(a), Names(b), Names(c)},
        {1: {a, b, c}, 2: {Color.RED, Hue.BLUE, Hue.GREEN, None, 1}},
        {Color.RED, Hue.BLUE, Hue.GREEN},
    ]
    return [write(value, "it", LIMIT) for value in values for write in (encode_stable, encode_input)]


def test_texts_of_sets_are_the_same_in_every_process() -> None:
    code = "import sys; from unit.test_codec import texts_of_sets; print(texts_of_sets())"
    for seed in ("1", "2"):  # of the hashes of str, which the order of a set depends on
        paths = os.pathsep.join(sys.path)
        other = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            check=True,
        )
        assert other.stdout.strip() == str(texts_of_sets())


def test_texts_of_sets_can_be_read() -> None:
    basket = Basket(names=Names(frozenset("ab")), byNumber={2: frozenset("cd")}, teams=[Team([ADA])])
    assert Decoder[Basket](Basket, "it").decode(encode_stable(basket, "it", LIMIT)) == basket
    assert encode_stable({Row(1, frozenset("ba"))}, "it", LIMIT) == '[["Row",1,["a","b"]]]'
    assert encode_input({"b": 1, "a": {"y", "x"}}, "it", LIMIT) == '{"b":1,"a":["x","y"]}'
    assert encode_stable({Cell(frozenset("ba"))}, "it", LIMIT) == '[{"cellNames":["a","b"]}]'


class Declined(Exception):
    def __init__(self, code: str, cents: int = 0) -> None:
        super().__init__(code, cents)


class Reworded(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")


class Hostile(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt

    def __repr__(self) -> str:
        raise ValueError


class Outer:
    class Inner(Exception):
        pass


def caught(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause
    except BaseException as raised:
        return raised


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        ValueError(),
        KeyError("a"),
        Declined("no", 5),
        Outer.Inner("a", 1, None),
        OSError(2, "n"),
        OSError(2, "no", "file"),
    ],
)
def test_exceptions_come_back(error: Exception) -> None:
    again = rebuild(decode_failure(encode_failure(caught(error))))
    assert type(again) is type(error)
    assert isinstance(again, Exception)
    assert again.args == error.args
    assert "caught" in again.__notes__[0]


def locally_defined() -> Exception:
    class Local(Exception):
        pass

    return Local("x")


@pytest.mark.parametrize(
    "error",
    [
        Reworded(5),
        locally_defined(),
        SystemExit(1),
        KeyboardInterrupt(),
        ExceptionGroup("g", [ValueError(1)]),
        ValueError(object()),
        ValueError(float("nan")),
        ValueError("x" * 50_000),
        UnicodeDecodeError("utf-8", b"x", 0, 1, "no"),
        ValueError("\ud800"),
    ],
)
def test_exceptions_that_can_not_be_made_again_faithfully(error: BaseException) -> None:
    info = decode_failure(encode_failure(caught(error)))
    assert info.type == f"{type(error).__module__}:{type(error).__qualname__}"
    assert rebuild(info) is None


@pytest.mark.parametrize(
    "name", ["", ":", "os:system", "nowhere:Error", "builtins:int", "builtins:SystemExit", "builtins:nope", "builtins"]
)
def test_only_exceptions_are_ever_made(name: str) -> None:
    assert rebuild(ErrorInfo(type=name, message="x", args=["x"])) is None


def test_no_code_of_a_module_runs_to_find_an_exception_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    lazy = types.ModuleType("lazy_module")
    lazy.__getattr__ = lambda name: pytest.fail("ran code")
    monkeypatch.setitem(sys.modules, "lazy_module", lazy)
    assert rebuild(ErrorInfo(type="lazy_module:Error", message="x", args=["x"])) is None


def test_causes_are_kept() -> None:
    info = describe(caught(ValueError("outer"), caught(KeyError("inner"))))
    assert info.cause is not None
    assert (info.cause.type, info.cause.message) == ("builtins:KeyError", "'inner'")
    assert "KeyError" in info.traceback
    assert info.traceback.rstrip().endswith("ValueError: outer")

    hidden = caught(ValueError("outer"))
    hidden.__context__ = KeyError("shown")
    assert describe(hidden).cause is None  # `raise … from None`
    hidden.__suppress_context__ = False
    shown = describe(hidden).cause
    assert shown is not None
    assert shown.type == "builtins:KeyError"


def test_a_chain_that_is_too_long_is_cut() -> None:
    error: BaseException = ValueError(0)
    for number in range(1, 2000):
        error = caught(ValueError(number), error)
    info, depth = describe(error), 0
    cause: ErrorInfo | None = info
    while cause is not None:
        cause, depth = cause.cause, depth + 1
    assert depth == 9
    assert len(info.traceback) < MAX_TRACEBACK + 100

    loop = ValueError("loop")
    loop.__cause__ = KeyError("k")
    loop.__cause__.__cause__ = loop
    assert describe(loop).message == "loop"


def test_an_exception_of_a_module_that_is_not_imported_yet_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_late.py").write_text("class Refused(ValueError): ...")
    monkeypatch.syspath_prepend(tmp_path)
    kept = ErrorInfo("imported_late:Refused", "no", args=["no"])
    try:
        assert isinstance(rebuild(kept), ValueError)
    finally:
        sys.modules.pop("imported_late", None)
    assert rebuild(ErrorInfo("not_there_at_all:Refused", "no", args=["no"])) is None


def test_an_exception_of_the_program_itself_is_found_by_processes_that_import_it(tmp_path: Path) -> None:
    program = tmp_path / "shop.py"
    program.write_text(
        "from perdure.failures import decode_failure, encode_failure, rebuild\n"
        "class Refused(Exception): ...\n"
        "if __name__ == '__main__':\n"
        "    kept = decode_failure(encode_failure(Refused('no')))\n"
        "    print(kept.type, type(rebuild(kept)) is Refused)\n"
    )
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["shop:Refused", "True"]


def test_a_failure_that_could_not_be_made_again_stays_the_cause() -> None:
    info = ErrorInfo(type="elsewhere:Error", message="m", traceback="where it was")
    assert describe(StepFailed("charge", info)).cause == info


def test_groups_tell_of_what_is_in_them() -> None:
    info = describe(caught(ExceptionGroup("all of it", [ValueError("one"), KeyError("two")])))
    assert info.message == "all of it (2 sub-exceptions): ValueError: one; KeyError: 'two'"
    assert "ValueError: one" in info.traceback


def test_hostile_and_huge() -> None:
    assert describe(caught(Hostile())).message == "<str() of this Hostile failed>"
    assert describe(caught(ExceptionGroup("g", [Hostile()]))).message.startswith("g (1 sub-exception)")
    assert len(describe(ValueError("x" * 10**6)).message) < MAX_MESSAGE + 100
    assert describe(ValueError("\ud800")).message == "\\ud800"

    def deeper() -> None:
        deeper()

    with pytest.raises(RecursionError) as deep:
        deeper()
    info = describe(deep.value)
    assert info.traceback.startswith("Traceback")
    assert len(info.traceback) < MAX_TRACEBACK + 100


def test_own_frames_are_left_out() -> None:
    def run_by_the_engine() -> None:
        raise ValueError("user's")

    import perdure

    code = compile("def execute(fn):\n    fn()\n", str(perdure.__path__[0]) + "/engine/run.py", "exec")
    scope: dict[str, Any] = {}
    exec(code, scope)
    with pytest.raises(ValueError, match="user's") as caught_by_us:
        scope["execute"](run_by_the_engine)
    trace = describe(caught_by_us.value).traceback
    assert "run_by_the_engine" in trace
    assert "engine/run.py" not in trace

    with pytest.raises(EncodingError) as ours:
        encode(object(), "it", 1)
    assert ours.tb is not None
    alone = ours.value.with_traceback(ours.tb.tb_next)
    assert "values.py" in describe(alone).traceback  # when there is nothing else, they stay


@pytest.mark.parametrize("text", ["", "{", "5", '{"type":1}', "\ud800"])
def test_a_failure_that_can_not_be_read_is_one_too(text: str) -> None:
    info = decode_failure(text)
    assert info.type == "perdure.errors:DecodingError"
    assert "can't be read" in info.message
