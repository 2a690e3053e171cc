"""Kafka."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
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
from postroom.message import slot_of
from postroom.ports import Finding
from postroom.publishers.kafka import KafkaPublisher
from postroom.testing.batch import RecordingBatch, hand_over
from postroom.testing.publisher_contract import PublisherContract, Received
from postroom.wire import kafka_line
from tests.brokers.behind_proxy import BehindProxy
from tests.brokers.example import run_example
from tests.brokers.fault_suite import SETTINGS, Arrived, FaultSuite
from tests.brokers.refusals import RefusesWhatIsLarge
from tests.conftest import server_url
from tests.proxy import Proxy
from tests.services.kafka import Kafka
from tests.services.places import locked
from tests.services.registry import BROKERS

PARTITIONS = 4
END_OF_TRANSACTION = (26).to_bytes(2)
"""Where a request says what it asks for, after four bytes with its length: to commit, or to abort."""


def servers(address: str) -> str:
    return address.partition("://")[2]


async def create(address: str, topic: str, **configs: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=servers(address))
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, PARTITIONS, 1, topic_configs=configs)])
    finally:
        await admin.close()


async def records(address: str, topic: str, *, isolation: str = "read_uncommitted") -> list[Any]:
    """All there are, in order within a partition."""
    consumer = AIOKafkaConsumer(bootstrap_servers=servers(address), enable_auto_commit=False, isolation_level=isolation)
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


class TestTransactionalPublisher(TestKafkaPublisher):
    async def make_publisher(self) -> KafkaPublisher:
        return KafkaPublisher(f"{self.proxy.url}?transactional={self.topic}")

    async def received(self) -> list[Received]:
        return [received(record) for record in await records(self.address, self.topic, isolation="read_committed")]

    def messages(self, number: int, keys: Sequence[str | None] = ("a",), **fields: Any) -> list[Message]:
        """In some slots, so that a batch is several transactions."""
        messages = super().messages(number, keys, **fields)
        return [replace(message, slot=slot_of(message.key, message.id) % 5) for message in messages]


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


class TestTransactionalFaults(TestFaults):
    def to(self, address: str) -> str:
        return f"{address}?transactional=shop-{secrets.token_hex(6)}"

    def arrived(self, address: str, topic: str) -> list[Arrived]:
        found = asyncio.run(records(address, topic, isolation="read_committed"))
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


async def test_what_follows_a_record_that_is_too_large_for_the_topic_is_not_taken_by_the_brokers(address: str) -> None:
    """Although it is on its way already, in requests of its own."""
    topic = f"orders-{secrets.token_hex(6)}"
    await create(address, topic, **{"max.message.bytes": "20000"})
    messages = [Message(topic=topic, key="a", payload=b"%d" % n) for n in range(20)]
    messages[3] = Message(topic=topic, key="a", payload=bytes(100_000))
    answers = await send(f"{address}?compression.type=none&linger.ms=0&batch.num.messages=1", *messages)
    assert [answers[n] for n in range(3)] == [None] * 3
    assert isinstance(answers[3], MessageRejected)
    assert {type(answers[n]) for n in range(4, 20)} == {NotAttempted}
    assert [record.value for record in await records(address, topic)] == [b"0", b"1", b"2"]


async def test_a_small_record_does_not_overtake_a_large_one_that_there_was_no_room_for(
    address: str, topic: str
) -> None:
    messages = [Message(topic=topic, key="a", payload=bytes(size)) for size in (600_000, 600_000, 1)]
    answers = await send(f"{address}?queue.buffering.max.kbytes=1000&linger.ms=50", *messages)
    assert [type(answer) for answer in answers] == [type(None), DestinationUnavailable, NotAttempted]
    assert [len(record.value) for record in await records(address, topic)] == [600_000]


async def test_a_missing_topic_blames_no_message(address: str) -> None:
    topic = f"nowhere-{secrets.token_hex(6)}"
    [answer] = await send(f"{address}?topic.metadata.propagation.max.ms=500", Message(topic=topic, payload=b"1"))
    assert isinstance(answer, DestinationUnavailable)
    assert (await examined(address, topic)).verdict == "problem"


async def test_a_topic_name_that_cannot_be_is_refused(address: str) -> None:
    [answer] = await send(address, Message(topic="no such topic!", payload=b"1"))
    assert isinstance(answer, MessageRejected)


# --- transactions


def in_slot(topic: str, *payloads: bytes, key: str = "a", epoch: int = 1) -> list[Message]:
    return [Message(topic=topic, key=key, payload=payload, slot=7, epoch=epoch) for payload in payloads]


async def hand(publisher: KafkaPublisher, *messages: Message, timeout: float = 10.0) -> list[BaseException | None]:
    batch = await hand_over(publisher, RecordingBatch(messages, timeout))
    assert not batch.violations
    return [batch.answers[message.id] for message in messages]


async def committed(address: str, topic: str) -> list[bytes]:
    return [record.value for record in await records(address, topic, isolation="read_committed")]


async def until_sent(address: str, topic: str, payload: bytes) -> None:
    """Until it is in the log, committed or not."""
    async with asyncio.timeout(30):
        while payload not in [record.value for record in await records(address, topic)]:
            pass


async def test_a_former_owner_is_fenced_off(address: str, topic: str) -> None:
    former, owner = (KafkaPublisher(address, transactional=topic) for _ in range(2))
    assert await hand(former, *in_slot(topic, b"1", b"2")) == [None, None]
    assert await hand(owner, *in_slot(topic, b"3", epoch=2)) == [None]
    for answer in await hand(former, *in_slot(topic, b"stale", b"stale")):
        assert isinstance(answer, (DestinationUnavailable, NotAttempted))
    assert await hand(owner, *in_slot(topic, b"4", epoch=2)) == [None]
    assert await committed(address, topic) == [b"1", b"2", b"3", b"4"]
    await former.close()
    await owner.close()


async def test_being_fenced_off_is_said_in_words_and_blames_no_message(address: str, topic: str) -> None:
    former, owner = (KafkaPublisher(address, transactional=topic) for _ in range(2))
    assert await hand(former, *in_slot(topic, b"1")) == [None]
    assert await hand(owner, *in_slot(topic, b"2", epoch=2)) == [None]
    [answer] = await hand(former, *in_slot(topic, b"stale"))
    assert isinstance(answer, DestinationUnavailable)
    assert "another relay owns the slot by now" in str(answer)
    await former.close()
    await owner.close()


async def test_an_owner_that_comes_back_with_a_new_lease_fences_off_the_one_between(address: str, topic: str) -> None:
    first, second = (KafkaPublisher(address, transactional=topic) for _ in range(2))
    assert await hand(first, *in_slot(topic, b"1")) == [None]
    assert await hand(second, *in_slot(topic, b"2", epoch=2)) == [None]
    assert await hand(first, *in_slot(topic, b"3", epoch=3)) == [None]
    [answer] = await hand(second, *in_slot(topic, b"stale", epoch=2))
    assert isinstance(answer, DestinationUnavailable)
    assert await committed(address, topic) == [b"1", b"2", b"3"]
    await first.close()
    await second.close()


async def test_messages_of_a_lease_that_is_over_are_not_sent_with_the_next(address: str, topic: str) -> None:
    publisher = KafkaPublisher(address, transactional=topic)
    assert await hand(publisher, *in_slot(topic, b"1", epoch=2)) == [None]
    [answer] = await hand(publisher, *in_slot(topic, b"stale", epoch=1))
    assert isinstance(answer, DestinationUnavailable)
    assert await hand(publisher, *in_slot(topic, b"2", epoch=2)) == [None]
    assert await committed(address, topic) == [b"1", b"2"]
    await publisher.close()


async def test_slots_do_not_fence_each_other_off(address: str, topic: str) -> None:
    one, other = (KafkaPublisher(address, transactional=topic) for _ in range(2))
    for payload in (b"1", b"2"):
        for publisher, slot in ((one, 1), (other, 2)):
            message = Message(topic=topic, key="a", payload=payload, slot=slot, epoch=slot)
            assert await hand(publisher, message) == [None]
    await one.close()
    await other.close()


async def test_what_was_sent_and_not_committed_is_never_seen(topic: str, address: str) -> None:
    """The brokers have it in their logs, but not the answer to them: the call was given up before the commit."""
    with kafka_proxy() as proxy:
        publisher = KafkaPublisher(proxy.url, transactional=topic)
        assert await hand(publisher, *in_slot(topic, b"first")) == [None]
        proxy.swallow_answers(lambda said, data: b"given up" in data)
        [answer] = await hand(publisher, *in_slot(topic, b"given up"), timeout=1.0)
        assert answer is not None
        assert is_unavailable(answer)
        await until_sent(address, topic, b"given up")
        proxy.heal()
        assert await hand(publisher, *in_slot(topic, b"last")) == [None]
        assert await committed(address, topic) == [b"first", b"last"]
        await publisher.close()


@pytest.mark.parametrize("patience", [1.0, 10.0])
async def test_a_commit_without_an_answer_is_an_outage(topic: str, address: str, patience: float) -> None:
    """It may have happened, and here it has: the message is sent again. Whoever is less patient ends the call."""
    with kafka_proxy() as proxy:
        publisher = KafkaPublisher(proxy.url, transactional=topic)
        assert await hand(publisher, *in_slot(topic, b"first")) == [None]
        proxy.swallow_answer(lambda said, data: data[4:6] == END_OF_TRANSACTION)
        messages = in_slot(topic, b"second")
        batch = RecordingBatch(messages, timeout=2.0)
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await publisher.publish(batch)
        assert proxy.swallowed.is_set()
        assert {type(answer) for answer in batch.answers.values()} == (
            {DestinationUnavailable} if patience > batch.timeout else set()
        )
        proxy.heal()
        assert await hand(publisher, *messages) == [None]
        assert await committed(address, topic) == [b"first", b"second", b"second"]
        await publisher.close()


async def test_in_a_transaction_what_is_too_large_for_the_topic_fails_alone(address: str) -> None:
    topic = f"orders-{secrets.token_hex(6)}"
    await create(address, topic, **{"max.message.bytes": "20000"})
    messages = [Message(topic=topic, key=f"k{n % 5}", payload=b"%d" % n, slot=7, epoch=1) for n in range(50)]
    messages[10] = Message(topic=topic, key="k0", payload=bytes(100_000), slot=7, epoch=1)
    answers = await send(f"{address}?compression.type=none&transactional={topic}", *messages)
    assert isinstance(answers[10], MessageRejected)
    assert {type(answers[n]) for n in range(15, 50, 5)} == {NotAttempted}
    assert {answers[n] for n in range(50) if n % 5 or n < 10} == {None}
    expected = [b"%d" % n for n in range(50) if n % 5 or n < 10]
    assert sorted(await committed(address, topic)) == sorted(expected)


async def test_in_a_transaction_what_is_too_large_for_us_fails_alone(address: str, topic: str) -> None:
    large, small = (
        Message(topic=topic, key=key, payload=bytes(size), slot=7) for key, size in (("a", 2_000_000), ("b", 10))
    )
    answers = await send(address, large, small, transactional=topic)
    assert isinstance(answers[0], MessageRejected)
    assert answers[1] is None
    assert await committed(address, topic) == [bytes(10)]


async def test_in_a_transaction_a_missing_topic_holds_up_no_other(address: str, topic: str) -> None:
    url = f"{address}?topic.metadata.propagation.max.ms=500&transactional={topic}"
    missing, good = (Message(topic=name, key="a", payload=b"1", slot=7) for name in (f"nowhere-{topic}", topic))
    answers = await send(url, missing, good)
    assert isinstance(answers[0], DestinationUnavailable)
    assert answers[1] is None
    assert await committed(address, topic) == [b"1"]


async def test_in_a_transaction_nothing_of_a_key_overtakes_what_has_no_topic(address: str, topic: str) -> None:
    """Though it goes to a topic that is there."""
    url = f"{address}?topic={{type}}&topic.metadata.propagation.max.ms=500&transactional={topic}"
    messages = [
        Message(topic="orders", key="a", type=name, payload=b"1", slot=7) for name in (f"nowhere-{topic}", topic)
    ]
    first, second = await send(url, *messages)
    assert isinstance(first, DestinationUnavailable)
    assert isinstance(second, NotAttempted)
    assert await committed(address, topic) == []


def test_a_transactional_publisher_may_be_used_on_one_event_loop_after_another(address: str) -> None:
    topic = f"orders-{secrets.token_hex(6)}"
    asyncio.run(create(address, topic))
    publisher = KafkaPublisher(address, transactional=topic)
    for payload in (b"1", b"2"):
        assert asyncio.run(hand(publisher, *in_slot(topic, payload))) == [None]
    asyncio.run(publisher.close())
    assert asyncio.run(committed(address, topic)) == [b"1", b"2"]


# --- bad input


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("kafka://localhost?acks=1", "acks=1 can lose or reorder messages"),
        ("kafka://localhost?delivery.timeout.ms=5000", "message.timeout.ms=5000 can lose or reorder messages"),
        ("kafka://shop:secret@localhost", "security.protocol=SASL_SSL"),
        ("kafka://localhost?enable.idempotence=false", "can lose or reorder"),
        ("kafka://localhost?message.timeout.ms=1000", "can lose or reorder"),
        ("kafka://localhost?transactional=shop&acks=1", "can lose or reorder"),
        ("kafka://localhost?transactional=shop&unsafe=true", "transactional and unsafe exclude each other"),
        ("kafka://localhost?transactional=", "must say what the transactional ids begin with"),
        ("kafka://localhost?transactional.id=shop", "write transactional=shop"),
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


class TestRefusals(RefusesWhatIsLarge):
    @pytest_asyncio.fixture(autouse=True)
    async def _topic(self) -> None:
        self.address, self.topic = server_url("kafka"), f"orders-{secrets.token_hex(6)}"
        await create(self.address, self.topic)

    async def make_publisher(self) -> KafkaPublisher:
        return KafkaPublisher(f"{self.address}?message.max.bytes={self.large}")

    async def received(self) -> list[Received]:
        return [received(record) for record in await records(self.address, self.topic)]


async def test_what_the_client_has_no_room_for_is_not_overtaken(address: str, topic: str) -> None:
    messages = [Message(topic=topic, key="a", payload=b"%d" % n) for n in range(50)]
    rest, arrived = messages, 0
    publisher = KafkaPublisher(f"{address}?queue.buffering.max.messages=3&linger.ms=50")
    while rest:
        batch = await hand_over(publisher, RecordingBatch(rest))
        assert [type(error) for error in batch.answers.values() if error is not None and not is_unavailable(error)] in (
            [],
            [NotAttempted] * (len(rest) - len(batch.delivered) - 1),
        )
        assert batch.delivered == rest[: len(batch.delivered)]
        arrived += len(batch.delivered)
        rest = messages[arrived:]
    await publisher.close()
    assert [record.value for record in await records(address, topic)] == [message.payload for message in messages]


async def test_two_rows_with_one_id_are_both_answered_for(address: str, topic: str) -> None:
    """As after two replays of one message."""
    first = Message(topic=topic, key="a", payload=b"1", replays=1)
    second = Message(topic=topic, key="b", payload=b"2", replays=2, id=first.id)
    publisher = KafkaPublisher(address)
    answered: list[Message] = []

    class Both(RecordingBatch):
        def answer(self, message: Message, error: BaseException | None = None) -> None:
            assert error is None
            answered.append(message)

    await publisher.publish(Both([first, second]))
    await publisher.close()
    assert answered in ([first, second], [second, first])


async def test_why_nothing_is_heard_is_told() -> None:
    [answer] = await send("kafka://127.0.0.1:1", Message(topic="orders", payload=b"1"), timeout=2.0)
    assert isinstance(answer, DestinationUnavailable)
    assert "127.0.0.1:1" in str(answer)
    assert "refused" in str(answer).lower()


@pytest.mark.parametrize("headers", [{"zero\0": "1"}, {"half\ud83d": "1"}, {"a": "half \ud83d"}])
async def test_a_header_that_cannot_travel_is_refused_for_good(
    address: str, topic: str, headers: dict[str, str]
) -> None:
    bad, good = Message(topic=topic, payload=b"1", headers=headers), Message(topic=topic, payload=b"2")
    refused, delivered = await send(address, bad, good)
    assert isinstance(refused, MessageRejected)
    assert refused.permanent
    assert delivered is None


async def test_a_value_with_a_zero_arrives_as_it_is(address: str, topic: str) -> None:
    """The client would end a text there."""
    assert await send(address, Message(topic=topic, payload=b"1", key="k", headers={"a": "be\0fore"})) == [None]
    [record] = await records(address, topic)
    assert dict(record.headers)["a"] == b"be\0fore"


@pytest.mark.parametrize("bad", [{"topic": "no topic"}, {"headers": {"zero\0": "1"}}, {"type": "half \ud83d"}])
async def test_a_call_with_nothing_to_send_ends_at_once(address: str, topic: str, bad: dict[str, Any]) -> None:
    async with asyncio.timeout(5):
        [answer] = await send(address, Message(**{"topic": topic, "payload": b"1", **bad}), timeout=60.0)
    assert isinstance(answer, MessageRejected)
    assert answer.permanent


async def test_a_call_that_is_given_up_is_told_what_arrived(
    address: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client knows, and was not asked yet."""
    for name in ("SHORTEST", "LONGEST", "IDLE"):
        monkeypatch.setattr(kafka_line, name, 600.0)
    publisher = KafkaPublisher(address)
    batch = RecordingBatch([Message(topic=topic, payload=b"1")])
    call = asyncio.create_task(publisher.publish(batch))
    await until_sent(address, topic, b"1")
    # An answer on the same connection as the one to the message, and after it.
    await asyncio.to_thread(publisher._lines[False]._producer.list_topics, topic, 30)
    assert not batch.answers
    call.cancel()
    with suppress(asyncio.CancelledError):
        await call
    assert [*batch.answers.values()] == [None]
    await publisher.close()


async def test_a_closed_publisher_lets_go_of_its_client_and_may_be_used_again(address: str, topic: str) -> None:
    publisher = KafkaPublisher(address)
    lines: list[Any] = []
    for number in range(2):
        batch = await hand_over(publisher, RecordingBatch([Message(topic=topic, payload=b"%d" % number)]))
        assert [*batch.answers.values()] == [None]
        lines += publisher._lines.values()
        await publisher.close()
    assert [line._producer for line in lines] == [None, None]
    assert len(await records(address, topic)) == 2


def test_a_publisher_may_be_used_on_one_event_loop_after_another(address: str) -> None:
    topic, publisher = f"t{secrets.token_hex(6)}", KafkaPublisher(address)
    lines: list[Any] = []

    async def use(number: int) -> None:
        if not number:
            await create(address, topic)
        batch = await hand_over(publisher, RecordingBatch([Message(topic=topic, payload=b"%d" % number)]))
        assert [*batch.answers.values()] == [None]
        lines.extend(publisher._lines.values())

    for number in range(2):
        asyncio.run(use(number))  # which does not close it
    assert lines[0]._producer is None
    asyncio.run(publisher.close())
    assert lines[1]._producer is None
