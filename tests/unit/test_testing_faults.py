"""Faults that are drawn by seed, and what survives them: honest publishers do, dishonest ones are found out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from postroom import ConfigurationError, Message, MessageRejected, NotAttempted, Outbox, Relay, StoreUnavailable
from postroom.ports import Batch, Features, Fetched, Range, Store
from postroom.stores.memory import MemoryStore
from postroom.stores.sqlite import SqliteStore
from postroom.testing import Faults, survive, survive_async
from postroom.testing.faults import Crashed
from postroom.testing.schedule import KINDS, STORE_CALLS, Schedule


class Honest:
    """Sends one after the other, and answers for what has arrived."""

    features = Features(ordered=True)

    def __init__(self) -> None:
        self.arrived: list[str] = []

    def received(self) -> list[str]:
        return self.arrived

    async def publish(self, batch: Batch) -> None:
        for message in batch.messages:
            if batch.may_start():
                await self.send(message)
                batch.answer(message)
            else:
                batch.answer(message, NotAttempted("there was no time left"))

    async def send(self, message: Message) -> None:
        await asyncio.sleep(0)
        self.arrived.append(message.id)
        await asyncio.sleep(0)

    async def close(self) -> None: ...


class Hasty(Honest):
    """Sends everything in one step."""

    async def publish(self, batch: Batch) -> None:
        self.arrived += [message.id for message in batch.messages]
        batch.confirm_all()


class AnswersFirst(Honest):
    async def publish(self, batch: Batch) -> None:
        for message in batch.messages:
            batch.answer(message)
            await self.send(message)


class ConfirmsFirst(Honest):
    async def publish(self, batch: Batch) -> None:
        batch.confirm_all()
        for message in batch.messages:
            await self.send(message)


class Reorders(Honest):
    async def publish(self, batch: Batch) -> None:
        for message in reversed(batch.messages):
            await self.send(message)
            batch.answer(message)


class Forgets(Honest):
    async def send(self, message: Message) -> None:
        if message.payload != b'{"number":7}':
            await super().send(message)


class MakesUp(Honest):
    async def send(self, message: Message) -> None:
        await super().send(message)
        self.arrived.append("made-up")


def fill(number: int = 60, keys: int = 4) -> MemoryStore:
    store = MemoryStore()
    with store.begin() as transaction:
        for message in backlog(number, keys):
            Outbox().add(transaction, message)
    return store


def backlog(number: int = 60, keys: int = 4) -> list[Message]:
    return [
        Message(topic="orders", payload={"number": n}, key=f"key-{n % keys}" if n % 5 else None) for n in range(number)
    ]


# --- the schedule


def test_a_seed_says_which_call_meets_which_fault() -> None:
    one, other = (Schedule(7, KINDS, 0.5, 100) for _ in range(2))
    alone = [one.draw("publish") for _ in range(30)]
    interleaved = []
    for number in range(30):
        for _ in range(number % 3):
            other.draw("settle")
            other.draw("renew")
        interleaved.append(other.draw("publish"))
    assert alone == interleaved
    assert len(set(alone)) > 4
    assert [Schedule(8, KINDS, 0.5, 100).draw("publish") for _ in range(30)] != alone


def test_after_so_many_faults_all_is_well() -> None:
    schedule = Schedule(1, KINDS, 1.0, 3)
    assert [schedule.draw("publish") is None for _ in range(5)] == [False, False, False, True, True]


def test_each_fault_strikes_where_it_can() -> None:
    for kind in KINDS:
        struck = {call for call in ("publish", *STORE_CALLS) if Schedule(1, [kind], 10.0, 1).draw(call)}
        expected = STORE_CALLS if kind == "database_restart" else {"settle"} if "settle" in kind else {"publish"}
        assert struck == expected


def test_an_unknown_fault_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"no such fault: flood; known are crash_after_publish"):
        Faults(seed=1, kinds=["flood"])


# --- each fault by itself


def only(kind: str, **options: Any) -> Faults:
    return Faults(seed=1, kinds=[kind], rate=1.0, most=1, **options)


async def left_in(store: Store) -> int:
    return (await store.left()).pending


@pytest.mark.parametrize(
    ("kind", "publisher", "arrived", "left"),
    [
        ("crash_after_publish", Hasty(), 3, 3),
        ("crash_before_settle", Hasty(), 3, 3),
        ("crash_after_settle", Hasty(), 3, 0),
        ("crash_after_answer", Honest(), 1, 2),
    ],
)
async def test_a_crash_leaves_what_was_out_and_what_was_settled(
    kind: str, publisher: Honest, arrived: int, left: int
) -> None:
    store, faults = fill(3, keys=1), only(kind)
    with pytest.raises(Crashed):
        await Relay(faults.store(store), faults.publisher(publisher)).drain()
    assert faults.struck == [kind]
    assert (len(publisher.arrived), await left_in(store)) == (arrived, left)
    assert any(lease.owner for lease in store.tables.leases.values()), "its leases are left to expire"


async def test_after_a_crash_nothing_of_that_life_reaches_anybody() -> None:
    store, publisher, faults = fill(3), Honest(), only("crash_before_settle")
    dead_store, dead_publisher = faults.store(store), faults.publisher(publisher)
    with pytest.raises(Crashed):
        await Relay(dead_store, dead_publisher).drain()
    with pytest.raises(Crashed):
        await dead_store.fetch([Range(0, 0, 1)])
    assert await faults.store(store).fetch([Range(0, 0, 1)])


async def test_an_answer_of_the_database_that_comes_after_the_crash_is_not_heard() -> None:
    answered = asyncio.Event()

    class Slow(MemoryStore):
        async def fetch(self, ranges: Sequence[Range], limit: int | None = None) -> Fetched:
            await answered.wait()
            return await super().fetch(ranges, limit)

    faults = Faults(seed=1, most=0)
    life, asking = faults.life, asyncio.ensure_future(faults.store(Slow()).fetch([Range(0, 0, 1)]))
    await asyncio.sleep(0)
    with pytest.raises(Crashed):
        life.crash()
    answered.set()
    with pytest.raises(Crashed):
        await asking


async def test_a_lost_lease_is_really_somebody_elses() -> None:
    store, publisher, faults = fill(1), Honest(), only("lease_lost")
    owners: set[str | None] = set()

    class Looks(Honest):
        async def send(self, message: Message) -> None:
            owners.add(store.tables.leases[message.slot].owner)
            await super().send(message)

    report = await Relay(faults.store(store), faults.publisher(publisher := Looks())).drain()
    assert (owners, report.delivered, len(publisher.arrived)) == ({"somebody-else"}, 1, 1)


async def test_what_is_settled_under_a_lost_lease_is_refused_and_done_again() -> None:
    store, faults = fill(1), only("lease_lost")
    attempts: list[int] = []

    async def refuse_twice(message: Message) -> None:
        attempts.append(message.attempt)
        if len(attempts) < 3:
            raise MessageRejected("not yet")

    result = await survive_async(store, refuse_twice, received=list, faults=faults)
    assert attempts == [1, 1, 2], "the first refusal was not written down by who had lost the lease"
    assert result.left == 0


async def test_lost_answers_make_duplicates_in_order() -> None:
    store, publisher, faults = fill(20, keys=1), Honest(), only("partial_answers")
    result = await survive_async(store, publisher, received=publisher.received, faults=faults)
    assert result.ok
    assert result.duplicates > 0


async def test_a_restarting_database_is_asked_again() -> None:
    store, publisher, faults = fill(20), Honest(), Faults(seed=3, kinds=["database_restart"], rate=10.0, most=5)
    with pytest.raises(StoreUnavailable):
        await faults.store(store).fetch([Range(0, 0, 1)])
    report = await Relay(faults.store(store), faults.publisher(publisher), lease_ttl="500ms").drain()
    assert (report.delivered, len(faults.struck)) == (20, 5)


async def test_a_slow_destination_overruns_the_time_out() -> None:
    store, publisher, faults = fill(4), Honest(), only("slow_destination", slow="400ms")
    relay = Relay(faults.store(store), faults.publisher(publisher), publish_timeout="100ms")
    report = await relay.drain()
    assert (report.delivered, report.pending, report.retried) == (0, 4, 0)
    assert (await relay.drain()).delivered == 4


# --- surviving them all


@pytest.mark.parametrize("seed", range(8))
async def test_an_honest_publisher_survives(seed: int) -> None:
    store, publisher = fill(), Honest()
    result = await survive_async(store, publisher, received=publisher.received, seed=seed)
    assert result.ok, result
    assert (result.committed, result.delivered, result.seed) == (60, 60, seed)
    assert result.faults
    assert result.lives > 1


@pytest.mark.parametrize("kind", KINDS)
async def test_an_honest_publisher_survives_each_kind(kind: str) -> None:
    store, publisher = fill(), Honest()
    faults = Faults(seed=1, kinds=[kind], most=4)
    result = await survive_async(store, publisher, received=publisher.received, faults=faults)
    assert result.ok, result
    assert set(result.faults) == {kind}


@pytest.mark.parametrize("kind", [AnswersFirst, ConfirmsFirst, Forgets])
def test_a_publisher_that_loses_is_found_out(kind: type[Honest]) -> None:
    assert any(lost_by(kind(), seed) for seed in range(8))


def lost_by(publisher: Honest, seed: int) -> Sequence[str]:
    return survive(fill(), publisher, received=publisher.received, seed=seed).lost


@pytest.mark.parametrize("kind", [AnswersFirst, ConfirmsFirst])
def test_it_is_found_out_however_long_the_database_takes_to_settle(kind: type[Honest], tmp_path: Path) -> None:
    url, publisher = f"sqlite:///{tmp_path}/app.db", kind()
    asyncio.run(write(url))
    faults = Faults(seed=1, kinds=["crash_after_answer"], rate=1.0, most=1)
    assert survive(url, publisher, received=publisher.received, faults=faults).lost


def test_a_publisher_that_answers_first_loses_nothing_without_faults() -> None:
    publisher = AnswersFirst()
    assert survive(fill(), publisher, received=publisher.received, faults=Faults()).ok


def test_a_publisher_that_reorders_is_found_out() -> None:
    publisher = Reorders()
    result = survive(fill(), publisher, received=publisher.received, seed=1)
    assert result.reordered
    assert not result.ok


def test_a_publisher_that_makes_something_up_is_found_out() -> None:
    publisher = MakesUp()
    assert survive(fill(), publisher, received=publisher.received, seed=1).phantom == ["made-up"]


# --- handlers


class Handler:
    """What a consumer does with a message: it remembers, or it does not."""

    def __init__(self, remembers: bool) -> None:
        self.remembers = remembers
        self.effects: list[str] = []

    def __call__(self, message: Message) -> None:
        if not (self.remembers and message.id in self.effects):
            self.effects.append(message.id)


@pytest.mark.parametrize("remembers", [True, False])
def test_a_handler_that_remembers_does_everything_once(remembers: bool) -> None:
    duplicates = 0
    for seed in range(2):
        handler = Handler(remembers)
        result = survive(fill(), handler, received=lambda handler=handler: handler.effects, seed=seed)
        assert result.ok, result
        duplicates += result.duplicates
    assert (duplicates == 0) is remembers


async def test_what_is_refused_for_good_is_left_not_lost() -> None:
    arrived: list[str] = []

    async def refuse_some(message: Message) -> None:
        if message.key == "key-1":
            raise MessageRejected("never", permanent=True)
        arrived.append(message.id)

    async def received() -> list[str]:
        return arrived

    result = await survive_async(fill(), refuse_some, received=received, seed=2)
    assert (result.lost, result.left, result.delivered) == ([], 12, 48)
    assert not result.ok


async def test_only_what_arrives_from_then_on_counts() -> None:
    publisher = Honest()
    publisher.arrived.append("long ago")
    assert (await survive_async(fill(), publisher, received=publisher.received, seed=1)).ok


# --- databases


def test_an_outbox_in_a_file_by_its_url(tmp_path: Path) -> None:
    url, publisher = f"sqlite:///{tmp_path}/app.db", Honest()
    asyncio.run(write(url))
    result = survive(url, publisher, received=publisher.received, seed=4)
    assert result.ok, result
    assert result.committed == 60


async def write(url: str) -> None:
    store = SqliteStore(url)
    await store.open()
    async with store.transaction() as connection:
        await Outbox().add_many_async(connection, backlog())
    await store.close()


@pytest.mark.parametrize(("server", "driver"), [("postgresql-15", "postgresql+asyncpg"), ("mariadb", "mysql+asyncmy")])
@pytest.mark.parametrize("claim", ["slots", "rows"])
async def test_an_outbox_on_a_server(server: str, driver: str, claim: str, empty_database: Any) -> None:
    url, publisher, outbox = empty_database(server), Honest(), Outbox()
    engine = create_async_engine(make_url(url).set(drivername=driver))
    await outbox.create_tables_async(engine)
    async with engine.begin() as connection:
        await outbox.add_many_async(connection, backlog())
    await engine.dispose()
    result = await survive_async(
        url,
        publisher,
        received=publisher.received,
        seed=5,
        relay=lambda store, publisher: Relay(store, publisher, lease_ttl="1s", batch_size=10, claim=claim),
    )
    assert (result.lost, result.phantom, result.left, result.delivered) == ([], [], 0, 60)
    if claim == "slots":
        assert result.ok
    assert len(result.faults) > 3
