"""What every store must do: `ports.Store`, sentence by sentence. Run it on yours:

    class TestMyStore(StoreContract):
        async def make_store(self, clock):
            return MyStore(url, clock=clock)

        async def make_another(self, store, clock):
            return MyStore(url, clock=clock)

        async def insert(self, store, messages): ...

        async def remove(self, store, message): ...

The database's time is the clock given to the store, so nothing sleeps. pytest and pytest-asyncio are needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count, islice
from typing import Any

import pytest
import pytest_asyncio

from ..errors import ConfigurationError
from ..message import REVIVED_HEADER, SLOTS, TOMBSTONE_HEADER, Message, slot_of
from ..ports import (
    NO_LIMIT,
    Beat,
    Dead,
    Gate,
    Hold,
    Lease,
    Left,
    Place,
    Query,
    Range,
    Refund,
    Retry,
    Settled,
    Settlement,
    State,
    Store,
    Wakeup,
)
from .clock import FakeClock

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
    return await store.glance([Range(slot, after, 1) for slot in ALL_SLOTS])


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


class StoreFixtures:
    """What a subclass tells the suite about its store."""

    async def make_store(self, clock: FakeClock) -> Store:
        """A store on an empty database, not opened yet, whose time is this clock's."""
        raise NotImplementedError

    async def make_another(self, store: Any, clock: FakeClock) -> Store:
        """Another store on the same database, as a second process would have; the same object if there can be no
        other."""
        raise NotImplementedError

    async def insert(self, store: Any, messages: Sequence[Message]) -> None:
        """Commit these messages in this order, in one transaction of its own connection, as an application would:
        created at the store's time, to `later` if `deliver_at` is in the future, with `sequence` and `generation` if
        the message has a sequence. Payloads are bytes."""
        raise NotImplementedError

    async def remove(self, store: Any, message: Message) -> None:
        """Delete the message's row behind the store's back, wherever it is."""
        raise NotImplementedError

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


class OpeningContract(StoreFixtures):
    async def test_opening_twice_changes_nothing_and_the_last_close_counts(self, store: Store) -> None:
        rows = await self.written(store, *messages(2))
        await store.open()
        assert ids(await fetch_all(store)) == ids(rows)
        await store.close()
        assert ids(await fetch_all(store)) == ids(rows)

    async def test_messages_are_still_there_after_closing_and_opening(self, store: Store) -> None:
        rows = await self.written(store, *messages(2))
        await store.close()
        await store.open()
        assert ids(await fetch_all(store)) == ids(rows)

    async def test_a_second_store_on_the_same_database_sees_the_same_messages(
        self, store: Store, another: Store
    ) -> None:
        rows = await self.written(store, *messages(2))
        assert ids(await fetch_all(another)) == ids(rows)

    async def test_the_first_relay_sets_the_claim(self, store: Store) -> None:
        await store.open(claim="slots")
        await store.close()
        await store.open(claim="slots")
        await store.close()
        assert (await store.status()).meta.claim == "slots"

    async def test_a_relay_with_another_claim_is_refused(self, store: Store, another: Store) -> None:
        await store.open(claim="slots")
        await store.close()
        with pytest.raises(ConfigurationError):
            await another.open(claim="leader")

    async def test_opening_without_a_claim_takes_any(self, store: Store, another: Store) -> None:
        await store.open(claim="leader")
        await store.close()
        await another.open()
        await another.close()
        assert (await another.status()).meta.claim == "leader"

    async def test_the_name_and_the_number_of_workers_are_told(self, store: Store) -> None:
        assert store.name == (await store.status()).outbox
        assert store.workers >= 1


class LeaseContract(StoreFixtures):
    async def test_every_slot_is_free_at_first(self, store: Store) -> None:
        leases = await store.renew(beat("relay-1", {}))
        assert sorted(leases.slots) == list(ALL_SLOTS)
        assert all(lease.owner is None and lease.expires_in <= 0 for lease in leases.slots.values())

    async def test_a_free_slot_can_be_taken(self, store: Store) -> None:
        taken = await store.acquire("relay-1", [3, 5], 15)
        assert sorted(taken) == [3, 5]
        assert all(lease.owner == "relay-1" and close(lease.expires_in, 15) for lease in taken.values())
        leases = (await store.renew(beat("relay-2", {}))).slots
        assert [slot for slot, lease in leases.items() if lease.owner] == [3, 5]
        assert epochs_of({3: leases[3], 5: leases[5]}) == epochs_of(taken)

    async def test_taking_no_slot_takes_none(self, store: Store) -> None:
        assert await store.acquire("relay-1", [], 15) == {}

    async def test_a_slot_with_an_owner_cannot_be_taken(self, store: Store) -> None:
        await store.acquire("relay-1", [3], 15)
        assert sorted(await store.acquire("relay-2", [3, 4], 15)) == [4]
        assert await store.acquire("relay-1", [3], 15) == {}

    async def test_two_relays_that_ask_at_once_never_both_get_a_slot(self, store: Store, another: Store) -> None:
        one, other = await asyncio.gather(
            store.acquire("relay-1", ALL_SLOTS, 15), another.acquire("relay-2", ALL_SLOTS, 15)
        )
        assert not set(one) & set(other)
        assert set(one) | set(other) == set(ALL_SLOTS)

    async def test_an_expired_lease_can_be_taken(self, store: Store, clock: FakeClock) -> None:
        await store.acquire("relay-1", [3], 15)
        clock.advance(14)
        assert await store.acquire("relay-2", [3], 15) == {}
        clock.advance(1)
        assert sorted(await store.acquire("relay-2", [3], 15)) == [3]

    async def test_each_ownership_has_an_epoch_above_all_before_it(self, store: Store, clock: FakeClock) -> None:
        highest = 0
        for turn in range(4):
            slots = [turn, 63]
            taken = await store.acquire(f"relay-{turn}", slots, 15)
            assert sorted(taken) == slots
            assert min(epochs_of(taken).values()) > highest
            highest = max(epochs_of(taken).values())
            await store.release(f"relay-{turn}", epochs_of(taken), {}, leave=turn % 2 == 0)
            clock.advance(1)

    async def test_epochs_go_on_when_everybody_has_left_and_the_store_was_closed(
        self, store: Store, clock: FakeClock
    ) -> None:
        owner = await own(store)
        await store.release("relay-1", owner.epochs, {}, leave=True)
        clock.advance(60 * DAY)
        await store.clean(retention=None, limit=MANY)
        await store.close()
        await store.open()
        again = await own(store)
        assert min(again.epochs.values()) > max(owner.epochs.values())

    async def test_the_same_relay_gets_a_new_epoch_for_a_new_ownership(self, store: Store, clock: FakeClock) -> None:
        before = await own(store, slots=[3])
        clock.advance(16)
        after = await own(store, slots=[3])
        assert after.epochs[3] > before.epochs[3]

    async def test_renewing_extends_the_lease(self, store: Store, clock: FakeClock) -> None:
        owner = await own(store, slots=[3])
        clock.advance(10)
        leases = await store.renew(beat("relay-1", owner.epochs))
        assert close(leases.slots[3].expires_in, 15)
        assert leases.slots[3].epoch == owner.epochs[3]
        clock.advance(10)
        assert await store.acquire("relay-2", [3], 15) == {}

    async def test_renewing_keeps_only_the_leases_that_are_named(self, store: Store, clock: FakeClock) -> None:
        owner = await own(store, slots=[3, 4])
        clock.advance(10)
        leases = (await store.renew(beat("relay-1", {3: owner.epochs[3]}))).slots
        assert close(leases[3].expires_in, 15)
        assert close(leases[4].expires_in, 5)

    async def test_an_expired_lease_can_be_renewed_while_nobody_took_it(self, store: Store, clock: FakeClock) -> None:
        owner = await own(store, slots=[3])
        clock.advance(100)
        lease = (await store.renew(beat("relay-1", owner.epochs))).slots[3]
        assert (lease.owner, lease.epoch) == ("relay-1", owner.epochs[3])
        assert close(lease.expires_in, 15)

    async def test_a_lease_that_was_taken_cannot_be_renewed(self, store: Store, clock: FakeClock) -> None:
        stale = await own(store, slots=[3])
        clock.advance(16)
        owner = await own(store, "relay-2", [3])
        clock.advance(5)
        lease = (await store.renew(beat("relay-1", stale.epochs, marks={3: 99}))).slots[3]
        assert (lease.owner, lease.epoch, lease.mark) == ("relay-2", owner.epochs[3], 0)
        assert close(lease.expires_in, 10)

    async def test_a_lease_of_a_former_epoch_cannot_be_renewed(self, store: Store, clock: FakeClock) -> None:
        stale = await own(store, slots=[3])
        clock.advance(16)
        await own(store, slots=[3])
        clock.advance(5)
        lease = (await store.renew(beat("relay-1", stale.epochs))).slots[3]
        assert close(lease.expires_in, 10)

    async def test_a_released_slot_can_be_taken_at_once(self, store: Store) -> None:
        owner = await own(store, slots=[3, 4])
        await store.release("relay-1", {3: owner.epochs[3]}, {}, leave=False)
        assert sorted(await store.acquire("relay-2", [3, 4], 15)) == [3]

    async def test_a_released_lease_cannot_be_renewed(self, store: Store) -> None:
        owner = await own(store, slots=[3])
        await store.release("relay-1", owner.epochs, {}, leave=False)
        lease = (await store.renew(beat("relay-1", owner.epochs))).slots[3]
        assert lease.owner is None
        assert lease.expires_in <= 0

    async def test_what_is_not_ours_any_more_cannot_be_released(self, store: Store, clock: FakeClock) -> None:
        stale = await own(store, slots=[3])
        clock.advance(16)
        await own(store, "relay-2", [3])
        await store.release("relay-1", stale.epochs, {3: 99}, leave=True)
        lease = (await store.renew(beat("relay-2", {}))).slots[3]
        assert (lease.owner, lease.mark) == ("relay-2", 0)
        assert await store.acquire("relay-3", [3], 15) == {}

    async def test_the_mark_of_a_renewal_is_there_for_the_next_owner(self, store: Store, clock: FakeClock) -> None:
        owner = await own(store, slots=[3, 4])
        leases = await store.renew(beat("relay-1", owner.epochs, marks={3: 42}))
        assert (leases.slots[3].mark, leases.slots[4].mark) == (42, 0)
        clock.advance(16)
        assert (await store.acquire("relay-2", [3], 15))[3].mark == 42

    async def test_a_renewal_without_a_mark_keeps_the_old_one(self, store: Store) -> None:
        owner = await own(store, slots=[3])
        await store.renew(beat("relay-1", owner.epochs, marks={3: 42}))
        assert (await store.renew(beat("relay-1", owner.epochs))).slots[3].mark == 42

    async def test_the_mark_of_a_release_is_there_for_the_next_owner(self, store: Store) -> None:
        owner = await own(store, slots=[3])
        await store.release("relay-1", owner.epochs, {3: 42}, leave=True)
        assert (await store.acquire("relay-2", [3], 15))[3].mark == 42

    async def test_every_relay_heard_of_within_its_own_ttl_is_alive(self, store: Store, clock: FakeClock) -> None:
        assert list((await store.renew(beat("relay-1", {}, ttl=10))).relays) == ["relay-1"]
        await store.renew(beat("relay-2", {}, ttl=100))
        clock.advance(11)
        assert sorted((await store.renew(beat("relay-3", {}, ttl=10))).relays) == ["relay-2", "relay-3"]
        assert sorted((await store.renew(beat("relay-1", {}, ttl=10))).relays) == ["relay-1", "relay-2", "relay-3"]

    async def test_a_relay_that_leaves_is_forgotten(self, store: Store) -> None:
        await store.renew(beat("relay-1", {}))
        await store.renew(beat("relay-2", {}))
        await store.release("relay-1", {}, {}, leave=True)
        assert list((await store.renew(beat("relay-2", {}))).relays) == ["relay-2"]

    async def test_a_relay_that_only_releases_stays(self, store: Store) -> None:
        await store.renew(beat("relay-1", {}))
        await store.release("relay-1", {}, {}, leave=False)
        assert sorted((await store.renew(beat("relay-2", {}))).relays) == ["relay-1", "relay-2"]


