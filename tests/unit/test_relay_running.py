"""Relays that run: start, stop, share, and lose their database. Over SQLite where files or processes matter."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from postroom import (
    ConfigurationError,
    Message,
    Outbox,
    Relay,
    RelayError,
    SchemaMismatch,
    StoreUnavailable,
    events,
)
from postroom.ports import Batch, Beat, Leases
from postroom.publishers.memory import MemoryPublisher
from postroom.stores.memory import MemoryStore
from postroom.stores.sqlite import SqliteStore
from tests.unit.relay_shop import Shop, owned
from tests.waiting import until

# --- running


async def test_a_running_relay_is_woken_by_a_commit(shop: Shop) -> None:
    async with shop.relay(poll_interval="5m", idle_interval="5m") as relay:
        message = shop.add(key="k")
        await relay.delivered(message, timeout=20)
    assert [m.id for m in shop.arrived] == [message.id]


async def test_waiting_for_a_delivery_works_after_the_fact_and_times_out(shop: Shop) -> None:
    message = shop.add(key="k")
    async with shop.relay(idle_interval="20ms") as relay:
        await until(lambda: bool(shop.arrived))
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
        await until(lambda: len(shop.arrived) == 11)
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


async def test_what_is_not_over_in_time_stays_pending(shop: Shop) -> None:
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
    await until(lambda: len(shop.arrived) == 5)
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


@pytest.mark.parametrize("end", ["leave", "lose"])
async def test_nothing_more_of_a_call_starts_once_its_slot_is_left_or_lost(shop: Shop, end: str) -> None:
    message, answers = shop.add(key="k"), list[bool]()

    class Asking(MemoryPublisher):
        async def publish(self, batch: Batch) -> None:
            assert relay._session is not None
            plan = next(pump.plan for pump in relay._session.pumps if message.slot in pump.plan.slots)
            answers.append(batch.may_start())
            getattr(plan, end)([message.slot])
            answers.append(batch.may_start())
            await super().publish(batch)

    relay = shop.relay(Asking("memory:"))
    async with relay:
        await until(lambda: answers)
    assert answers == [True, False]


async def test_two_relays_share_the_slots_and_a_leader_has_them_all(shop: Shop) -> None:
    async with shop.relay(lease_ttl=2) as one:
        async with shop.relay(lease_ttl=2) as two:
            await until(lambda: len(owned(one)) == len(owned(two)) == 32)
        await until(lambda: len(owned(one)) == 64)


async def test_with_a_leader_the_others_stand_by_and_take_over(shop: Shop) -> None:
    async with shop.relay(claim="leader", lease_ttl=2) as one:
        await until(lambda: len(owned(one)) == 64)
        async with shop.relay(claim="leader", lease_ttl=2) as two:
            await asyncio.sleep(0.1)
            assert not owned(two)
            await one.__aexit__(None, None, None)
            await until(lambda: len(owned(two)) == 64)


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
        await until(lambda: bool(shop.diary.of(events.StoreDown)))
        shop.store.gone = False
        await until(lambda: len(shop.arrived) == 1)
        await until(lambda: bool(shop.diary.of(events.StoreUp)))
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


async def test_a_drain_waits_for_a_database_that_goes_away_while_it_waits_for_others(shop: Shop) -> None:
    class Flaky(MemoryStore):
        asked = 0

        async def fetch(self, ranges: Any, limit: int | None = None) -> Any:
            if limit is None:  # whether others have something
                self.asked += 1
                if self.asked < 3:
                    raise StoreUnavailable("gone")
            return await super().fetch(ranges, limit)

    shop.store = Flaky()
    sent = shop.add(key="k")
    await shop.store.acquire("dead", [sent.slot], 0.5)
    assert (await shop.relay(lease_ttl="1s").drain()).delivered == 1
    assert shop.store.asked >= 3


async def test_an_application_may_block_the_loop_that_the_relay_runs_on(tmp_path: Path) -> None:
    """The relay never holds the database's lock while it waits for the loop, so nobody waits for himself."""
    outbox, publisher = Outbox(), MemoryPublisher()
    connection = sqlite3.connect(tmp_path / "app.db", timeout=1)
    async with Relay(f"sqlite:///{tmp_path}/app.db", publisher, outbox=outbox, retention="1h"):
        for number in range(100):
            outbox.add(connection, "orders", {}, key=f"k{number}")
            connection.commit()
            await asyncio.sleep(0.001 * (number % 3))
        await until(lambda: publisher.count == 100)
    connection.close()


async def test_a_database_file_that_was_replaced_is_noticed(tmp_path: Path) -> None:
    path, outbox, publisher = tmp_path / "app.db", Outbox(), MemoryPublisher()
    async with Relay(f"sqlite:///{path}", publisher, outbox=outbox, lease_ttl="600ms"):
        for old in tmp_path.glob("app.db*"):
            old.unlink()
        connection = sqlite3.connect(path)
        outbox.add(connection, "orders", {}, key="k")
        connection.commit()
        await until(lambda: publisher.count == 1)
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
