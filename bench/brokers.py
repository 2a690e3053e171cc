"""Brokers, and a loop over the client of each: the same messages, from memory, pipelined, acknowledged as ours are."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, ClassVar, NamedTuple
from urllib.parse import urlencode, urlsplit

from postroom.message import ID_HEADER, KEY_HEADER
from tests import services

from .children import child, closed, hear

PIPELINED = "&pipelined=true"
ID, KEY = ID_HEADER, KEY_HEADER
SOME = 500
"""Messages that a loop hands to its client at once, where it does not take them all."""


class Record(NamedTuple):
    id: str
    key: str
    payload: bytes
    headers: dict[str, str]


class Broker(ABC):
    service: ClassVar[str]
    """Among those of the tests."""
    messages: ClassVar[int] = 100_000
    quick_messages: ClassVar[int] = 20_000

    def __init__(self) -> None:
        self.address = services.url(self.service)

    def version(self) -> str:
        return services.version(self.service)

    def headers(self, id: str, key: str) -> dict[str, str]:
        """The fewest that a consumer needs, who must know the id, and the key where the broker knows none."""
        return {ID: id}

    @abstractmethod
    def url(self, place: str, *, hot: bool) -> str:
        """Of the destination, for messages that are to go to this place; `hot`: as it is best for a single key."""

    @contextmanager
    def place(self, name: str) -> Iterator[None]:
        """A new queue, topic or stream, gone afterwards."""
        yield

    @abstractmethod
    def rate(self, place: str, records: Sequence[Record]) -> float:
        """Messages per second of the client alone, once it is connected."""


class Kafka(Broker):
    service = "kafka"

    def settings(self) -> dict[str, Any]:
        """Of a client that loses nothing and keeps order, as the relay's does."""
        return {
            "bootstrap.servers": urlsplit(self.address).netloc,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 2,
            "partitioner": "murmur2_random",
            "queue.buffering.max.messages": 1_000_000,
        }

    def url(self, place: str, *, hot: bool) -> str:
        return f"{self.address}?topic={place}"

    @contextmanager
    def place(self, name: str) -> Iterator[None]:
        from confluent_kafka.admin import AdminClient, NewTopic  # pyright: ignore[reportPrivateImportUsage]

        admin = AdminClient({"bootstrap.servers": urlsplit(self.address).netloc})
        admin.create_topics([NewTopic(name, 8, 1)])[name].result(30)
        try:
            yield
        finally:
            admin.delete_topics([name])[name].result(30)

    def rate(self, place: str, records: Sequence[Record]) -> float:
        from confluent_kafka import Producer

        answered: list[object] = []
        producer = Producer(self.settings())
        producer.list_topics(place, timeout=10)
        start = time.perf_counter()
        for _, key, payload, named in records:
            headers: Any = named  # it may be a dictionary, though the client's types do not say so
            producer.produce(place, payload, key, headers=headers, on_delivery=lambda error, _: answered.append(error))
            producer.poll(0)
        producer.flush(120)
        elapsed = time.perf_counter() - start
        check(answered.count(None), len(records))
        return len(records) / elapsed


class RabbitMQ(Broker):
    service = "rabbitmq"

    def url(self, place: str, *, hot: bool) -> str:
        return f"{self.address}?routing_key={place}{PIPELINED if hot else ''}"

    @contextmanager
    def place(self, name: str) -> Iterator[None]:
        import pika

        connection = pika.BlockingConnection(pika.URLParameters(self.address))
        channel = connection.channel()
        channel.queue_declare(name, durable=True)
        try:
            yield
        finally:
            connection.close()
            connection = pika.BlockingConnection(pika.URLParameters(self.address))
            connection.channel().queue_delete(name)
            connection.close()

    def rate(self, place: str, records: Sequence[Record]) -> float:
        return asyncio.run(self._send(place, records))

    async def _send(self, place: str, records: Sequence[Record]) -> float:
        from pika import BasicProperties, DeliveryMode, URLParameters
        from pika.adapters.asyncio_connection import AsyncioConnection

        loop = asyncio.get_running_loop()
        ready: asyncio.Future[Any] = loop.create_future()
        done: asyncio.Future[None] = loop.create_future()
        unconfirmed, lowest = set(range(1, len(records) + 1)), 1

        def confirmed(frame: Any) -> None:
            nonlocal lowest
            assert type(frame.method).__name__ == "Ack"
            tag = frame.method.delivery_tag
            if frame.method.multiple:
                unconfirmed.difference_update(range(lowest, tag + 1))
                lowest = tag + 1
            unconfirmed.discard(tag)
            if not unconfirmed and not done.done():
                done.set_result(None)

        def opened(channel: Any) -> None:
            channel.confirm_delivery(confirmed, lambda _: ready.set_result(channel))

        connection: Any = AsyncioConnection(
            URLParameters(self.address), on_open_callback=lambda it: it.channel(on_open_callback=opened)
        )
        channel = await ready
        start = time.perf_counter()
        for number, (_, _, payload, headers) in enumerate(records):
            properties = BasicProperties(headers=headers, delivery_mode=DeliveryMode.Persistent)
            channel.basic_publish("", place, payload, properties, mandatory=True)
            if number % SOME == 0:
                await asyncio.sleep(0)
        await done
        elapsed = time.perf_counter() - start
        connection.close()
        await asyncio.sleep(0.1)
        return len(records) / elapsed


