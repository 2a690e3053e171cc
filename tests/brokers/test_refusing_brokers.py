"""From the database through a relay to brokers that are full, or refuse a message in the middle of a key."""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, ClassVar

import aio_pika
import pytest
from confluent_kafka import admin

from postroom import Message, Outbox
from postroom.events import Died, Event, Retried
from tests.acceptance.servers.database import Database
from tests.acceptance.servers.deliveries import relay_running
from tests.brokers.aws_reader import Aws, headers_of, picky_sqs, url_of
from tests.brokers.fault_suite import PATIENCE, SETTINGS, Arrived, AtBroker, Breakers, LoadSuite
from tests.brokers.test_amqp import Reader, declare, delete
from tests.brokers.test_kafka import PARTITIONS, create, records
from tests.conftest import server_url
from tests.waiting import eventually

KAFKA: Any = admin
Record = Callable[[str, object], None]


class TestFullQueue(LoadSuite):
    """RabbitMQ with `x-overflow: reject-publish`."""

    broker = "rabbitmq"
    room = 200

    def prepare(self, address: str) -> str:
        self.topic = f"orders-{secrets.token_hex(6)}"
        asyncio.run(declare(address, self.topic, **{"x-max-length": self.room, "x-overflow": "reject-publish"}))
        self.reader, self.lock = Reader(address, self.topic), threading.Lock()
        return self.topic

    def arrived(self, address: str, topic: str) -> list[Arrived]:
        with self.lock:
            found = list(asyncio.run(self.reader.read()))
        return [(str(each.headers["postroom-key"]), json.loads(each.body)["number"]) for each in found]

    def count(self, address: str, topic: str) -> int:
        with self.lock:
            return asyncio.run(self.reader.count())

    def test_a_queue_that_is_full_for_a_while_loses_and_reorders_nothing(
        self, database: Database, record_property: Record
    ) -> None:
        address = self.shared()
        done, emptied = threading.Event(), threading.Event()

        def empty_it() -> None:
            emptied.wait()
            while not done.wait(0.02):
                self.arrived(address, self.topic)

        helper = threading.Thread(target=empty_it)
        helper.start()
        try:
            with self.load(database, address, address, record_property, faults=1) as (breakers, count):
                assert breakers.opened.wait(PATIENCE)
                eventually(lambda: count() >= self.room)
                breakers.closed.clear()
                emptied.set()
                assert breakers.closed.wait(PATIENCE)
        finally:
            emptied.set()
            done.set()
            helper.join()
        asyncio.run(delete(address, self.topic))


class TestThrottling(LoadSuite):
    """SQS."""

    broker = "moto"
    pause = 1.0
    settings: ClassVar[dict[str, Any]] = {**SETTINGS, "publish_timeout": "5s", "lease_ttl": "15s"}

    def to(self, address: str) -> str:
        return url_of("sqs", address, queue="{topic}.fifo")

    def prepare(self, address: str) -> str:
        topic = f"orders-{secrets.token_hex(6)}"
        self.aws.make_queue(f"{topic}.fifo")
        self.aws.keep_taking(f"{topic}.fifo")
        return topic

    def arrived(self, address: str, topic: str) -> list[Arrived]:
        found = self.aws.take(f"{topic}.fifo")
        return [(headers_of(each)["postroom-key"], json.loads(each["Body"])["number"]) for each in found]

    def test_throttling_for_a_while_loses_and_reorders_nothing(
        self, database: Database, record_property: Record
    ) -> None:
        address = self.shared()
        with (
            closing(Aws(address)) as self.aws,
            picky_sqs(address) as picky,
            self.load(database, picky.address, address, record_property, faults=1) as (breakers, count),
        ):
            eventually(count)
            picky.is_throttling = True
            assert breakers.opened.wait(PATIENCE)
            breakers.closed.clear()
            picky.is_throttling = False
            assert breakers.closed.wait(PATIENCE)


# --- a place that is there, and one that is not


