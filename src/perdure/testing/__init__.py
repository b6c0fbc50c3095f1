"""Testing kit: an app in a sandbox with a clock that the test moves, and an explorer of crashes."""

from perdure.testing.clock import VirtualClock
from perdure.testing.crashes import explore_crashes
from perdure.testing.report import CrashReport, Place, Problem
from perdure.testing.sandbox import Sandbox, run

__all__ = ["CrashReport", "Place", "Problem", "Sandbox", "VirtualClock", "explore_crashes", "run"]
