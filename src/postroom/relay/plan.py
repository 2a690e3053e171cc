"""Which messages may go now, and what an answer means.

All of the relay's decisions are here: no clock, no loop, no database. The pump feeds in what was read and answered and
carries out what comes back, so generated histories can test it. One plan belongs to one pump and knows its slots only.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count
from operator import attrgetter
from typing import Literal

from ..errors import NotAttempted
from ..failures import describe, is_unavailable
from ..message import Message
from ..ports import (
    NO_LIMIT,
    Dead,
    Fetched,
    Gate,
    Hold,
    Lease,
    Range,
    Refund,
    Retry,
    Settled,
    Settlement,
)
from ..routing import Globs
from ..settings import Settings
from .breaker import Failure
from .gates import ClosedTopic, HeldKey, Slot
from .outlet import Lane, Outlet

by_position = attrgetter("position")

PATIENCE = 1.0
"""Seconds that reading waits for a destination which has as much in memory as it may have."""


@dataclass(frozen=True, slots=True)
class BreakerChanged:
    """For the pump to tell the observers and the other relays."""

    outlet: Outlet
    state: Literal["tripped", "closed"]


class Plan:
    def __init__(
        self,
        *,
        relay: str,
        settings: Settings,
        outlets: Sequence[Outlet],
        route: Callable[[str], Outlet],
        random: Callable[[], float],
        publish_timeout: float,
    ) -> None:
        self._relay = relay
        self._settings = settings
        self._outlets = outlets
        self._route = route
        self._random = random
        self._publish_timeout = publish_timeout
        self._window = 2 * settings.batch_size
        self._paused: Globs = Globs()

        self.slots: dict[int, Slot] = {}
        self.held: dict[object, HeldKey] = {}
        """By (topic, key)."""
        self.changes: list[BreakerChanged] = []
        self.out_of_order: list[tuple[Outlet, Message]] = []
        self._topics: dict[tuple[str, str | None], tuple[Outlet, bool]] = {}
        self._lanes: dict[object, Lane] = {}
        self._known: dict[int, Slot] = {}
        """Every position in memory that is not settled, so that no row is taken twice."""
        self._from_parked: set[int] = set()
        self._due: list[tuple[float, int, HeldKey]] = []
        self._tie = count()
        self._draining: dict[Gate, HeldKey] = {}
        self._wall: tuple[datetime, float] | None = None
        self._settlement = self._new_settlement()
        self._under_way: Settlement | None = None

    # ------------------------------------------------------------------------------------------ leases

    def own(self, lease: Lease, deadline: float, holds: Iterable[Hold], gates: Iterable[Gate], now: float) -> None:
        """A slot is ours from now on."""
        slot = Slot(
            number=lease.slot, epoch=lease.epoch, deadline=deadline, cursor=lease.mark, horizon=lease.mark
        )  # fmt: skip
        self.slots[lease.slot] = slot
        for hold in holds:
            self._remember(HeldKey.of(hold, now))
        for gate in gates:
            slot.closed_topics[gate.topic] = ClosedTopic(name=gate, since=now, parked=True)

    def lose(self, numbers: Iterable[int]) -> None:
        """Slots are ours no more: forget what waits. What is flying still counts if it turns out to be delivered."""
        for number in numbers:
            slot = self.slots.pop(number, None)
            if slot is not None:
                self._forget_slot(slot)

    def leave(self, numbers: Iterable[int]) -> None:
        """Take nothing new from these slots, so that they can be given back once what is in flight is settled."""
        for number in numbers:
            slot = self.slots[number]
            slot.leaving = True
            for lane in [lane for lane in self._lanes.values() if lane.slot == number]:
                self._drop_waiting(lane)

    def left(self) -> list[int]:
        """Slots that can be given back now."""
        return [slot.number for slot in self.slots.values() if slot.leaving and slot.count == 0]

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
        return {slot: mark for slot, mark in lowest.items() if slot in self.slots}

    # ------------------------------------------------------------------------------------------- reading

    def expect_news(self) -> None:
        """Something may have been committed."""
        for slot in self.slots.values():
            slot.stale = True

    def sweep(self) -> None:
        """Read everything again from the start: a safety net, not the mechanism."""
        for slot in self.slots.values():
            slot.rewind(1)

    def pause(self, globs: Globs) -> None:
        self._paused = globs
        for lane in list(self._lanes.values()):
            if lane.waiting and lane.topic in globs:
                self._drop_waiting(lane)

    def wants(self, now: float) -> list[Range]:
        """What to fetch: a few rows of each slot in turn, more of those that have more. Nothing while all is full."""
        self._tend(now)
        if not self._has_appetite(now):
            return []
        asking = [slot for slot in self.slots.values() if not slot.leaving and (slot.full or slot.stale)]
        if not asking:
            return []
        size = self._settings.batch_size
        few = max(1, size // len(self.slots))
        many = max(few, size // max(1, sum(slot.full for slot in asking)))
        return [self._range(slot, many if slot.full else few) for slot in asking]

    def _has_appetite(self, now: float) -> bool:
        """Whether to read on. A full outlet is waited for if it drains quickly; a slow one must not stall the others."""
        full = [outlet for outlet in self._outlets if outlet.is_full(self._window, now)]
        if len(full) == len(self._outlets):
            return False
        return not any(outlet.full_for(now) < PATIENCE and outlet.breaker.state == "closed" for outlet in full)

    def take(self, ranges: Sequence[Range], fetched: Fetched, now: float) -> int:
        """Take in what was fetched; returns how many messages were new."""
        self._wall = (fetched.now, now)
        before = len(self._known)
        counts = dict.fromkeys((asked.slot for asked in ranges), 0)
        slots, known = self.slots, self._known
        for message in fetched.messages:
            counts[message.slot] += 1
            slot = slots.get(message.slot)
            if slot is None or (slot.rewind_to is not None and message.position > slot.rewind_to):
                continue  # what lies beyond a rewind is read again, in order
            if message.position > slot.cursor:
                slot.cursor = message.position
            if message.position not in known and not slot.leaving:
                self._admit(message, slot, now)
        for asked in ranges:
            if (slot := slots.get(asked.slot)) is not None:
                slot.full = counts[asked.slot] >= asked.limit
                slot.horizon = fetched.horizon
        return len(known) - before

    def due_heads(self, now: float) -> list[HeldKey]:
        """Held keys whose message may be tried again; fetch those messages and `take_heads`."""
        due: list[HeldKey] = []
        unsettled: list[HeldKey] = []
        while self._due and self._due[0][0] <= now and len(due) < self._settings.batch_size:
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

    def take_heads(self, asked: Sequence[HeldKey], messages: Iterable[Message], now: float) -> None:
        found = {message.position: message for message in messages}
        for held in asked:
            if not self._is_current(held):
                continue
            message = found.get(held.position)
            if message is None:
                held.trying = False
                self._release(held)  # its message is gone: somebody delivered it
            elif self._is_superseded(held, message):
                held.trying = False
                self._record(message, self.slots[message.slot])
                self._settlement.superseded.append(message)
                self._open(held)
            elif not self._expires(message, self.slots[message.slot], now) and message.position not in self._known:
                message.attempt = held.attempts + 1
                self._enter(message, self.slots[message.slot])

    def parked_wants(self) -> list[tuple[Gate, int, int]]:
        """Which parked rows to read: (gate, after, limit)."""
        size = self._settings.batch_size
        barriers = [*self._draining.values(), *self._unpaused_topics()]
        return [
            (barrier.name, barrier.cursor, size)
            for barrier in barriers
            if barrier.can_be_drained() and self._has_room(barrier.name.topic)
        ]

    def take_parked(self, gate: Gate, messages: Sequence[Message], limit: int, now: float) -> None:
        slot = self.slots.get(gate.slot)
        barrier = self._barrier(gate)
        if slot is None or barrier is None or slot.leaving or gate.topic in self._paused:
            return
        if isinstance(barrier, HeldKey) and barrier.status != "releasing":
            return
        for message in messages:
            barrier.cursor = message.position
            if message.position not in self._known:
                self._admit_parked(gate, message, slot, now)
        if len(messages) < limit:
            barrier.exhausted = True
            self._finish(barrier)

    def release_holds(self, holds: Iterable[Hold], now: float) -> None:
        """An operator decided: these keys may go on with what is parked."""
        for hold in holds:
            if hold.slot not in self.slots:
                continue
            held = self.held.get((hold.topic, hold.key))
            if held is None:
                held = HeldKey.of(hold, now)
                self._remember(held)
            elif held.status != "releasing" and not held.trying:
                held.status = "releasing"
                held.start_draining()
                self._draining[held.name] = held

    # ---------------------------------------------------------------------------------------- dispatching

    def next_batch(self, outlet: Outlet, now: float) -> list[Message]:
        """Messages that may go to the outlet now, counted as in flight from here on. Empty if there are none."""
        room = outlet.may_send(now, self._settings.batch_size) if outlet.ready else 0
        batch: list[Message] = []
        postponed: list[Lane] = []
        while room > len(batch) and outlet.ready:
            lane = outlet.ready.popleft()
            lane.queued = False
            if not self._may_fly(lane, now):
                postponed.append(lane)
            else:
                self._fly(lane, room - len(batch), batch, now)
        for lane in postponed:
            self._queue(lane)
        if batch:
            batch.sort(key=by_position)
            outlet.sent(len(batch))
        return batch

    def probes(self, now: float) -> list[Outlet]:
        """Outlets whose breaker may be probed, with something to probe it with."""
        return [outlet for outlet in self._outlets if outlet.ready and outlet.breaker.probe_due(now)]

    def next_event(self, now: float) -> float | None:
        """Seconds until time alone gives this plan something to do."""
        times = [max(0.0, self._due[0][0] - now)] if self._due else []
        for outlet in self._outlets:
            if outlet.ready and outlet.breaker.state == "tripped":
                times.append(max(0.0, outlet.breaker.until - now))
            elif outlet.ready and (token := outlet.token_in(now)) is not None:
                times.append(token)
        return min(times, default=None)

    @property
    def unanswered(self) -> int:
        return sum(outlet.unanswered for outlet in self._outlets)

    # ------------------------------------------------------------------------------------------- answers

    def answer(self, message: Message, error: BaseException | None, now: float) -> None:
        """A publisher said what became of a message. Settle its key only up to the first unanswered one."""
        lane = self._lanes[_lane_name(message)]
        lane.outlet.unanswered -= 1
        if lane.flying[0] is not message:
            lane.answers[message.position] = error
            return
        lane.flying.popleft()
        self._decide(lane, message, error, now)
        while lane.answers and lane.flying and lane.flying[0].position in lane.answers:
            following = lane.flying.popleft()
            self._decide(lane, following, lane.answers.pop(following.position), now)
        if not lane.flying:
            self._landed(lane)

    def call_ended(self, outlet: Outlet, now: float) -> None:
        """A publish call is over. A probe that came to nothing must not leave the breaker half-open for ever."""
        outlet.calls -= 1
        if outlet.breaker.state == "half-open" and outlet.unanswered == 0:
            outlet.breaker.probe_lost(now, self._settings.breaker_initial)

    def take_settlement(self) -> Settlement | None:
        """What is to be written down, if anything."""
        if not self._settlement:
            return None
        settlement, self._settlement = self._settlement, self._new_settlement()
        settlement.epochs = self.epochs()
        self._under_way = settlement
        return settlement

    def settled(self, settlement: Settlement, result: Settled) -> None:
        """It is in the database: forget these messages."""
        for message in settlement.delivered:
            self._forget(message)
        for entry in (*settlement.retries, *settlement.dead):
            self._forget(entry.message)
        for message in settlement.superseded:
            self._forget(message)
        for gate in settlement.released:
            self._released(gate, gate in result.still_parked)
        for dead in settlement.dead:
            held = self._held_by(dead.message)
            if held is not None and held.provisional:
                self._open(held)
        for refund in settlement.refunds:
            self._refunded(refund.message)
        for gate, _ in settlement.parked:
            barrier = self._barrier(gate)
            if barrier is not None:
                barrier.unsettled = max(0, barrier.unsettled - 1)
        self._under_way = None
        self.lose(result.refused)

    # -------------------------------------------------------------------------------------- taking in rows

    def _range(self, slot: Slot, limit: int) -> Range:
        slot.stale = False
        if slot.rewind_to is not None:
            slot.cursor, slot.rewind_to = min(slot.cursor, slot.rewind_to), None
        return Range(slot.number, min(slot.cursor, slot.horizon), limit)

    def _admit(self, message: Message, slot: Slot, now: float) -> None:
        if message.expires_at is not None and self._expires(message, slot, now):
            return
        if self.held and message.key is not None:
            held = self.held.get((message.topic, message.key))
            if held is not None:
                self._skip(held, message, slot, now)
                return
        if slot.closed_topics or self._is_closed(message):
            closed = self._closed_topic(message, slot, now)
            if closed is not None:
                self._skip(closed, message, slot, now)
                return
        self._enter(message, slot)

    def _admit_parked(self, gate: Gate, message: Message, slot: Slot, now: float) -> None:
        if message.expires_at is not None and self._expires(message, slot, now):
            return
        held = None if message.key is None else self.held.get((message.topic, message.key))
        if gate.key is None and held is not None:
            if held.status != "releasing":  # else it reads them itself
                self._park(held, message)
            return
        self._from_parked.add(message.position)
        self._enter(message, slot)

    def _enter(self, message: Message, slot: Slot) -> None:
        outlet, latest_only = self._topic(message)
        name = _lane_name(message)
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = Lane(name, slot.number, message.topic, outlet, latest_only)
        self._record(message, slot)
        outlet.in_memory += 1
        if latest_only and lane.waiting:
            self._supersede(lane)
        lane.waiting.append(message)
        if not lane.queued and not lane.flying:
            self._queue(lane)

    def _record(self, message: Message, slot: Slot) -> None:
        self._known[message.position] = slot
        slot.count += 1

    def _queue(self, lane: Lane) -> None:
        lane.queued = True
        lane.outlet.ready.append(lane)

    def _expires(self, message: Message, slot: Slot, now: float) -> bool:
        """An expired message is never sent: it is dead with that reason, and never holds its key."""
        if message.expires_at is None or self._wall is None:
            return False
        wall, at = self._wall
        if message.expires_at > wall + timedelta(seconds=now - at):
            return False
        if message.position not in self._known:
            self._record(message, slot)
        self._bury(message, "expired", f"expired at {message.expires_at.isoformat()}", may_hold=False)
        return True

    def _supersede(self, lane: Lane) -> None:
        older = lane.waiting.pop()
        lane.outlet.in_memory -= 1
        self._settlement.superseded.append(older)

    def _is_superseded(self, held: HeldKey, message: Message) -> bool:
        return held.skipped_from is not None and self._topic(message)[1]

    def _topic(self, message: Message) -> tuple[Outlet, bool]:
        kind = (message.topic, message.type)
        known = self._topics.get(kind)
        if known is None:
            latest = self._settings.latest_only.value_for(message.topic, message.type)
            known = self._topics[kind] = (self._route(message.topic), latest)
        return known

    # --------------------------------------------------------------------------------------------- gates

    def _skip(self, barrier: HeldKey | ClosedTopic, message: Message, slot: Slot, now: float) -> None:
        if barrier.parking:
            self._park(barrier, message)
            return
        barrier.skip(message.position)
        if isinstance(barrier, HeldKey) and barrier.skipped > self._settings.batch_size // 2 and barrier.lasts(now):
            slot.rewind(barrier.start_parking())

    def _park(self, barrier: HeldKey | ClosedTopic, message: Message) -> None:
        barrier.parked, barrier.exhausted = True, False
        barrier.unsettled += 1
        self._settlement.parked.append((barrier.name, message))

    def _is_closed(self, message: Message) -> bool:
        if self._paused and message.topic in self._paused:
            return True
        return self._topic(message)[0].in_memory >= 2 * self._window

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
        for slot in self.slots.values():
            if slot.closed_topics:
                for closed in list(slot.closed_topics.values()):
                    self._tend_topic(slot, closed, now)

    def _tend_topic(self, slot: Slot, closed: ClosedTopic, now: float) -> None:
        topic = closed.name.topic
        if topic in self._paused or not self._has_room(topic) or self._route(topic).breaker.state != "closed":
            closed.open = False
            if not closed.parking and closed.skipped > self._settings.batch_size // 2 and closed.lasts(now):
                self._start_parking_topic(closed, slot)
        elif not closed.open:
            closed.open = True
            if closed.parked:
                closed.start_draining()
            else:
                self._catch_up(closed, slot)
        elif not closed.parked and closed.skipped_from is None and not slot.full and not slot.stale:
            del slot.closed_topics[topic]

    def _start_parking_topic(self, closed: ClosedTopic, slot: Slot) -> None:
        """Parked rows of a key go before its hot ones, so nothing of the topic may be left in memory from there."""
        topic = closed.name.topic
        lanes = [lane for lane in self._lanes.values() if lane.slot == slot.number and lane.topic == topic]
        if any(lane.flying for lane in lanes):
            return
        for lane in lanes:
            self._drop_waiting(lane)
        slot.rewind(closed.start_parking())

    def _catch_up(self, barrier: HeldKey | ClosedTopic, slot: Slot) -> None:
        slot.rewind(barrier.skipped_from)
        barrier.skipped_from, barrier.skipped = None, 0

    def _has_room(self, topic: str) -> bool:
        return self._route(topic).in_memory < self._window

    def _unpaused_topics(self) -> list[ClosedTopic]:
        """Their parked rows come into memory even while the destination is tripped: something must be there to probe
        it with."""
        return [
            closed
            for slot in self.slots.values()
            for topic, closed in slot.closed_topics.items()
            if topic not in self._paused
        ]

    def _barrier(self, gate: Gate) -> HeldKey | ClosedTopic | None:
        if gate.key is not None:
            return self.held.get((gate.topic, gate.key))
        slot = self.slots.get(gate.slot)
        return slot.closed_topics.get(gate.topic) if slot else None

    def _barriers(self) -> Iterable[HeldKey | ClosedTopic]:
        yield from self.held.values()
        for slot in self.slots.values():
            yield from slot.closed_topics.values()

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

    def _is_current(self, held: HeldKey) -> bool:
        return self.held.get((held.name.topic, held.name.key)) is held

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
            self._catch_up(barrier, self.slots[barrier.name.slot])
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
            slot.rewind(held.skipped_from)

    # ------------------------------------------------------------------------------------------ dispatching

    def _may_fly(self, lane: Lane, now: float) -> bool:
        """Only what can be over before the lease ends may start."""
        slot = self.slots.get(lane.slot)
        if slot is None or slot.leaving or now + self._publish_timeout > slot.deadline:
            return False
        reading_on = (slot.full or slot.stale) and lane.outlet.in_memory < self._window
        return not (lane.latest_only and reading_on)

    def _fly(self, lane: Lane, room: int, batch: list[Message], now: float) -> None:
        slot = self.slots[lane.slot]
        most = room if lane.outlet.features.ordered and not self._is_trial(lane) else 1
        waiting, flying = lane.waiting, lane.flying
        while waiting and most > 0:
            message = waiting.popleft()
            if message.expires_at is not None and self._expires(message, slot, now):
                lane.outlet.in_memory -= 1
                continue
            message.epoch = slot.epoch
            flying.append(message)
            batch.append(message)
            most -= 1
        if not flying:
            self._landed(lane)

    def _is_trial(self, lane: Lane) -> bool:
        """A message that failed before goes alone, and the first after an outage too."""
        if lane.outlet.breaker.state != "closed":
            return True
        held = self.held.get(lane.name) if self.held else None
        return held is not None and held.trying

    # --------------------------------------------------------------------------------------------- answers

    def _decide(self, lane: Lane, message: Message, error: BaseException | None, now: float) -> None:
        if error is None:
            self._delivered(lane, message)
        elif self._is_blameless(lane, message, error, now):
            lane.returned.append(message)
        else:
            self._failed(lane, message, error, now)

    def _is_blameless(self, lane: Lane, message: Message, error: BaseException, now: float) -> bool:
        """Whether no attempt is counted: it was not tried, or it was the destination's fault."""
        if lane.lost or isinstance(error, NotAttempted):
            return True
        if is_unavailable(error) and not self._is_to_blame(lane, message, error, now):
            return True
        return self._is_misjudged(lane, message, error, now)

    def _delivered(self, lane: Lane, message: Message) -> None:
        outlet = lane.outlet
        outlet.in_memory -= 1
        self._settlement.delivered.append(message)
        if outlet.breaker.succeeded(message):
            self.changes.append(BreakerChanged(outlet, "closed"))
        if lane.returned or (self.held and not lane.lost and message.key is not None):
            self._delivered_though_held(lane, message)

    def _delivered_though_held(self, lane: Lane, message: Message) -> None:
        if lane.returned:
            self.out_of_order.append((lane.outlet, message))
        held = self.held.get((message.topic, message.key))
        if held is not None and held.message_id == message.id:
            self._open(held)
        elif held is not None and held.status != "releasing":
            self.out_of_order.append((lane.outlet, message))

    def _is_to_blame(self, lane: Lane, message: Message, error: BaseException, now: float) -> bool:
        breaker = lane.outlet.breaker
        was = breaker.state
        to_blame = breaker.unavailable(
            message, describe(error), now, self._random, getattr(error, "retry_after", None)
        )  # fmt: skip
        if was == "closed" and breaker.state == "tripped":
            self.changes.append(BreakerChanged(lane.outlet, "tripped"))
        return to_blame

    def _is_misjudged(self, lane: Lane, message: Message, error: BaseException, now: float) -> bool:
        """Whether this failure is the last of a row that means the destination is broken; if so, give all back."""
        breaker = lane.outlet.breaker
        was = breaker.state
        failure = Failure(message, message.attempt - 1)
        misjudged = breaker.refused(lane.name, failure, describe(error), now, self._random)
        if (was == "closed") != (breaker.state == "closed"):
            self.changes.append(BreakerChanged(lane.outlet, "closed" if breaker.state == "closed" else "tripped"))
        if misjudged:
            for earlier in breaker.take_refunds():
                self._refund(earlier, message, now)
        return misjudged

    def _refund(self, failure: Failure, current: Message, now: float) -> None:
        message = failure.message
        if message.id == current.id:
            current.attempt = failure.attempts + 1
        if message.slot not in self.slots:
            return
        held = self._held_by(message)
        if held is not None:
            held.attempts = failure.attempts
            if message.id != current.id:
                held.status, held.due, held.parking, held.provisional = "retry", now, False, False
        if message.id != current.id or held is not None:
            self._settlement.refunds.append(Refund(message, failure.attempts))

    def _refunded(self, message: Message) -> None:
        """The row is back at its place: on hold and due, or in the hot table."""
        held = self._held_by(message)
        slot = self.slots.get(message.slot)
        if held is not None:
            self._await_due(held)
        elif slot is not None and message.key is not None:
            slot.rewind(message.position)

    def _failed(self, lane: Lane, message: Message, error: BaseException, now: float) -> None:
        permanent = bool(getattr(error, "permanent", False))
        lane.outlet.in_memory -= 1
        delay = None if permanent else self._settings.retry.delay(message.attempt, error, message.type, self._random)
        if delay is None:
            self._bury(message, "rejected" if permanent else "attempts", describe(error), may_hold=True, now=now)
            return
        self._settlement.retries.append(Retry(message, message.attempt, delay, describe(error)))
        if message.key is not None:
            self._hold(message, "retry", now, now + delay)

    def _bury(self, message: Message, reason: str, error: str, *, may_hold: bool, now: float = 0.0) -> None:
        holding = may_hold and message.key is not None and self._blocks(message)
        revive_after = self._settings.revive_after.value_for(message.topic, message.type)
        self._settlement.dead.append(Dead(message, message.attempt, reason, error, holding, revive_after))
        if holding:
            self._hold(message, "dead", now, None)
        elif may_hold and message.key is not None:
            # Later ones may go on, but only once it is written down: after a crash it would be tried again, behind them.
            self._hold(message, "dead", now, None).provisional = True
        elif (held := self._held_by(message)) is not None:
            self._open(held)

    def _held_by(self, message: Message) -> HeldKey | None:
        held = None if message.key is None else self.held.get((message.topic, message.key))
        return held if held is not None and held.message_id == message.id else None

    def _blocks(self, message: Message) -> bool:
        return message.sequence is not None or self._settings.blocks(message.topic, message.type, message.key)

    def _hold(self, message: Message, status: Literal["retry", "dead"], now: float, due: float | None) -> HeldKey:
        was = self.held.get((message.topic, message.key))
        gate = Gate(message.slot, message.topic, message.key)
        held = HeldKey(
            name=gate, since=now, message_id=message.id, position=message.position, attempts=message.attempt,
            status=status, due=due, parked=message.position in self._from_parked,
        )  # fmt: skip
        if was is not None:
            held.parked, held.skipped_from = held.parked or was.parked, was.skipped_from
            held.skipped, held.skipped_to = was.skipped, was.skipped_to
            held.unsettled = was.unsettled
            self._draining.pop(was.name, None)
        self._remember(held)
        return held

    # -------------------------------------------------------------------------------------------- the lanes

    def _landed(self, lane: Lane) -> None:
        """Nothing of this lane is in flight any more."""
        if lane.returned:
            lane.waiting.extendleft(reversed(lane.returned))
            lane.returned.clear()
        if not lane.lost:
            held = self.held.get(lane.name) if self.held else None
            slot = self.slots[lane.slot]
            if lane.waiting and (slot.leaving or self._is_behind(lane, held)):
                self._drop_waiting(lane)
            elif lane.waiting:
                if not lane.queued:
                    self._queue(lane)
                return
        if lane.queued:
            lane.outlet.ready.remove(lane)
            lane.queued = False
        lane.outlet.in_memory -= len(lane.waiting)
        lane.waiting.clear()
        self._lanes.pop(lane.name, None)
        self._lane_emptied(lane)

    def _is_behind(self, lane: Lane, held: HeldKey | None) -> bool:
        """Whether what waits in the lane must not go on."""
        if self._paused and lane.topic in self._paused:
            return True
        if held is None or held.status == "releasing":
            return False
        return lane.waiting[0].id != held.message_id

    def _lane_emptied(self, lane: Lane) -> None:
        held = self._draining_key(lane)
        if held is not None and held.exhausted:
            self._finish(held)

    def _draining_key(self, lane: Lane) -> HeldKey | None:
        held = self.held.get(lane.name) if self._draining and not lane.lost else None
        return held if held is not None and held.name in self._draining else None

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

    def _put_back(self, message: Message, slot: Slot, held: HeldKey | None) -> None:
        parked = message.position in self._from_parked
        self._from_parked.discard(message.position)
        if held is not None and held.message_id == message.id:
            held.trying = False
            self._await_due(held)
        elif parked and held is not None:
            held.cursor = 0
            self._park(held, message)
        elif parked:
            self._reread_parked(message, slot)
        elif held is not None:
            held.skip(message.position)
        else:
            slot.rewind(message.position)

    def _reread_parked(self, message: Message, slot: Slot) -> None:
        closed = slot.closed_topics.get(message.topic)
        if closed is None:
            closed = ClosedTopic(name=Gate(slot.number, message.topic, None), since=0.0)
            slot.closed_topics[message.topic] = closed
        closed.parked, closed.exhausted, closed.cursor = True, False, 0

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

    def _read_to(self, slot: Slot) -> int:
        read_to = min(slot.cursor, slot.horizon)
        return read_to if slot.rewind_to is None else min(read_to, slot.rewind_to)

    def _new_settlement(self) -> Settlement:
        return Settlement(relay=self._relay, epochs=dict[int, int](), retention=self._settings.retention)


def _lane_name(message: Message) -> object:
    return message.position if message.key is None else (message.topic, message.key)
