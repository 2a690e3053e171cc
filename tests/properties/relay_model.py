"""A model of the whole relay: applications, several relays, destinations and time, any of which may fail at any step.

The relays are the real ones (session, leases, pump, plan, breaker) over a real store; only time, chance and the
destination are the test's. Every store call and every loop turn is a point at which a relay can crash.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from postroom.errors import DestinationUnavailable, MessageRejected, NotAttempted, StoreUnavailable
from postroom.message import Message
from postroom.ports import Batch, Beat, Features, Settlement, Store
from postroom.relay.session import Session
from postroom.relay.wiring import Target
from postroom.routing import Globs, Routes
from postroom.settings import Settings
from postroom.testing.clock import FakeClock

BLOCK, CONTINUE = "block", "continue"
TOPICS = (BLOCK, CONTINUE)
HASTY = "hasty"
"""A type whose messages die of their first failure."""


WORKERS = 3
"""Pumps of a relay, which share their breakers."""


class Crash(BaseException):
    """kill -9."""


@dataclass
class World:
    """The truth: what was committed, and what reached the destination, in order."""

    committed: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    order: dict[tuple[str, str | None], list[str]] = field(default_factory=lambda: defaultdict(list))
    delivered: list[str] = field(default_factory=list)
    first: set[str] = field(default_factory=set)
    poison: set[str] = field(default_factory=set)
    hasty: set[str] = field(default_factory=set)
    died: set[str] = field(default_factory=set)
    """Where a dead message lets its key go on, it has lost its place, also if it is back later."""
    refusals: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    outages: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    down: set[str] = field(default_factory=set)
    """Topics whose destination is down."""
    refusing: bool = False
    """An outage that looks like bad messages."""
    blunt: bool = False
    """If anything of a batch fails, all of it does."""
    hanging: bool = False
    hung: list[asyncio.Future[None]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def commit(self, message: Message) -> None:
        self.committed[message.id] = (message.topic, message.key)
        self.order[(message.topic, message.key)].append(message.id)
        if message.type == HASTY:
            self.hasty.add(message.id)

    def receive(self, message: Message) -> None:
        if message.id not in self.committed:
            self.problems.append(f"phantom: {message.id} was never committed")
            return
        self.check_attempt(message)
        if message.id not in self.first and message.key is not None:
            self._check_order(message)
        self.first.add(message.id)
        self.delivered.append(message.id)

    def _check_order(self, message: Message) -> None:
        for earlier in self.order[(message.topic, message.key)]:
            if earlier == message.id:
                return
            if earlier not in self.first and not (message.topic == CONTINUE and earlier in self.died):
                self.problems.append(f"order: {message.id} of key {message.key} came before {earlier}")

    def check_attempt(self, message: Message) -> None:
        most = 1 + self.earned(message.id)
        if message.attempt > most:
            self.problems.append(f"attempts: {message.id} is at attempt {message.attempt}, at most {most} were earned")

    def earned(self, id: str) -> int:
        """Attempts that may have been counted: refusals, and outages only from the third on, which a message that
        fails while others succeed is charged for."""
        return self.refusals[id] + max(0, self.outages[id] - 2)


class Destination:
    """A publisher with prefix semantics whose moods the model sets."""

    features = Features(ordered=True)

    def __init__(self, world: World) -> None:
        self._world = world

    async def publish(self, batch: Batch) -> None:
        world = self._world
        if world.hanging:
            await self._hang()
        if not (world.down or world.poison or world.refusing):
            for message in batch.messages:
                world.receive(message)
            batch.confirm_all()
            return
        if world.blunt:
            self._answer_bluntly(batch)
            return
        failed: set[tuple[str, str]] = set()
        for message in batch.messages:
            lane = (message.topic, message.key or message.id)
            if lane in failed:
                batch.answer(message, NotAttempted("one before it failed"))
            elif message.topic in world.down:
                world.outages[message.id] += 1
                failed.add(lane)
                batch.answer(message, DestinationUnavailable("down"))
            elif message.id in world.poison or world.refusing:
                world.check_attempt(message)
                world.refusals[message.id] += 1
                failed.add(lane)
                batch.answer(message, MessageRejected("poison"))
            else:
                world.receive(message)
                batch.answer(message)

    def _answer_bluntly(self, batch: Batch) -> None:
        world = self._world
        is_down = any(message.topic in world.down for message in batch.messages)
        is_refused = world.refusing or any(message.id in world.poison for message in batch.messages)
        failures = world.outages if is_down else world.refusals
        for message in batch.messages:
            if is_down or is_refused:
                failures[message.id] += 1
                batch.answer(message, DestinationUnavailable("down") if is_down else MessageRejected("one is poison"))
            else:
                world.receive(message)
                batch.answer(message)

    async def _hang(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._world.hung.append(future)
        await future

    async def close(self) -> None: ...


class FragileStore:
    """One relay's way to the store: crashes or fails at the call it is told to, before or after it takes effect.

    It also checks fencing itself: no verdict of a relay may take effect in a slot it does not own.
    """

    def __init__(self, store: Store, world: World) -> None:
        self._store = store
        self._world = world
        self.workers = WORKERS
        self.sweep_interval = math.inf
        """The safety net is away: all must be found without it."""
        self.may_miss_rows = False
        self.name = store.name
        self.fault: tuple[int, str, type[BaseException]] | None = None
        self._calls = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        async def call(*args: Any, **options: Any) -> Any:
            self._fail_if_told("before")
            result = await method(*args, **options)
            self._fail_if_told("after")
            return result

        return call

    async def close_for_good(self) -> None:
        """A process that dies lets go of its connection, whatever else goes wrong."""
        await self._store.close()

    async def settle(self, settlement: Settlement) -> Any:
        self._fail_if_told("before")
        stale = await self._stale_slots(settlement)
        result = await self._store.settle(settlement)
        if ignored := stale - set(result.refused):
            self._world.problems.append(f"fencing: verdicts of a stale owner took effect in slots {sorted(ignored)}")
        self._world.died.update(dead.message.id for dead in settlement.dead if dead.message.slot not in result.refused)
        self._fail_if_told("after")
        return result

    async def _stale_slots(self, settlement: Settlement) -> set[int]:
        judged = {entry.message.slot for entry in (*settlement.retries, *settlement.dead, *settlement.refunds)}
        judged |= {gate.slot for gate, _ in settlement.parked} | {gate.slot for gate in settlement.released}
        judged |= {message.slot for message in settlement.superseded}
        leases = await owners(self._store)
        return {slot for slot in judged if leases[slot] != (settlement.relay, settlement.epochs.get(slot))}

    def _fail_if_told(self, when: str) -> None:
        if self.fault is None:
            return
        countdown, moment, error = self.fault
        if moment != when:
            return
        if countdown > 0:
            self.fault = (countdown - 1, moment, error)
            return
        self.fault = None
        raise error(f"{when} the call")


async def owners(store: Store) -> dict[int, tuple[str | None, int]]:
    """Who owns each slot, asked in the name of somebody who is never counted as alive."""
    beat = Beat(relay="onlooker", host="test", pid=0, ttl=-1.0, epochs={}, marks={})
    return {slot: (lease.owner, lease.epoch) for slot, lease in (await store.renew(beat)).slots.items()}


class SimulatedRelay:
    """A relay whose loops are turned by hand."""

    def __init__(self, store: Store, world: World, clock: FakeClock, number: int, destinations: dict[str, str]) -> None:
        """`destinations`: the name of the one to which each topic goes."""
        self.store = FragileStore(store, world)
        self.world = world
        self.clock = clock
        destination = Destination(world)
        self.session = Session(
            relay=f"relay-{number}",
            name="default",
            store=self.store,  # type: ignore[arg-type]
            publishers=Routes({topic: Target(destinations[topic], lambda: destination, False) for topic in TOPICS}),
            settings=Settings.of(
                batch_size=6,
                lease_ttl=15,
                publish_timeout=5,
                on_dead={CONTINUE: "continue"},
                retry={HASTY: "never", "*": "steps 0s 1s 5s 30s 2m"},
            ),
            clock=clock,
            observers=(),
        )

    async def open(self) -> None:
        await self.session.open()

    async def tick(self) -> None:
        """Renew the leases, and look for what was committed, as if it were time for both."""
        await self._guarded(self.session._keeper_or_fail().tick)
        for pump in self.session.pumps:
            pump.look_everywhere()

    async def step(self) -> bool:
        self.session._keeper_or_fail().expire(self.clock.monotonic())
        return any([bool(await self._guarded(pump.step)) for pump in self.session.pumps])

    async def _guarded(self, action: Callable[[], Awaitable[Any]]) -> Any:
        try:
            result = await action()
        except StoreUnavailable:
            self.session._keeper_or_fail().expire(self.clock.monotonic())
            for pump in self.session.pumps:
                pump.look_everywhere()
            result = False
        await turn_the_loop()
        return result

    def owned(self) -> set[int]:
        """Slots that this relay believes it may publish for."""
        slots = [slot for pump in self.session.pumps for slot in pump.plan.slots.values()]
        return {slot.number for slot in slots if slot.deadline > self.clock.monotonic()}

    def pause(self, *topics: str) -> None:
        self.session.pause(Globs(topics))

    async def crash(self) -> None:
        """Everything in memory is gone; what hangs at the destination never comes back to us."""
        for pump in self.session.pumps:
            for task in list(pump._calls):
                task.cancel()
        await turn_the_loop()
        await self.store.close_for_good()

    async def stop(self) -> None:
        await self.session.finish(0.0)
        await turn_the_loop()
        await self.store.close_for_good()


async def turn_the_loop(turns: int = 12) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


def live(relays: Sequence[SimulatedRelay | None]) -> list[SimulatedRelay]:
    return [relay for relay in relays if relay is not None]
