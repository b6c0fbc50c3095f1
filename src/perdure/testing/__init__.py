"""Testing kit: an app in a sandbox with a clock that the test moves, and an explorer of crashes."""

from perdure.testing.clock import VirtualClock
from perdure.testing.sandbox import Sandbox, run

__all__ = ["Sandbox", "VirtualClock", "run"]
