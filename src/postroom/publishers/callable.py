"""Any Python function as a destination."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Hashable, Iterable
from concurrent.futures import Future
from contextvars import Context, copy_context
from functools import partial
from types import coroutine
from typing import Any, cast

from ..duration import spell
from ..errors import ConfigurationError, DestinationUnavailable, NotAttempted
from ..failures import describe
from ..message import Message
from ..ports import Batch, Features
from ..wire.threads import Outcome, Threads

Function = Callable[[Message], object]
Error = BaseException | None
Call = Coroutine[Any, Any, Error]
"""One call of the function. What the function raised is returned; only cancellation of the call itself is raised."""

TURN = 0.001
"""Seconds for which functions that never wait may keep the loop."""


class CallablePublisher:
    """Calls a sync or async function with each message. That it returns means delivered, whatever it returns.

    Messages of one (topic, key) are passed strictly one after the other, and once one fails the rest of that key is not
    attempted. Different keys, and messages without one, run at the same time, at most `concurrency` in all. What finds
    no room for long is given back. What a call sets in its context (`contextvars`) no other call sees.

    Async functions run on the relay's loop and are cancelled at the time-out. Sync ones run in threads. A thread cannot
    be stopped: after the time-out the message is answered with `TimeoutError` while the function may still be running,
    and until it returns its key gets no other call. So a function that may hang needs a time-out of its own.
    The threads never keep the interpreter from exiting.

    `DestinationUnavailable`, connection errors and time-outs, also the known clients' own (`postroom.failures`), and
    the classes in `unavailable` mean that nobody can be served now. Anything else is a failed attempt.
    """

    features = Features(ordered=True)

    def __init__(
        self,
        function: Function,
        *,
        concurrency: int = 32,
        unavailable: type[BaseException] | tuple[type[BaseException], ...] = (),
    ) -> None:
        _check_function(function)
        if concurrency < 1:
            raise ConfigurationError(f"concurrency must be at least 1, not {concurrency}")
        self._unavailable = _classes(unavailable)
        self._concurrency = concurrency
        self._calls = _CallsOnLoop(function) if _is_async(function) else _CallsInThreads(function, concurrency)
        self._room = asyncio.Semaphore(concurrency)
        self._turn = _Turn()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def publish(self, batch: Batch) -> None:
        self._settle_in()
        lanes = _lanes(batch.messages)
        self._turn.begin()  # the loop was not kept waiting when it began this
        async with asyncio.TaskGroup() as group:
            work = _Work(batch, lanes, group, more=min(len(lanes), self._concurrency) - 1)
            # As a task like the others: who cancels this call shall not have to wait for one of them.
            group.create_task(self._work_through(work))

    async def close(self) -> None:
        self._calls.close()

    def _settle_in(self) -> None:
        """A semaphore belongs to one loop, a publisher may outlive it: `asyncio.run(relay.drain())`, twice."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._room, self._turn = loop, asyncio.Semaphore(self._concurrency), _Turn()

    async def _work_through(self, work: _Work) -> None:
        cancellation = _Cancellation()
        while work.lanes:
            failed = False
            for message in work.lanes.popleft():
                if failed:
                    error = NotAttempted("a message before it in its key failed")
                else:
                    error = self._judged(await self._attempt(message, work, cancellation))
                failed = error is not None
                work.batch.answer(message, error)

    async def _attempt(self, message: Message, work: _Work, cancellation: _Cancellation) -> Error:
        room = self._room
        if not await work.found(room):
            return NotAttempted("other calls took all the room that concurrency leaves")
        try:
            await self._turn.take()
            cancellation.check()
            if not work.batch.may_start():
                return NotAttempted("there was no time left to start")
            error = await self._call(message, work, cancellation)
            work.heard()
            return error
        finally:
            room.release()

    async def _call(self, message: Message, work: _Work, cancellation: _Cancellation) -> Error:
        call, context, began = self._calls.call(message), copy_context(), time.monotonic()
        try:
            awaited = context.run(call.send, None)
        except StopIteration as end:  # it never waited
            return end.value
        except (asyncio.CancelledError, Exception) as error:  # the function's own, or no thread could be started
            return error
        self._share(work)
        return await _within(work.batch.timeout, began, _resume(call, awaited, context), cancellation)

    def _share(self, work: _Work) -> None:
        """While this one waits, two others may go on: a function that never waits is called by one alone."""
        for _ in range(min(2, work.more, len(work.lanes))):
            work.more -= 1
            work.group.create_task(self._work_through(work))

    def _judged(self, error: Error) -> Error:
        if not isinstance(error, self._unavailable):
            return error
        outage = DestinationUnavailable(describe(error))
        outage.__cause__ = error
        return outage


class _Work:
    """A batch, and who works through it."""

    def __init__(self, batch: Batch, lanes: deque[list[Message]], group: asyncio.TaskGroup, *, more: int) -> None:
        self.batch = batch
        self.lanes = lanes
        self.group = group
        self.more = more
        """How many more may join in."""
        self._loop = asyncio.get_running_loop()
        self._heard = self._loop.time()
        """When a call last ended, or the work began."""
        self._door = asyncio.Lock()
        """Of those who wait, one stands in line with the other batches: a large one shall not keep out a small one."""
        self._limit: asyncio.Timeout | None = None
        """Of the one that stands in line."""

    async def found(self, room: asyncio.Semaphore) -> bool:
        """Whether there was room in good time. Who waits for long is answered for, lest the relay take it for silence,
        and end what runs."""
        if not room.locked():
            return await room.acquire()
        async with self._door:
            return await self._stood_in_line(room)

    async def _stood_in_line(self, room: asyncio.Semaphore) -> bool:
        try:
            async with asyncio.timeout_at(self._patience_ends) as self._limit:
                return await room.acquire()
        except TimeoutError:
            return False
        finally:
            self._limit = None

    def heard(self) -> None:
        self._heard = self._loop.time()
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(self._patience_ends)

    @property
    def _patience_ends(self) -> float:
        return self._heard + self.batch.timeout / 2


