"""A batch of a thousand messages does not take a thousand round trips, whatever the driver.

What a client waits for is counted in what it sends: on PostgreSQL the Sync and Query messages, on MySQL the statements.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import aiomysql
import asyncmy
import asyncpg
import psycopg
import pymysql
import pytest
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import create_async_engine

from postroom.inbox import Inbox
from postroom.message import Message
from postroom.outbox import Outbox
from postroom.testing.inbox_contract import numbered

from ..conftest import Database

BATCHES: dict[str, dict[str, Any]] = {
    "plain": {},
    "delayed": {"delay": 60},
    "keyed": {"key": "{}"},
    "idempotent": {"idempotency_key": "{}"},
}


def batch(kind: str) -> list[Message]:
    def option(value: Any, number: int) -> Any:
        return value.format(number) if isinstance(value, str) else value

    return [
        Message(topic="orders", payload=b"x" * 100, **{name: option(value, n) for name, value in BATCHES[kind].items()})
        for n in range(1000)
    ]


class CountingProxy:
    """Passes on what a client and PostgreSQL say, and counts how often the client asks for an answer."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._listener]
        self.port: int = self._listener.getsockname()[1]
        self.asked = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                threading.Thread(target=self._forward, args=(client, server), daemon=True).start()
                threading.Thread(target=self._answer, args=(server, client), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        """The first message has no type, only a length; the client was told not to ask for encryption before."""
        pending, head = b"", 0
        with suppress(OSError):
            while data := client.recv(65536):
                pending += data
                while len(pending) >= head + 4:
                    end = head + int.from_bytes(pending[head : head + 4])
                    if len(pending) < end:
                        break
                    self.asked += pending[:head] in (b"S", b"Q")
                    pending, head = pending[end:], 1
                server.sendall(data)
            server.shutdown(socket.SHUT_RDWR)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                client.sendall(data)
            client.shutdown(socket.SHUT_RDWR)


@contextmanager
def counting_proxy(url: str) -> Iterator[tuple[CountingProxy, str]]:
    parts = make_url(url)
    proxy = CountingProxy(parts.host or "127.0.0.1", parts.port or 5432)
    through = parts.set(host="127.0.0.1", port=proxy.port)
    yield proxy, through.render_as_string(hide_password=False)
    proxy.close()


@asynccontextmanager
async def with_psycopg(url: str) -> AsyncIterator[Any]:
    with psycopg.connect(url, sslmode="disable", gssencmode="disable") as connection:
        yield connection


@asynccontextmanager
async def with_async_psycopg(url: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(url, sslmode="disable", gssencmode="disable") as connection:
        yield connection


@asynccontextmanager
async def with_asyncpg(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url, ssl=False)
    async with connection.transaction():
        yield connection
    await connection.close()


@asynccontextmanager
async def with_sqlalchemy(url: str) -> AsyncIterator[Any]:
    engine = create_async_engine(make_url(url).set(drivername="postgresql+asyncpg"), connect_args={"ssl": False})
    async with engine.begin() as connection:
        yield connection
    await engine.dispose()


@pytest.mark.parametrize("kind", BATCHES)
@pytest.mark.parametrize("connect", [with_psycopg, with_async_psycopg, with_asyncpg, with_sqlalchemy])
async def test_a_thousand_messages_to_postgresql(empty_database: Database, connect: Any, kind: str) -> None:
    outbox = Outbox(order="strict" if kind == "keyed" else "key")
    with counting_proxy(empty_database("postgresql-15")) as (proxy, url):
        async with connect(url) as connection:
            await add_many(outbox, connection, [Message(topic="orders")])
            proxy.asked = 0
            await add_many(outbox, connection, batch(kind))
            assert proxy.asked < 20


@pytest.mark.parametrize("connect", [with_psycopg, with_async_psycopg, with_asyncpg])
async def test_an_inbox_on_postgresql_asks_once_for_a_message_and_twice_in_a_strict_stream(
    empty_database: Database, connect: Any
) -> None:
    inbox = Inbox()
    with counting_proxy(empty_database("postgresql-15")) as (proxy, url):
        async with connect(url) as connection:
            inbox_of = asking(inbox, connection)
            await inbox_of("create_tables")
        async with connect(url) as connection:
            inbox_of = asking(inbox, connection)
            for number in (1, 2):  # at first it looks for the tables, and a driver for what types mean
                await inbox_of("first_time", f"{number}")
                await inbox_of("in_turn", numbered(number))
            proxy.asked = 0
            assert await inbox_of("first_time", "3")
            assert not await inbox_of("first_time", "3")
            assert proxy.asked == 2
            assert await inbox_of("in_turn", numbered(3))
            assert proxy.asked == 4
            assert not await inbox_of("in_turn", numbered(3))
            assert proxy.asked == 5


def asking(inbox: Inbox, connection: Any) -> Callable[..., Any]:
    async def ask(verb: str, *arguments: Any) -> Any:
        if isinstance(connection, psycopg.Connection):
            return getattr(inbox, verb)(connection, *arguments)
        return await getattr(inbox, f"{verb}_async")(connection, *arguments)

    return ask


async def add_many(outbox: Outbox, connection: Any, messages: list[Message]) -> None:
    if isinstance(connection, psycopg.Connection | pymysql.connections.Connection):
        outbox.add_many(connection, messages)
    else:
        await outbox.add_many_async(connection, messages)


@pytest.mark.parametrize("kind", BATCHES)
@pytest.mark.parametrize("library", [pymysql, aiomysql, asyncmy])
async def test_a_thousand_messages_to_mysql(empty_database: Database, library: Any, kind: str) -> None:
    outbox = Outbox(order="strict" if kind == "keyed" else "key")
    url = make_url(empty_database("mariadb"))
    options: dict[str, Any] = {"host": url.host, "port": url.port, "user": url.username, "password": url.password or ""}
    if library is pymysql:
        with pymysql.connect(**options, database=url.database) as connection:
            outbox.create_tables(connection)
            await count(outbox, connection, connection.cursor(), batch(kind))
        return
    name = "db" if library is aiomysql else "database"
    connection = await library.connect(**options, **{name: url.database})
    await outbox.create_tables_async(connection)
    async with connection.cursor() as cursor:
        await count(outbox, connection, cursor, batch(kind))
    connection.close()


async def count(outbox: Outbox, connection: Any, cursor: Any, messages: list[Message]) -> None:
    before = await questions(cursor)
    await add_many(outbox, connection, messages)
    assert await questions(cursor) - before < 20


async def questions(cursor: Any) -> int:
    asking = cursor.execute("SHOW SESSION STATUS LIKE 'Questions'")
    await asking if hasattr(asking, "__await__") else asking
    row = cursor.fetchone()
    return int((await row if hasattr(row, "__await__") else row)[1])


async def test_a_thousand_messages_to_mysql_through_sqlalchemy(empty_database: Database) -> None:
    engine = create_async_engine(make_url(empty_database("mariadb")).set(drivername="mysql+asyncmy"))
    outbox = Outbox(order="strict")
    await outbox.create_tables_async(engine)
    status = text("SHOW SESSION STATUS LIKE 'Questions'")
    async with engine.begin() as connection:
        before = (await connection.execute(status)).one()[1]
        await outbox.add_many_async(connection, batch("keyed") + batch("idempotent"))
        assert int((await connection.execute(status)).one()[1]) - int(before) < 40
    await engine.dispose()