class Redis(Broker):
    service = "redis"

    def headers(self, id: str, key: str) -> dict[str, str]:
        return {ID: id, KEY: key}

    def url(self, place: str, *, hot: bool) -> str:
        return f"{self.address}?stream={place}"

    @contextmanager
    def place(self, name: str) -> Iterator[None]:
        import redis

        try:
            yield
        finally:
            with redis.Redis.from_url(self.address) as client:
                client.delete(name)

    def rate(self, place: str, records: Sequence[Record]) -> float:
        return asyncio.run(self._send(place, records))

    async def _send(self, place: str, records: Sequence[Record]) -> float:
        from redis.asyncio import Redis as Client

        async with Client.from_url(self.address) as client:
            await client.ping()
            room = asyncio.Semaphore(4)

            async def send(some: Sequence[Record]) -> None:
                async with room, client.pipeline(transaction=True) as pipeline:
                    for record in some:
                        pipeline.xadd(place, {**record.headers, "payload": record.payload})
                    await pipeline.execute()

            start = time.perf_counter()
            await asyncio.gather(*(send(records[first : first + SOME]) for first in range(0, len(records), SOME)))
            return len(records) / (time.perf_counter() - start)


class Nats(Broker):
    service = "nats"

    def headers(self, id: str, key: str) -> dict[str, str]:
        return {KEY: key}

    def url(self, place: str, *, hot: bool) -> str:
        return f"{self.address}?subject={place}{PIPELINED if hot else ''}"

    @contextmanager
    def place(self, name: str) -> Iterator[None]:
        asyncio.run(self._manage(name, is_new=True))
        try:
            yield
        finally:
            asyncio.run(self._manage(name, is_new=False))

    async def _manage(self, place: str, *, is_new: bool) -> None:
        import nats

        client = await nats.connect(self.address)
        stream: Any = client.jetstream()
        await (stream.add_stream(name=place, subjects=[place]) if is_new else stream.delete_stream(place))
        await client.close()

    def rate(self, place: str, records: Sequence[Record]) -> float:
        return asyncio.run(self._send(place, records))

    async def _send(self, place: str, records: Sequence[Record]) -> float:
        import nats

        client = await nats.connect(self.address)
        stream: Any = client.jetstream()
        start = time.perf_counter()
        answers = [
            await stream.publish_async(place, payload, headers={**headers, "Nats-Msg-Id": id})
            for id, _, payload, headers in records
        ]
        await stream.publish_async_completed()
        elapsed = time.perf_counter() - start
        check(sum(answer.exception() is None for answer in answers), len(records))
        await client.close()
        return len(records) / elapsed


class Mqtt(Broker):
    service = "mosquitto"
    messages = 50_000
    quick_messages = 10_000

    def headers(self, id: str, key: str) -> dict[str, str]:
        return {ID: id, KEY: key}

    def url(self, place: str, *, hot: bool) -> str:
        return f"{self.address}?topic={place}{PIPELINED if hot else ''}"

    def rate(self, place: str, records: Sequence[Record]) -> float:
        from paho.mqtt.client import Client
        from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties

        parts = urlsplit(self.address)
        client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
        client.max_inflight_messages_set(1_000)
        client.connect(str(parts.hostname), parts.port or 1883)
        client.loop_start()
        while not client.is_connected():
            time.sleep(0.001)
        start = time.perf_counter()
        sent: list[Any] = []
        for _, _, payload, headers in records:
            properties: Any = Properties(PacketTypes.PUBLISH)
            properties.UserProperty = list(headers.items())
            sent.append(client.publish(place, payload, 1, properties=properties))
        for info in sent:
            info.wait_for_publish(120)
        elapsed = time.perf_counter() - start
        check(sum(info.is_published() for info in sent), len(records))
        client.disconnect()
        client.loop_stop()
        return len(records) / elapsed


