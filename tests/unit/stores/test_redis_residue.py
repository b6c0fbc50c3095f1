"""What the store on Redis keeps beside runs is what these say at any time, and nothing when they are gone."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import invariant, run_state_machine_as_test

from conformance.test_model import StoreMachine
from servers.redis import redis, redis_url
from servers.redis_books import Books

STAYS = {"n", "scope", "budget", "rated", "debt", "revisions", "schedules", "slots"}
"""What does not go with runs and workers: numbers that were given out, what was set for scopes, its changes and what
rates have counted, and schedules."""


class Audited(StoreMachine):
    """Does all that clients and workers do, and has the books looked at after each step."""

    backend = "redis"

    def books(self) -> Books:
        return Books(redis(), redis_url(self.directory.name))

    @invariant()
    def the_books_are_right(self) -> None:
        self.books().check()

    def prune_all(self) -> None:
        super().prune_all()
        self.books().check()
        self.clock.advance(ms=10**13)  # No lease lasts until then.
        self.run(self.store.reclaim())
        left = self.books().left() - STAYS
        assert not left, f"there is still {left}"


def test_the_books_are_right_at_any_time() -> None:
    run_state_machine_as_test(
        Audited,
        settings=settings(
            max_examples=25,
            stateful_step_count=60,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
            report_multiple_bugs=False,
            phases=[phase for phase in Phase if phase is not Phase.shrink],
        ),
    )
