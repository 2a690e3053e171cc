"""Relays at work: drained here and timed, or running in processes of their own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from postroom import Relay
from postroom.events import Delivered, Event, LeasesTaken
from postroom.ports import Publisher
from postroom.publishers.memory import MemoryPublisher

from .children import child, closed


def nowhere(pipe: Connection | None = None) -> Publisher:
    return MemoryPublisher("memory:?keep=0")


class Stopwatch:
    """Times a relay from an event to the settlement of the last of so many messages; then stops it."""

    def __init__(self, messages: int, since: type[Event]) -> None:
        self._messages = self._left = messages
        self._since = since
        self._timed = 0
        self._started: float | None = None
        self._ended = 0.0
        self.relay: Relay | None = None

    def notice(self, event: Event) -> None:
        if isinstance(event, Delivered):
            self._left -= len(event.messages)
            self._timed += 0 if self._started is None else len(event.messages)
        if self._started is None and isinstance(event, self._since):
            self._started = time.perf_counter()
        if self._left <= 0 and not self._ended and self.relay is not None:
            self._ended = time.perf_counter()
            self.relay.stop()

    @property
    def rate(self) -> float:
        if self._left > 0 or self._started is None:
            raise RuntimeError(f"the relay left {self._left} messages undelivered")
        return self._timed / (self._ended - self._started)


def rate_of_delivery(url: str, messages: int, since: type[Event] = LeasesTaken) -> float:
    """Messages per second, from when the relay owns its slots to its last settlement. Since its first delivery, what it
    does only once does not count."""
    stopwatch = Stopwatch(messages, since)
    stopwatch.relay = Relay(url, nowhere(), observers=[stopwatch])
    asyncio.run(stopwatch.relay.drain())
    return stopwatch.rate


def rate_of_drain(url: str, messages: int) -> float:
    """Messages per second of the whole of `Relay.drain`: connecting, looking once more and closing included."""
    relay = Relay(url, nowhere())
    start = time.perf_counter()
    report = asyncio.run(relay.drain())
    elapsed = time.perf_counter() - start
    if report.delivered != messages or report.pending:
        raise RuntimeError(f"the relay did not empty the backlog: {report}")
    return messages / elapsed


@contextmanager
def running_relay(
    url: str, make_publisher: Callable[[Connection], Publisher] = nowhere, **settings: Any
) -> Iterator[Connection]:
    """A relay in a process of its own, connected; its publisher may say something through the pipe."""
    with child(_run, url, make_publisher, settings) as pipe:
        yield pipe


def _run(
    pipe: Connection, url: str, make_publisher: Callable[[Connection], Publisher], settings: dict[str, Any]
) -> None:
    asyncio.run(_run_until_closed(pipe, Relay(url, make_publisher(pipe), **settings)))


async def _run_until_closed(pipe: Connection, relay: Relay) -> None:
    async with relay:
        pipe.send("ready")
        await closed(pipe)
