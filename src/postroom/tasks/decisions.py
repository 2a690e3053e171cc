"""What is to become of a task that failed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from ..duration import Duration, seconds
from ..errors import ConfigurationError


@dataclass(frozen=True, slots=True, init=False)
class Retry:
    """Run it again, at a time or after a delay, whatever the retry policy says; at once if neither is given."""

    at: datetime | None
    delay: float

    def __init__(self, *, at: datetime | None = None, delay: Duration | None = None) -> None:
        if at is not None and delay is not None:
            raise ConfigurationError("Retry takes at or delay, not both")
        if at is not None and at.utcoffset() is None:
            raise ConfigurationError(f"Retry(at={at!r}) has no time zone; write datetime.now(UTC) + …, or add tzinfo")
        object.__setattr__(self, "at", at)
        object.__setattr__(self, "delay", 0.0 if delay is None else seconds(delay, name="delay"))

    def seconds_from(self, now: datetime) -> float:
        return self.delay if self.at is None else max(0.0, (self.at.astimezone(UTC) - now).total_seconds())


@dataclass(frozen=True, slots=True)
class Block:
    """Run it no more: it is dead, and under `on_dead = "block"` its key waits for `revive` or `discard`."""


@dataclass(frozen=True, slots=True)
class Ignore:
    """Take it as done."""


Decision = Retry | Block | Ignore
