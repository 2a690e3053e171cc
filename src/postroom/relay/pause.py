"""How long to wait: for an answer, and before trying again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from typing import Any, TypeVar

from ..errors import StoreUnavailable

T = TypeVar("T")

LAST_MOMENT = 1.0
"""Seconds for a question to end when whoever asked it is cancelled."""


class Pause:
    """Growing, jittered pauses between tries."""

    def __init__(self, shortest: float = 0.05, longest: float = 5.0) -> None:
        self._shortest, self._longest, self._length = shortest, longest, shortest

    def next(self) -> float:
        length, self._length = self._length, min(self._longest, self._length * 2)
        return length * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        self._length = self._shortest


async def soon(answer: Awaitable[T], patience: float) -> T:
    """For small questions: one that has no answer by then has lost its connection, and is better asked on another."""
    task = asyncio.ensure_future(answer)
    try:
        await asyncio.wait({task}, timeout=patience)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait({task}, timeout=LAST_MOMENT)
        task.add_done_callback(_forget)
        raise
    if task.done():
        return task.result()
    # Some drivers take seconds to give up, too: that is not waited for.
    task.cancel()
    task.add_done_callback(_forget)
    raise StoreUnavailable(f"the database has not answered for {patience:g} s")


def _forget(task: asyncio.Future[Any]) -> None:
    """What came of it interests nobody any more."""
    if not task.cancelled():
        task.exception()
