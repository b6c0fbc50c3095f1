"""The books of the store on Redis: all that it keeps beside its runs, worked out anew from these."""

from __future__ import annotations

import json
import struct
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, TypeAlias

from perdure.stores.redis.url import parse_url
from servers.redis import Redis, talk

Members: TypeAlias = dict[str, float | None]
"""What a sorted set or a set has, with its score or None."""

_UNPACKED = """
local found = {}
for i, packed in ipairs(ARGV) do
    found[i] = cjson.encode(cmsgpack.unpack(packed))
end
return found
"""
_READ = {"zset": ("ZRANGE", "0", "-1", "WITHSCORES"), "set": ("SMEMBERS",), "hash": ("HGETALL",), "string": ("GET",)}
_LAYOUT = struct.Struct("<BBB15d16s")
_NUMBERS = (
    *("seq", "made", "size", "begun", "done", "finish", "worker", "low", "settled_by", "settled", "attempt"),
    *("positions", "kept_size", "due", "wake"),
)
_STATES = ("queued", "running", "scheduled", "waiting", "succeeded", "failed", "cancelled")
_HELD = ("session", "group", "paused", "rate")
_FINAL = ("succeeded", "failed", "cancelled")
_OWN = ("run", "cp", "cpo", "cperr", "sig", "sigid", "sigw", "sign", "sigc", "sigcid", "sigby", "sigold")
"""What there is for one run alone, behind its id."""
_SETS = (
    *("live", "done", "failed", "fin", "ready", "timer", "due", "owned", "stop", "late"),
    *("line", "early", "again", "held", "stopped", "resting", "begun"),
    *(
        "members",
        "groups",
        "seats",
        "bench",
        "sessions",
        "idle",
        "kids",
        "parked",
        "items",
        "made",
        "taken",
        "label",
        "kept",
    ),
)
"""Sets whose members are runs, or follow from runs."""
_EMPTY_GROUP: dict[str, int] = dict.fromkeys(
    ("slots", "running", "lined", "early", "again", "held", "stopped", "resting", "runs"), 0
)


