"""What a relay does, seen from outside: over the memory store, and over SQLite where processes or files matter."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from postroom import (
    ConfigurationError,
    DestinationUnavailable,
    InvalidMessage,
    Message,
    MessageDead,
    MessageRejected,
    Outbox,
    Relay,
    RelayError,
    SchemaMismatch,
    StoreUnavailable,
    events,
)
from postroom.ports import Batch, Beat, Features, Leases, Query
from postroom.publishers.memory import MemoryPublisher
from postroom.stores.memory import MemoryStore
from postroom.stores.sqlite import SqliteStore


class Diary:
    """An observer that keeps everything."""

    def __init__(self) -> None:
        self.events: list[events.Event] = []

    def notice(self, event: events.Event) -> None:
        self.events.append(event)

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


class Shop:
    """A memory store, an outbox and a list of what arrived."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.outbox = Outbox()
        self.arrived: list[Message] = []
        self.diary = Diary()

    def add(self, topic: str = "orders", key: str | None = None, payload: Any = None, **options: Any) -> Message:
        with self.store.begin() as transaction:
            return self.outbox.add(transaction, topic, payload or {}, key=key, **options)

    def relay(self, publisher: Any = None, **options: Any) -> Relay:
        options.setdefault("observers", [self.diary])
        return Relay(self.store, publisher or self.arrived.append, outbox=self.outbox, **options)

    async def state_of(self, message: Message) -> str | None:
        entry = await self.store.entry(message.id)
        return entry and entry.state


@pytest.fixture
def shop() -> Shop:
    return Shop()


async def eventually(condition: Callable[[], bool], within: float = 20.0) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.005)


# --- draining


async def test_a_drain_delivers_what_is_due_and_reports_it(shop: Shop) -> None:
    ids = [shop.add(key=f"k{n}").id for n in range(5)]
    report = await shop.relay().drain()
    assert (report.delivered, report.pending, report.held, report.dead, report.retried) == (5, 0, 0, 0, 0)
    assert sorted(message.id for message in shop.arrived) == sorted(ids)


async def test_a_delivered_message_has_all_that_was_said(shop: Shop) -> None:
    shop.add("orders", "k", {"n": 1}, type="OrderPlaced", headers={"tenant": "a"})
    await shop.relay().drain()
    [message] = shop.arrived
    assert (message.topic, message.key, message.type, message.payload) == ("orders", "k", "OrderPlaced", b'{"n":1}')
    assert message.headers == {"tenant": "a"}
    assert (message.attempt, message.sequence) == (1, None)
    assert message.wire_headers()["postroom-id"] == message.id


async def test_a_relay_can_drain_again(shop: Shop) -> None:
    relay = shop.relay()
    shop.add()
    await relay.drain()
    shop.add()
    assert (await relay.drain()).delivered == 1


async def test_one_key_is_delivered_in_order_by_a_publisher_that_is_slow_at_random(shop: Shop) -> None:
    sent = [shop.add(key=f"k{n % 3}", payload={"n": n}).id for n in range(60)]

    async def publish(message: Message) -> None:
        await asyncio.sleep(hash(message.id) % 3 / 1000)
        shop.arrived.append(message)

    await shop.relay(publish).drain()
    for key in ("k0", "k1", "k2"):
        ids = [message.id for message in shop.arrived if message.key == key]
        assert ids == [id for id in sent if id in set(ids)]


async def test_the_strict_sequence_travels_with_the_message(shop: Shop) -> None:
    shop.outbox = Outbox(order="strict")
    for _ in range(3):
        shop.add(key="k")
    await shop.relay().drain()
    assert [message.sequence for message in shop.arrived] == [1, 2, 3]
    assert shop.arrived[2].wire_headers()["postroom-sequence"] == "3"


# --- failures of messages


async def test_a_held_key_delays_only_itself(shop: Shop) -> None:
    bad, behind, other = shop.add(key="bad"), shop.add(key="bad"), shop.add(key="good")

    def publish(message: Message) -> None:
        if message.id == bad.id:
            raise MessageRejected("no")
        shop.arrived.append(message)

    report = await shop.relay(publish, retry="steps 0s 1h").drain()
    assert [message.id for message in shop.arrived] == [other.id]
    assert (report.delivered, report.retried, report.held, report.pending) == (1, 2, 1, 2)
    assert await shop.state_of(bad) == "failed"
    assert await shop.state_of(behind) == "pending"


