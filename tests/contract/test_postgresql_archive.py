"""The archive of PostgreSQL, divided into days: what is old goes with its table."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
import pytest_asyncio
from sqlalchemy import create_engine, make_url

from postroom import Message, Outbox
from postroom.ports import Query
from postroom.stores.postgresql import PostgresqlStore
from postroom.testing import FakeClock
from postroom.testing.store_contract.kit import Owner, fetch_all, own, state_of

DAY = 86_400.0


class Place:
    """A database, and a store in it that is open."""

    def __init__(self, url: str, clock: FakeClock) -> None:
        self.url = url
        self.clock = clock
        self.outbox = Outbox(clock=clock)
        self.store = self.make_store()

    def make_store(self) -> PostgresqlStore:
        return PostgresqlStore(self.url.replace("postgresql:", "postgresql+asyncpg:"), clock=self.clock)

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def partitions(self) -> set[str]:
        rows = self.ask(
            "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'postroom_archive'::regclass"
        )
        return {name.removeprefix("postroom_archive_") for (name,) in rows}

    def rows_in(self, partition: str) -> int:
        return self.ask(f"SELECT count(*) FROM postroom_archive_{partition}")[0][0]

    async def add(self, count: int, **options: Any) -> list[Message]:
        with psycopg.connect(self.url) as connection:
            self.outbox.add_many(connection, [Message(topic="t", payload=b"x", **options) for _ in range(count)])
        return await fetch_all(self.store)

    async def deliver(self, owner: Owner, count: int, retention: float = DAY) -> list[Message]:
        rows = await self.add(count)
        await owner.deliver(*rows, retention=retention)
        return rows

    def today(self, ahead: int = 0) -> str:
        return f"{self.clock.now() + timedelta(days=ahead):%Y%m%d}"

    async def clean(self, retention: float | None, limit: int = 1000) -> int:
        done = 0
        while cleaned := await self.store.clean(retention=retention, limit=limit):
            done += cleaned
        return done


@pytest_asyncio.fixture(params=["postgresql-15", "postgresql-18"])
async def place(empty_database: Callable[[str], str], request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    place = Place(empty_database(request.param), FakeClock())
    await place.store.open()
    yield place
    await place.store.close()


async def test_today_and_the_next_two_days_have_a_partition_from_the_start(place: Place) -> None:
    assert place.partitions() == {"default", *(place.today(ahead) for ahead in range(3))}


async def test_cleaning_makes_days_ahead(place: Place) -> None:
    place.clock.advance(DAY)
    await place.clean(DAY)
    assert place.today(2) in place.partitions()


async def test_a_delivered_message_is_in_the_partition_of_its_day(place: Place) -> None:
    rows = await place.deliver(await own(place.store), 3)
    assert place.rows_in(place.today()) == 3
    assert await state_of(place.store, rows[0]) == "delivered"
    assert place.ask("SELECT count(*) FROM postroom_outbox") == [(0,)]


async def test_a_day_that_is_over_goes_as_a_whole(place: Place) -> None:
    first = place.today()
    await place.deliver(await own(place.store), 5)
    place.clock.advance(DAY)
    assert await place.clean(DAY) == 0, "the retention of its last messages is not over"
    assert place.rows_in(first) == 5
    place.clock.advance(DAY)
    assert await place.clean(DAY) == 5
    assert first not in place.partitions()
    assert await place.store.entries(Query()) == []


async def test_dropping_a_day_deletes_no_row(place: Place) -> None:
    """Old days are dropped before rows are deleted: that is what they are for."""
    await place.deliver(await own(place.store), 50)
    place.ask("SELECT pg_stat_force_next_flush()")
    place.clock.advance(3 * DAY)
    assert await place.store.clean(retention=DAY, limit=10) >= 10
    assert place.ask("SELECT count(*) FROM postroom_archive") == [(0,)]
    deleted = "SELECT coalesce(sum(n_tup_del), 0) FROM pg_stat_user_tables WHERE relname LIKE 'postroom_archive%'"
    assert place.ask(deleted) == [(0,)]


async def test_what_must_be_kept_longer_moves_to_the_default_partition(place: Place) -> None:
    owner = await own(place.store)
    superseded = await place.add(2, key="k")
    await owner.settle(superseded=superseded)
    await place.deliver(owner, 3)
    place.clock.advance(3 * DAY)
    assert await place.clean(DAY) == 3
    assert place.rows_in("default") == 2
    assert await state_of(place.store, superseded[0]) == "superseded"
    place.clock.advance(5 * DAY)
    assert await place.clean(DAY) == 2
    assert await place.store.entries(Query()) == []


async def test_a_day_of_which_much_must_be_kept_stays_and_its_rows_are_deleted(place: Place) -> None:
    owner, first = await own(place.store), place.today()
    await owner.settle(superseded=await place.add(5, key="k"))
    await place.deliver(owner, 7)
    place.clock.advance(3 * DAY)
    assert await place.clean(DAY, limit=4) == 7
    assert place.rows_in(first) == 5


async def test_without_a_retention_delivered_messages_stay_and_empty_days_go(place: Place) -> None:
    first = place.today()
    await place.deliver(await own(place.store), 2)
    place.clock.advance(20 * DAY)
    assert await place.clean(None) == 0
    days = place.partitions()
    assert first in days
    assert place.rows_in(first) == 2
    assert len(days) == 5, "the default one, the first and the next three"


async def test_a_retention_shorter_than_a_day_is_kept_to_the_second(place: Place) -> None:
    await place.deliver(await own(place.store), 2, retention=60)
    place.clock.advance(61)
    assert await place.clean(60) == 2


async def test_a_locked_archive_is_left_for_the_next_time(place: Place) -> None:
    first = place.today()
    await place.deliver(await own(place.store), 2)
    place.clock.advance(3 * DAY)
    with psycopg.connect(place.url) as reader:
        reader.execute("SELECT count(*) FROM postroom_archive")
        await place.clean(DAY)
        assert first in place.partitions()
    assert await place.store.entries(Query()) == [], "its rows were deleted meanwhile"
    place.clock.advance(61)
    await place.clean(DAY)
    assert first not in place.partitions()


async def test_days_that_the_default_partition_has_rows_of_are_not_made(place: Place) -> None:
    """Nobody cleaned for days: what is archived then is in the default partition, and is deleted row by row."""
    place.clock.advance(10 * DAY)
    await place.deliver(await own(place.store), 4)
    assert place.rows_in("default") == 4
    await place.clean(2 * DAY)
    assert place.today() not in place.partitions()
    assert {place.today(1), place.today(2)} <= place.partitions()
    place.clock.advance(4 * DAY)
    assert await place.clean(2 * DAY) == 4


async def test_a_message_in_a_dropped_day_can_not_be_replayed_and_others_can(place: Place) -> None:
    owner = await own(place.store)
    old = await place.deliver(owner, 1)
    place.clock.advance(2 * DAY)
    new = await place.deliver(owner, 1)
    await place.clean(DAY)
    assert await place.store.replay([old[0].id, new[0].id], new_id=False) == 1
    assert [row.id for row in await fetch_all(place.store)] == [new[0].id]


async def test_without_the_right_to_make_tables_it_is_said_once_and_rows_are_deleted(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    await place.deliver(await own(place.store), 3)
    place.ask(
        """DO $$ BEGIN
            IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'postroom_clerk') THEN
                CREATE ROLE postroom_clerk LOGIN PASSWORD 'clerk';
            END IF;
        END $$"""
    )
    place.ask("GRANT USAGE ON SCHEMA public TO postroom_clerk")
    place.ask("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO postroom_clerk")
    place.ask("GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO postroom_clerk")
    url = make_url(place.url).set(username="postroom_clerk", password="clerk", drivername="postgresql+asyncpg")
    store = PostgresqlStore(url.render_as_string(hide_password=False), clock=place.clock)
    place.clock.advance(3 * DAY)
    with caplog.at_level(logging.INFO, "postroom.stores"):
        await store.open()
        cleaned = [await store.clean(retention=DAY, limit=2) for _ in range(3)]
    await store.close()
    assert cleaned == [2, 1, 0]
    assert [record.levelname for record in caplog.records if "divided" in record.message] == ["INFO"]


async def test_a_plain_archive_of_a_migration_works_by_deletes(empty_database: Callable[[str], str]) -> None:
    place = Place(empty_database("postgresql-15"), FakeClock())
    url = make_url(place.url).set(drivername="postgresql+psycopg")
    engine = create_engine(url)
    place.outbox.tables.metadata.create_all(engine)
    engine.dispose()
    await place.store.open()
    rows = await place.deliver(await own(place.store), 3)
    place.clock.advance(3 * DAY)
    assert await place.store.replay([rows[0].id], new_id=False) == 1
    assert await place.clean(DAY) == 3
    assert place.partitions() == set()
    await place.store.close()


@pytest.mark.parametrize("through", ["outbox", "store"])
async def test_whoever_makes_the_tables_divides_the_archive(empty_database: Callable[[str], str], through: str) -> None:
    place = Place(empty_database("postgresql-15"), FakeClock())
    if through == "outbox":
        with psycopg.connect(place.url) as connection:
            place.outbox.create_tables(connection)
            place.outbox.create_tables(connection)
    else:
        await place.store.open()
        await place.store.close()
    assert "default" in place.partitions()
    indexes = "SELECT indexname FROM pg_indexes WHERE tablename = 'postroom_archive' ORDER BY 1"
    assert place.ask(indexes) == [
        ("postroom_archive_by_id",), ("postroom_archive_pkey",), ("postroom_archive_undelivered",),
    ]  # fmt: skip


async def test_the_archive_can_be_made_as_sql_in_a_schema_of_its_own(empty_database: Callable[[str], str]) -> None:
    place = Place(empty_database("postgresql-15"), FakeClock())
    place.ask("CREATE SCHEMA messaging")
    place.ask(Outbox(schema="messaging").ddl("postgresql"))
    store = PostgresqlStore(place.url, schema="messaging", clock=place.clock)
    await store.open()
    place.clock.advance(9 * DAY)
    await store.clean(retention=DAY, limit=10)
    await store.close()
    named = "SELECT count(*) FROM pg_class WHERE relname LIKE 'postroom\\_archive\\_2%' AND relkind = 'r'"
    assert place.ask(named) == [(3,)]


async def test_delivery_goes_on_while_days_are_dropped(place: Place) -> None:
    owner = await own(place.store, ttl=DAY * 100)
    for _ in range(6):
        await place.deliver(owner, 20)
        place.clock.advance(DAY)
        await place.store.clean(retention=30 * DAY, limit=1000)
    stopping = asyncio.Event()
    delivered: list[str] = []

    async def go_on() -> None:
        while not stopping.is_set():
            delivered.extend(row.id for row in await place.deliver(owner, 10))

    delivery = asyncio.create_task(go_on())
    assert await place.clean(DAY) >= 80
    stopping.set()
    await delivery
    assert delivered
    kept = {entry.message.id for entry in await place.store.entries(Query(state="delivered", limit=10_000))}
    assert set(delivered) <= kept
