"""The programs in `examples/` do what their headers say."""

from __future__ import annotations

import asyncio
import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from contextvars import Context
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from perdure import State, testing
from perdure.engine.points import Point
from perdure.errors import RunCancelled, RunFailed

from .pages import ROOT, SOURCE

pytestmark = pytest.mark.anyio

EXAMPLES = ROOT / "examples"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Imports an example afresh, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    for path in EXAMPLES.glob("*.py"):
        monkeypatch.delitem(sys.modules, path.stem, raising=False)
    return importlib.import_module


def test_every_example_is_tested() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert [path.name for path in EXAMPLES.glob("*.py") if f'example("{path.stem}")' not in text] == []


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_the_header_says_how_to_run_it(path: Path) -> None:
    header = path.read_text(encoding="utf-8").split('"""')[1]
    served = EXAMPLES / "order.py" if path.name == "web.py" else path
    assert f"perdure worker examples/{served.name}:app" in header


@pytest.mark.parametrize("path", sorted(set(EXAMPLES.glob("*.py")) - {EXAMPLES / "web.py"}), ids=lambda path: path.name)
def test_run_as_a_script_it_says_how_to_use_it(path: Path, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        [sys.executable, str(path)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert f"perdure worker examples/{path.name}:app" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


async def test_an_order_waits_two_days_and_for_an_approval(example: Callable[[str], Any]) -> None:
    shop = example("order")
    async with testing.run(shop.app) as sandbox:
        run = await shop.fulfil.start(shop.Order("7", 1250))
        await sandbox.advance(days=1)
        assert (await run.why()).startswith("waits for 20")
        await sandbox.advance(days=1, seconds=1)  # the retry took half a second
        assert "signal approve" in await run.why()
        await run.signal("approve", shop.Approval("ada"))
        receipt = await run.result()
        charge = (await run.history())[0]
    assert receipt == shop.Receipt(f"payment-{run.id}-7", "ada", len(b"Order 7: 12.50"))
    assert (charge.key, charge.attempts) == ("charge", 2)


async def test_an_order_goes_on_after_its_worker_was_killed(example: Callable[[str], Any]) -> None:
    shop = example("order")
    async with testing.run(shop.app) as sandbox:
        run = await shop.fulfil.start(shop.Order("7", 1250))
        await sandbox.advance(seconds=1)
        await sandbox.kill_worker()
        await sandbox.start_worker()
        await run.signal("approve", shop.Approval("ada"))
        await sandbox.advance(days=2)
        assert (await run.result()).approved_by == "ada"
        assert [event.attempts for event in await run.history() if event.key == "charge"] == [2]


async def test_an_order_that_costs_nothing_is_not_tried_again(example: Callable[[str], Any]) -> None:
    shop = example("order")
    async with testing.run(shop.app):
        run = await shop.fulfil.start(shop.Order("7", 0))
        with pytest.raises(RunFailed, match="costs nothing"):
            await run.result()
        assert [event.attempts for event in await run.history()] == [1]


async def test_an_order_ends_the_same_wherever_its_worker_dies(example: Callable[[str], Any]) -> None:
    shop = example("order")
    report = await testing.explore_crashes(
        shop.fulfil, shop.Order("7", 1250), signals=[("approve", shop.Approval("ada"))]
    )
    report.check()
    assert report.points > 10


@pytest.mark.parametrize("days", [0, 2.5])
async def test_an_expense_is_decided(days: float, example: Callable[[str], Any]) -> None:
    expenses = example("approval")
    decision = expenses.Decision(approved=True, by="ada")
    async with testing.run(expenses.app) as sandbox:
        run = await expenses.expense.start(expenses.Expense("grace", 4200, "a compiler"))
        await sandbox.advance(days=days)
        await run.signal("decision", decision)
        assert await run.result() == decision


async def test_an_expense_that_nobody_decides_is_refused(
    example: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    expenses = example("approval")
    async with testing.run(expenses.app) as sandbox:
        run = await expenses.expense.start(expenses.Expense("grace", 4200, "a compiler"))
        await sandbox.advance(timedelta(days=3))
        assert await run.result() == expenses.Decision(approved=False, by="deadline")
    assert capsys.readouterr().out.splitlines() == [
        "to manager: grace would like 42.00 for a compiler",
        "to manager: grace is still waiting",
        "to grace: refused by deadline",
    ]


async def test_words_are_counted_with_one_slot(example: Callable[[str], Any], tmp_path: Path) -> None:
    files = example("files")
    for number in range(20):
        (tmp_path / f"{number}.txt").write_text("word " * number)
    async with testing.run(files.app, concurrency=1):
        counts = await files.count_words.run(str(tmp_path))
        children = await files.app.runs(workflow="count_file")
    assert [count.words for count in counts] == list(range(19, -1, -1))
    assert len(children) == 20


async def test_a_trip_is_booked(example: Callable[[str], Any]) -> None:
    saga = example("saga")
    async with testing.run(saga.app):
        trip = await saga.book_trip.run("Reykjavik", car=True)
    assert trip.flight.startswith("flight-Reykjavik-") and trip.car.startswith("car-Reykjavik-")


async def test_a_trip_without_a_car_is_taken_back(example: Callable[[str], Any]) -> None:
    saga = example("saga")
    async with testing.run(saga.app):
        run = await saga.book_trip.start("Venice", car=True)
        with pytest.raises(RunFailed, match="no car in Venice"):
            await run.result()
        keys = [event.key for event in await run.history()]
    assert keys == ["book", "book#2", "book#3", "cancel_booking", "cancel_booking#2", "cancel_booking#3"]
    assert saga.agency.bookings == {}


async def test_a_trip_is_taken_back_wherever_its_worker_dies(example: Callable[[str], Any]) -> None:
    saga = example("saga")
    left: list[str] = []
    report = await testing.explore_crashes(
        saga.book_trip, "Venice", True, before=lambda: left.extend(saga.agency.bookings)
    )
    report.check()
    assert report.points > 10
    assert [*left, *saga.agency.bookings] == []


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("what", ["flight", "hotel", "car"])
async def test_a_trip_that_is_cancelled_is_taken_back(what: str, after: bool, example: Callable[[str], Any]) -> None:
    """The cancellation comes while a step is at work: before its effect, or after it."""
    saga = example("saga")

    class Slow(saga.Agency):
        async def book(self, reference: str, asked: str, to: str) -> None:
            if after or asked != what:
                await super().book(reference, asked, to)
            if asked == what:
                await run.cancel("the weather")
                await asyncio.Event().wait()

    saga.agency = Slow()
    async with testing.run(saga.app):
        run = await saga.book_trip.start("Reykjavik", car=True)
        with pytest.raises(RunCancelled):
            await run.result()
    assert saga.agency.bookings == {}


async def test_a_trip_is_whole_or_taken_back_wherever_it_is_cancelled(example: Callable[[str], Any]) -> None:
    saga = example("saga")
    ends: list[tuple[State, int]] = []
    asked = True
    while asked:
        passed, asked = 0, False
        cancelling: list[asyncio.Future[State]] = []

        def tap(point: Point, run_id: str, key: str, to: list[Any] = cancelling) -> None:
            nonlocal passed, asked
            passed += 1
            if passed == len(ends) + 1:
                asked = True
                # As somebody else: here it would be the run that cancels itself.
                to.append(Context().run(lambda: asyncio.ensure_future(saga.app.run(run_id).cancel())))

        saga.agency.bookings.clear()
        async with testing.Sandbox(saga.app, testing.VirtualClock(), tap=tap) as sandbox:
            run = await saga.book_trip.start("Reykjavik", car=True)
            await sandbox.settle()
            await asyncio.gather(*cancelling)
            await sandbox.settle()
            ends.append(((await run.status()).state, len(saga.agency.bookings)))
    assert set(ends) == {(State.CANCELLED, 0), (State.SUCCEEDED, 3)}
    assert len(ends) > 6


async def test_a_log_is_followed_over_several_histories(
    example: Callable[[str], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    poller = example("poller")
    log = tmp_path / "app.log"
    async with testing.run(poller.app) as sandbox:
        run = await poller.follow.start(str(log))
        log.write_text("INFO well\nERROR out of coffee\nERROR half a li")
        await sandbox.advance(minutes=150)
        with log.open("a") as file:
            file.write("ne\n")
        await sandbox.advance(minutes=1)
        history = await run.history()
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result()
    assert capsys.readouterr().out.splitlines() == ["ERROR out of coffee", "ERROR half a line"]
    assert len(history) < 2 * poller.ROUNDS


def test_files_are_copied_without_an_event_loop(example: Callable[[str], Any], tmp_path: Path) -> None:
    program = example("backup")
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "deep").mkdir(parents=True)
    (source / "a.txt").write_text("1")
    (source / "deep" / "b.txt").write_text("22")
    with testing.run(program.app):
        run = program.backup.start(str(source), str(target)).wait()
        assert run.result().wait() == 3
        keys = {event.key for event in run.history().wait()}
    assert (target / "deep" / "b.txt").read_text() == "22"
    assert keys == {"list_files", "copy[a.txt]", "copy[deep/b.txt]"}


def test_a_backup_is_a_script_beside_a_worker(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-m", "perdure", "worker", str(EXAMPLES / "backup.py:app")]
    worker = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE)
    try:
        script = [sys.executable, str(EXAMPLES / "backup.py"), str(EXAMPLES), "copies"]
        done = subprocess.run(
            script, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
    finally:
        worker.terminate()
        worker.communicate(timeout=30)
    assert "bytes copied" in done.stdout, done.stderr
    assert (tmp_path / "copies" / "order.py").read_text() == (EXAMPLES / "order.py").read_text()


def test_a_web_application_starts_shows_and_approves_an_order(example: Callable[[str], Any]) -> None:
    web = example("web")
    shop = example("order")

    def ask(method: str, path: str) -> tuple[str, str]:
        told: list[str] = []
        environ = {"REQUEST_METHOD": method, "PATH_INFO": path}
        body = b"".join(web.web(environ, lambda status, _: told.append(status)))
        return told[0], body.decode().strip()

    with testing.run(shop.app) as sandbox:
        assert ask("GET", "/orders/7")[0] == "404 Not Found"
        assert ask("POST", "/orders/7") == ("201 Created", "run order-7")
        assert ask("POST", "/orders/7") == ("200 OK", "run order-7")
        sandbox.advance(seconds=6).wait()
        assert "signal approve" in ask("GET", "/orders/7")[1]
        assert ask("POST", "/orders/7/approve") == ("202 Accepted", "approved")
        sandbox.settle().wait()
        assert shop.app.run("order-7").status().wait().state is State.SUCCEEDED
        assert ask("POST", "/orders/7/approve")[0] == "409 Conflict"


async def test_messages_to_a_customer_keep_their_order_and_the_rate(example: Callable[[str], Any]) -> None:
    customers = example("customers")
    sent: list[str] = []
    customers.print = sent.append
    async with testing.run(customers.app) as sandbox:
        await customers.notify.start_many([(who, str(n)) for n in range(10) for who in ("ada", "bob")])
        await sandbox.settle()
        assert len(sent) == 10  # the burst
        await sandbox.advance(minutes=1)
        assert len(sent) == 20
        for who in ("ada", "bob"):
            assert [text for text in sent if text.startswith(f"to {who}")] == [f"to {who}: {n}" for n in range(10)]
        for items in (1, 2, 3):
            await customers.basket_changed("ada", items)
            await sandbox.advance(minutes=30)
        await sandbox.advance(minutes=31)
        assert sent[20:] == ["to ada: 3 things are in your basket"]


async def test_a_report_is_made_every_night(example: Callable[[str], Any]) -> None:
    nightly = example("nightly")
    async with testing.run(nightly.app, start=datetime(2030, 3, 29, 12, tzinfo=UTC)) as sandbox:
        await sandbox.advance(days=4)
        runs = await nightly.app.runs(workflow="nightly", state="succeeded")
        # Clocks go forward on the 31st: half past two does not exist then.
        assert [run.id for run in reversed(runs)] == [
            f"nightly@2030-{night}Z"
            for night in ("03-30T01:30:00", "03-31T01:00:00", "04-01T00:30:00", "04-02T00:30:00")
        ]
        assert {(run.progress["done"], run.progress["note"]) for run in runs} == {(3, "1700 in all")}
