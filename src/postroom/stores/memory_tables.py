"""The tables of a memory store, and the moves between them that several files make."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from datetime import datetime
from typing import Any

from ..clock import Clock
from ..message import SLOTS, Message
from ..ports import Gate, HoldStatus
from .memory_rows import (
    BreakerRow,
    HoldRow,
    LeaseRow,
    Outcome,
    RelayRow,
    Row,
    Shelf,
    hot_groups,
    parked_groups,
    timed_groups,
)


class Tables:
    """The state of one outbox. Its store sees to it that only one thread at a time changes it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.claim = ""
        self.last_epoch = 0
        self._last_position = 0

        self.hot = Shelf(hot_groups)
        self.later = Shelf(timed_groups)
        self.parked = Shelf(parked_groups)
        self.dead = Shelf(timed_groups)
        self.archive: dict[int, Row] = {}
        self._archived = 0

        self.dedupe: dict[str, datetime] = {}
        self.counters: dict[tuple[str, str], tuple[int, int]] = {}
        self.inbox: dict[tuple[str, ...], Any] = {}
        self.holds: dict[Gate, HoldRow] = {}
        self.leases = {slot: LeaseRow() for slot in range(SLOTS)}
        self.relays: dict[str, RelayRow] = {}
        self.breakers: defaultdict[str, BreakerRow] = defaultdict(BreakerRow)

    def now(self) -> datetime:
        return self._clock.now()

    # --- rows

    def next_position(self) -> int:
        self._last_position += 1
        return self._last_position

    def append(self, row: Row) -> None:
        """To the end of the hot rows, under a new position."""
        message = replace(row.message, position=self.next_position())
        self.hot.put(Row(message=message, attempts=row.attempts))

    def find_waiting(self, position: int) -> Row | None:
        return self.hot.rows.get(position) or self.parked.rows.get(position)

    def take_waiting(self, position: int) -> Row | None:
        return self.hot.take(position) or self.parked.take(position)

    def keep(self, row: Row, outcome: Outcome) -> None:
        self._archived += 1
        self.archive[self._archived] = replace(row, outcome=outcome, settled_at=self.now(), due_at=None, gate=None)

    # --- holds

    def hold(self, row: Row, status: HoldStatus, until: datetime | None, error: str) -> None:
        since = self.holds[row.key_gate].since if self.is_held_by(row.message) else self.now()
        self.holds[row.key_gate] = HoldRow(
            message_id=row.message.id,
            position=row.position,
            attempts=row.attempts,
            status=status,
            until=until,
            error=error,
            since=since,
        )

    def is_held_by(self, message: Message) -> bool:
        hold = self.holds.get(Gate(message.slot, message.topic, message.key))
        return hold is not None and hold.position == message.position

    def is_blocked_by(self, message: Message) -> bool:
        """A hold that lets out what is parked may bear the name of one that died and let its key go on."""
        return (
            self.is_held_by(message)
            and self.holds[Gate(message.slot, message.topic, message.key)].status != "releasing"
        )

    def let_go(self, message: Message) -> None:
        """The message is out of the way: its hold goes, or lets out what is parked."""
        gate = Gate(message.slot, message.topic, message.key)
        if self.is_held_by(message) and not self.drop(gate):
            self.set_releasing(gate)

    def set_releasing(self, gate: Gate) -> None:
        self.holds[gate].status, self.holds[gate].until = "releasing", None

    def drop(self, gate: Gate) -> bool:
        if gate in self.parked.groups:
            return False
        self.holds.pop(gate, None)
        return True