class Failures:
    """The topics of the messages that were charged an attempt."""

    def __init__(self) -> None:
        self.topics: list[str] = []

    def notice(self, event: Event) -> None:
        if isinstance(event, (Retried, Died)):
            self.topics.append(event.message.topic)


class TestMissingExchange(AtBroker):
    """RabbitMQ closes the channel for the sake of one message."""

    broker = "rabbitmq"

    def test_a_missing_exchange_costs_the_messages_of_another_no_attempt(self, database: Database) -> None:
        address, topic, failures = self.shared(), f"orders-{secrets.token_hex(6)}", Failures()
        missing = f"{topic}-missing"
        asyncio.run(declare(address, topic))
        asyncio.run(bind(address, topic))
        messages = [
            Message(topic=missing if number % 20 == 2 else topic, key=f"k{number}", payload={"number": number})
            for number in range(100)
        ]
        with (
            relay_running(
                database, f"{address}?exchange={{topic}}", failures, retry="fixed 20ms max=forever", **SETTINGS
            ),
            database.connection() as connection,
        ):
            for first in range(0, 100, 20):
                Outbox().add_many(connection, messages[first : first + 20])
                connection.commit()
                left = first // 20 + 1
                eventually(
                    lambda left=left: database.count("outbox") + database.count("parked") == left, within=PATIENCE
                )
        assert set(failures.topics) <= {missing}
        arrived = asyncio.run(Reader(address, topic).read())
        assert {json.loads(each.body)["number"] for each in arrived} == {
            number for number in range(100) if number % 20 != 2
        }
        asyncio.run(delete(address, topic))


async def bind(address: str, topic: str) -> None:
    """The queue, to an exchange of the same name that goes with it."""
    async with await aio_pika.connect(address) as connection:
        channel = await connection.channel()
        exchange = await channel.declare_exchange(topic, "topic", auto_delete=True)
        await (await channel.get_queue(topic)).bind(exchange, "#")


class TestMissingTopic(AtBroker):
    """Of Kafka, to which one type of a key goes."""

    broker = "kafka"

    def test_nothing_of_a_key_overtakes_what_has_no_topic(self, database: Database) -> None:
        address, topic, breakers = self.shared(), f"orders-{secrets.token_hex(6)}", Breakers()
        asyncio.run(create(address, f"{topic}-other"))
        messages = [Message(topic=topic, key="a", type=kind, payload={"number": 1}) for kind in ("missing", "other")]
        to = f"{address}?topic={{topic}}-{{type}}&topic.metadata.propagation.max.ms=200"
        with (
            relay_running(database, to, breakers, **{**SETTINGS, "publish_timeout": "5s", "lease_ttl": "15s"}),
            database.connection() as connection,
        ):
            Outbox().add_many(connection, messages)
            connection.commit()
            assert breakers.opened.wait(PATIENCE)
        assert asyncio.run(records(address, f"{topic}-other")) == []
        assert database.count("outbox") == 2


# --- a message that is refused in the middle of a key


class Place(ABC):
    """Takes everything but one kind of message, until it relents."""

    topic: str
    to: str

    @abstractmethod
    def relent(self) -> None: ...

    @abstractmethod
    def arrived(self) -> list[Arrived]: ...


class KafkaTopic(Place):
    def __init__(self) -> None:
        self.to, self.topic = server_url("kafka"), f"orders-{secrets.token_hex(6)}"
        self._admin = KAFKA.AdminClient({"bootstrap.servers": self.to.partition("://")[2]})
        new = KAFKA.NewTopic(self.topic, PARTITIONS, 1, config={"max.message.bytes": "2000"})
        self._admin.create_topics([new])[self.topic].result(30)

    def relent(self) -> None:
        entry = KAFKA.ConfigEntry("max.message.bytes", "1000000", incremental_operation=KAFKA.AlterConfigOpType.SET)
        resource = KAFKA.ConfigResource(KAFKA.ResourceType.TOPIC, self.topic, incremental_configs=[entry])
        self._admin.incremental_alter_configs([resource])[resource].result(30)

    def arrived(self) -> list[Arrived]:
        found = asyncio.run(records(self.to, self.topic))
        return [(record.key.decode(), json.loads(record.value)["number"]) for record in found]


