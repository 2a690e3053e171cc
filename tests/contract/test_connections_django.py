"""Django's connections pass the suite on each of its databases that Postroom knows."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from typing import Any, ClassVar

import django
import pymysql
import pytest
from django.conf import settings
from django.db import connections, transaction
from django.db.transaction import TransactionManagementError
from django.utils.connection import ConnectionProxy

from postroom.errors import NoTransactionError
from postroom.outbox import Outbox
from postroom.testing.connection_contract import ConnectionContract, Undo

from .connection_kinds import OnServer, OnSqlite
from .test_connections_mysql import OnMysql
from .test_connections_postgresql import OnPostgresql

ALIASES = ("default", "other")
atomic: Any = transaction.atomic

if not settings.configured:
    settings.configure(USE_TZ=True)
    django.setup()


class UsesDjango(ConnectionContract):
    """The other connection is for tests that need two at once: Django has one per name and thread."""

    @abstractmethod
    def place(self) -> dict[str, Any]: ...

    @pytest.fixture(autouse=True)
    def django_connections(self, database: None, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        connections.settings = connections.configure_settings({alias: self.place() for alias in ALIASES})

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        alias = next(alias for alias in ALIASES if not connections[alias].in_atomic_block)
        with closing(connections[alias]), atomic(using=alias):
            yield connections[alias]

    @asynccontextmanager
    async def savepoint(self, connection: Any) -> AsyncIterator[None]:
        with atomic(using=connection.alias):
            yield

    async def execute(self, connection: Any, sql: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(sql)

    @asynccontextmanager
    async def autocommitting(self) -> AsyncIterator[Any]:
        with closing(connections["default"]) as connection:
            yield connection

    async def test_listeners_hear_of_commits_that_wrote_something(self) -> None:
        outbox, heard = Outbox(), list[str]()
        unsubscribe = outbox.on_commit(lambda: heard.append("rung"))
        with suppress(Undo):
            async with self.transaction() as connection:
                await self.add(outbox, connection, "orders")
                raise Undo
        async with self.transaction() as connection:
            with suppress(Undo):
                async with self.savepoint(connection):
                    await self.add(outbox, connection, "orders")
                    raise Undo
        assert heard == []
        async with self.transaction() as connection:
            await self.add(outbox, connection, "orders")
            assert heard == []
        assert heard == ["rung"]
        unsubscribe()

    async def test_a_transaction_that_django_calls_broken_is_not_written_to(self) -> None:
        outbox = Outbox()
        async with self.transaction() as connection:
            transaction.set_rollback(True, using=connection.alias)
            with pytest.raises(TransactionManagementError):
                outbox.add(connection, "orders", b"1")
        assert await self.payloads(outbox) == []

    async def test_without_autocommit_no_block_is_needed(self) -> None:
        outbox = Outbox()
        async with self.autocommitting() as connection:
            connection.set_autocommit(False)
            outbox.add(connection, "orders", b"undone")
            connection.rollback()
            outbox.add(connection, "orders", b"1")
            connection.commit()
            connection.set_autocommit(True)
            with pytest.raises(NoTransactionError, match=r"'default'.*atomic"):
                outbox.add(connection, "orders", b"2")
        assert await self.payloads(outbox) == [b"1"]

    async def test_tables_can_be_created_through_it(self) -> None:
        outbox = Outbox("fresh", create_tables=False)
        async with self.autocommitting() as connection:
            outbox.create_tables(connection)
            outbox.create_tables(connection)
        await self.commit(outbox, "orders", b"1")
        assert await self.payloads(outbox) == [b"1"]

    async def test_errors_of_the_database_are_djangos_own(self) -> None:
        outbox = Outbox(create_tables=False)
        async with self.transaction() as connection:
            await self.add(outbox, connection, "orders", b"1")
            connection.connection.close()
            with pytest.raises(Exception) as caught:  # noqa: PT011 - which one, differs
                outbox.add(connection, "orders", b"2")
            assert type(caught.value).__module__.startswith("django.db")
            connection.closed_in_transaction = True


class OnServerWithDjango(UsesDjango, OnServer):
    engine_name: ClassVar[str]

    def place(self) -> dict[str, Any]:
        url = self.url
        return {
            "ENGINE": f"django.db.backends.{self.engine_name}",
            "NAME": url.database,
            "HOST": url.host,
            "PORT": url.port or "",
            "USER": url.username or "",
            "PASSWORD": url.password or "",
        }


class TestDjangoOnPostgresql(OnServerWithDjango, OnPostgresql):
    engine_name = "postgresql"


class TestDjangoOnMysql(OnServerWithDjango, OnMysql):
    engine_name = "mysql"

    @pytest.fixture(autouse=True)
    def pymysql_for_mysqlclient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As `pymysql.install_as_MySQLdb()` does it; Django asks for a version of mysqlclient."""
        monkeypatch.setitem(sys.modules, "MySQLdb", pymysql)
        monkeypatch.setattr(pymysql, "version_info", (2, 2, 1, "final", 0))

    def place(self) -> dict[str, Any]:
        """Without a password there is nothing to protect, and reading all certificates takes 20 ms."""
        options = {"isolation_level": "repeatable read", "ssl_disabled": not self.url.password}
        return {**super().place(), "OPTIONS": options}


class TestDjangoOnSqlite(UsesDjango, OnSqlite):
    def place(self) -> dict[str, Any]:
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(self.path)}


class TestDjangoProxyOnPostgresql(TestDjangoOnPostgresql):
    """`django.db.connection` is such a proxy, for the default."""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with super().transaction() as connection:
            yield ConnectionProxy(connections, connection.alias)
