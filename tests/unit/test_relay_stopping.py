"""What becomes of the slots of a relay that stops while something is in flight."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from postroom import Message, Relay
from postroom.errors import StoreUnavailable
from postroom.message import SLOTS, slot_of
from postroom.ports import Batch, Fetched, Lease, Range, Settled, Settlement
from postroom.publishers.memory import MemoryPublisher
from postroom.relay.leases import LeaseKeeper
from postroom.stores.memory import MemoryStore
from tests.unit.relay_shop import Shop, owned
from tests.waiting import until

QUICK: dict[str, Any] = {"lease_ttl": "2s"}
SLOW: dict[str, Any] = {"lease_ttl": "1h", "stop_timeout": "1m"}


class Slow:
    """A destination that answers for each key when it is told to."""

    def __init__(self) -> None:
        self.flying: dict[str, asyncio.Event] = {}

    async def publish(self, message: Message) -> None:
        answer = self.flying[message.key or ""] = asyncio.Event()
        await answer.wait()


class Whole(MemoryPublisher):
    """The same, for a call that is over with its answer."""

    def __init__(self, slow: Slow) -> None:
        super().__init__("memory:")
        self._slow = slow

    async def publish(self, batch: Batch) -> None:
        for message in batch.messages:
            await self._slow.publish(message)
        batch.confirm_all()


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def slow() -> Slow:
    return Slow()


@asynccontextmanager
async def stopping(relay: Relay) -> AsyncGenerator[None]:
    """It has been asked to stop, and must have come to its end when the block is over."""
    leaving = asyncio.create_task(relay.__aexit__(None, None, None))
    try:
        yield
        async with asyncio.timeout(20):
            await leaving
    finally:
        leaving.cancel()


async def at_rest(relay: Relay) -> None:
    """It has all slots, and nothing to do about them for a long time."""
    await until(lambda: len(owned(relay)) == SLOTS and keeper_of(relay)._next_at > time.monotonic() + 60)


def keeper_of(relay: Relay) -> LeaseKeeper:
    assert relay._session is not None
    return relay._session._keeper_or_fail()


async def fly(shop: Shop, slow: Slow, relay: Relay, count: int) -> list[Message]:
    """Messages that are in flight in different slots of this relay."""
    keys = {slot_of(f"k{number}", ""): f"k{number}" for number in range(1_000)}
    messages = [shop.add(key=keys[slot]) for slot in sorted(owned(relay))[:count]]
    await until(lambda: len(slow.flying) == count)
    return messages


def owner_of(shop: Shop, message: Message) -> str | None:
    return shop.store.tables.leases[message.slot].owner


async def test_the_others_take_the_idle_slots_of_a_relay_that_stops_while_it_finishes(shop: Shop, slow: Slow) -> None:
    async with shop.relay(**QUICK) as heir, shop.relay(slow.publish, **SLOW) as leaver:
        await until(lambda: len(owned(heir)) == len(owned(leaver)) == SLOTS / 2)
        idle = max(owned(leaver))
        (message,) = await fly(shop, slow, leaver, 1)
        async with stopping(leaver):
            await until(lambda: len(owned(heir)) == SLOTS - 1)
            assert owner_of(shop, message) == leaver.id
            assert idle in owned(heir)
            slow.flying[message.key or ""].set()
        await until(lambda: len(owned(heir)) == SLOTS)
        assert await shop.state_of(message) is None


@pytest.mark.parametrize("calls", ["in one call", "in a call each"])
async def test_a_relay_that_stops_gives_each_slot_back_as_soon_as_what_is_in_flight_there_is_settled(
    shop: Shop, slow: Slow, calls: str
) -> None:
    publisher, workers = (slow.publish, 1) if calls == "in one call" else (Whole(slow), 2)
    async with shop.relay(publisher, workers=workers, **SLOW) as leaver:
        await at_rest(leaver)
        first, second = await fly(shop, slow, leaver, 2)
        async with stopping(leaver):
            await until(lambda: owned(leaver) == {first.slot, second.slot})
            slow.flying[first.key or ""].set()
            await until(lambda: owner_of(shop, first) is None)
            assert await shop.state_of(first) is None
            assert owner_of(shop, second) == leaver.id
            slow.flying[second.key or ""].set()
        assert owner_of(shop, second) is None


async def test_a_relay_that_stops_renews_what_it_keeps_and_claims_no_share(shop: Shop, slow: Slow) -> None:
    async with shop.relay(slow.publish, **SLOW) as leaver:
        await at_rest(leaver)
        (message,) = await fly(shop, slow, leaver, 1)
        leases, relays = shop.store.tables.leases, shop.store.tables.relays
        async with stopping(leaver):
            await until(lambda: not relays)
            before = leases[message.slot].expires_at
            await keeper_of(leaver).tick()
            assert before is not None
            assert (after := leases[message.slot].expires_at) is not None
            assert after > before
            assert not relays
            assert owned_slots(shop.store) == {message.slot}
            slow.flying[message.key or ""].set()


class Unread(MemoryStore):
    """Reading takes as long as it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.waiting = asyncio.Event(), False

    async def fetch(self, ranges: Sequence[Range], limit: int | None = None) -> Fetched:
        self.waiting = True
        await self.gate.wait()
        return await super().fetch(ranges, limit)


