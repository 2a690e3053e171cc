"""When a relay looks: what rings must not keep it from what does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from postroom.clock import SystemClock
from postroom.ports import Range
from postroom.relay.watch import TELL_AGAIN, Watch
from postroom.settings import Settings
from postroom.testing import FakeClock

RINGING, SILENT = 1, 2


class Bell:
    """Somebody rings for one slot, again and again."""

    name = "doorbell"
    rings = True

    async def doze(self, slots: Collection[int]) -> None: ...

    async def rouse(self, slots: Collection[int]) -> None: ...

    async def wait(self, timeout: float) -> Collection[int]:
        await asyncio.sleep(timeout / 2)
        return {RINGING}


class Outpost:
    """Writers of the other slot cannot ring; a glance finds their messages."""

    @asynccontextmanager
    async def wakeup(self, poll_interval: float) -> AsyncGenerator[Bell]:
        yield Bell()

    async def glance(self, ranges: Sequence[Range]) -> Collection[int]:
        return {SILENT}


class Listener:
    """A pump, as far as the watch knows it."""

    fetched_at = 0.0

    def __init__(self) -> None:
        self.plan = SimpleNamespace(slots={RINGING: None, SILENT: None}, unread=lambda: [Range(SILENT, 0, 1)])
        self.heard: set[int] = set()
        self.has_heard_both = asyncio.Event()

    def ring(self, slots: Collection[int]) -> None:
        self.heard.update(slots)
        if self.heard == {RINGING, SILENT}:
            self.has_heard_both.set()


async def test_what_does_not_ring_is_found_although_others_ring_all_the_time() -> None:
    pump, outpost = Listener(), Outpost()
    settings = Settings(idle_interval=0.3, poll_interval=0.05)
    parts: dict[str, Any] = {"store": outpost, "pumps": [pump], "settings": settings, "clock": SystemClock()}
    running = asyncio.create_task(Watch(**parts, named=lambda name: None).run())
    async with asyncio.timeout(10):
        await pump.has_heard_both.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


class QuietBell(Bell):
    """Nobody rings, and time passes while we wait."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.told: list[float] = []
        self.was_told_twice = asyncio.Event()

    async def doze(self, slots: Collection[int]) -> None:
        self.told.append(self._clock.monotonic())
        if len(self.told) == 2:
            self.was_told_twice.set()

    async def wait(self, timeout: float) -> Collection[int]:
        await asyncio.sleep(0)
        self._clock.advance(timeout)
        return ()


class QuietOutpost:
    def __init__(self, bell: Bell) -> None:
        self._bell = bell

    @asynccontextmanager
    async def wakeup(self, poll_interval: float) -> AsyncGenerator[Bell]:
        yield self._bell

    async def glance(self, ranges: Sequence[Range]) -> Collection[int]:
        return ()


async def test_writers_are_told_again_now_and_then_that_they_should_ring() -> None:
    clock = FakeClock()
    bell = QuietBell(clock)
    parts: dict[str, Any] = {"store": QuietOutpost(bell), "pumps": [Listener()], "settings": Settings(), "clock": clock}
    running = asyncio.create_task(Watch(**parts, named=lambda name: None).run())
    async with asyncio.timeout(10):
        await bell.was_told_twice.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert TELL_AGAIN <= bell.told[1] - bell.told[0] < 2 * TELL_AGAIN
