"""A transaction that inserts early and commits late is delivered in its place, whatever passed it meanwhile."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from postroom import Message, Outbox
from postroom.message import slot_of
from postroom.ports import Range
from postroom.publishers.memory import MemoryPublisher
from postroom.relay.wiring import store_for
from tests.acceptance.servers.crowd import Crowd, in_thread, locked_work
from tests.acceptance.servers.database import TOPIC, Database
from tests.acceptance.servers.deliveries import commit_order, first_versions, ids, relay_running
from tests.acceptance.servers.fleet import Fleet
from tests.acceptance.servers.hands import ConnectionHand, Hand
from tests.waiting import eventually

KEYS = [f"order-{number}" for number in range(6)]
KEY = KEYS[0]
BEFORE_THE_SWEEP = 20.0
"""Seconds: the relay reads everything again every 30, which is a safety net and would hide a straggler that was
missed."""


def neighbours(key: str, count: int) -> list[str]:
    """Other keys of the same slot: their rows are read by the same cursor, behind the same mark."""
    found = (
        f"neighbour-{number}" for number in range(100_000) if slot_of(f"neighbour-{number}", "") == slot_of(key, "")
    )
    return [next(found) for _ in range(count)]


NEIGHBOURS = neighbours(KEY, 20)


@pytest.fixture
def publisher(database: Database) -> Iterator[MemoryPublisher]:
    database.create_aggregates(KEYS)
    publisher = MemoryPublisher()
    with relay_running(database, publisher, lease_ttl="2s", publish_timeout="500ms"):  # marks are written at renewals
        yield publisher


def add_many(database: Database, count: int, keys: list[str] = NEIGHBOURS) -> list[str]:
    """Others, in one transaction: of the same slot and of any other."""
    with database.connection() as connection:
        some = [Message(topic=TOPIC, payload={"version": 0}, key=keys[n % len(keys)]) for n in range(count)]
        rest = [Message(topic=TOPIC, payload={"version": 0}, key=f"other-{n}") for n in range(count)]
        added = Outbox().add_many(connection, [*some, *rest])
        connection.commit()
    return [message.id for message in added]


def let_pass(database: Database, publisher: MemoryPublisher, count: int = 50) -> None:
    """Later messages of other keys, delivered."""
    later = set(add_many(database, count))
    eventually(lambda: later <= set(ids(publisher)))


# --- one


def test_a_straggler_is_delivered_soon_after_its_commit_and_before_whoever_waited_for_its_lock(
    database: Database, publisher: MemoryPublisher
) -> None:
    passed = 0
    with ExitStack() as stack:
        stragglers = [stack.enter_context(ConnectionHand(database, Outbox())) for _ in KEYS]
        first = [hand.lock_and_add(key) for hand, key in zip(stragglers, KEYS, strict=True)]
        others = [in_thread(lambda key=key: commit_one(database, key)) for key in KEYS]
        eventually(lambda: database.waiting_for_a_lock() >= len(KEYS))
        deadline = time.monotonic() + 3
        while passed < 2000 or time.monotonic() < deadline:
            let_pass(database, publisher, 500)
            passed += 1000
        assert not set(ids(publisher)) & {message.id for message in first}
        delays = [commit_and_wait(hand, message, publisher) for hand, message in zip(stragglers, first, strict=True)]
        for thread in others:
            thread.join()
    eventually(lambda: len(publisher.messages) >= passed + 2 * len(KEYS), within=BEFORE_THE_SWEEP)
    assert first_versions(publisher.messages) == {key: [1, 2] for key in KEYS}
    assert statistics.median(delays) < 1


def commit_one(database: Database, key: str) -> None:
    with ConnectionHand(database, Outbox()) as hand:
        hand.lock_and_add(key)
        hand.commit()


def commit_and_wait(hand: Hand, message: Message, publisher: MemoryPublisher) -> float:
    began = time.monotonic()
    hand.commit()
    eventually(lambda: message.id in ids(publisher), within=BEFORE_THE_SWEEP)
    return time.monotonic() - began


# --- many


def test_many_overlapping_transactions_with_locked_keys_are_delivered_in_commit_order(
    database: Database, publisher: MemoryPublisher
) -> None:
    def bulk(hand: Hand, random: Random) -> None:
        for key in random.choices(NEIGHBOURS, k=20):
            hand.add(key)
        hand.commit()
        time.sleep(0.02)

    with Crowd(database, locked_work(KEYS, longest_hold=0.3), threads=8), Crowd(database, bulk, threads=1):
        eventually(lambda: sum(map(len, commit_order(database).values())) > 60, within=60)
    expected = commit_order(database)
    eventually(lambda: counted(publisher) >= sum(map(len, expected.values())), within=BEFORE_THE_SWEEP)
    assert first_versions(publisher.messages) == expected


def counted(publisher: MemoryPublisher) -> int:
    return sum(len(versions) for versions in first_versions(publisher.messages).values())


# --- when the slot changes its owner meanwhile


def test_a_straggler_keeps_its_place_when_another_relay_takes_over_its_slot_meanwhile(
    database: Database, tmp_path: Path
) -> None:
    """T1 stays open while its slot's first owner passes it and stops, and the second passes it, too."""
    database.create_aggregates(KEYS)
    with Fleet(database, tmp_path) as fleet, ConnectionHand(database, Outbox()) as straggler:
        first = fleet.start()
        fleet.eventually(lambda: fleet.owns_all(first))
        straggler.lock_and_add(KEY)
        waiting = in_thread(lambda: commit_one(database, KEY))
        published(fleet, add_many(database, 100))

        second = fleet.start()
        fleet.eventually_share(first, second)
        published(fleet, add_many(database, 100))
        first.stop()
        fleet.eventually(lambda: fleet.owns_all(second))
        published(fleet, add_many(database, 100))

        straggler.commit()
        waiting.join()
        eventually(lambda: fleet.first_versions() == {KEY: [1, 2]}, within=BEFORE_THE_SWEEP)
        assert {record.pid for record in fleet.records() if record.key == KEY} == {second.pid}


