"""What a memory store keeps: rows on shelves, and small records beside them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Any, Literal

from ..message import Message
from ..ports import Beat, Gate, HoldStatus

Outcome = Literal["delivered", "superseded", "discarded"]
Order = tuple[Any, ...]


@dataclass(slots=True, kw_only=True)
class Row:
    """A message, and what is known of it beside; what `due_at` and `settled_at` mean depends on where it is."""

    message: Message
    arrival: int = 0
    attempts: int = 0
    gate: Gate | None = None
    due_at: datetime | None = None
    settled_at: datetime | None = None
    outcome: Outcome | None = None
    reason: str | None = None
    error: str | None = None

    @property
    def position(self) -> int:
        return self.message.position

    @property
    def key_gate(self) -> Gate:
        return Gate(self.message.slot, self.message.topic, self.message.key)

    def read(self) -> Message:
        """A copy, as if it came from a database: whoever asked may write on it."""
        return replace(self.message, attempt=self.attempts + 1)


class Shelf:
    """Rows by position, and in order within each group they belong to. A group without rows is not there."""

    def __init__(self, groups_of: Callable[[Row], Iterable[tuple[Hashable, Order]]]) -> None:
        self._groups_of = groups_of
        self._arrivals = 0
        self.rows: dict[int, Row] = {}
        self.groups: dict[Any, list[Order]] = {}

    def put(self, row: Row) -> None:
        self._arrivals += 1
        row.arrival = self._arrivals
        self.rows[row.position] = row
        for group, order in self._groups_of(row):
            insort(self.groups.setdefault(group, []), order)

    def take(self, position: int) -> Row | None:
        row = self.rows.pop(position, None)
        for group, order in self._groups_of(row) if row else ():
            orders = self.groups[group]
            del orders[bisect_left(orders, order)]
            if not orders:
                del self.groups[group]
        return row

    def read(self, group: Hashable, after: Order = (), limit: int | None = None) -> Iterator[Row]:
        orders = self.groups.get(group, [])
        start = bisect_right(orders, after)
        return (self.rows[order[-1]] for order in islice(orders, start, None if limit is None else start + limit))


def hot_groups(row: Row) -> Iterator[tuple[Hashable, Order]]:
    yield row.message.slot, (row.position,)


def timed_groups(row: Row) -> Iterator[tuple[Hashable, Order]]:
    if row.due_at is not None:
        yield row.message.slot, (row.due_at, row.arrival, row.position)


def parked_groups(row: Row) -> Iterator[tuple[Hashable, Order]]:
    if row.message.key is not None:
        yield row.key_gate, (row.position,)
    if row.gate is not None and row.gate.key is None:
        yield row.gate, (row.position,)


@dataclass(slots=True, kw_only=True)
class HoldRow:
    message_id: str
    position: int
    attempts: int
    status: HoldStatus
    until: datetime | None
    error: str
    since: datetime


@dataclass(slots=True, kw_only=True)
class LeaseRow:
    owner: str | None = None
    epoch: int = 0
    expires_at: datetime | None = None
    mark: int = 0
    notes: str | None = None
    kept_for: str | None = None


@dataclass(slots=True, kw_only=True)
class RelayRow:
    beat: Beat
    started_at: datetime
    seen_at: datetime
    until: datetime


@dataclass(slots=True, kw_only=True)
class BreakerRow:
    successes: int = 0
    probe_by: str | None = None
    probe_until: datetime | None = None
    tripped_at: datetime | None = None
    tripped_by: str | None = None
    error: str | None = None
