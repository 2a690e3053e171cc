"""SQLite: no set-up at all. Several processes may share one file."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import aiosqlite
from sqlalchemy import (
    URL,
    BindParameter,
    ColumnElement,
    Connection,
    Delete,
    Insert,
    NullPool,
    StaticPool,
    Table,
    bindparam,
    create_engine,
    delete,
    exists,
    func,
    make_url,
    select,
)
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from ..clock import Clock, SystemClock
from ..errors import ConfigurationError, StoreError, StoreUnavailable, TablesMissing
from ..message import SLOTS
from ..ports import Beat, Finding, Leases, Settled, Settlement, Wakeup
from ..redact import redact
from . import sqlite_doctor
from .sql import Polling, Rows, SqlStore, uninterrupted
from .sql_settle import is_plain
from .sql_transaction import SqlDialect, Transaction

BUSY_TIMEOUT = 2.0
"""Seconds to wait for another process's transaction."""

MAY_PASS = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
}
PRIMARY_CODE = 0xFF

T = TypeVar("T")


def _is_listed(column: ColumnElement[Any], values: Any) -> ColumnElement[bool]:
    return column.in_(select(func.json_each(values).table_valued("value").c.value))


class SqliteDialect(SqlDialect):
    @property
    def driver_errors(self) -> tuple[type[Exception], ...]:
        return (sqlite3.Error,)

    def among(self, column: ColumnElement[Any], values: Iterable[Any]) -> ColumnElement[bool]:
        """As one JSON parameter: the statement is the same for any number of values, and is prepared once."""
        return _is_listed(column, json.dumps(list(values)))

    def insert_missing(self, table: Table) -> Insert:
        return insert(table).on_conflict_do_nothing()

    def matches(self, column: ColumnElement[str], pattern: str) -> ColumnElement[bool]:
        return column.op("GLOB", is_comparison=True)(pattern.replace("[!", "[^"))

    def comparable(self, moment: ColumnElement[Any]) -> ColumnElement[Any]:
        """Times are texts here, with as many digits as their writer had."""
        return func.strftime("%Y-%m-%d %H:%M:%f", moment)

    def is_unavailable(self, error: BaseException) -> bool:
        return getattr(error, "sqlite_errorcode", 0) & PRIMARY_CODE in MAY_PASS

    def is_table_missing(self, error: BaseException) -> bool:
        return "no such table" in str(error)

    @property
    def checks(self) -> Mapping[str, Callable[[Transaction], Finding]]:
        return sqlite_doctor.CHECKS


