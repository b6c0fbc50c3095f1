"""What an exploration of crashes found."""

from __future__ import annotations

from dataclasses import dataclass, field

from perdure.engine.points import Point

_SHOWN = 20

_POINTS: dict[str, str] = {
    Point.BEFORE_STEP: "before step {key}",
    Point.AFTER_EFFECT: "after the effect of step {key}, before its checkpoint",
    Point.AFTER_CHECKPOINT: "after the checkpoint of step {key}",
}


@dataclass(frozen=True)
class Place:
    """A point in the life of a run at which a worker was killed."""

    point: str
    run: str
    """Which of the children it is; empty for the run itself."""
    key: str
    visit: int
    """Which time this was that a run came by there."""

    def __str__(self) -> str:
        what = self.point
        if self.key:
            what = _POINTS.get(self.point, "{point} at {key}").format(point=self.point, key=self.key)
        run = f" of run {self.run}" if self.run else ""
        again = f", time {self.visit}" if self.visit > 1 else ""
        return f"{what}{run}{again}"


@dataclass(frozen=True)
class Problem:
    """What went otherwise than it should, and where the worker was killed before."""

    crashes: tuple[Place, ...]
    what: str

    def __str__(self) -> str:
        places = " and ".join(str(place) for place in self.crashes)
        return f"killed {places}: {self.what}" if places else self.what


@dataclass
class CrashReport:
    """What `explore_crashes` found; `str()` of it is for people, and `check` is for tests."""

    workflow: str
    undisturbed: str
    """How the run ends when nothing happens to its worker."""
    problems: list[Problem] = field(default_factory=list[Problem])
    runs: int = 0
    """How many runs there were, the undisturbed ones among them."""
    points: int = 0
    """How many points there are at which a single crash can fall."""
    left_out: int = 0
    """How many crashes were left out, because of `at_most`."""

    @property
    def ok(self) -> bool:
        """Whether every run ended as the undisturbed one, with no step run too often."""
        return not self.problems

    def check(self) -> None:
        """Raises `AssertionError`, with the whole report, when something was found."""
        if not self.ok:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        counts = f"{self.workflow}: {self.runs} runs, {self.points} points to crash at"
        if self.left_out:
            counts += f" ({self.left_out} crashes left out)"
        if self.ok:
            return f"{counts}; all {self.undisturbed}"
        lines = [f"{counts}; {len(self.problems)} problems:", *(f"- {one}" for one in self.problems[:_SHOWN])]
        if len(self.problems) > _SHOWN:
            lines.append(f"and {len(self.problems) - _SHOWN} more")
        return "\n".join(lines)
