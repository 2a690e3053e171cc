"""For tests of applications and of adapters: the kit, fakes, fault injection, and the suites that every adapter passes.

The suites (`postroom.testing.store_contract` and its siblings) need pytest and pytest-asyncio. The fixtures are in
`postroom.testing.plugin`, which pytest loads by itself.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .clock import FakeClock, TravelClock

if TYPE_CHECKING:
    from .faults import Faults
    from .guard import DirectPublish, Guard, forbid_direct_publish
    from .kit import PostroomKit
    from .recorder import RecordedMessage, Recorder
    from .survival import Survival, survive, survive_async

__all__ = [
    "DirectPublish",
    "FakeClock",
    "Faults",
    "Guard",
    "PostroomKit",
    "RecordedMessage",
    "Recorder",
    "Survival",
    "TravelClock",
    "forbid_direct_publish",
    "survive",
    "survive_async",
]

_PLACES = {
    "DirectPublish": "guard",
    "Faults": "faults",
    "Guard": "guard",
    "PostroomKit": "kit",
    "RecordedMessage": "recorder",
    "Recorder": "recorder",
    "Survival": "survival",
    "forbid_direct_publish": "guard",
    "survive": "survival",
    "survive_async": "survival",
}


def __getattr__(name: str) -> Any:
    """Imported when they are asked for: pytest loads the plugin in every run, also where nobody needs them."""
    if name in _PLACES:
        return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if "pytest" in sys.modules:
    import pytest

    # So that a failing contract shows both sides of its assertion in the adapter author's tests too.
    for suite in ("store_contract", "publisher_contract", "connection_contract", "inbox_contract"):
        pytest.register_assert_rewrite(f"{__name__}.{suite}")