def published(fleet: Fleet, added: list[str]) -> None:
    wanted = set(added)
    eventually(lambda: wanted <= {record.id for record in fleet.records()})


def test_many_overlapping_transactions_keep_commit_order_while_relays_join_and_stop(
    database: Database, tmp_path: Path
) -> None:
    database.create_aggregates(KEYS)
    with Fleet(database, tmp_path) as fleet:
        first = fleet.start()
        with Crowd(database, locked_work(KEYS, longest_hold=0.3), threads=8):
            second = fleet.start()
            fleet.eventually_share(first, second)
            first.stop()
            fleet.eventually(lambda: fleet.owns_all(second))
            third = fleet.start()
            fleet.eventually_share(second, third)
        fleet.eventually_delivers_all()


# --- that never come


def test_a_rolled_back_straggler_delays_nothing(database: Database, publisher: MemoryPublisher) -> None:
    with ConnectionHand(database, Outbox()) as straggler:
        gone = straggler.lock_and_add(KEY)
        waiting = in_thread(lambda: commit_one(database, KEY))
        eventually(database.waiting_for_a_lock)
        let_pass(database, publisher)
        straggler.rollback()
        waiting.join()
    eventually(lambda: first_versions(publisher.messages) == {KEY: [1]}, within=BEFORE_THE_SWEEP)
    last = add_many(database, 1)
    eventually(lambda: set(last) <= set(ids(publisher)))
    eventually(lambda: database.mark_of(slot_of(KEY, "")) > position_of(publisher, KEY))
    assert gone.id not in ids(publisher)


def position_of(publisher: MemoryPublisher, key: str) -> int:
    return next(message.position for message in publisher.messages if message.key == key)