class FetchContract(StoreFixtures):
    async def test_a_message_is_read_as_it_was_written(self, store: Store, clock: FakeClock) -> None:
        written = message(
            payload=b"\x00\xff\x27", type="OrderPlaced", headers={"tenant": "ä'1", "empty": ""}, content_type="x/y"
        )
        written.expires_at = clock.now() + timedelta(hours=1)
        written.sequence, written.generation = 1, None
        (row,) = await self.written(store, written)
        assert (row.id, row.topic, row.key, row.type) == (written.id, TOPIC, "a", "OrderPlaced")
        assert (row.payload, row.content_type) == (b"\x00\xff\x27", "x/y")
        assert dict(row.headers) == {"tenant": "ä'1", "empty": ""}
        assert (row.expires_at, row.created_at) == (written.expires_at, clock.now())
        assert (row.sequence, row.attempt, row.replays) == (1, 1, 0)
        assert (row.slot, row.position > 0) == (slot_of("a", written.id), True)

    async def test_what_was_not_given_is_read_as_nothing(self, store: Store) -> None:
        (row,) = await self.written(store, message(key=None, payload=b""))
        assert (row.key, row.type, row.content_type, row.expires_at, row.sequence) == (None, None, None, None, None)
        assert (row.payload, dict(row.headers)) == (b"", {})
        assert row.slot == slot_of(None, row.id)

    async def test_rows_come_in_order_of_position_which_is_commit_order(self, store: Store) -> None:
        written = [message(key) for key in keys_of_slot(7, 3) * 3]
        for one in written:
            await self.insert(store, [one])
        fetched = await store.fetch([Range(7, 0, MANY)])
        assert ids(fetched.messages) == ids(written)
        positions = [row.position for row in fetched.messages]
        assert positions == sorted(set(positions))

    async def test_rows_of_one_transaction_keep_their_order(self, store: Store) -> None:
        written = messages(20)
        assert ids(await self.written(store, *written)) == ids(written)

    async def test_a_range_gives_at_most_its_limit_above_its_position(self, store: Store) -> None:
        rows = await self.written(store, *messages(5))
        slot = rows[0].slot
        assert ids((await store.fetch([Range(slot, 0, 2)])).messages) == ids(rows[:2])
        assert ids((await store.fetch([Range(slot, rows[1].position, 2)])).messages) == ids(rows[2:4])
        assert (await store.fetch([Range(slot, rows[4].position, 2)])).messages == []

    async def test_each_slot_has_its_own_range_in_one_call(self, store: Store) -> None:
        one, other, third = (keys_of_slot(slot, 1)[0] for slot in (1, 2, 3))
        rows = await self.written(store, *(message(key) for key in [one, other, third] * 3))
        fetched = await store.fetch([Range(1, 0, 2), Range(2, rows[1].position, MANY)])
        assert [row.id for row in fetched.messages if row.slot == 1] == ids([rows[0], rows[3]])
        assert [row.id for row in fetched.messages if row.slot == 2] == ids([rows[4], rows[7]])
        assert len(fetched.messages) == 4

    async def test_no_range_gives_no_rows(self, store: Store) -> None:
        await self.insert(store, messages(2))
        assert (await store.fetch([])).messages == []

    async def test_fetching_changes_nothing(self, store: Store) -> None:
        await self.insert(store, messages(3))
        assert await fetch_all(store) == await fetch_all(store)

    async def test_what_is_fetched_is_a_copy(self, store: Store) -> None:
        await self.insert(store, messages(1))
        (row,) = await fetch_all(store)
        row.epoch, row.attempt = 7, 9
        (again,) = await fetch_all(store)
        assert (again.epoch, again.attempt) == (0, 1)

    async def test_fetching_tells_the_database_time(self, store: Store, clock: FakeClock) -> None:
        clock.advance(1234)
        assert close(((await store.fetch([])).now - clock.now()).total_seconds(), 0)

    async def test_no_row_appears_at_or_below_the_horizon(self, store: Store) -> None:
        await self.insert(store, messages(1))
        fetched = await store.fetch([Range(slot, 0, MANY) for slot in ALL_SLOTS])
        rows = await self.written(store, message("b"))
        assert fetched.horizon == NO_LIMIT or fetched.horizon < rows[0].position

    async def test_a_position_is_never_used_again(self, store: Store) -> None:
        owner = await own(store)
        highest = 0
        for _ in range(3):
            rows = await self.written(store, *messages(2))
            assert min(row.position for row in rows) > highest
            highest = max(row.position for row in rows)
            await owner.deliver(*rows)
            await store.close()
            await store.open()

    async def test_a_message_that_is_not_due_is_not_hot(self, store: Store, clock: FakeClock) -> None:
        await self.insert(store, [message(deliver_at=clock.now() + timedelta(seconds=5))])
        clock.advance(10)
        assert await fetch_all(store) == []

    async def test_heads_are_found_hot_or_parked(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, *messages(3), message("b"))
        await owner.settle(parked=behind_gate(topic_gate_of(rows[0]), rows[:2]))
        heads = await store.fetch_heads([(row.slot, row.position) for row in [rows[3], rows[0], rows[2]]])
        assert sorted(ids(heads)) == sorted(ids([rows[0], rows[2], rows[3]]))
        assert {row.id: row for row in heads}[rows[0].id] == rows[0]

    async def test_heads_that_are_gone_are_left_out(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, *messages(3))
        await owner.deliver(rows[0])
        await owner.settle(dead=[dead(rows[1], holding=False)])
        assert ids(await store.fetch_heads([(row.slot, row.position) for row in rows])) == ids(rows[2:])
        assert await store.fetch_heads([]) == []


