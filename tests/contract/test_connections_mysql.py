"""Every kind of connection to MySQL and MariaDB passes the suite."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiomysql
import asyncmy
import pymysql
from pymysql.cursors import SSDictCursor
from sqlalchemy import text

from .connection_kinds import (
    OnServer,
    UsesAsyncConnection,
    UsesAsyncScopedSession,
    UsesAsyncSession,
    UsesConnection,
    UsesScopedSession,
    UsesSession,
)


def new_name() -> str:
    """A savepoint here replaces an earlier one of the same name."""
    return f"inside_{next(numbers)}"


numbers = itertools.count()


class OnMysql(OnServer):
    server = "mariadb"
    driver = "mysql+pymysql"
    async_driver = "mysql+asyncmy"
    creates_tables = False
    database_option = "database"

    @property
    def options(self) -> dict[str, Any]:
        url = self.url
        return {
            "host": url.host,
            "port": url.port or 3306,
            "user": url.username or "root",
            "password": url.password or "",
            self.database_option: url.database,
        }

    @asynccontextmanager
    async def repeatable_read(self) -> AsyncIterator[Any]:
        """The level of every transaction here, unless somebody says otherwise."""
        async with self.transaction() as connection:
            yield connection

    async def is_anybody_waiting(self) -> bool:
        waiting = text(
            "SELECT count(*) FROM information_schema.innodb_trx JOIN information_schema.processlist "
            "ON id = trx_mysql_thread_id WHERE trx_state = 'LOCK WAIT' AND db = database()"
        )
        # It answers from memory if it was asked less than 100 ms ago, by whomever: other tests ask at the same time.
        await asyncio.sleep(0.12)
        with self.engine.connect() as connection:
            if connection.scalar(waiting):
                return True
        await asyncio.sleep(random.uniform(0, 0.38))
        return False


class TestPymysqlConnection(OnMysql):
    @property
    def options(self) -> dict[str, Any]:
        """Without a password there is nothing to protect, and reading all certificates takes 20 ms."""
        return {**super().options, "ssl_disabled": not self.url.password}

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        with pymysql.connect(**self.options) as connection:
            yield connection
            connection.commit()

    @asynccontextmanager
    async def savepoint(self, connection: Any) -> AsyncIterator[None]:
        name = new_name()
        connection.query(f"SAVEPOINT {name}")
        try:
            yield
        except BaseException:
            connection.query(f"ROLLBACK TO SAVEPOINT {name}")
            raise
        connection.query(f"RELEASE SAVEPOINT {name}")

    async def execute(self, connection: Any, sql: str) -> None:
        connection.query(sql)

    @asynccontextmanager
    async def autocommitting(self) -> AsyncIterator[Any]:
        with pymysql.connect(**self.options, autocommit=True) as connection:
            yield connection


class TestPymysqlConnectionWithItsOwnCursorsAndBegin(TestPymysqlConnection):
    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        mode = "SET sql_mode = CONCAT(@@sql_mode, ',NO_BACKSLASH_ESCAPES,ANSI_QUOTES')"
        options: dict[str, Any] = {"autocommit": True, "cursorclass": SSDictCursor, "use_unicode": False}
        with pymysql.connect(**self.options, **options, init_command=mode) as connection:
            connection.begin()
            yield connection
            connection.commit()


class UsesAsyncDriver(OnMysql):
    is_async = True
    library: Any

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        connection = await self.library.connect(**self.options)
        try:
            yield connection
            await connection.commit()
        finally:
            connection.close()

    @asynccontextmanager
    async def savepoint(self, connection: Any) -> AsyncIterator[None]:
        name = new_name()
        await connection.query(f"SAVEPOINT {name}")
        try:
            yield
        except BaseException:
            await connection.query(f"ROLLBACK TO SAVEPOINT {name}")
            raise
        await connection.query(f"RELEASE SAVEPOINT {name}")

    async def execute(self, connection: Any, sql: str) -> None:
        await connection.query(sql)

    @asynccontextmanager
    async def autocommitting(self) -> AsyncIterator[Any]:
        connection = await self.library.connect(**self.options, autocommit=True)
        yield connection
        connection.close()


class TestAiomysqlConnection(UsesAsyncDriver):
    library = aiomysql
    database_option = "db"


class TestAsyncmyConnection(UsesAsyncDriver):
    library = asyncmy


class UsesPool(UsesAsyncDriver):
    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        mode = "SET sql_mode = CONCAT(@@sql_mode, ',NO_BACKSLASH_ESCAPES')"
        pool = await self.library.create_pool(**self.options, minsize=1, maxsize=1, autocommit=True, init_command=mode)
        try:
            async with pool.acquire() as connection:
                await connection.begin()
                yield connection
                await connection.commit()
        finally:
            pool.close()
            await pool.wait_closed()


class TestAiomysqlPooledConnection(UsesPool):
    library = aiomysql
    database_option = "db"


class TestAsyncmyPooledConnection(UsesPool):
    library = asyncmy


class TestSqlalchemyConnection(UsesConnection, OnMysql):
    pass


class TestSqlalchemyConnectionCalledMariadb(UsesConnection, OnMysql):
    driver = "mariadb+pymysql"


class TestSqlalchemySession(UsesSession, OnMysql):
    pass


class TestSqlalchemyScopedSession(UsesScopedSession, OnMysql):
    pass


class TestSqlalchemyAsyncConnection(UsesAsyncConnection, OnMysql):
    pass


class TestSqlalchemyAsyncSession(UsesAsyncSession, OnMysql):
    pass


class TestSqlalchemyAsyncScopedSession(UsesAsyncScopedSession, OnMysql):
    pass


class TestSqlalchemyAsyncConnectionOfAiomysql(UsesAsyncConnection, OnMysql):
    async_driver = "mysql+aiomysql"


class TestSqlalchemyAsyncSessionOfAiomysql(UsesAsyncSession, OnMysql):
    async_driver = "mysql+aiomysql"
