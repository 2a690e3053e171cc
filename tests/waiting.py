"""Waiting for something to become true, never for time to pass."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LONG = 30.0
"""Seconds that only a broken relay needs: a busy machine may be slow, and speed is measured elsewhere."""


def eventually(condition: Callable[[], T], *, within: float = LONG, otherwise: Callable[[], object] = str) -> T:
    """What the condition returned once it was true. Fails with its last answer, and with what `otherwise` tells."""
    deadline, pause = time.monotonic() + within, 0.005
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"still {answer!r} after {within:g} s {otherwise()}"
        time.sleep(pause)
        pause = min(1.5 * pause, 0.1)  # whoever waits for long must not keep the machine busy
    return answer


async def until(condition: Callable[[], object], *, within: float = LONG) -> None:
    """The same on an event loop."""
    deadline = time.monotonic() + within
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"still {answer!r} after {within:g} s"
        await asyncio.sleep(0.002)
