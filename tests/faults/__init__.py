"""What goes wrong around a program, made to go wrong: real processes, a real store, real signals."""

import pytest

pytest.register_assert_rewrite("faults.kit", "faults.broken")