async def test_a_refused_message_is_tried_again_and_then_goes_before_those_behind_it(shop: Shop) -> None:
    first, second = shop.add(key="k"), shop.add(key="k")
    attempts: list[int] = []

    def publish(message: Message) -> None:
        if message.id == first.id:
            attempts.append(message.attempt)
            if message.attempt < 3:
                raise ValueError("not yet")
        shop.arrived.append(message)

    await shop.relay(publish, retry="immediate").drain()
    assert attempts == [1, 2, 3]
    assert [message.id for message in shop.arrived] == [first.id, second.id]


@pytest.mark.parametrize(("on_dead", "arrives"), [("block", False), ("continue", True)])
async def test_a_dead_message_holds_its_key_or_lets_it_go_on(shop: Shop, on_dead: str, arrives: bool) -> None:
    bad, behind = shop.add(key="k"), shop.add(key="k")

    def publish(message: Message) -> None:
        if message.id == bad.id:
            raise MessageRejected("never", permanent=True)
        shop.arrived.append(message)

    report = await shop.relay(publish, on_dead=on_dead).drain()
    assert report.dead == 1
    assert await shop.state_of(bad) == "dead"
    assert (behind.id in [message.id for message in shop.arrived]) is arrives


async def test_a_revived_message_keeps_its_place(shop: Shop) -> None:
    bad, behind = shop.add(key="k"), shop.add(key="k")
    broken = True

    def publish(message: Message) -> None:
        if broken and message.id == bad.id:
            raise MessageRejected("no", permanent=True)
        shop.arrived.append(message)

    relay = shop.relay(publish)
    await relay.drain()
    broken = False
    assert await shop.store.revive([bad.id]) == 1
    await relay.drain()
    assert [message.id for message in shop.arrived] == [bad.id, behind.id]


async def test_a_discarded_message_lets_its_key_go_on(shop: Shop) -> None:
    bad, behind = shop.add(key="k"), shop.add(key="k")

    def publish(message: Message) -> None:
        if message.id == bad.id:
            raise MessageRejected("no", permanent=True)
        shop.arrived.append(message)

    relay = shop.relay(publish)
    await relay.drain()
    await shop.store.discard([bad.id])
    await relay.drain()
    assert [message.id for message in shop.arrived] == [behind.id]
    assert await shop.state_of(bad) == "discarded"


async def test_dead_messages_try_again_by_themselves_after_a_time(shop: Shop) -> None:
    bad = shop.add(key="k")
    attempts = 0

    def publish(message: Message) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise MessageRejected("no", permanent=True)

    async with shop.relay(publish, revive_after="100ms") as relay:
        with pytest.raises(MessageDead):
            await relay.delivered(bad.id, timeout=20)
        await eventually(lambda: attempts == 2)


