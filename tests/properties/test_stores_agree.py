"""The same history on the memory store and on another: afterwards nobody can tell which is which."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, closing, contextmanager
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from sqlalchemy import delete, insert, update
from sqlalchemy.ext.asyncio import AsyncConnection

from postroom.message import Message, new_id, slot_of
from postroom.ports import Beat, Dead, Entry, Gate, Hold, Lease, Query, Range, Refund, Retry, Settlement, Store
from postroom.stores.memory import MemoryStore
from postroom.stores.mysql import MysqlStore
from postroom.stores.postgresql import PostgresqlStore
from postroom.stores.schema import define_tables
from postroom.stores.sql import SqlStore
from postroom.stores.sqlite import SqliteStore
from postroom.testing import FakeClock
from tests import services
from tests.conftest import server_url

MANY = 1000
TABLES = define_tables()
RELAYS = ("relay-1", "relay-2")
USED_SLOTS = [0, *(slot_of(key, "") for key in ("a", "strict"))]
UNDELIVERED = ("pending", "later", "failed", "dead")

KINDS = (
    "delivered", "retry", "holding", "continuing", "reviving", "superseded", "behind key", "behind topic", "released",
    "refund",
)  # fmt: skip

relays = st.sampled_from(RELAYS)
numbers = st.integers(0, 7)
retentions = st.sampled_from([None, 60.5])
mostly_true = st.sampled_from([True, True, True, True, False])
writes = st.tuples(
    st.sampled_from(["orders", "orders", "mail"]),
    st.sampled_from(["a", "a", "strict", "strict", None]),
    st.sampled_from([None, None, 5]),
)


class Pair(NamedTuple):
    """One message as each store knows it: their positions and epochs are their own."""

    model: Message
    subject: Message


@contextmanager
def sqlite_store(clock: FakeClock) -> Iterator[SqlStore]:
    yield SqliteStore("sqlite://", clock=clock)


@contextmanager
def postgresql_store(clock: FakeClock) -> Iterator[SqlStore]:
    server_url("postgresql-15")
    with services.fresh_database("postgresql-15") as url:
        yield PostgresqlStore(url, clock=clock)


@contextmanager
def mysql_store(clock: FakeClock) -> Iterator[SqlStore]:
    server_url("mariadb")
    with services.fresh_database("mariadb") as url:
        yield MysqlStore(url, clock=clock)


@asynccontextmanager
async def writing_to(store: SqlStore) -> AsyncIterator[AsyncConnection]:
    begun = store.transaction() if isinstance(store, SqliteStore) else store._opened().begin()
    async with begun as connection:
        yield connection


async def empty(store: SqlStore) -> None:
    async with writing_to(store) as connection:
        await connection.execute(update(TABLES.leases).values(owner=None, expires_at=None, epoch=0, mark=0))
        for table in TABLES.all():
            if table not in (TABLES.leases, TABLES.meta):
                await connection.execute(delete(table))


async def insert_into(store: SqlStore, messages: Sequence[Message], now: datetime) -> None:
    async with writing_to(store) as connection:
        for message in messages:
            columns = {
                "slot": slot_of(message.key, message.id),
                "id": message.id,
                "topic": message.topic,
                "key": message.key,
                "payload": message.payload,
                "headers": json.dumps(message.headers),
                "sequence": message.sequence,
                "generation": message.generation,
                "created_at": now,
            }
            if message.deliver_at is None:
                await connection.execute(insert(TABLES.hot), columns)
            else:
                await connection.execute(insert(TABLES.later), {**columns, "due_at": message.deliver_at})


# --- what can be seen of a store, without the numbers that are its own


def seen(message: Message) -> tuple[Any, ...]:
    headers = tuple(sorted(message.headers.items()))
    place = (message.id, message.topic, message.key, message.slot, message.sequence, message.generation)
    return (*place, message.payload, headers, message.attempt, message.replays, message.created_at)


def seen_entry(entry: Entry) -> tuple[Any, ...]:
    times = (entry.due_at, entry.settled_at)
    return (
        entry.state,
        entry.attempts,
        entry.parked,
        entry.held,
        *times,
        entry.reason,
        entry.error,
        seen(entry.message),
    )


def seen_hold(hold: Hold) -> tuple[Any, ...]:
    due_in = None if hold.due_in is None else round(hold.due_in, 3)
    gate = (hold.slot, hold.topic, hold.key)
    return (*gate, hold.status, hold.message_id, hold.attempts, due_in, hold.error, hold.since, hold.waiting)


def seen_leases(leases: Mapping[int, Lease]) -> list[tuple[Any, ...]]:
    return [(slot, lease.owner, round(lease.expires_in, 3), lease.mark) for slot, lease in sorted(leases.items())]


async def seen_hot(store: Store) -> list[Message]:
    fetched = await store.fetch([Range(slot, 0, MANY) for slot in USED_SLOTS])
    return sorted(fetched.messages, key=lambda message: message.position)


async def seen_parked(store: Store) -> dict[Gate, list[Message]]:
    holds, gates = await store.gates(USED_SLOTS)
    every = sorted({*(Gate(hold.slot, hold.topic, hold.key) for hold in holds), *gates}, key=str)
    return {gate: await store.fetch_parked(gate, 0, MANY) for gate in every}


async def seen_holds(store: Store) -> list[tuple[Any, ...]]:
    return [seen_hold(hold) for hold in await store.holds(limit=MANY)]


async def seen_by_operators(store: Store) -> dict[str, Any]:
    status = await store.status()
    return {
        "releasing": sorted(seen_hold(hold) for hold in await store.releasing(USED_SLOTS)),
        "entries": sorted((seen_entry(entry) for entry in await store.entries(Query(limit=MANY))), key=repr),
        "counts": dict(status.counts),
        "status": (status.parked, status.holds, status.slots_owned, [relay["id"] for relay in status.relays]),
        "breakers": [(breaker["destination"], breaker["error"]) for breaker in status.breakers],
        "successes": dict(await store.successes()),
    }


class StoresAgree(RuleBasedStateMachine):
    loop: asyncio.AbstractEventLoop
    clock: FakeClock
    subject: SqlStore

    def __init__(self) -> None:
        super().__init__()
        self.model = MemoryStore(clock=self.clock)
        self.written = 0
        self.pairs: dict[int, Pair] = {}
        """By the model's position; also those that are long gone."""
        self.epochs: dict[str, tuple[dict[int, int], dict[int, int]]] = {relay: ({}, {}) for relay in RELAYS}
        self.owner = "relay-1"

    def run(self, work: Awaitable[Any]) -> Any:
        return self.loop.run_until_complete(asyncio.ensure_future(work, loop=self.loop))

    def both(self, ask: Callable[[Store], Awaitable[Any]]) -> tuple[Any, Any]:
        return self.run(ask(self.model)), self.run(ask(self.subject))

    def agree(self, ask: Callable[[Store], Awaitable[Any]]) -> Any:
        model, subject = self.both(ask)
        assert subject == model
        return model

    def teardown(self) -> None:
        try:
            self.look_the_same_to_operators()
        finally:
            self.run(empty(self.subject))

    # --- the application and the clock

    @initialize(batch=st.lists(writes, min_size=2, max_size=5))
    def start(self, batch: list[tuple[str, str | None, float | None]]) -> None:
        self.take(self.owner)
        self.write(batch)

    @rule(batch=st.lists(writes, min_size=1, max_size=4))
    def write(self, batch: list[tuple[str, str | None, float | None]]) -> None:
        messages = [self.compose(topic, key, delay) for topic, key, delay in batch]
        with self.model.begin() as transaction:
            for message in messages:
                transaction.add(message, message.payload, message.headers, None, message.key == "strict", None)
        self.run(insert_into(self.subject, messages, self.clock.now()))

    def compose(self, topic: str, key: str | None, delay: float | None) -> Message:
        self.written += 1
        message = Message(topic=topic, key=key, payload=b"%d" % self.written, headers={"number": str(self.written)})
        # The last byte, which is the slot of messages without a key, is zero.
        message.id = new_id(self.written, lambda size: self.written.to_bytes(size - 1, "big") + b"\0")
        if delay is not None and key != "strict":
            message.deliver_at = self.clock.now() + timedelta(seconds=delay)
        return message

    @rule(seconds=st.sampled_from([0.25, 6, 20, 8 * 86_400]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    # --- relays come and go

    @rule(relay=relays, first=st.sampled_from(["renew", "give back", "nothing"]), leave=st.booleans(), mark=numbers)
    def change_owner(self, relay: str, first: str, leave: bool, mark: int) -> None:
        if first == "renew":
            self.renew(relay, mark)
        elif first == "give back":
            for store, epochs in zip((self.model, self.subject), self.epochs[self.owner], strict=True):
                self.run(store.release(self.owner, epochs, dict.fromkeys(epochs, mark), leave))
        self.take(relay)

    def take(self, relay: str) -> None:
        taken = self.both(lambda store: store.acquire(relay, USED_SLOTS, 10))
        assert seen_leases(taken[1]) == seen_leases(taken[0])
        if taken[0]:
            self.owner = relay
        for known, leases in zip(self.epochs[relay], taken, strict=True):
            assert all(lease.epoch > max([0, *known.values()]) for lease in leases.values())
            known.update({slot: lease.epoch for slot, lease in leases.items()})

    def renew(self, relay: str, mark: int) -> None:
        answers = [
            self.run(store.renew(self.beat(relay, epochs, mark)))
            for store, epochs in zip((self.model, self.subject), self.epochs[relay], strict=True)
        ]
        assert seen_leases(answers[1].slots) == seen_leases(answers[0].slots)
        assert sorted(answers[1].relays) == sorted(answers[0].relays)

    def beat(self, relay: str, epochs: Mapping[int, int], mark: int) -> Beat:
        return Beat(relay=relay, host="here", pid=1, ttl=10, epochs=epochs, marks=dict.fromkeys(epochs, mark))

    # --- they settle

    @rule(kind=st.sampled_from(["retry", "holding", "reviving"]), number=numbers, parked=st.integers(0, 3))
    def fail_a_key(self, kind: str, number: int, parked: int) -> None:
        """The head of a key fails, and some of what waits behind it is parked."""
        head = self.pick(number, self.waiting())
        if head is not None:
            same_key = [pair for pair in self.waiting() if gate_of(pair.model) == gate_of(head.model)]
            behind = sorted(same_key, key=lambda pair: pair.model.position)[1:][:parked]
            self.settle_pairs([(kind, head), *(("behind key", pair) for pair in behind)])

    @rule(number=numbers, retention=retentions, by_owner=mostly_true)
    def deliver(self, number: int, retention: float | None, by_owner: bool) -> None:
        pair = self.pick(number, list(self.pairs.values()))
        if pair is not None:
            self.settle_pairs([("delivered", pair)], retention, by_owner)

    @rule(number=numbers)
    def refund(self, number: int) -> None:
        entries = self.run(self.model.entries(Query(limit=MANY)))
        failed = {entry.message.position for entry in entries if entry.state in ("failed", "dead")}
        pair = self.pick(number, [pair for position, pair in self.pairs.items() if position in failed])
        if pair is not None:
            self.settle_pairs([("refund", pair)])

    @rule(wanted=st.lists(st.tuples(st.sampled_from(KINDS), numbers), min_size=1, max_size=4), by_owner=mostly_true)
    def settle(self, wanted: list[tuple[str, int]], by_owner: bool) -> None:
        known = list(self.pairs.values())
        chosen = [(kind, self.pick(number, known)) for kind, number in wanted]
        self.settle_pairs([(kind, pair) for kind, pair in chosen if pair is not None], by_owner=by_owner)

    def settle_pairs(
        self, chosen: Sequence[tuple[str, Pair]], retention: float | None = None, by_owner: bool = True
    ) -> None:
        relay = next(relay for relay in RELAYS if (relay == self.owner) == by_owner)
        settlements = [
            Settlement(relay=relay, epochs=dict(epochs), retention=retention) for epochs in self.epochs[relay]
        ]
        entered: set[int] = set()
        for kind, pair in chosen:
            if pair.model.position not in entered and self.makes_sense(kind, pair.model):
                entered.add(pair.model.position)
                for settlement, message in zip(settlements, pair, strict=True):
                    enter(settlement, kind, message)
        answers = [
            self.run(store.settle(settlement))
            for store, settlement in zip((self.model, self.subject), settlements, strict=True)
        ]
        assert answers[1] == answers[0]

    @rule(limit=st.sampled_from([1, 2, MANY]))
    def due(self, limit: int) -> None:
        self.agree(lambda store: store.due(USED_SLOTS, limit))

    # --- operators and upkeep

    @rule(what=st.sampled_from(["revive", "discard", "replay"]), number=numbers, other=numbers)
    def use_desk(self, what: str, number: int, other: int) -> None:
        state = "delivered" if what == "replay" else "dead"
        ids = [entry.message.id for entry in self.run(self.model.entries(Query(state=state, limit=MANY)))]
        chosen = [ids[n % len(ids)] for n in (number, other)] if ids else []
        if what == "revive":
            self.agree(lambda store: store.revive(chosen))
        elif what == "discard":
            self.agree(lambda store: store.discard(chosen))
        else:
            self.agree(lambda store: store.replay(chosen, new_id=False))

    @rule(retention=retentions)
    def clean(self, retention: float | None) -> None:
        self.agree(lambda store: store.clean(retention=retention, limit=MANY))

    @rule(relay=relays, what=st.sampled_from(["probe", "trip", "success"]))
    def tell_of_destination(self, relay: str, what: str) -> None:
        if what == "probe":
            self.agree(lambda store: store.take_probe("kafka", relay, 10))
        elif what == "trip":
            self.both(lambda store: store.report_trip("kafka", relay, "refused"))
        else:
            self.both(lambda store: store.report_success("kafka"))

    # --- choosing as a relay would

    def waiting(self) -> list[Pair]:
        return [pair for pair in self.pairs.values() if self.is_waiting(pair.model)]

    def pick(self, number: int, pairs: Sequence[Pair]) -> Pair | None:
        """Mostly one of those seen last."""
        return pairs[-1 - number % len(pairs)] if pairs else None

    def makes_sense(self, kind: str, message: Message) -> bool:
        """An owner sends nothing of a held key but the message that holds it, and knows only one row of an id."""
        if kind == "delivered" or kind == "refund":
            return not self.has_moved_on(message)
        if kind in ("retry", "holding", "continuing", "reviving", "superseded"):
            hold = self.hold_on(message)
            return hold is None or hold.status == "releasing" or hold.position == message.position
        if kind == "behind key":
            return message.key is not None and self.is_waiting(message)
        return kind != "released" or message.key is None or not self.holds_really(message)

    def has_moved_on(self, message: Message) -> bool:
        """Whether it has another row by now: revived last, replayed, or moved back from later."""
        entries = self.run(self.model.entries(Query(limit=MANY)))
        places = [
            entry.message.position for entry in entries if entry.message.id == message.id and entry.state in UNDELIVERED
        ]
        return bool(places) and message.position not in places

    def hold_on(self, message: Message) -> Hold | None:
        holds, _ = self.run(self.model.gates([message.slot]))
        return next((hold for hold in holds if (hold.topic, hold.key) == (message.topic, message.key)), None)

    def holds_really(self, message: Message) -> bool:
        hold = self.hold_on(message)
        return hold is not None and hold.status != "releasing"

    def is_waiting(self, message: Message) -> bool:
        return bool(self.run(self.model.fetch_heads([(message.slot, message.position)])))

    # --- comparing

    @invariant()
    def see_the_same_messages(self) -> None:
        self.agree(seen_holds)
        self.compare(*self.both(seen_hot))
        model, subject = self.both(seen_parked)
        assert list(subject) == list(model)
        for gate in model:
            self.compare(model[gate], subject[gate])

    def compare(self, model: Sequence[Message], subject: Sequence[Message]) -> None:
        assert [seen(message) for message in subject] == [seen(message) for message in model]
        for pair in map(Pair, model, subject):
            self.pairs.pop(pair.model.position, None)
            self.pairs[pair.model.position] = pair

    def look_the_same_to_operators(self) -> None:
        model, subject = self.both(seen_by_operators)
        for name in model:
            assert subject[name] == model[name], name


def gate_of(message: Message) -> Gate:
    return Gate(message.slot, message.topic, message.key)


def enter(settlement: Settlement, kind: str, message: Message) -> None:
    key_gate = gate_of(message)
    match kind:
        case "delivered":
            settlement.delivered.append(message)
        case "retry":
            settlement.retries.append(Retry(message, message.attempt, 5.5, "refused"))
        case "holding" | "continuing":
            settlement.dead.append(Dead(message, message.attempt, "attempts", "gave up", kind == "holding", None))
        case "reviving":
            settlement.dead.append(Dead(message, message.attempt, "attempts", "gave up", True, 15.5))
        case "superseded":
            settlement.superseded.append(message)
        case "behind key":
            settlement.parked.append((key_gate, message))
        case "behind topic":
            settlement.parked.append((key_gate._replace(key=None), message))
        case "released":
            settlement.released.append(key_gate)
        case _:
            settlement.refunds.append(Refund(message, 0))


def agreement(make: Callable[[FakeClock], AbstractContextManager[SqlStore]], max_examples: int) -> None:
    """Histories on one database: preparing its statements takes longer than running them."""
    loop, clock = asyncio.new_event_loop(), FakeClock()
    with closing(loop), make(clock) as subject:
        loop.run_until_complete(subject.open())
        try:
            machine = type("StoresAgree", (StoresAgree,), {"loop": loop, "clock": clock, "subject": subject})
            run_state_machine_as_test(machine, settings=settings(max_examples=max_examples, stateful_step_count=30))
        finally:
            loop.run_until_complete(subject.close())


def test_sqlite_agrees_with_memory() -> None:
    agreement(sqlite_store, 40)


def test_postgresql_agrees_with_memory() -> None:
    agreement(postgresql_store, 20)


def test_mariadb_agrees_with_memory() -> None:
    agreement(mysql_store, 20)
