"""Time that passes only when a test says so, and time that a test can move on."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from ..clock import Clock, SystemClock

START = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)


class FakeClock:
    """A `Clock` for relays and stores. `advance` is the only thing that moves it."""

    def __init__(self, start: datetime = START) -> None:
        self._start = self._now = start

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return (self._now - self._start).total_seconds()

    def advance(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)


class TravelClock:
    """The system's clock, moved on by `advance`.

    So it agrees with application code that asks the system for the time itself. While it is `standing_still` no time
    passes at all, so that a slow machine makes nothing due.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or SystemClock()
        self._travelled = 0.0
        self._still: tuple[datetime, float] | None = None

    def now(self) -> datetime:
        now = self._still[0] if self._still else self._clock.now()
        return now + timedelta(seconds=self._travelled)

    def monotonic(self) -> float:
        return (self._still[1] if self._still else self._clock.monotonic()) + self._travelled

    def advance(self, seconds: float) -> None:
        self._travelled += seconds

    @contextmanager
    def standing_still(self) -> Generator[None]:
        before, self._still = self._still, self._still or (self._clock.now(), self._clock.monotonic())
        try:
            yield
        finally:
            self._still = before
