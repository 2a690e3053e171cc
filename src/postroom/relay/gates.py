"""What keeps rows from going on, as the owner of their slot remembers it: a held key, or a topic that is closed."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..message import SLOTS
from ..ports import Gate, Hold, HoldStatus

PARK_AFTER = 5.0
"""Rows are parked only behind what lasts longer than this: a retry after a second must not move 10,000 rows."""


@dataclass(slots=True, eq=False, kw_only=True)
class Barrier:
    """Rows met behind it stay in the hot table (`skipped_from` is the first), or are parked once there are many."""

    name: Gate
    since: float
    skipped_from: int | None = None
    skipped_to: int = 0
    skipped: int = 0
    parking: bool = False
    """Rows met in the hot table are moved to parked."""
    parked: bool = False
    """There may be rows in parked; they go before any in the hot table."""
    unsettled: int = 0
    """Rows that are being parked, which a read of parked rows would not find yet."""
    cursor: int = 0
    """How far the parked rows were read."""
    exhausted: bool = False
    turn: int = -1
    """When it was drained last, of all: each gets its turn."""

    def skip(self, position: int) -> bool:
        """Leave a row where it is; True if it was not met before."""
        if self.skipped_from is None or position < self.skipped_from:
            self.skipped_from = position
        if position <= self.skipped_to:
            return False
        self.skipped_to = position
        self.skipped += 1
        return True

    def forget_skipped(self) -> int | None:
        """Those that were skipped are met again; returns from where on."""
        first, self.skipped_from, self.skipped_to, self.skipped = self.skipped_from, None, 0, 0
        return first

    def can_be_drained(self) -> bool:
        return self.parked and not self.exhausted and self.unsettled == 0

    def start_draining(self) -> None:
        self.parking, self.parked, self.exhausted, self.cursor = False, True, False, 0


@dataclass(slots=True, eq=False, kw_only=True)
class HeldKey(Barrier):
    """A hold, and the message that is its reason."""

    position: int
    attempts: int
    status: HoldStatus
    due: float | None
    """When the message may be tried again, by this process's monotonic clock."""
    trying: bool = False
    """Its message is in memory, to be tried."""
    provisional: bool = False
    """Only until the death of its message is written down."""
    busy: bool = False
    """No hold: the key has as much in memory as it may have, and is slow. Kept in memory only."""
    finishing: bool = False
    """Asked the store to drop the hold."""

    @classmethod
    def of(cls, hold: Hold, now: float) -> HeldKey:
        """A hold that was found in the database. Whether rows are parked behind it will be seen when it opens."""
        due = None if hold.due_in is None else now + hold.due_in
        return cls(
            name=Gate(hold.slot, hold.topic, hold.key), since=now, position=hold.position,
            attempts=hold.attempts, status=hold.status, due=due, parked=True,
        )  # fmt: skip

    def inherit(self, was: HeldKey) -> None:
        """Take the place of another hold of this key, with all that waits behind it."""
        self.parked = self.parked or was.parked
        self.skipped_from, self.skipped_to, self.skipped = was.skipped_from, was.skipped_to, was.skipped
        self.unsettled, self.turn = was.unsettled, was.turn

    def lasts(self, now: float) -> bool:
        if self.status == "retry":
            return self.due is not None and self.due - now > PARK_AFTER
        return self.status == "dead" and not self.provisional


@dataclass(slots=True, eq=False, kw_only=True)
class ClosedTopic(Barrier):
    """A topic in one slot whose destination is tripped, paused or too slow for what comes in."""

    open: bool = False

    def lasts(self, now: float) -> bool:
        return now - self.since > PARK_AFTER


@dataclass(slots=True, eq=False, kw_only=True)
class Slot:
    """A leased slot: how far it was read, and what is closed in it."""

    number: int
    epoch: int
    deadline: float
    """No publish may run beyond this, by the monotonic clock."""
    cursor: int
    horizon: int
    mark: int
    """The highest mark there was: what is true of it stays true, also while the slot is read again."""
    rewind_to: int | None = None
    full: bool = False
    """The last fetch brought as many rows as asked for: there may be more."""
    found: int = SLOTS
    """Rows of the last fetch; before the first one, any slot may be full of them."""
    stale: bool = True
    """Something may have been committed since the last fetch."""
    leaving: bool = False
    skipped: int = 0
    """Rows that were left in the hot table behind barriers."""
    count: int = 0
    """Messages in memory that are not settled yet."""
    closed_topics: dict[str, ClosedTopic] = field(default_factory=dict[str, ClosedTopic])

    def rewind(self, position: int | None) -> None:
        """Read again from `position` on; kept apart from the cursor because a fetch may be under way."""
        if position is not None:
            before = position - 1
            self.rewind_to = before if self.rewind_to is None else min(before, self.rewind_to)
            self.stale = True
