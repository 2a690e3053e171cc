"""What is particular about inboxes on PostgreSQL and MySQL: their tables, and handlers with connections of drivers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import asyncmy
import asyncpg
import psycopg
import pymysql
import pytest
from sqlalchemy import Engine, create_engine, inspect, make_url, text

from postroom.errors import TablesMissing
from postroom.inbox import Inbox
from postroom.testing.inbox_contract import numbered
from postroom.wire.received import Received

from ..conftest import Database


@pytest.fixture
def engine(empty_database: Database) -> Iterator[Engine]:
    engine = create_engine(make_url(empty_database("postgresql-15")).set(drivername="postgresql+psycopg"))
    yield engine
    engine.dispose()


def handle(engine: Engine, inbox: Inbox, id: str) -> bool:
    with engine.begin() as connection:
        return inbox.first_time(connection, id)


def test_two_first_calls_at_once_do_not_collide(engine: Engine) -> None:
    inbox = Inbox()
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: handle(engine, inbox, "1"), range(4)))
    assert sorted(answers) == [False, False, False, True]


def test_tables_that_vanish_are_missed_once_and_then_made_again(engine: Engine) -> None:
    inbox = Inbox()
    assert [handle(engine, inbox, id) for id in ("1", "2")] == [True, True]
    inbox.tables.metadata.drop_all(engine)
    with pytest.raises(TablesMissing):
        handle(engine, inbox, "3")
    assert handle(engine, inbox, "1")


def test_a_schema_holds_the_tables_and_may_be_translated(engine: Engine) -> None:
    inbox = Inbox(schema="Odd Name")
    with engine.begin() as connection:
        connection.execute(text('CREATE SCHEMA IF NOT EXISTS "Odd Name"'))
    with engine.begin() as connection:
        assert inbox.first_time(connection, "1")
        assert inbox.in_turn(connection, numbered(1))
        assert inbox.clean(connection) == 0
    assert not handle(engine, inbox, "1")
    assert inspect(engine).get_table_names() == []
    other = engine.execution_options(schema_translate_map={"Odd Name": None})
    assert [handle(other, inbox, "1"), handle(other, inbox, "1")] == [True, False]
    with engine.begin() as connection:
        connection.execute(text('DROP SCHEMA "Odd Name" CASCADE'))


def test_the_tables_of_an_inbox_are_made_through_any_connection_to_mysql(empty_database: Database) -> None:
    engine = create_engine(make_url(empty_database("mariadb")).set(drivername="mysql+pymysql"))
    inbox = Inbox()
    with pytest.raises(TablesMissing, match="postroom inbox init"):
        handle(engine, inbox, "1")
    for _ in range(2):
        inbox.create_tables(engine)
    assert handle(engine, inbox, "1")
    engine.dispose()


# --- handlers with the connections of drivers, which do not all commit at the end of their block


MESSAGE = Received(id="1")


def check_handler(inbox: Inbox, engine: Engine, make: Callable[[], Any]) -> None:
    fails = [False, True]

    @inbox.once(consumer="billing", session=make)
    def handle(received: Received, connection: Any) -> str:
        if fails.pop():
            raise LookupError
        return "handled"

    inbox.create_tables(engine)
    with pytest.raises(LookupError):
        handle(MESSAGE)
    assert [handle(MESSAGE), handle(MESSAGE)] == ["handled", None]
    with engine.begin() as connection:
        assert not inbox.first_time(connection, "1", consumer="billing")


async def check_async_handler(inbox: Inbox, engine: Engine, make: Callable[[], Any]) -> None:
    fails = [False, True]

    @inbox.once(consumer="billing", session=make)
    async def handle(received: Received, connection: Any) -> str:
        if fails.pop():
            raise LookupError
        return "handled"

    inbox.create_tables(engine)
    with pytest.raises(LookupError):
        await handle(MESSAGE)
    assert [await handle(MESSAGE), await handle(MESSAGE)] == ["handled", None]
    with engine.begin() as connection:
        assert not inbox.first_time(connection, "1", consumer="billing")


@pytest.mark.parametrize("autocommit", [False, True])
async def test_a_handler_may_have_a_connection_of_psycopg(engine: Engine, autocommit: bool) -> None:
    url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    check_handler(Inbox(), engine, lambda: psycopg.connect(url, autocommit=autocommit))

    @asynccontextmanager
    async def connected() -> AsyncIterator[Any]:
        async with await psycopg.AsyncConnection.connect(url, autocommit=autocommit) as connection:
            yield connection

    await check_async_handler(Inbox("other"), engine, connected)


async def test_a_handler_may_have_a_connection_of_a_pool_of_asyncpg(engine: Engine) -> None:
    url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool:
        await check_async_handler(Inbox(), engine, pool.acquire)


async def test_a_handler_may_have_a_connection_to_mysql(empty_database: Database) -> None:
    url = make_url(empty_database("mariadb")).set(drivername="mysql+pymysql")
    engine = create_engine(url)
    options: dict[str, Any] = {"host": url.host, "port": url.port, "user": url.username, "password": url.password or ""}
    check_handler(Inbox(), engine, lambda: pymysql.connect(**options, database=url.database))
    async with asyncmy.create_pool(**options, database=url.database, minsize=1, maxsize=1) as pool:
        await check_async_handler(Inbox("other"), engine, pool.acquire)
    engine.dispose()
