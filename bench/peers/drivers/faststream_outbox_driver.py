"""faststream-outbox: one subscriber, woken by LISTEN."""

# pyright: reportMissingImports=false
# It is in an environment of its own.

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import islice

from faststream_outbox import OutboxBroker, make_outbox_table
from sqlalchemy import MetaData, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine

from .protocol import Handler, Writer, serve

QUEUE = "orders"
METADATA = MetaData()
TABLE = make_outbox_table(METADATA, table_name="outbox")
WORKERS = 8
BATCH = 1_000
FLUSH = 250


class FaststreamOutbox:
    packages = ("faststream-outbox", "faststream", "sqlalchemy", "asyncpg")
    configured = (
        f"max_workers={WORKERS}, fetch_batch_size={BATCH}, terminal_flush_batch_size={FLUSH}, no logging of each "
        f"message; acknowledges up to {FLUSH} rows with one DELETE; keys mean nothing to it, and it keeps no order; "
        "writes through a SQLAlchemy AsyncConnection"
    )
    left = "SELECT convert_from(payload, 'UTF8'), 'pending' FROM outbox"

    async def prepare(self, url: str) -> None:
        async with connected(url) as engine, engine.begin() as connection:
            await connection.run_sync(METADATA.create_all)

    async def fill(self, url: str, messages: Iterator[tuple[str, str]]) -> None:
        async with connected(url) as engine:
            broker = OutboxBroker(engine, outbox_table=TABLE, logger=None)
            while some := [payload for _, payload in islice(messages, 2_000)]:
                async with AsyncSession(engine) as session, session.begin():
                    await broker.publish_batch(*some, queue=QUEUE, session=session)

    @asynccontextmanager
    async def worker(self, url: str, handle: Handler, keys: int) -> AsyncIterator[None]:
        async with connected(url) as engine:
            broker = OutboxBroker(engine, outbox_table=TABLE, logger=None)

            @broker.subscriber(QUEUE, max_workers=WORKERS, fetch_batch_size=BATCH, terminal_flush_batch_size=FLUSH)
            async def receive(body: str) -> None:
                await handle(body)

            async with broker:
                yield

    @asynccontextmanager
    async def writer(self, url: str) -> AsyncIterator[Writer]:
        async with connected(url) as engine, engine.connect() as connection:
            yield ConnectionWriter(connection, OutboxBroker(engine, outbox_table=TABLE, logger=None))

    @asynccontextmanager
    async def session_writer(self, url: str) -> AsyncIterator[Writer]:
        async with connected(url) as engine:
            yield SessionWriter(engine)


class ConnectionWriter:
    def __init__(self, connection: AsyncConnection, broker: OutboxBroker) -> None:
        self._connection = connection
        self._broker = broker

    def transaction(self) -> AbstractAsyncContextManager[object]:
        return self._connection.begin()

    async def execute(self, statement: str) -> None:
        await self._connection.execute(text(statement))

    async def add(self, key: str, payload: str) -> None:
        await self._broker.publish(payload, queue=QUEUE, session=self._connection)


class SessionWriter:
    def __init__(self, engine: AsyncEngine) -> None:
        self._session = AsyncSession(engine, expire_on_commit=False)
        self._broker = OutboxBroker(engine, outbox_table=TABLE, logger=None)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        async with self._session, self._session.begin():
            yield

    async def execute(self, statement: str) -> None:
        await self._session.execute(text(statement))

    async def add(self, key: str, payload: str) -> None:
        await self._broker.publish(payload, queue=QUEUE, session=self._session)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(url.replace("postgresql:", "postgresql+asyncpg:", 1), pool_size=WORKERS + 1)
    yield engine
    await engine.dispose()


if __name__ == "__main__":
    serve(FaststreamOutbox())
