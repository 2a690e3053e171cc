"""Who owns which slots: a pure share, and one small duty that renews, takes and gives back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
from collections.abc import Callable, Mapping, Sequence

from .. import events
from ..clock import Clock
from ..errors import TablesMissing
from ..message import SLOTS
from ..ports import DESTINATIONS, Beat, Lease, Leases, Store
from ..settings import Settings
from .gates import Slot
from .journal import Journal
from .pause import soon
from .pump import Pump

GIVEN = 60.0
"""Seconds for which a slot stays where it was handed to."""


def fair_share(relays: Sequence[str], relay: str, slots: int = SLOTS) -> int:
    """How many slots a relay should own: the same for all, the first few one more. Everybody computes the same."""
    ranked = sorted({*relays, relay})
    share, rest = divmod(slots, len(ranked))
    return share + (ranked.index(relay) < rest)


def is_free(lease: Lease, relay: str) -> bool:
    """For this relay to take."""
    return lease.expires_in <= 0 or (lease.owner is None and lease.kept_for in (None, relay))


class LeaseKeeper:
    """Keeps this relay's leases. A lease's deadline counts from before its renewal was sent, so that a slow answer can
    only shorten it."""

    def __init__(
        self,
        *,
        name: str,
        relay: str,
        store: Store,
        pumps: Sequence[Pump],
        journal: Journal,
        settings: Settings,
        clock: Clock,
        notice: Callable[[events.Event], None],
        answered: Callable[[], None],
        tasks: frozenset[str] = frozenset(),
    ) -> None:
        """`answered` is called whenever the database has done what it was asked to."""
        self.woken = asyncio.Event()
        self.woken_by = "polling"
        self.incomplete = True
        """Slots that we should own are still another's."""
        self._name = name
        self._relay = relay
        self._store = store
        self._pumps = pumps
        self._journal = journal
        self._tasks = tasks
        self._promised: dict[int, str] = {}
        """Slots that we leave, and the relay that each is for."""
        self._given: dict[int, float] = {}
        """Slots that others have handed to us, and until when they are not given back for the sake of a fair share."""
        self._settings = settings
        self._clock = clock
        self._notice = notice
        self._answered = answered
        self._host = socket.gethostname()[:255]
        self._turn = asyncio.Lock()
        self._next_at = 0.0
        self._is_closing = False
        self._is_member = False
        """We may be counted among those who share the slots."""
        self._told: dict[int, int] = {}
        """The marks that the store knows."""

    async def tick(self) -> None:
        """Renew, give back, take."""
        async with self._turn:
            self._next_at = 0.0  # at once, should it fail
            pause = await soon(self._tick(), self._settings.patience)
            self._next_at = self._clock.monotonic() + pause

    async def _tick(self) -> float:
        """Returns the seconds until it should be done again."""
        before = self._clock.monotonic()
        self.expire(before)
        if self._is_closing:
            if self._slots():
                await self._renew(before)
            await self._let_go()
            return self._settings.renew_interval
        leases = await self._renew(before)
        await self._journal.catch_up()
        await self._hand_on()
        await self._give_back(leases)
        taken = await self._take(leases)
        for pump in self._pumps:
            pump.stir()
        return min(0.5, self._settings.renew_interval) if self._is_unbalanced(taken) else self._settings.renew_interval

    async def _renew(self, before: float) -> Leases:
        beat, self._is_member = self._beat(), True
        leases = await self._store.renew(beat)
        self._told.update(beat.marks)
        self._note_renewed(leases.slots, before)
        if len(leases.slots) < SLOTS:
            count = len(leases.slots)
            raise TablesMissing(f"the outbox {self._name!r} has {count} of {SLOTS} leases; run 'postroom init'")
        return leases

    async def run(self) -> None:
        """Tick for ever; the caller deals with a database that does not answer."""
        while True:
            if (pause := self._next_at - self._clock.monotonic()) > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self.woken.wait()
            self.woken.clear()  # before, and not after: whoever wakes us during a tick wants another one
            if self._is_closing and self._clock.monotonic() < self._next_at:
                await self.let_go()
            else:
                await self.tick()
            self._answered()

    def retire(self) -> None:
        """From now on take nothing, claim no share, and give each slot back as soon as nothing is in flight there."""
        self._is_closing = True
        self._leave_all()
        self.woken.set()

    async def let_go(self) -> None:
        """Give back what a relay that retires can give back by now."""
        async with self._turn:
            next_at, self._next_at = self._next_at, 0.0  # a tick at once, should it fail
            await soon(self._let_go(), self._settings.patience)
            self._next_at = next_at

    async def _let_go(self) -> None:
        """Without us the share of the others is all there is. Each renewal makes us a member again, so this follows."""
        self._leave_all()  # also what was being taken when we were told to retire
        left = self._left()
        if left or self._is_member:
            await self._release(left, leave=True)

    def _leave_all(self) -> None:
        for pump in self._pumps:
            pump.plan.leave([slot.number for slot in pump.plan.slots.values() if not slot.leaving])
            pump.stir()

    def expire(self, now: float) -> None:
        """Drop every slot whose deadline has passed: somebody else may own it already."""
        late = [slot.number for slot in self._slots() if slot.deadline <= now]
        self._lose(late)

    def lose_all(self) -> None:
        """The tables are gone. What we know of our slots says nothing about those that will be there instead."""
        self._lose([slot.number for slot in self._slots()])

    async def release_all(self) -> None:
        """Give everything back that nothing is flying for; the rest is left to expire. Nothing is taken any more."""
        self._is_closing = True
        async with self._turn:  # what is being taken just now must be given back, too
            await self._journal.close()
            await self._release_all()

    async def _release_all(self) -> None:
        flying = self._flying()
        epochs = {slot.number: slot.epoch for slot in self._slots() if slot.number not in flying}
        marks = self._marks()
        for pump in self._pumps:
            pump.plan.lose(epochs)
        await self._store.release(self._relay, epochs, marks, leave=True)
        self._is_member = False
        if epochs:
            self._notice(events.LeasesReleased(outbox=self._name, slots=sorted(epochs)))

    def _beat(self) -> Beat:
        return Beat(
            relay=self._relay,
            host=self._host,
            pid=os.getpid(),
            ttl=self._settings.lease_ttl,
            epochs={slot.number: slot.epoch for slot in self._slots()},
            marks={slot: mark for slot, mark in self._marks().items() if self._told.get(slot) != mark},
            in_flight=sum(pump.in_flight for pump in self._pumps),
            woken_by=self.woken_by,
            tasks=self._tasks,
        )

    def promise(self, slot: int, to: str) -> None:
        """Hand a slot to another relay, once no task is under way there and the rest is settled."""
        if slot in self._pump_of(slot).plan.slots and slot not in self._promised:
            self._promised[slot] = to
            self.woken.set()

    async def _hand_on(self) -> None:
        """A relay without tasks leaves the slots that have some to relays that run them, one without destinations those
        that have other messages to relays that deliver them."""
        if self._settings.claim == "rows":
            return
        if not any(self._tasks):
            await self._hand_on_stranded(tasks=True)
        if DESTINATIONS not in self._tasks:
            await self._hand_on_stranded(tasks=False)

    async def _hand_on_stranded(self, *, tasks: bool) -> None:
        stranded = {slot for pump in self._pumps for slot in pump.plan.stranded(tasks=tasks)}
        others = await self._store.who_knows(None if tasks else DESTINATIONS) if stranded else ()
        for slot in sorted(stranded) if others else ():
            self.promise(slot, random.choice(others))

    def _note_renewed(self, leases: Mapping[int, Lease], before: float) -> None:
        deadline = before + self._settings.lease_ttl - self._settings.lease_margin
        lost: list[int] = []
        for slot in self._slots():
            lease = leases.get(slot.number)
            if lease is not None and lease.owner == self._relay and lease.epoch == slot.epoch:
                slot.deadline = deadline
            else:
                lost.append(slot.number)
        self._lose(lost)

    async def _give_back(self, leases: Leases) -> None:
        """Release what has drained, and let slots drain of which we own too many."""
        owned = [slot for slot in self._slots() if not slot.leaving]
        surplus, now = len(owned) - self._wanted(leases), self._clock.monotonic()
        # Whoever leaves a slot begins nothing there: that must not wait for a task of an hour.
        busy = {number for pump in self._pumps for number in pump.plan.busy()}
        for number in [slot.number for slot in owned if slot.number in self._promised and slot.number not in busy]:
            self._pump_of(number).plan.leave([number])
        # The slots with the least in memory are the quickest to hand over.
        movable = [slot for slot in owned if self._given.get(slot.number, 0.0) <= now and slot.number not in busy]
        movable = [slot for slot in movable if not slot.leaving]
        for slot in sorted(movable, key=lambda slot: slot.count)[: max(0, surplus)]:
            self._pump_of(slot.number).plan.leave([slot.number])
        if left := self._left():
            await self._release(left, leave=False)

    def _left(self) -> list[int]:
        """The leaving slots that have nothing in flight any more. Where reading a row claims it, what is being read at
        this moment must be given back, too."""
        claims_rows = self._settings.claim == "rows"
        pumps = [pump for pump in self._pumps if not (claims_rows and pump.is_reading)]
        return [number for pump in pumps for number in pump.plan.left()]

    async def _release(self, left: Sequence[int], *, leave: bool) -> None:
        await self._journal.catch_up()
        marks = self._marks()
        epochs = {slot.number: slot.epoch for slot in self._slots() if slot.number in left}
        for number in left:
            self._pump_of(number).plan.lose([number])
        for number in [number for number in left if number in self._promised]:
            to, ttl = self._promised.pop(number), self._settings.lease_ttl
            await self._store.hand_over(self._relay, number, epochs.pop(number), marks[number], to, ttl)
        await self._store.release(self._relay, epochs, {number: marks[number] for number in epochs}, leave=leave)
        self._is_member = self._is_member and not leave
        if left:
            self._notice(events.LeasesReleased(outbox=self._name, slots=sorted(left)))

    async def _take(self, leases: Leases) -> list[int]:
        owned = {slot.number for slot in self._slots()}
        missing = 0 if self._is_closing else self._wanted(leases) - len(owned)
        flying = self._flying()
        ours = {n: lease for n, lease in sorted(leases.slots.items()) if is_free(lease, self._relay)}
        free = [n for n in ours if n not in owned and n not in flying]
        given = [] if self._is_closing else [n for n in free if ours[n].kept_for == self._relay]
        self.incomplete = len(free) < missing
        chosen = [*given, *(n for n in free if n not in given)][: max(len(given), missing)]
        if not chosen:
            return []
        before = self._clock.monotonic()
        taken = await self._store.acquire(self._relay, chosen, self._settings.lease_ttl)
        self.incomplete |= len(taken) < missing  # others took some at the same moment
        self._given.update(dict.fromkeys(given, before + GIVEN))
        await self._own(taken, before + self._settings.lease_ttl - self._settings.lease_margin)
        return list(taken)

    async def _own(self, taken: Mapping[int, Lease], deadline: float) -> None:
        if not taken:
            return
        holds, gates = await self._store.gates(list(taken))
        now = self._clock.monotonic()
        for number, lease in taken.items():
            self._told[number] = lease.mark
            self._journal.own(lease)
            self._promised.pop(number, None)
            self._pump_of(number).plan.own(
                lease,
                deadline,
                [hold for hold in holds if hold.slot == number],
                [gate for gate in gates if gate.slot == number],
                now,
            )
        self._notice(events.LeasesTaken(outbox=self._name, slots=sorted(taken)))
        for pump in self._pumps:
            pump.look_everywhere()

    def _wanted(self, leases: Leases) -> int:
        if self._settings.claim != "leader":
            return fair_share(leases.relays, self._relay)
        others = any(not is_free(lease, self._relay) and lease.owner != self._relay for lease in leases.slots.values())
        return 0 if others else SLOTS

    def _is_unbalanced(self, taken: Sequence[int]) -> bool:
        is_moving = bool(self._promised) or any(slot.leaving for slot in self._slots())
        return self.incomplete or bool(taken) or is_moving

    def _lose(self, numbers: Sequence[int]) -> None:
        if not numbers:
            return
        for number in numbers:
            self._promised.pop(number, None)
            self._pump_of(number).plan.lose([number])
        for pump in self._pumps:
            pump.cancel_lost_calls()
        self._notice(events.LeasesLost(outbox=self._name, slots=sorted(numbers)))

    def _slots(self) -> list[Slot]:
        return [slot for pump in self._pumps for slot in pump.plan.slots.values()]

    def _marks(self) -> dict[int, int]:
        return {number: mark for pump in self._pumps for number, mark in pump.plan.marks().items()}

    def _flying(self) -> set[int]:
        return {number for pump in self._pumps for number in pump.plan.flying_slots()}

    def _pump_of(self, slot: int) -> Pump:
        return self._pumps[slot % len(self._pumps)]
