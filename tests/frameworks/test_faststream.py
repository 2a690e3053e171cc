"""FastStream reads what we send, and each message is handled once: against real brokers."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from confluent_kafka.admin import AdminClient, NewTopic  # pyright: ignore[reportPrivateImportUsage]
from faststream import AckPolicy, Context
from faststream.confluent import KafkaBroker as ConfluentBroker
from faststream.kafka import KafkaBroker
from faststream.rabbit import RabbitBroker
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from postroom import InvalidMessage, Message
from postroom.frameworks.faststream import InboxMiddleware
from postroom.inbox import Inbox
from postroom.publishers.amqp import AmqpPublisher
from postroom.publishers.kafka import KafkaPublisher
from postroom.testing.batch import RecordingBatch, hand_over
from tests.conftest import server_url
from tests.waiting import until

Send = Callable[[list[Message]], Awaitable[None]]


class Shop:
    """A consumer's database."""

    def __init__(self, folder: Path) -> None:
        self.engine = create_async_engine(f"sqlite+aiosqlite:///{folder / 'shop.db'}")
        self.make_session = async_sessionmaker(self.engine)
        self.calls: list[str] = []
        self.fails = 0

    async def handle(self, body: dict[str, Any], session: AsyncSession) -> None:
        self.calls.append(body["n"])
        await session.execute(text("INSERT INTO orders VALUES (:n)"), {"n": body["n"]})
        if self.fails:
            self.fails -= 1
            raise RuntimeError("no")

    async def orders(self) -> list[int]:
        async with self.engine.connect() as connection:
            return list((await connection.execute(text("SELECT n FROM orders ORDER BY n"))).scalars())


@pytest_asyncio.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    shop = Shop(tmp_path)
    async with shop.engine.begin() as connection:
        await connection.execute(text("CREATE TABLE orders (n integer)"))
    yield shop
    await shop.engine.dispose()


@asynccontextmanager
async def rabbit(middleware: InboxMiddleware, handler: Any, name: str) -> AsyncIterator[Send]:
    broker = RabbitBroker(server_url("rabbitmq"), middlewares=[middleware], logger=None)
    broker.subscriber(name, ack_policy=AckPolicy.NACK_ON_ERROR)(handler)
    async with broker:
        await broker.start()
        publisher = AmqpPublisher(f"{server_url('rabbitmq')}?routing_key={name}")
        yield lambda messages: send(publisher, messages)
        await publisher.close()


@asynccontextmanager
async def kafka(kind: type[Any], middleware: InboxMiddleware, handler: Any, name: str) -> AsyncIterator[Send]:
    address = urlsplit(server_url("kafka")).netloc
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    broker = kind(address, middlewares=[middleware], logger=None)
    broker.subscriber(name, group_id=name, auto_offset_reset="earliest", ack_policy=AckPolicy.NACK_ON_ERROR)(handler)
    async with broker:
        await broker.start()
        publisher = KafkaPublisher(f"{server_url('kafka')}?topic={name}")
        yield lambda messages: send(publisher, messages)
        await publisher.close()
    await asyncio.to_thread(admin.delete_topics([name])[name].result, 30)


async def send(publisher: Any, messages: list[Message]) -> None:
    for message in messages:
        batch = await hand_over(publisher, RecordingBatch([message]))
        assert batch.answers == {message.id: None}


BROKERS = {
    "rabbit": rabbit,
    "kafka": lambda *given: kafka(KafkaBroker, *given),
    "confluent": lambda *given: kafka(ConfluentBroker, *given),
}


def message(number: int) -> Message:
    return Message(topic="orders", key="k", payload=b'{"n": %d}' % number, content_type="application/json")


@pytest.mark.parametrize("broker", BROKERS)
async def test_a_message_that_comes_twice_is_handled_once(shop: Shop, broker: str) -> None:
    middleware = InboxMiddleware(Inbox(), consumer="shop", session=shop.make_session)

    async def handler(body: dict[str, Any], session: AsyncSession = Context()) -> None:  # noqa: B008 - as FastStream has it
        await shop.handle(body, session)

    async with BROKERS[broker](middleware, handler, f"orders-{secrets.token_hex(6)}") as send:
        first, second = message(1), message(2)
        await send([first, first, second, first, second])
        await send([message(3)])
        await until(lambda: {1, 2, 3} <= set(shop.calls), within=60)
    assert sorted(shop.calls) == [1, 2, 3]
    assert await shop.orders() == [1, 2, 3]


async def test_a_handler_that_fails_is_rolled_back_and_called_again(shop: Shop) -> None:
    middleware = InboxMiddleware(Inbox(), consumer="shop", session=shop.make_session, name="db")
    shop.fails = 2

    async def handler(body: dict[str, Any], db: AsyncSession = Context()) -> None:  # noqa: B008 - as FastStream has it
        await shop.handle(body, db)

    async with rabbit(middleware, handler, f"orders-{secrets.token_hex(6)}") as send:
        await send([message(1)])
        await until(lambda: len(shop.calls) == 3)
        await send([message(2)])
        await until(lambda: 2 in shop.calls)
    assert (sorted(shop.calls), await shop.orders()) == ([1, 1, 1, 2], [1, 2])


def test_a_consumer_must_have_a_name(shop: Shop) -> None:
    with pytest.raises(InvalidMessage):
        InboxMiddleware(Inbox(), consumer="", session=shop.make_session)
