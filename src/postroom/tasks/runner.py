"""Runs tasks: the destination of their messages, within the relay's own process."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Protocol, cast

from ..errors import MessageRejected, NotAttempted, Postponed, StoreError
from ..failures import describe
from ..message import Message
from ..ports import Batch, Features, LocalBatch
from ..retry import RetryPolicy
from .calls import Callee, Calls
from .context import TaskContext, context_of
from .decisions import Block, Ignore, Retry
from .shape import PayloadInvalid

MOST_MET = 10_000
"""Messages of unknown tasks that are remembered."""
NO_NOTES = 0.5
"""Seconds before a task is tried again that could not be written down."""


class TaskUnknown(LookupError):
    """No task with this id is registered here."""


class Runnable(Callee, Protocol):
    id: str
    retry: RetryPolicy | None
    on_failure: Callable[[Any, TaskContext, BaseException], Any] | None
    read: Callable[[bytes], Any]


Handler = Callable[[Message, TaskContext, BaseException], Any]


class Runner:
    """One task per call; the relay sees to it that a key has one at a time.

    A message that was under way when a process died is a suspect: it may be what killed it. Those that were there once
    too often but one run one at a time, so that it will be known which it is. That one is not run any more.
    """

    def __init__(
        self,
        find: Callable[[str], Runnable | None],
        *,
        unknown: Handler,
        unreadable: Handler,
        unknown_after: float,
        concurrency: int,
        max_crashes: int,
    ) -> None:
        self.name = "tasks"
        self.features = Features(max_batch=1, max_calls=concurrency, local=True)
        self._find = find
        self._unknown = unknown
        self._unreadable = unreadable
        self._unknown_after = unknown_after
        self._met: dict[str, float] = {}
        """Messages of unknown tasks, and since when they are here."""
        self._max_crashes = max_crashes
        self._calls = Calls()
        self._suspect = asyncio.Lock()

    async def publish(self, batch: Batch) -> None:
        local = cast(LocalBatch, batch)
        for message in local.messages:
            local.answer(message, await self._answer(message, local))

    async def close(self) -> None:
        self._calls.close()

    async def _answer(self, message: Message, batch: LocalBatch) -> BaseException | None:
        crashes = batch.crashes(message)
        if crashes >= self._max_crashes:
            return MessageRejected(
                f"it was under way {crashes} times when a process died or lost its lease, so it is not run any more",
                permanent=True,
                reason="quarantined",
            )
        async with self._turn(batch, crashes):
            if not batch.may_start():
                return NotAttempted("the lease of its slot is over, or is given back")
            return await self._run(message, batch, crashes)

    @asynccontextmanager
    async def _turn(self, batch: LocalBatch, crashes: int) -> AsyncGenerator[None]:
        if crashes < max(1, self._max_crashes - 1):
            yield
            return
        with batch.aside():
            await self._suspect.acquire()
        try:
            yield
        finally:
            self._suspect.release()

    async def _run(self, message: Message, batch: LocalBatch, crashes: int) -> BaseException | None:
        task = self._find(message.type or "")
        now = datetime.now(UTC)
        limit = None if task is None or task.timeout is None else now + timedelta(seconds=task.timeout)
        context = context_of(message, crashes, limit)
        if task is None:
            return await self._answer_unknown(message, batch, context)
        try:
            payload = task.read(message.payload)
        except PayloadInvalid as error:
            return await self._decide(partial(self._unreadable, message, context), None, context, error)
        try:
            if not await batch.starting(message):
                return NotAttempted("the lease of its slot is another's")
        except StoreError as error:
            await asyncio.sleep(NO_NOTES)
            return NotAttempted(f"that it starts could not be written down: {error}")
        error = await self._calls.call(task, message.payload, payload, context)
        if error is None:
            return None
        message.attempt = context.attempt  # a run that ended with its process counts, too
        handler = None if task.on_failure is None else partial(task.on_failure, payload, context)
        return await self._decide(handler, task, context, error)

    async def _answer_unknown(self, message: Message, batch: LocalBatch, context: TaskContext) -> BaseException | None:
        """During a deployment there may be a relay that knows it, or will be."""
        error, now = TaskUnknown(f"no task {message.type!r} is registered in this relay"), time.monotonic()
        since = self._met.setdefault(message.id, now)
        while len(self._met) > MOST_MET:
            del self._met[next(iter(self._met))]
        if now - since < self._unknown_after:
            with suppress(StoreError):
                await batch.find_another(message)
            return Postponed(f"{error}; it waits for one that knows it", retry_in=min(max(1.0, now - since), 30.0))
        self._met.pop(message.id, None)
        return await self._decide(partial(self._unknown, message, context), None, context, error)

    async def _decide(
        self,
        handler: Callable[[BaseException], Any] | None,
        task: Runnable | None,
        context: TaskContext,
        error: BaseException,
    ) -> BaseException | None:
        decision: object = None
        if handler is not None:
            decision = await self._calls.ask(partial(handler, error), handler, context)
        if isinstance(decision, Ignore):
            context.logger.warning("failed, and is taken as done: %s", describe(error))
            return None
        if isinstance(decision, Retry):
            return _rejection(error, retry_in=decision.seconds_from(datetime.now(UTC)))
        if isinstance(decision, Block):
            return _rejection(error, permanent=True, reason="blocked")
        if decision is not None:
            context.logger.error("the handler of its failure answered %r, which is no decision", decision)
        return _by_policy(task, context, error)


def _by_policy(task: Runnable | None, context: TaskContext, error: BaseException) -> BaseException:
    if task is None or task.retry is None:
        return _rejection(error) if isinstance(error, NotAttempted) else error
    delay = task.retry.delay(context.attempt, error, task.id, random.random)
    return _rejection(error, permanent=delay is None, reason="attempts", retry_in=delay)


def _rejection(error: BaseException, **how: Any) -> MessageRejected:
    rejection = MessageRejected(describe(error), **how)
    rejection.__cause__ = error
    return rejection
