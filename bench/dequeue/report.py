"""Tables and targets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from measure import Cost, Figures
from scenes import SCENES, Scene

_TITLES = {scene.name: scene for scene in SCENES}


def table(found: Sequence[Figures]) -> Iterator[str]:
    """All figures, in Markdown."""
    yield "| Scene | Layout | Claim | Median, ms | p99, ms | Processor, ms | Per run, ms | Pages | Claim index, KiB |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for each in found:
        title = _TITLES[each.scene].title
        if each.reclaimed_after is not None:
            after = (
                f"{each.reclaimed_after:.1f} s after its end"
                if math.isfinite(each.reclaimed_after)
                else "not within 10 s"
            )
            yield f"| {title} | {each.layout} | reclaimed {after} | | | | | | |"
            continue
        size = each.index_bytes.get(each.claim_index, 0) // 1024
        for kind, cost in each.costs.items():
            yield (
                f"| {title} | {each.layout} | {kind} | {cost.median:.3f} | {cost.p99:.3f} | {cost.processor:.3f} | "
                f"{cost.per_run:.4f} | {cost.buffers:,} | {size:,} |"
            )


def targets(found: Sequence[Figures]) -> Iterator[tuple[bool, str]]:
    """What is to be seen of the store, each with whether it is; by the server's processor, which is not slowed down by
    what else the machine does."""
    by = {(each.scene, each.layout): each for each in found}
    ours = {each.scene: each for each in found if each.layout == "perdure"}
    before, claimed = by.get(("claimed", "before")), ours.get("claimed")
    if claimed is not None:
        if before is not None:
            times = _worst(before, "one").processor / _worst(claimed, "one").processor
            yield times >= 200, f"claimed: one dequeue is {times:,.0f} times as fast as before (200)"
            times = _worst(before, "one").per_run / _worst(claimed, "batch").per_run
            yield times >= 200, f"claimed: a run claimed in a batch is {times:,.0f} times as fast as before (200)"
        per_run = _worst(claimed, "batch").per_run
        yield per_run < 0.1, f"claimed: {per_run:.3f} ms for each run claimed in a batch (0.1)"
        size = claimed.index_bytes[claimed.claim_index]
        yield size < 300_000, f"claimed: the claim index has {size / 1024:.0f} KiB (300)"
    for each in ours.values():
        if each.reclaimed_after is not None:
            yield each.reclaimed_after <= 2, f"expired: taken back {each.reclaimed_after:.1f} s after the lease (2)"
            continue
        yield each.in_order, f"{each.scene}: in strict order"
        if "empty" in ours and each.scene != "empty":
            yield from _against(ours["empty"], each, _TITLES[each.scene])


def _against(empty: Figures, each: Figures, scene: Scene) -> Iterator[tuple[bool, str]]:
    for kind, cost in each.costs.items():
        times = cost.processor / empty.costs[kind].processor
        yield times <= scene.within, f"{each.scene}: {kind}: {times:.2f} times the empty queue ({scene.within})"


def _worst(figures: Figures, kind: str) -> Cost:
    return max((cost for name, cost in figures.costs.items() if name.startswith(kind)), key=lambda cost: cost.processor)
