"""What an answer means: delivered, to be tried again, dead, or not the message's fault at all."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from math import inf
from typing import Literal

from ..errors import NotAttempted, Postponed
from ..failures import describe, is_unavailable
from ..message import Message
from ..ports import Dead, Gate, Postponement, Refund, Retry, Settled, Settlement
from .barriers import Barriers
from .breaker import Failure
from .gates import HeldKey, Slot
from .memory import BreakerChanged, without_verdicts
from .outlet import Lane, Outlet

SPARE_LANES = 1_000
"""Lanes come and go with almost every message; used ones are kept at hand."""


class Verdicts(Barriers):
    def answer(self, message: Message, error: BaseException | None, now: float) -> None:
        """A publisher said what became of a message. Settle its key only up to the first unanswered one."""
        lane = self._lanes[self._lane_name(message)]
        lane.outlet.unanswered -= 1
        flying = lane.flying
        if flying[0] is not message:
            lane.answers = lane.answers or {}
            lane.answers[message.position] = error
            return
        flying.pop(0)
        self._decide(lane, message, error, now)
        while lane.answers and flying and flying[0].position in lane.answers:
            following = flying.pop(0)
            self._decide(lane, following, lane.answers.pop(following.position), now)
        if not flying:
            lane.outlet.flying_lanes -= 1
            self._landed(lane)

    def delivered(self, outlet: Outlet, messages: Sequence[Message], now: float) -> None:
        """All messages of a call, none of which was answered before. The same as an answer for each, in less time."""
        if self.held or not outlet.breaker.succeed(len(messages)):
            for message in messages:
                self.answer(message, None, now)
            return
        self._settlement.delivered.extend(messages)
        outlet.unanswered -= len(messages)
        outlet.in_memory -= len(messages)
        lanes, stand_alone = self._lanes, self._claims_rows
        for message in messages:
            # A lane is in one call at a time: with its first message, all that it has in flight is delivered.
            name = message.position if message.key is None or stand_alone else (message.topic, message.key)
            lane = lanes.get(name)
            if lane is not None and lane.flying:
                if lane.returned:
                    self.out_of_order.append((outlet, message))
                lane.flying.clear()
                outlet.flying_lanes -= 1
                self._landed(lane)

    def call_ended(self, outlet: Outlet, now: float) -> None:
        """A publish call is over."""
        outlet.call_ended(now)

    def take_settlement(self) -> Settlement | None:
        """What is to be written down, if anything."""
        for outlet in self._outlets:
            if outlet.breaker.given_back:
                self._take_refunds(outlet)
        if not self._settlement:
            return None
        settlement, self._settlement = self._settlement, self._new_settlement()
        settlement.epochs = self.epochs()
        self._under_way = settlement
        return settlement

    def settled(self, settlement: Settlement, result: Settled, now: float) -> None:
        """It is in the database: forget these messages. Of a slot that was lost meanwhile nothing is known any more, or
        what was read since: only deliveries count whatever happens."""
        known = self._known
        lost = {number for number, _ in settlement.epochs.items() - self.epochs().items()}
        written = without_verdicts(settlement, lost) if lost else settlement
        for message in settlement.delivered:
            slot = known.pop(message.position, None)
            if slot is not None:
                slot.count -= 1
        if self._from_parked:
            self._from_parked.difference_update(message.position for message in settlement.delivered)
        for entry in (*written.retries, *written.dead):
            self._forget(entry.message)
        for message in written.superseded:
            self._forget(message)
        for gate in written.released:
            self._released(gate, gate in result.still_parked)
        for dead in written.dead:
            held = self._held_by(dead.message)
            if held is not None and held.provisional:
                self._open(held)
        for refund in written.refunds:
            self._refunded(refund)
        for gate, _ in written.parked:
            barrier = self._barrier(gate)
            if barrier is not None:
                barrier.unsettled = max(0, barrier.unsettled - 1)
        self._under_way = None
        self.lose(result.refused - lost)

    def _decide(self, lane: Lane, message: Message, error: BaseException | None, now: float) -> None:
        breaker, topic = lane.outlet.breaker, lane.topic
        was_held_back = breaker.is_held_back(topic)
        self._judge(lane, message, error, now)
        if was_held_back != breaker.is_held_back(topic):
            self.changes.append(BreakerChanged(lane.outlet, "closed" if was_held_back else "tripped", topic))

    def _judge(self, lane: Lane, message: Message, error: BaseException | None, now: float) -> None:
        if error is None:
            self._delivered(lane, message)
        elif self._is_behind_a_failure(lane, message) or self._is_blameless(lane, message, error, now):
            lane.returned.append(message)
        else:
            self._failed(lane, message, error, now)

    def _is_behind_a_failure(self, lane: Lane, message: Message) -> bool:
        """Whether one before it in its key did not arrive: then this is sent again after it, whatever it failed of.
        Were it charged, it would hold the key itself, and go before the other."""
        if lane.returned:
            return True
        held = self.held.get(lane.name) if self.held else None
        return held is not None and held.status != "releasing" and held.position != message.position

    def _is_blameless(self, lane: Lane, message: Message, error: BaseException, now: float) -> bool:
        """Whether no attempt is counted: it was not tried, or it was the destination's fault."""
        if lane.lost or isinstance(error, NotAttempted):
            return True
        if is_unavailable(error):
            return not self._is_to_blame(lane, message, error, now) or self._was_answered(lane)
        if getattr(error, "permanent", False):
            return self._was_answered(lane)
        return self._is_misjudged(lane, message, error, now)

    def _delivered(self, lane: Lane, message: Message) -> None:
        outlet = lane.outlet
        outlet.in_memory -= 1
        self._settlement.delivered.append(message)
        if outlet.breaker.succeeded(message):
            self.changes.append(BreakerChanged(outlet, "closed"))
        if outlet.breaker.is_on_record and outlet.breaker.state == "closed":
            outlet.breaker.is_on_record = False
            self.changes.unwritten.setdefault(outlet.name, BreakerChanged(outlet, "closed"))
        if lane.returned or (self.held and not lane.lost and message.key is not None):
            self._delivered_though_held(lane, message)

    def _delivered_though_held(self, lane: Lane, message: Message) -> None:
        if lane.returned:
            self.out_of_order.append((lane.outlet, message))
        held = self.held.get((message.topic, message.key))
        if held is not None and held.position == message.position:
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

    def _was_answered(self, lane: Lane) -> Literal[False]:
        outlet = lane.outlet
        was = outlet.breaker.state
        outlet.breaker.answered(lane.topic)
        if was != "closed" and outlet.breaker.state == "closed":
            self.changes.append(BreakerChanged(outlet, "closed"))
        return False

    def _is_misjudged(self, lane: Lane, message: Message, error: BaseException, now: float) -> bool:
        """Whether this failure is the last of a row that means the destination is broken; if so, give all back."""
        breaker = lane.outlet.breaker
        was = breaker.state
        failure = Failure(message, message.attempt - 1)
        misjudged = breaker.refused(lane.name, failure, describe(error), now, self._random)
        if (was == "closed") != (breaker.state == "closed"):
            self.changes.append(BreakerChanged(lane.outlet, "closed" if breaker.state == "closed" else "tripped"))
        if misjudged:
            breaker.give_back()
            self._take_refunds(lane.outlet, message)
        return misjudged

    def _take_refunds(self, outlet: Outlet, current: Message | None = None) -> None:
        """Failures in our slots that were the destination's, whoever found that out."""
        for failure in outlet.breaker.take_refunds(self.slots):
            if current is not None and failure.message.dedupe_id == current.dedupe_id:
                self._refund_current(failure, current)
            elif failure.message.epoch == self.slots[failure.message.slot].epoch:
                self._refund(failure)

    def _refund_current(self, failure: Failure, current: Message) -> None:
        current.attempt = failure.attempts + 1
        held = self._held_by(current)
        if held is not None:
            held.attempts = failure.attempts
            self._settlement.refunds.append(Refund(failure.message, failure.attempts))

    def _refund(self, failure: Failure) -> None:
        """One that holds its key is due at once. Any other that died has lost its place, and goes last."""
        message, attempts = failure
        held = self._held_by(message)
        if held is not None and held.status != "releasing" and not held.provisional:
            held.attempts, held.status, held.due, held.parking = attempts, "retry", -inf, False
            self._correct_attempt(message, attempts + 1)
        self._settlement.refunds.append(Refund(message, attempts))

    def _correct_attempt(self, message: Message, attempt: int) -> None:
        """It may be in memory, to be tried."""
        lane = self._lanes.get(self._lane_name(message))
        for each in (*lane.flying, *lane.returned, *lane.waiting) if lane is not None else ():
            if each.position == message.position:
                each.attempt = attempt

    def _refunded(self, refund: Refund) -> None:
        """The row is back, and due."""
        self.expect_news([refund.message.slot])
        held = self._held_by(refund.message)
        if held is not None:
            self._await_due(held)

    def _failed(self, lane: Lane, message: Message, error: BaseException, now: float) -> None:
        permanent = bool(getattr(error, "permanent", False))
        self._forget_refund(message)
        lane.outlet.in_memory -= 1
        delay = None if permanent else self._delay(message, error)
        if delay is None:
            reason = getattr(error, "reason", "rejected") if permanent else "attempts"
            self._bury(message, reason, describe(error), may_hold=True, now=now)
            return
        kind = Retry
        if isinstance(error, Postponed):
            kind, message.attempt = Postponement, message.attempt - 1
        self._settlement.retries.append(kind(message, message.attempt, delay, describe(error)))
        if self.is_ordered(message):
            self._hold(message, "retry", now, now + delay)

    def _forget_refund(self, message: Message) -> None:
        """What is said of it now is the last word."""
        if self._settlement.refunds:
            position, refunds = message.position, self._settlement.refunds
            self._settlement.refunds = [refund for refund in refunds if refund.message.position != position]

    def _delay(self, message: Message, error: BaseException) -> float | None:
        chosen: float | None = getattr(error, "retry_in", None)
        if chosen is not None:
            return chosen
        return self._settings.retry.delay(message.attempt, error, message.type, self._random)

    def _bury(self, message: Message, reason: str, error: str, *, may_hold: bool, now: float = 0.0) -> None:
        may_hold_key = may_hold and self.is_ordered(message)
        holding = may_hold_key and self._blocks(message)
        self._topic(message)[0].breaker.suspects.pop(message.dedupe_id, None)
        # An expired message would only expire again.
        revive_after = self._settings.revive_after.value_for(message.topic, message.type) if may_hold else None
        self._settlement.dead.append(Dead(message, message.attempt, reason, error, holding, revive_after))
        if holding:
            self._hold(message, "dead", now, None)
        elif may_hold_key:
            # Later ones may go on, but only once this is written down: after a crash it would be tried behind them.
            self._hold(message, "dead", now, None).provisional = True
        elif (held := self._held_by(message)) is not None:
            self._open(held)

    def _blocks(self, message: Message) -> bool:
        return message.sequence is not None or self._settings.blocks(message.topic, message.type, message.key)

    def _hold(self, message: Message, status: Literal["retry", "dead"], now: float, due: float | None) -> HeldKey:
        was = self.held.get((message.topic, message.key))
        gate = Gate(message.slot, message.topic, message.key)
        held = HeldKey(
            name=gate, since=now, position=message.position, attempts=message.attempt,
            status=status, due=due, parked=message.position in self._from_parked,
        )  # fmt: skip
        if was is not None:
            held.inherit(was)
            self._draining.pop(was.name, None)
        self._remember(held)
        return held

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

    def _landed(self, lane: Lane) -> None:
        """Nothing of this lane is in flight any more."""
        if lane.returned:
            lane.waiting[:0] = lane.returned
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
        if self.held:
            self._lane_emptied(lane)
        if len(self._spare_lanes) < SPARE_LANES and not lane.lost:
            self._spare_lanes.append(lane)

    def _is_behind(self, lane: Lane, held: HeldKey | None) -> bool:
        """Whether what waits in the lane must not go on."""
        if self._is_paused(lane.topic):
            return True
        if held is None or held.status == "releasing":
            return False
        return lane.waiting[0].position != held.position
