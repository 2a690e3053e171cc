"""Which messages may go now, and what an answer means.

All of the relay's decisions are here: no clock, no loop, no database. The pump feeds in what was read and answered and
carries out what comes back, so generated histories can test it. One plan belongs to one pump and knows its slots only.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from ..message import TASKS_TOPIC, Message
from ..ports import Gate, Hold, Lease
from .gates import ClosedTopic, HeldKey, Slot
from .outlet import Lane, Outlet
from .reading import Reading

by_position = attrgetter("position")


class Plan(Reading):
    def own(self, lease: Lease, deadline: float, holds: Iterable[Hold], gates: Iterable[Gate], now: float) -> None:
        """A slot is ours from now on."""
        slot = Slot(
            number=lease.slot, epoch=lease.epoch, deadline=deadline,
            cursor=lease.mark, horizon=lease.mark, mark=lease.mark,
        )  # fmt: skip
        self.slots[lease.slot] = slot
        for hold in holds:
            self._remember(HeldKey.of(hold, now))
        for gate in gates:
            slot.closed_topics[gate.topic] = ClosedTopic(name=gate, since=now, parked=True)

    def leave(self, numbers: Iterable[int]) -> None:
        """Take nothing new from these slots, so that they can be given back once what is in flight is settled."""
        for number in numbers:
            slot = self.slots[number]
            slot.leaving = True
            self.departures += 1
            for lane in [lane for lane in self._lanes.values() if lane.slot == number]:
                self._drop_waiting(lane)

    def left(self) -> list[int]:
        """Slots that can be given back now."""
        settlements = [each for each in (self._settlement, self._under_way) if each is not None]
        given_back = {refund.message.slot for settlement in settlements for refund in settlement.refunds}
        for outlet in self._outlets:
            given_back |= {failure.message.slot for failure in outlet.breaker.given_back.values()}
        return [
            slot.number
            for slot in self.slots.values()
            if slot.leaving and slot.count == 0 and slot.number not in given_back
        ]

    def stranded(self, *, tasks: bool) -> set[int]:
        """Slots with tasks, or other messages, that go nowhere from here."""
        topics = [(lane.slot, lane.topic) for lane in self._lanes.values()]
        topics += [(slot.number, topic) for slot in self.slots.values() for topic in slot.closed_topics]
        return {
            slot
            for slot, topic in topics
            if (topic == TASKS_TOPIC) == tasks and self._route(topic) not in self._outlets
        }

    def busy(self) -> set[int]:
        """Slots in which something is under way that may take any time."""
        return {lane.slot for lane in self._lanes.values() if lane.flying and lane.outlet.features.local}

    def next_batch(self, outlet: Outlet, now: float) -> list[Message]:
        """Messages that may go to the outlet now, counted as in flight from here on. Empty if there are none."""
        room = outlet.may_send(now, self._settings.batch_size) if outlet.ready else 0
        batch: list[Message] = []
        postponed: list[Lane] = []
        if room and outlet.breaker.state == "half-open":
            self._choose_probe(outlet)
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
            outlet.sent(batch)
        return batch

    def _choose_probe(self, outlet: Outlet) -> None:
        """Probe with a message that has not failed yet, of a topic that has not: neither bad ones nor a topic that is
        missing must keep the breaker from closing. But first with one that can be judged in no other way."""
        breaker = outlet.breaker

        def rank(lane: Lane) -> tuple[bool, bool, bool]:
            first = lane.waiting[0]
            return not breaker.needs_trial(first), lane.topic in breaker.failing, breaker.is_suspected(first)

        best = min(outlet.ready, key=rank)
        outlet.ready.remove(best)
        outlet.ready.appendleft(best)

    def probes(self, now: float) -> list[Outlet]:
        """Outlets whose breaker may be probed, with something to probe it with."""
        due = [outlet for outlet in self._outlets if outlet.ready and outlet.breaker.probe_due(now)]
        return [outlet for outlet in due if not outlet.gives_way(now)]

    def may_go_soon(self) -> bool:
        """Whether something is ready, and waits for nothing but the next renewal or its turn at `max_rate`."""
        return any(
            outlet.breaker.state == "closed" and any(lane.topic not in self._held_back for lane in outlet.ready)
            for outlet in self._outlets
        )

    def next_event(self, now: float) -> float | None:
        """Seconds until time alone gives this plan something to do."""
        times = [max(0.0, self._due[0][0] - now)] if self._due else []
        for outlet in self._outlets:
            times += [turn - now for turn in outlet.breaker.turns() if turn > now]
            state = outlet.breaker.state
            if outlet.ready and (state == "tripped" or (state == "half-open" and outlet.gives_way(now))):
                times.append(outlet.probe_in(now))
            elif outlet.ready and (token := outlet.token_in(now)) is not None:
                times.append(token)
        return min(times, default=None)

    def _may_fly(self, lane: Lane, now: float) -> bool:
        """Only what can be over before the lease ends may start."""
        slot = self.slots.get(lane.slot)
        if slot is None or slot.leaving or now + self._publish_timeout > slot.deadline:
            return False
        reading_on = (slot.full or slot.stale) and not lane.outlet.is_over(self._appetite.window)
        if lane.latest_only and reading_on:
            return False
        breaker = lane.outlet.breaker
        return not breaker.failing or breaker.take_turn(lane.waiting[0], now)

    def _fly(self, lane: Lane, room: int, batch: list[Message], now: float) -> None:
        slot = self.slots[lane.slot]
        most = self._depth(lane, room) if len(lane.waiting) > 1 else 1
        taken, lane.waiting = lane.waiting[:most], lane.waiting[most:]
        flying = lane.flying
        for message in taken:
            if message.expires_at is not None and self._expires(message, slot, now):
                lane.outlet.in_memory -= 1
                continue
            message.epoch = slot.epoch
            flying.append(message)
            batch.append(message)
        if flying:
            lane.outlet.flying_lanes += 1
        else:
            self._landed(lane)

    def _depth(self, lane: Lane, room: int) -> int:
        """How many of one lane may be in flight. Where others wait too, one slow key must not have the whole batch."""
        if not lane.outlet.features.ordered or self._is_trial(lane):
            return 1
        return min(room, max(1, self._settings.batch_size // 4)) if lane.outlet.ready else room

    def _is_trial(self, lane: Lane) -> bool:
        """A message that failed before goes alone, and the first after an outage too."""
        breaker = lane.outlet.breaker
        if breaker.state != "closed" or (breaker.failing and lane.topic in breaker.failing):
            return True
        held = self.held.get(lane.name) if self.held else None
        return held is not None and held.trying
