"""What ties a run to others: the group and the session that it belongs to, by number."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perdure.errors import InvalidInput
from perdure.model import Start
from perdure.stores.sqlite.executor import Transaction
from perdure.stores.sqlite.sql import encode, load

_SQL = load("enqueue")
_Ids = msgspec.json.Decoder(list[tuple[str, str, int]])


class Ties:
    """Numbers of the groups and sessions of a batch, by queue and key."""

    def __init__(self) -> None:
        self.groups: dict[tuple[str, str], int] = {}
        self.sessions: dict[tuple[str, str], int] = {}

    def __bool__(self) -> bool:
        return bool(self.groups or self.sessions)

    def rows(self, starts: Sequence[Start]) -> list[tuple[int, int | None, int, int | None]]:
        """Where in the batch a start stands, its group, whether it keeps its slot, its session: for those tied."""
        return [
            (
                index,
                self.groups.get((start.queue, start.group)),
                int(start.group_keep),
                self.sessions.get((start.queue, start.session)),
            )
            for index, start in enumerate(starts)
            if start.group or start.session
        ]


def tie(transaction: Transaction, starts: Sequence[Start]) -> Ties:
    """Finds, or makes, the groups and sessions of a batch. Of two limits for one group the last one holds.

    Raises `InvalidInput` for a key with a NUL, at which SQLite would cut it off.
    """
    ties = Ties()
    for start in starts:
        if "\0" in start.group or "\0" in start.session:
            raise InvalidInput(f"the group or session of run {start.id} has a NUL in its key")
    groups = {(start.queue, start.group): start.group_limit for start in starts if start.group}
    if groups:
        listed = {"groups": encode([(queue, key, most) for (queue, key), most in groups.items()])}
        transaction.change(_SQL["groups"], listed)
        ties.groups = _numbers(transaction.row(_SQL["group_ids"], listed)[0])
    sessions = {(start.queue, start.session) for start in starts if start.session}
    if sessions:
        listed = {"sessions": encode(sorted(sessions))}
        transaction.change(_SQL["sessions"], listed)
        ties.sessions = _numbers(transaction.row(_SQL["session_ids"], listed)[0])
    return ties


def untie(transaction: Transaction, ties: Ties) -> None:
    """Removes groups and sessions that were made for runs that were not."""
    if ties.groups:
        transaction.change(_SQL["drop_groups"], {"groups": encode(list(ties.groups.values()))})
    if ties.sessions:
        transaction.change(_SQL["drop_sessions"], {"sessions": encode(list(ties.sessions.values()))})


def _numbers(rows: str) -> dict[tuple[str, str], int]:
    return {(queue, key): number for queue, key, number in _Ids.decode(rows)}