class _Turn:
    """A function that never waits would keep the loop, and with it the leases, waiting for the whole batch. So calls
    may follow each other for a while, and then everybody else comes first, be it another worker."""

    def __init__(self) -> None:
        self._ends = 0.0

    async def take(self) -> None:
        if time.monotonic() >= self._ends:
            await asyncio.sleep(0)
            self.begin()

    def begin(self) -> None:
        self._ends = time.monotonic() + TURN


class _Cancellation:
    """Whether the current task was cancelled since this was made, even if a function swallowed the exception."""

    def __init__(self) -> None:
        self._task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._before = self._task.cancelling()

    def __bool__(self) -> bool:
        return self._task.cancelling() > self._before

    def check(self) -> None:
        if self:
            raise asyncio.CancelledError


async def _within(timeout: float, began: float, call: Awaitable[Error], cancellation: _Cancellation) -> Error:
    limit = asyncio.timeout(timeout - (time.monotonic() - began))
    try:
        async with limit:
            return await call
    except asyncio.CancelledError as error:
        if cancellation:
            raise
        return error  # the function's own
    except TimeoutError as error:
        return TimeoutError(f"no return within {spell(timeout)}") if limit.expired() else error


@coroutine
def _resume(call: Call, awaited: object, context: Context) -> Generator[Any, Any, Error]:
    """The rest of a call whose first step was made by hand, and that waits for something. A task would make each step
    in its own context, which the next call has, too."""
    step: Callable[[Any], object]
    while True:
        try:
            outcome = yield awaited
        except BaseException as error:
            step, outcome = call.throw, error
        else:
            step = call.send
        try:
            awaited = context.run(step, outcome)
        except StopIteration as end:
            return end.value


# ------------------------------------------------------------------------------------------------ async functions


class _CallsOnLoop:
    def __init__(self, function: Function) -> None:
        self._function = cast("Callable[[Message], Coroutine[Any, Any, object]]", function)

    def call(self, message: Message) -> Call:
        return _error_of(self._function, message)

    def close(self) -> None:
        pass


async def _error_of(function: Callable[..., Any], *arguments: object) -> Error:
    try:
        await function(*arguments)
    except (asyncio.CancelledError, TimeoutError, GeneratorExit):
        raise  # may be ours: `_within` knows
    except KeyboardInterrupt as error:
        if threading.current_thread() is threading.main_thread():
            raise  # somebody pressed Ctrl-C while the function ran
        return error
    except BaseException as error:
        return error
    return None


# ------------------------------------------------------------------------------------------------- sync functions


class _CallsInThreads:
    """At most `concurrency` calls that are waited for, and as many that are not any more: they ran over their time, or
    the relay gave them up."""

    def __init__(self, function: Function, concurrency: int) -> None:
        self._function = function
        self._concurrency = concurrency
        self._threads = Threads()
        self._late: set[Hashable] = set()

    async def call(self, message: Message) -> Error:
        if lane_of(message) in self._late:
            return TimeoutError("the call before it, which is not waited for any more, has still not returned")
        if len(self._late) >= self._concurrency:
            return DestinationUnavailable(f"{len(self._late)} calls that are not waited for have still not returned")
        outcome = await self._outcome(message)
        if inspect.isawaitable(outcome.result):
            return await _error_of(lambda: outcome.result)
        return outcome.error

    def close(self) -> None:
        self._threads.close()
        self._threads = Threads()

    async def _outcome(self, message: Message) -> Outcome:
        future = self._threads.run(partial(self._function, message))
        try:
            return await asyncio.wrap_future(future)
        finally:
            if not future.cancel() and not future.done():
                self._keep_out(lane_of(message), future)

    def _keep_out(self, lane: Hashable, future: Future[Outcome]) -> None:
        self._late.add(lane)
        future.add_done_callback(lambda _: self._late.discard(lane))


# ----------------------------------------------------------------------------------------------------------- lanes


def lane_of(message: Message) -> Hashable:
    """Messages with the same lane go one after the other."""
    return message.id if message.key is None else (message.topic, message.key)


def _lanes(messages: Iterable[Message]) -> deque[list[Message]]:
    lanes: dict[Hashable, list[Message]] = {}
    for message in messages:
        lanes.setdefault(lane_of(message), []).append(message)
    return deque(lanes.values())


# ------------------------------------------------------------------------------------------------------- functions


def _is_async(function: Any) -> bool:
    while isinstance(function, partial):
        function = cast("partial[Any]", function).func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _check_function(function: Any) -> None:
    if not callable(function):
        raise ConfigurationError(f"{function!r} is no publisher: it is neither a function nor can it be called")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(
            f"{function!r} is a generator: calling it would run nothing; it must return, not yield"
        )
    try:
        signature = inspect.signature(function)
    except ValueError:  # written in C
        return
    try:
        signature.bind(object())
    except TypeError as error:
        raise ConfigurationError(f"{function!r} cannot be called with one message: {error}") from None


def _classes(given: object) -> tuple[type[BaseException], ...]:
    classes = cast("tuple[object, ...]", given if isinstance(given, tuple) else (given,))
    for each in classes:
        if not (isinstance(each, type) and issubclass(each, BaseException)):
            raise ConfigurationError(f"unavailable={each!r} is no class of exceptions")
    return cast("tuple[type[BaseException], ...]", classes)
