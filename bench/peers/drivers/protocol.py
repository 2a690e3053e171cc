"""What every driver is: a program that is told what to do by lines of JSON, and answers each with another.

Only the standard library is imported here: a driver runs in the environment of the system that it drives.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from importlib.metadata import version
from itertools import count
from typing import Any, Protocol

SIZE = 200
"""Bytes of a payload."""
ORDER = "INSERT INTO bench_orders (total) VALUES (1)"
LOCK = "SELECT id FROM bench_orders WHERE id = 1 FOR UPDATE"

Handler = Callable[[str | bytes], Awaitable[None]]


class Writer(Protocol):
    """A connection of the application. What is written is the application's own transaction."""

    def transaction(self) -> AbstractAsyncContextManager[object]: ...

    async def execute(self, statement: str) -> object: ...

    async def add(self, key: str, payload: str) -> object: ...


class System(Protocol):
    """How one system is used, configured as its own documentation has it for throughput.

    It may also have a `session_writer`, as `writer` but through an ORM session, and a `runtime`: versions by name of
    what it needs beyond Python.
    """

    @property
    def packages(self) -> Sequence[str]:
        """Whose versions matter."""
        ...

    @property
    def configured(self) -> str:
        """In words: what differs from its defaults, how it acknowledges, which order it keeps."""
        ...

    @property
    def left(self) -> str:
        """A query: the payload as text, and 'pending' or 'dead', of each message that is in the database. Empty if
        messages stay there when they have been handled."""
        ...

    async def prepare(self, url: str) -> None:
        """Make its tables in an empty database."""
        ...

    async def fill(self, url: str, messages: Iterator[tuple[str, str]]) -> None:
        """Write keys and payloads, in this order, in any way that is quick."""
        ...

    def worker(self, url: str, handle: Handler, keys: int) -> AbstractAsyncContextManager[object]:
        """It runs within. On leaving, all that was handled is acknowledged. How many keys there are, it may know, as
        whoever configures it does."""
        ...

    def writer(self, url: str) -> AbstractAsyncContextManager[Writer]: ...


def compose(key: str, number: int) -> str:
    return f"{key} {number} ".ljust(SIZE, ".")


def parse(payload: str | bytes) -> tuple[str, int]:
    text = payload.decode() if isinstance(payload, bytes) else payload
    key, number, _ = text.split(" ", 2)
    return key, int(number)


def backlog(messages: int, keys: int) -> Iterator[tuple[str, str]]:
    """The keys in turn, each with its own numbers."""
    for each in range(messages):
        key = f"key-{each % keys}"
        yield key, compose(key, each // keys)


class Program:
    """One driver at work: each public method is something that it can be told to do."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._open = AsyncExitStack()
        self._writer: Writer | None = None
        self._transaction = AsyncExitStack()

    async def describe(self) -> dict[str, Any]:
        versions = {package: version(package) for package in self._system.packages}
        versions |= getattr(self._system, "runtime", dict)()
        return {"versions": versions, "configured": self._system.configured, "left": self._system.left}

    async def prepare(self, url: str) -> None:
        await self._system.prepare(url)

    async def fill(self, url: str, messages: int, keys: int) -> None:
        await self._system.fill(url, backlog(messages, keys))

    async def drain(self, url: str, messages: int, keys: int, seconds: float) -> dict[str, Any]:
        """Run a worker until it has handled so many messages, or so long. The clock runs from before it connects until
        it has acknowledged and stopped."""
        done, handled, first, last = asyncio.Event(), 0, 0.0, 0.0

        async def handle(payload: str | bytes) -> None:
            nonlocal handled, first, last
            handled += 1
            last = time.perf_counter()
            if handled == 1:
                first = last
            if handled == messages:
                done.set()

        start = time.perf_counter()
        async with self._system.worker(url, handle, keys):
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await done.wait()
        return {"handled": handled, "seconds": time.perf_counter() - start, "first_to_last": last - first}

    async def enqueue(self, url: str, seconds: float, writers: int, session: bool = False) -> dict[str, Any]:
        """Write as an application does, through so many connections at once."""
        make_writer = getattr(self._system, "session_writer") if session else self._system.writer  # noqa: B009
        async with AsyncExitStack() as stack:
            connections = [await stack.enter_async_context(make_writer(url)) for _ in range(writers)]
            await asyncio.gather(*(write(each, "warm", 0) for each in connections))
            start = time.perf_counter()
            numbers = await asyncio.gather(
                *(write_until(start + seconds, each, f"key-{index}") for index, each in enumerate(connections))
            )
            return {"transactions": sum(numbers), "seconds": time.perf_counter() - start}

    async def work(self, url: str, log: str, keys: int, switch: str = "", pause: float = 0.0) -> None:
        """Start a worker. It handles a message by writing it down; while there is a file `switch`, by failing."""
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        async def handle(payload: str | bytes) -> None:
            now, (key, number) = time.monotonic(), parse(payload)
            if switch and os.path.exists(switch):
                raise ConnectionError("the destination is down")
            os.write(file, f"{key} {number} {now}\n".encode())
            if pause:
                await asyncio.sleep(pause)

        await self._open.enter_async_context(self._system.worker(url, handle, keys))

    async def rest(self) -> None:
        """Close what is open."""
        await self._open.aclose()
        self._writer = None

    async def write(self, url: str, key: str, number: int) -> dict[str, Any]:
        return {"sent": await write(await self._connect(url), key, number)}

    async def begin(self, url: str, lock: bool) -> None:
        writer = await self._connect(url)
        await self._transaction.enter_async_context(writer.transaction())
        if lock:
            await writer.execute(LOCK)

    async def add(self, url: str, key: str, number: int) -> None:
        await (await self._connect(url)).add(key, compose(key, number))

    async def commit(self) -> None:
        await self._transaction.aclose()

    async def _connect(self, url: str) -> Writer:
        if self._writer is None:
            self._writer = await self._open.enter_async_context(self._system.writer(url))
        return self._writer


async def write(writer: Writer, key: str, number: int) -> float:
    """One transaction with a row of the application. When its commit was sent: all processes have the same clock."""
    async with writer.transaction():
        await writer.execute(ORDER)
        await writer.add(key, compose(key, number))
        return time.monotonic()


async def write_until(end: float, writer: Writer, key: str) -> int:
    for number in count():
        if time.perf_counter() >= end:
            return number
        await write(writer, key, number)
    raise AssertionError


def serve(system: System, run: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run) -> None:
    """Until there is nothing more to read. What libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    collect_garbage_less()
    run(_serve(Program(system), answers.write))


async def _serve(program: Program, say: Callable[[str], object]) -> None:
    while line := await asyncio.to_thread(sys.stdin.readline):
        say(json.dumps(await answer(program, json.loads(line))) + "\n")
    await program.rest()


async def answer(program: Program, request: dict[str, Any]) -> dict[str, Any]:
    name = request.pop("do")
    try:
        return await getattr(program, name)(**request) or {}
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{name}: {type(error).__name__}: {error}"}


def collect_garbage_less() -> None:
    """As a process that is nothing but a worker may, and the same for all."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
