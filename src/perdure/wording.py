"""Numbers and names in sentences."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

_OF_MANY = {"is": "are", "has": "have"}


def counted(count: int, what: str) -> str:
    """So many of something, which is named in the singular: "1 run", "1,200 runs"."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def shortened(names: Sequence[str], between: str, most: int) -> str:
    """The first of them, and how many there are besides."""
    return between.join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def does(count: int, verb: str) -> str:
    """The verb, given as for one, that goes with so many."""
    return verb if count == 1 else _OF_MANY.get(verb, verb.removesuffix("s"))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """ " (did you mean …?)" when there is something near, else nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def shown_url(url: str) -> str:
    """A store's URL without what may be a password: that of the user, and options of a server, one of which may be
    another URL."""
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite":
        return url
    authority, slash, path = rest.partition("?")[0].partition("/")
    user, at, hosts = authority.rpartition("@")
    return f"{scheme}://{user.partition(':')[0]}{at}{hosts}{slash}{path}"
