"""Coroutines for callers that do not await: on a thread and a loop of their own, whether or not a loop runs here."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

T = TypeVar("T")


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """What the coroutine returns or raises. If a loop runs on this thread, it stands still meanwhile."""
    context = copy_context()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="postroom-testing") as thread:
        return thread.submit(lambda: context.run(asyncio.run, work)).result()
