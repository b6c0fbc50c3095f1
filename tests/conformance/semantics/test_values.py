"""Values: typed on both sides, and refused where they were made."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec
import pydantic
import pytest

from perdure import Retry, step, wait_signal
from perdure.errors import EncodingError, RunFailed, ValueTooLarge

from .conftest import Play
from .kit import Gate, deploy, keys, new_app, replay, state

pytestmark = pytest.mark.anyio


@dataclass
class Order:
    id: str
    cents: int


class Line(msgspec.Struct):
    name: str
    price: Decimal


class Customer(pydantic.BaseModel):
    name: str
    since: date


class Colour(Enum):
    RED = "red"


@dataclass
class All:
    order: Order
    line: Line
    customer: Customer
    at: datetime
    within: timedelta
    key: UUID
    price: Decimal
    raw: bytes
    tags: set[str]
    colour: Colour
    by_number: dict[int, Order]
    pair: tuple[int, str]
    maybe: Order | None


def everything() -> All:
    return All(
        Order("7", 100),
        Line("tea", Decimal("1.10")),
        Customer(name="ada", since=date(2030, 1, 2)),
        datetime(2031, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
        timedelta(days=2, microseconds=3),
        UUID(int=7),
        Decimal("0.10"),
        b"\x00\xff",
        {"a", "b"},
        Colour.RED,
        {1: Order("1", 1)},
        (1, "x"),
        None,
    )


@step
async def pass_on(value: All) -> All:
    assert type(value.customer) is Customer
    return value


@step
def pass_on_in_thread(value: All) -> All:
    return value


async def test_values_are_typed_everywhere(play: Play) -> None:
    app, gate, seen = new_app(), Gate(), list[All]()

    @app.workflow
    async def flow(value: All) -> All:
        seen.append(value)
        seen.append(await pass_on(value))
        seen.append(await pass_on_in_thread(value))
        seen.append(await wait_signal("value", All))
        await gate.pass_through()
        return value

    async with play(app) as sandbox:
        run = await flow.start(everything())
        await run.signal("value", everything())
        await gate.reached()
        await replay(sandbox)
        gate.open()
        assert await run.result() == everything()
        assert len(seen) >= 8
        assert all(value == everything() for value in seen)


@pytest.mark.parametrize(
    ("value", "kind"),
    [(object(), "object"), ({"a": [1, lambda: 1]}, "function"), (float("nan"), "nan"), ("\ud800", "surrogate")],
)
async def test_what_cannot_be_written_is_named_where_it_was_made(play: Play, value: Any, kind: str) -> None:
    app = new_app()

    @step
    async def give() -> Any:
        return value

    @step
    async def take(value: Any) -> None: ...

    @app.workflow
    async def flow(how: str, value: Any = None) -> Any:
        if how == "return":
            return value_of_flow
        return await (give() if how == "give" else take(value_of_flow))

    value_of_flow = value
    async with play(app):
        with pytest.raises(EncodingError, match=f"the input of workflow flow .*{kind}"):
            flow.start("x", value)
        for how, what in [
            ("return", "the result of workflow flow"),
            ("give", "the result of step give"),
            ("take", "the arguments of step take"),
        ]:
            with pytest.raises(RunFailed, match=f"EncodingError: {what} .*{kind}"):
                await flow.run(how)
        run = await flow.options(delay=60).start("x")
        with pytest.raises(EncodingError, match=f"the value of signal go .*{kind}"):
            run.signal("go", value)


async def test_what_is_too_large_is_named_where_it_was_made(play: Play) -> None:
    app = new_app(max_value_bytes=1000)
    large = "x" * 2000

    @step
    async def give() -> str:
        return large

    @app.workflow
    async def flow(value: str) -> str:
        return await give()

    async with play(app):
        with pytest.raises(ValueTooLarge, match=r"the input of workflow flow takes 2,012 bytes .* limit is 1,000"):
            flow.start(large)
        with pytest.raises(RunFailed, match="ValueTooLarge: the result of step give takes 2,002 bytes"):
            await flow.run("")
        run = await flow.options(delay=60).start("")
        with pytest.raises(ValueTooLarge, match="the value of signal go"):
            run.signal("go", large)


async def test_a_step_whose_result_cannot_be_kept_is_not_tried_again(play: Play) -> None:
    app, ran = new_app(), list[int]()

    @step(retry=Retry(attempts=5, delay=0))
    async def give() -> Any:
        ran.append(1)
        return object()

    @app.workflow
    async def flow() -> str:
        try:
            await give()
        except EncodingError:
            return "seen"
        return "none"

    async with play(app):
        run = await flow.start()
        assert await run.result() == "seen"
        assert len(ran) == 1
        assert await keys(run) == ["give"]


async def test_an_input_that_fits_no_more_fails_that_run_alone(play: Play) -> None:
    async def before(n: int) -> int:
        return n

    async def after(n: list[int]) -> int:
        return sum(n)

    app, next_version = new_app(), new_app()
    old = app.workflow(name="flow")(before)
    new = next_version.workflow(name="flow")(after)
    async with play(app) as sandbox:
        stored = await old.options(delay=60).start(3)
        await deploy(sandbox, next_version)
        fresh = await new.options(delay=60).start([1, 2])
        await sandbox.advance(60)
        assert await fresh.result() == 3
        with pytest.raises(
            RunFailed, match="DecodingError: the input of workflow flow can't be read: Expected `array`"
        ):
            await stored.result()


async def test_parameters_may_be_added_with_defaults_and_moved(play: Play) -> None:
    async def before(a: int, b: str) -> str:
        return f"{a}{b}"

    async def after(b: str, a: int, c: str = "!") -> str:
        return f"{a}{b}{c}"

    app, next_version = new_app(), new_app()
    flow = app.workflow(name="flow")(before)
    next_version.workflow(name="flow")(after)
    async with play(app) as sandbox:
        run = await flow.options(delay=60).start(1, "x")
        await deploy(sandbox, next_version)
        await sandbox.advance(60)
        assert await run.result() == "1x!"


async def test_a_checkpoint_that_fits_no_more_fails_that_run_alone(play: Play) -> None:
    gate = Gate()

    @step(name="load")
    async def load_before() -> str:
        return "text"

    @step(name="load")
    async def load_after() -> int:
        return 1

    async def before() -> None:
        await load_before()
        await gate.pass_through()

    async def after() -> None:
        await load_after()

    app, next_version = new_app(), new_app()
    flow = app.workflow(name="flow")(before)
    next_version.workflow(name="flow")(after)
    async with play(app) as sandbox:
        run = await flow.start()
        await gate.reached()
        await deploy(sandbox, next_version)
        with pytest.raises(RunFailed, match="DecodingError: the result of step load can't be read"):
            await run.result()


async def test_a_run_of_a_workflow_that_nobody_knows_waits_for_one_who_does(play: Play) -> None:
    app, without = new_app(), new_app()

    @app.workflow
    async def flow() -> str:
        return "ran"

    @without.workflow
    async def other() -> str:
        return "other"

    async with play(app) as sandbox:
        run = await flow.options(delay=60).start()
        await deploy(sandbox, without)
        await sandbox.advance(60)
        assert await other.run() == "other"
        assert await state(run) == "queued"
        assert "no live worker" in await run.why()
        await deploy(sandbox, app)
        assert await run.result() == "ran"