class ParkingContract(StoreFixtures):
    async def test_parked_rows_leave_the_hot_ones(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.held(store, owner, waiting=3)
        await owner.settle(parked=behind_gate(gate_of(rows[0]), rows[1:3]))
        assert ids(await fetch_all(store)) == ids([rows[0], rows[3]])
        assert await read_parked(store, gate_of(rows[0])) == rows[1:3]

    async def test_parked_rows_of_a_key_come_in_order_with_a_limit(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.held(store, owner, waiting=4)
        gate = gate_of(rows[0])
        for row in reversed(rows[1:]):
            await owner.settle(parked=[(gate, row)])
        assert ids(await store.fetch_parked(gate, 0, 2)) == ids(rows[1:3])
        assert ids(await store.fetch_parked(gate, rows[2].position, MANY)) == ids(rows[3:])

    async def test_rows_of_a_key_are_found_whatever_gate_they_were_parked_behind(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.held(store, owner, waiting=2)
        gate, topic_gate = gate_of(rows[0]), topic_gate_of(rows[0])
        await owner.settle(parked=[(topic_gate, rows[1]), (gate, rows[2])])
        assert ids(await read_parked(store, gate)) == ids(rows[1:])
        assert ids(await read_parked(store, topic_gate)) == ids(rows[1:2])

    async def test_a_topic_gate_gives_every_key_of_its_slot_and_topic(self, store: Store) -> None:
        one, other = keys_of_slot(7, 2)
        owner = await own(store)
        rows = await self.written(store, message(one), message(other), message(one), message(one, topic="mail"))
        gate = Gate(7, TOPIC, None)
        await owner.settle(parked=[*behind_gate(gate, rows[:3]), (Gate(7, "mail", None), rows[3])])
        assert ids(await read_parked(store, gate)) == ids(rows[:3])
        assert ids(await store.fetch_parked(gate, rows[0].position, 1)) == ids(rows[1:2])
        assert await read_parked(store, Gate(8, TOPIC, None)) == []

    async def test_a_message_without_a_key_can_be_parked_behind_its_topic(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, message(None))
        gate = topic_gate_of(rows[0])
        await owner.settle(parked=[(gate, rows[0])])
        assert await fetch_all(store) == []
        assert await read_parked(store, gate) == rows

    async def test_a_row_that_is_parked_already_changes_its_gate(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.held(store, owner, waiting=2)
        gate, topic_gate = gate_of(rows[0]), topic_gate_of(rows[0])
        await owner.settle(parked=behind_gate(topic_gate, rows[1:]))
        await owner.settle(parked=[(gate, rows[1])])
        assert ids(await read_parked(store, topic_gate)) == ids(rows[2:])
        assert ids(await read_parked(store, gate)) == ids(rows[1:])
        await owner.settle(parked=[(topic_gate, rows[1])])
        assert ids(await read_parked(store, topic_gate)) == ids(rows[1:])

    async def test_a_row_that_is_gone_is_not_parked(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.held(store, owner, waiting=2)
        await owner.deliver(rows[1])
        await owner.settle(parked=behind_gate(gate_of(rows[0]), rows[1:]))
        assert ids(await read_parked(store, gate_of(rows[0]))) == ids(rows[2:])

    async def test_a_new_owner_finds_what_was_parked_behind_a_hold_that_is_gone(self, store: Store) -> None:
        """A former owner's answer may remove the hold between two looks of the new one."""
        owner = await own(store)
        rows = await self.held(store, owner, waiting=2)
        await owner.deliver(rows[0])
        await owner.settle(parked=behind_gate(gate_of(rows[0]), rows[1:]))
        assert await status_of_hold(store, rows[0]) == "releasing"
        assert ids(await read_parked(store, gate_of(rows[0]))) == ids(rows[1:])

    async def test_a_new_owner_finds_what_was_parked_in_the_settlement_that_ends_the_hold(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.held(store, owner, waiting=2)
        await owner.settle(delivered=rows[:1], parked=behind_gate(gate_of(rows[0]), rows[1:]))
        assert await status_of_hold(store, rows[0]) == "releasing"

    async def test_rows_can_be_parked_behind_a_hold_of_the_same_settlement(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, *messages(3))
        await owner.settle(retries=[retry(rows[0])], parked=behind_gate(gate_of(rows[0]), rows[1:]))
        hold = await hold_on(store, rows[0])
        assert hold is not None
        assert (hold.status, hold.message_id) == ("retry", rows[0].id)

    async def test_gates_are_the_holds_and_the_topics_with_parked_rows(self, store: Store) -> None:
        one, other, third = (keys_of_slot(slot, 1)[0] for slot in (1, 2, 3))
        owner = await own(store)
        await self.held(store, owner, waiting=0, key=one)
        await self.held(store, owner, waiting=0, key=other)
        rows = await self.written(store, message(third), message(third))
        await owner.settle(parked=behind_gate(topic_gate_of(rows[0]), rows))
        holds, gates = await store.gates(ALL_SLOTS)
        assert sorted((hold.slot, hold.topic, hold.key) for hold in holds) == [(1, TOPIC, one), (2, TOPIC, other)]
        assert gates == [Gate(3, TOPIC, None)]
        holds, gates = await store.gates([1, 4])
        assert [hold.slot for hold in holds] == [1]
        assert gates == []
        await owner.deliver(*rows)
        assert (await store.gates([3])) == ([], [])

    async def test_a_gate_is_released_when_nothing_is_parked(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner, waiting=1)
        await store.discard([rows[0].id])
        await owner.deliver(rows[1])
        settled = await owner.settle(released=[gate_of(rows[0])])
        assert settled == Settled()
        assert await hold_on(store, rows[0]) is None

    async def test_a_gate_is_not_released_while_rows_of_it_are_parked(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner, waiting=1)
        await store.discard([rows[0].id])
        settled = await owner.settle(released=[gate_of(rows[0])])
        assert settled.still_parked == {gate_of(rows[0])}
        assert await status_of_hold(store, rows[0]) == "releasing"

    async def test_a_gate_is_not_released_while_rows_of_its_key_are_parked_behind_the_topic(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.held(store, owner, waiting=1)
        await owner.settle(parked=[(topic_gate_of(rows[1]), rows[1])])
        await owner.deliver(rows[0])
        settled = await owner.settle(released=[gate_of(rows[0])])
        assert settled.still_parked == {gate_of(rows[0])}

    async def test_a_row_parked_in_the_same_settlement_keeps_the_gate(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner, waiting=0)
        await store.discard([rows[0].id])
        rows += await self.written(store, message())
        settled = await owner.settle(parked=[(gate_of(rows[0]), rows[1])], released=[gate_of(rows[0])])
        assert settled.still_parked == {gate_of(rows[0])}
        assert await status_of_hold(store, rows[0]) == "releasing"

    async def test_releasing_a_gate_leaves_other_keys_held(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner, waiting=0)
        others = [
            *await self.held(store, owner, waiting=0, topic="mail"),
            *await self.held(store, owner, waiting=0, key="b"),
        ]
        await store.discard([rows[0].id])
        await owner.settle(released=[gate_of(rows[0])])
        assert [await status_of_hold(store, row) for row in others] == ["retry", "retry"]

    async def test_only_what_an_operator_released_is_releasing(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner, waiting=1)
        others = await self.blocked(store, owner, waiting=1, key="b")
        await self.held(store, owner, waiting=1, key="c")
        assert await store.releasing(ALL_SLOTS) == []
        await store.revive([rows[0].id])
        (hold,) = await store.releasing(ALL_SLOTS)
        assert (hold.slot, hold.topic, hold.key, hold.status) == (rows[0].slot, TOPIC, "a", "releasing")
        assert await store.releasing([others[0].slot]) == []


class SettleContract(StoreFixtures):
    async def test_an_empty_settlement_does_nothing(self, store: Store) -> None:
        await self.insert(store, messages(1))
        assert await store.settle(Settlement(relay="relay-1", epochs={})) == Settled()
        assert len(await fetch_all(store)) == 1

    # --- delivered: it is gone from the outbox, and kept in the archive if so wished

    async def test_a_delivered_message_is_gone(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, *messages(3))
        assert await owner.deliver(*rows[:2]) == Settled()
        assert await fetch_all(store) == rows[2:]
        assert await store.entry(rows[0].id) is None

    async def test_with_a_retention_a_delivered_message_is_archived(self, store: Store, clock: FakeClock) -> None:
        owner = await own(store)
        rows = await self.written(store, *messages(2, payload=b"kept"))
        clock.advance(3)
        await owner.deliver(rows[0], retention=60)
        assert await fetch_all(store) == rows[1:]
        entry = await store.entry(rows[0].id)
        assert entry is not None
        assert (entry.state, entry.message.payload, entry.settled_at) == ("delivered", b"kept", clock.now())
        assert entry.message.created_at == rows[0].created_at

    async def test_delivering_what_is_gone_already_is_tolerated(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, *messages(3))
        await owner.deliver(rows[0], retention=60)
        assert await owner.deliver(*rows, retention=60) == Settled()
        assert await fetch_all(store) == []
        assert len(await store.entries(Query(state="delivered"))) == 3

    async def test_a_delivered_message_is_found_among_the_parked(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.held(store, owner, waiting=2)
        await owner.settle(parked=behind_gate(gate_of(rows[0]), rows[1:]))
        await owner.deliver(rows[1], retention=60)
        assert await read_parked(store, gate_of(rows[0])) == rows[2:]
        assert await state_of(store, rows[1]) == "delivered"

    async def test_a_delivered_message_is_found_among_the_dead(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner, waiting=0)
        await owner.deliver(rows[0], retention=60)
        assert await state_of(store, rows[0]) == "delivered"
        assert await store.entries(Query(state="dead")) == []
        assert await hold_on(store, rows[0]) is None

    async def test_delivering_the_head_ends_its_hold(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.held(store, owner, waiting=2)
        await owner.deliver(rows[0])
        assert await hold_on(store, rows[0]) is None
        assert ids(await fetch_all(store)) == ids(rows[1:])

    async def test_delivering_the_head_lets_out_what_is_parked_behind_it(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.held(store, owner, waiting=2)
        await owner.settle(parked=behind_gate(gate_of(rows[0]), rows[1:]))
        await owner.deliver(rows[0])
        assert await status_of_hold(store, rows[0]) == "releasing"
        assert ids(await read_parked(store, gate_of(rows[0]))) == ids(rows[1:])

    async def test_delivering_the_head_ends_the_hold_also_if_its_row_is_gone(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.held(store, owner, waiting=0)
        await self.remove(store, rows[0])
        await owner.deliver(rows[0])
        assert await hold_on(store, rows[0]) is None

    async def test_delivering_another_message_of_the_key_leaves_the_hold(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.held(store, owner, waiting=1)
        await owner.deliver(rows[1])
        assert await status_of_hold(store, rows[0]) == "retry"

    # --- retries: the key is held, or without a key the message waits by itself

    async def test_a_retry_keeps_the_row_and_holds_its_key(self, store: Store, clock: FakeClock) -> None:
        owner = await own(store)
        rows = await self.written(store, *messages(2))
        clock.advance(1)
        await owner.settle(retries=[Retry(rows[0], 2, 30.0, "bad request")])
        hold = await hold_on(store, rows[0])
        assert hold is not None
        assert (hold.slot, hold.topic, hold.key) == (rows[0].slot, TOPIC, "a")
        assert (hold.message_id, hold.position) == (rows[0].id, rows[0].position)
        assert (hold.attempts, hold.status, hold.error) == (2, "retry", "bad request")
        assert close(hold.due_in, 30)
        assert ids(await fetch_all(store)) == ids(rows)

    async def test_the_next_attempt_comes_nearer(self, store: Store, clock: FakeClock) -> None:
        owner = await own(store)
        rows = await self.held(store, owner)
        clock.advance(12)
        hold = await hold_on(store, rows[0])
        assert hold is not None
        assert close(hold.due_in, -2)

    async def test_the_attempts_of_a_message_are_read_with_it(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, *messages(2), message(None))
        await owner.settle(retries=[retry(rows[0], attempts=3), retry(rows[2], attempts=2, delay=0)])
        head = await head_of(store, rows[0])
        assert head == replace(rows[0], attempt=4)
        await store.due(ALL_SLOTS, MANY)
        assert {row.id: row.attempt for row in await fetch_all(store)} == {
            rows[0].id: 4,
            rows[1].id: 1,
            rows[2].id: 3,
        }

    async def test_a_second_retry_changes_the_hold(self, store: Store, clock: FakeClock) -> None:
        owner = await own(store)
        rows = await self.held(store, owner)
        first = await hold_on(store, rows[0])
        clock.advance(10)
        await owner.settle(retries=[retry(rows[0], attempts=2, delay=60, error="again")])
        hold = await hold_on(store, rows[0])
        assert hold is not None
        assert first is not None
        assert (hold.attempts, hold.error, hold.since) == (2, "again", first.since)
        assert close(hold.due_in, 60)

    async def test_a_parked_head_is_retried_where_it_is(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner, waiting=1)
        await store.revive([rows[0].id])
        await owner.settle(retries=[retry(rows[0], attempts=1)])
        assert await status_of_hold(store, rows[0]) == "retry"
        assert ids(await read_parked(store, gate_of(rows[0]))) == ids(rows)
        head = await head_of(store, rows[0])
        assert head is not None
        assert head.attempt == 2

    async def test_the_next_message_of_a_releasing_key_takes_over_the_hold(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner, waiting=2)
        await store.discard([rows[0].id])
        await owner.settle(retries=[retry(rows[1])])
        hold = await hold_on(store, rows[0])
        assert hold is not None
        assert (hold.status, hold.message_id, hold.position) == ("retry", rows[1].id, rows[1].position)

    async def test_a_retry_without_a_key_moves_to_later(self, store: Store, clock: FakeClock) -> None:
        owner = await own(store)
        rows = await self.written(store, *messages(2, key=None))
        await owner.settle(retries=[retry(rows[0], delay=10, error="bad request")])
        assert ids(await fetch_all(store)) == ids(rows[1:])
        assert await store.gates(ALL_SLOTS) == ([], [])
        entry = await store.entry(rows[0].id)
        assert entry is not None
        assert (entry.state, entry.attempts, entry.error) == ("failed", 1, "bad request")
        assert entry.due_at == clock.now() + timedelta(seconds=10)

    async def test_a_parked_message_without_a_key_is_retried_through_later(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, message(None))
        await owner.settle(parked=[(topic_gate_of(rows[0]), rows[0])])
        await owner.settle(retries=[retry(rows[0])])
        assert await store.gates(ALL_SLOTS) == ([], [])
        assert await state_of(store, rows[0]) == "failed"

    async def test_a_retry_of_a_row_that_is_gone_leaves_no_ghost(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, message(), message(None))
        await owner.deliver(*rows)
        assert await owner.settle(retries=[retry(row) for row in rows]) == Settled()
        assert await store.gates(ALL_SLOTS) == ([], [])
        assert await store.entries(Query()) == []

    # --- dead: out of the way, and the key waits for somebody or goes on

    async def test_a_dead_message_can_hold_its_key(self, store: Store, clock: FakeClock) -> None:
        owner = await own(store)
        rows = await self.written(store, *messages(2))
        clock.advance(5)
        await owner.settle(dead=[Dead(rows[0], 5, "attempts", "bad request", True, None)])
        assert ids(await fetch_all(store)) == ids(rows[1:])
        hold = await hold_on(store, rows[0])
        assert hold is not None
        assert (hold.status, hold.message_id, hold.position) == ("dead", rows[0].id, rows[0].position)
        assert (hold.due_in, hold.attempts, hold.error) == (None, 5, "bad request")
        entry = await store.entry(rows[0].id)
        assert entry is not None
        assert (entry.state, entry.attempts, entry.reason, entry.error) == ("dead", 5, "attempts", "bad request")
        assert entry.message.payload == rows[0].payload

    async def test_a_held_message_that_dies_keeps_its_key(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.held(store, owner)
        await owner.settle(dead=[dead(rows[0])])
        assert await status_of_hold(store, rows[0]) == "dead"
        assert ids(await fetch_all(store)) == ids(rows[1:])

    async def test_a_dead_message_can_let_its_key_go_on(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.held(store, owner, waiting=2)
        await owner.settle(dead=[dead(rows[0], holding=False)])
        assert await hold_on(store, rows[0]) is None
        assert ids(await fetch_all(store)) == ids(rows[1:])
        assert await state_of(store, rows[0]) == "dead"

    async def test_a_dead_message_that_lets_its_key_go_on_lets_out_what_is_parked(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.held(store, owner, waiting=2)
        await owner.settle(parked=behind_gate(gate_of(rows[0]), rows[1:]))
        await owner.settle(dead=[dead(rows[0], holding=False)])
        assert await status_of_hold(store, rows[0]) == "releasing"

    async def test_a_dead_message_without_a_key_holds_nothing(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, *messages(2, key=None))
        await owner.settle(dead=[dead(rows[0])])
        assert await store.gates(ALL_SLOTS) == ([], [])
        assert await state_of(store, rows[0]) == "dead"

    async def test_a_parked_message_can_die(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner, waiting=2)
        await store.discard([rows[0].id])
        await owner.settle(dead=[dead(rows[1])])
        assert ids(await read_parked(store, gate_of(rows[0]))) == ids(rows[2:])
        hold = await hold_on(store, rows[0])
        assert hold is not None
        assert (hold.status, hold.message_id) == ("dead", rows[1].id)

    async def test_the_death_of_a_row_that_is_gone_leaves_no_ghost(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, message(), message(None))
        await owner.deliver(*rows)
        assert await owner.settle(dead=[dead(row) for row in rows]) == Settled()
        assert await store.gates(ALL_SLOTS) == ([], [])
        assert await store.entries(Query()) == []

    async def test_a_message_dies_once(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, message())
        for _ in range(2):
            await owner.settle(dead=[dead(rows[0])])
        assert len(await store.entries(Query())) == 1

    # --- superseded: in the archive, whatever the retention

    async def test_a_superseded_message_is_archived_whatever_the_retention(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, *messages(3))
        await owner.settle(superseded=rows[:1], retention=None)
        await owner.settle(superseded=rows[1:2], retention=60)
        assert ids(await fetch_all(store)) == ids(rows[2:])
        assert [await state_of(store, row) for row in rows] == ["superseded", "superseded", "pending"]

    async def test_a_superseded_head_ends_its_hold(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.held(store, owner, waiting=1)
        await owner.settle(superseded=rows[:1])
        assert await hold_on(store, rows[0]) is None

    async def test_a_parked_message_can_be_superseded(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.held(store, owner, waiting=2)
        await owner.settle(parked=behind_gate(gate_of(rows[0]), rows[1:]))
        await owner.settle(superseded=rows[:2])
        assert ids(await read_parked(store, gate_of(rows[0]))) == ids(rows[2:])
        assert await status_of_hold(store, rows[0]) == "releasing"

    async def test_superseding_what_is_gone_archives_nothing(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, message())
        await owner.deliver(*rows)
        await owner.settle(superseded=rows)
        assert await store.entries(Query()) == []

    async def test_superseding_a_dead_message_leaves_it_dead_and_holding(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner, waiting=0)
        await owner.settle(superseded=rows)
        assert await state_of(store, rows[0]) == "dead"
        assert await status_of_hold(store, rows[0]) == "dead"

    # --- refunds: the destination was to blame

    async def test_a_refunded_hold_is_due_at_once(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.held(store, owner, waiting=1)
        await owner.settle(refunds=[Refund(rows[0], 0)])
        hold = await hold_on(store, rows[0])
        assert hold is not None
        assert (hold.status, hold.position, hold.attempts) == ("retry", rows[0].position, 0)
        assert close(hold.due_in, 0)
        assert await head_of(store, rows[0]) == rows[0]

    async def test_a_refunded_message_without_a_key_is_due_at_once(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, message(None))
        await owner.settle(retries=[retry(rows[0], attempts=3, delay=60)])
        await owner.settle(refunds=[Refund(rows[0], 2)])
        await store.due(ALL_SLOTS, MANY)
        (row,) = await fetch_all(store)
        assert (row.id, row.attempt) == (rows[0].id, 3)

    async def test_a_refunded_dead_message_is_due_at_its_old_position(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner, waiting=2)
        await owner.settle(refunds=[Refund(rows[0], 1)])
        assert await state_of(store, rows[0]) != "dead"
        hold = await hold_on(store, rows[0])
        assert hold is not None
        assert (hold.status, hold.position, hold.attempts) == ("retry", rows[0].position, 1)
        assert close(hold.due_in, 0)
        assert await head_of(store, rows[0]) == replace(rows[0], attempt=2)
        await owner.deliver(rows[0])
        assert ids(await read_parked(store, gate_of(rows[0]))) == ids(rows[1:])

    async def test_a_refunded_dead_message_takes_its_key_back(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, *messages(2))
        await owner.settle(dead=[dead(rows[0], holding=False)])
        await owner.settle(refunds=[Refund(rows[0], 0)])
        hold = await hold_on(store, rows[0])
        assert hold is not None
        assert (hold.position, hold.attempts) == (rows[0].position, 0)
        assert await head_of(store, rows[0]) == rows[0]

    async def test_a_refunded_dead_message_without_a_key_is_due_at_once(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, message(None))
        await owner.settle(dead=[dead(rows[0])])
        await owner.settle(refunds=[Refund(rows[0], 0)])
        await store.due(ALL_SLOTS, MANY)
        (row,) = await fetch_all(store)
        assert (row.id, row.attempt) == (rows[0].id, 1)
        assert len(await store.entries(Query())) == 1

    async def test_a_refund_for_what_is_gone_does_nothing(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.held(store, owner, waiting=0)
        await owner.deliver(rows[0])
        await owner.settle(refunds=[Refund(rows[0], 0)])
        assert await store.gates(ALL_SLOTS) == ([], [])
        assert await store.entries(Query()) == []


def fenced_entries(head: Message, parked: Message, hot: Message) -> dict[str, dict[str, Any]]:
    """One settlement per kind, each of which would change something."""
    return {
        "retries": {"retries": [retry(hot)]},
        "retries again": {"retries": [retry(head, attempts=2)]},
        "dead": {"dead": [dead(hot)]},
        "dead and go on": {"dead": [dead(hot, holding=False)]},
        "superseded": {"superseded": [hot]},
        "parked": {"parked": [(gate_of(head), hot)]},
        "parked elsewhere": {"parked": [(topic_gate_of(parked), parked)]},
        "refunds": {"refunds": [Refund(head, 0)]},
    }


FENCED = list(fenced_entries(message(), message(), message()))


class FencingContract(StoreFixtures):
    async def prepared(self, store: Store, owner: Owner) -> tuple[Message, Message, Message]:
        """A held head, a row parked behind it, a hot row behind that."""
        head, parked, hot = await self.held(store, owner, waiting=2)
        await owner.settle(parked=[(gate_of(head), parked)])
        return head, parked, hot

    async def check_refused(self, store: Store, stale: Owner, entries: dict[str, Any], slot: int) -> None:
        before = await observe(store)
        settled = await stale.settle(**entries)
        assert settled.refused == {slot}
        assert await observe(store) == before

    @pytest.mark.parametrize("kind", FENCED)
    async def test_each_kind_of_entry_is_done_for_the_owner(self, store: Store, kind: str) -> None:
        owner = await own(store)
        entries = fenced_entries(*await self.prepared(store, owner))[kind]
        before = await observe(store)
        assert (await owner.settle(**entries)).refused == frozenset()
        assert await observe(store) != before or kind == "parked elsewhere"

    @pytest.mark.parametrize("kind", FENCED)
    async def test_a_former_owner_is_refused(self, store: Store, clock: FakeClock, kind: str) -> None:
        stale = await own(store)
        rows = await self.prepared(store, stale)
        clock.advance(16)
        await own(store, "relay-2")
        await self.check_refused(store, stale, fenced_entries(*rows)[kind], rows[0].slot)

    @pytest.mark.parametrize("kind", FENCED)
    async def test_a_former_epoch_of_the_same_relay_is_refused(self, store: Store, clock: FakeClock, kind: str) -> None:
        stale = await own(store)
        rows = await self.prepared(store, stale)
        clock.advance(16)
        await own(store)
        await self.check_refused(store, stale, fenced_entries(*rows)[kind], rows[0].slot)

    @pytest.mark.parametrize("kind", FENCED)
    async def test_a_lease_that_was_given_back_is_refused(self, store: Store, kind: str) -> None:
        stale = await own(store)
        rows = await self.prepared(store, stale)
        await store.release("relay-1", stale.epochs, {}, leave=True)
        await self.check_refused(store, stale, fenced_entries(*rows)[kind], rows[0].slot)

    async def test_a_former_owner_cannot_release_a_gate(self, store: Store, clock: FakeClock) -> None:
        stale = await own(store)
        rows = await self.held(store, stale, waiting=0)
        clock.advance(16)
        await own(store, "relay-2")
        await self.check_refused(store, stale, {"released": [gate_of(rows[0])]}, rows[0].slot)

    async def test_a_former_owner_cannot_park_behind_a_key_that_is_not_held(
        self, store: Store, clock: FakeClock
    ) -> None:
        stale = await own(store)
        rows = await self.written(store, message())
        await stale.settle(parked=[(topic_gate_of(rows[0]), rows[0])])
        clock.advance(16)
        await own(store, "relay-2")
        await self.check_refused(store, stale, {"parked": [(gate_of(rows[0]), rows[0])]}, rows[0].slot)

    async def test_a_slot_without_an_epoch_is_refused(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, message())
        await self.check_refused(store, Owner(store, "relay-1", {}), {"retries": [retry(rows[0])]}, rows[0].slot)
        assert (await owner.settle(retries=[retry(rows[0])])).refused == frozenset()

    async def test_an_expired_lease_that_nobody_took_is_still_ours(self, store: Store, clock: FakeClock) -> None:
        owner = await own(store)
        rows = await self.written(store, message())
        clock.advance(100)
        assert (await owner.settle(retries=[retry(rows[0])])).refused == frozenset()
        assert await status_of_hold(store, rows[0]) == "retry"

    async def test_other_slots_of_the_same_settlement_are_done(self, store: Store) -> None:
        one, other = (keys_of_slot(slot, 1)[0] for slot in (1, 2))
        await own(store, "relay-2", [2])
        owner = await own(store, "relay-1", [1])
        rows = await self.written(store, *messages(3, key=one), *messages(3, key=other))
        both = Owner(store, "relay-1", {**owner.epochs, 2: owner.epochs[1]})
        mine, theirs = rows[:3], rows[3:]
        settled = await both.settle(
            retries=[retry(mine[0]), retry(theirs[0])],
            superseded=[mine[1], theirs[1]],
            parked=[(gate_of(mine[2]), mine[2]), (gate_of(theirs[2]), theirs[2])],
        )
        assert settled.refused == {2}
        assert await status_of_hold(store, mine[0]) == "retry"
        assert ids(await read_parked(store, gate_of(mine[0]))) == ids(mine[2:])
        assert await hold_on(store, theirs[0]) is None
        assert ids(await fetch_all(store)) == ids([mine[0], *theirs])

    async def test_delivered_is_not_fenced(self, store: Store, clock: FakeClock) -> None:
        stale = await own(store)
        rows = await self.held(store, stale, waiting=1)
        clock.advance(16)
        await own(store, "relay-2")
        assert await stale.deliver(rows[0]) == Settled()
        assert ids(await fetch_all(store)) == ids(rows[1:])
        assert await hold_on(store, rows[0]) is None

    async def test_delivered_is_done_beside_entries_that_are_refused(self, store: Store) -> None:
        rows = await self.written(store, *messages(2))
        stale = Owner(store, "relay-1", {})
        settled = await stale.settle(delivered=rows[:1], retries=[retry(rows[1])])
        assert settled.refused == {rows[0].slot}
        assert ids(await fetch_all(store)) == ids(rows[1:])
        assert await hold_on(store, rows[1]) is None

    async def test_a_stale_retry_after_delivery_leaves_no_hold(self, store: Store, clock: FakeClock) -> None:
        stale = await own(store)
        rows = await self.written(store, message())
        clock.advance(16)
        owner = await own(store, "relay-2")
        await owner.deliver(rows[0])
        await stale.settle(retries=[retry(rows[0])])
        assert await store.gates(ALL_SLOTS) == ([], [])


class DueContract(StoreFixtures):
    async def insert_later(
        self, store: Store, clock: FakeClock, *delays: float, key: str | None = "a"
    ) -> list[Message]:
        rows = [message(key, deliver_at=clock.now() + timedelta(seconds=delay)) for delay in delays]
        await self.insert(store, rows)
        return rows

    async def test_what_is_due_moves_to_the_hot_rows_earliest_first(self, store: Store, clock: FakeClock) -> None:
        later = await self.insert_later(store, clock, 30, 10, 20, 40)
        clock.advance(30)
        due = await store.due(ALL_SLOTS, MANY)
        assert due.moved == 3
        assert close(due.next_in, 10)
        assert ids(await fetch_all(store)) == ids([later[1], later[2], later[0]])

    async def test_due_times_are_compared_over_all_slots(self, store: Store, clock: FakeClock) -> None:
        (one,) = await self.insert_later(store, clock, 20, key=keys_of_slot(1, 1)[0])
        (other,) = await self.insert_later(store, clock, 10, key=keys_of_slot(2, 1)[0])
        clock.advance(30)
        await store.due(ALL_SLOTS, 1)
        assert ids(await fetch_all(store)) == [other.id]
        await store.due(ALL_SLOTS, 1)
        assert ids(await fetch_all(store)) == ids([other, one])

    async def test_rows_due_at_the_same_time_keep_their_order(self, store: Store, clock: FakeClock) -> None:
        later = await self.insert_later(store, clock, *[10] * 5)
        clock.advance(10)
        await store.due(ALL_SLOTS, MANY)
        assert ids(await fetch_all(store)) == ids(later)

    async def test_a_due_row_goes_to_the_end_of_its_key(self, store: Store, clock: FakeClock) -> None:
        later = await self.insert_later(store, clock, 10)
        rows = await self.written(store, *messages(2))
        clock.advance(10)
        await store.due(ALL_SLOTS, MANY)
        found = await fetch_all(store)
        assert ids(found) == ids([*rows, *later])
        assert found[2].position > rows[1].position
        assert (found[2].created_at, found[2].attempt) == (rows[0].created_at, 1)

    async def test_at_most_the_limit_is_moved_and_the_rest_is_due_at_once(self, store: Store, clock: FakeClock) -> None:
        later = await self.insert_later(store, clock, 10, 20, 30)
        clock.advance(60)
        due = await store.due(ALL_SLOTS, 2)
        assert due.moved == 2
        assert due.next_in is not None
        assert due.next_in <= 0
        assert ids(await fetch_all(store)) == ids(later[:2])
        due = await store.due(ALL_SLOTS, 2)
        assert (due.moved, due.next_in) == (1, None)

    async def test_only_the_given_slots_move(self, store: Store, clock: FakeClock) -> None:
        one, other = (keys_of_slot(slot, 1)[0] for slot in (1, 2))
        later = await self.insert_later(store, clock, 10, key=one)
        await self.insert_later(store, clock, 5, key=other)
        due = await store.due([1], MANY)
        assert due.moved == 0
        assert close(due.next_in, 10)
        clock.advance(10)
        assert (await store.due([1], MANY)) == (1, None)
        assert ids(await fetch_all(store)) == ids(later)
        assert (await store.due([], MANY)) == (0, None)

    async def test_nothing_waits_when_there_is_nothing(self, store: Store) -> None:
        await self.insert(store, messages(1))
        assert await store.due(ALL_SLOTS, MANY) == (0, None)

    async def test_a_row_is_never_moved_twice(self, store: Store, another: Store, clock: FakeClock) -> None:
        later = await self.insert_later(store, clock, *[10] * 20)
        clock.advance(10)
        one, other = await asyncio.gather(store.due(ALL_SLOTS, 15), another.due(ALL_SLOTS, 15))
        assert one.moved + other.moved == 20
        assert sorted(ids(await fetch_all(store))) == sorted(ids(later))
        assert (await store.due(ALL_SLOTS, MANY)) == (0, None)

    async def test_a_failed_message_without_a_key_comes_back_when_it_is_due(
        self, store: Store, clock: FakeClock
    ) -> None:
        owner = await own(store)
        rows = await self.written(store, message(None))
        await owner.settle(retries=[retry(rows[0], delay=10)])
        assert close((await store.due(ALL_SLOTS, MANY)).next_in, 10)
        clock.advance(10)
        assert (await store.due(ALL_SLOTS, MANY)).moved == 1
        (row,) = await fetch_all(store)
        assert (row.id, row.slot, row.attempt) == (rows[0].id, rows[0].slot, 2)
        assert row.position > rows[0].position
        assert await state_of(store, row) == "pending"

    async def test_a_dead_message_that_holds_its_key_revives_by_itself(self, store: Store, clock: FakeClock) -> None:
        owner = await own(store)
        rows = await self.written(store, *messages(2))
        await owner.settle(dead=[dead(rows[0], revive_after=60)])
        due = await store.due(ALL_SLOTS, MANY)
        assert due.moved == 0
        assert close(due.next_in, 60)
        assert await status_of_hold(store, rows[0]) == "dead"
        clock.advance(60)
        await store.due(ALL_SLOTS, MANY)
        assert await status_of_hold(store, rows[0]) == "releasing"
        (row,) = await read_parked(store, gate_of(rows[0]))
        assert (row.id, row.position, row.attempt) == (rows[0].id, rows[0].position, 1)
        assert (await store.due(ALL_SLOTS, MANY)) == (0, None)

    async def test_a_dead_message_that_holds_nothing_revives_by_itself_and_goes_last(
        self, store: Store, clock: FakeClock
    ) -> None:
        owner = await own(store)
        rows = await self.written(store, *messages(2))
        await owner.settle(dead=[dead(rows[0], holding=False, revive_after=60)])
        clock.advance(60)
        await store.due(ALL_SLOTS, MANY)
        found = await fetch_all(store)
        assert ids(found) == ids([rows[1], rows[0]])
        assert REVIVED_HEADER in found[1].headers

    async def test_a_dead_message_without_a_time_stays_dead(self, store: Store, clock: FakeClock) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner, waiting=0)
        clock.advance(1000 * DAY)
        assert await store.due(ALL_SLOTS, MANY) == (0, None)
        assert await state_of(store, rows[0]) == "dead"


class BreakerContract(StoreFixtures):
    async def test_one_relay_at_a_time_may_probe(self, store: Store, clock: FakeClock) -> None:
        assert await store.take_probe("kafka", "relay-1", 10)
        assert not await store.take_probe("kafka", "relay-2", 10)
        clock.advance(11)
        assert await store.take_probe("kafka", "relay-2", 10)
        assert not await store.take_probe("kafka", "relay-1", 10)

    async def test_whose_turn_it_is_may_take_it_again(self, store: Store, clock: FakeClock) -> None:
        assert await store.take_probe("kafka", "relay-1", 10)
        clock.advance(5)
        assert await store.take_probe("kafka", "relay-1", 10)
        clock.advance(6)
        assert not await store.take_probe("kafka", "relay-2", 10)

    async def test_two_relays_that_ask_at_once_never_both_probe(self, store: Store, another: Store) -> None:
        turns = await asyncio.gather(
            store.take_probe("kafka", "relay-1", 10), another.take_probe("kafka", "relay-2", 10)
        )
        assert sorted(turns) == [False, True]

    async def test_each_destination_has_its_own_turn(self, store: Store) -> None:
        assert await store.take_probe("kafka", "relay-1", 10)
        assert await store.take_probe("mail", "relay-2", 10)

    async def test_a_success_ends_the_turn(self, store: Store) -> None:
        await store.take_probe("kafka", "relay-1", 10)
        await store.report_success("kafka")
        assert await store.take_probe("kafka", "relay-2", 10)

    async def test_successes_are_counted_by_destination(self, store: Store) -> None:
        assert not any((await store.successes()).values())
        await store.take_probe("redis", "relay-1", 10)
        for destination in ("kafka", "mail", "kafka"):
            await store.report_success(destination)
        assert {name: times for name, times in (await store.successes()).items() if times} == {"kafka": 2, "mail": 1}

    async def test_a_trip_is_shown_until_a_success(self, store: Store) -> None:
        async def shown() -> list[tuple[str, str]]:
            breakers = (await store.status()).breakers
            return [(breaker["destination"], breaker["error"]) for breaker in breakers if breaker["error"]]

        await store.report_trip("kafka", "relay-1", "refused")
        await store.report_trip("kafka", "relay-2", "timed out")
        assert await shown() == [("kafka", "timed out")]
        await store.report_success("mail")
        assert await shown() == [("kafka", "timed out")]
        await store.report_success("kafka")
        assert await shown() == []

    async def test_a_trip_takes_no_turn_and_counts_no_success(self, store: Store) -> None:
        await store.report_trip("kafka", "relay-1", "refused")
        assert not any((await store.successes()).values())
        assert await store.take_probe("kafka", "relay-2", 10)


class CleanContract(StoreFixtures):
    async def clean_all(self, store: Store, retention: float | None) -> None:
        while await store.clean(retention=retention, limit=MANY):
            pass

    async def test_archived_messages_go_after_the_retention(self, store: Store, clock: FakeClock) -> None:
        owner = await own(store)
        rows = await self.written(store, *messages(2))
        await owner.deliver(rows[0], retention=60)
        clock.advance(40)
        await owner.deliver(rows[1], retention=60)
        await self.clean_all(store, 60)
        assert len(await store.entries(Query())) == 2
        clock.advance(30)
        await self.clean_all(store, 60)
        assert [entry.message.id for entry in await store.entries(Query())] == [rows[1].id]

    async def test_what_is_pending_is_counted_up_to_a_limit(self, store: Store) -> None:
        owner, rows = await own(store), await self.written(store, *messages(4, key="k"))
        await owner.settle(retries=[retry(rows[0])], parked=behind_gate(gate_of(rows[0]), rows[1:3]))
        assert await store.sample(MANY) == 4
        assert 3 <= await store.sample(3) <= 4

    async def test_cleaning_is_bounded(self, store: Store, clock: FakeClock) -> None:
        owner = await own(store)
        await owner.deliver(*await self.written(store, *messages(5)), retention=60)
        clock.advance(100)
        assert await store.clean(retention=60, limit=2) == 2
        assert len(await store.entries(Query())) == 3
        assert await store.clean(retention=60, limit=2) == 2
        assert await store.clean(retention=60, limit=2) == 1
        assert await store.clean(retention=60, limit=2) == 0

    async def test_superseded_and_discarded_messages_are_kept_for_seven_days(
        self, store: Store, clock: FakeClock
    ) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner, waiting=1)
        await store.discard([rows[0].id])
        await owner.settle(superseded=rows[1:])
        clock.advance(6 * DAY)
        await self.clean_all(store, 60)
        assert len(await store.entries(Query())) == 2
        clock.advance(2 * DAY)
        await self.clean_all(store, 60)
        assert await store.entries(Query()) == []

    async def test_superseded_and_discarded_messages_are_kept_for_a_longer_retention(
        self, store: Store, clock: FakeClock
    ) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner, waiting=1)
        await store.discard([rows[0].id])
        await owner.settle(superseded=rows[1:])
        clock.advance(29 * DAY)
        await self.clean_all(store, 30 * DAY)
        assert len(await store.entries(Query())) == 2

    @pytest.mark.parametrize("retention", [None, 1.0])
    async def test_an_undelivered_message_is_never_cleaned(
        self, store: Store, clock: FakeClock, retention: float | None
    ) -> None:
        owner = await own(store)
        await self.held(store, owner)
        await self.blocked(store, owner, key="b")
        rows = await self.written(store, *messages(2, key=None))
        await owner.settle(retries=[retry(rows[0])], dead=[dead(rows[1], holding=False)])
        await self.insert(store, [message("c", deliver_at=clock.now() + timedelta(days=1))])
        await self.insert(store, [message("d", expires_at=clock.now() + timedelta(days=1))])
        clock.advance(3650 * DAY)
        before = await observe(store)
        await self.clean_all(store, retention)
        assert await observe(store) == before
        assert len(before[0]) == 10

    async def test_relays_long_gone_are_forgotten(self, store: Store, clock: FakeClock) -> None:
        await store.renew(beat("relay-1", {}))
        clock.advance(60 * DAY)
        await store.renew(beat("relay-2", {}))
        await self.clean_all(store, None)
        assert [relay["id"] for relay in (await store.status()).relays] == ["relay-2"]

    @pytest.mark.parametrize("is_dead", [False, True])
    async def test_a_hold_whose_message_is_nowhere_holds_no_longer(self, store: Store, is_dead: bool) -> None:
        owner = await own(store)
        rows = await self.held(store, owner, waiting=0)
        if is_dead:
            await owner.settle(dead=[dead(rows[0])])
        await self.remove(store, rows[0])
        await self.clean_all(store, None)
        assert await status_of_hold(store, rows[0]) in (None, "releasing")

    async def test_what_is_parked_behind_a_message_that_is_nowhere_is_let_out(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner, waiting=2)
        await self.remove(store, rows[0])
        await self.clean_all(store, None)
        assert await status_of_hold(store, rows[0]) == "releasing"
        assert ids(await read_parked(store, gate_of(rows[0]))) == ids(rows[1:])

    async def test_a_hold_that_is_being_released_is_left_to_its_owner(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner, waiting=0)
        await store.discard([rows[0].id])
        await self.clean_all(store, None)
        assert [hold.key for hold in await store.releasing(ALL_SLOTS)] == ["a"]


class DeskContract(StoreFixtures):
    async def test_a_revived_message_that_holds_its_key_keeps_its_place(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner, waiting=2)
        assert await store.revive([rows[0].id]) == 1
        assert await status_of_hold(store, rows[0]) == "releasing"
        assert await read_parked(store, gate_of(rows[0])) == rows
        assert await state_of(store, rows[0]) == "pending"

    async def test_a_revived_message_that_holds_nothing_goes_last(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, message(headers={"tenant": "1"}), message(), message(None))
        await owner.settle(dead=[dead(rows[0], holding=False), dead(rows[2])])
        assert await store.revive([rows[0].id, rows[2].id]) == 2
        found = await fetch_all(store)
        assert found[0] == rows[1]
        assert sorted(ids(found[1:])) == sorted(ids([rows[0], rows[2]]))
        assert all(REVIVED_HEADER in row.headers and row.attempt == 1 for row in found[1:])
        assert all(row.position > rows[2].position for row in found[1:])
        assert {row.id: row for row in found}[rows[0].id].headers["tenant"] == "1"
        assert await store.gates(ALL_SLOTS) == ([], [])

    async def test_only_dead_messages_are_revived(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.held(store, owner)
        await owner.deliver(rows[1], retention=60)
        before = await observe(store)
        assert await store.revive([*ids(rows), "nobody"]) == 0
        assert await store.revive([]) == 0
        assert await observe(store) == before

    async def test_a_message_is_revived_once(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner)
        assert await store.revive([rows[0].id]) == 1
        assert await store.revive([rows[0].id]) == 0
        assert len(await store.entries(Query())) == 3

    async def test_a_discarded_message_is_archived_and_its_key_let_go(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner, waiting=2)
        assert await store.discard([rows[0].id]) == 1
        assert await state_of(store, rows[0]) == "discarded"
        assert await status_of_hold(store, rows[0]) == "releasing"
        assert ids(await read_parked(store, gate_of(rows[0]))) == ids(rows[1:])
        entry = await store.entry(rows[0].id)
        assert entry is not None
        assert entry.message.payload == rows[0].payload

    async def test_a_discarded_message_that_holds_nothing_touches_no_hold(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, *messages(2))
        await owner.settle(dead=[dead(rows[0], holding=False)])
        await owner.settle(retries=[retry(rows[1])])
        assert await store.discard([rows[0].id]) == 1
        assert await status_of_hold(store, rows[1]) == "retry"

    async def test_a_discarded_message_with_a_sequence_leaves_a_tombstone_in_its_place(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner, waiting=1, sequence=1, headers={"tenant": "1"}, type="OrderPlaced")
        assert await store.discard([rows[0].id]) == 1
        tombstone, behind = await read_parked(store, gate_of(rows[0]))
        assert (tombstone.id, tombstone.position) == (rows[0].id, rows[0].position)
        assert (tombstone.sequence, tombstone.generation) == (rows[0].sequence, rows[0].generation)
        assert (tombstone.payload, tombstone.attempt) == (b"", 1)
        assert TOMBSTONE_HEADER in tombstone.headers
        assert behind == rows[1]
        discarded = await store.entries(Query(state="discarded"))
        assert [(entry.message.id, entry.message.payload) for entry in discarded] == [(rows[0].id, b"{}")]

    async def test_only_dead_messages_are_discarded(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.held(store, owner)
        before = await observe(store)
        assert await store.discard([*ids(rows), "nobody"]) == 0
        assert await observe(store) == before

    async def test_a_replayed_message_is_sent_again_last_with_its_id(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, *messages(2, payload=b"again"))
        await owner.deliver(rows[0], retention=60)
        for times in (1, 2):
            assert await store.replay([rows[0].id], new_id=False) == 1
            found = await fetch_all(store)
            assert ids(found) == ids([rows[1], rows[0]])
            assert (found[1].replays, found[1].attempt, found[1].payload) == (times, 1, b"again")
            assert found[1].position > rows[1].position
            await owner.deliver(found[1], retention=60)

    async def test_a_message_replayed_under_a_new_id_is_a_new_one(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, message(type="OrderPlaced", headers={"tenant": "1"}), message(None))
        await owner.deliver(*rows, retention=60)
        assert await store.replay(ids(rows), new_id=True) == 2
        found = await fetch_all(store)
        assert not {row.id for row in found} & {row.id for row in rows}
        assert all((row.replays, row.slot) == (0, slot_of(row.key, row.id)) for row in found)
        (keyed,) = (row for row in found if row.key)
        assert (keyed.topic, keyed.type, dict(keyed.headers)) == (TOPIC, "OrderPlaced", {"tenant": "1"})

    async def test_only_delivered_messages_are_replayed(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner)
        await store.discard([rows[0].id])
        await owner.settle(superseded=[rows[1]])
        before = await observe(store)
        assert await store.replay([*ids(rows), "nobody"], new_id=False) == 0
        assert await observe(store) == before


class ReaderContract(StoreFixtures):
    async def one_of_each(self, store: Store, clock: FakeClock) -> dict[State, Message]:
        owner = await own(store)
        kinds: list[State] = ["pending", "failed", "dead", "delivered", "superseded", "discarded"]
        rows: dict[State, Message] = {}
        for kind in kinds:
            (rows[kind],) = await self.written(store, message(kind))
            clock.advance(1)
        await owner.settle(
            retries=[retry(rows["failed"])],
            dead=[dead(rows["dead"]), dead(rows["discarded"])],
            delivered=[rows["delivered"]],
            superseded=[rows["superseded"]],
            retention=60,
        )
        await store.discard([rows["discarded"].id])
        rows["later"] = message("later", deliver_at=clock.now() + timedelta(seconds=60))
        await self.insert(store, [rows["later"]])
        return rows

    async def test_an_empty_outbox_has_an_empty_status(self, store: Store) -> None:
        status = await store.status()
        assert not any(status.counts.values())
        assert status.oldest_pending_seconds is None
        assert (status.parked, status.holds, status.slots_owned) == (0, 0, 0)
        assert (list(status.relays), list(status.breakers)) == ([], [])
        assert status.meta.version >= status.meta.min_compatible > 0

    async def test_a_doctor_finds_no_problem_in_a_served_outbox(self, store: Store) -> None:
        await own(store)
        await store.renew(beat("relay-1", {}))
        await self.insert(store, messages(3))
        findings = await store.diagnose()
        assert [finding for finding in findings if finding.verdict == "problem"] == []
        assert all(finding.seen and (finding.remedy or finding.verdict == "ok") for finding in findings)
        assert len({finding.name for finding in findings}) == len(findings)

    async def test_a_doctor_finds_that_nobody_delivers(self, store: Store, clock: FakeClock) -> None:
        await own(store)
        await store.renew(beat("relay-1", {}))
        await self.insert(store, messages(3))
        clock.advance(60)
        problems = [finding for finding in await store.diagnose() if finding.verdict == "problem"]
        assert [(finding.name, bool(finding.remedy)) for finding in problems] == [("relays", True)]

    async def test_status_counts_each_state(self, store: Store, clock: FakeClock) -> None:
        rows = await self.one_of_each(store, clock)
        assert dict((await store.status()).counts) == dict.fromkeys(rows, 1)

    async def test_what_is_left_is_a_part_of_the_status(self, store: Store, clock: FakeClock) -> None:
        assert await store.left() == Left(0, 0)
        await self.one_of_each(store, clock)
        status = await store.status()
        counts = (status.counts[state] for state in ("pending", "failed", "later"))
        assert await store.left() == Left(sum(counts), status.holds)

    async def test_every_state_can_be_listed_and_shown(self, store: Store, clock: FakeClock) -> None:
        rows = await self.one_of_each(store, clock)
        for state, row in rows.items():
            assert [entry.message.id for entry in await store.entries(Query(state=state))] == [row.id]
            assert await state_of(store, row) == state

    async def test_entries_come_oldest_first_from_all_places(self, store: Store, clock: FakeClock) -> None:
        rows = await self.one_of_each(store, clock)
        assert [entry.message.id for entry in await store.entries(Query())] == ids(rows.values())

    async def test_entries_are_limited_and_skipped(self, store: Store, clock: FakeClock) -> None:
        rows = ids((await self.one_of_each(store, clock)).values())
        assert [entry.message.id for entry in await store.entries(Query(limit=2))] == rows[:2]
        assert [entry.message.id for entry in await store.entries(Query(limit=3, offset=2))] == rows[2:5]
        assert await store.entries(Query(offset=MANY)) == []

    async def test_entries_are_found_by_what_their_ids_begin_with(self, store: Store, clock: FakeClock) -> None:
        rows = await self.one_of_each(store, clock)
        for row in rows.values():
            found = await store.entries(Query(begins=row.id[:-1]))
            assert row.id in [entry.message.id for entry in found]
        assert await store.entries(Query(begins="_" * 8)) == []

    async def read_in_pages(self, store: Store, size: int) -> list[Place]:
        found: list[Place] = []
        after: Place | None = None
        while page := await store.entries(Query(limit=size, after=after)):
            after = page[-1].place
            found += [entry.place for entry in page]
        return found

    @pytest.mark.parametrize("size", [1, 2, 3])
    async def test_pages_follow_one_another(self, store: Store, clock: FakeClock, size: int) -> None:
        """Also of messages that were written at the same moment, in one place or in several."""
        await self.one_of_each(store, clock)
        await self.insert(store, messages(3))
        await self.insert(store, [message(deliver_at=clock.now() + timedelta(hours=1)) for _ in range(3)])
        whole = [entry.place for entry in await store.entries(Query(limit=MANY))]
        assert len(whole) == 13
        assert await self.read_in_pages(store, size) == whole

    async def test_a_tombstone_and_its_message_are_both_in_the_pages(self, store: Store) -> None:
        owner, [row] = await own(store), await self.written(store, message(key="k", sequence=1))
        await owner.settle(dead=[dead(row)])
        await store.discard([row.id])
        assert [(place.id, place.is_over) for place in await self.read_in_pages(store, 1)] == [
            (row.id, False),
            (row.id, True),
        ]

    async def test_a_page_begins_where_the_last_one_ended_whatever_went_meanwhile(self, store: Store) -> None:
        rows = await self.written(store, *messages(5))
        [first, second] = await store.entries(Query(limit=2))
        await (await own(store)).deliver(*rows[:3])
        left = await store.entries(Query(after=second.place))
        assert [entry.message.id for entry in left] == ids(rows[3:])
        assert first.place < second.place < left[0].place

    async def test_places_are_those_of_the_entries(self, store: Store, clock: FakeClock) -> None:
        await self.one_of_each(store, clock)
        for query in (Query(), Query(state="dead"), Query(limit=2, offset=1), Query(topic="nothing")):
            assert await store.places(query) == [entry.place for entry in await store.entries(query)]

    @pytest.mark.parametrize(
        ("query", "expected"),
        [
            (Query(topic="orders"), "ab"),
            (Query(topic="mail.*"), "cd"),
            (Query(topic="*r*"), "abc"),
            (Query(topic="ORDERS"), ""),
            (Query(topic="order_"), ""),
            (Query(topic="order?"), "ab"),
            (Query(key="k1"), "ac"),
            (Query(key="k*"), ""),
            (Query(type="Order*"), "ac"),
            (Query(topic="orders", key="k1", type="OrderPlaced"), "a"),
            (Query(older_than=15), "ab"),
            (Query(newer_than=15), "cd"),
            (Query(older_than=15, newer_than=25), "b"),
            (Query(state="pending", topic="mail.*"), "cd"),
            (Query(state="dead"), ""),
        ],
    )
    async def test_everything_in_a_query_must_match(
        self, store: Store, clock: FakeClock, query: Query, expected: str
    ) -> None:
        await self.insert(store, [message("k1", payload=b"a", type="OrderPlaced")])
        clock.advance(10)
        await self.insert(store, [message("k2", payload=b"b")])
        clock.advance(10)
        await self.insert(store, [message("k1", topic="mail.return", payload=b"c", type="OrderPaid")])
        await self.insert(store, [message(None, topic="mail.go", payload=b"d", type="Reminder")])
        clock.advance(10)
        found = await store.entries(query)
        assert b"".join(entry.message.payload for entry in found).decode() == expected

    async def test_an_unknown_message_is_shown_as_nothing(self, store: Store) -> None:
        assert await store.entry("nobody") is None

    async def test_a_message_that_is_sent_again_is_shown_as_pending(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, message())
        await owner.deliver(*rows, retention=60)
        await store.replay(ids(rows), new_id=False)
        assert await state_of(store, rows[0]) == "pending"

    async def test_an_entry_tells_about_its_key(self, store: Store, clock: FakeClock) -> None:
        owner = await own(store)
        rows = await self.held(store, owner, waiting=2)
        await owner.settle(parked=[(gate_of(rows[1]), rows[1])])
        await self.insert(store, [message("b")])
        entries = {entry.message.id: entry for entry in await store.entries(Query())}
        head, parked, hot = (entries[row.id] for row in rows)
        assert (head.state, head.attempts, head.error) == ("failed", 1, "refused")
        assert head.due_at == clock.now() + timedelta(seconds=10)
        assert (parked.state, parked.parked, parked.held) == ("pending", True, True)
        assert (hot.state, hot.parked, hot.held) == ("pending", False, True)
        assert [entry.held for entry in entries.values() if entry.message.key == "b"] == [False]

    async def test_a_message_that_is_not_due_tells_when(self, store: Store, clock: FakeClock) -> None:
        due_at = clock.now() + timedelta(seconds=90)
        later = message(deliver_at=due_at)
        await self.insert(store, [later])
        entry = await store.entry(later.id)
        assert entry is not None
        assert (entry.state, entry.due_at, entry.attempts) == ("later", due_at, 0)

    async def test_status_tells_the_age_of_the_oldest_pending_message(self, store: Store, clock: FakeClock) -> None:
        owner = await own(store)
        rows = await self.written(store, message("a"))
        clock.advance(30)
        await self.insert(store, [message("b")])
        clock.advance(5)
        assert close((await store.status()).oldest_pending_seconds, 35)
        await owner.settle(parked=[(topic_gate_of(rows[0]), rows[0])])
        assert close((await store.status()).oldest_pending_seconds, 35)
        await owner.deliver(rows[0])
        assert close((await store.status()).oldest_pending_seconds, 5)

    async def test_status_counts_parked_rows_and_holds(self, store: Store) -> None:
        owner = await own(store)
        await self.blocked(store, owner, waiting=2)
        await self.held(store, owner, key="b")
        status = await store.status()
        assert (status.parked, status.holds) == (2, 2)

    async def test_status_tells_of_relays_and_slots(self, store: Store, clock: FakeClock) -> None:
        owner = await own(store, slots=[1, 2, 3])
        await store.renew(
            Beat(
                relay="relay-1",
                host="here",
                pid=42,
                ttl=15,
                epochs=owner.epochs,
                marks={},
                in_flight=7,
                woken_by="doorbell",
            )
        )
        status = await store.status()
        (relay,) = status.relays
        assert (relay["id"], relay["host"], relay["pid"]) == ("relay-1", "here", 42)
        assert (relay["in_flight"], relay["woken_by"], status.slots_owned) == (7, "doorbell", 3)
        clock.advance(16)
        assert (await store.status()).slots_owned == 0

    async def test_holds_come_oldest_first_with_what_waits_behind_them(self, store: Store, clock: FakeClock) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner, waiting=2)
        await self.insert(store, [message()])
        clock.advance(1)
        await self.held(store, owner, waiting=1, key="b")
        clock.advance(1)
        await self.held(store, owner, waiting=0, key="c")
        holds = await store.holds()
        assert [(hold.key, hold.status, hold.waiting) for hold in holds] == [
            ("a", "dead", 3),
            ("b", "retry", 1),
            ("c", "retry", 0),
        ]
        assert holds[0].since == rows[0].created_at

    async def test_holds_can_be_chosen(self, store: Store, clock: FakeClock) -> None:
        owner = await own(store)
        for key, topic in [("a", "mail"), ("a", TOPIC), ("b", TOPIC)]:
            await self.held(store, owner, waiting=0, key=key, topic=topic)
            clock.advance(1)

        async def chosen(**choice: Any) -> list[tuple[str, str]]:
            return [(hold.topic, hold.key) for hold in await store.holds(**choice)]

        assert await chosen(topic=TOPIC) == [(TOPIC, "a"), (TOPIC, "b")]
        assert await chosen(key="a") == [("mail", "a"), (TOPIC, "a")]
        assert await chosen(topic=TOPIC, key="b") == [(TOPIC, "b")]
        assert await chosen(limit=1) == [("mail", "a")]

    async def test_reading_changes_nothing(self, store: Store, clock: FakeClock) -> None:
        await self.one_of_each(store, clock)
        before = await observe(store)
        await store.status()
        assert await observe(store) == before


class WakeupContract(StoreFixtures):
    async def fall_asleep(self, wakeup: Wakeup) -> None:
        """The first answers may still be about what went before."""
        await wakeup.doze(ALL_SLOTS)
        for _ in range(10):
            if not await wakeup.wait(0.02):
                return
        raise AssertionError("it wakes although nothing was committed")

    async def is_woken(self, store: Store, wakeup: Wakeup) -> bool:
        """By the bell, or where nobody rings by its own glance."""
        return bool(await wakeup.wait(10) if wakeup.rings else await glance(store))

    async def test_nothing_committed_lets_a_relay_sleep(self, store: Store) -> None:
        async with store.wakeup(0.01) as wakeup:
            await self.fall_asleep(wakeup)
            assert not await wakeup.wait(0.02)
            assert wakeup.name

    async def test_a_commit_before_the_wait_wakes(self, store: Store) -> None:
        async with store.wakeup(0.01) as wakeup:
            await self.fall_asleep(wakeup)
            (row,) = await self.written(store, *messages(1))
            if wakeup.rings:
                assert row.slot in await wakeup.wait(10)
            await self.fall_asleep(wakeup)

    async def test_a_commit_during_the_wait_wakes(self, store: Store) -> None:
        async with store.wakeup(0.01) as wakeup:
            await self.fall_asleep(wakeup)
            waiting = asyncio.create_task(self.is_woken(store, wakeup))
            await self.insert(store, messages(1))
            assert await waiting

    async def test_every_relay_is_woken_whose_slot_it_is(self, store: Store, another: Store) -> None:
        async with store.wakeup(0.01) as one, another.wakeup(0.01) as other:
            for wakeup in (one, other):
                await self.fall_asleep(wakeup)
            await self.insert(store, messages(1))
            assert await self.is_woken(store, one)
            assert await self.is_woken(another, other)

    async def test_a_wait_can_be_cancelled(self, store: Store) -> None:
        async with store.wakeup(0.01) as wakeup:
            await self.fall_asleep(wakeup)
            waiting = asyncio.create_task(wakeup.wait(10))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await self.insert(store, messages(1))
            assert await self.is_woken(store, wakeup)

    async def test_a_relay_that_was_roused_can_doze_again(self, store: Store) -> None:
        async with store.wakeup(0.01) as wakeup:
            await self.fall_asleep(wakeup)
            await wakeup.rouse(ALL_SLOTS)
            await self.insert(store, messages(1))
            await self.fall_asleep(wakeup)
            await self.insert(store, messages(1))
            assert await self.is_woken(store, wakeup)


class GlanceContract(StoreFixtures):
    async def test_there_is_nothing_to_do_in_an_empty_outbox(self, store: Store) -> None:
        assert list(await glance(store)) == []
        assert list(await store.glance([])) == []

    async def test_a_row_that_was_not_read_is_something_to_do(self, store: Store) -> None:
        (row,) = await self.written(store, *messages(1))
        assert list(await glance(store)) == [row.slot]
        assert list(await store.glance([Range((row.slot + 1) % SLOTS, 0, 1)])) == []

    async def test_there_is_nothing_to_do_once_everything_was_read(self, store: Store) -> None:
        """Right after a read, there may be doubt about what others were writing; it must not last."""
        await self.written(store, *messages(2))
        rows = await fetch_all(store)
        read = [Range(slot, rows[-1].position, MANY, 0) for slot in ALL_SLOTS]
        async with asyncio.timeout(10):
            while await store.glance(read):
                assert ids((await store.fetch(read)).messages) in ([], ids(rows))
                await asyncio.sleep(0.02)

    async def test_news_are_found_in_one_slot_right_after_another_was_read(self, store: Store) -> None:
        """A slot in which much happens must not hide what happens in others."""
        busy, quiet = slot_of("a", ""), slot_of("b", "")
        await self.insert(store, [message(key="a")])
        (row,) = (await store.fetch([Range(busy, 0, 1)])).messages
        await self.insert(store, [message(key="b")])
        assert quiet in await store.glance([Range(busy, row.position, 1), Range(quiet, 0, 1)])

    async def test_a_later_row_is_something_to_do_when_it_is_due(self, store: Store, clock: FakeClock) -> None:
        await self.insert(store, [message(deliver_at=clock.now() + timedelta(seconds=10))])
        assert list(await glance(store)) == []
        clock.advance(10)
        assert list(await glance(store)) == [slot_of("a", "")]

    async def test_a_revival_is_something_to_do_when_its_time_has_come(self, store: Store, clock: FakeClock) -> None:
        owner = await own(store)
        (row,) = await self.written(store, *messages(1))
        await owner.settle(dead=[dead(row, revive_after=10)])
        assert list(await glance(store)) == []
        clock.advance(10)
        assert list(await glance(store)) == [row.slot]

    async def test_a_hold_to_release_is_something_to_do(self, store: Store) -> None:
        owner = await own(store)
        (row,) = await self.written(store, *messages(1))
        await owner.settle(dead=[dead(row)])
        assert list(await glance(store)) == []
        await store.discard([row.id])
        assert list(await glance(store)) == [row.slot]


@pytest.mark.asyncio
class StoreContract(
    OpeningContract,
    LeaseContract,
    FetchContract,
    ParkingContract,
    SettleContract,
    FencingContract,
    DueContract,
    BreakerContract,
    CleanContract,
    DeskContract,
    ReaderContract,
    WakeupContract,
    GlanceContract,
):
    """The whole suite: inherit from it, under a name that begins with Test."""
