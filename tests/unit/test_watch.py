"""When a relay looks: what rings must not keep it from what does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from postroom.clock import SystemClock
from postroom.ports import Glance, Range
from postroom.relay.watch import BUSY, TELL_AGAIN, Watch
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

    expects_stragglers = False

    @asynccontextmanager
    async def wakeup(self, poll_interval: float) -> AsyncGenerator[Bell]:
        yield Bell()

    async def glance(self, ranges: Sequence[Range]) -> Glance:
        return Glance({SILENT})


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


class SilentOutpost(Outpost):
    """It does not answer when it is asked while somebody rings."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def glance(self, ranges: Sequence[Range]) -> Glance:
        self.asked.set()
        return await asyncio.get_running_loop().create_future()


async def test_whoever_rings_does_not_wait_for_a_glance_that_is_due() -> None:
    pump, outpost = Listener(), SilentOutpost()
    parts: dict[str, Any] = {"store": outpost, "pumps": [pump], "settings": Settings(), "clock": SystemClock()}
    running = asyncio.create_task(Watch(**parts, named=lambda name: None).run())
    async with asyncio.timeout(10):
        await outpost.asked.wait()
    assert pump.heard == {RINGING}
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
    def __init__(
        self,
        bell: Bell,
        *,
        expects_stragglers: bool = False,
        seen: Collection[int] = (),
        doubtful: Collection[int] = (),
    ) -> None:
        self._bell = bell
        self._seen, self._doubtful = seen, doubtful
        self.expects_stragglers = expects_stragglers

    @asynccontextmanager
    async def wakeup(self, poll_interval: float) -> AsyncGenerator[Bell]:
        yield self._bell

    async def glance(self, ranges: Sequence[Range]) -> Glance:
        return Glance(self._seen, self._doubtful)


class TimedBell(QuietBell):
    """Remembers for how long each wait was to be."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.waits: list[float] = []
        self.has_been_waited_for = asyncio.Event()

    async def wait(self, timeout: float) -> Collection[int]:
        self.waits.append(round(timeout, 3))
        if len(self.waits) == 20:
            self.has_been_waited_for.set()
        return await super().wait(timeout)


async def watched(pump: Listener, clock: FakeClock, outpost: QuietOutpost, until: asyncio.Event) -> None:
    parts: dict[str, Any] = {"store": outpost, "pumps": [pump], "settings": Settings(), "clock": clock}
    running = asyncio.create_task(Watch(**parts, named=lambda name: None).run())
    async with asyncio.timeout(10):
        await until.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_after_something_new_it_looks_soon_and_then_ever_later_until_it_dozes() -> None:
    clock, pump = FakeClock(), Listener()
    bell, pump.fetched_at = TimedBell(clock), clock.monotonic()
    await watched(pump, clock, QuietOutpost(bell), bell.has_been_waited_for)
    assert bell.waits[:7] == [0.02, 0.02, 0.04, 0.08, 1.0, 1.0, 1.0]


async def test_what_may_be_a_straggler_keeps_nobody_awake() -> None:
    clock = FakeClock()
    bell = TimedBell(clock)
    await watched(Listener(), clock, QuietOutpost(bell, doubtful=range(64)), bell.has_been_waited_for)
    assert bell.waits[-1] == Settings().idle_interval


async def test_many_messages_that_nobody_rang_for_wake_it_for_good() -> None:
    clock = FakeClock()
    bell = TimedBell(clock)
    await watched(Listener(), clock, QuietOutpost(bell, seen=range(BUSY)), bell.has_been_waited_for)
    assert bell.waits[-1] == Settings().poll_interval


async def test_as_long_as_stragglers_are_expected_it_goes_on_looking() -> None:
    clock = FakeClock()
    bell = TimedBell(clock)
    await watched(Listener(), clock, QuietOutpost(bell, expects_stragglers=True), bell.has_been_waited_for)
    assert bell.told, "it dozes"
    assert bell.waits[-1] == Settings().poll_interval


async def test_writers_are_told_again_now_and_then_that_they_should_ring() -> None:
    clock = FakeClock()
    bell = QuietBell(clock)
    await watched(Listener(), clock, QuietOutpost(bell), bell.was_told_twice)
    assert TELL_AGAIN <= bell.told[1] - bell.told[0] < 2 * TELL_AGAIN
