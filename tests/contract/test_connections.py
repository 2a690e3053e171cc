"""Every kind of connection passes the same suite: here those of SQLite and the memory store."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import Any

import aiosqlite
import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from postroom.message import Message
from postroom.outbox import Outbox
from postroom.ports import Query, Settlement
from postroom.stores.memory import MemoryStore
from postroom.testing.inbox_contract import InboxContract

from .connection_kinds import (
    OnSqlite,
    UsesAsyncConnection,
    UsesAsyncScopedSession,
    UsesAsyncSession,
    UsesConnection,
    UsesScopedSession,
    UsesSession,
    leave_transactions_to_sqlalchemy,
)


class OnAsyncSqlite(OnSqlite):
    @pytest.fixture(autouse=True)
    async def async_database(self, database: None) -> AsyncIterator[None]:
        self.async_engine = create_async_engine(f"sqlite+aiosqlite:///{self.path}")
        leave_transactions_to_sqlalchemy(self.async_engine.sync_engine)
        yield
        await self.async_engine.dispose()


@contextmanager
def nested(connection: Any, name: str = "inner") -> Iterator[None]:
    connection.execute(f"SAVEPOINT {name}")
    try:
        yield
    except BaseException:
        connection.execute(f"ROLLBACK TO {name}")
        connection.execute(f"RELEASE {name}")
        raise
    connection.execute(f"RELEASE {name}")


class TestSqlite3Connection(OnSqlite):
    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        connection = sqlite3.connect(self.path)
        try:
            with connection:
                yield connection
        finally:
            connection.close()

    @asynccontextmanager
    async def savepoint(self, connection: sqlite3.Connection) -> AsyncIterator[None]:
        if not connection.in_transaction:
            connection.execute("BEGIN")
        with nested(connection):
            yield

    @asynccontextmanager
    async def autocommitting(self) -> AsyncIterator[Any]:
        connection = sqlite3.connect(self.path, isolation_level=None)
        yield connection
        connection.close()


class TestSqlite3ConnectionWithItsOwnFactoriesAndBegin(TestSqlite3Connection):
    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        connection = sqlite3.connect(self.path, isolation_level=None)
        connection.row_factory = lambda cursor, row: {"not": "a tuple"}
        connection.text_factory = bytes
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        else:
            connection.execute("COMMIT")
        finally:
            connection.close()


class TestAiosqliteConnection(OnSqlite):
    is_async = True

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with aiosqlite.connect(self.path) as connection:
            connection.row_factory = aiosqlite.Row
            try:
                yield connection
            except BaseException:
                await connection.rollback()
                raise
            await connection.commit()

    @asynccontextmanager
    async def savepoint(self, connection: aiosqlite.Connection) -> AsyncIterator[None]:
        if not connection.in_transaction:
            await connection.execute("BEGIN")
        await connection.execute("SAVEPOINT inner")
        try:
            yield
        except BaseException:
            await connection.execute("ROLLBACK TO inner")
            await connection.execute("RELEASE inner")
            raise
        await connection.execute("RELEASE inner")

    @asynccontextmanager
    async def autocommitting(self) -> AsyncIterator[Any]:
        async with aiosqlite.connect(self.path, isolation_level=None) as connection:
            yield connection


class TestSqlalchemyConnection(UsesConnection, OnSqlite):
    pass


class TestSqlalchemyAsyncConnection(UsesAsyncConnection, OnAsyncSqlite):
    pass


class TestSqlalchemySession(UsesSession, OnSqlite):
    pass


class TestSqlalchemyScopedSession(UsesScopedSession, OnSqlite):
    pass


class TestSqlalchemyAsyncSession(UsesAsyncSession, OnAsyncSqlite):
    pass


class TestSqlalchemyAsyncSessionWithAddAsync(UsesAsyncSession, OnAsyncSqlite):
    is_async = True


class TestSqlalchemyAsyncScopedSession(UsesAsyncScopedSession, OnAsyncSqlite):
    pass


class TestMemoryTransaction(InboxContract):
    is_sql = False

    @pytest.fixture(autouse=True)
    def store(self) -> None:
        self.memory = MemoryStore()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        with self.memory.begin() as transaction:
            yield transaction

    @asynccontextmanager
    async def savepoint(self, connection: Any) -> AsyncIterator[None]:
        with connection.savepoint():
            yield

    async def written(self, outbox: Outbox) -> list[Message]:
        return [entry.message for entry in await self.memory.entries(Query(state="pending", limit=10_000))]

    async def waiting(self, outbox: Outbox) -> list[tuple[Message, datetime]]:
        entries = await self.memory.entries(Query(state="later"))
        return [(entry.message, entry.due_at) for entry in entries if entry.due_at is not None]

    async def deliver(self, outbox: Outbox) -> None:
        await self.memory.settle(Settlement(relay="r", epochs={}, delivered=await self.written(outbox)))

    async def now(self) -> datetime:
        return datetime.now(UTC)
