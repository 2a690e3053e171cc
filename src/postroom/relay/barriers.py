"""Held keys and closed topics: how they come up, what is skipped or parked behind them, and how they open."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from ..message import Message
from ..ports import Gate, Hold
from ..routing import Globs
from .gates import ClosedTopic, HeldKey, Slot
from .memory import Memory
from .outlet import Lane, Outlet


class Barriers(Memory):
    def pause(self, globs: Globs) -> None:
        self._paused = globs
        self._drop_paused()

    def _hold_back(self, now: float) -> None:
        """What a destination lacks is paused until it is its turn to be tried, so that it takes no room in memory."""
        was = self._held_back
        self._held_back = set[str]().union(
            *(each.breaker.held_back(now) for each in self._outlets if each.breaker.failing)
        )
        if not self._held_back <= was:
            self._drop_paused()

    def _drop_paused(self) -> None:
        for lane in list(self._lanes.values()):
            if lane.waiting and self._is_paused(lane.topic):
                self._drop_waiting(lane)

    def release_holds(self, holds: Iterable[Hold], now: float) -> None:
        """An operator decided: these keys may go on with what is parked."""
        for hold in holds:
            if hold.slot not in self.slots:
                continue
            held = self.held.get((hold.topic, hold.key))
            if held is None:
                held = HeldKey.of(hold, now)
                self._remember(held)
            elif held.status != "releasing" and not held.trying and not self._is_unsettled(held):
                held.status = "releasing"
                held.start_draining()
                self._draining[held.name] = held

    def _is_unsettled(self, held: HeldKey) -> bool:
        """Whether the database does not know yet why this key is held."""
        return held.position in self._known

    def _remember(self, held: HeldKey) -> None:
        name = held.name
        self.held[(name.topic, name.key)] = held
        if held.status == "releasing":
            held.start_draining()
            self._draining[name] = held
        elif held.status == "retry":
            self._await_due(held)

    def _await_due(self, held: HeldKey) -> None:
        if held.due is not None:
            heapq.heappush(self._due, (held.due, next(self._tie), held))

    def _open(self, held: HeldKey) -> None:
        """Its message is out of the way: go on with what is parked, or with what was skipped."""
        held.trying = False
        if held.parked:
            held.status = "releasing"
            held.start_draining()
            self._draining[held.name] = held
        else:
            self._drop(held)

    def _finish(self, barrier: HeldKey | ClosedTopic) -> None:
        """All that was parked has been read."""
        if isinstance(barrier, ClosedTopic):
            barrier.parked = False
            self._meet_again(barrier, self.slots[barrier.name.slot])
        elif (barrier.name.topic, barrier.name.key) not in self._lanes:
            self._release(barrier)

    def _release(self, held: HeldKey) -> None:
        if not held.finishing:
            held.finishing = True
            self._settlement.released.append(held.name)

    def _released(self, gate: Gate, still_parked: bool) -> None:
        held = self.held.get((gate.topic, gate.key))
        if held is None or not held.finishing:
            return
        held.finishing = False
        if still_parked:
            held.status = "releasing"
            held.start_draining()
            self._draining[held.name] = held
        else:
            self._drop(held)

    def _drop(self, held: HeldKey) -> None:
        name = held.name
        self.held.pop((name.topic, name.key), None)
        self._draining.pop(name, None)
        slot = self.slots.get(name.slot)
        if slot is not None:
            self._meet_again(held, slot)

    def _skip(self, barrier: HeldKey | ClosedTopic, message: Message, slot: Slot, now: float) -> None:
        if barrier.parking or self._claims_rows:
            self._park(barrier, message)
            return
        slot.skipped += barrier.skip(message.position)
        if isinstance(barrier, HeldKey) and barrier.lasts(now) and self._are_many(barrier, slot):
            barrier.parking = True
            self._meet_again(barrier, slot)
            if (closed := slot.closed_topics.get(message.topic)) is not None:
                slot.rewind(closed.skipped_from)  # among those may be some of this key

    def _are_many(self, held: HeldKey, slot: Slot) -> bool:
        """Behind one key, or behind all of a slot together: whoever reads the slot again has to pass them."""
        size = self._settings.batch_size
        return held.skipped > size // 2 or slot.skipped > size

    def _park(self, barrier: HeldKey | ClosedTopic, message: Message) -> None:
        barrier.parked, barrier.exhausted = True, False
        barrier.cursor = min(barrier.cursor, message.position - 1)
        barrier.unsettled += 1
        self._settlement.parked.append((barrier.name, message))

    def _is_closed(self, message: Message) -> bool:
        if self._is_paused(message.topic):
            return True
        return self._topic(message)[0].is_over(2 * self._appetite.window)

    def _closed_topic(self, message: Message, slot: Slot, now: float) -> ClosedTopic | None:
        """The barrier that this row is behind, if any."""
        topic = message.topic
        closed = slot.closed_topics.get(topic)
        if closed is not None and (closed.parked or not closed.open):
            return closed
        if not self._is_closed(message):
            return None
        if closed is None:
            closed = ClosedTopic(name=Gate(slot.number, topic, None), since=now)
            slot.closed_topics[topic] = closed
        closed.open = False
        return closed

    def _tend(self, now: float) -> None:
        """Open and close topics as their destinations recover and fail."""
        self._hold_back(now)
        for slot in self.slots.values():
            if slot.closed_topics:
                for closed in list(slot.closed_topics.values()):
                    self._tend_topic(slot, closed, now)

    def _tend_topic(self, slot: Slot, closed: ClosedTopic, now: float) -> None:
        topic = closed.name.topic
        if self._is_paused(topic) or not self._has_room(topic) or self._is_broken(closed):
            closed.open = False
            if not closed.parking and closed.skipped > self._settings.batch_size // 2 and closed.lasts(now):
                self._start_parking_topic(closed, slot)
        elif not closed.open:
            closed.open, closed.parking = True, False
            if closed.parked:
                closed.start_draining()
            else:
                self._meet_again(closed, slot)
        elif not closed.parked and closed.skipped_from is None and not slot.full and not slot.stale:
            del slot.closed_topics[topic]

    def _is_broken(self, closed: ClosedTopic) -> bool:
        """Its destination is tripped, and there is something in memory to probe it with, or comes from parked."""
        outlet = self._route(closed.name.topic)
        return outlet.breaker.state != "closed" and (outlet.in_memory > 0 or closed.parking)

    def _start_parking_topic(self, closed: ClosedTopic, slot: Slot) -> None:
        """Parked rows of a key go before its hot ones, so nothing of the topic may be left in memory from there."""
        topic = closed.name.topic
        lanes = [lane for lane in self._lanes.values() if lane.slot == slot.number and lane.topic == topic]
        if any(lane.flying for lane in lanes):
            return
        for lane in lanes:
            self._drop_waiting(lane)
        closed.parking = True
        self._meet_again(closed, slot)

    def _meet_again(self, barrier: HeldKey | ClosedTopic, slot: Slot) -> None:
        """Read what was skipped once more."""
        slot.skipped = max(0, slot.skipped - barrier.skipped)
        slot.rewind(barrier.forget_skipped())

    def _unpaused_topics(self) -> list[ClosedTopic]:
        """Their parked rows come into memory even while the destination is tripped: something must be there to probe
        it with."""
        return [
            closed
            for slot in self.slots.values()
            for topic, closed in slot.closed_topics.items()
            if not self._is_paused(topic)
        ]

    def _drop_waiting(self, lane: Lane) -> None:
        """Forget what waits in a lane; the rows are read again when their turn comes."""
        slot = self.slots[lane.slot]
        held = self.held.get(lane.name) if self.held else None
        for message in lane.waiting:
            self._known.pop(message.position, None)
            slot.count -= 1
            lane.outlet.in_memory -= 1
            self._put_back(message, slot, held)
        lane.waiting.clear()
        if not lane.flying:
            if lane.queued:
                lane.outlet.ready.remove(lane)
                lane.queued = False
            self._lanes.pop(lane.name, None)
            if self.held:
                self._lane_emptied(lane)

    def _lane_emptied(self, lane: Lane) -> None:
        held = None if lane.lost else self.held.get(lane.name)
        if held is not None and held.busy:
            held.busy = False
            self._open(held)
        elif held is not None and held.exhausted and held.name in self._draining:
            self._finish(held)

    def _relieve(self, outlet: Outlet, now: float) -> None:
        """A slow destination is full: keys with much in memory give up most of it, so that others are read."""
        keep = max(1, self._settings.batch_size // 4)
        crowded = [lane for lane in self._lanes.values() if lane.outlet is outlet and len(lane.waiting) > keep]
        for lane in crowded:
            key = lane.waiting[0].key
            if key is not None and lane.name not in self.held:
                self._cut_back(lane, Gate(lane.slot, lane.topic, key), keep, now)

    def _cut_back(self, lane: Lane, gate: Gate, keep: int, now: float) -> None:
        held = HeldKey(
            name=gate, since=now, position=0, attempts=0, status="releasing", due=None, busy=True
        )  # fmt: skip
        self.held[lane.name] = held
        rest, lane.waiting = lane.waiting[keep:], lane.waiting[:keep]
        for message in rest:
            self._known.pop(message.position, None)
            self.slots[lane.slot].count -= 1
            lane.outlet.in_memory -= 1
            self._put_back(message, self.slots[lane.slot], held)

    def _put_back(self, message: Message, slot: Slot, held: HeldKey | None) -> None:
        parked = message.position in self._from_parked
        self._from_parked.discard(message.position)
        if self._claims_rows:
            self._let_go(message, slot)
        elif held is not None and held.position == message.position and held.status != "releasing":
            held.trying = False
            self._await_due(held)
        elif held is not None and (parked or held.parked or held.parking):
            self._park(held, message)  # parked rows go before any in the hot table
        elif parked:
            self._reread_parked(message, slot)
        elif held is not None:
            held.skip(message.position)
        else:
            slot.rewind(message.position)

    def _let_go(self, message: Message, slot: Slot) -> None:
        """Of a row that we have claimed. Those of a slot that we leave are given back with it."""
        if not slot.leaving:
            self._park(self._gate_of(message, slot), message)

    def _reread_parked(self, message: Message, slot: Slot) -> None:
        closed = self._gate_of(message, slot)
        closed.parked, closed.exhausted, closed.cursor = True, False, 0

    def _gate_of(self, message: Message, slot: Slot) -> ClosedTopic:
        name = Gate(slot.number, message.topic, None)
        return slot.closed_topics.setdefault(message.topic, ClosedTopic(name=name, since=0.0))
