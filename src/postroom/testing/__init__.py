"""For tests of applications and of adapters: fakes, and the contract suites that every adapter must pass.

The suites (`postroom.testing.store_contract` and its siblings) need pytest and pytest-asyncio.
"""

from __future__ import annotations

import sys

from .clock import FakeClock

__all__ = ["FakeClock"]

if "pytest" in sys.modules:
    import pytest

    # So that a failing contract shows both sides of its assertion in the adapter author's tests too.
    for suite in ("store_contract", "publisher_contract", "connection_contract"):
        pytest.register_assert_rewrite(f"{__name__}.{suite}")
