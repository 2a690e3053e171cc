"""Every kind of connection to PostgreSQL passes the suite, on the oldest version; one of each colour on the newest."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import asyncpg
import psycopg
from psycopg.rows import dict_row
from sqlalchemy import text

from postroom.message import Message, slot_of
from postroom.outbox import Outbox
from postroom.stores.schema import bell_channel
from postroom.testing.connection_contract import Undo

from .connection_kinds import (
    OnServer,
    UsesAsyncConnection,
    UsesAsyncScopedSession,
    UsesAsyncSession,
    UsesConnection,
    UsesScopedSession,
    UsesSession,
)


class OnPostgresql(OnServer):
    server = "postgresql-15"
    driver = "postgresql+psycopg"
    async_driver = "postgresql+asyncpg"
    overtaken_is_an_error = True

    @property
    def dsn(self) -> str:
        return self.url.set(drivername="postgresql").render_as_string(hide_password=False)

    async def is_anybody_waiting(self) -> bool:
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        with self.engine.connect() as connection:
            return bool(connection.scalar(text(waiting)))

    async def test_a_commit_rings_if_the_owner_of_its_slot_sleeps(self) -> None:
        outbox = Outbox()
        keys = {slot_of(f"{number}", ""): f"{number}" for number in range(1000)}
        with self.listening(outbox, asleep=[5, 63]) as heard:
            with suppress(Undo):
                async with self.transaction() as connection:
                    await self.add(outbox, connection, "orders", b"", key=keys[5])
                    raise Undo
            await self.commit(outbox, "orders", b"", key=keys[6])
            await self.commit(outbox, "orders", b"", key=keys[63])
            async with self.transaction() as connection:
                messages = [Message(topic="orders", payload=b"", key=key) for key in keys.values()]
                await self.add_many(outbox, connection, messages * 10)
        assert heard == ["63", "5", "63"]
        assert len(await self.written(outbox)) == 642

    @contextmanager
    def listening(self, outbox: Outbox, asleep: list[int]) -> Iterator[list[str]]:
        """What is heard of the bell during the block, which ends by ringing it itself."""
        mask = int.from_bytes(sum(1 << slot for slot in asleep).to_bytes(8), signed=True)
        channel, heard = bell_channel(outbox.tables), list[str]()
        bell = outbox.tables.bell.name
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(f"LISTEN {channel}".encode())
            connection.execute("SELECT setval(%s, %s)", [bell, mask])
            yield heard
            connection.execute("SELECT setval(%s, 0, false), pg_notify(%s, 'end')", [bell, channel])
            for notification in connection.notifies():
                if notification.payload == "end":
                    return
                heard.append(notification.payload)


class TestPsycopgConnection(OnPostgresql):
    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        with psycopg.connect(self.dsn) as connection:
            yield connection

    @asynccontextmanager
    async def savepoint(self, connection: psycopg.Connection) -> AsyncIterator[None]:
        with connection.transaction():
            yield

    async def execute(self, connection: psycopg.Connection, sql: str) -> None:
        connection.execute(sql.encode())

    @asynccontextmanager
    async def autocommitting(self) -> AsyncIterator[Any]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            yield connection


class TestPsycopgConnectionOnTheNewest(TestPsycopgConnection):
    server = "postgresql-18"


class TestPsycopgConnectionWithItsOwnFactoriesAndBegin(TestPsycopgConnection):
    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        options: dict[str, Any] = {"row_factory": dict_row, "cursor_factory": psycopg.ClientCursor}
        with psycopg.connect(self.dsn, autocommit=True, **options) as connection, connection.transaction():
            yield connection


class TestPsycopgConnectionInPipelineMode(TestPsycopgConnection):
    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        with psycopg.connect(self.dsn, autocommit=True) as connection, connection.pipeline(), connection.transaction():
            yield connection

    @asynccontextmanager
    async def autocommitting(self) -> AsyncIterator[Any]:
        with psycopg.connect(self.dsn, autocommit=True) as connection, connection.pipeline():
            connection.execute("SELECT 1")
            yield connection


class TestPsycopgAsyncConnection(OnPostgresql):
    is_async = True

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with await psycopg.AsyncConnection.connect(self.dsn) as connection:
            yield connection

    @asynccontextmanager
    async def savepoint(self, connection: psycopg.AsyncConnection) -> AsyncIterator[None]:
        async with connection.transaction():
            yield

    async def execute(self, connection: psycopg.AsyncConnection, sql: str) -> None:
        await connection.execute(sql.encode())

    @asynccontextmanager
    async def autocommitting(self) -> AsyncIterator[Any]:
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as connection:
            yield connection


class TestPsycopgAsyncConnectionInPipelineMode(TestPsycopgAsyncConnection):
    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with (
            await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as connection,
            connection.pipeline(),
            connection.transaction(),
        ):
            yield connection


class TestAsyncpgConnection(OnPostgresql):
    is_async = True

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        connection = await asyncpg.connect(self.dsn)
        try:
            yield connection
        finally:
            await connection.close()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self.connection() as connection, connection.transaction():
            yield connection

    @asynccontextmanager
    async def savepoint(self, connection: Any) -> AsyncIterator[None]:
        async with connection.transaction():
            yield

    async def execute(self, connection: Any, sql: str) -> None:
        await connection.execute(sql)

    @asynccontextmanager
    async def autocommitting(self) -> AsyncIterator[Any]:
        async with self.connection() as connection:
            yield connection


class TestAsyncpgConnectionOnTheNewest(TestAsyncpgConnection):
    server = "postgresql-18"


class TestAsyncpgPooledConnection(TestAsyncpgConnection):
    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        async with asyncpg.create_pool(self.dsn, min_size=1, max_size=1) as pool, pool.acquire() as connection:
            yield connection


class TestSqlalchemyConnection(UsesConnection, OnPostgresql):
    pass


class TestSqlalchemySession(UsesSession, OnPostgresql):
    pass


class TestSqlalchemyScopedSession(UsesScopedSession, OnPostgresql):
    pass


class TestSqlalchemyAsyncConnection(UsesAsyncConnection, OnPostgresql):
    pass


class TestSqlalchemyAsyncSession(UsesAsyncSession, OnPostgresql):
    pass


class TestSqlalchemyAsyncScopedSession(UsesAsyncScopedSession, OnPostgresql):
    pass


class TestSqlalchemyAsyncConnectionOfPsycopg(UsesAsyncConnection, OnPostgresql):
    async_driver = "postgresql+psycopg"


class TestSqlalchemyAsyncSessionOfPsycopg(UsesAsyncSession, OnPostgresql):
    async_driver = "postgresql+psycopg"
