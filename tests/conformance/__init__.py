"""What every store must do: one suite, run for each of them."""

import pytest

pytest.register_assert_rewrite("conformance.kit", "conformance.reference")