async def test_a_relay_that_stops_in_the_middle_of_a_slow_read_gives_its_slots_back_meanwhile(shop: Shop) -> None:
    shop.store = store = Unread()
    async with shop.relay(workers=1, **SLOW) as leaver:
        await until(lambda: store.waiting)
        await at_rest(leaver)
        async with stopping(leaver):
            await until(lambda: not owned_slots(store))
            store.gate.set()


class Claimed(Unread):
    """As if reading a row claimed it."""

    is_first = False

    def by_rows(self, relay: str) -> Any:
        return self


async def test_where_rows_are_claimed_nothing_is_given_back_in_the_middle_of_reading(shop: Shop) -> None:
    shop.store = store = Claimed()
    async with shop.relay(workers=1, claim="rows", **SLOW) as leaver:
        await until(lambda: store.waiting)
        await at_rest(leaver)
        async with stopping(leaver):
            await until(lambda: not store.tables.relays)
            assert len(owned_slots(store)) == SLOTS
            store.gate.set()
        assert not owned_slots(store)


class Gated(MemoryStore):
    """Its answers to those who take slots come when they are let through."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.waiting = asyncio.Event(), False

    async def acquire(self, relay: str, slots: Sequence[int], ttl: float) -> Mapping[int, Lease]:
        taken = await super().acquire(relay, slots, ttl)
        self.waiting = not self.gate.is_set()
        await self.gate.wait()
        return taken


async def test_slots_that_were_being_taken_when_a_relay_was_told_to_stop_are_given_back_at_once(
    shop: Shop, slow: Slow
) -> None:
    shop.store = store = Gated()
    store.gate.set()
    async with shop.relay(slow.publish, **SLOW) as leaver:
        async with shop.relay(**QUICK) as other:
            await until(lambda: len(owned(leaver)) == len(owned(other)) == SLOTS / 2)
            (message,) = await fly(shop, slow, leaver, 1)
            store.gate.clear()
        keeper_of(leaver).woken.set()
        await until(lambda: store.waiting)
        async with stopping(leaver):
            await until(lambda: leaver._session is not None and leaver._session._stopping.is_set())
            store.gate.set()
            await until(lambda: owned_slots(store) == {message.slot})
            slow.flying[message.key or ""].set()


def owned_slots(store: MemoryStore) -> set[int]:
    return {slot for slot, lease in store.tables.leases.items() if lease.owner}


class Contested(MemoryStore):
    """Somebody else is quicker, the first time."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    async def acquire(self, relay: str, slots: Sequence[int], ttl: float) -> Mapping[int, Lease]:
        self.asked += 1
        return await super().acquire(relay, slots, ttl) if self.asked > 1 else {}


async def test_a_relay_that_was_too_late_for_free_slots_does_not_wait_for_its_next_renewal(shop: Shop) -> None:
    shop.store = Contested()
    async with shop.relay(lease_ttl="1h") as relay:
        await until(lambda: len(owned(relay)) == SLOTS)


class Shaky(MemoryStore):
    """Fails to settle when it is told to, once."""

    fails = False

    async def settle(self, settlement: Settlement) -> Settled:
        if self.fails:
            self.fails = False
            raise StoreUnavailable("gone for a moment")
        return await super().settle(settlement)


async def test_a_relay_that_stops_waits_on_although_something_could_not_be_settled(shop: Shop, slow: Slow) -> None:
    shop.store = store = Shaky()
    async with shop.relay(slow.publish, **SLOW) as leaver:
        await at_rest(leaver)
        first, second = await fly(shop, slow, leaver, 2)
        async with stopping(leaver):
            await until(lambda: owned(leaver) == {first.slot, second.slot})
            store.fails = True
            slow.flying[first.key or ""].set()
            await until(lambda: not store.fails)
            assert owner_of(shop, second) == leaver.id
            slow.flying[second.key or ""].set()
        assert [await shop.state_of(message) for message in (first, second)] == [None, None]
        assert not owned_slots(store)