class Books:
    """All that a namespace has at one time. Texts are as many characters as they have bytes."""

    def __init__(self, server: Redis, url: str) -> None:
        self._server = server
        location = parse_url(url)
        self._host = location.hosts[0]
        self._prefix = f"{{{location.namespace}}}:"
        names = [key.decode("latin-1") for key in server.keys(url)]
        kinds = self._talk([("TYPE", name) for name in names])
        read = {name: _READ[kind] for name, kind in zip(names, kinds, strict=True) if kind in _READ}
        values = self._talk([(command, name, *rest) for name, (command, *rest) in read.items()])
        self.kept: dict[str, Any] = {}
        for (name, (command, *_)), value in zip(read.items(), values, strict=True):
            self.kept[name.removeprefix(self._prefix)] = _shaped(command, value)
        self.runs = self._read_runs()
        self.groups, self.sessions = self._unpacked_hash("group"), self._unpacked_hash("session")

    def check(self) -> None:
        """Raises when anything that is kept is not what the runs say."""
        families = {name: members for name, members in self.kept.items() if name.split(":", 1)[0] in _SETS}
        families.pop("parked", None)  # That is of workers; parked:ID is of runs.
        for run in self.runs.values():
            for target in _parked_for(run) if run["state"] != "waiting" else ():
                name = f"parked:{target}"
                members = families.pop(name, {})
                # While it is awake it may stand there or not.
                if others := {id: score for id, score in members.items() if id != run["id"]}:
                    families[name] = others
        differing = [
            f"{name}: {families.get(name)} is kept, and {expected.get(name)} is true"
            for expected in [self._expected_sets()]
            for name in sorted({*families, *expected})
            if families.get(name) != expected.get(name)
        ]
        counts = {name: int(number) for name, number in self.kept.get("counts", {}).items()}
        lanes = {run["lane"] for run in self.runs.values()}
        groups = {name: {field: kept.get(field, 0) for field in _EMPTY_GROUP} for name, kept in self.groups.items()}
        sessions = {
            name: {field: kept[field] for field in ("seated", "benched", "other", "runs")}
            for name, kept in self.sessions.items()
        }
        for what, kept, expected in (
            ("counts", counts, self._expected_counts()),
            ("groups", groups, self._expected_groups()),
            ("sessions", sessions, self._expected_sessions()),
            ("lanes", {*self.kept.get("lanes", ())}, lanes),
            ("lanes that may have something ready", self._unknown("hot", lanes), set()),
            *(
                (f"lanes of {name}", self._unknown(name, lanes), set())
                for name in self.kept
                if name.startswith("served:")
            ),
            ("unique", self._family("unique"), self._expected_keys()),
            ("sizes", *self._sizes()),
        ):
            if kept != expected:
                differing.append(f"{what}: {kept} is kept, and {expected} is true")
        cold = {name for name in self._family("ready") if name not in self.kept.get("hot", {})}
        lost = [name for kind in _OWN for name in self._family(kind) if name not in self.runs]
        assert not (differing or cold or lost), "\n".join([*differing, f"cold: {cold}", f"of no run: {lost}"])

    def left(self) -> set[str]:
        """The names of what is kept, without what they are for."""
        return {name.split(":", 1)[0] for name in self.kept}

    def _talk(self, commands: list[tuple[str, ...]]) -> list[Any]:
        sent = [tuple(part.encode("latin-1") for part in command) for command in commands]
        found = talk(*self._host, *sent)
        return [_text(each) for each in found]

    def _unpacked(self, packed: Iterable[str]) -> list[dict[str, Any]]:
        asked = list(packed)
        found: list[Any] = []
        for first in range(0, len(asked), 1000):
            found += self._talk([("EVAL", _UNPACKED, "0", *asked[first : first + 1000])])[0]
        return [json.loads(each, strict=False) for each in found]

    def _unpacked_hash(self, name: str) -> dict[str, dict[str, Any]]:
        packed = self.kept.get(name, {})
        return dict(zip(packed, self._unpacked(packed.values()), strict=True))

    def _states(self, texts: Iterable[str]) -> list[dict[str, Any]]:
        """What changes of runs: numbers and a place, of which 0 is nothing, and a packed map of what few have."""
        packed = [text.encode("latin-1") for text in texts]
        rare = self._unpacked(text[_LAYOUT.size :].decode("latin-1") or "\x80" for text in packed)
        found: list[dict[str, Any]] = []
        for text, more in zip(packed, rare, strict=True):
            state, held, slot, *numbers, place = _LAYOUT.unpack_from(text)
            run = {name: int(number) for name, number in zip(_NUMBERS, numbers, strict=True) if number}
            run |= {"state": _STATES[state - 1], **more}
            if held:
                run["held"] = _HELD[held - 1]
            if slot != 255:
                run["slot"] = slot
            if place.strip(b"\0"):
                run["place"] = place.decode("latin-1")
            found.append(run)
        return found

    def _unknown(self, name: str, lanes: set[str]) -> set[str]:
        """Ready sets that something names, but not of these lanes."""
        return {each for each in self.kept.get(name, ()) if each[: each.rindex(";") + 1] not in lanes}

    def _family(self, kind: str) -> dict[str, Any]:
        return {name.split(":", 1)[1]: kept for name, kept in self.kept.items() if name.startswith(f"{kind}:")}

    def _read_runs(self) -> dict[str, dict[str, Any]]:
        """The runs by id, with what changes, and what does not, and what follows from it."""
        kept = self._family("run")
        runs: dict[str, dict[str, Any]] = {}
        for id, state in zip(kept, self._states(each["s"] for each in kept.values()), strict=True):
            fact = json.loads(kept[id]["f"])
            lane = _join(fact["queue"], fact["workflow"], fact.get("version", "")) + ";"
            packed = kept[id].get("l")
            labels = self._unpacked([packed])[0] if packed else {}
            runs[id] = {"priority": 0, **fact, **state, "id": id, "lane": lane, "labels": labels}
            runs[id]["live"] = state["state"] not in _FINAL
            for kind in ("group", "session"):
                if kind in fact:
                    runs[id][f"{kind}_name"] = _join(fact["queue"], fact[kind])
        return runs

    def _expected_sets(self) -> dict[str, Members]:
        sets: dict[str, Members] = defaultdict(dict)
        for run in self.runs.values():
            id, seq, state = run["id"], run["seq"], run["state"]
            numbered = seq.to_bytes(8, "big").decode("latin-1") + id
            placed = run.get("place", "") + id
            sets["live" if run["live"] else "done"][id] = seq
            if state == "failed":
                sets["failed"][id] = seq
            if not run["live"] and "kept" not in run:
                sets[f"fin:{run['lane']}:{state}"][id] = run["finish"]
            if "kept" in run:
                sets[f"kept:{run['kept']}"][id] = None
            if "wake" in run:
                sets["timer"][id] = run["wake"]
            if run["live"] and "due" in run and "why" not in run:
                sets["due"][id] = run["due"]
            if state == "running":
                sets[f"owned:{run['worker']:.0f}"][id] = None
                if "why" in run:
                    sets[f"stop:{run['worker']:.0f}"][id] = None
            for target in _parked_for(run):
                other = self.runs.get(target)
                if other and other["live"] and state == "waiting":
                    sets[f"parked:{target}"][id] = None
            if "parent" in run:
                sets[f"kids:{run['parent']}"][id] = seq
            if "batch" in run:
                sets[f"items:{run['batch']}"][id] = seq
            if "schedule" in run and run["live"]:
                sets[f"made:{run['schedule']}"][id] = seq
            if "unique" in run:
                sets[f"taken:{_join(run['workflow'], run['unique'])}"][id] = seq
            for label in run["labels"].items():
                sets[f"label:{_join(*label)}"][id] = seq
            if "group" in run:
                name = run["group_name"]
                sets[f"members:{run['group']}"][id] = seq
                sets[f"groups:{run['group']}"][name] = None
                if of_group := _group_set(run):
                    sets[f"{of_group}:{name}"][numbered] = run["priority"]
                if run.get("held") == "rate":
                    sets[f"late:{name}"][placed] = run["priority"]
            if _ready(run):
                owner = ""
                if "session" in run:
                    owner = f"@{self.sessions[run['session_name']].get('owner', '')}"
                    sets[f"seats:{run['session_name']}"][placed] = run["priority"]
                sets[f"ready:{run['lane']}{owner}"][placed] = run["priority"]
            elif _benched(run):
                sets[f"bench:{run['session_name']}"][placed] = run["priority"]
        for name, session in self.sessions.items():
            if "owner" in session:
                sets[f"sessions:{session['owner']}"][name] = None
                if session["seated"] + session["benched"] + session["other"] == 0:
                    sets["idle"][name] = session["idle"]
        return dict(sets)

    def _expected_counts(self) -> dict[str, int]:
        counts: dict[str, int] = defaultdict(int)
        for run in self.runs.values():
            counts[f"{run['state']}:{run['lane']}"] += 1
            held = run.get("held")
            if held and (held == "rate") == (run["state"] == "scheduled"):
                counts[f"{'group paused' if held == 'paused' else held}:{run['lane']}"] += 1
        return dict(counts)

    def _expected_groups(self) -> dict[str, dict[str, int]]:
        groups: dict[str, dict[str, int]] = {}
        for run in self.runs.values():
            if "group" in run:
                group = groups.setdefault(run["group_name"], dict(_EMPTY_GROUP))
                group["slots"] += run["slot"] == 1
                group["running"] += run["slot"] == 1 and run["state"] == "running"
                group["runs"] += 1
                for name in ("early", "again", "held", "stopped", "resting"):
                    group[name] += _group_set(run) == name
                group["lined"] += _group_set(run) == "line"
        return groups

    def _expected_sessions(self) -> dict[str, dict[str, int]]:
        empty = {"seated": 0, "benched": 0, "other": 0, "runs": 0}
        sessions = {name: dict(empty) for name, session in self.sessions.items() if "owner" in session}
        for run in self.runs.values():
            if "session" in run:
                session = sessions.setdefault(run["session_name"], dict(empty))
                session["runs"] += 1
                session["seated"] += _ready(run)
                session["benched"] += _benched(run)
                session["other"] += run["state"] in ("queued", "running") and not _ready(run) and not _benched(run)
        return sessions

    def _expected_keys(self) -> dict[str, str]:
        return {
            _join(run["workflow"], run["unique"]): run["id"]
            for run in self.runs.values()
            if run["live"] and "unique" in run and not ("debounced" in run and "begun" in run)
        }

    def _sizes(self) -> tuple[dict[str, tuple[int, int]], dict[str, tuple[int, int]]]:
        """How many bytes of runs and of their checkpoints are reckoned with, and how many there are."""
        inputs, checkpoints = self._family("run"), self._family("cp")
        return {id: (run["size"], run.get("kept_size", 0)) for id, run in self.runs.items()}, {
            id: (len(inputs[id]["i"]), sum(map(len, checkpoints.get(id, {}).values()))) for id in self.runs
        }


