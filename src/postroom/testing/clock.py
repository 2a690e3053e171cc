"""Time that passes only when a test says so."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

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
