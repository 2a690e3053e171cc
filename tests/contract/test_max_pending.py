"""A full outbox: how many messages are pending is counted by a relay, and known to writers."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from typing import Any

import asyncmy
import asyncpg
import psycopg
import pymysql
import pytest
import pytest_asyncio
from sqlalchemy import Engine, create_engine, event, make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from postroom import ConfigurationError, Message, Outbox, OutboxFull, Relay
from postroom.ports import Store
from postroom.relay import sampler
from postroom.relay.wiring import store_for
from postroom.stores.memory import MemoryStore
from postroom.testing import FakeClock
from postroom.testing.store_contract.kit import fetch_all, own

SYNC = {"postgresql-15": "postgresql+psycopg", "mariadb": "mysql+pymysql", "sqlite": "sqlite"}
ASYNC = {"postgresql-15": "postgresql+asyncpg", "mariadb": "mysql+asyncmy", "sqlite": "sqlite+aiosqlite"}


class Place:
    def __init__(self, server: str, url: str, store: Store) -> None:
        self.server = server
        self.url = url
        self.store = store
        self.engine: Engine = create_engine(make_url(url).set(drivername=SYNC[server]))

    @property
    def async_url(self) -> str:
        return make_url(self.url).set(drivername=ASYNC[self.server]).render_as_string(hide_password=False)

    async def fill(self, count: int) -> None:
        with self.engine.begin() as connection:
            Outbox().add_many(connection, [Message(topic="t", payload=b"x") for _ in range(count)])
        await self.store.sample(1_000)

    async def empty(self) -> None:
        owner = await own(self.store)
        await owner.deliver(*await fetch_all(self.store))
        await self.store.sample(1_000)

    async def count(self) -> int:
        return len(await fetch_all(self.store))


@pytest_asyncio.fixture(params=list(SYNC))
async def place(
    empty_database: Callable[[str], str], request: pytest.FixtureRequest, tmp_path: Any
) -> AsyncIterator[Place]:
    server = request.param
    url = f"sqlite:///{tmp_path / 'app.db'}" if server == "sqlite" else empty_database(server)
    store = store_for(url, Outbox())
    await store.open()
    place = Place(server, url, store)
    yield place
    place.engine.dispose()
    await store.close()


on_servers = pytest.mark.parametrize("place", ["postgresql-15", "mariadb"], indirect=True)
"""SQLite is asked each time, in this very process, and refuses to wait."""


async def test_an_outbox_that_is_full_refuses_messages_and_writes_nothing(place: Place) -> None:
    outbox = Outbox(max_pending=3)
    await place.fill(3)
    with place.engine.begin() as connection, pytest.raises(OutboxFull, match=r"3 pending.*max_pending is 3"):
        outbox.add(connection, "t", b"x")
    assert await place.count() == 3


async def test_below_the_limit_messages_are_taken(place: Place) -> None:
    await place.fill(2)
    with place.engine.begin() as connection:
        Outbox(max_pending=3).add(connection, "t", b"x")
    assert await place.count() == 3


async def test_without_any_count_messages_are_taken(place: Place) -> None:
    with place.engine.begin() as connection:
        Outbox(max_pending=1).add_many(connection, [Message(topic="t", payload=b"x") for _ in range(3)])
    assert await place.count() == 3


@on_servers
async def test_the_count_is_asked_for_at_most_once_a_second(place: Place) -> None:
    clock = FakeClock()
    outbox = Outbox(max_pending=3, clock=clock)
    asked: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *others: Any) -> None:
        asked.extend([statement] if "postroom_meta" in statement else [])

    event.listen(place.engine, "before_cursor_execute", note)
    for _ in range(5):
        with place.engine.begin() as connection:
            outbox.add(connection, "t", b"x")
    assert len(asked) == 1
    clock.advance(1)
    with place.engine.begin() as connection:
        outbox.add(connection, "t", b"x")
    assert len(asked) == 2


async def test_the_tables_are_still_created_by_the_first_message(empty_database: Callable[[str], str]) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        Outbox(max_pending=1).add(connection, "t", b"x")
    with psycopg.connect(empty_database("postgresql-15")) as connection:
        Outbox(max_pending=1).add(connection, "t", b"x")


@on_servers
async def test_waiting_ends_when_there_is_room(place: Place) -> None:
    outbox = Outbox(max_pending=2, on_full="block", full_timeout="30s")
    await place.fill(2)

    def add() -> None:
        engine = create_engine(place.engine.url, isolation_level="READ COMMITTED")
        with engine.begin() as connection:
            outbox.add(connection, "t", b"x")
        engine.dispose()

    writer = asyncio.create_task(asyncio.to_thread(add))
    await asyncio.sleep(0.5)
    assert not writer.done()
    await place.empty()
    await asyncio.wait_for(writer, 10)
    assert await place.count() == 1


@on_servers
async def test_waiting_ends_with_an_error_after_the_time_out(place: Place) -> None:
    await place.fill(2)
    began = time.monotonic()
    with place.engine.begin() as connection, pytest.raises(OutboxFull):
        Outbox(max_pending=2, on_full="block", full_timeout=0.5).add(connection, "t", b"x")
    assert time.monotonic() - began >= 0.5


@on_servers
async def test_waiting_on_an_async_connection_holds_up_nobody(place: Place) -> None:
    outbox = Outbox(max_pending=2, on_full="block", full_timeout="30s")
    await place.fill(2)
    engine = create_async_engine(place.async_url, isolation_level="READ COMMITTED")

    async def add() -> None:
        async with engine.begin() as connection:
            await outbox.add_async(connection, "t", b"x")

    writer = asyncio.create_task(add())
    await asyncio.sleep(0.3)
    assert not writer.done()
    await place.empty()
    await asyncio.wait_for(writer, 10)
    await engine.dispose()


async def test_drivers_of_their_own_are_refused_too(place: Place) -> None:
    outbox = Outbox(max_pending=1)
    await place.fill(1)
    if place.server == "sqlite":
        with closing(sqlite3.connect(place.engine.url.database or "")) as connection, pytest.raises(OutboxFull):
            outbox.add(connection, "t", b"x")
    elif place.server == "mariadb":
        url = place.engine.url
        options: dict[str, Any] = {"host": url.host, "port": url.port, "user": url.username, "database": url.database}
        with closing(pymysql.connect(**options, password=url.password or "")) as connection, pytest.raises(OutboxFull):
            outbox.add(connection, "t", b"x")
        asynchronous = await asyncmy.connect(**options, password=url.password or "")
        with pytest.raises(OutboxFull):
            await outbox.add_async(asynchronous, "t", b"x")
        asynchronous.close()
    else:
        with psycopg.connect(place.url) as connection, pytest.raises(OutboxFull):
            outbox.add(connection, "t", b"x")
        driver = await asyncpg.connect(place.url)
        async with driver.transaction():
            with pytest.raises(OutboxFull):
                await outbox.add_async(driver, "t", b"x")
        await driver.close()


# --- sessions


async def test_a_session_hears_of_it_at_commit_and_from_then_on_at_once(place: Place) -> None:
    outbox = Outbox(max_pending=2)
    await place.fill(2)
    with Session(place.engine) as session:
        outbox.add(session, "t", b"x")
        with pytest.raises(OutboxFull):
            session.commit()
        session.rollback()
        with pytest.raises(OutboxFull):
            outbox.add(session, "t", b"x")
    assert await place.count() == 2


async def test_an_async_session_does_not_wait(place: Place) -> None:
    engine = create_async_engine(place.async_url)
    async with AsyncSession(engine) as session:
        with pytest.raises(ConfigurationError, match="on_full='raise'"):
            Outbox(max_pending=2, on_full="block").add(session, "t", b"x")
        await place.fill(2)
        Outbox(max_pending=2).add(session, "t", b"x")
        with pytest.raises(OutboxFull):
            await session.commit()
    await engine.dispose()


def test_waiting_is_refused_on_sqlite() -> None:
    with closing(sqlite3.connect(":memory:")) as connection, pytest.raises(ConfigurationError, match="one writer"):
        Outbox(max_pending=2, on_full="block").add(connection, "t", b"x")


def test_on_sqlite_the_question_waits_for_its_turn(tmp_path: Any) -> None:
    """A transaction that began by reading would fail at once while another one writes."""
    outbox = Outbox(max_pending=10)
    path = tmp_path / "app.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        outbox.create_tables(connection)
        connection.commit()
    locked, done = threading.Event(), threading.Event()

    def write_slowly() -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            locked.set()
            done.wait(0.3)
            other.execute("COMMIT")

    thread = threading.Thread(target=write_slowly)
    thread.start()
    locked.wait(5)
    with closing(sqlite3.connect(path)) as connection:
        outbox.add(connection, "t", b"x")
        connection.commit()
    thread.join()


# --- the memory store


def test_the_memory_store_knows_by_itself() -> None:
    store, outbox = MemoryStore(), Outbox(max_pending=2)
    for _ in range(2):
        with store.begin() as transaction:
            outbox.add(transaction, "t", b"x")
    with pytest.raises(OutboxFull), store.begin() as transaction:
        outbox.add(transaction, "t", b"x")


# --- who counts


async def test_a_running_relay_counts_what_it_cannot_deliver(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "SHORTEST", 0.05)
    outbox = Outbox(max_pending=3)

    def refuse(message: Message) -> None:
        raise ConnectionError("nobody is there")

    with place.engine.begin() as connection:
        outbox.add_many(connection, [Message(topic="t", payload=b"x") for _ in range(5)])

    def is_full() -> bool:
        with place.engine.begin() as connection:
            try:
                Outbox(max_pending=3).add(connection, "t", b"x")
            except OutboxFull:
                return True
            connection.rollback()
            return False

    async with Relay(place.url, refuse, outbox=outbox):
        for _ in range(600):
            if is_full():
                return
            await asyncio.sleep(0.05)
    pytest.fail("nobody counted")


async def test_a_drain_counts_what_it_leaves(place: Place) -> None:
    def refuse(message: Message) -> None:
        raise ConnectionError("nobody is there")

    with place.engine.begin() as connection:
        Outbox().add_many(connection, [Message(topic="t", payload=b"x", key="k") for _ in range(3)])
    await Relay(place.url, refuse).drain()
    with place.engine.begin() as connection, pytest.raises(OutboxFull, match="3 pending"):
        Outbox(max_pending=2).add(connection, "t", b"x")


async def test_counting_stops_at_the_limit(place: Place) -> None:
    await place.fill(20)
    assert await place.store.sample(7) == 7
    assert await place.store.sample(1_000) == 20


# --- settings


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_pending": 0},
        {"max_pending": 2_000_000},
        {"max_pending": True},
        {"max_pending": "9"},
        {"on_full": "drop"},
    ],
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Outbox(**wrong)
