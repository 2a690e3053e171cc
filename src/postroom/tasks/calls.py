"""Calls of an application's functions: async ones on the loop, sync ones in threads, and some in other processes."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextvars import copy_context
from functools import partial
from typing import Any, Protocol, cast

from ..duration import spell
from ..wire.threads import Outcome, Threads
from .context import TaskContext
from .processes import Job, Place, Processes

LATE = 60.0
"""Seconds between two words about a function that runs over its time."""

Thunk = Callable[[], Any]


class Callee(Protocol):
    function: Callable[..., Any]
    takes_context: bool
    timeout: float | None
    executor: Executor | None
    place: Place | None
    """Where another process finds it, if it is to run there."""


class Calls:
    def __init__(self) -> None:
        self._threads = Threads()
        self._processes = Processes()

    def close(self) -> None:
        self._threads.close()
        self._processes.close()
        self._threads = Threads()

    async def call(self, task: Callee, data: bytes, payload: Any, context: TaskContext) -> BaseException | None:
        """What the function raised, if it did."""
        if task.place is not None:
            return (await self._processes.run(Job(task.place, data, context), task.timeout)).error
        arguments = (payload, context) if task.takes_context else (payload,)
        call = partial(task.function, *arguments)
        outcome = await self._outcome(call, task.function, task.timeout, context, task.executor)
        if outcome.error is None and inspect.isawaitable(outcome.result):
            return _not_awaited(outcome.result)
        return outcome.error

    async def ask(self, call: Thunk, handler: object, context: TaskContext) -> object:
        """What a handler answers; None if it fails, too."""
        outcome = await self._outcome(call, handler, None, context)
        error = outcome.error
        if error is None and inspect.isawaitable(outcome.result):
            error = _not_awaited(outcome.result)
        if error is not None:
            context.logger.error("the handler of its failure failed itself", exc_info=error)
            return None
        return outcome.result

    async def _outcome(
        self,
        call: Thunk,
        function: object,
        timeout: float | None,
        context: TaskContext,
        executor: Executor | None = None,
    ) -> Outcome:
        if is_async(function):
            return await _on_loop(call, timeout)
        if executor is None:
            return await _wait_for(self._threads.run(call), timeout, context)
        return await _wait_for(executor.submit(_outcome_of, partial(copy_context().run, call)), timeout, context)


async def _wait_for(future: Future[Outcome], timeout: float | None, context: TaskContext) -> Outcome:
    """A thread cannot be stopped, so it is waited for, also when this call is cancelled: as long as it runs, nobody
    here may run the next one of its key."""
    done, cancelled = asyncio.wrap_future(future), False
    wait = timeout
    while not done.done():
        try:
            await asyncio.wait([done], timeout=wait)
        except asyncio.CancelledError:
            cancelled = True
            if future.cancel():
                raise
        if not done.done() and (cancelled or timeout is not None):
            why = "the relay should end it" if cancelled else f"its time-out of {spell(timeout or 0)} is over"
            context.logger.warning("still running, though %s: its key waits until it returns", why)
            wait = LATE
    outcome = done.result()
    if cancelled and outcome.error is not None:
        raise asyncio.CancelledError
    return outcome  # what is done is done, whoever wanted to end it


def _outcome_of(call: Thunk) -> Outcome:
    try:
        return Outcome(call(), None)
    except BaseException as error:
        return Outcome(None, error)


async def _on_loop(call: Thunk, timeout: float | None) -> Outcome:
    """In a task of its own, which is cancelled and waited for when the time is over, or when this call is cancelled."""
    task: asyncio.Task[Any] = asyncio.ensure_future(_awaited(call))
    try:
        done, _ = await asyncio.wait([task], timeout=timeout)
        is_late = not done
    except asyncio.CancelledError:
        await _end(task)
        if task.cancelled() or task.exception() is not None:
            raise
        is_late = False
    if is_late:
        await _end(task)
    try:
        return Outcome(task.result(), None)
    except asyncio.CancelledError as error:
        return Outcome(None, TimeoutError(f"no return within {spell(timeout or 0)}") if is_late else error)
    except BaseException as error:
        return Outcome(None, error)


async def _awaited(call: Thunk) -> Any:
    return await call()


async def _end(task: asyncio.Task[Any]) -> None:
    """Cancel it, and wait for it, however long that takes."""
    task.cancel()
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()


def is_async(function: Any) -> bool:
    while isinstance(function, partial):
        function = cast("partial[Any]", function).func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _not_awaited(result: Any) -> TypeError:
    if inspect.iscoroutine(result):
        result.close()
    return TypeError("a sync function returned something to be awaited, which nobody does: make it `async def`")
