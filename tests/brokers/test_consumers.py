"""What our publishers really send, read by the clients that consumers use, is the message that was written."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import aio_pika
import aiomqtt
import confluent_kafka
import nats
import pika
import pytest
from redis.asyncio import Redis

from postroom import Message, Received
from postroom.consumers import http, kafka, mqtt, rabbitmq, redis, sqs
from postroom.consumers import nats as from_nats
from postroom.message import NOTHING_HEADER, TOMBSTONE_HEADER
from postroom.publishers.amqp import AmqpPublisher
from postroom.publishers.http import HttpPublisher
from postroom.publishers.kafka import KafkaPublisher
from postroom.publishers.mqtt import MqttPublisher
from postroom.publishers.nats import NatsPublisher
from postroom.publishers.redis import RedisPublisher
from postroom.publishers.sns import SnsPublisher
from postroom.publishers.sqs import SqsPublisher
from postroom.testing.batch import RecordingBatch, hand_over
from tests.brokers.aws_reader import Aws, url_of
from tests.brokers.http_server import HttpServer
from tests.brokers.nats_reader import make_stream
from tests.brokers.test_kafka import create, records, servers
from tests.conftest import server_url

FORMATS = ["postroom", "cloudevents", "structured"]


def messages(topic: str) -> list[Message]:
    """One with everything, one with nothing, one without a payload, and one that was discarded."""
    full = Message(
        topic=topic,
        payload=b'{"total": 1.10}',
        key="Kunde ä 100%",
        type="OrderPlaced",
        headers={"tenant": "Müller & Söhne"},
        content_type="application/json",
        sequence=3,
        generation=1_700_000_000_000,
        epoch=12,
        replays=2,
        created_at=datetime(2026, 5, 1, 12, 30, tzinfo=UTC),
    )
    discarded = replace(
        full, id=Message(topic=topic).id, sequence=4, payload=b"", content_type=None, headers={TOMBSTONE_HEADER: "1"}
    )
    return [
        full,
        Message(topic=topic, payload=b"\x00\xff", key=full.key),
        Message(topic=topic, payload=b"", key=full.key, headers={NOTHING_HEADER: "1"}),
        discarded,
    ]


def check(sent: Iterable[Message], found: Iterable[Received]) -> None:
    for message, came in zip(sent, found, strict=True):
        assert (came.id, came.topic, came.key) == (message.id, message.topic, message.key)
        assert came.payload == (None if NOTHING_HEADER in message.headers else message.payload)
        assert (came.sequence, came.generation) == (message.sequence, message.generation)
        assert (came.epoch, came.replays, came.created_at) == (message.epoch, message.replays, message.created_at)
        assert came.is_tombstone == (TOMBSTONE_HEADER in message.headers)
        assert came.headers.get("tenant") == message.headers.get("tenant")
        assert came.content_type == message.content_type
        assert came.type in (message.type, message.topic)


async def publish(publisher: Any, sent: list[Message]) -> None:
    for message in sent:  # one after the other, to keep their order whatever the publisher does
        batch = await hand_over(publisher, RecordingBatch([message], 10.0))
        assert batch.answers == {message.id: None}
    await publisher.close()


def new_topic() -> str:
    return f"orders-{secrets.token_hex(6)}"


@pytest.mark.parametrize("format", FORMATS)
async def test_aiokafka(format: str) -> None:
    address, topic = server_url("kafka"), new_topic()
    await create(address, topic)
    sent = messages(topic)
    await publish(KafkaPublisher(address, format=format), sent)
    check(sent, [kafka.received(record) for record in await records(address, topic)])


@pytest.mark.parametrize("format", FORMATS)
async def test_confluent_kafka(format: str) -> None:
    address, topic = server_url("kafka"), new_topic()
    await create(address, topic)
    sent = messages(topic)
    await publish(KafkaPublisher(address, format=format), sent)
    check(sent, await asyncio.to_thread(consumed, address, topic, len(sent)))


def consumed(address: str, topic: str, count: int) -> list[Received]:
    settings = {"bootstrap.servers": servers(address), "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe([topic])
    found: list[Received] = []
    try:
        while len(found) < count:
            if (message := consumer.poll(30)) is not None:
                assert message.error() is None
                found.append(kafka.received(message))
    finally:
        consumer.close()
    return found


@pytest.mark.parametrize("format", FORMATS)
async def test_aio_pika(format: str) -> None:
    address, topic = server_url("rabbitmq"), new_topic()
    sent, found = messages(topic), list[Received]()
    async with await aio_pika.connect(address) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(topic, durable=True)
        await publish(AmqpPublisher(address, format=format), sent)
        async with queue.iterator() as arriving:
            async for message in arriving:
                await message.ack()
                found.append(rabbitmq.received(message))
                if len(found) == len(sent):
                    break
        await channel.queue_delete(topic)
    check(sent, found)


@pytest.mark.parametrize("format", FORMATS)
async def test_pika(format: str) -> None:
    address, topic = server_url("rabbitmq"), new_topic()
    sent = messages(topic)
    connection = pika.BlockingConnection(pika.URLParameters(address))
    channel = connection.channel()
    channel.queue_declare(topic, durable=True)
    await publish(AmqpPublisher(address, format=format), sent)
    found = [rabbitmq.received(*channel.basic_get(topic, auto_ack=True)) for _ in sent]
    channel.queue_delete(topic)
    connection.close()
    check(sent, found)


@pytest.mark.parametrize("decodes", [False, True])
@pytest.mark.parametrize("format", FORMATS)
async def test_redis(format: str, decodes: bool) -> None:
    address, topic = server_url("redis"), new_topic()
    sent = [message for message in messages(topic) if message.payload.isascii() or not decodes]
    await publish(RedisPublisher(address, format=format), sent)
    async with Redis.from_url(address, decode_responses=decodes) as client:
        entries: Any = await client.xrange(topic)
    check(sent, [redis.received(fields, stream=topic) for _, fields in entries])


@pytest.mark.parametrize("format", FORMATS)
async def test_nats(format: str) -> None:
    address, topic = server_url("nats"), new_topic()
    await make_stream(address, topic)
    sent = messages(topic)
    await publish(NatsPublisher(address, format=format), sent)
    client = await nats.connect(address)
    subscription = await client.jetstream().subscribe(topic, ordered_consumer=True)
    found = [from_nats.received(await subscription.next_msg(10)) for _ in sent]
    await client.close()
    check(sent, found)


@pytest.mark.parametrize("format", FORMATS)
async def test_web_hooks(server: HttpServer, format: str) -> None:
    sent = messages("orders")
    await publish(HttpPublisher(f"{server.address}#allow_private=true&format={format}"), sent)
    found = [http.received_from(request.headers, request.body, topic="orders") for request in server.requests]
    check(sent, found)


@pytest.mark.parametrize("service", ["sqs", "sns"])
@pytest.mark.parametrize("format", FORMATS)
async def test_sqs(service: str, format: str) -> None:
    address, topic = server_url("moto"), new_topic()
    aws = Aws(address)
    sent = messages(topic)
    if service == "sqs":
        aws.make_queue(topic)
        await publish(SqsPublisher(url_of("sqs", address, format=format)), sent)
    else:
        aws.make_topic(topic)
        await publish(SnsPublisher(url_of("sns", address, format=format)), sent)
    found = {came.id: came for came in (sqs.received(message, topic=topic) for message in aws.take(topic))}
    aws.close()
    check(sent, [found[message.id] for message in sent])


@pytest.mark.parametrize("format", FORMATS)
async def test_mqtt(format: str) -> None:
    address, topic = server_url("mosquitto"), new_topic()
    parts = urlsplit(address)
    sent, found = messages(topic), list[Received]()
    async with aiomqtt.Client(parts.hostname or "", parts.port or 1883, protocol=aiomqtt.ProtocolVersion.V5) as client:
        await client.subscribe(topic, qos=1)
        await publish(MqttPublisher(address, format=format), sent)
        async for message in client.messages:
            found.append(mqtt.received(message))
            if len(found) == len(sent):
                break
    check(sent, found)
