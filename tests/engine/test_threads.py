"""Threads: no more than the limit, used again, and every item is run exactly once."""

from __future__ import annotations

import contextvars
import threading
import time
from collections import Counter
from concurrent.futures import Future, wait

import pytest

from perdure.engine import threads as module
from perdure.engine.threads import ThreadLayers, Threads

GUARD = 30.0
HERE = contextvars.ContextVar("here", default="nowhere")


def test_an_item_runs_in_the_context_that_it_came_with() -> None:
    context = contextvars.Context()
    context.run(HERE.set, "there")
    assert Threads(1, "t").submit(HERE.get, context).result(GUARD) == "there"


def test_an_error_is_the_future_s_and_the_thread_goes_on() -> None:
    threads = Threads(1, "t")

    def fail() -> None:
        raise SystemExit("stop")

    with pytest.raises(SystemExit, match="stop"):
        threads.submit(fail, contextvars.Context()).result(GUARD)
    assert threads.submit(lambda: 7, contextvars.Context()).result(GUARD) == 7


def test_there_are_no_more_threads_than_the_limit_and_the_rest_waits_its_turn() -> None:
    threads, gate, lock = Threads(3, "t"), threading.Event(), threading.Lock()
    running, most = 0, 0
    full = threading.Semaphore(0)

    def work() -> str:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        full.release()
        gate.wait(GUARD)
        with lock:
            running -= 1
        return threading.current_thread().name

    futures = [threads.submit(work, contextvars.Context()) for _ in range(20)]
    for _ in range(3):
        assert full.acquire(timeout=GUARD)
    gate.set()
    assert {future.result(GUARD) for future in futures} == {"t"}
    assert most == 3


def test_an_idle_thread_is_used_again() -> None:
    threads = Threads(10, "t")
    idents: set[int] = set()
    for _ in range(50):
        idents.add(threads.submit(threading.get_ident, contextvars.Context()).result(GUARD))
        # The result is there a moment before its thread is idle.
        until = time.monotonic() + GUARD
        while not threads._idle:
            assert time.monotonic() < until
    assert len(idents) == 1


def test_an_item_cancelled_while_it_waits_is_not_run() -> None:
    threads, gate = Threads(1, "t"), threading.Event()
    ran: list[int] = []
    first = threads.submit(lambda: gate.wait(GUARD), contextvars.Context())
    second = threads.submit(lambda: ran.append(2), contextvars.Context())
    third = threads.submit(lambda: ran.append(3), contextvars.Context())
    assert second.cancel()
    gate.set()
    assert first.result(GUARD)
    third.result(GUARD)
    assert ran == [3]


@pytest.mark.parametrize("idle", [0.0, 0.0002])
@pytest.mark.parametrize("limit", [1, 3, 16])
def test_under_stress_every_item_runs_once(monkeypatch: pytest.MonkeyPatch, idle: float, limit: int) -> None:
    """Threads leave as soon as they are idle, while items come from several sides: the one promised to a thread that
    is about to leave is among them."""
    monkeypatch.setattr(module, "_IDLE", idle)
    threads = Threads(limit, "t")
    ran: Counter[tuple[int, int]] = Counter()
    lock = threading.Lock()

    def item(key: tuple[int, int]) -> tuple[int, int]:
        with lock:
            ran[key] += 1
        return key

    def submitter(number: int) -> None:
        for count in range(300):
            key = (number, count)
            future: Future[tuple[int, int]] = threads.submit(lambda key=key: item(key), contextvars.Context())
            if count % 3:  # now and then all is idle, now and then there is a queue
                assert future.result(GUARD) == key
            else:
                pending.append(future)

    pending: list[Future[tuple[int, int]]] = []
    sides = [threading.Thread(target=submitter, args=(number,)) for number in range(4)]
    for side in sides:
        side.start()
    for side in sides:
        side.join(GUARD)
    _, undone = wait(pending, GUARD)
    assert not undone
    assert ran.total() == len(ran) == 1200
    assert threads._backlog == 0 and 0 <= threads._threads <= limit


def test_each_depth_has_threads_of_its_own_so_that_waiting_for_what_is_deeper_ends() -> None:
    layers = ThreadLayers(1)

    def outer() -> int:
        return layers.at(1).submit(lambda: 7, contextvars.Context()).result(GUARD)

    assert layers.at(0).submit(outer, contextvars.Context()).result(GUARD) == 7
    assert layers.at(0) is layers.at(0) is not layers.at(1)
