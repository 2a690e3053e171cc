"""What a relay tells its observers, one small fact each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .message import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The root of every event; `outbox` is the name of the outbox it is about."""

    outbox: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(Event):
    relay: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped(Event):
    relay: str
    clean: bool
    """False if something was still in flight when time ran out: its leases were left to expire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched(Event):
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Published(Event):
    """One call of a publisher is over; its answers may be good or bad."""

    destination: str
    count: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered(Event):
    """Confirmed by the destination and settled in the database."""

    messages: Sequence[Message]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried(Event):
    """A failed attempt; the message is tried again in `delay` seconds. A keyed message holds its key until then."""

    message: Message
    error: str
    delay: float
    was_tried: bool = True
    """False if it was only postponed, so that no attempt was counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Died(Event):
    """The message gave up. `holding` says whether its key waits for `revive` or `discard`."""

    message: Message
    reason: str
    error: str
    holding: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Refunded(Event):
    """A failure of this message turned out to be the destination's: it has its attempts back, and is dead no more."""

    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Superseded(Event):
    """A newer message of the same topic and key took this one's place (`latest_only`)."""

    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked(Event):
    """Rows behind a hold or a broken destination were moved out of the reader's way."""

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfOrder(Event):
    """A publisher that promises prefixes delivered this message although one before it in its key failed."""

    destination: str
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerOpened(Event):
    destination: str
    error: str
    pause: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerClosed(Event):
    destination: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicHeldBack(Event):
    """The destination takes others, but nothing of this topic: it is missing there, or closed to us."""

    destination: str
    topic: str
    error: str
    pause: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResumed(Event):
    destination: str
    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasesTaken(Event):
    slots: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasesReleased(Event):
    slots: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasesLost(Event):
    """Another relay owns these slots now, or their time ran out before they could be renewed."""

    slots: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreDown(Event):
    """The database does not answer; the relay waits and tries again by itself."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUp(Event):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned(Event):
    count: int
