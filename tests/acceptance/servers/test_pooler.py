"""Through PgBouncer, which gives each transaction another session: relays poll, and all else is as without it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from random import Random
from typing import Any

import asyncpg
import psycopg
import pytest

from postroom import Desk, Message, Outbox
from postroom.message import SLOTS, slot_of
from postroom.ports import Batch
from postroom.publishers.memory import MemoryPublisher
from tests.acceptance.servers.conftest import Named
from tests.acceptance.servers.crowd import Crowd, in_thread, locked_work
from tests.acceptance.servers.database import TOPIC, Database
from tests.acceptance.servers.deliveries import (
    Complaints,
    commit_order,
    duplicates,
    first_versions,
    ids,
    out_of_order,
    relay_running,
)
from tests.acceptance.servers.hands import ConnectionHand
from tests.waiting import eventually

KEYS = [f"order-{number}" for number in range(10)]
KEY = KEYS[0]
NEIGHBOURS = [key for key in (f"neighbour-{n}" for n in range(2000)) if slot_of(key, "") == slot_of(KEY, "")][:20]
SETTINGS: dict[str, Any] = {"lease_ttl": "2s", "publish_timeout": "500ms", "batch_size": 20}
BEFORE_THE_SWEEP = 20.0

# Sessions are gone when it returns: the pooler must not hand out one that is about to die.
END_SESSIONS = """
    DO $$
    DECLARE
        sessions CONSTANT int[] := ARRAY(
            SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid());
    BEGIN
        PERFORM pg_terminate_backend(pid) FROM unnest(sessions) AS pid;
        WHILE EXISTS (SELECT FROM pg_stat_activity WHERE pid = ANY (sessions)) LOOP
            PERFORM pg_sleep(0.002), pg_stat_clear_snapshot();
        END LOOP;
    END $$"""


class PooledDatabase(Database):
    """Nobody here prepares statements under a name: the next transaction may be on a session that knows none."""

    def connect(self, **options: Any) -> Any:
        return super().connect(**self._options, **options)

    @property
    def _options(self) -> dict[str, Any]:
        return {"prepare_threshold": None}

    def url_with(self, driver: str) -> str:
        return self.parts.set(drivername=driver).render_as_string(hide_password=False)


@pytest.fixture
def pooled(database_of_this_worker: Named) -> Iterator[PooledDatabase]:
    with closing(PooledDatabase("pgbouncer", database_of_this_worker("pgbouncer"))) as database:
        database.create_tables()
        database.clear()
        database.create_aggregates(KEYS)
        yield database


DRIVERS = pytest.mark.parametrize("driver", ["postgresql+asyncpg", "postgresql+psycopg"])


class SlowPublisher(MemoryPublisher):
    """So that something is going on whenever something happens."""

    async def publish(self, batch: Batch) -> None:
        await asyncio.sleep(0.02)
        await super().publish(batch)


def add(database: Database, count: int, first: int = 1, keys: Sequence[str] = KEYS) -> set[str]:
    """Of each key so many messages, numbered."""
    versions = range(first, first + count) if first else [0] * count
    messages = [Message(topic=TOPIC, payload={"version": n}, key=key) for n in versions for key in keys]
    with database.connection() as connection:
        added = Outbox().add_many(connection, messages)
        connection.commit()
    return {message.id for message in added}


def let_pass(database: Database, publisher: MemoryPublisher) -> None:
    """Later messages of other keys, delivered: of the same slot, and of any other."""
    later = add(database, 3, first=0, keys=[*NEIGHBOURS, *(f"other-{n}" for n in range(100))])
    eventually(lambda: later <= set(ids(publisher)))


def all_arrive(database: Database, publisher: MemoryPublisher) -> None:
    """As they were committed, and nothing is left."""
    expected = commit_order(database)
    eventually(lambda: counted(publisher) >= sum(map(len, expected.values())), otherwise=lambda: counted(publisher))
    eventually(lambda: database.count("outbox") == 0)
    assert not out_of_order(first_versions(publisher.messages), expected)
    assert duplicates(ids(publisher)) == 0


def counted(publisher: MemoryPublisher) -> int:
    return sum(map(len, first_versions(publisher.messages).values()))


# --- what is told


@DRIVERS
def test_a_relay_behind_a_pooler_warns_once_that_it_polls_and_status_says_so(
    pooled: PooledDatabase, driver: str, caplog: pytest.LogCaptureFixture
) -> None:
    publisher, url = MemoryPublisher(), pooled.url_with(driver)
    with relay_running(pooled, publisher, url=url, **SETTINGS):
        eventually(lambda: woken_by(pooled.url) == ["polling"])
        for number in range(3):  # each time it has to find out anew how it is woken
            pooled.ask(END_SESSIONS)
            add(pooled, 1, first=number + 1)
            eventually(lambda number=number: counted(publisher) == (number + 1) * len(KEYS))
        command = [sys.executable, "-m", "postroom", "--store", url, "status"]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "polling" in answer.stdout
    warnings = [record.getMessage() for record in caplog.records if record.name == "postroom.stores"]
    assert [("pooler" in text, "poll_interval" in text) for text in warnings] == [(True, True)]


def woken_by(url: str) -> list[str]:
    async def ask() -> list[str]:
        async with Desk(url) as desk:
            return [relay["woken_by"] for relay in (await desk.status()).relays]

    return asyncio.run(ask())


# --- order


async def write_with_asyncpg(url: str, times: int, seed: int) -> None:
    """What `locked_work` does, on a connection that the pooler knows how to treat."""
    random, outbox = Random(seed), Outbox()
    connection: Any = await asyncpg.connect(url, statement_cache_size=0)
    try:
        for _ in range(times):
            key = random.choice(KEYS)
            async with connection.transaction():
                locked = "SELECT version FROM aggregates WHERE name = $1 FOR UPDATE"
                version = await connection.fetchval(locked, key) + 1
                await connection.execute("UPDATE aggregates SET version = $1 WHERE name = $2", version, key)
                await outbox.add_async(connection, TOPIC, {"version": version}, key=key)
                await asyncio.sleep(random.random() * 0.02)
    finally:
        await connection.close()


async def write_side_by_side(url: str, writers: int, times: int) -> None:
    await asyncio.gather(*(write_with_asyncpg(url, times, seed) for seed in range(writers)))


@contextmanager
def default_isolation(database: Database, level: str) -> Iterator[None]:
    """Of everybody: a session behind a pooler cannot be told at its start what it shall be."""
    name = database.parts.database
    database.ask(f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = '{level}'")
    end_every_session(database)
    try:
        yield
    finally:
        database.ask(f'ALTER DATABASE "{name}" RESET default_transaction_isolation')
        end_every_session(database)


def end_every_session(database: Database) -> None:
    database.ask(END_SESSIONS)
    with suppress(psycopg.Error):  # which ends with it
        database.ask("SELECT pg_terminate_backend(pg_backend_pid())")


@DRIVERS
def test_many_writers_through_the_pooler_are_delivered_in_commit_order(pooled: PooledDatabase, driver: str) -> None:
    publisher, complaints = MemoryPublisher(), Complaints()
    with relay_running(pooled, publisher, complaints, url=pooled.url_with(driver), **SETTINGS):
        with Crowd(pooled, locked_work(KEYS, longest_hold=0.02), threads=4, times=50):
            asyncio.run(write_side_by_side(pooled.url, writers=4, times=50))
        all_arrive(pooled, publisher)
    assert len(publisher.messages) > 300
    assert complaints.of_more_than_a_delay == []


def lock_and_wait(database: Database, publisher: MemoryPublisher) -> None:
    """A straggler is passed by others, and keeps one more waiting for its lock; then both commit."""
    with ConnectionHand(database, Outbox()) as straggler, ConnectionHand(database, Outbox()) as other:
        straggler.lock_and_add(KEY)
        let_pass(database, publisher)
        waiting = in_thread(lambda: (other.lock_and_add(KEY), other.commit()))
        eventually(database.waiting_for_a_lock)
        let_pass(database, publisher)
        assert KEY not in first_versions(publisher.messages)
        straggler.commit()
        waiting.join()
    eventually(lambda: len(first_versions(publisher.messages).get(KEY, [])) == 2, within=BEFORE_THE_SWEEP)


@DRIVERS
def test_a_straggler_is_delivered_in_its_place(pooled: PooledDatabase, driver: str) -> None:
    publisher = MemoryPublisher()
    with relay_running(pooled, publisher, url=pooled.url_with(driver), **SETTINGS):
        lock_and_wait(pooled, publisher)
        all_arrive(pooled, publisher)
    assert first_versions(publisher.messages) == {KEY: [1, 2]}


@DRIVERS
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_straggler_is_delivered_in_its_place_when_every_session_has_a_higher_isolation_level(
    pooled: PooledDatabase, driver: str, level: str
) -> None:
    publisher, complaints = MemoryPublisher(), Complaints()
    with (
        default_isolation(pooled, level),
        relay_running(pooled, publisher, complaints, url=pooled.url_with(driver), **SETTINGS),
    ):
        with ConnectionHand(pooled, Outbox()) as straggler:
            straggler.lock_and_add(KEY)
            let_pass(pooled, publisher)
            straggler.commit()
        with ConnectionHand(pooled, Outbox()) as other:
            other.lock_and_add(KEY)
            other.commit()
        all_arrive(pooled, publisher)
    assert first_versions(publisher.messages) == {KEY: [1, 2]}
    assert complaints.of_more_than_a_delay == []


# --- two relays


def owned(database: Database) -> list[int]:
    """How many slots each relay has."""
    return sorted(Counter(lease.owner for lease in database.leases().values() if lease.is_valid).values())


def test_two_relays_share_the_slots_and_one_takes_over_when_the_other_stops(pooled: PooledDatabase) -> None:
    publisher = SlowPublisher()
    work = locked_work(KEYS, longest_hold=0.02)
    with relay_running(pooled, publisher, **SETTINGS), Crowd(pooled, work, threads=4):
        with relay_running(pooled, publisher, **SETTINGS):
            share(pooled, lambda: owned(pooled) == [SLOTS // 2] * 2)
            delivered = len(publisher.messages)
            eventually(lambda: len(publisher.messages) > delivered + 20)
        share(pooled, lambda: owned(pooled) == [SLOTS])
        delivered = len(publisher.messages)
        eventually(lambda: len(publisher.messages) > delivered + 20)
    with relay_running(pooled, publisher, **SETTINGS):
        all_arrive(pooled, publisher)


def share(database: Database, condition: Callable[[], bool]) -> None:
    eventually(condition, otherwise=lambda: owned(database))


# --- sessions that end


@DRIVERS
def test_a_relay_survives_that_the_sessions_of_the_pooler_end(pooled: PooledDatabase, driver: str) -> None:
    publisher, complaints = SlowPublisher(), Complaints()
    with relay_running(pooled, publisher, complaints, url=pooled.url_with(driver), **SETTINGS):
        for number in range(6):
            before = len(publisher.messages)
            add(pooled, 10, first=10 * number + 1)
            eventually(lambda before=before: len(publisher.messages) > before)
            pooled.ask(END_SESSIONS)
        eventually(lambda: counted(publisher) == 60 * len(KEYS))
        eventually(lambda: pooled.count("outbox") == 0)
    assert first_versions(publisher.messages) == {key: list(range(1, 61)) for key in KEYS}
    assert duplicates(ids(publisher)) == 0
    # also if it is told of the end in the middle of a statement, which drivers do not understand
    assert not [error for error in complaints.errors if not error.startswith("StoreUnavailable")]


def test_a_writer_whose_session_ends_loses_its_transaction_and_nothing_else(pooled: PooledDatabase) -> None:
    publisher = MemoryPublisher()
    with relay_running(pooled, publisher, **SETTINGS):
        with ConnectionHand(pooled, Outbox()) as cut_off:
            lost = cut_off.lock_and_add(KEY)
            let_pass(pooled, publisher)
            pooled.ask(END_SESSIONS)
        add(pooled, 3, keys=[KEY])
        eventually(lambda: first_versions(publisher.messages) == {KEY: [1, 2, 3]}, within=BEFORE_THE_SWEEP)
    assert lost.id not in ids(publisher)
