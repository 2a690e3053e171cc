"""What the relay remembers of its slots: messages, lanes, barriers, and what is to be written down."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import count
from typing import Literal

from ..message import TASKS_TOPIC, Message
from ..ports import NO_LIMIT, Gate, Range, Settlement
from ..routing import Globs
from ..settings import Settings
from .appetite import Appetite
from .gates import ClosedTopic, HeldKey, Slot
from .outlet import Lane, Outlet
from .pause import Pause


@dataclass(frozen=True, slots=True)
class BreakerChanged:
    """For the pump to tell the observers and the other relays."""

    outlet: Outlet
    state: Literal["tripped", "closed"]
    topic: str | None = None
    """Held back alone, or no longer; None = the destination."""


class Changes(deque[BreakerChanged]):
    """For the observers, in the order in which they happened. The pumps of a relay share them, as they share the
    breakers."""

    def __init__(self) -> None:
        super().__init__()
        self.unwritten: dict[str, BreakerChanged] = {}
        """For the database: the latest of each destination."""
        self.is_being_written = False
        """One pump at a time: else the end of an outage may be written down before its beginning."""
        self.write_at = -math.inf
        self.pause = Pause()
        """Between tries to write."""

    def written(self, change: BreakerChanged) -> None:
        """Or refused. Something newer may be to be said of the same destination."""
        if self.unwritten.get(change.outlet.name) is change:
            del self.unwritten[change.outlet.name]


class Memory:
    def __init__(
        self,
        *,
        relay: str,
        settings: Settings,
        outlets: Sequence[Outlet],
        route: Callable[[str], Outlet],
        random: Callable[[], float],
        publish_timeout: float,
        changes: Changes | None = None,
    ) -> None:
        self._relay = relay
        self._settings = settings
        self._outlets = outlets
        self._route = route
        self._random = random
        self._publish_timeout = publish_timeout
        self._appetite = Appetite(settings.batch_size)
        self._claims_rows = settings.claim == "rows"
        """Rows that were fetched are in nobody else's reach: those that are not sent must be let go of."""
        self._paused: Globs = Globs()
        self._held_back: set[str] = set()
        """Topics of which nothing gets through, while others of their destination do."""

        self.slots: dict[int, Slot] = {}
        self.departures: int = 0
        """How often a slot was lost, or began to be left."""
        self.held: dict[object, HeldKey] = {}
        """By (topic, key)."""
        self.changes = Changes() if changes is None else changes
        self.out_of_order: list[tuple[Outlet, Message]] = []
        self._topics: dict[tuple[str, str | None], tuple[Outlet, bool]] = {}
        self._lanes: dict[object, Lane] = {}
        self._spare_lanes: list[Lane] = []
        self._known: dict[int, Slot] = {}
        """Every position in memory that is not settled, so that no row is taken twice."""
        self._from_parked: set[int] = set()
        self._due: list[tuple[float, int, HeldKey]] = []
        self._tie = count()
        self._draining: dict[Gate, HeldKey] = {}
        self._wall: tuple[datetime, float] | None = None
        self._settlement = self._new_settlement()
        self._under_way: Settlement | None = None

    def lose(self, numbers: Iterable[int]) -> None:
        """Slots are ours no more: forget what waits. What is flying still counts if it turns out to be delivered."""
        for number in numbers:
            slot = self.slots.pop(number, None)
            if slot is not None:
                self.departures += 1
                self._forget_slot(slot)

    def flying_slots(self) -> set[int]:
        """Slots with unanswered messages, lost ones included: they must not be taken anew before those are over."""
        return {lane.slot for lane in self._lanes.values() if lane.flying}

    def lost_flights(self) -> set[int]:
        """Positions in flight whose slot was lost."""
        return {message.position for lane in self._lanes.values() if lane.lost for message in lane.flying}

    def epochs(self) -> dict[int, int]:
        return {slot.number: slot.epoch for slot in self.slots.values()}

    def marks(self) -> dict[int, int]:
        """For each slot the position below which nothing undelivered is left and nothing can appear."""
        lowest = {slot.number: self._read_to(slot) for slot in self.slots.values()}
        for position, slot in self._known.items():
            if slot.number in lowest:
                lowest[slot.number] = min(lowest[slot.number], position - 1)
        for barrier in self._barriers():
            first = barrier.skipped_from
            if isinstance(barrier, HeldKey) and barrier.status == "retry":
                first = barrier.position if first is None else min(first, barrier.position)
            if first is not None and barrier.name.slot in lowest:
                lowest[barrier.name.slot] = min(lowest[barrier.name.slot], first - 1)
        for settlement in (self._settlement, self._under_way):
            for gate, message in settlement.parked if settlement else ():
                lowest[gate.slot] = min(lowest.get(gate.slot, NO_LIMIT), message.position - 1)
        for slot in self.slots.values():
            slot.mark = max(slot.mark, lowest[slot.number])
        return {slot.number: slot.mark for slot in self.slots.values()}

    def expect_news(self, numbers: Collection[int]) -> bool:
        """Something may have been committed in these slots; whether any of them is ours."""
        ours = [self.slots[number] for number in numbers if number in self.slots]
        for slot in ours:
            slot.stale = True
        return bool(ours)

    def unread(self) -> list[Range]:
        """Where rows would be new, in slots that are not about to be read anyway."""
        return [
            Range(slot.number, slot.cursor, 1, slot.horizon)
            for slot in self.slots.values()
            if not (slot.leaving or slot.full or slot.stale)
        ]

    def sweep(self, numbers: Iterable[int]) -> None:
        """Read these slots again from the start: a safety net, not the mechanism."""
        for number in numbers:
            if (slot := self.slots.get(number)) is not None:
                slot.rewind(1)

    @property
    def unanswered(self) -> int:
        return sum(outlet.unanswered for outlet in self._outlets)

    def is_ordered(self, message: Message) -> bool:
        """Whether it keeps its place among those of its key, which it then holds up if it fails."""
        return message.key is not None and not self._claims_rows

    def _lane_name(self, message: Message) -> object:
        """What keeps its order: a (topic, key); any other message stands alone."""
        return (message.topic, message.key) if self.is_ordered(message) else message.position

    def _is_paused(self, topic: str) -> bool:
        return topic in self._held_back or (bool(self._paused) and topic in self._paused)

    def _topic(self, message: Message) -> tuple[Outlet, bool]:
        kind = (message.topic, message.type)
        known = self._topics.get(kind)
        if known is None:
            is_task = message.topic == TASKS_TOPIC  # each of them is to be done
            latest = not is_task and self._settings.latest_only.value_for(message.topic, message.type)
            known = self._topics[kind] = (self._route(message.topic), latest)
        return known

    def _has_room(self, topic: str) -> bool:
        return not self._route(topic).is_over(self._appetite.window)

    def _record(self, message: Message, slot: Slot) -> None:
        self._known[message.position] = slot
        slot.count += 1

    def _queue(self, lane: Lane) -> None:
        lane.queued = True
        lane.outlet.ready.append(lane)

    def _forget(self, message: Message) -> None:
        slot = self._known.pop(message.position, None)
        if slot is not None:
            slot.count -= 1
        if self._from_parked:
            self._from_parked.discard(message.position)

    def _forget_slot(self, slot: Slot) -> None:
        for lane in [lane for lane in self._lanes.values() if lane.slot == slot.number]:
            lane.lost = True
            if lane.queued:
                lane.outlet.ready.remove(lane)
                lane.queued = False
            lane.outlet.in_memory -= len(lane.waiting)
            lane.waiting.clear()
            if not lane.flying:
                self._lanes.pop(lane.name, None)
        for position in [position for position, owner in self._known.items() if owner is slot]:
            del self._known[position]
            self._from_parked.discard(position)
        for name in [name for name, held in self.held.items() if held.name.slot == slot.number]:
            self._draining.pop(self.held.pop(name).name, None)
        # Verdicts that were not written down go with it: if it is ours again they must not take effect behind the back
        # of what was read then.
        self._settlement = without_verdicts(self._settlement, {slot.number})

    def _read_to(self, slot: Slot) -> int:
        read_to = min(slot.cursor, slot.horizon)
        return read_to if slot.rewind_to is None else min(read_to, slot.rewind_to)

    def _barrier(self, gate: Gate) -> HeldKey | ClosedTopic | None:
        if gate.key is not None:
            return self.held.get((gate.topic, gate.key))
        slot = self.slots.get(gate.slot)
        return slot.closed_topics.get(gate.topic) if slot else None

    def _barriers(self) -> Iterable[HeldKey | ClosedTopic]:
        yield from self.held.values()
        for slot in self.slots.values():
            yield from slot.closed_topics.values()

    def _held_by(self, message: Message) -> HeldKey | None:
        held = None if message.key is None else self.held.get((message.topic, message.key))
        return held if held is not None and held.position == message.position else None

    def _is_current(self, held: HeldKey) -> bool:
        return self.held.get((held.name.topic, held.name.key)) is held

    def _new_settlement(self) -> Settlement:
        return Settlement(relay=self._relay, epochs=dict[int, int](), retention=self._settings.retention)


def without_verdicts(settlement: Settlement, slots: Container[int]) -> Settlement:
    """The same, with nothing but deliveries of these slots."""
    return replace(
        settlement,
        retries=[each for each in settlement.retries if each.message.slot not in slots],
        dead=[each for each in settlement.dead if each.message.slot not in slots],
        refunds=[each for each in settlement.refunds if each.message.slot not in slots],
        superseded=[each for each in settlement.superseded if each.slot not in slots],
        parked=[(gate, each) for gate, each in settlement.parked if gate.slot not in slots],
        released=[gate for gate in settlement.released if gate.slot not in slots],
    )