def _text(found: Any) -> Any:
    if isinstance(found, bytes):
        return found.decode("latin-1")
    return [_text(each) for each in found] if isinstance(found, list) else found


def _shaped(command: str, value: Any) -> Any:
    if command == "SMEMBERS":
        return dict.fromkeys(value)
    if command == "GET":
        return value
    pairs = dict(zip(value[::2], value[1::2], strict=True))
    return {member: float(score) for member, score in pairs.items()} if command == "ZRANGE" else pairs


def _join(*parts: str) -> str:
    return "".join(f"{len(part)}:{part}" for part in parts)


def _ready(run: dict[str, Any]) -> bool:
    return run["state"] == "queued" and "held" not in run and run.get("slot", 1) == 1


def _benched(run: dict[str, Any]) -> bool:
    return run["state"] == "queued" and run.get("held") == "session"


def _group_set(run: dict[str, Any]) -> str:
    """Which of the sets of its group a run is in."""
    if run["slot"] != 1:
        return "line" if run["slot"] == 2 else ""
    may_lose = "no_keep" in run or "begun" not in run
    if may_lose and (run["state"] == "queued" or run.get("held") == "rate"):
        return "resting" if run.get("held") == "paused" else "early"
    if run["state"] != "queued":
        return "begun"
    return {"paused": "stopped", "group": "held"}.get(run.get("held", ""), "again")


def _parked_for(run: dict[str, Any]) -> list[str]:
    """The runs that one is parked for, or was at last, as it says itself."""
    conditions = run.get("on", [])
    return [target for kind, target in zip(conditions[::2], conditions[1::2], strict=True) if kind == "run"]
