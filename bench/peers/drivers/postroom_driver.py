"""Postroom, as it comes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import islice

import asyncpg
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from postroom import Message, Outbox, Relay

from .protocol import Handler, Writer, serve

TOPIC = "orders"


class Postroom:
    packages = ("postroom", "asyncpg", "sqlalchemy")
    configured = (
        "defaults: one relay, an async function as its destination, batches of 500; acknowledges all that was handled "
        "since the last time, never more than 2,000 rows, with one DELETE; keeps the order of each key; writes through "
        "asyncpg"
    )
    left = """
        SELECT convert_from(payload, 'UTF8'), 'pending' FROM postroom_outbox
        UNION ALL SELECT convert_from(payload, 'UTF8'), 'pending' FROM postroom_parked
        UNION ALL SELECT convert_from(payload, 'UTF8'), 'pending' FROM postroom_later
        UNION ALL SELECT convert_from(payload, 'UTF8'), 'dead' FROM postroom_dead"""

    def __init__(self) -> None:
        self._outbox = Outbox()

    async def prepare(self, url: str) -> None:
        relay = Relay(url, "memory:")
        await relay.store.open(claim=relay.settings.claim)
        await relay.store.close()

    async def fill(self, url: str, messages: Iterator[tuple[str, str]]) -> None:
        connection = await asyncpg.connect(url)
        async with connection.transaction():
            while some := list(islice(messages, 5_000)):
                batch = [Message(topic=TOPIC, key=key, payload=payload.encode()) for key, payload in some]
                await self._outbox.add_many_async(connection, batch)
        await connection.close()

    def worker(self, url: str, handle: Handler, keys: int) -> AbstractAsyncContextManager[object]:
        async def publish(message: Message) -> None:
            await handle(message.payload)

        return Relay(url, publish)

    @asynccontextmanager
    async def writer(self, url: str) -> AsyncIterator[Writer]:
        connection = await asyncpg.connect(url)
        try:
            yield AsyncpgWriter(connection, self._outbox)
        finally:
            await connection.close()

    @asynccontextmanager
    async def session_writer(self, url: str) -> AsyncIterator[Writer]:
        engine = create_async_engine(url.replace("postgresql:", "postgresql+asyncpg:", 1))
        yield SessionWriter(AsyncSession(engine, expire_on_commit=False), self._outbox)
        await engine.dispose()


class AsyncpgWriter:
    def __init__(self, connection: asyncpg.Connection, outbox: Outbox) -> None:
        self._connection = connection
        self._outbox = outbox

    def transaction(self) -> AbstractAsyncContextManager[object]:
        return self._connection.transaction()

    async def execute(self, statement: str) -> None:
        await self._connection.execute(statement)

    async def add(self, key: str, payload: str) -> None:
        await self._outbox.add_async(self._connection, TOPIC, payload.encode(), key=key)


class SessionWriter:
    def __init__(self, session: AsyncSession, outbox: Outbox) -> None:
        self._session = session
        self._outbox = outbox

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        async with self._session, self._session.begin():
            yield

    async def execute(self, statement: str) -> None:
        await self._session.execute(text(statement))

    async def add(self, key: str, payload: str) -> None:
        await self._outbox.add_async(self._session, TOPIC, payload.encode(), key=key)


if __name__ == "__main__":
    serve(Postroom())
