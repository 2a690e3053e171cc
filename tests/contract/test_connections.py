"""Every kind of connection passes the same suite."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from postroom.message import Message
from postroom.outbox import Outbox
from postroom.ports import Query, Settlement
from postroom.stores.memory import MemoryStore
from postroom.testing.connection_contract import ConnectionContract, SqlConnectionContract


def leave_transactions_to_sqlalchemy(engine: Engine) -> None:
    """SQLAlchemy's recipe for savepoints: sqlite3's own transaction control does not know them."""

    @event.listens_for(engine, "connect")
    def no_implicit_begin(connection: Any, record: Any) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")


@pytest.fixture(scope="module")
def with_tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with the tables in it, to be copied: making them takes longer than a test."""
    path = tmp_path_factory.mktemp("template") / "app.db"
    connection = sqlite3.connect(path)
    Outbox().create_tables(connection)
    connection.close()
    return path


class OnSqlite(SqlConnectionContract):
    path: Path

    @pytest.fixture(autouse=True)
    def database(self, tmp_path: Path, with_tables: Path) -> Iterator[None]:
        self.path = tmp_path / "app.db"
        shutil.copy(with_tables, self.path)
        self.engine = create_engine(f"sqlite:///{self.path}")
        leave_transactions_to_sqlalchemy(self.engine)
        yield
        self.engine.dispose()

    def reader(self) -> Engine:
        return self.engine


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


class TestSqlalchemyConnection(OnSqlite):
    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        with self.engine.begin() as connection:
            yield connection

    @asynccontextmanager
    async def savepoint(self, connection: Any) -> AsyncIterator[None]:
        with connection.begin_nested():
            yield

    @asynccontextmanager
    async def autocommitting(self) -> AsyncIterator[Any]:
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            yield connection


class TestSqlalchemyAsyncConnection(OnAsyncSqlite):
    is_async = True

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self.async_engine.begin() as connection:
            yield connection

    @asynccontextmanager
    async def savepoint(self, connection: Any) -> AsyncIterator[None]:
        async with connection.begin_nested():
            yield

    @asynccontextmanager
    async def autocommitting(self) -> AsyncIterator[Any]:
        async with self.async_engine.connect() as connection:
            yield await connection.execution_options(isolation_level="AUTOCOMMIT")


class TestSqlalchemySession(OnSqlite):
    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        with Session(self.engine) as session, session.begin():
            yield session

    @asynccontextmanager
    async def savepoint(self, connection: Any) -> AsyncIterator[None]:
        with connection.begin_nested():
            yield

    @asynccontextmanager
    async def autocommitting(self) -> AsyncIterator[Any]:
        with Session(self.engine.execution_options(isolation_level="AUTOCOMMIT")) as session:
            yield session


class TestSqlalchemyScopedSession(TestSqlalchemySession):
    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        sessions = scoped_session(sessionmaker(self.engine))
        try:
            with sessions.begin():
                yield sessions
        finally:
            sessions.remove()


class TestSqlalchemyAsyncSession(OnAsyncSqlite):
    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with AsyncSession(self.async_engine) as session, session.begin():
            yield session

    @asynccontextmanager
    async def savepoint(self, connection: Any) -> AsyncIterator[None]:
        async with connection.begin_nested():
            yield

    @asynccontextmanager
    async def autocommitting(self) -> AsyncIterator[Any]:
        async with AsyncSession(self.async_engine.execution_options(isolation_level="AUTOCOMMIT")) as session:
            yield session


class TestSqlalchemyAsyncSessionWithAddAsync(TestSqlalchemyAsyncSession):
    is_async = True


class TestSqlalchemyAsyncScopedSession(TestSqlalchemyAsyncSession):
    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        sessions = async_scoped_session(async_sessionmaker(self.async_engine), scopefunc=lambda: 1)
        try:
            async with sessions.begin():
                yield sessions
        finally:
            await sessions.remove()


class TestMemoryTransaction(ConnectionContract):
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
