"""Kafka."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.partitioner import murmur2
from cloudevents.core.bindings.kafka import KafkaMessage, from_kafka_event

from postroom import ConfigurationError, DestinationUnavailable, Message, MessageRejected
from postroom.errors import NotAttempted
from postroom.failures import is_unavailable
from postroom.ports import Finding
from postroom.publishers.kafka import KafkaPublisher
from postroom.testing.batch import RecordingBatch, hand_over
from postroom.testing.publisher_contract import PublisherContract, Received
from tests.brokers.behind_proxy import BehindProxy
from tests.brokers.example import run_example
from tests.brokers.fault_suite import SETTINGS, Arrived, FaultSuite
from tests.conftest import server_url
from tests.proxy import Proxy
from tests.services.kafka import Kafka
from tests.services.places import locked
from tests.services.registry import BROKERS

PARTITIONS = 4


def servers(address: str) -> str:
    return address.partition("://")[2]


async def create(address: str, topic: str, **configs: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=servers(address))
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, PARTITIONS, 1, topic_configs=configs)])
    finally:
        await admin.close()


async def records(address: str, topic: str) -> list[Any]:
    """All there are, in order within a partition."""
    consumer = AIOKafkaConsumer(bootstrap_servers=servers(address), enable_auto_commit=False)
    await consumer.start()
    try:
        partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        ends: dict[TopicPartition, int] = await consumer.end_offsets(partitions)
        found: list[Any] = []
        while any([await consumer.position(partition) < ends[partition] for partition in partitions]):
            for some in (await consumer.getmany(timeout_ms=200)).values():
                found += some
        return found
    finally:
        await consumer.stop()


def received(record: Any) -> Received:
    headers = {name: value.decode() for name, value in record.headers}
    return Received(
        id=headers["postroom-id"],
        topic=record.topic,
        key=None if record.key is None else record.key.decode(),
        payload=record.value,
        headers=headers,
    )


@contextmanager
def kafka_proxy() -> Iterator[Proxy]:
    """A broker tells its clients where to go, so there is one port for all proxies, and one proxy at a time."""
    server_url("kafka")
    inner, port = cast(Kafka, BROKERS["kafka"]).proxied()
    with locked("kafka-proxy"), Proxy(inner, port) as proxy:
        yield proxy


class TestKafkaPublisher(BehindProxy, PublisherContract):
    broker = "kafka"
    patience = 30.0

    @pytest.fixture(autouse=True)
    def _network(self) -> Iterator[None]:
        self.address = server_url("kafka")
        with kafka_proxy() as proxy:
            self.proxy = proxy
            yield

    @pytest_asyncio.fixture(autouse=True)
    async def _topic(self, _network: None) -> None:
        self.topic = f"orders-{secrets.token_hex(6)}"
        await create(self.address, self.topic)

    async def make_publisher(self) -> KafkaPublisher:
        return KafkaPublisher(self.proxy.url)

    async def received(self) -> list[Received]:
        return [received(record) for record in await records(self.address, self.topic)]


class TestFaults(FaultSuite):
    broker = "kafka"
    settings = SETTINGS | {"lease_ttl": "12s", "publish_timeout": "5s"}  # a producer that is made anew takes a while

    def network(self, address: str) -> AbstractContextManager[Proxy]:
        return kafka_proxy()

    def prepare(self, address: str) -> str:
        topic = f"orders-{secrets.token_hex(6)}"
        asyncio.run(create(address, topic))
        return topic

    def arrived(self, address: str, topic: str) -> list[Arrived]:
        found = asyncio.run(records(address, topic))
        return [(record.key.decode(), json.loads(record.value)["number"]) for record in found]


# --- what a record looks like


@pytest.fixture
def address() -> str:
    return server_url("kafka")


@pytest_asyncio.fixture
async def topic(address: str) -> str:
    topic = f"orders-{secrets.token_hex(6)}"
    await create(address, topic)
    return topic


async def send(url: str, *messages: Message, timeout: float = 10.0, **options: Any) -> list[BaseException | None]:
    """The answers."""
    publisher = KafkaPublisher(url, **options)
    batch = await hand_over(publisher, RecordingBatch(messages, timeout))
    await publisher.close()
    return [batch.answers[message.id] for message in messages]


async def examined(url: str, topic: str) -> Finding:
    publisher = KafkaPublisher(url)
    [finding] = await publisher.examine([topic])
    await publisher.close()
    return finding


async def test_the_partition_is_the_one_that_the_java_client_chooses(address: str, topic: str) -> None:
    """As aiokafka does, too."""
    keys = [f"order-{number}" for number in range(50)]
    assert set(await send(address, *(Message(topic=topic, key=key, payload=b"1") for key in keys))) == {None}
    found = {record.key.decode(): record.partition for record in await records(address, topic)}
    assert found == {key: (murmur2(key.encode()) & 0x7FFFFFFF) % PARTITIONS for key in keys}


async def test_headers_content_type_and_tombstones_arrive(address: str, topic: str) -> None:
    messages = [
        Message(topic=topic, key="a", payload=b"{}", content_type="application/json"),
        Message(topic=topic, key="a"),
    ]
    assert await send(address, *messages) == [None, None]
    first, second = await records(address, topic)
    assert dict(first.headers)["content-type"] == b"application/json"
    assert (first.value, second.value) == (b"{}", None)


@pytest.mark.parametrize("format", ["cloudevents", "structured"])
async def test_the_sdk_for_cloudevents_reads_what_is_sent(address: str, topic: str, format: str) -> None:
    message = Message(topic=topic, key="a", type="OrderPlaced", payload=b'{"id": 1}', content_type="application/json")
    await send(f"{address}?format={format}&source=/shop", message)
    [record] = await records(address, topic)
    event = from_kafka_event(KafkaMessage(dict(record.headers), record.key, record.value))
    assert (event.get_id(), event.get_source(), event.get_type()) == (message.id, "/shop", "OrderPlaced")
    assert (event.get_extension("partitionkey"), event.get_data()) == ("a", {"id": 1})


# --- refusals


async def test_what_is_too_large_for_us_is_known_before_it_is_sent(address: str, topic: str) -> None:
    large, small = (Message(topic=topic, key=key, payload=bytes(size)) for key, size in (("a", 2_000_000), ("b", 10)))
    answers = await send(address, large, small)
    assert isinstance(answers[0], MessageRejected)
    assert answers[0].permanent
    assert answers[1] is None


async def test_what_is_too_large_for_the_topic_fails_alone_and_nothing_of_its_key_overtakes_it(address: str) -> None:
    """One bad record fails its whole batch, and an idempotent producer with it."""
    topic = f"orders-{secrets.token_hex(6)}"
    await create(address, topic, **{"max.message.bytes": "20000"})
    messages = [Message(topic=topic, key=f"k{n % 5}", payload=b"%d" % n) for n in range(50)]
    messages[10] = Message(topic=topic, key="k0", payload=bytes(100_000))
    answers = await send(f"{address}?compression.type=none&linger.ms=50", *messages)
    assert isinstance(answers[10], MessageRejected)
    assert {type(answers[n]) for n in range(15, 50, 5)} == {NotAttempted}
    assert {answers[n] for n in range(50) if n % 5 or n < 10} == {None}
    found = {record.headers[0][1] for record in await records(address, topic)}
    assert len(found) == 42


async def test_a_missing_topic_blames_no_message(address: str) -> None:
    topic = f"nowhere-{secrets.token_hex(6)}"
    [answer] = await send(f"{address}?topic.metadata.propagation.max.ms=500", Message(topic=topic, payload=b"1"))
    assert isinstance(answer, DestinationUnavailable)
    assert (await examined(address, topic)).verdict == "problem"


async def test_a_topic_name_that_cannot_be_is_refused(address: str) -> None:
    [answer] = await send(address, Message(topic="no such topic!", payload=b"1"))
    assert isinstance(answer, MessageRejected)


# --- bad input


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("kafka://localhost?acks=1", "acks=1 can lose or reorder messages"),
        ("kafka://localhost?enable.idempotence=false", "can lose or reorder"),
        ("kafka://localhost?message.timeout.ms=1000", "can lose or reorder"),
        ("kafka://localhost?no.such.option=1", "no.such.option"),
        ("kafka://localhost?topic=%7Bshop%7D", "may name {topic}, {key} and {type}"),
        ("kafka:", "names no brokers"),
    ],
)
def test_a_url_that_cannot_work_is_refused(url: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        KafkaPublisher(url)


def test_whoever_insists_gets_less_than_the_guarantees() -> None:
    KafkaPublisher("kafka://localhost?acks=1&unsafe=true")
    KafkaPublisher("kafka://localhost?acks=-1")


async def test_brokers_that_cannot_be_reached_are_told_and_found() -> None:
    [answer] = await send("kafka://127.0.0.1:1", Message(topic="orders", payload=b"1"), timeout=1.0)
    assert answer is not None
    assert is_unavailable(answer)


async def test_a_topic_that_is_there_is_found(address: str, topic: str) -> None:
    assert (await examined(address, topic)).verdict == "ok"


def test_the_example_runs(address: str, tmp_path: Path) -> None:
    topic = f"orders-{secrets.token_hex(6)}"
    asyncio.run(create(address, topic))
    assert (
        run_example("kafka.py", tmp_path, address, topic)
        == """\
delivered 1
order-1 OrderPlaced {"id":1,"total":42}
"""
    )
