"""The kit for users' tests: deliver now, look, move the time, fail."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from sqlalchemy import create_engine, make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from postroom import ConfigurationError, Message, MessageRejected, Never, Outbox, StoreUnavailable, Tasks
from postroom.stores.memory import MemoryStore
from postroom.testing import FakeClock, PostroomKit, RecordedMessage, TravelClock
from postroom.testing.kit import Witness
from tests.contract.connection_kinds import leave_transactions_to_sqlalchemy


@pytest.fixture
def kit() -> Iterator[PostroomKit]:
    with PostroomKit() as kit:
        yield kit


def add(kit: PostroomKit, topic: str = "orders", payload: Any = None, **options: Any) -> Message:
    with kit.transaction() as transaction:
        return kit.outbox.add(transaction, topic, payload or {"id": 1}, **options)


# --- delivering


def test_a_drain_delivers_into_a_list(kit: PostroomKit) -> None:
    added = add(kit, payload={"id": 7}, key="order-7", type="OrderPlaced")
    assert kit.published() == []
    report = kit.drain()
    assert (report.delivered, report.pending) == (1, 0)
    (published,) = kit.published()
    assert (published.id, published.topic, published.key, published.type) == (
        added.id,
        "orders",
        "order-7",
        "OrderPlaced",
    )
    assert (published.json(), published.payload) == ({"id": 7}, b'{"id":7}')


async def test_a_drain_can_be_awaited_or_not(kit: PostroomKit) -> None:
    add(kit)
    assert (await kit.drain_async()).delivered == 1
    add(kit)
    assert kit.drain().delivered == 1


def test_what_was_published_is_chosen_by_globs_and_key(kit: PostroomKit) -> None:
    add(kit, "orders.new", key="a", type="OrderPlaced")
    add(kit, "orders.old", key="b", type="OrderPaid")
    add(kit, "mail")
    kit.drain()

    def topics(**choice: str) -> list[str]:
        return sorted(message.topic for message in kit.published(**choice))

    assert topics() == ["mail", "orders.new", "orders.old"]
    assert topics(topic="orders.*") == ["orders.new", "orders.old"]
    assert topics(type="Order*") == ["orders.new", "orders.old"]
    assert topics(type="*Paid") == topics(key="b") == ["orders.old"]
    assert topics(topic="mail", key="a") == []


def test_a_rolled_back_transaction_delivers_nothing(kit: PostroomKit) -> None:
    with suppress(RuntimeError), kit.transaction() as transaction:
        kit.outbox.add(transaction, "orders", {})
        raise RuntimeError
    kit.assert_not_added()
    assert kit.drain().delivered == 0


def test_a_drain_that_comes_to_no_end_says_so(kit: PostroomKit) -> None:
    add(kit)
    store = kit.store
    assert isinstance(store, MemoryStore)
    for lease in store.tables.leases.values():
        lease.owner, lease.expires_at = "another", datetime.now(UTC) + timedelta(hours=1)
    with pytest.raises(TimeoutError, match="another relay"):
        kit.drain(timeout="200ms")


# --- what the destination answers


def test_a_refused_message_is_tried_again(kit: PostroomKit) -> None:
    add(kit)
    kit.fail_next()
    report = kit.drain()
    assert (report.retried, report.delivered) == (1, 1)
    assert kit.published()[0].attempt == 2


def test_failures_are_for_messages_that_match(kit: PostroomKit) -> None:
    add(kit, "orders", key="a", type="OrderPlaced")
    add(kit, "mail")
    kit.fail_next(2, topic="ord*", type="Order*", key="a")
    report = kit.drain()
    assert (report.retried, report.held, report.pending) == (2, 1, 1)
    assert [message.topic for message in kit.published()] == ["mail"]


def test_a_failure_can_be_any_error_or_its_class(kit: PostroomKit) -> None:
    add(kit)
    kit.fail_next(error=MessageRejected("never", permanent=True))
    assert kit.drain().dead == 1
    add(kit)
    kit.fail_next(error=ConnectionResetError)
    report = kit.drain()
    assert (report.retried, report.dead, report.pending) == (0, 0, 1)


def test_behind_a_refused_message_its_key_waits(kit: PostroomKit) -> None:
    for number in range(3):
        add(kit, key="a", payload={"number": number})
    kit.fail_next(2, key="a")
    assert kit.drain().delivered == 0
    kit.travel("1s")
    assert kit.drain().delivered == 3
    assert [message.json()["number"] for message in kit.published()] == [0, 1, 2]


def test_an_outage_costs_no_attempt_and_ends_when_told(kit: PostroomKit) -> None:
    add(kit, key="a")
    kit.destination_down()
    for _ in range(10):
        report = kit.drain()
        assert (report.retried, report.dead, report.pending) == (0, 0, 1)
    kit.destination_up()
    assert kit.drain().delivered == 1
    assert kit.published()[0].attempt == 1


def test_tasks_run_in_a_drain_and_count_as_added() -> None:
    outbox, ran = Outbox(), list[str]()
    tasks = Tasks(outbox)

    @tasks.task("remind")
    def remind(payload: str) -> None:
        ran.append(payload)

    with PostroomKit(outbox, tasks=tasks) as kit:
        with kit.transaction() as transaction:
            remind.schedule(transaction, "now")
            remind.schedule(transaction, "later", delay="1h")
        for expected in (["now"], ["now", "later"]):
            assert kit.drain().delivered == 1
            assert ran == expected
            assert len(kit.assert_added(count=2)) == 2
            kit.travel("1h")
        assert kit.published() == []


def test_observers_hear_of_everything() -> None:
    witness = Witness()
    with PostroomKit(observers=[witness]) as kit:
        added = add(kit)
        kit.drain()
    assert [message.id for message in witness.messages] == [added.id]


def test_settings_are_the_relays() -> None:
    with PostroomKit(retry=Never()) as kit:
        add(kit)
        kit.fail_next()
        assert kit.drain().dead == 1


# --- time


def test_a_delayed_message_is_due_after_travelling(kit: PostroomKit) -> None:
    add(kit, delay="5m")
    assert kit.drain().delivered == 0
    kit.travel("4m")
    assert kit.drain().delivered == 0
    kit.travel("1m")
    assert kit.drain().delivered == 1


def test_times_that_the_application_took_from_the_system_are_due_too(kit: PostroomKit) -> None:
    add(kit, deliver_at=datetime.now(UTC))
    assert kit.drain().delivered == 1
    add(kit, deliver_at=datetime.now(UTC) + timedelta(hours=1))
    assert kit.drain().delivered == 0
    kit.travel(timedelta(hours=1))
    assert kit.drain().delivered == 1


def test_what_is_added_after_travelling_is_delayed_from_then(kit: PostroomKit) -> None:
    kit.travel("1h")
    add(kit, delay="10m")
    assert kit.drain().delivered == 0
    kit.travel("10m")
    assert kit.drain().delivered == 1


def test_retries_follow_the_kits_time(kit: PostroomKit) -> None:
    add(kit, key="a")
    kit.fail_next(4)
    for wait in (1, 5, 30):
        assert kit.drain().delivered == 0
        assert kit.drain().retried == 0, "it is not time yet"
        kit.travel(wait)
    assert kit.drain().delivered == 1
    assert kit.published()[0].attempt == 5


def test_an_expired_message_is_dead(kit: PostroomKit) -> None:
    add(kit, expires_at=datetime.now(UTC) + timedelta(minutes=1))
    kit.travel("2m")
    assert kit.drain().dead == 1


def test_an_idempotency_key_is_free_after_its_window() -> None:
    with PostroomKit(Outbox(dedupe_window="1h")) as kit:
        assert [add(kit, idempotency_key="once").duplicate for _ in range(2)] == [False, True]
        kit.travel("1h")
        assert add(kit, idempotency_key="once").duplicate is False


def test_a_store_with_a_time_of_its_own_cannot_travel() -> None:
    with PostroomKit(store=MemoryStore()) as kit:
        add(kit)
        assert kit.drain().delivered == 1
        with pytest.raises(ConfigurationError, match="clock="):
            kit.travel("1s")


def test_a_store_whose_clock_is_given_can_travel() -> None:
    clock = FakeClock()
    with PostroomKit(store=MemoryStore(clock=clock), clock=clock) as kit:
        add(kit, delay="1m")
        kit.travel("1m")
        assert kit.drain().delivered == 1


class Racing(FakeClock):
    """A machine so slow that a minute passes whenever somebody asks for the time."""

    def now(self) -> datetime:
        self.advance(60)
        return super().now()


def test_time_stands_still_during_a_drain() -> None:
    with PostroomKit(clock=TravelClock(Racing())) as kit:
        add(kit, delay="30m")
        add(kit)
        assert kit.drain().delivered == 1
        kit.travel("30m")
        assert kit.drain().delivered == 1


def test_the_outbox_has_its_own_time_back_afterwards() -> None:
    outbox, clock = Outbox(), FakeClock()
    with PostroomKit(outbox) as kit:
        assert outbox.clock is kit.clock
    assert outbox.clock is None
    clocked = Outbox(clock=clock)
    with PostroomKit(clocked) as kit:
        assert kit.clock is clock
    assert clocked.clock is clock


def test_a_setting_that_cannot_be_leaves_the_outbox_alone() -> None:
    outbox = Outbox()
    with pytest.raises(ConfigurationError):
        PostroomKit(outbox, lease_ttl="never")
    assert outbox.clock is None


# --- looking


def test_what_was_added_is_found_before_and_after_delivery(kit: PostroomKit) -> None:
    add(kit, "orders", {"id": 1}, key="a", type="OrderPlaced")
    for _ in range(2):
        (found,) = kit.assert_added(topic="orders", type="Order*", key="a", payload={"id": 1}, count=1)
        assert isinstance(found, RecordedMessage)
        kit.drain()
    add(kit, "orders", {"id": 2}, delay="1h")
    kit.assert_added(topic="orders", count=2)
    kit.assert_not_added(topic="mail")
    assert [message.json()["id"] for message in kit.added()] == [1, 2]


def test_a_dead_message_was_added_too(kit: PostroomKit) -> None:
    add(kit, key="a")
    kit.fail_next(error=MessageRejected("no", permanent=True))
    kit.drain()
    kit.assert_added(key="a", count=1)


def test_a_message_that_was_delivered_twice_was_added_once(kit: PostroomKit) -> None:
    add(kit)
    kit.drain()
    kit.recorder.messages.append(kit.recorder.messages[0])
    assert len(kit.published()) == 2
    kit.assert_added(count=1)


@dataclass
class Order:
    id: int
    name: str


@pytest.mark.parametrize(
    ("added", "expected"),
    [
        ({"b": 1, "a": 2}, {"a": 2, "b": 1}),
        ({"id": 1, "at": "now"}, {"id": 1, "at": ANY}),
        (Order(1, "tea"), Order(1, "tea")),
        (Order(1, "tea"), {"id": 1, "name": "tea"}),
        (b"\xff\x00", b"\xff\x00"),
        (None, {"id": 1}),
    ],
)
def test_a_payload_is_compared_by_what_it_says(kit: PostroomKit, added: Any, expected: Any) -> None:
    add(kit, payload=added)
    kit.assert_added(payload=expected)
    kit.assert_not_added(payload={"id": "another"})
    kit.assert_not_added(payload=object())


def test_a_failure_lists_what_there_is(kit: PostroomKit) -> None:
    add(kit, "orders", {"id": 1}, key="order-1", type="OrderPlaced")
    kit.drain()
    add(kit, "mail", {"to": "you" * 50})
    with pytest.raises(AssertionError) as failure:
        kit.assert_added(topic="orders", type="OrderPaid", payload={"id": 1})
    text = f'{{"to":"{"you" * 50}"}}'[:79]
    assert str(failure.value).splitlines() == [
        "no message with topic='orders', type='OrderPaid', payload={'id': 1} was added; what was added:",
        "  state      topic   key      type         payload",
        '  delivered  orders  order-1  OrderPlaced  {"id":1}',
        f"  pending    mail    -        -            {text}…",
    ]


def test_a_failure_tells_a_wrong_number(kit: PostroomKit) -> None:
    add(kit)
    with pytest.raises(AssertionError, match="1 with topic='orders', where there should be 2; what was added:"):
        kit.assert_added(topic="orders", count=2)
    with pytest.raises(AssertionError, match="1 with anything, where there should be none; what"):
        kit.assert_not_added()


def test_where_nothing_was_added_a_failure_asks_about_the_commit(kit: PostroomKit) -> None:
    with pytest.raises(AssertionError, match="nothing was added at all: was the transaction committed"):
        kit.assert_added(topic="orders")


def test_a_failure_lists_twenty_messages_at_most(kit: PostroomKit) -> None:
    with kit.transaction() as transaction:
        kit.outbox.add_many(transaction, [Message(topic="orders", payload={}) for _ in range(23)])
    with pytest.raises(AssertionError, match="… and 3 more"):
        kit.assert_added(topic="mail")


# --- the application's own database


def test_an_engine_says_where_the_outbox_is(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/app.db")
    outbox = Outbox()
    with PostroomKit(outbox, engine) as kit:
        kit.assert_not_added()
        with Session(engine) as session, session.begin():
            outbox.add(session, "orders", {"id": 1}, key="a", delay="5m")
        kit.assert_added(topic="orders", payload={"id": 1})
        assert kit.drain().delivered == 0
        kit.travel("5m")
        assert kit.drain().delivered == 1
        with Session(engine) as session, session.begin():
            outbox.add(session, "orders", {"id": 2}, key="a", delay="1m")
        assert kit.drain().delivered == 0, "it is due a minute after the time travelled to"
        with pytest.raises(ConfigurationError, match="the application's own session"):
            kit.transaction()
    engine.dispose()


async def test_an_async_engine_in_an_async_test(tmp_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/app.db")
    outbox = Outbox()
    with PostroomKit(outbox, engine) as kit:
        async with AsyncSession(engine) as session, session.begin():
            outbox.add(session, "orders", {"id": 1})
        kit.assert_added(topic="orders")
        assert (await kit.drain_async()).delivered == 1
    await engine.dispose()


def test_a_url_and_a_plain_connection(tmp_path: Path) -> None:
    outbox = Outbox(order="strict")
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        with PostroomKit(outbox, f"sqlite:///{tmp_path}/app.db") as kit:
            with connection:
                outbox.add(connection, "orders", {"id": 1}, key="a", idempotency_key="once")
            assert kit.drain().delivered == 1
            kit.travel("8d")
            with connection:
                outbox.add(connection, "orders", {"id": 2}, key="a", idempotency_key="once")
            assert kit.drain().delivered == 1
            assert [message.sequence for message in kit.published()] == [1, 2]
        with connection:
            outbox.add(connection, "orders", {"id": 3}, key="a", idempotency_key="another")
        ((created,),) = connection.execute("SELECT created_at FROM postroom_outbox").fetchall()
    assert datetime.fromisoformat(created).replace(tzinfo=UTC) < datetime.now(UTC) + timedelta(hours=1)


@pytest.mark.parametrize("place", ["sqlite://", "sqlite:///:memory:", create_engine("sqlite://")])
def test_a_database_that_only_its_connection_sees_is_refused(place: Any) -> None:
    with pytest.raises(ConfigurationError, match="tmp_path"):
        PostroomKit(store=place)


@pytest.mark.parametrize(("server", "driver"), [("postgresql-15", "postgresql+psycopg"), ("mariadb", "mysql+pymysql")])
def test_a_database_server(server: str, driver: str, empty_database: Any) -> None:
    engine = create_engine(make_url(empty_database(server)).set(drivername=driver))
    outbox = Outbox()
    with PostroomKit(outbox, engine) as kit:
        kit.assert_not_added()
        outbox.create_tables(engine)
        with Session(engine) as session, session.begin():
            outbox.add(session, "orders", {"id": 1}, key="a", delay="5m")
            outbox.add(session, "orders", {"id": 2}, key="b")
        kit.assert_added(topic="orders", count=2)
        assert kit.drain().delivered == 1
        kit.travel("5m")
        assert kit.drain().delivered == 1
        kit.assert_added(payload={"id": 1}, count=1)
    engine.dispose()


def test_a_transaction_that_is_still_open_is_named_as_the_likely_reason(tmp_path: Path) -> None:
    engine, outbox = create_engine(f"sqlite:///{tmp_path}/app.db"), Outbox()
    outbox.create_tables(engine)
    with PostroomKit(outbox, engine) as kit, engine.begin() as connection:
        connection.execute(outbox.tables.meta.delete())
        for look in (kit.assert_added, kit.drain):
            with pytest.raises(StoreUnavailable, match="locked") as failure:
                look()
            assert "transaction of the test still open" in failure.value.__notes__[0]
    engine.dispose()


def test_a_test_that_rolls_everything_back_looks_through_its_own_session(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/app.db")
    leave_transactions_to_sqlalchemy(engine)
    outbox = Outbox()
    with PostroomKit(outbox, engine) as kit, engine.connect() as connection:
        connection.begin()
        session = Session(connection, join_transaction_mode="create_savepoint")
        kit.assert_not_added(within=session)
        outbox.add(session, "orders", {"id": 1}, key="a", type="OrderPlaced")
        outbox.add(session, "mail", {"id": 2}, delay="1d")
        session.commit()
        for within in (session, connection):
            (found,) = kit.assert_added(topic="ord*", payload={"id": 1}, count=1, within=within)
            assert (found.key, found.type) == ("a", "OrderPlaced")
            kit.assert_added(count=2, within=within)
        session.close()
        connection.rollback()
        kit.assert_not_added()
    engine.dispose()


# --- clocks


def test_a_travel_clock_runs_and_can_be_moved_and_stopped() -> None:
    system = FakeClock()
    clock = TravelClock(system)
    start = clock.now()
    system.advance(1)
    clock.advance(60)
    assert (clock.now() - start, clock.monotonic()) == (timedelta(seconds=61), 61)
    with clock.standing_still():
        system.advance(5)
        assert clock.monotonic() == 61
        clock.advance(10)
        with clock.standing_still():
            assert (clock.now() - start, clock.monotonic()) == (timedelta(seconds=71), 71)
    assert clock.monotonic() == 76


def test_a_recorded_message_is_read_as_json() -> None:
    message = RecordedMessage.of(Message(topic="orders", payload=json.dumps({"id": 1}).encode(), key="a", attempt=3))
    assert (message.json(), message.key, message.attempt) == ({"id": 1}, "a", 3)