async def test_a_publisher_may_raise_anything_at_all(shop: Shop) -> None:
    class Strange(BaseException):
        pass

    message = shop.add(key="k")
    errors: list[BaseException] = [Strange("odd"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()]

    async def publish(message: Message) -> None:
        if errors:
            raise errors.pop()

    report = await shop.relay(publish, retry="immediate").drain()
    assert report.delivered == 1
    assert await shop.state_of(message) is None


async def test_a_publisher_that_answers_for_too_few_messages_fails_those(shop: Shop) -> None:
    class Forgetful:
        features = Features(ordered=True)

        async def publish(self, batch: Batch) -> None:
            batch.answer(batch.messages[0])

        async def close(self) -> None: ...

    shop.add(key="a")
    shop.add(key="b")
    report = await shop.relay(Forgetful(), retry="steps 1h").drain()
    assert (report.delivered, report.retried) == (1, 1)
    assert "did not say" in shop.diary.of(events.Retried)[0].error


# --- failures of destinations


async def test_an_outage_costs_no_attempts_and_is_over_by_itself(shop: Shop) -> None:
    down = True
    attempts: set[int] = set()

    def publish(message: Message) -> None:
        attempts.add(message.attempt)
        if down:
            raise ConnectionError("refused")
        shop.arrived.append(message)

    for number in range(20):
        shop.add(key=f"k{number}")
    relay = shop.relay(publish, breaker_initial="5ms", breaker_cap="10ms")
    async with relay:
        await eventually(lambda: bool(shop.diary.of(events.BreakerOpened)))
        await asyncio.sleep(0.2)
        down = False
        await eventually(lambda: len(shop.arrived) == 20)
    assert attempts == {1}
    assert not shop.diary.of(events.Died)
    assert shop.diary.of(events.BreakerClosed)


async def test_a_broken_destination_delays_only_itself(shop: Shop) -> None:
    def broken(message: Message) -> None:
        raise DestinationUnavailable("down")

    for number in range(30):
        shop.add("hooks.a", f"k{number}")
        shop.add("orders", f"k{number}")
    report = await shop.relay({"hooks.*": broken, "*": shop.arrived.append}, batch_size=4).drain()
    assert {message.topic for message in shop.arrived} == {"orders"}
    assert (report.delivered, report.pending, report.dead) == (30, 30, 0)


async def test_a_poison_message_that_looks_like_an_outage_is_charged_and_dies(shop: Shop) -> None:
    poison = shop.add(key="poison")
    for number in range(40):
        shop.add(key=f"k{number}")

    def publish(message: Message) -> None:
        if message.id == poison.id:
            raise ConnectionError("it crashes the broker's parser")
        shop.arrived.append(message)

    async with shop.relay(publish, breaker_initial="2ms", breaker_cap="4ms", retry="steps 0s 0s") as relay:
        for number in range(4000):
            if shop.diary.of(events.Died):
                break
            shop.add(key=f"more{number}")
            await asyncio.sleep(0.005)
        with pytest.raises(MessageDead):
            await relay.delivered(poison.id, timeout=20)
    assert len(shop.arrived) >= 40
    assert [event.message.id for event in shop.diary.of(events.Died)] == [poison.id]


async def test_an_outage_that_looks_like_bad_messages_kills_none_of_them(shop: Shop) -> None:
    misjudged = True

    def publish(message: Message) -> None:
        if misjudged:
            raise MessageRejected("500 in disguise")
        shop.arrived.append(message)

    for number in range(12):
        shop.add(key=f"k{number}" if number % 2 else None)
    async with shop.relay(publish, breaker_initial="5ms", breaker_cap="10ms", trip_after=5, retry="never"):
        await eventually(lambda: bool(shop.diary.of(events.Refunded)))
        misjudged = False
        await eventually(lambda: len(shop.arrived) == 12)
    status = await shop.store.status()
    assert status.counts.get("dead", 0) == 0


async def test_messages_that_are_refused_for_good_are_dead_however_many_there_are(shop: Shop) -> None:
    bad = {shop.add(key=f"bad{number}").id for number in range(30)}

    def publish(message: Message) -> None:
        if message.id in bad:
            raise MessageRejected("never", permanent=True)
        shop.arrived.append(message)

    good = shop.add(key="good")
    report = await shop.relay(publish).drain()
    assert (report.dead, report.delivered) == (30, 1)
    assert [message.id for message in shop.arrived] == [good.id]


async def test_a_slow_key_with_a_backlog_does_not_stop_the_others(shop: Shop) -> None:
    for _ in range(400):
        shop.add(key="slow")

    async def publish(message: Message) -> None:
        if message.key == "slow":
            await asyncio.sleep(0.2)
        else:
            shop.arrived.append(message)

    async with shop.relay(publish, batch_size=20):
        await asyncio.sleep(0.2)
        others = {shop.add(key=f"k{number}").id for number in range(100)}
        await eventually(lambda: {message.id for message in shop.arrived} == others, within=30)


async def test_pausing_and_resuming_during_an_outage_leaves_nothing_stuck(shop: Shop) -> None:
    down = True

    def publish(message: Message) -> None:
        if down:
            raise ConnectionError("down")
        shop.arrived.append(message)

    async with shop.relay(publish, breaker_initial="5ms", breaker_cap="20ms", idle_interval="50ms") as relay:
        shop.add(key="k")
        await eventually(lambda: bool(shop.diary.of(events.BreakerOpened)))
        relay.pause("*")
        await asyncio.sleep(0.1)
        relay.resume("*")
        down = False
        await eventually(lambda: len(shop.arrived) == 1)


@pytest.mark.parametrize("error", [GeneratorExit(), asyncio.CancelledError(), type("Odd", (BaseException,), {})("odd")])
async def test_whatever_a_publisher_object_raises_is_a_failed_attempt(shop: Shop, error: BaseException) -> None:
    class Odd:
        features = Features(ordered=True)
        calls = 0

        async def publish(self, batch: Batch) -> None:
            self.calls += 1
            raise error

        async def close(self) -> None: ...

    odd = Odd()
    shop.add(key="k")
    report = await shop.relay(odd, retry="steps 0s 1h").drain()
    assert (odd.calls, report.retried, report.held) == (2, 2, 1)


async def test_a_slow_publisher_is_timed_out_as_a_destination_failure(shop: Shop) -> None:
    async def publish(message: Message) -> None:
        await asyncio.sleep(60)

    message = shop.add(key="k")
    report = await shop.relay(publish, lease_ttl=2, publish_timeout="50ms").drain()
    assert (report.delivered, report.pending, report.dead) == (0, 1, 0)
    assert await shop.state_of(message) == "pending"
    assert "50" in shop.diary.of(events.BreakerOpened)[0].error or shop.diary.of(events.BreakerOpened)[0].error


async def test_a_topic_without_a_route_stays_pending(shop: Shop) -> None:
    shop.add("mail", "k")
    shop.add("orders", "k")
    report = await shop.relay({"orders": shop.arrived.append}).drain()
    assert (report.delivered, report.pending) == (1, 1)


async def test_the_rate_can_be_capped(shop: Shop) -> None:
    for number in range(30):
        shop.add(key=f"k{number}")
    async with shop.relay(max_rate=50):
        started = time.monotonic()
        await eventually(lambda: len(shop.arrived) == 30)
        assert time.monotonic() - started > 0.3  # 30 at 50 a second, less what may burst


async def test_a_drain_waits_until_the_rate_allows_the_rest(shop: Shop) -> None:
    for number in range(10):
        shop.add(key=f"k{number}")
    report = await shop.relay(max_rate=50).drain()
    assert (report.delivered, report.pending) == (10, 0)


async def test_a_drain_waits_for_a_renewal_if_the_lease_is_too_short_to_start_the_rest(shop: Shop) -> None:
    for _ in range(60):
        shop.add(key="k")

    async def slow(message: Message) -> None:
        await asyncio.sleep(0.01)

    report = await shop.relay(slow, lease_ttl=1).drain()
    assert (report.delivered, report.pending) == (60, 0)


# --- time


async def test_a_delayed_message_waits_for_its_time_and_blocks_nothing(shop: Shop) -> None:
    late = shop.add(key="k", delay="1h")
    now = shop.add(key="k")
    report = await shop.relay().drain()
    assert [message.id for message in shop.arrived] == [now.id]
    assert report.pending == 1
    soon = shop.add(key="k", delay="50ms")
    async with shop.relay():
        await eventually(lambda: len(shop.arrived) == 2)
    assert shop.arrived[1].id == soon.id
    assert await shop.state_of(late) == "later"


async def test_an_expired_message_is_dead_and_never_sent_nor_holds_its_key(shop: Shop) -> None:
    expired = shop.add(key="k", expires_at=datetime.now(UTC) - timedelta(seconds=1))
    behind = shop.add(key="k")
    report = await shop.relay().drain()
    assert [message.id for message in shop.arrived] == [behind.id]
    assert (report.dead, report.held) == (1, 0)
    [entry] = await shop.store.entries(Query(state="dead"))
    assert (entry.message.id, entry.reason) == (expired.id, "expired")


async def test_of_several_messages_only_the_latest_is_sent(shop: Shop) -> None:
    prices = [shop.add("prices", "eur", {"n": n}) for n in range(700)]
    other = shop.add("orders", "eur")
    report = await shop.relay(latest_only=["prices"]).drain()
    assert {message.id for message in shop.arrived} == {prices[-1].id, other.id}
    assert report.superseded == 699
    assert await shop.state_of(prices[0]) == "superseded"


async def test_a_dense_sequence_has_no_gaps_whatever_is_asked_for(shop: Shop) -> None:
    shop.outbox = Outbox(order="strict")
    for _ in range(3):
        shop.add("prices", "eur")
    with pytest.raises(InvalidMessage, match="expires_at"):
        shop.add("prices", "eur", expires_at=datetime.now(UTC))
    await shop.relay(latest_only=["prices"], on_dead="continue").drain()
    assert [message.sequence for message in shop.arrived] == [1, 2, 3]


async def test_one_bulk_import_does_not_delay_every_other_key(shop: Shop) -> None:
    for _ in range(300):
        shop.add("bulk", "one-key")
    late = shop.add("orders", "another-key")
    order: list[str] = []

    def publish(message: Message) -> None:
        order.append(message.id)

    await shop.relay(publish, batch_size=20).drain()
    assert order.index(late.id) < 60


# --- the archive


async def test_delivered_messages_are_kept_for_the_retention_and_can_be_replayed(shop: Shop) -> None:
    message = shop.add(key="k")
    relay = shop.relay(retention="1h")
    await relay.drain()
    assert await shop.state_of(message) == "delivered"
    await shop.store.replay([message.id], new_id=False)
    await relay.drain()
    assert [(m.id, m.replays) for m in shop.arrived] == [(message.id, 0), (message.id, 1)]
    assert shop.arrived[1].dedupe_id != message.id


async def test_only_the_owner_of_slot_0_cleans_and_it_keeps_what_it_was_not_told_to_delete(shop: Shop) -> None:
    kept = shop.add(key="k")
    await shop.relay(retention="1h").drain()
    async with shop.relay(lease_ttl=2) as one, shop.relay(lease_ttl=2) as two:
        await eventually(lambda: len(owned(one)) == len(owned(two)) == 32)
        shop.diary.events.clear()
        for relay in (one, two):
            assert relay._session is not None
            await relay._session.clean()
        assert len(shop.diary.of(events.Cleaned)) == 1
    assert await shop.state_of(kept) == "delivered"


# --- running


async def test_a_running_relay_is_woken_by_a_commit(shop: Shop) -> None:
    async with shop.relay(poll_interval="5m", idle_interval="5m") as relay:
        message = shop.add(key="k")
        await relay.delivered(message, timeout=20)
    assert [m.id for m in shop.arrived] == [message.id]


async def test_waiting_for_a_delivery_works_after_the_fact_and_times_out(shop: Shop) -> None:
    message = shop.add(key="k")
    async with shop.relay(idle_interval="20ms") as relay:
        await eventually(lambda: bool(shop.arrived))
        await relay.delivered(message.id, timeout=20)
        with pytest.raises(TimeoutError):
            await relay.delivered("01000000-0000-7000-8000-000000000000", timeout=0.1)
    with pytest.raises(RelayError):
        await relay.delivered(message.id)


async def test_who_waits_for_a_delivery_is_told_when_the_relay_stops(shop: Shop) -> None:
    async with shop.relay() as relay:
        relay.pause("*")
        waiting = asyncio.create_task(relay.delivered(shop.add(key="k").id))
        await asyncio.sleep(0)
    with pytest.raises(RelayError, match="has stopped"):
        await waiting


async def test_paused_topics_wait_and_others_go_on(shop: Shop) -> None:
    async with shop.relay() as relay:
        relay.pause("orders.*")
        held = [shop.add("orders.eu", f"k{n}") for n in range(10)]
        await relay.delivered(shop.add("mail", "k").id, timeout=20)
        assert {message.topic for message in shop.arrived} == {"mail"}
        relay.resume("orders.*")
        await eventually(lambda: len(shop.arrived) == 11)
    assert {message.id for message in shop.arrived} >= {message.id for message in held}


async def test_stopping_finishes_what_is_in_flight_and_gives_the_leases_back(shop: Shop) -> None:
    flying = asyncio.Event()

    async def publish(message: Message) -> None:
        flying.set()
        await asyncio.sleep(0.1)
        shop.arrived.append(message)

    shop.add(key="k")
    async with shop.relay(publish):
        await flying.wait()
    assert len(shop.arrived) == 1
    status = await shop.store.status()
    assert (status.slots_owned, status.counts.get("pending", 0)) == (0, 0)
    assert shop.diary.of(events.Stopped)[0].clean


async def test_what_is_not_over_in_time_keeps_its_lease_until_it_expires(shop: Shop) -> None:
    flying = asyncio.Event()

    async def publish(message: Message) -> None:
        flying.set()
        await asyncio.sleep(60)

    message = shop.add(key="k")
    async with shop.relay(publish, stop_timeout="50ms"):
        await flying.wait()
    assert await shop.state_of(message) == "pending"
    assert not shop.diary.of(events.Stopped)[0].clean


async def test_asking_to_stop_twice_does_not_wait_for_what_is_in_flight(shop: Shop) -> None:
    flying = asyncio.Event()

    async def publish(message: Message) -> None:
        flying.set()
        await asyncio.sleep(60)

    shop.add(key="k")
    relay = shop.relay(publish, stop_timeout="1m", lease_ttl="2m", publish_timeout="1m")
    running = asyncio.create_task(relay.run())
    await flying.wait()
    relay.stop()
    await asyncio.sleep(0.05)
    assert not running.done()
    relay.stop()
    async with asyncio.timeout(10):
        await running
    assert not shop.diary.of(events.Stopped)[0].clean


async def test_a_store_that_its_maker_opened_stays_open(tmp_path: Path) -> None:
    store = SqliteStore("sqlite://")
    await store.open()
    outbox = Outbox()
    async with store.transaction() as connection:
        await outbox.add_async(connection, "orders", {}, key="k")

    def broken(message: Message) -> None:
        raise ConnectionError("down")

    for _ in range(2):
        report = await Relay(store, broken, outbox=outbox).drain()
        assert report.pending == 1
    await store.close()


async def test_a_relay_that_is_cancelled_settles_what_was_answered_and_gives_its_leases_back(shop: Shop) -> None:
    for number in range(5):
        shop.add(key=f"k{number}")
    relay = shop.relay()
    running = asyncio.create_task(relay.run())
    await eventually(lambda: len(shop.arrived) == 5)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    status = await shop.store.status()
    assert (status.slots_owned, status.counts.get("pending", 0)) == (0, 0)


async def test_a_delivery_can_be_awaited_from_another_loop(shop: Shop) -> None:
    relay = shop.relay(idle_interval="5m")
    await asyncio.to_thread(relay.start)
    try:
        ids = [shop.add(key=f"k{number}").id for number in range(20)]
        await asyncio.gather(*(relay.delivered(id, timeout=20) for id in ids))
    finally:
        await asyncio.to_thread(relay.stop)


def test_a_relay_runs_in_a_thread_of_its_own(shop: Shop) -> None:
    relay = shop.relay()
    relay.start()
    try:
        with pytest.raises(RelayError):
            relay.start()
        shop.add(key="k")
        deadline = time.monotonic() + 20
        while not shop.arrived and time.monotonic() < deadline:
            time.sleep(0.005)
    finally:
        relay.stop()
    assert len(shop.arrived) == 1
    assert "postroom-default" not in [thread.name for thread in threading.enumerate()]


def test_a_relay_that_cannot_start_in_its_thread_says_why(tmp_path: Path) -> None:
    relay = Relay(f"sqlite:///{tmp_path}/app.db", "memory:", create_tables=False)
    with pytest.raises(Exception, match="postroom init"):
        relay.start()


def test_a_relay_that_could_not_start_in_its_thread_can_be_started_again(tmp_path: Path) -> None:
    started = threading.Event()
    engine = create_engine(f"sqlite:///{tmp_path}/app.db")
    relay = Relay(str(engine.url), lambda message: started.set(), create_tables=False)
    with pytest.raises(Exception, match="postroom init"):
        relay.start()
    Outbox().create_tables(engine)
    relay.start()
    with engine.begin() as connection:
        Outbox().add(connection, "orders", {})
    assert started.wait(30)
    relay.stop()
    engine.dispose()


async def test_two_relays_share_the_slots_and_a_leader_has_them_all(shop: Shop) -> None:
    async with shop.relay(lease_ttl=2) as one:
        async with shop.relay(lease_ttl=2) as two:
            await eventually(lambda: len(owned(one)) == len(owned(two)) == 32)
        await eventually(lambda: len(owned(one)) == 64)


async def test_with_a_leader_the_others_stand_by_and_take_over(shop: Shop) -> None:
    async with shop.relay(claim="leader", lease_ttl=2) as one:
        await eventually(lambda: len(owned(one)) == 64)
        async with shop.relay(claim="leader", lease_ttl=2) as two:
            await asyncio.sleep(0.1)
            assert not owned(two)
            await one.__aexit__(None, None, None)
            await eventually(lambda: len(owned(two)) == 64)


async def test_relays_must_agree_on_how_they_claim(shop: Shop) -> None:
    await shop.relay(claim="leader").drain()
    with pytest.raises(ConfigurationError, match="leader"):
        await shop.relay(claim="slots").drain()


@pytest.mark.parametrize("store", ["memory:", "sqlite:///app.db"])
def test_a_store_without_row_locks_refuses_to_claim_rows_and_says_what_to_do(store: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"claim='rows' needs row locks, which .* does not have.*'slots'"):
        Relay(store, print, claim="rows")


async def test_a_disabled_relay_delivers_nothing(shop: Shop) -> None:
    shop.add(key="k")
    report = await shop.relay(enabled=False).drain()
    assert (report.delivered, report.pending) == (0, 1)


async def test_several_outboxes_in_one_process_do_not_mix(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/app.db"
    connection = sqlite3.connect(tmp_path / "app.db")
    orders, billing = Outbox("orders"), Outbox("billing")
    orders.add(connection, "a", {})
    billing.add(connection, "b", {})
    connection.commit()
    connection.close()
    publishers = {outbox.name: MemoryPublisher() for outbox in (orders, billing)}
    for outbox in (orders, billing):
        await Relay(url, publishers[outbox.name], outbox=outbox).drain()
    assert [message.topic for message in publishers["orders"].messages] == ["a"]
    assert [message.topic for message in publishers["billing"].messages] == ["b"]


async def test_observers_hear_everything_and_cannot_break_the_relay(shop: Shop) -> None:
    class Broken:
        def notice(self, event: events.Event) -> None:
            raise RuntimeError("observer")

    shop.add(key="k")
    report = await shop.relay(observers=[Broken(), shop.diary]).drain()
    assert report.delivered == 1
    kinds = {type(event) for event in shop.diary.events}
    assert {events.Started, events.LeasesTaken, events.Fetched, events.Published, events.Delivered} <= kinds


# --- the database


async def test_a_database_that_goes_away_is_waited_for(shop: Shop) -> None:
    class Flaky(MemoryStore):
        gone = False

        async def fetch(self, ranges: Any, limit: int | None = None) -> Any:
            self._check()
            return await super().fetch(ranges, limit)

        async def settle(self, settlement: Any) -> Any:
            self._check()
            return await super().settle(settlement)

        def _check(self) -> None:
            if self.gone:
                from postroom import StoreUnavailable

                raise StoreUnavailable("gone")

    shop.store = Flaky()
    async with shop.relay(idle_interval="10ms"):
        shop.store.gone = True
        shop.add(key="k")
        await eventually(lambda: bool(shop.diary.of(events.StoreDown)))
        shop.store.gone = False
        await eventually(lambda: len(shop.arrived) == 1)
        await eventually(lambda: bool(shop.diary.of(events.StoreUp)))
    assert len(shop.diary.of(events.StoreDown)) <= 2


async def test_each_kind_of_trouble_with_the_database_is_told_once(shop: Shop) -> None:
    """The first may only be a symptom."""
    async with shop.relay() as relay:
        session = relay._session
        assert session is not None
        for error in (StoreUnavailable("slow"), SchemaMismatch("too new"), StoreUnavailable("still slow")):
            session._down(error)
    told = [event.error for event in shop.diary.of(events.StoreDown)]
    assert told == ["StoreUnavailable: slow", "SchemaMismatch: too new"]


async def test_a_drain_waits_for_a_database_that_is_busy_and_sends_nothing_twice(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "app.db", isolation_level=None)
    outbox = Outbox()
    connection.execute("BEGIN")
    outbox.add_many(connection, [Message(topic="t", payload=b"", key=f"k{number}") for number in range(50)])
    connection.execute("COMMIT")
    publisher = MemoryPublisher()
    lock = threading.Timer(3.0, lambda: None)

    class Slow:
        features = publisher.features

        async def publish(self, batch: Batch) -> None:
            if not lock.is_alive():
                connection.execute("BEGIN IMMEDIATE")  # and the relay wants to settle
                asyncio.get_running_loop().call_later(3.0, connection.execute, "COMMIT")
            await publisher.publish(batch)

        async def close(self) -> None: ...

    report = await Relay(f"sqlite:///{tmp_path}/app.db", Slow(), outbox=outbox).drain()
    connection.close()
    assert (report.delivered, report.pending, publisher.count) == (50, 0, 50)


async def test_an_application_may_block_the_loop_that_the_relay_runs_on(tmp_path: Path) -> None:
    """The relay never holds the database's lock while it waits for the loop, so nobody waits for himself."""
    outbox, publisher = Outbox(), MemoryPublisher()
    connection = sqlite3.connect(tmp_path / "app.db", timeout=1)
    async with Relay(f"sqlite:///{tmp_path}/app.db", publisher, outbox=outbox, retention="1h"):
        for number in range(100):
            outbox.add(connection, "orders", {}, key=f"k{number}")
            connection.commit()
            await asyncio.sleep(0.001 * (number % 3))
        await eventually(lambda: publisher.count == 100)
    connection.close()


async def test_a_database_file_that_was_replaced_is_noticed(tmp_path: Path) -> None:
    path, outbox, publisher = tmp_path / "app.db", Outbox(), MemoryPublisher()
    async with Relay(f"sqlite:///{path}", publisher, outbox=outbox, lease_ttl="600ms"):
        for old in tmp_path.glob("app.db*"):
            old.unlink()
        connection = sqlite3.connect(path)
        outbox.add(connection, "orders", {}, key="k")
        connection.commit()
        await eventually(lambda: publisher.count == 1)
        connection.close()


async def test_a_settle_that_failed_is_tried_again_before_new_work(shop: Shop) -> None:
    class Forgetful(MemoryStore):
        failures = 3

        async def settle(self, settlement: Any) -> Any:
            result = await super().settle(settlement)
            if self.failures:
                self.failures -= 1
                from postroom import StoreUnavailable

                raise StoreUnavailable("the answer got lost")
            return result

    shop.store = Forgetful()
    async with shop.relay() as relay:
        message = shop.add(key="k")
        await relay.delivered(message.id, timeout=20)
    assert len(shop.arrived) == 1, "it was not sent again"


async def test_a_store_url_with_an_unknown_scheme_names_those_that_are_known() -> None:
    with pytest.raises(ConfigurationError, match="sqlite"):
        Relay("sqlit:///x", "memory:")
    with pytest.raises(ConfigurationError, match="stdout"):
        Relay("sqlite:///x", "stdouts:")
    with pytest.raises(ConfigurationError, match="scheme"):
        Relay("app.db", "memory:")
    with pytest.raises(ConfigurationError, match="callable"):
        Relay("sqlite:///x", 42)
    with pytest.raises(ConfigurationError, match="lease_ttl"):
        Relay("sqlite:///x", "memory:", lease_tll=3)


async def test_each_run_of_a_relay_has_an_id_of_its_own(shop: Shop) -> None:
    relay = shop.relay()
    await relay.drain()
    first = relay.id
    await relay.drain()
    assert first != relay.id


def test_making_a_relay_connects_to_nothing_so_it_may_be_made_before_a_fork(tmp_path: Path) -> None:
    database = tmp_path / "app.db"
    relay = Relay(f"sqlite:///{database}", "memory:")
    assert not database.exists()
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if asyncio.run(relay.drain()).delivered == 0 else 1)
        except BaseException:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert asyncio.run(relay.drain()).delivered == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_relay_process_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    code = (
        "import asyncio; from postroom import Relay;"
        f"relay = Relay('sqlite:///{tmp_path}/app.db', 'memory:');"
        "print('up', flush=True); asyncio.run(relay.run(handle_signals=True)); print('down', flush=True)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    deadline = time.monotonic() + 60
    while not _leases(tmp_path / "app.db"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(60) == 0
    assert process.stdout.read() == "down\n"
    assert _leases(tmp_path / "app.db") == 0
    process.stdout.close()


def _leases(database: Path) -> int:
    if not database.exists():
        return 0
    connection = sqlite3.connect(database)
    try:
        return connection.execute("SELECT count(owner) FROM postroom_leases").fetchone()[0]
    except sqlite3.OperationalError:
        return 0
    finally:
        connection.close()


def owned(relay: Relay) -> set[int]:
    session = relay._session
    return {slot for pump in session.pumps for slot in pump.plan.slots} if session else set()


class Stubborn(MemoryStore):
    """Answers the first cancellations with an error, as drivers do to which both come at the same moment."""

    def __init__(self) -> None:
        super().__init__()
        self.cancelled = 0
        self.hangs = asyncio.Event()

    async def renew(self, beat: Beat) -> Leases:
        if not beat.epochs:
            return await super().renew(beat)
        self.hangs.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            if self.cancelled >= 3:
                raise
        raise StoreUnavailable("connection refused")


async def test_a_relay_ends_although_its_driver_swallows_cancellations() -> None:
    store = Stubborn()
    settings: dict[str, Any] = {"lease_ttl": "1s", "publish_timeout": "200ms", "stop_timeout": "100ms"}
    async with asyncio.timeout(20), Relay(store, lambda message: None, **settings):
        await store.hangs.wait()
    assert store.cancelled
