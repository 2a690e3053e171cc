"""What the suites of a store share: messages, owners of slots, and what a store's own tests must provide."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import pytest
import pytest_asyncio

from ...message import SLOTS, Message, slot_of
from ...ports import (
    Beat,
    Dead,
    Gate,
    Hold,
    Lease,
    Query,
    Range,
    Retry,
    Settled,
    Settlement,
    State,
    Store,
)
from ..clock import FakeClock
from ..suite import Suite

ALL_SLOTS = range(SLOTS)
MANY = 1000
DAY = 86_400.0
TOPIC = "orders"


def message(key: str | None = "a", topic: str = TOPIC, **fields: Any) -> Message:
    fields.setdefault("payload", b"{}")
    return Message(topic=topic, key=key, **fields)


def messages(number: int, key: str | None = "a", topic: str = TOPIC, **fields: Any) -> list[Message]:
    return [message(key, topic, **fields) for _ in range(number)]


def keys_of_slot(slot: int, number: int) -> list[str]:
    return list(islice((f"key-{n}" for n in count() if slot_of(f"key-{n}", "") == slot), number))


def gate_of(message: Message) -> Gate:
    """The gate of the message's key."""
    return Gate(message.slot, message.topic, message.key)


def topic_gate_of(message: Message) -> Gate:
    return Gate(message.slot, message.topic, None)


def retry(message: Message, attempts: int = 1, delay: float = 10.0, error: str = "refused") -> Retry:
    return Retry(message, attempts, delay, error)


def dead(
    message: Message,
    attempts: int = 5,
    *,
    holding: bool = True,
    revive_after: float | None = None,
    error: str = "refused",
) -> Dead:
    return Dead(message, attempts, "attempts", error, holding, revive_after)


def ids(messages: Iterable[Message]) -> list[str]:
    return [message.id for message in messages]


def close(one: float | None, other: float) -> bool:
    """Equal, as far as a database that keeps milliseconds can tell."""
    return one is not None and abs(one - other) < 0.01


def behind_gate(gate: Gate, rows: Iterable[Message]) -> list[tuple[Gate, Message]]:
    return [(gate, row) for row in rows]


async def fetch_all(store: Store) -> list[Message]:
    """Every hot row, in order of position."""
    fetched = await store.fetch([Range(slot, 0, MANY) for slot in ALL_SLOTS])
    return sorted(fetched.messages, key=lambda message: message.position)


async def glance(store: Store, after: int = 0) -> Collection[int]:
    return (await store.glance([Range(slot, after, 1) for slot in ALL_SLOTS])).seen


async def read_parked(store: Store, gate: Gate) -> list[Message]:
    return await store.fetch_parked(gate, 0, MANY)


async def head_of(store: Store, message: Message) -> Message | None:
    found = await store.fetch_heads([(message.slot, message.position)])
    return found[0] if found else None


async def hold_on(store: Store, message: Message) -> Hold | None:
    """The hold of the message's key, as a new owner of its slot would find it."""
    holds, _ = await store.gates([message.slot])
    return next((hold for hold in holds if (hold.topic, hold.key) == (message.topic, message.key)), None)


async def status_of_hold(store: Store, message: Message) -> str | None:
    hold = await hold_on(store, message)
    return hold.status if hold else None


async def state_of(store: Store, message: Message) -> State | None:
    entry = await store.entry(message.id)
    return entry.state if entry else None


async def observe(store: Store) -> Any:
    """Everything an owner or an operator can see of the messages."""
    entries = await store.entries(Query(limit=MANY))
    return entries, await store.gates(ALL_SLOTS), await store.holds(limit=MANY)


def beat(relay: str, epochs: Mapping[int, int], *, ttl: float = 15, marks: Mapping[int, int] | None = None) -> Beat:
    return Beat(relay=relay, host="here", pid=1, ttl=ttl, epochs=epochs, marks=marks or {})


def epochs_of(leases: Mapping[int, Lease]) -> dict[int, int]:
    return {slot: lease.epoch for slot, lease in leases.items()}


@dataclass(frozen=True, slots=True)
class Owner:
    """A relay with its leases."""

    store: Store
    relay: str
    epochs: Mapping[int, int]

    async def settle(self, **entries: Any) -> Settled:
        return await self.store.settle(Settlement(relay=self.relay, epochs=self.epochs, **entries))

    async def deliver(self, *rows: Message, retention: float | None = None) -> Settled:
        return await self.settle(delivered=list(rows), retention=retention)


async def own(store: Store, relay: str = "relay-1", slots: Sequence[int] = ALL_SLOTS, ttl: float = 15) -> Owner:
    return Owner(store, relay, epochs_of(await store.acquire(relay, slots, ttl)))


class StoreFixtures(Suite):
    """What a subclass tells the suite about its store."""

    @abstractmethod
    async def make_store(self, clock: FakeClock) -> Store:
        """A store on an empty database, not opened yet, whose time is this clock's."""

    @abstractmethod
    async def make_another(self, store: Any, clock: FakeClock) -> Store:
        """Another store on the same database, as a second process would have; the same object if there can be no
        other."""

    @abstractmethod
    async def insert(self, store: Any, messages: Sequence[Message]) -> None:
        """Commit these messages in this order, in one transaction of its own connection, as an application would:
        created at the store's time, to `later` if `deliver_at` is in the future, with `sequence` and `generation` if
        the message has a sequence. Payloads are bytes."""

    @abstractmethod
    async def remove(self, store: Any, message: Message) -> None:
        """Delete the message's row behind the store's back, wherever it is."""

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest_asyncio.fixture
    async def store(self, clock: FakeClock) -> AsyncIterator[Store]:
        store = await self.make_store(clock)
        await store.open()
        yield store
        await store.close()

    @pytest_asyncio.fixture
    async def another(self, store: Store, clock: FakeClock) -> AsyncIterator[Store]:
        another = await self.make_another(store, clock)
        await another.open()
        yield another
        await another.close()

    async def written(self, store: Store, *messages: Message) -> list[Message]:
        """Insert, and read what is hot of them."""
        await self.insert(store, messages)
        wanted = set(ids(messages))
        return [row for row in await fetch_all(store) if row.id in wanted]

    async def held(self, store: Store, owner: Owner, waiting: int = 2, **fields: Any) -> list[Message]:
        """A key whose head waits for a retry in ten seconds, and messages behind it."""
        rows = await self.written(store, *messages(1 + waiting, **fields))
        await owner.settle(retries=[retry(rows[0])])
        return rows

    async def blocked(self, store: Store, owner: Owner, waiting: int = 2, **fields: Any) -> list[Message]:
        """A key whose head is dead and holds it, with the messages behind it parked."""
        rows = await self.written(store, *messages(1 + waiting, **fields))
        await owner.settle(dead=[dead(rows[0])], parked=behind_gate(gate_of(rows[0]), rows[1:]))
        return rows
