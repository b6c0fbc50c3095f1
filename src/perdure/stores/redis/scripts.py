"""The Lua functions: made of files, and kept by servers under names that have the SHA-1 of their text.

A server runs the text of a script anew with each call, with all that it defines; that of a function it runs once, when
it loads it. So an exchange costs a third of what it did. Programs of several versions have functions of their own.
"""

from __future__ import annotations

import functools
import hashlib
import re
from importlib.resources import files

from msgspec import Struct

from perdure.causes import DEADLINE_PASSED, OVERDUE, PARENT_DEADLINE_PASSED, POISONED, deadline_exceeded, poisoned
from perdure.stores.exchange import CLAIM_BYTES, PAGE, PAGE_BYTES
from perdure.stores.redis.url import Durability, Kind, Location

_CALL = re.compile(r"\b(?:call|later)\(\s*'([A-Z]+)'(?:, '([A-Z]+)')?")
_SHARED = {
    "reads": "core writing runs waits keeping placing walking reading",
    "changes": (
        "core writing runs waits chores holding seating grouping moving starting keeping clearing ending families"
        " staging opening serving limiting working retaining parking"
    ),
    "exchanges": (
        "core writing runs waits chores holding seating grouping moving starting keeping clearing ending families"
        " rates claiming showing pushing scheduling parking settling"
    ),
}
"""What stands before the functions of each library: few libraries, since all that they hold of the same makes the
server's Lua collect so much more garbage at a time."""
_CRASHES = 987654321
"""Stands for the number of crashes in the error of a run that is poison; the script puts the number in."""


class Script(Struct, frozen=True):
    """What a server runs: a script, or a function of a library."""

    name: str
    source: str
    call: tuple[str, str]
    """The command that runs it, with the name that servers know it by."""
    load: tuple[str, str]
    """The command that has a server keep it, in front of the source."""
    library: str = ""
    """Of a function: its library's name."""

    @classmethod
    def of(cls, name: str, source: str) -> Script:
        """A script of this text."""
        return cls(name, source, ("EVALSHA", _sha1(source)), ("SCRIPT", "LOAD"))


@functools.cache
def load(name: str) -> Script:
    """The function in a file of `lua`.

    Its first line says of which library it is. A second line with flags is for the server: `-- flags: allow-oom` has it
    run though memory is full, as does `-- flags: no-writes`. Without it what has clients make new runs is refused, and
    nothing else: so what has begun ends, what died is taken back, and what has ended is pruned, which makes room.
    """
    return _library(*_header(_read(name), "library"))[name]


@functools.cache
def _library(name: str) -> dict[str, Script]:
    """The functions of a library, by name."""
    names = [each for each in _names() if _header(_read(each), "library") == [name]]
    shared = "".join((_words(), *map(_read, _SHARED[name].split())))
    digest = _sha1(shared + "".join(map(_read, names)))[:16]
    source = f"#!lua name=perdure_{name}_{digest}\n{shared}" + "".join(_function(each, digest) for each in names)
    return {each: _script(each, digest, f"perdure_{name}_{digest}", source) for each in names}


def _script(name: str, digest: str, library: str, source: str) -> Script:
    return Script(name, source, ("FCALL", f"perdure_{name}_{digest}"), ("FUNCTION", "LOAD"), library)


def _function(name: str, digest: str) -> str:
    text = _read(name)
    flags = ", ".join(f"'{flag}'" for flag in _header(text, "flags"))
    return (
        f"do\nlocal function main()\n{text}end\n"
        f"redis.register_function{{ function_name = 'perdure_{name}_{digest}', flags = {{ {flags} }},\n"
        "callback = function(keys, argv)\nbegin_call(keys, argv)\nreturn main()\nend }\nend\n"
    )


@functools.cache
def every() -> tuple[Script, ...]:
    """All functions."""
    return tuple(load(name) for name in _names() if _header(_read(name), "library"))


@functools.cache
def libraries() -> dict[str, Script]:
    """The libraries that this version has, by name, each as one of its functions, which loads all of them; the one that
    is to be loaded last is last."""
    return {each.library: each for each in (*every(), ready())}


@functools.cache
def commands() -> tuple[str, ...]:
    """The commands that our functions call."""
    called = {"|".join(filter(None, words)) for each in every() for words in _CALL.findall(each.source)}
    return tuple(sorted(map(str.lower, called)))


def besides(location: Location) -> tuple[str, ...]:
    """The commands that a user of a store needs besides these."""
    listens = ("cluster|slots", "ssubscribe", "sunsubscribe", "spublish")
    waits = {Durability.DEFAULT: (), Durability.REPLICATED: ("wait",), Durability.FSYNC: ("waitaof",)}
    return (
        *("fcall", "function|load", "ping"),
        *(listens if location.kind is Kind.CLUSTER else ("subscribe", "unsubscribe", "publish")),
        *waits[location.durability],
    )


@functools.cache
def lacking() -> str:
    """The text of a script that answers which of the commands in its arguments the user may not run."""
    return f"{_read('lacking')}return lacking(ARGV, KEYS[1] .. ':x')\n"


@functools.cache
def ready() -> Script:
    """A function that is loaded behind all others: a server that knows it knows them all. It answers which of the
    commands that they call the user may not run, and of those in its arguments: one that is refused halfway leaves what
    it wrote."""
    body = f"{_read('lacking')}local commands = {{ {', '.join(map(repr, commands()))} }}\n"
    known = f"perdure_ready_{_sha1(body + ' '.join(each.call[1] for each in every()))[:16]}"
    register = (
        f"redis.register_function{{ function_name = '{known}', flags = {{ 'allow-oom' }},\n"
        "callback = function(keys, argv)\nlocal found = lacking(commands, keys[1] .. ':x')\n"
        "for _, each in ipairs(lacking(argv, keys[1] .. ':x')) do\nfound[#found + 1] = each\nend\nreturn found\nend }\n"
    )
    return Script("ready", f"#!lua name={known}\n{body}{register}", ("FCALL", known), ("FUNCTION", "LOAD"), known)


def _names() -> list[str]:
    return sorted(each.name.removesuffix(".lua") for each in (files("perdure.stores.redis") / "lua").iterdir())


def _header(text: str, name: str) -> list[str]:
    for line in text.splitlines()[:2]:
        if line.startswith(f"-- {name}: "):
            return line.split()[2:]
    return []


def _sha1(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def _read(name: str) -> str:
    return (files("perdure.stores.redis") / "lua" / f"{name}.lua").read_text(encoding="utf-8")


def _words() -> str:
    """What scripts say themselves, in the words of the model, and how much an exchange and a page bring."""
    words = {
        "DEADLINE_PASSED": DEADLINE_PASSED,
        "PARENT_DEADLINE_PASSED": PARENT_DEADLINE_PASSED,
        "PARENT_DEADLINE_BODY": f'"{PARENT_DEADLINE_PASSED}"',
        "OVERDUE": OVERDUE,
        "OVERDUE_ERROR": deadline_exceeded(),
        "POISONED": POISONED,
        "POISONED_ERROR": poisoned(_CRASHES),
    }
    bounds = f"local BOUNDS = {{ claim_bytes = {CLAIM_BYTES}, page = {PAGE}, page_bytes = {PAGE_BYTES} }}\n"
    return bounds + "".join(f"local {name} = [==[{text}]==]\n" for name, text in words.items())