def test_what_a_savepoint_takes_back_is_never_delivered_and_the_rest_keeps_its_place(
    database: Database, publisher: MemoryPublisher
) -> None:
    with ConnectionHand(database, Outbox()) as straggler:
        straggler.lock(KEY)
        straggler.run("SAVEPOINT one")
        straggler.add(KEY, version=10)
        straggler.run("ROLLBACK TO SAVEPOINT one")
        straggler.add(KEY, version=1)
        straggler.run("SAVEPOINT two")
        straggler.add(KEY, version=20)
        straggler.run("ROLLBACK TO SAVEPOINT two")
        straggler.run("SAVEPOINT three")
        straggler.add(KEY, version=2)
        straggler.run("RELEASE SAVEPOINT three")
        let_pass(database, publisher)
        let_pass(database, publisher)
        straggler.run(f"UPDATE aggregates SET version = 2 WHERE name = '{KEY}'")
        waiting = in_thread(lambda: commit_one(database, KEY))
        eventually(database.waiting_for_a_lock)
        straggler.commit()
        waiting.join()
    eventually(lambda: counted(publisher) >= 3, within=BEFORE_THE_SWEEP)
    assert first_versions(publisher.messages) == {KEY: [1, 2, 3]}


# --- that wait for somebody else's decision


def test_a_prepared_transaction_is_delivered_in_its_place_once_it_is_committed(postgresql: Database) -> None:
    """Without a doorbell: PostgreSQL refuses to prepare a transaction that has rung it."""
    database, publisher = postgresql, MemoryPublisher()
    database.create_aggregates(KEYS)
    database.ask("DROP SEQUENCE postroom_bell")
    relay = relay_running(database, publisher, create_tables=False)
    with relay, ConnectionHand(database, Outbox(create_tables=False)) as straggler:
        straggler.lock_and_add(KEY)
        let_pass(database, publisher)
        straggler.run("PREPARE TRANSACTION 'straggler'")
        waiting = in_thread(lambda: commit_one(database, KEY))
        try:
            eventually(database.waiting_for_a_lock)
            let_pass(database, publisher)
        finally:
            database.ask("COMMIT PREPARED 'straggler'")
            waiting.join()
        eventually(lambda: counted(publisher) >= 2, within=BEFORE_THE_SWEEP)
        assert first_versions(publisher.messages) == {KEY: [1, 2]}


# --- who only reads


def test_a_held_read_snapshot_does_not_stop_the_mark(database: Database, publisher: MemoryPublisher) -> None:
    with ConnectionHand(database, Outbox()) as reader:
        reader.run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.run("START TRANSACTION" if not database.is_postgresql else "SELECT 1")
        reader.run("SELECT count(*) FROM postroom_outbox")
        for _ in range(3):
            let_pass(database, publisher)
        commit_one(database, KEY)
        eventually(lambda: first_versions(publisher.messages) == {KEY: [1]})
        position = position_of(publisher, KEY)
        eventually(lambda: database.mark_of(slot_of(KEY, "")) >= position)


# --- a reader that goes back


@pytest.mark.parametrize("server", ["mariadb"])  # where each row that is not committed is looked for
def test_a_straggler_is_read_after_the_rows_below_it_by_a_reader_that_has_gone_back(database: Database) -> None:
    """Whoever goes on from the highest position it was given would otherwise pass those between."""
    database.create_aggregates(KEYS)
    add_many(database, 5, [KEY])
    slot = slot_of(KEY, "")
    with ConnectionHand(database, Outbox()) as straggler:
        straggler.lock_and_add(KEY)
        add_many(database, 1, NEIGHBOURS[:1])

        async def go_back() -> list[int]:
            store = store_for(database.url, Outbox())
            await store.open(claim="slots")
            try:
                below = [message.position for message in (await store.fetch([Range(slot, 0, 5, 0)])).messages]
                horizon = 0
                async with asyncio.timeout(20):
                    while horizon <= below[4]:  # until the store knows of the straggler
                        horizon = (await store.fetch([Range(slot, 0, 100, 0)])).horizon
                straggler.commit()
                back = await store.fetch([Range(slot, 0, 2, horizon)])
                assert [message.position for message in back.messages] == below[:2]
                return [message.position for message in (await store.fetch([Range(slot, 0, 100, horizon)])).messages]
            finally:
                await store.close()

        there = asyncio.run(go_back())
    assert len(there) == 7
    assert there == sorted(there)
