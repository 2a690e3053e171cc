"""pgqueuer over asyncpg, on uvloop as its own command line."""

# pyright: reportMissingImports=false
# It is in an environment of its own.

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import islice

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from .protocol import Handler, Writer, serve

ENTRYPOINT = "orders"
BATCH = 500


class Pgqueuer:
    packages = ("pgqueuer", "asyncpg", "uvloop")
    configured = (
        f"batch_size={BATCH}, uvloop, durable tables; acknowledges some {BATCH} rows with one statement and logs each; "
        "keys mean nothing to it, and it keeps no order; its default policy does not retry, and deletes what failed; "
        "writes through asyncpg"
    )
    left = """
        SELECT convert_from(payload, 'UTF8'), CASE status WHEN 'failed' THEN 'dead' ELSE 'pending' END FROM pgqueuer"""

    async def prepare(self, url: str) -> None:
        connection = await asyncpg.connect(url)
        await Queries(AsyncpgDriver(connection)).install()
        await connection.close()

    async def fill(self, url: str, messages: Iterator[tuple[str, str]]) -> None:
        connection = await asyncpg.connect(url)
        queries = Queries(AsyncpgDriver(connection))
        while some := [payload.encode() for _, payload in islice(messages, 5_000)]:
            await queries.enqueue([ENTRYPOINT] * len(some), some, [0] * len(some))
        await connection.close()

    @asynccontextmanager
    async def worker(self, url: str, handle: Handler, keys: int) -> AsyncIterator[None]:
        connection = await asyncpg.connect(url)
        queuer = PgQueuer(AsyncpgDriver(connection))

        @queuer.entrypoint(ENTRYPOINT)
        async def receive(job: Job) -> None:
            await handle(job.payload)

        running = asyncio.create_task(queuer.run(batch_size=BATCH))
        try:
            yield
        finally:
            queuer.shutdown.set()
            await running
            await connection.close()

    @asynccontextmanager
    async def writer(self, url: str) -> AsyncIterator[Writer]:
        connection = await asyncpg.connect(url)
        try:
            yield PgqueuerWriter(connection)
        finally:
            await connection.close()


class PgqueuerWriter:
    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection
        self._queries = Queries(AsyncpgDriver(connection))

    def transaction(self) -> AbstractAsyncContextManager[object]:
        return self._connection.transaction()

    async def execute(self, statement: str) -> None:
        await self._connection.execute(statement)

    async def add(self, key: str, payload: str) -> None:
        await self._queries.enqueue(ENTRYPOINT, payload.encode())


if __name__ == "__main__":
    serve(Pgqueuer(), uvloop.run)