class Sqs(Broker):
    """moto is slow, and the slower the more it has."""

    service = "moto"
    messages = 500
    quick_messages = 200

    def url(self, place: str, *, hot: bool) -> str:
        return f"sqs://test:test@eu-central-1?{urlencode({'endpoint': self.address, 'queue': place})}"

    @contextmanager
    def place(self, name: str) -> Iterator[None]:
        import boto3

        client: Any = boto3.client("sqs", **self._options)
        queue = client.create_queue(QueueName=name)["QueueUrl"]
        try:
            yield
        finally:
            client.delete_queue(QueueUrl=queue)
            client.close()

    def rate(self, place: str, records: Sequence[Record]) -> float:
        return asyncio.run(self._send(place, records))

    async def _send(self, place: str, records: Sequence[Record]) -> float:
        from aiobotocore.session import get_session

        made: Any = get_session().create_client("sqs", **self._options)
        room = asyncio.Semaphore(16)

        async def send(some: Sequence[Record]) -> None:
            entries = [
                {
                    "Id": str(number),
                    "MessageBody": payload.decode(),
                    "MessageAttributes": {
                        name: {"DataType": "String", "StringValue": value} for name, value in headers.items()
                    },
                }
                for number, (_, _, payload, headers) in enumerate(some)
            ]
            async with room:
                said = await client.send_message_batch(QueueUrl=queue, Entries=entries)
            assert len(said["Successful"]) == len(some)

        async with made as client:
            queue = (await client.get_queue_url(QueueName=place))["QueueUrl"]
            start = time.perf_counter()
            await asyncio.gather(*(send(records[first : first + 10]) for first in range(0, len(records), 10)))
            return len(records) / (time.perf_counter() - start)

    @property
    def _options(self) -> dict[str, Any]:
        return {
            "region_name": "eu-central-1",
            "endpoint_url": self.address,
            "aws_access_key_id": "test",
            "aws_secret_access_key": "test",
        }


class Http(Broker):
    """A small server in a process of its own that says 200 to everything."""

    service = "http"
    messages = 10_000
    quick_messages = 3_000

    def __init__(self) -> None:
        self.address = ""

    def version(self) -> str:
        return "a server that only answers"

    def headers(self, id: str, key: str) -> dict[str, str]:
        return {ID: id, KEY: key}

    def url(self, place: str, *, hot: bool) -> str:
        return f"{self.address}/{place}#allow_private=true"

    @contextmanager
    def place(self, name: str) -> Iterator[None]:
        with child(_serve) as pipe:
            self.address = hear(pipe, 10)
            yield

    def rate(self, place: str, records: Sequence[Record]) -> float:
        return asyncio.run(self._send(place, records))

    async def _send(self, place: str, records: Sequence[Record]) -> float:
        import httpx

        room = asyncio.Semaphore(16)

        async def send(record: Record) -> None:
            async with room:
                answer = await client.post(f"{self.address}/{place}", content=record.payload, headers=record.headers)
            assert answer.status_code == 200

        async with httpx.AsyncClient(limits=httpx.Limits(max_connections=16)) as client:
            start = time.perf_counter()
            await asyncio.gather(*map(send, records))
            return len(records) / (time.perf_counter() - start)


def _serve(pipe: Connection) -> None:
    asyncio.run(_answer_everything(pipe))


async def _answer_everything(pipe: Connection) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
                await reader.readexactly(length)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    pipe.send("ready")
    pipe.send(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    await closed(pipe)


def check(delivered: int, messages: int) -> None:
    if delivered != messages:
        raise RuntimeError(f"the raw loop delivered {delivered} of {messages} messages")


BROKERS: dict[str, type[Broker]] = {
    "kafka": Kafka, "amqp": RabbitMQ, "redis": Redis, "nats": Nats, "mqtt": Mqtt, "sqs": Sqs, "http": Http,
}  # fmt: skip
