"""What the SQL functions take is what the Python client takes: one table of cases for both."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from perdure.clock import epoch_millis, millis
from perdure.engine.definitions import function_name
from perdure.errors import DefinitionError, InvalidInput
from perdure.options import check_id, check_name, check_queue, check_signal
from servers.postgres import migrated_postgres

SEEN = ["a", "order-7", "a b", "ä", "名", "🙂", "a,b", "a/b", "a#b", "a~b", "[a]", "x" * 200, "🙂" * 200]
UNSEEN = ["", "x" * 201, *map(chr, (0xA0, 0xAD, 0x2028, 0x202E, 0x200B, 0x3000, 0xE000, 0xFEFF, 0xFFFE, 0xE0041))]
NAMES = [*SEEN, *UNSEEN, "a\nb", "\t", "\x7f", "\x85"]


def edges() -> list[str]:
    """The first and the last of each row of characters that Python calls the same: what there is of them in Unicode
    already, since whether the others can be seen no server knows before its time."""
    found: list[str] = []
    before = ""
    for number in range(1, 0x110000):
        kind = unicodedata.category(chr(number))
        if kind != before:
            found += [chr(each) for each in (number - 1, number) if each]
        before = kind
    return [each for each in found if unicodedata.category(each) not in ("Cn", "Cs")]


def taken(check: Callable[[str], object], name: str) -> bool:
    try:
        check(name)
    except (InvalidInput, DefinitionError):
        return False
    return True


@pytest.fixture(scope="module")
def connection() -> Any:
    with psycopg.connect(migrated_postgres(__name__), options="-c search_path=perdure", autocommit=True) as opened:
        opened.execute(
            """CREATE FUNCTION pg_temp.taken(called text, given text) RETURNS boolean LANGUAGE plpgsql AS $$
            BEGIN
                EXECUTE format('SELECT %s', called) USING given;
                RETURN true;
            EXCEPTION WHEN SQLSTATE 'PD020' THEN
                RETURN false;
            END $$"""
        )
        yield opened


def sql_takes(connection: Any, call: str, given: list[str]) -> dict[str, bool]:
    rows = connection.execute("SELECT e, pg_temp.taken(%s, e) FROM unnest(%s::text[]) AS e", [call, given]).fetchall()
    return dict(rows)


KINDS: list[tuple[str, Callable[[str], object]]] = [
    ("id => $1", check_id),
    ("queue => $1", check_queue),
    ("group_key => $1", lambda name: check_name(name, "a group")),
    ("session_key => $1", lambda name: check_name(name, "a session")),
    ("unique_key => $1", lambda name: check_name(name, "a unique key")),
    ("version => $1", lambda name: check_name(name, "a version")),
    ("labels => jsonb_build_object($1, 'x')", lambda name: check_name(name, "a label")),
    ("labels => jsonb_build_object('x', $1)", lambda name: check_name(name, "a label")),
]


@pytest.mark.parametrize(("argument", "check"), KINDS, ids=[argument for argument, _ in KINDS])
def test_names(connection: Any, argument: str, check: Callable[[str], object]) -> None:
    assert sql_takes(connection, f"start('w', {argument})", NAMES) == {name: taken(check, name) for name in NAMES}


def test_names_of_workflows_and_signals(connection: Any) -> None:
    connection.execute("SELECT start('w', id => 'hears')")
    workflows = {name: taken(lambda name: function_name(edges, name, "workflow"), name) for name in NAMES}
    assert sql_takes(connection, "start($1)", NAMES) == workflows
    signals = {name: taken(check_signal, name) for name in NAMES}
    assert sql_takes(connection, "signal('hears', $1)", NAMES) == signals


@pytest.mark.parametrize(
    ("call", "check"),
    [("check_id('it', $1)", check_id), ("check_name('it', $1)", lambda name: check_name(name, "it"))],
)
def test_every_kind_of_character(connection: Any, call: str, check: Callable[[str], object]) -> None:
    every = edges()
    assert len(every) > 1000
    wrong = sql_takes(connection, call, every).items() ^ {each: taken(check, each) for each in every}.items()
    assert not wrong, sorted(f"U+{ord(each):04X}" for each, _ in wrong)


def by_sql(connection: Any, call: str, given: object) -> int | None:
    """What a call gives, or None where it refuses that."""
    try:
        return connection.execute(f"SELECT {call}", [given]).fetchone()[0]
    except psycopg.Error as error:
        if error.sqlstate != "PD020":
            raise
        return None


def by_python(call: Callable[[], int]) -> int | None:
    try:
        return call()
    except InvalidInput:
        return None


HUNDRED_YEARS = timedelta(seconds=3_200_000_000)


@pytest.mark.parametrize(
    "duration",
    [
        *(timedelta(0), timedelta(microseconds=1), timedelta(milliseconds=1), timedelta(seconds=1.0005)),
        *(HUNDRED_YEARS, HUNDRED_YEARS + timedelta(milliseconds=1), timedelta(microseconds=-1)),
        timedelta(days=365_000),
    ],
)
def test_durations(connection: Any, duration: timedelta) -> None:
    given = f"{duration // timedelta(microseconds=1)} microseconds"
    call = "checked_ms('it', extract(epoch FROM %s::interval), '')"
    assert by_sql(connection, call, given) == by_python(lambda: millis(duration, "it"))


@pytest.mark.parametrize(
    "moment",
    [
        datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC),
        datetime(2026, 5, 1, 12, 0, 0, 1, tzinfo=UTC), datetime(2999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime(3000, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC),
    ],
)  # fmt: skip
def test_times(connection: Any, moment: datetime) -> None:
    call = "checked_at('it', extract(epoch FROM %s::timestamptz), '')"
    assert by_sql(connection, call, moment) == by_python(lambda: epoch_millis(moment, "it"))


@pytest.mark.parametrize(
    "argument",
    [
        *("at => '20000-01-01'", "at => '1969-01-01'", "at => '-infinity'", "delay => '100000 years'"),
        *("delay => '1000 years'", "timeout => '1000 years'", "unique_key => 'u', debounce => '1000 years'"),
        "unique_key => 'u', throttle => '1000 years'",
    ],
)
def test_times_that_nobody_could_read(connection: Any, argument: str) -> None:
    with pytest.raises(psycopg.Error, match="must lie between") as caught:
        connection.execute(f"SELECT start('w', {argument})")
    assert caught.value.sqlstate == "PD020"
