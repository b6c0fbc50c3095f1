"""What ties a run to others: the group and the session that it belongs to, by number."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import msgspec

from perdure.model import Start
from perdure.stores.sqlite.executor import Transaction
from perdure.stores.sqlite.sql import encode, load

_SQL = load("enqueue")


class _Group(NamedTuple):
    queue: str
    key: str
    number: int
    asked: int
    """The limit that it was made with."""
    most: int
    """The limit that holds."""


_Groups = msgspec.json.Decoder(list[_Group])
_Sessions = msgspec.json.Decoder(list[tuple[str, str, int]])


class Ties:
    """The groups of runs just made, and numbers of their sessions, by queue and key."""

    def __init__(self) -> None:
        self.groups: dict[tuple[str, str], _Group] = {}
        self.sessions: dict[tuple[str, str], int] = {}

    def rows(self, starts: Mapping[int, Start]) -> list[tuple[int, int | None, int, int | None]]:
        """Where in the batch a start stands, its group, whether it keeps its slot, its session: for those tied."""
        return [
            (
                index,
                self.groups[start.queue, start.group].number if start.group else None,
                int(start.group_keep),
                self.sessions.get((start.queue, start.session)),
            )
            for index, start in starts.items()
            if start.group or start.session
        ]

    def other_limit(self, start: Start) -> int | None:
        """The limit that holds for the group of a start, when nobody asked for the one that the start brings."""
        if not start.group:
            return None
        group = self.groups[start.queue, start.group]
        return None if start.group_limit in (group.asked, group.most) else group.most


def tie(transaction: Transaction, starts: Collection[Start]) -> Ties:
    """Finds, or makes, the groups and sessions of runs just made. Of several limits for a new group the first holds."""
    ties = Ties()
    groups: dict[tuple[str, str], int] = {}
    for start in starts:
        if start.group:
            groups.setdefault((start.queue, start.group), start.group_limit)
    if groups:
        listed = {"groups": encode([(queue, key, most) for (queue, key), most in groups.items()])}
        transaction.change(_SQL["groups"], listed)
        found = _Groups.decode(transaction.row(_SQL["group_ids"], listed)[0])
        ties.groups = {(group.queue, group.key): group for group in found}
    sessions = {(start.queue, start.session) for start in starts if start.session}
    if sessions:
        listed = {"sessions": encode(sorted(sessions))}
        transaction.change(_SQL["sessions"], listed)
        rows = _Sessions.decode(transaction.row(_SQL["session_ids"], listed)[0])
        ties.sessions = {(queue, key): number for queue, key, number in rows}
    return ties
