"""Fault injection: a store and a publisher to which something terrible happens, at a chosen step or by chance.

A step is a call of the relay to its store or its publisher; each has a moment before and one after it takes effect.
`Faults(at=n)` strikes at the n-th of these moments, so a loop over n visits every point at which a process can die.

`Faults(seed=n)` draws faults instead, and needs no process that dies: after a crash nothing that the relay does reaches
anybody, and its `drain` raises `Crashed`. Then wrap the store and the publisher again, for a new relay.

| fault | what happens |
|---|---|
| `crash_after_publish` | messages are out, and the relay dies before it hears so |
| `crash_after_answer` | the relay dies once the first answer of a call is settled; the call is cut off at that answer |
| `crash_before_settle`, `crash_after_settle` | it dies when it is about to write down answers, or has just done so |
| `lease_lost` | in the middle of a call somebody else has taken its slots |
| `partial_answers` | the last answers of a call are lost on their way, though the messages are out |
| `database_restart` | the database fails some calls; the first of them may have taken effect |
| `slow_destination` | a call takes `slow` seconds longer, before or after the messages are out |
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ..duration import Duration, seconds
from ..errors import StoreError, StoreUnavailable
from ..message import Message
from ..ports import Batch, Features, Lease, Publisher, Store
from .schedule import KINDS, STORE_CALLS, Kind, Schedule

LONGEST_RESTART = 3
"""Calls that a restarting database fails at most."""
THEFT = 0.2
"""Seconds for which somebody else keeps slots that were lost."""
LAST_BREATH = 0.5
"""Seconds in which a relay that is about to crash may settle what was answered."""


def kill_this_process() -> None:
    """What `kill -9` does: no clean-up, no goodbye."""
    os.kill(os.getpid(), signal.SIGKILL)


class Crashed(BaseException):
    """A drawn fault ended this relay. No `Exception`: nothing that survives errors may survive this."""


class Faults:
    """Counts moments and strikes at one of them (`at=None` only counts); or, with a `seed`, draws faults.

    `kinds` are the faults to draw from, `rate` is the share of calls that meet one, and after `most` of them all is
    well. `struck` says which it were, in order.
    """

    def __init__(
        self,
        at: int | None = None,
        strike: Callable[[], None] = kill_this_process,
        *,
        seed: int | None = None,
        kinds: Collection[str] = KINDS,
        rate: float = 0.4,
        most: int = 20,
        slow: Duration = "20ms",
    ) -> None:
        self.moments = 0
        self.trail: list[str] = []
        self.struck: list[str] = []
        self.slow = seconds(slow, name="slow")
        self.schedule = None if seed is None else Schedule(seed, kinds, rate, most)
        self._at = at
        self._strike = strike
        self._life = Life()

    def pass_by(self, what: str) -> None:
        self.trail.append(what)
        self.moments += 1
        if self.moments - 1 == self._at:
            self._strike()

    def draw(self, call: str) -> Kind | None:
        kind = self.schedule.draw(call) if self.schedule else None
        if kind is not None:
            self.struck.append(kind)
        return kind

    def store(self, store: Store) -> Store:
        return FaultyStore(store, self, self.life)  # type: ignore[return-value]

    def publisher(self, publisher: Publisher) -> Publisher:
        return FaultyPublisher(publisher, self, self.life)

    @property
    def life(self) -> Life:
        """Of the relay that is at work, or of the next one if that has crashed."""
        if self._life.is_over:
            self._life = Life()
        return self._life


class Life:
    """What one relay can still do: once it has crashed, nothing."""

    def __init__(self) -> None:
        self.is_over = False
        self.is_ending = False
        """The next settlement is the last thing that happens."""
        self.crashed = asyncio.Event()
        self.calls: set[asyncio.Task[None]] = set()
        self.store: FaultyStore | None = None

    def check(self) -> None:
        if self.is_over:
            raise Crashed("this relay has crashed")

    def crash(self) -> None:
        """The calls under way end where they are, as they would if the process died."""
        self.is_over = True
        self.crashed.set()
        for call in self.calls:
            call.cancel()
        raise Crashed("a drawn fault")


class FaultyStore:
    """A store with a fault before and after each call that the flow makes."""

    def __init__(self, store: Store, faults: Faults, life: Life) -> None:
        self._store = store
        self._faults = faults
        self._life = life
        self._relay = ""
        self._owned: dict[int, int] = {}
        self._failing = 0
        life.store = self

    def by_rows(self, relay: str) -> Any:
        return FaultyStore(self._store.by_rows(relay), self._faults, self._life)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._store, name)
        if name not in STORE_CALLS:
            return attribute

        async def call(*arguments: Any, **options: Any) -> Any:
            self._life.check()
            kind = self._faults.draw(name)
            self._faults.pass_by(f"before {name}")
            answer_is_lost = self._strike_before(kind, name)
            result = await attribute(*arguments, **options)
            self._strike_after(kind, name, answer_is_lost)
            self._faults.pass_by(f"after {name}")
            if name == "acquire":
                self._note_leases(arguments[0], result)
            return result

        return call

    def _strike_before(self, kind: Kind | None, name: str) -> bool:
        """Whether the call shall take effect, and nobody hear of it."""
        if kind == "crash_before_settle":
            self._life.crash()
        if kind == "database_restart" and self._faults.schedule is not None:
            dice = self._faults.schedule.dice(name)
            self._failing = dice.randint(1, LONGEST_RESTART)
            if dice.random() < 0.5:
                return True
        if self._failing > 0:
            self._fail()
        return False

    def _strike_after(self, kind: Kind | None, name: str, answer_is_lost: bool) -> None:
        if kind == "crash_after_settle" or (name == "settle" and self._life.is_ending):
            self._life.crash()
        self._life.check()
        if answer_is_lost:
            self._fail()

    def _fail(self) -> None:
        self._failing -= 1
        raise StoreUnavailable("a drawn fault: the database restarts")

    def _note_leases(self, relay: str, leases: Mapping[int, Lease]) -> None:
        self._relay = relay
        self._owned |= {slot: lease.epoch for slot, lease in leases.items()}

    async def lose(self, messages: Sequence[Message]) -> None:
        """Somebody else has the slots of these messages, for a while, under a new epoch."""
        slots = sorted({message.slot for message in messages} & self._owned.keys())
        with suppress(StoreError):
            await self._store.release(self._relay, {slot: self._owned[slot] for slot in slots}, {}, leave=False)
            await self._store.acquire("somebody-else", slots, THEFT)


class FaultyPublisher:
    """A publisher with a fault before and after each call."""

    def __init__(self, publisher: Publisher, faults: Faults, life: Life) -> None:
        self._publisher = publisher
        self._faults = faults
        self._life = life

    @property
    def features(self) -> Features:
        return self._publisher.features

    async def publish(self, batch: Batch) -> None:
        self._life.check()
        kind = self._faults.draw("publish")
        self._faults.pass_by("before publish")
        await (self._publisher.publish(batch) if self._faults.schedule is None else self._publish(batch, kind))
        self._faults.pass_by("after publish")

    async def close(self) -> None:
        await self._publisher.close()

    async def _publish(self, batch: Batch, kind: Kind | None) -> None:
        if kind == "crash_after_publish":
            await self._call(FaultyBatch(batch, self._life, silent_from=0))
            self._life.crash()
        elif kind == "crash_after_answer":
            await self._cut_off(batch)
        elif kind == "partial_answers":
            await self._call(FaultyBatch(batch, self._life, silent_from=self._toss(len(batch.messages)), tells=True))
        elif kind == "slow_destination":
            await self._call_slowly(batch)
        else:
            if kind == "lease_lost" and self._life.store is not None:
                await self._life.store.lose(batch.messages)
            await self._call(FaultyBatch(batch, self._life))

    async def _call(self, batch: FaultyBatch) -> None:
        batch.call = call = asyncio.ensure_future(self._publisher.publish(batch))
        self._life.calls.add(call)
        try:
            await call
        finally:
            self._life.calls.discard(call)

    async def _cut_off(self, batch: Batch) -> None:
        """At the first answer the call ends, the answer is settled, and that is the end of this life."""
        self._life.is_ending = True
        try:
            await self._call(FaultyBatch(batch, self._life, ends_call=True))
        finally:
            try:
                async with asyncio.timeout(LAST_BREATH):
                    await self._life.crashed.wait()
            except TimeoutError:
                self._life.crash()

    async def _call_slowly(self, batch: Batch) -> None:
        """The answers are held back until the end, as they would be by a destination that is slow to give them."""
        if self._toss(2):
            await asyncio.sleep(self._faults.slow)
            return await self._call(FaultyBatch(batch, self._life))
        late = FaultyBatch(batch, self._life, silent_from=0)
        await self._call(late)
        await asyncio.sleep(self._faults.slow)
        return late.tell()

    def _toss(self, sides: int) -> int:
        return self._faults.schedule.dice("publish").randrange(sides) if self._faults.schedule and sides else 0


class FaultyBatch:
    """Passes answers on, as long as the relay lives.

    Those from number `silent_from` on are kept, and with `tells` given as time-outs. With `ends_call` the first answer
    cancels who gave it.
    """

    def __init__(
        self,
        batch: Batch,
        life: Life,
        *,
        silent_from: int | None = None,
        tells: bool = False,
        ends_call: bool = False,
    ) -> None:
        self._batch = batch
        self._life = life
        silent = batch.messages[silent_from:] if silent_from is not None else ()
        self._silent = {message.id for message in silent}
        self._tells = tells
        self._ends_call = ends_call
        self._kept: dict[str, tuple[Message, BaseException | None]] = {}
        self._answered: set[str] = set()
        self.call: asyncio.Task[None] | None = None
        """Who answers."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    @property
    def messages(self) -> Sequence[Message]:
        return self._batch.messages

    @property
    def timeout(self) -> float:
        return self._batch.timeout

    def may_start(self) -> bool:
        return not self._life.is_over and self._batch.may_start()

    def answer(self, message: Message, error: BaseException | None = None) -> None:
        if self._life.is_over or message.id in self._answered:
            return
        self._answered.add(message.id)
        if message.id not in self._silent:
            self._batch.answer(message, error)
        elif self._tells:
            self._batch.answer(message, error or TimeoutError("a drawn fault: the answer was lost"))
        else:
            self._kept[message.id] = (message, error)
        if self._ends_call and self.call is not None:
            self.call.cancel()  # it goes no further than its next await
            self._ends_call = False

    def confirm_all(self) -> None:
        for message in self._batch.messages:
            self.answer(message)

    def tell(self) -> None:
        """Pass on what was kept."""
        for message, error in self._kept.values():
            self._batch.answer(message, error)
