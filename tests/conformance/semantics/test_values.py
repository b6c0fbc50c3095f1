"""Values: typed on both sides, and refused where they were made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any
from uuid import UUID

import msgspec
import pydantic
import pytest

from perdure import Retry, progress, step, wait_signal
from perdure.errors import EncodingError, InvalidInput, RunFailed, ValueTooLarge

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


async def test_a_result_that_does_not_fit_its_annotation_fails_where_it_is_returned(play: Play) -> None:
    app = new_app()
    wrong: Any = ["x"]

    @step
    async def count() -> int:
        return wrong

    @app.workflow(retry=Retry(attempts=3, delay=1))
    async def flow() -> list[int]:
        return wrong

    @app.workflow
    def sync_flow() -> int:
        return wrong

    @app.workflow
    async def parent() -> int:
        return await sync_flow.run()

    @app.workflow
    async def counting() -> int:
        return await count()

    async with play(app) as sandbox:
        runs = [await each.start() for each in (flow, sync_flow, parent, counting)]
        await sandbox.settle()
        said: list[str] = []
        for run in runs:
            with pytest.raises(RunFailed) as failed:
                await run.result()
            said.append(failed.value.info.message)
        assert said[0] == (
            "workflow flow returned ['x'], which is not what its annotation says, list[int]: Expected `int`, got `str`"
            " - at `$[0]`"
        )
        assert said[1] == (
            "workflow sync_flow returned ['x'], which is not what its annotation says, int: Expected `int`, got `array`"
        )
        assert "failed with DecodingError: workflow sync_flow returned ['x']" in said[2]
        assert (
            said[3]
            == "step count returned ['x'], which is not what its annotation says, int: Expected `int`, got `array`"
        )
        assert (await runs[0].status()).attempt == 1


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


@pytest.mark.parametrize("text", ["a\0b", "a\ud800b"], ids=["nul", "surrogate"])
async def test_what_not_every_store_could_keep_is_refused_wherever_it_comes_in(play: Play, text: str) -> None:
    app = new_app()

    @app.workflow
    async def flow() -> None:
        await wait_signal("go")

    filters = ("workflow", "queue", "parent", "group", "batch", "cause")
    async with play(app) as sandbox:
        run = await flow.start()
        await sandbox.settle()
        calls: list[Callable[[], Any]] = [
            *(partial(flow.options, **{name: text}) for name in ("id", "queue", "group", "session", "unique")),
            lambda: flow.options(labels={text: "x"}),
            lambda: flow.options(labels={"x": text}),
            lambda: flow.get(text),
            lambda: flow.get_batch(text),
            lambda: app.run(text),
            lambda: app.batch(text),
            *(partial(app.runs, **{name: text}) for name in filters),
            lambda: app.runs(labels={text: "x"}),
            lambda: app.runs(labels={"x": text}),
            lambda: app.failures(workflow=text),
            lambda: app.retry_failed(cause=text),
            lambda: app.prune(workflow=text, count=1),
            lambda: run.cancel(text),
            lambda: run.signal(text),
            lambda: run.retry(from_step=text),
            lambda: run.label(**{text: None}),
            lambda: app.limits.set(queue=text, running=1),
            lambda: app.limits.set(running=1, who=text),
            lambda: app.limits.pause(group=text),
            lambda: app.schedules.pause(text),
            lambda: app.schedules.remove(text),
        ]
        for call in calls:
            with pytest.raises(InvalidInput):
                call()
        assert await state(run) == "waiting"


async def test_a_nul_in_a_value_is_as_good_as_any_character(play: Play) -> None:
    app = new_app()

    @step
    async def echo(text: str) -> str:
        return text

    @step
    async def fail(text: str) -> None:
        raise ValueError(text)

    @app.workflow
    async def flow(text: str) -> dict[str, str]:
        progress(1, note=text)
        sent = await wait_signal("go", str)
        try:
            await fail(text)
        except ValueError as error:
            return {await echo(text): f"{error}{sent}"}
        return {}

    async with play(app) as sandbox:
        run = await flow.start("\0")
        await sandbox.settle()
        await replay(sandbox)
        await run.signal("go", "\0")
        assert await run.result() == {"\0": "\0\0"}
        assert (await run.status()).progress["note"] == "\0"
        assert [event.value for event in await run.history() if event.key == "echo"] == ["\0"]


@pytest.mark.parametrize("where", ["input", "signal", "step", "result", "progress"])
async def test_a_lone_surrogate_in_a_value_is_refused_where_it_is_given(play: Play, where: str) -> None:
    app, text = new_app(), "\ud800"

    @step
    async def echo() -> str:
        return text

    @app.workflow
    async def flow(given: str) -> str:
        if where == "step":
            await echo()
        if where == "progress":
            progress(1, note=text)
        await wait_signal("go", str)
        return text

    async with play(app):
        if where == "input":
            with pytest.raises(EncodingError, match="lone surrogates"):
                await flow.start(text)
            return
        run = await flow.start("")
        if where == "signal":
            with pytest.raises(EncodingError, match="lone surrogates"):
                await run.signal("go", text)
            return
        if where == "result":
            await run.signal("go", "")
        with pytest.raises(RunFailed, match="lone surrogates"):
            await run.result()
