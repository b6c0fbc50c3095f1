"""Slots: who has one, who leaves it to others, and who gets it next."""

from __future__ import annotations

import asyncio

import pytest

from perdure.engine.slots import MOST_RESTING, Slots

pytestmark = pytest.mark.anyio


def slots(limit: int, runs: int = 0) -> Slots:
    made = Slots(limit, lambda: None)
    for _ in range(runs):
        made.enter()
    return made


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_one_that_rests_makes_room_and_takes_it_again() -> None:
    here = slots(1, 1)
    assert here.free == 0
    here.rest(1)
    assert here.free == 1 and here.rests(1)
    await here.take(1)
    assert here.free == 0 and not here.rests(1)


async def test_those_that_come_back_are_first_and_in_their_order() -> None:
    here = slots(1, 2)
    for token in (1, 2):
        here.rest(token)
    here.enter()  # a third one, that was claimed meanwhile
    order: list[int] = []

    async def back(token: int) -> None:
        await here.take(token)
        order.append(token)

    tasks = [asyncio.create_task(back(token)) for token in (2, 1)]
    await turn()
    assert order == [] and here.free == 0
    here.leave(3)
    await turn()
    assert order == [2] and here.free == 0
    here.leave(2)
    await asyncio.gather(*tasks)
    assert order == [2, 1]
    here.leave(1)
    assert here.free == 1


async def test_two_steps_of_one_run_need_one_slot() -> None:
    here = slots(1, 1)
    here.rest(1)
    here.enter()
    tasks = [asyncio.create_task(here.take(1)) for _ in range(2)]
    await turn()
    here.leave(2)
    await asyncio.gather(*tasks)
    assert here.free == 0
    here.leave(1)
    assert here.free == 1


async def test_one_that_gives_up_while_it_waits_for_a_slot_takes_none() -> None:
    here = slots(1, 1)
    here.rest(1)
    here.enter()
    task = asyncio.create_task(here.take(1))
    await turn()
    task.cancel()
    here.leave(2)
    assert here.free == 1 and here.rests(1)


def test_there_is_an_end_to_those_that_are_kept_beside_the_slots() -> None:
    here = slots(2, MOST_RESTING + 2)
    for token in range(MOST_RESTING + 2):
        here.rest(token)
    assert here.free == 0
    here.leave(0)
    assert here.free == 1 - 1  # two that don't rest are left, and one place to rest
    here.rest(MOST_RESTING)
    assert here.free == 1