class SqliteStore(SqlStore):
    """A file, or with `sqlite://` a database in memory that lives as long as the store is open.

    The store has one connection, and its methods take turns on it: SQLite has one writer at a time anyway, and
    `PRAGMA data_version` tells of everybody's commits but those of its own connection.
    """

    workers = 1
    dialect = SqliteDialect()

    def __init__(
        self,
        url: str,
        *,
        name: str = "default",
        prefix: str | None = None,
        schema: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        if schema is not None:
            raise ConfigurationError(f"SQLite has no schemas, so {schema!r} cannot be used: set a prefix instead")
        # The database is in this process, so its clock is this process's clock.
        super().__init__(url, name=name, prefix=prefix, clock=clock or SystemClock())
        self._driver_url = _driver_url(url)
        self._turn = asyncio.Lock()
        self._connection: AsyncConnection | None = None
        self._driver: aiosqlite.Connection | None = None
        self._blocking: Connection | None = None
        self._first_version = 0
        self._identity: tuple[int, int] | None = None

    # --- open and close

    async def _connect(self, create_tables: bool) -> None:
        self._check_path(create_tables)
        await super()._connect(create_tables)
        self._turn = asyncio.Lock()
        with self._errors_translated():
            await uninterrupted(self._attach())

    async def _attach(self) -> None:
        self._connection = await self._opened().connect()
        driver: Any = (await self._connection.get_raw_connection()).driver_connection
        self._driver = driver
        await _use_wal(driver)
        # Durable enough for a relay: a settlement lost with the power is a duplicate. It is this connection's setting,
        # so the application's own commits are as durable as it made them.
        await driver.execute_fetchall("PRAGMA synchronous = NORMAL")
        self._identity = self._file()
        # The same connection once more, for use on its own thread.
        engine = create_engine("sqlite://", creator=lambda: driver._conn, poolclass=StaticPool)
        self._blocking = await self._on_thread(engine.connect)
        self._first_version = await self._data_version()

    def _create_engine(self) -> AsyncEngine:
        # No isolation level: the driver begins nothing by itself, `_begin` does.
        options = {"timeout": BUSY_TIMEOUT, "isolation_level": None}
        return create_async_engine(self._driver_url, poolclass=NullPool, connect_args=options)

    def _check_path(self, create_tables: bool) -> None:
        path = _path(self._driver_url)
        if path is None or "uri" in self._driver_url.query:
            return  # SQLite's own kind of URL says more than where the file is
        folder = os.path.dirname(os.path.abspath(path))
        if not os.path.isdir(folder):
            raise StoreError(f"{self._shown_url}: the folder {folder} does not exist")
        if os.path.isdir(path):
            raise StoreError(f"{self._shown_url}: {path} is a folder, not a database")
        if not create_tables and not os.path.exists(path):
            raise TablesMissing(f"{self._shown_url}: there is no such file; run 'postroom init'")

    async def _disconnect(self) -> None:
        async with self._turn:
            if self._blocking is not None:
                await uninterrupted(self._on_thread(self._blocking.close))
            connection, self._connection, self._driver, self._blocking = self._connection, None, None, None
            if connection is not None:
                await uninterrupted(connection.close())
            await super()._disconnect()

    async def renew(self, beat: Beat) -> Leases:
        """The connection would go on with a file that was deleted or replaced, and nobody would notice."""
        if self._file() != self._identity:
            await self._disconnect()
            await self._connect(create_tables=True)
            await self._set_up(None, create_tables=True)
        return await super().renew(beat)

    def _file(self) -> tuple[int, int] | None:
        """Which file it is: a restored backup has the same name and is another one."""
        path = _path(self._driver_url)
        if path is None or "uri" in self._driver_url.query:
            return None
        try:
            found = os.stat(path)
        except FileNotFoundError:
            raise StoreUnavailable(f"{self._shown_url}: the file is gone; restore it, or stop the relay") from None
        return found.st_dev, found.st_ino

    # --- taking turns on the connection

    async def _perform(self, write: bool, work: Callable[[Transaction], T]) -> T:
        """Once begun it is finished, also when cancelled: the next one finds the connection between transactions.

        The whole transaction is one function on the connection's own thread. Were it to come back to the event loop
        between statements, an application that blocks the loop while it waits for the lock would wait for itself.
        """
        with self._errors_translated():
            async with self._turn:
                return await uninterrupted(self._on_thread(lambda: self._run(write, work)))

    def _run(self, write: bool, work: Callable[[Transaction], T]) -> T:
        connection = self._blocking or self._refuse()
        with connection.begin():
            # At once for writers: a transaction that reads first and writes then may find that it came too late.
            connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")
            return work(self._transaction(connection))

    async def _on_thread(self, function: Callable[[], T]) -> T:
        driver: Any = self._attached()
        return await driver._execute(function)  # nothing public runs a function there

    @asynccontextmanager
    async def _begin(self, write: bool) -> AsyncGenerator[AsyncConnection]:
        connection = self._connection or self._refuse()
        async with connection.begin():
            # At once for writers: a transaction that reads first and writes then may find that it came too late.
            await self._attached().execute_fetchall("BEGIN IMMEDIATE" if write else "BEGIN")
            yield connection

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[AsyncConnection]:
        """The store's own connection in a transaction: the way to write to a database in memory."""
        with self._errors_translated():
            async with self._turn, self._begin(True) as connection:
                yield connection

    def _attached(self) -> aiosqlite.Connection:
        return self._driver or self._refuse()

    # --- the hot path, past SQLAlchemy: one hop to the connection's thread per statement instead of four

    async def _driver_rows(self, sql: str, parameters: tuple[Any, ...]) -> Rows:
        with self._errors_translated():
            async with self._turn:
                return [*await self._attached().execute_fetchall(sql, parameters)]

    async def settle(self, settlement: Settlement) -> Settled:
        if is_plain(settlement) and await self._delete_hot([message.position for message in settlement.delivered]):
            return Settled()
        return await super().settle(settlement)

    async def _delete_hot(self, positions: Sequence[int]) -> bool:
        """Delete delivered rows in one statement, which is one transaction; whether that was all there was to do.

        If not (some row is elsewhere, or one holds its key), settling them all again in full does the rest. A statement
        that is under way is finished by the connection's thread even if the caller is cancelled.
        """
        tables = self.tables
        prepared = self._prepare("delivered", lambda: _delete_unheld(tables.hot, tables.holds))
        listed = json.dumps(positions)
        with self._errors_translated():
            async with self._turn:
                cursor = await self._attached().execute(prepared.sql, (listed, listed))
        return cursor.rowcount == len(positions)

    # --- waking up

    @asynccontextmanager
    async def wakeup(self, poll_interval: float) -> AsyncGenerator[Wakeup]:
        if _path(self._driver_url) is None:
            yield Polling()  # whoever writes to a database in memory does so on the store's own connection
        else:
            yield DataVersion(self._data_version_in_turn, self._first_version, poll_interval)

    async def _data_version_in_turn(self) -> int:
        with self._errors_translated():
            async with self._turn:
                return await self._data_version()

    async def _data_version(self) -> int:
        [(version,)] = await self._attached().execute_fetchall("PRAGMA data_version")
        return version


class DataVersion:
    """Asks for a number that changes with every commit of another connection, in whatever process."""

    name = "data_version"
    rings = True

    def __init__(self, read: Callable[[], Awaitable[int]], seen: int, poll_interval: float) -> None:
        self._read = read
        self._seen = seen
        self._poll_interval = poll_interval

    async def doze(self, slots: Collection[int]) -> None: ...

    async def rouse(self, slots: Collection[int]) -> None: ...

    async def wait(self, timeout: float) -> Collection[int]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while not await self._has_changed():
            left = deadline - loop.time()
            if left <= 0:
                return ()
            await asyncio.sleep(min(self._poll_interval, left))
        return range(SLOTS)

    async def _has_changed(self) -> bool:
        before, self._seen = self._seen, await self._read()
        return self._seen != before


async def _use_wal(driver: aiosqlite.Connection) -> None:
    """Readers and the writer do not wait for each other. SQLite does not wait for its turn to switch, so we do."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + BUSY_TIMEOUT
    while True:
        try:
            await driver.execute_fetchall("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            code = error.sqlite_errorcode & PRIMARY_CODE
            if code == sqlite3.SQLITE_READONLY:
                return
            if code != sqlite3.SQLITE_BUSY or loop.time() > deadline:
                raise
        await asyncio.sleep(0.01)


def _delete_unheld(hot: Table, holds: Table) -> Delete:
    """None of the rows, if one of them holds its key."""
    listed: BindParameter[str] = bindparam("positions")
    is_held = exists().where(_is_listed(holds.c.position, listed))
    return delete(hot).where(_is_listed(hot.c.position, listed), ~is_held)


def _driver_url(text: str) -> URL:
    try:
        url = make_url(text)
    except ArgumentError as error:
        raise ConfigurationError(f"{text!r} is not the URL of a database, such as 'sqlite:///app.db'") from error
    if url.drivername not in ("sqlite", "sqlite+aiosqlite", "sqlite+pysqlite"):
        raise ConfigurationError(f"{redact(text)} is not the URL of an SQLite database, such as 'sqlite:///app.db'")
    return url.set(drivername="sqlite+aiosqlite")


def _path(url: URL) -> str | None:
    """The file; None for a database in memory."""
    return None if url.database in (None, "", ":memory:") else url.database
