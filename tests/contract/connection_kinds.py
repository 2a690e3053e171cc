"""What the contract classes share: a database in a file or on a server, and how SQLAlchemy is used on any of them."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, ClassVar

import pytest
from sqlalchemy import URL, Engine, create_engine, delete, event, inspect, make_url, text
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from postroom.inbox import Inbox
from postroom.outbox import Outbox
from postroom.testing.inbox_contract import ServerInboxContract, SqlInboxContract
from tests import services
from tests.conftest import server_url

DEFAULT = Outbox()
INBOX = Inbox()


def leave_transactions_to_sqlalchemy(engine: Engine) -> None:
    """SQLAlchemy's recipe for savepoints: sqlite3's own transaction control does not know them."""

    @event.listens_for(engine, "connect")
    def no_implicit_begin(connection: Any, record: Any) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")


class OnSqlite(SqlInboxContract):
    """A new file for each test, copied with its tables in it: making them takes longer than a test."""

    template: ClassVar[Path]
    path: Path

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def with_tables(cls, tmp_path_factory: pytest.TempPathFactory) -> None:
        cls.template = tmp_path_factory.mktemp("template") / "app.db"
        with closing(sqlite3.connect(cls.template)) as connection:
            DEFAULT.create_tables(connection)
            INBOX.create_tables(connection)

    @pytest.fixture(autouse=True)
    def database(self, tmp_path: Path, with_tables: None) -> Iterator[None]:
        self.path = tmp_path / "app.db"
        shutil.copy(self.template, self.path)
        self.engine = create_engine(f"sqlite:///{self.path}")
        leave_transactions_to_sqlalchemy(self.engine)
        yield
        self.engine.dispose()

    def reader(self) -> Engine:
        return self.engine


class OnServer(ServerInboxContract):
    """A database of its own for each class, with the tables of the default outbox and inbox in it, emptied before each
    test."""

    server: ClassVar[str]
    driver: ClassVar[str]
    """The sync one, for `engine`, which reads too."""
    async_driver: ClassVar[str]

    url: ClassVar[URL]
    engine: ClassVar[Engine]

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def database(cls) -> Iterator[None]:
        server_url(cls.server)
        with services.fresh_database(cls.server) as url:
            cls.url = make_url(url)
            cls.engine = create_engine(cls.url.set(drivername=cls.driver))
            DEFAULT.create_tables(cls.engine)
            INBOX.create_tables(cls.engine)
            yield
            cls.engine.dispose()

    @pytest.fixture(autouse=True)
    def emptied(self, database: None) -> None:
        tables = DEFAULT.tables
        with self.engine.begin() as connection:
            for table in (tables.hot, tables.later, tables.dedupe, tables.counters, *INBOX.tables.all()):
                connection.execute(delete(table))
            known = [*tables.all(), *INBOX.tables.all()]
            ours = {table.name for table in known} | {f"{tables.archive.name}_default"}
            for name in set(inspect(connection).get_table_names()) - ours:
                connection.execute(text(f"DROP TABLE IF EXISTS {name}"))  # a partition goes with its table

    @pytest.fixture(autouse=True)
    async def async_database(self, database: None) -> AsyncIterator[None]:
        self.async_engine = create_async_engine(self.url.set(drivername=self.async_driver), poolclass=NullPool)
        yield
        await self.async_engine.dispose()

    def reader(self) -> Engine:
        return self.engine


class UsesConnection:
    engine: Engine

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        with self.engine.begin() as connection:
            yield connection

    @asynccontextmanager
    async def savepoint(self, connection: Any) -> AsyncIterator[None]:
        with connection.begin_nested():
            yield

    async def execute(self, connection: Any, sql: str) -> None:
        connection.execute(text(sql))

    @asynccontextmanager
    async def autocommitting(self) -> AsyncIterator[Any]:
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            yield connection


class UsesAsyncConnection:
    is_async = True
    async_engine: AsyncEngine

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self.async_engine.begin() as connection:
            yield connection

    @asynccontextmanager
    async def savepoint(self, connection: Any) -> AsyncIterator[None]:
        async with connection.begin_nested():
            yield

    async def execute(self, connection: Any, sql: str) -> None:
        await connection.execute(text(sql))

    @asynccontextmanager
    async def autocommitting(self) -> AsyncIterator[Any]:
        async with self.async_engine.connect() as connection:
            yield await connection.execution_options(isolation_level="AUTOCOMMIT")


class UsesSession:
    writes_at_commit = True
    engine: Engine

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        with Session(self.engine) as session, session.begin():
            yield session

    @asynccontextmanager
    async def savepoint(self, connection: Any) -> AsyncIterator[None]:
        with connection.begin_nested():
            yield

    async def execute(self, connection: Any, sql: str) -> None:
        connection.execute(text(sql))

    @asynccontextmanager
    async def autocommitting(self) -> AsyncIterator[Any]:
        with Session(self.engine.execution_options(isolation_level="AUTOCOMMIT")) as session:
            yield session


class UsesScopedSession(UsesSession):
    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        sessions = scoped_session(sessionmaker(self.engine))
        try:
            with sessions.begin():
                yield sessions
        finally:
            sessions.remove()


class UsesAsyncSession:
    writes_at_commit = True
    inbox_is_async = True
    async_engine: AsyncEngine

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with AsyncSession(self.async_engine) as session, session.begin():
            yield session

    @asynccontextmanager
    async def savepoint(self, connection: Any) -> AsyncIterator[None]:
        async with connection.begin_nested():
            yield

    async def execute(self, connection: Any, sql: str) -> None:
        await connection.execute(text(sql))

    @asynccontextmanager
    async def autocommitting(self) -> AsyncIterator[Any]:
        async with AsyncSession(self.async_engine.execution_options(isolation_level="AUTOCOMMIT")) as session:
            yield session


class UsesAsyncScopedSession(UsesAsyncSession):
    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        sessions = async_scoped_session(async_sessionmaker(self.async_engine), scopefunc=lambda: 1)
        try:
            async with sessions.begin():
                yield sessions
        finally:
            await sessions.remove()