class RabbitExchange(Place):
    """Large messages have a type of their own, for which no queue is bound."""

    def __init__(self) -> None:
        self._address, self.topic = server_url("rabbitmq"), f"orders-{secrets.token_hex(6)}"
        self.to = f"{self._address}?exchange=amq.topic&routing_key={{topic}}.{{type}}"
        asyncio.run(declare(self._address, self.topic))
        asyncio.run(self._bind("small"))
        self._reader = Reader(self._address, self.topic)

    def relent(self) -> None:
        asyncio.run(self._bind("large"))

    async def _bind(self, kind: str) -> None:
        async with await aio_pika.connect(self._address) as connection:
            queue = await (await connection.channel()).get_queue(self.topic)
            await queue.bind("amq.topic", f"{self.topic}.{kind}")

    def arrived(self) -> list[Arrived]:
        found = asyncio.run(self._reader.read())
        return [(str(each.headers["postroom-key"]), json.loads(each.body)["number"]) for each in found]


class SqsQueue(Place):
    def __init__(self, stack: list[Callable[[], None]]) -> None:
        address, self.topic = server_url("moto"), f"orders-{secrets.token_hex(6)}"
        context = picky_sqs(address)
        self.picky = context.__enter__()
        self._aws = Aws(address)
        stack += [self._aws.close, lambda: context.__exit__(None, None, None)]
        self._aws.make_queue(f"{self.topic}.fifo")
        self.to = url_of("sqs", self.picky.address, queue="{topic}.fifo")

    def relent(self) -> None:
        self.picky.refused = set()

    def arrived(self) -> list[Arrived]:
        found = self._aws.take(f"{self.topic}.fifo")
        return [(headers_of(each)["postroom-key"], json.loads(each["Body"])["number"]) for each in found]


@contextmanager
def place_at(broker: str) -> Iterator[Place]:
    ends: list[Callable[[], None]] = []
    makers: dict[str, Callable[[], Place]] = {
        "kafka": KafkaTopic, "rabbitmq": RabbitExchange, "sqs": lambda: SqsQueue(ends),
    }  # fmt: skip
    try:
        yield makers[broker]()
    finally:
        for end in ends:
            end()


class TestMiddleOfAKey(AtBroker):
    broker = "postgresql-15"

    @pytest.mark.parametrize("kind", ["kafka", "rabbitmq", "sqs"])
    def test_a_message_that_is_refused_in_the_middle_of_a_key_holds_up_that_key_alone(
        self, database: Database, kind: str
    ) -> None:
        settings = {**SETTINGS, "publish_timeout": "5s", "lease_ttl": "15s"}
        with place_at(kind) as place:
            messages = [_message(place.topic, key, number) for number in range(1, 6) for key in ("a", "b")]
            if isinstance(place, SqsQueue):
                place.picky.refused = {message.id for message in messages if message.type == "large"}
            with (
                relay_running(database, place.to, retry="fixed 50ms max=forever", **settings),
                database.connection() as connection,
            ):
                Outbox().add_many(connection, messages)
                connection.commit()
                eventually(lambda: len(place.arrived()) == 2 + 5 and database.count("holds") == 1)
                place.relent()
                eventually(lambda: database.count("outbox") == 0)
            for key in ("a", "b"):
                assert [number for each, number in place.arrived() if each == key] == [1, 2, 3, 4, 5]
            assert database.count("dead") == 0


def _message(topic: str, key: str, number: int) -> Message:
    is_large = (key, number) == ("a", 3)
    payload = {"number": number, "text": "x" * 3_000 * is_large}
    return Message(topic=topic, key=key, type="large" if is_large else "small", payload=payload)
