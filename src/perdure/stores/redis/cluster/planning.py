"""What an exchange says to each partition."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from msgspec.structs import replace

from perdure.errors import InvalidInput, StoreUnavailable
from perdure.model import Fire, Millis, Start, WaitFor
from perdure.stores.exchange import Exchange, Existed, Ref, Save, Settle, Watch
from perdure.stores.redis import timetable
from perdure.stores.redis.cluster import waits
from perdure.stores.redis.cluster.places import Places, Placing
from perdure.stores.redis.cluster.rounds import Rounds
from perdure.stores.redis.exchange import WATCHED

_Items: TypeAlias = defaultdict[str, list[Any]]
"""What is said to one partition, by the names that the parts of an exchange have."""


@dataclass
class Plan:
    """What is to be said to each partition."""

    says: dict[int, Exchange] = field(default_factory=dict[int, Exchange])
    checks: dict[int, list[tuple[Ref, int]]] = field(default_factory=dict[int, list[tuple[Ref, int]]])
    """Claims of which a partition is asked only whether they still own their runs."""
    over: dict[tuple[int, str], bool] = field(default_factory=dict[tuple[int, str], bool])
    """Of waits for runs of other partitions, whether they are true."""
    far: dict[int, set[str]] = field(default_factory=dict[int, set[str]])
    """Of runs that are to be parked, by their tokens, those that they wait for and could not be put down at."""
    look_again: Millis = 0
    """When those look again."""
    watches: list[Watch] = field(default_factory=list[Watch])
    """For runs of other partitions."""
    placing: dict[int, Placing] = field(default_factory=dict[int, Placing])
    existed: list[Existed] = field(default_factory=list[Existed])
    unsaid: set[int] = field(default_factory=set[int])
    """Tokens of which nothing is said now, since that takes a partition which is out of reach."""

    def did_not_arrive(self, partition: int) -> None:
        """A partition did not take, or may not have taken, what is said to it."""
        said = self.says.get(partition)
        if said is not None:
            self.unsaid.update(each.token for each in (*said.saves, *said.settles, *said.told))


class Planner:
    """Plans exchanges."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._parts = places.parts

    async def plan(self, rounds: Rounds, said: Exchange) -> Plan:
        """Divides what is said among partitions, and finds out where runs are to be made, and are waited for."""
        plan, out = Plan(look_again=rounds.now() + waits.PUT_OFF), self._parts.reach.out()
        parts: dict[int, _Items] = defaultdict(lambda: defaultdict(list))
        for name, items in (
            ("saves", said.saves),
            ("settles", said.settles),
            ("watches", said.watches),
            ("told", said.told),
        ):
            for item in items:
                partition, ref = inner(item.ref)
                if partition not in out:
                    parts[partition][name].append(replace(item, ref=ref))
                elif name != "watches":
                    plan.unsaid.add(item.token)
        for fire in said.fires:
            partition = await self._schedule(rounds, fire.name)
            if partition is not None and partition not in out:  # Otherwise it is told of again.
                parts[partition]["fires"].append(fire)
        await self._part_watches(parts, plan)
        for partition, items in parts.items():
            await self._place(partition, items, plan)
        await self._put_down(parts, plan)
        silent = Exchange(worker=said.worker, serial=said.serial, skips=said.skips, draining=said.draining)
        for partition, items in parts.items():
            _leave_unsaid(items, plan)
            if any(items.values()) or partition in plan.checks:
                plan.says[partition] = replace(silent, **{name: each for name, each in items.items() if each})
        everywhere = {*range(len(self._parts.sessions))} - out
        if said.draining:
            plan.says |= {partition: plan.says.get(partition, silent) for partition in everywhere}
        if said.owned is not None:
            # What a partition has beside these it gives back, so all are asked; but for what was claimed and not heard.
            owned: defaultdict[int, list[tuple[Ref, int]]] = defaultdict(list)
            for outer_ref, token in said.owned:
                partition, ref = inner(outer_ref)
                owned[partition].append((ref, token))
            for partition in everywhere - rounds.unheard.keys():
                plan.says[partition] = replace(plan.says.get(partition, silent), owned=owned[partition])
        return plan

    async def leave_out(
        self, partition: int, saves: list[Save], fires: list[Fire], placing: Placing, plan: Plan
    ) -> None:
        """Takes out the starts of runs that are in other partitions already."""
        existing = await placing.existing()
        if not existing:
            return
        for n, save in reversed([*enumerate(saves)]):
            if save.starts is not None and (there := existing.get(save.starts.id)) is not None:
                plan.existed.append(Existed(save.token, save.checkpoint.key, there.id, there.same))
                if there.same:
                    saves[n] = replace(save, starts=None)
                else:
                    del saves[n]
        for n, fire in enumerate(fires):
            fires[n] = replace(fire, starts=[start for start in fire.starts if start.id not in existing])

    async def _schedule(self, rounds: Rounds, name: str) -> int | None:
        """The partition of a schedule; None when that can't be found out."""
        if name not in rounds.schedules:
            try:
                for partition, found in enumerate(await self._parts.each(timetable.listed)):
                    rounds.schedules.update({record.schedule.name: partition for record in found})
            except StoreUnavailable:
                return None
        return rounds.schedules.get(name, self._parts.home(name))

    async def _part_watches(self, parts: Mapping[int, _Items], plan: Plan) -> None:
        """Takes out watches for runs of other partitions, for those that can't be located now, and what is more than a
        script looks at."""
        for_runs = [each for items in parts.values() for each in items["watches"] if each.wait.what is WaitFor.RUN]
        if not for_runs:
            return
        at = await self._places.in_reach({each.wait.target for each in for_runs})
        for partition, items in parts.items():
            here: list[Watch] = []
            for each in items["watches"]:
                apart = at.get(each.wait.target) != partition or len(here) >= WATCHED
                if each.wait.what is WaitFor.RUN and apart:
                    plan.watches.append(replace(each, ref=outer(partition, each.ref)))
                    plan.checks.setdefault(partition, []).append((each.ref, each.token))
                else:
                    here.append(each)
            items["watches"] = here

    async def _place(self, partition: int, items: _Items, plan: Plan) -> None:
        """Finds out where the runs are to be made that checkpoints and schedules start: here, unless they are there."""
        saves: list[Save] = []
        for save in items["saves"]:
            if save.starts is not None:
                try:
                    self._parts.target(save.starts, partition)
                except InvalidInput as error:
                    plan.existed.append(Existed(save.token, save.checkpoint.key, save.starts.id, False, str(error)))
                    plan.checks.setdefault(partition, []).append((save.ref, save.token))
                    continue
            saves.append(save)
        items["saves"] = saves
        out = self._parts.reach.out()
        if out:
            plan.unsaid.update(save.token for save in saves if save.starts and self._parts.home(save.starts.id) in out)
            items["fires"] = [
                fire for fire in items["fires"] if not any(self._parts.home(start.id) in out for start in fire.starts)
            ]
            _leave_unsaid(items, plan)
        starts: dict[str, Start] = {save.starts.id: save.starts for save in items["saves"] if save.starts is not None}
        for fire in items["fires"]:
            starts.update({start.id: start for start in fire.starts})
        if not starts:
            return
        placing = Placing(self._places, [(start, partition) for start in starts.values()], of_runs=True)
        try:
            await placing.begin()
            await self.leave_out(partition, items["saves"], items["fires"], placing, plan)
        except StoreUnavailable:
            plan.unsaid.update(save.token for save in items["saves"] if save.starts is not None)
            items["fires"] = []
        else:
            plan.placing[partition] = placing

    async def _put_down(self, parts: Mapping[int, _Items], plan: Plan) -> None:
        """Puts runs that are to be parked down at those of other partitions that they wait for."""
        parked: dict[int, list[Settle]] = {
            partition: [each for each in items["settles"] if waits.targets_of(each)]
            for partition, items in parts.items()
        }
        targets = {target for settles in parked.values() for each in settles for target in waits.targets_of(each)}
        if not targets:
            return
        near = await self._places.in_reach(targets)
        _note_far(parked, lambda _, target: target not in near, plan)
        try:
            plan.over = await waits.put_down(self._places, parked, near)
        except StoreUnavailable:
            _note_far(parked, lambda partition, target: near.get(target) != partition, plan)


def _note_far(parked: Mapping[int, Iterable[Settle]], is_far: Callable[[int, str], bool], plan: Plan) -> None:
    """Takes note of what runs wait for and could not be put down at."""
    for partition, settles in parked.items():
        for each in settles:
            far = {target for target in waits.targets_of(each) if is_far(partition, target)}
            if far:
                plan.far[each.token] = far


def outer(partition: int, ref: Ref) -> Ref:
    """How a run is called outside: with its partition."""
    return f"{partition}:{ref}"


def inner(ref: Ref) -> tuple[int, Ref]:
    """The partition of a run, and how it is called there."""
    partition, _, run_id = str(ref).partition(":")
    return (int(partition), run_id) if partition.isdigit() else (0, ref)


def _leave_unsaid(items: _Items, plan: Plan) -> None:
    """Takes out all that is said of runs of which nothing is to be said now."""
    for name in ("saves", "settles", "told"):
        items[name] = [each for each in items[name] if each.token not in plan.unsaid]
