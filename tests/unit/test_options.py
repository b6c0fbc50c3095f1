"""What can be said of a start, a limit, a rate, a policy, and what is refused at once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from perdure import App, wait_signal
from perdure.errors import DefinitionError, ErrorInfo, InvalidInput, StepFailed, StoreUrlError, UnknownQueue
from perdure.failures import cause_of, raised_by
from perdure.model import OnConflict, Rate, Unique
from perdure.rates import parse_rate, show_rate


@pytest.fixture
def app() -> App:
    return App("sqlite:////nowhere/at/all.db")


@pytest.mark.parametrize(
    ("text", "burst", "rate"),
    [
        ("100/min", None, Rate(100, 60_000, 1)),
        ("5/s", 20, Rate(5, 1_000, 20)),
        (" 1000 / 2 hours ", None, Rate(1000, 7_200_000, 1)),
        ("3/Day", None, Rate(3, 86_400_000, 1)),
        ("7/30sec", 7, Rate(7, 30_000, 7)),
    ],
)
def test_a_rate_is_read_and_shown(text: str, burst: int | None, rate: Rate) -> None:
    assert parse_rate(text, burst) == rate
    shown, _, burst_text = show_rate(rate).partition(", burst ")
    assert parse_rate(shown, int(burst_text) if burst_text else None) == rate


@pytest.mark.parametrize(
    "text", ["", "0/s", "5", "5/", "/s", "-1/s", "1.5/s", "5/0s", "5/month", "5/ss", "many/s", "٣/s", 5, None]
)
def test_what_is_no_rate_is_refused_with_an_example(text: Any) -> None:
    with pytest.raises(InvalidInput, match="is no rate; write a count and a period, such as 100/min"):
        parse_rate(text)


@pytest.mark.parametrize("burst", [0, -1, 1.5, True, "5"])
def test_a_burst_is_a_count(burst: Any) -> None:
    with pytest.raises(InvalidInput, match="a burst is a whole number from 1 on"):
        parse_rate("5/s", burst)


@pytest.mark.parametrize("running", [0, -1, 1.5, True, "5"])
def test_a_limit_is_a_count(app: App, running: Any) -> None:
    with pytest.raises(InvalidInput, match=r"is a whole number from 1 on, not .*; to let nothing run, pause instead"):
        app.limits.declare(queue="mail", running=running)
    with pytest.raises(InvalidInput, match="group_limit is a whole number from 1 on"):
        app.workflow(group_limit=running)


@pytest.mark.parametrize(
    "use",
    [
        lambda app: app.workflow(queue="mial"),
        lambda app: app.find("flow").options(queue="mial"),
        lambda app: app.limits.declare(queue="mial", running=1),
        lambda app: app.worker(queues=["mail", "mial"]),
        lambda app: app.schedules.add("s", app.find("flow").options(queue="mial"), every=60),
    ],
    ids=["workflow", "start", "limit", "worker", "schedule"],
)
def test_an_app_that_declares_its_queues_knows_no_others(use: Callable[[App], object]) -> None:
    app = App("sqlite:////nowhere/at/all.db", queues=["mail", "night"])

    @app.workflow
    async def flow() -> None: ...

    assert app.queue_names == ["default", "mail", "night"]
    flow.options(queue="night")
    with pytest.raises(
        UnknownQueue, match=r"no queue 'mial' \(did you mean 'mail'\?\); it declares: default, mail, night"
    ):
        use(app)


def test_an_app_that_declares_none_takes_any_queue(app: App) -> None:
    assert app.queue_names == ["default"]

    @app.workflow(queue="mail")
    async def flow() -> None: ...

    flow.options(queue="tenant-7")
    assert app.queue_names == ["mail"]


@pytest.mark.parametrize(
    ("queues", "says"), [("mail", "write queues=\\['mail'\\]"), (["a,b"], "without commas"), ([""], "1 to 200")]
)
def test_what_can_be_no_queue_is_not_declared(queues: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        App("sqlite:////nowhere/at/all.db", queues=queues)


def test_a_limit_has_one_scope(app: App) -> None:
    with pytest.raises(InvalidInput, match="name one of queue, workflow and group"):
        app.limits.declare(queue="mail", group="ada", running=1)
    with pytest.raises(InvalidInput, match="burst= goes with rate="):
        app.limits.declare(queue="mail", burst=1)


@pytest.mark.parametrize("key", ["a", "x" * 200, "a/b:c,d|e#f~g.h%i?j=k&l", "größe 東京 👩‍👧", " ", "*", "'; DROP"])
def test_keys_may_have_separators_and_any_script(app: App, key: str) -> None:
    @app.workflow
    async def flow() -> None: ...

    start = flow.options(group=key, session=key, unique=key, labels={key: key})
    made = start.make_start((), {})
    assert (made.group, made.session, made.unique, made.labels) == (key, key, Unique(key), {key: key})


@pytest.mark.parametrize("key", ["", "x" * 201, "a\nb", "a\0b", "\ud800", "\u2028", 7, None, ["a"]])
def test_keys_that_can_not_be_are_refused_by_the_start(app: App, key: Any) -> None:
    @app.workflow(group=lambda key: key)
    async def flow(key: Any) -> None: ...

    with pytest.raises(InvalidInput, match=r"^a group is named |can't be written"):
        flow.make_start((key,), {})
    if key is not None:
        for option in ("group", "session", "unique"):
            with pytest.raises(InvalidInput, match="is named"):
                flow.options(**{option: key})
        with pytest.raises(InvalidInput, match="the value of label a is named"):
            flow.options(labels={"a": key})


def test_a_huge_key_is_not_repeated_in_the_error(app: App) -> None:
    @app.workflow
    async def flow() -> None: ...

    with pytest.raises(InvalidInput, match="of 1,000,000") as error:
        flow.options(group="x" * 1_000_000)
    assert len(str(error.value)) < 200


def test_keys_are_made_of_the_arguments(app: App) -> None:
    @app.workflow(group=lambda customer, n: f"{customer}:{n % 2}", group_limit=3, group_keep=False, unique="one")
    async def flow(customer: str, n: int) -> None: ...

    made = flow.make_start(("ada",), {"n": 3})
    assert (made.group, made.group_limit, made.group_keep) == ("ada:1", 3, False)
    assert made.unique == Unique("one")
    assert flow.options(group="other").make_start(("ada", 3), {}).group == "other"


@pytest.mark.parametrize(("option", "what"), [("group", "group"), ("session", "session"), ("unique", "unique key")])
def test_a_function_for_a_key_that_raises_is_named(app: App, option: str, what: str) -> None:
    options: dict[str, Any] = {option: lambda order: order["customer"]}  # pyright: ignore[reportUnknownLambdaType]

    @app.workflow(**options)
    async def ship(order: dict[str, str]) -> None: ...

    with pytest.raises(
        InvalidInput, match=f"the function for a {what} of workflow ship raised KeyError: 'customer'"
    ) as error:
        ship.start({"id": "7"})
    assert isinstance(error.value.__cause__, KeyError)


@pytest.mark.parametrize("url", [None, b"sqlite://", Path("shop.db"), 7])
def test_a_store_is_named_by_a_text(url: Any) -> None:
    with pytest.raises(StoreUrlError, match=r"a store URL is a string such as 'sqlite:///name\.db', not "):
        App(url)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, Unique("k")),
        ({"on_conflict": "replace"}, Unique("k", OnConflict.REPLACE)),
        ({"debounce": 2}, Unique("k", OnConflict.DEBOUNCE, 2000)),
        ({"throttle": timedelta(minutes=1)}, Unique("k", OnConflict.THROTTLE, 60_000)),
    ],
)
def test_what_a_second_start_does(app: App, options: dict[str, Any], expected: Unique) -> None:
    @app.workflow
    async def flow() -> None: ...

    assert flow.options(unique="k", **options).make_start((), {}).unique == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"debounce": 2}, "go with unique="),
        ({"on_conflict": "replace"}, "go with unique="),
        ({"unique": "k", "debounce": 2, "throttle": 2}, "not both"),
        ({"unique": "k", "debounce": 0}, "longer than nothing"),
        ({"unique": "k", "debounce": 2, "delay": 1}, "leave out delay="),
        ({"unique": "k", "debounce": 2, "on_conflict": "replace"}, "leave out on_conflict="),
        ({"unique": "k", "on_conflict": "debounce"}, "is 'existing' or 'replace'"),
        ({"unique": "k", "throttle": -1}, "throttle must lie between 0"),
        ({"labels": {str(n): "x" for n in range(21)}}, "at most 20 labels"),
    ],
)
def test_options_that_can_not_be(app: App, options: dict[str, Any], message: str) -> None:
    @app.workflow
    async def flow() -> None: ...

    with pytest.raises(InvalidInput, match=message):
        flow.options(**options)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({}, "needs an age= or a count="),
        ({"count": -1}, "whole number of runs to keep"),
        ({"count": 1.5}, "whole number of runs to keep"),
        ({"age": -1}, "age must lie between 0"),
        ({"state": "running", "age": 1}, "state= is one of cancelled, failed, succeeded"),
    ],
)
def test_policies_of_retention_that_can_not_be(app: App, policy: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        app.retain(**policy)


def test_schedules_that_can_not_be(app: App) -> None:
    @app.workflow
    async def flow() -> None: ...

    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "cron"),
        ({"cron": "0 0 31 2 *"}, "31 2"),
        ({"cron": "* *"}, r"\* \*"),
        ({"cron": "0 9 * * *", "tz": "Mars/Phobos"}, "Mars/Phobos"),
        ({"cron": "0 9 * * *", "every": 5}, "one of"),
        ({"every": 0}, "every"),
        ({"cron": "0 9 * * *", "missed": "some"}, "missed= is one of skip, last, all"),
        ({"cron": "0 9 * * *", "overlap": "maybe"}, "overlap= is one of allow, skip, queue, cancel"),
        ({"at": datetime(2030, 1, 1)}, "has no time zone"),
        ({"cron": "0 9 * * *", "name": ""}, "a schedule is named"),
        ({"cron": "0 9 * * *", "name": "n" * 171}, "a schedule is named by at most 170 characters"),
    ]
    for options, message in wrong:
        with pytest.raises(InvalidInput, match=message):
            app.schedule(**options)(flow)
    with pytest.raises(DefinitionError, match=r"goes above @app\.workflow"):
        app.schedule("0 9 * * *")(cast(Any, len))
    assert app.schedules.declared == {}


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda app, flow: app.schedules.add("s", flow, 5), "cron is a line such as"),
        (lambda app, flow: app.schedules.add("s", flow, "0 9 * * *", tz=None), "tz is the name of a time zone"),
        (lambda app, flow: flow.start_batch(None), "start_batch takes the items"),
        (lambda app, flow: flow.start_many(7), "start_many takes the items"),
        (lambda app, flow: flow.start_batch([1], callback="w"), "callback= is a workflow of the app, not 'w'"),
        (lambda app, flow: flow.start_many([1, 2, 3], ids=["a", "b", "a"]), "the id 'a' for two different items"),
        (lambda app, flow: flow.options(labels=5), "labels are a dict"),
        (lambda app, flow: app.runs(labels=["a"]), "labels are a dict"),
        (lambda app, flow: app.runs(labels={"a": 1}), "the value of label a"),
        (lambda app, flow: app.runs(state=None), "there is no state None"),
        (lambda app, flow: app.runs(after="x"), "after= is the last run of a page"),
        (lambda app, flow: app.failures(limit=0), "limit is a whole number from 1 on"),
        (lambda app, flow: app.retry_failed(limit=-5), "limit is a whole number from 1 on"),
        (lambda app, flow: app.limits.history(limit="a"), "limit is a whole number from 1 on"),
        (lambda app, flow: app.limits.set(running=2**31), "running is a whole number from 1 to 2,147,483,647, not"),
        (lambda app, flow: app.limits.set(running=1, who="a\0"), "who made a change"),
        (lambda app, flow: app.limits.pause(who="x" * 201), "who made a change"),
        (lambda app, flow: app.workflow(accepts="12"), r"write accepts=\['12'\]"),
        (lambda app, flow: app.workflow(group_keep="no"), "group_keep is True or False"),
        (lambda app, flow: App(app.url, max_value_bytes=-1), "max_value_bytes is a whole number from 1 on, not -1"),
        (
            lambda app, flow: App(app.url, max_value_bytes=cast(Any, "x")),
            "max_value_bytes is a whole number from 1 on, not 'x'",
        ),
        (lambda app, flow: app.run("a").signal(""), "a signal's name is a string of 1 to 200 printable characters"),
        (lambda app, flow: app.run("a").signal(None), "a signal's name is a string .*, not None"),
        (lambda app, flow: wait_signal("a\n"), "a signal's name is a string"),
    ],
)
def test_what_can_not_be_is_told_in_words(app: App, wrong: Callable[[App, Any], object], told: str) -> None:
    @app.workflow
    async def flow(n: int) -> None: ...

    with pytest.raises(InvalidInput, match=told):
        wrong(app, flow)


def test_what_a_schedule_starts_has_no_id_or_time_of_its_own(app: App) -> None:
    @app.workflow
    async def flow() -> None: ...

    given: list[dict[str, Any]] = [{"id": "x"}, {"delay": 5}, {"at": datetime(2030, 1, 1, tzinfo=UTC)}]
    for options in given:
        with pytest.raises(InvalidInput, match=f"leave out {next(iter(options))}="):
            app.schedules.add("s", flow.options(**options), every=60)
    with pytest.raises(InvalidInput, match="starts a workflow of the app, not"):
        app.schedules.add("s", cast(Any, len), every=60)


def test_arguments_of_a_schedule_that_do_not_fit_name_it(app: App) -> None:
    @app.schedule(every=60, name="nightly", args=("x",))
    @app.workflow
    async def flow(n: int) -> None: ...

    with pytest.raises(DefinitionError, match="schedule 'nightly': "):
        _ = app.schedules.declared


def test_two_schedules_of_one_name(app: App) -> None:
    @app.schedule("0 9 * * *")
    @app.workflow
    async def flow() -> None: ...

    app.schedule("0 9 * * *")(flow)  # a module that is imported twice
    app.schedule("0 10 * * *", name="later")(flow)
    app.schedule(at=datetime(2030, 1, 1, tzinfo=UTC), name="once")(flow)
    with pytest.raises(DefinitionError, match="two schedules are named 'flow'"):
        app.schedule("0 11 * * *")(flow)
    assert sorted(app.schedules.declared) == ["flow", "later", "once"]
    assert app.schedules.declared["flow"].start.workflow == "flow"


def test_the_cause_of_a_failure_names_type_and_place() -> None:
    def fail() -> None:
        raise KeyError("order-7")

    with pytest.raises(KeyError) as raised:
        fail()
    line = fail.__code__.co_firstlineno + 1
    assert cause_of(raised.value) == f"KeyError in {__name__}:{line}"
    assert cause_of(raised_by(raised.value, "charge")) == "KeyError in charge"
    assert cause_of(ValueError("never raised")) == "ValueError"
    kept = StepFailed("charge#2", ErrorInfo("shop:CardRefused", "no"))
    assert cause_of(raised_by(kept, "charge")) == "CardRefused in charge"


def test_a_cause_names_the_users_code_and_not_a_library() -> None:
    import json

    with pytest.raises(json.JSONDecodeError) as raised:
        json.loads("{")
    assert cause_of(raised.value).startswith(f"JSONDecodeError in {__name__}:")
