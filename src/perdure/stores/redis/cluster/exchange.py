"""One exchange of a worker: with the partitions that it has something to say to, or that may have something for it."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from perdure.errors import StoreUnavailable
from perdure.stores.base import Registration
from perdure.stores.exchange import CLAIM_BYTES, CLAIM_LIMIT, Claim, Exchange, Exchanged, Seen
from perdure.stores.redis import worker
from perdure.stores.redis.claims import token_parts, unseen
from perdure.stores.redis.cluster import waits
from perdure.stores.redis.cluster.places import Places
from perdure.stores.redis.cluster.planning import Plan, Planner, outer
from perdure.stores.redis.cluster.rounds import Rounds, Unheard, Wakes
from perdure.stores.redis.exchange import WIDTH, Reply, ask_script, asked_of, compare, told_by
from perdure.stores.redis.scripts import load
from perdure.stores.redis.session import Session, encode
from perdure.stores.redis.starts import ask

_TURNS = 4
"""How often partitions are asked within one exchange, at most, until the slots are full or there is no more."""
_SERIALS = 1 << 32
"""There are so many serials in a token. Who has used them up claims nothing more: see `Store.parts`."""


class _Heard(Struct):
    """What came of an exchange with one partition."""

    reply: Reply
    exchanged: Exchanged


class Exchanger:
    """The exchanges of all workers of a store."""

    def __init__(self, places: Places, wakes: Wakes) -> None:
        self._places = places
        self._parts = places.parts
        self._planner = Planner(places)
        self._wakes = wakes
        self._rounds: dict[int, Rounds] = {}
        self._is_one = len(self._parts.sessions) == 1

    def begin(self, number: int, registration: Registration) -> None:
        """An incarnation begins."""
        self._rounds[number] = Rounds(self._wakes, self._parts.now, registration)

    def end(self, number: int) -> None:
        """It is gone."""
        self._rounds.pop(number, None)

    async def exchange(self, said: Exchange) -> Exchanged:
        """See `Store.exchange`."""
        rounds = self._rounds.get(said.worker) or Rounds(self._wakes, self._parts.now)
        if not said.repeated:
            rounds.last = {}
        plan = await self._planner.plan(rounds, said)
        heard: list[tuple[int, _Heard]] = []
        if said.repeated:
            heard = await self._repeat(rounds, said, plan)
        if said.slots or not said.repeated:
            for turn in range(said.repeated, 1 + said.repeated if self._is_one else _TURNS):
                taken = sum(len(each.exchanged.claims) for _, each in heard) + rounds.reserved()
                slots = max(0, min(said.slots, CLAIM_LIMIT) - taken)
                left = CLAIM_BYTES - sum(each.reply.bytes for _, each in heard)
                if turn and (slots <= 0 or left <= 0):
                    break
                found = await self._turn(rounds, said, plan, slots, left, heard if turn else None)
                heard += found
                if not found:
                    break
        return await self._merge(rounds, said, plan, heard)

    # --- asking

    async def _turn(
        self,
        rounds: Rounds,
        said: Exchange,
        plan: Plan,
        slots: int,
        left: int,
        before: Sequence[tuple[int, _Heard]] | None,
    ) -> list[tuple[int, _Heard]]:
        """Asks those whose turn it is, at the same time; `before` is what was heard in earlier turns of this exchange.

        Raises the first error if nothing was heard, or something of the same partition in an earlier turn."""
        out = self._parts.reach.out()
        hot = [partition for partition in rounds.hot() if partition not in rounds.unheard and partition not in out]
        if before is not None:
            hot = [each for each in hot if rounds.has_more(each) or each not in rounds.last]
        elif not hot and not plan.says:
            hot = [rounds.stalest(out)]
        firsts = {partition: claim.number + 1 for partition, each in before or () for claim in each.reply.claims}
        wants = hot if len(hot) <= slots or not slots else hot[:slots]
        share = rounds.share(slots, wants) if slots else {}
        rooms = rounds.rooms(hot)
        says = {} if before is not None else plan.says
        asked = [*dict.fromkeys((*says, *hot))]
        again = [] if before is not None else [partition for partition in rounds.unheard if partition not in out]
        silent = Exchange(worker=said.worker, serial=said.serial, skips=said.skips)
        calls = [
            self._ask(
                rounds,
                partition,
                replace(
                    says.get(partition, silent),
                    serial=self._serial(said.serial, partition),
                    slots=share.get(partition, 0),
                    after=said.after if self._is_one else rounds.parts[partition].after,
                ),
                plan,
                rooms=rooms.get(partition, 0),
                bytes=left // max(1, len(share)),
                first=firsts.get(partition, 0) if before is not None else None,
            )
            for partition in asked
        ]
        for partition in asked:
            rounds.last[partition] = rounds.last.get(partition, 0) + share.get(partition, 0)
        results = await asyncio.gather(
            *calls, *(self._hear_again(rounds, partition, said, plan) for partition in again), return_exceptions=True
        )
        heard: list[tuple[int, _Heard]] = []
        failed: list[tuple[int, StoreUnavailable]] = []
        for partition, result in zip((*asked, *again), results, strict=True):
            if isinstance(result, _Heard):
                heard.append((partition, result))
            elif isinstance(result, StoreUnavailable):
                failed.append((partition, result))
            elif result is not None:
                raise result
        self._lose(rounds, failed)
        for partition, error in failed:
            slots = share.get(partition, 0)
            if not (heard or before) or (before and slots):
                raise error
            if before is None:
                plan.did_not_arrive(partition)
                if slots:
                    rounds.unheard[partition] = Unheard(said.serial, slots)
        return heard

    def _lose(self, rounds: Rounds, failed: Iterable[tuple[int, StoreUnavailable]]) -> None:
        """Some partitions did not answer: the next exchanges go on without them."""
        for partition, error in failed:
            self._parts.reach.lose(partition, error)
            rounds.parts[partition].looked = time.monotonic()

    async def _repeat(self, rounds: Rounds, said: Exchange, plan: Plan) -> list[tuple[int, _Heard]]:
        """Says all once more, and hears what was claimed before. What can't be heard yet is asked for later."""
        out = self._parts.reach.out()
        left = [partition for partition in range(len(self._parts.sessions)) if partition not in rounds.unheard]
        asked = [*dict.fromkeys((*plan.says, *(partition for partition in left if partition not in out)))]
        silent = Exchange(worker=said.worker, serial=said.serial, skips=said.skips)
        results = await asyncio.gather(
            *(
                self._ask(
                    rounds,
                    partition,
                    replace(
                        plan.says.get(partition, silent),
                        serial=self._serial(said.serial, partition),
                        repeated=True,
                        after=rounds.parts[partition].after,
                    ),
                    plan,
                )
                for partition in asked
            ),
            return_exceptions=True,
        )
        heard: list[tuple[int, _Heard]] = []
        failed: list[tuple[int, StoreUnavailable]] = []
        for partition, result in zip(asked, results, strict=True):
            if isinstance(result, _Heard):
                heard.append((partition, result))
            elif isinstance(result, StoreUnavailable):
                failed.append((partition, result))
            else:
                raise result
        self._lose(rounds, failed)
        if failed and not heard:
            raise failed[0][1]
        for partition, _ in failed:
            plan.did_not_arrive(partition)
        # An incarnation that is known has claimed nothing where it had no slots to give.
        most = 0 if rounds.registration is not None else said.slots
        for partition in {*left} - {partition for partition, _ in heard}:
            slots = rounds.last.get(partition, most)
            if slots:
                rounds.unheard[partition] = Unheard(said.serial, slots)
        return heard

    async def _hear_again(self, rounds: Rounds, partition: int, said: Exchange, plan: Plan) -> _Heard | None:
        """Asks for an answer that was lost; None when the partition is still out of reach."""
        unheard = rounds.unheard[partition]
        serial = self._serial(unheard.serial, partition)
        asked = Exchange(worker=said.worker, serial=serial, repeated=True, skips=said.skips)
        try:
            heard = await self._ask(rounds, partition, asked, plan)
        except StoreUnavailable as error:
            self._lose(rounds, [(partition, error)])
            return None
        del rounds.unheard[partition]
        return heard

    def _serial(self, serial: int, partition: int) -> int:
        """That of an exchange with one partition."""
        return (serial * len(self._parts.sessions) + partition) % _SERIALS

    async def _ask(
        self,
        rounds: Rounds,
        partition: int,
        said: Exchange,
        plan: Plan,
        rooms: int = 0,
        bytes: int = CLAIM_BYTES,
        first: int | None = None,
    ) -> _Heard:
        session, told = self._parts.sessions[partition], self._wakes.told[partition]
        placing = plan.placing.get(partition)
        while True:
            asked = self._asked(partition, said, plan)
            asked.update(rooms=rooms, bytes=bytes)
            if first is not None:
                asked["first"] = first
            reply = await ask_script(session, said, asked)
            if not reply.misplaced or placing is None:
                break
            await placing.follow(reply.misplaced)
            said = replace(said, saves=[*said.saves], fires=[*said.fires])
            await self._planner.leave_out(partition, said.saves, said.fires, placing, plan)
        if reply.gone and partition and await self._rejoin(rounds, session, said.worker):
            reply.gone, reply.more = False, True
        rounds.note(partition, told, reply)
        for save in said.saves:
            if save.starts is not None:
                self._places.learn(save.starts.id, partition)
        exchanged = told_by(said, reply)
        await compare(session, said, reply, exchanged)
        return _Heard(reply, exchanged)

    def _asked(self, partition: int, said: Exchange, plan: Plan) -> dict[str, Any]:
        asked = asked_of(said)
        for n, settle in enumerate(said.settles, 1):
            if settle.waits:
                far = plan.far.get(settle.token, ())
                shown = waits.marked(partition, settle.waits, plan.over, far, plan.look_again)
                asked["settles"][n * WIDTH - 1] = shown
        checks = plan.checks.get(partition)
        if checks:
            asked["checks"] = [each for ref, token in checks for each in (ref, *token_parts(token))]
        placing = plan.placing.get(partition)
        if placing is not None:
            for n, save in enumerate(said.saves, 1):
                if save.starts is not None:
                    place = placing.place(save.starts.id)
                    asked["saves"][n * WIDTH - 1] = ask(save.starts, parent=str(save.ref), place=place)
            for fire, each in zip(said.fires, asked.get("fires", ()), strict=True):
                each["starts"] = [ask(start, place=placing.place(start.id)) for start in fire.starts]
        return asked

    async def _rejoin(self, rounds: Rounds, session: Session, number: int) -> bool:
        """Has a partition know an incarnation again that has lost it, if the first one, which counts, knows it."""
        if rounds.registration is None or not await self.is_known(number, rounds.registration.lease):
            return False
        await worker.register(session, rounds.registration, number)
        return True

    async def is_known(self, number: int, lease: int) -> bool:
        """Whether an incarnation lives, as the first partition has it; its lease there is renewed."""
        first = self._parts.first
        asked = encode({"worker": number, "lease": lease})
        return bool(await self._parts.redis.call(load("renew"), first.clock(), asked))

    # --- what is heard

    async def _merge(
        self, rounds: Rounds, said: Exchange, plan: Plan, heard: Sequence[tuple[int, _Heard]]
    ) -> Exchanged:
        now = max((each.exchanged.now for _, each in heard), default=rounds.now())
        latest = dict(heard).values()
        claims: list[tuple[Claim, dict[str, list[str]]]] = []
        for partition, each in heard:
            for claim, raw in zip(each.exchanged.claims, each.reply.claims, strict=True):
                self._places.learn(claim.id, partition)
                claim.ref = outer(partition, claim.ref)
                claims.append((claim, unseen(raw.more)))
            for found in each.exchanged.seen:
                found.ref = outer(partition, found.ref)
        mail: defaultdict[int, list[tuple[int, str, str]]] = defaultdict(list)
        for partition, each in heard:
            mail[partition] += each.reply.mail
        delivered = await waits.deliver(self._places, mail)
        for partition in delivered:
            self._wakes.note(partition)
        await waits.tell(self._places, claims)
        refused = sorted({token for _, each in heard for token in each.exchanged.refused})
        watches = [watch for watch in plan.watches if watch.token not in refused]
        seen: list[Seen] = _all(each.exchanged.seen for _, each in heard)
        watched = len(seen) + len(watches)
        more_seen = await waits.look(self._places, watches, seen, now)
        out = self._parts.reach.out()
        next_at = rounds.next_at(out)
        if len(seen) < watched:
            next_at = min(now + waits.LOOK, now + waits.LOOK if next_at is None else next_at)
        return Exchanged(
            now=now,
            claims=[claim for claim, _ in claims],
            refused=refused,
            cancelled=_all(each.exchanged.cancelled for each in latest),
            seen=seen,
            next_at=next_at,
            more=bool(delivered) or more_seen or rounds.more(out),
            due=_all(each.exchanged.due for each in latest),
            gone=any(each.exchanged.gone for _, each in heard),
            existed=[*_all(each.exchanged.existed for _, each in heard), *plan.existed],
            unsaid=sorted(plan.unsaid),
        )


def _all(lists: Iterable[Iterable[Any]]) -> list[Any]:
    return [each for some in lists for each in some]
