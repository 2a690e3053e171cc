"""What to read next, and what becomes of each row that was read."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ..message import Message
from ..ports import Fetched, Gate, Range
from .appetite import DEEP
from .gates import Barrier, HeldKey, Slot
from .outlet import Lane, Outlet
from .verdicts import Verdicts

SHARES = 16
"""No slot gets more than this part of a fetch while as many others have rows too."""

SHARES_OF_TOPICS = 4
"""Of parked rows: behind a topic there are many keys, behind a key only one, of which little can be under way."""

PATIENCE = 1.0
"""Seconds that reading waits for a destination which has as much in memory as it may have."""


class Wanted(NamedTuple):
    ranges: list[Range]
    limit: int
    """Of rows in all; those with the lowest positions."""


class Reading(Verdicts):
    def wants(self, now: float) -> Wanted | None:
        """What to fetch next. None while everything is full, or nothing new can be there.

        The oldest rows of all slots: read in step, they lie side by side, and so do the deletes that follow. But only
        so many of one slot, so that one bulk import does not delay every other slot.
        """
        self._tend(now)
        asking = [slot for slot in self.slots.values() if not slot.leaving and (slot.full or slot.stale)]
        if not asking or not self._has_appetite(now):
            return None
        is_backlog = not self._claims_rows and all(slot.full for slot in asking)
        size = self._appetite.rows(DEEP if is_backlog else 1)
        busy = sum(slot.found > 0 for slot in asking)
        share = max(1, size // max(2, min(busy, SHARES)))
        return Wanted([self._range(slot, share) for slot in asking], size)

    def take(self, wanted: Wanted, fetched: Fetched, now: float) -> int:
        """Take in what was fetched; returns how many messages were new."""
        ranges, limit = wanted
        self._appetite.took(fetched.messages)
        self._wall = (fetched.now, now)
        before = len(self._known)
        counts = dict.fromkeys((asked.slot for asked in ranges), 0)
        slots, known = self.slots, self._known
        for message in fetched.messages:
            number, position = message.slot, message.position
            counts[number] += 1
            slot = slots.get(number)
            if slot is None or slot.leaving:
                continue  # its next owner reads it: the mark must not pass it
            if slot.rewind_to is not None and position > slot.rewind_to:
                continue  # what lies beyond a rewind is read again, in order
            if position > slot.cursor:
                slot.cursor = position
            if position not in known:
                self._admit(message, slot, now)
        cut_off = len(fetched.messages) >= limit
        for asked in ranges:
            if (slot := slots.get(asked.slot)) is not None and not slot.leaving:
                slot.found = counts[asked.slot]
                slot.full = cut_off or counts[asked.slot] >= asked.limit
                slot.horizon = max(slot.horizon, fetched.horizon)
        return len(known) - before

    def could_not_read(self, rows: int) -> None:
        self._appetite.failed(rows)

    def due_heads(self, now: float) -> list[HeldKey]:
        """Held keys whose message may be tried again; fetch those messages and `take_heads`."""
        due: list[HeldKey] = []
        unsettled: list[HeldKey] = []
        most = self._appetite.rows()
        while self._due and self._due[0][0] <= now and len(due) < most:
            _, _, held = heapq.heappop(self._due)
            if not self._is_current(held) or held.status != "retry" or held.trying:
                continue
            if held.position in self._known:
                unsettled.append(held)  # its last failure is not written down yet
            elif held.due is not None and held.due <= now:
                held.trying = True
                due.append(held)
        for held in unsettled:
            self._await_due(held)
        return due

    def put_heads_back(self, asked: Iterable[HeldKey]) -> None:
        """They could not be fetched."""
        for held in asked:
            held.trying = False
            self._await_due(held)

    def take_heads(self, asked: Sequence[HeldKey], messages: Sequence[Message], now: float) -> None:
        self._appetite.took(messages)
        found = {message.position: message for message in messages}
        for held in asked:
            if not self._is_current(held):
                continue
            message = found.get(held.position)
            if message is None:
                held.trying = False
                self._release(held)  # its message is gone: somebody delivered it
            elif self.slots[message.slot].leaving:
                held.trying = False  # the next owner tries it
            elif self._is_superseded(held, message):
                held.trying = False
                self._record(message, self.slots[message.slot])
                self._settlement.superseded.append(message)
                self._open(held)
            elif not self._expires(message, self.slots[message.slot], now) and message.position not in self._known:
                message.attempt = held.attempts + 1
                self._enter(message, self.slots[message.slot], *self._topic(message))

    def parked_wants(self) -> Iterator[tuple[Gate, int, int]]:
        """Which parked rows to read: (gate, after, limit), each as it is when those before it were taken in."""
        barriers = [*self._draining.values(), *self._unpaused_topics()]
        wanting = [each for each in barriers if self._may_be_drained(each)]
        for barrier in sorted(wanting, key=lambda barrier: barrier.turn):
            if self._may_be_drained(barrier) and self._has_room(barrier.name.topic):
                barrier.turn = next(self._tie)
                shares = min(len(wanting), SHARES if isinstance(barrier, HeldKey) else SHARES_OF_TOPICS)
                yield barrier.name, barrier.cursor, max(1, self._appetite.rows() // shares)

    def _may_be_drained(self, barrier: Barrier) -> bool:
        return barrier.can_be_drained() and not self._is_paused(barrier.name.topic)

    def take_parked(self, gate: Gate, after: int, messages: Sequence[Message], limit: int, now: float) -> None:
        self._appetite.took(messages)
        slot = self.slots.get(gate.slot)
        barrier = self._barrier(gate)
        if slot is None or barrier is None or slot.leaving or self._is_paused(gate.topic):
            return
        if not self._claims_rows and (barrier.cursor != after or not barrier.can_be_drained()):
            return  # it has started over, or waits for what went back behind it
        if isinstance(barrier, HeldKey) and barrier.status != "releasing":
            return
        for message in messages:
            barrier.cursor = message.position
            if message.position not in self._known:
                self._admit_parked(gate, message, slot, now)
        if len(messages) < limit:
            barrier.exhausted = True
            self._finish(barrier)

    def _has_appetite(self, now: float) -> bool:
        """Whether to read on. A full outlet is waited for if it drains quickly; a slow one must not stall others."""
        full = [outlet for outlet in self._outlets if outlet.is_full(self._appetite.window, now)]
        for outlet in full:
            if outlet.full_for(now) > PATIENCE and outlet.breaker.state == "closed":
                self._relieve(outlet, now)
        if len(full) == len(self._outlets):
            return False
        return not any(outlet.full_for(now) < PATIENCE and outlet.breaker.state == "closed" for outlet in full)

    def _range(self, slot: Slot, limit: int) -> Range:
        slot.stale = False
        if slot.rewind_to is not None:
            slot.cursor, slot.rewind_to = min(slot.cursor, slot.rewind_to), None
        return Range(slot.number, slot.cursor, limit, slot.horizon)

    def _admit(self, message: Message, slot: Slot, now: float) -> None:
        if message.expires_at is not None and self._expires(message, slot, now):
            return
        if self.held and message.key is not None:
            held = self.held.get((message.topic, message.key))
            if held is not None:
                self._skip(held, message, slot, now)
                return
        outlet, latest_only = self._topics.get((message.topic, message.type)) or self._topic(message)
        if slot.closed_topics or self._paused or self._held_back or outlet.in_memory >= 2 * self._appetite.window:
            closed = self._closed_topic(message, slot, now)
            if closed is not None:
                self._skip(closed, message, slot, now)
                return
        self._enter(message, slot, outlet, latest_only)

    def _admit_parked(self, gate: Gate, message: Message, slot: Slot, now: float) -> None:
        if message.expires_at is not None and self._expires(message, slot, now):
            return
        held = None if message.key is None else self.held.get((message.topic, message.key))
        if gate.key is None and held is not None:
            if held.status != "releasing" or held.busy:  # else it reads them itself
                self._park(held, message)
            return
        self._from_parked.add(message.position)
        self._enter(message, slot, *self._topic(message))

    def _enter(self, message: Message, slot: Slot, outlet: Outlet, latest_only: bool) -> None:
        name = message.position if message.key is None or self._claims_rows else (message.topic, message.key)
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = self._new_lane(name, slot.number, message.topic, outlet, latest_only)
        self._known[message.position] = slot
        slot.count += 1
        outlet.in_memory += 1
        if latest_only and lane.waiting and message.sequence is None:  # a dense sequence must have no gaps
            self._supersede(lane)
        lane.waiting.append(message)
        if not lane.queued and not lane.flying:
            self._queue(lane)

    def _new_lane(self, name: object, slot: int, topic: str, outlet: Outlet, latest_only: bool) -> Lane:
        if not self._spare_lanes:
            return Lane(name, slot, topic, outlet, latest_only)
        lane = self._spare_lanes.pop()
        lane.name, lane.slot, lane.topic, lane.outlet, lane.latest_only = name, slot, topic, outlet, latest_only
        return lane

    def _is_superseded(self, held: HeldKey, message: Message) -> bool:
        return held.skipped_from is not None and message.sequence is None and self._topic(message)[1]
