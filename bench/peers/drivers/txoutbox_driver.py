"""txoutbox over asyncpg, woken by its trigger."""

# pyright: reportMissingImports=false
# It is in an environment of its own.

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import islice
from typing import Any

import asyncpg
from txoutbox import OutboxMessage, Relay, RelayConfig
from txoutbox.adapters.postgres import PostgresStorage

from .protocol import Handler, Writer, serve

TOPIC = "orders"
BATCH, BATCH_OF_ONE_KEY = 500, 100
"""Of 50, 100, 200, 500 and 1,000 those that drained quickest."""


class Txoutbox:
    packages = ("txoutbox", "asyncpg")
    configured = (
        "batch_size=500, or 100 with one key; concurrency=100 (so that a round stays within its lease), "
        "delete_on_ack, strict_ordering, notify_channel with listen(); acknowledges a batch with one DELETE; keeps the "
        "order of ids in each key; writes through asyncpg"
    )
    left = """
        SELECT convert_from(payload, 'UTF8'), CASE status WHEN 'dead' THEN 'dead' ELSE 'pending' END FROM outbox"""

    async def prepare(self, url: str) -> None:
        async with asyncpg.create_pool(url, min_size=1) as pool:
            await storage_on(pool).create_schema()

    async def fill(self, url: str, messages: Iterator[tuple[str, str]]) -> None:
        connection = await asyncpg.connect(url)
        columns = ("topic", "key", "payload")
        while some := [(TOPIC, key, payload.encode()) for key, payload in islice(messages, 5_000)]:
            await connection.copy_records_to_table("outbox", records=some, columns=columns)
        await connection.close()

    @asynccontextmanager
    async def worker(self, url: str, handle: Handler, keys: int) -> AsyncIterator[None]:
        async def publish(message: OutboxMessage) -> None:
            await handle(message.payload)

        async with asyncpg.create_pool(url) as pool:
            storage = storage_on(pool)
            batch = BATCH_OF_ONE_KEY if keys == 1 else BATCH
            relay = Relay(storage, publish, config=RelayConfig(batch_size=batch, concurrency=100))
            async with await storage.listen(relay.wake), relay:
                yield

    @asynccontextmanager
    async def writer(self, url: str) -> AsyncIterator[Writer]:
        connection = await asyncpg.connect(url)
        try:
            yield TxoutboxWriter(connection)
        finally:
            await connection.close()


class TxoutboxWriter:
    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection
        self._outbox = storage_on(None)

    def transaction(self) -> AbstractAsyncContextManager[object]:
        return self._connection.transaction()

    async def execute(self, statement: str) -> None:
        await self._connection.execute(statement)

    async def add(self, key: str, payload: str) -> None:
        await self._outbox.insert(self._connection, TOPIC, payload.encode(), key=key)


def storage_on(pool: Any) -> PostgresStorage:
    return PostgresStorage(pool, delete_on_ack=True, notify_channel="outbox")


if __name__ == "__main__":
    serve(Txoutbox())
