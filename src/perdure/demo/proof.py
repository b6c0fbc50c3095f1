"""Whether what the workers counted is right: checked against a count without Perdure, and against the journal."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from perdure.demo.analysis import PackageFacts, analyse, combine
from perdure.demo.stage import Outcome


class Claim(NamedTuple):
    """Something that must be so, and whether it is."""

    text: str
    holds: bool


def count_directly(root: Path, packages: dict[str, list[str]]) -> list[PackageFacts]:
    """The same facts, got with a plain pool of processes."""
    ignore_warnings = partial(warnings.simplefilter, "ignore")
    pool = ProcessPoolExecutor(min(2, os.cpu_count() or 1), get_context("spawn"), initializer=ignore_warnings)
    files = [file for names in packages.values() for file in names]
    with pool:
        facts = {each.file: each for each in pool.map(analyse, repeat(root), files, chunksize=20)}
    return [combine(name, (facts[file] for file in files)) for name, files in packages.items()]


def prove(packages: dict[str, list[str]], direct: list[PackageFacts], outcome: Outcome) -> list[Claim]:
    """All that the demonstration claims."""
    there = [file for files in packages.values() for file in files]
    counted = [file for package in outcome.results for file in package.files]
    begun = Counter(note.file for note in outcome.notes)
    crash = outcome.crash
    if crash is None:
        return [Claim("a worker was killed half way (the work was over before that)", holds=False)]
    again = {file for file, times in begun.items() if times > 1}
    cut_off = {note.file for note in outcome.notes if note.pid == crash.pid and note.file not in crash.saved}
    return [
        Claim("what each package came to equals a direct count without Perdure", outcome.results == direct),
        Claim(f"each of the {len(there):,} files was counted exactly once", sorted(counted) == sorted(there)),
        Claim(f"each of them was begun, and nothing else: {len(begun):,} steps", set(begun) == set(there)),
        Claim(
            f"the {len(crash.saved):,} steps that had a checkpoint at the kill ran once",
            all(begun[file] == 1 for file in crash.saved),
        ),
        Claim(f"{len(again)} steps ran again, all of them cut off by the kill", again <= cut_off),
    ]
