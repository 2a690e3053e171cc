"""Time-outs that hold, whatever a driver makes of being cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

GRACE = 1.0
"""Seconds for an end in peace, and again for one without."""


async def limited(work: Coroutine[Any, Any, T], seconds: float, hang_up: Callable[[], None]) -> T:
    """Await something that talks to a server, and not for ever: TimeoutError says that it had no result by then.

    A cancelled driver may take it for its duty to end the transaction, which takes another answer from the same silent
    server. So whoever does not stop is hung up on, and then has nobody to wait for.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            await _stop(task, hang_up)
    except asyncio.CancelledError:
        await _stop(task, hang_up)
        raise
    if not task.done() or task.cancelled():
        raise TimeoutError
    return task.result()


async def _stop(task: asyncio.Task[Any], hang_up: Callable[[], None]) -> None:
    """In turn, not by the clock: a process that was frozen meanwhile still has time for each step."""
    task.cancel()
    task.add_done_callback(_forget)
    try:
        await asyncio.wait({task}, timeout=GRACE)
    finally:
        if not task.done():
            hang_up()
    await asyncio.wait({task}, timeout=GRACE)


def _forget(task: asyncio.Task[Any]) -> None:
    """Nobody may be there any more to hear of its error."""
    if not task.cancelled():
        task.exception()
