"""RabbitMQ."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aio_pika
import pytest
import pytest_asyncio
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
from cloudevents.core.bindings.rabbitmq import RabbitMQMessage, from_rabbitmq_event
from pika.frame import Method
from pika.spec import Connection

from postroom import ConfigurationError, DestinationUnavailable, Message, MessageRejected
from postroom.errors import NotAttempted
from postroom.failures import is_unavailable
from postroom.ports import Finding
from postroom.publishers import amqp
from postroom.publishers.amqp import AmqpPublisher
from postroom.testing.batch import RecordingBatch, hand_over
from postroom.testing.publisher_contract import PublisherContract, Received
from tests.brokers.behind_proxy import BehindProxy
from tests.brokers.example import run_example
from tests.brokers.fault_suite import Arrived, FaultSuite
from tests.brokers.refusals import RefusesWhatIsLarge
from tests.conftest import server_url
from tests.proxy import Proxy
from tests.services.private import PrivateServer
from tests.waiting import until

LARGE = 30_000_000
"""Bytes, more than the network's buffers take."""


async def declare(address: str, name: str, **arguments: Any) -> None:
    async with await aio_pika.connect(address) as connection:
        channel = await connection.channel()
        await channel.declare_queue(name, durable=True, arguments=arguments)


async def delete(address: str, name: str) -> None:
    async with await aio_pika.connect(address) as connection:
        await (await connection.channel()).queue_delete(name)


class Reader:
    """Takes what is in a queue, and remembers it."""

    def __init__(self, address: str, queue: str) -> None:
        self._address, self._queue = address, queue
        self.messages: list[AbstractIncomingMessage] = []

    async def count(self) -> int:
        async with await aio_pika.connect(self._address) as connection:
            return await self._waiting(await connection.channel()) + len(self.messages)

    async def read(self) -> list[AbstractIncomingMessage]:
        """What was there when it began: more may come all the time."""
        async with await aio_pika.connect(self._address) as connection:
            channel = await connection.channel()
            await channel.set_qos(500)
            end = await self._waiting(channel) + len(self.messages)
            if len(self.messages) < end:
                async with (await channel.get_queue(self._queue)).iterator() as found:
                    async for message in found:
                        await message.ack()
                        self.messages.append(message)
                        if len(self.messages) == end:
                            break
        return self.messages

    async def _waiting(self, channel: AbstractChannel) -> int:
        queue = await channel.declare_queue(self._queue, passive=True)
        return queue.declaration_result.message_count or 0


def received(topic: str, message: AbstractIncomingMessage) -> Received:
    headers = {name: str(value) for name, value in message.headers.items()}
    return Received(
        id=headers["postroom-id"],
        topic=topic,
        key=headers.get("postroom-key"),
        payload=message.body,
        headers=headers,
    )


class TestAmqpPublisher(BehindProxy, PublisherContract):
    broker = "rabbitmq"

    @pytest_asyncio.fixture(autouse=True)
    async def _queue(self, _network: None) -> AsyncIterator[None]:
        self.topic = f"orders-{secrets.token_hex(6)}"
        await declare(self.address, self.topic)
        self.reader = Reader(self.address, self.topic)
        yield
        await delete(self.address, self.topic)

    async def make_publisher(self) -> AmqpPublisher:
        return AmqpPublisher(self.proxy.url)

    async def received(self) -> list[Received]:
        return [received(self.topic, message) for message in await self.reader.read()]


class TestPipelined(TestAmqpPublisher):
    async def make_publisher(self) -> AmqpPublisher:
        return AmqpPublisher(self.proxy.url, pipelined=True)


class TestRefusals(RefusesWhatIsLarge):
    @pytest_asyncio.fixture(autouse=True)
    async def _queue(self) -> AsyncIterator[None]:
        self.address, self.topic = server_url("rabbitmq"), f"orders-{secrets.token_hex(6)}"
        await declare(self.address, self.topic)
        self.reader = Reader(self.address, self.topic)
        yield
        await delete(self.address, self.topic)

    async def make_publisher(self) -> AmqpPublisher:
        return AmqpPublisher(self.address, max_size=self.large - 1)

    async def received(self) -> list[Received]:
        return [received(self.topic, message) for message in await self.reader.read()]


class TestFaults(FaultSuite):
    broker = "rabbitmq"
    own: PrivateServer | None = None

    def private(self) -> PrivateServer:
        server_url(self.broker)
        self.own = PrivateServer(self.broker)
        return self.own

    def prepare(self, address: str) -> str:
        topic = f"orders-{secrets.token_hex(6)}"
        asyncio.run(declare(address, topic))
        if self.own is not None:
            self.own.restart()  # killed soon after, it may know nothing of a durable queue: here, one time in twenty
        self.reader = Reader(address, topic)
        return topic

    def count(self, address: str, topic: str) -> int:
        return asyncio.run(self.reader.count())

    def arrived(self, address: str, topic: str) -> list[Arrived]:
        found = asyncio.run(self.reader.read())
        return [(str(each.headers["postroom-key"]), json.loads(each.body)["number"]) for each in found]


# --- what a message looks like


@pytest.fixture
def address() -> str:
    return server_url("rabbitmq")


@pytest_asyncio.fixture
async def topic(address: str) -> AsyncIterator[str]:
    topic = f"orders-{secrets.token_hex(6)}"
    await declare(address, topic)
    yield topic
    await delete(address, topic)


async def send(url: str, *messages: Message, **options: Any) -> list[BaseException | None]:
    """The answers."""
    publisher = AmqpPublisher(url, **options)
    batch = await hand_over(publisher, RecordingBatch(messages))
    await publisher.close()
    return [batch.answers[message.id] for message in messages]


async def examined(url: str, topic: str, **options: Any) -> Finding:
    publisher = AmqpPublisher(url, **options)
    [finding] = await publisher.examine([topic])
    await publisher.close()
    return finding


async def only(address: str, topic: str) -> AbstractIncomingMessage:
    [message] = await Reader(address, topic).read()
    return message


async def test_a_message_is_persistent_and_has_its_properties(address: str, topic: str) -> None:
    created = datetime(2030, 1, 1, 12, tzinfo=UTC)
    message = Message(
        topic=topic, payload=b"{}", type="OrderPlaced", content_type="application/json", created_at=created
    )
    assert await send(address, message, priority=3) == [None]
    found = await only(address, topic)
    assert (found.delivery_mode, found.priority, found.content_type) == (2, 3, "application/json")
    assert (found.message_id, found.type, found.timestamp) == (message.id, "OrderPlaced", created)


async def test_messages_live_as_long_as_they_may(address: str, topic: str) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=30)
    messages = [Message(topic=topic, payload=b"1"), Message(topic=topic, payload=b"2", expires_at=soon)]
    await send(f"{address}?ttl=1h&persistent=false", *messages)
    first, second = await Reader(address, topic).read()
    assert first.delivery_mode == 1
    assert first.expiration == timedelta(hours=1).total_seconds()
    assert second.expiration is not None
    assert 0 < float(str(second.expiration)) <= 30


@pytest.mark.parametrize("format", ["cloudevents", "structured"])
async def test_the_sdk_for_cloudevents_reads_what_is_sent(address: str, topic: str, format: str) -> None:
    message = Message(topic=topic, key="a", type="OrderPlaced", payload=b'{"id": 1}', content_type="application/json")
    await send(f"{address}?format={format}&source=/shop", message)
    found = await only(address, topic)
    headers = {name: str(value) for name, value in found.headers.items()}
    event = from_rabbitmq_event(RabbitMQMessage(headers, found.content_type, found.body))
    assert (event.get_id(), event.get_source(), event.get_type()) == (message.id, "/shop", "OrderPlaced")
    assert (event.get_extension("partitionkey"), event.get_data()) == ("a", {"id": 1})


async def test_an_exchange_and_a_routing_key_are_templates(address: str, topic: str) -> None:
    async with await aio_pika.connect(address) as connection:
        channel = await connection.channel()
        exchange = await channel.declare_exchange(f"{topic}.events", "topic")
        queue = await channel.declare_queue(topic, passive=True)
        await queue.bind(exchange, "OrderPlaced.*")
        url = f"{address}?exchange=%7Btopic%7D.events&routing_key=%7Btype%7D.%7Bkey%7D"
        assert await send(url, Message(topic=topic, key="a", type="OrderPlaced", payload=b"1")) == [None]
        assert (await examined(url, topic)).verdict == "ok"
        await exchange.delete()
    assert (await only(address, topic)).routing_key == "OrderPlaced.a"


async def test_nothing_is_declared_unless_asked(address: str) -> None:
    topic = f"orders-{secrets.token_hex(6)}"
    message = Message(topic=topic, payload=b"1")
    [answer] = await send(address, message)
    assert isinstance(answer, DestinationUnavailable)
    assert await send(f"{address}?declare=true", message) == [None]
    assert (await only(address, topic)).body == b"1"
    await delete(address, topic)


async def test_a_message_without_a_payload_arrives_empty(address: str, topic: str) -> None:
    assert await send(address, Message(topic=topic)) == [None]
    assert (await only(address, topic)).body == b""


# --- refusals


async def test_a_message_that_no_queue_takes_is_refused_and_the_others_are_not(address: str, topic: str) -> None:
    async with await aio_pika.connect(address) as connection:
        queue = await (await connection.channel()).get_queue(topic)
        await queue.bind("amq.topic", topic)
    lost, fine = Message(topic="nowhere", payload=b"1"), Message(topic=topic, payload=b"2")
    answers = await send(f"{address}?exchange=amq.topic", lost, fine)
    assert isinstance(answers[0], MessageRejected)
    assert "'nowhere'" in str(answers[0])
    assert answers[1] is None
    assert await send(f"{address}?exchange=amq.topic&mandatory=false", lost) == [None]


async def test_a_missing_queue_blames_no_message(address: str, topic: str) -> None:
    lost, fine = Message(topic="nowhere", payload=b"1"), Message(topic=topic, payload=b"2")
    answers = await send(address, lost, fine)
    assert isinstance(answers[0], DestinationUnavailable)
    assert "'nowhere'" in str(answers[0])
    assert answers[1] is None


async def test_queues_are_declared_by_calls_side_by_side(address: str) -> None:
    topics = [f"orders-{secrets.token_hex(6)}" for _ in range(5)]
    publisher = AmqpPublisher(f"{address}?declare=true")
    batches = [RecordingBatch([Message(topic=topic, payload=b"1")]) for topic in topics]
    await asyncio.gather(*(hand_over(publisher, batch) for batch in batches))
    await publisher.close()
    assert [len(batch.delivered) for batch in batches] == [1] * 5
    for topic in topics:
        await delete(address, topic)


async def test_a_full_queue_blames_no_message_and_takes_them_when_there_is_room(address: str) -> None:
    topic = f"orders-{secrets.token_hex(6)}"
    await declare(address, topic, **{"x-max-length": 2, "x-overflow": "reject-publish"})
    messages = [Message(topic=topic, key=f"k{n}", payload=b"%d" % n) for n in range(5)]
    answers = await send(address, *messages)
    assert [type(answer) for answer in answers] == [type(None)] * 2 + [DestinationUnavailable] * 3
    reader = Reader(address, topic)
    await reader.read()
    assert await send(address, *messages[2:4]) == [None, None]
    await delete(address, topic)


async def test_nothing_leaves_after_the_call_is_over(address: str, topic: str) -> None:
    """Not even what the client has in a buffer that is larger than the network's."""
    with Proxy(address) as proxy:
        publisher = AmqpPublisher(proxy.url, max_size=LARGE)
        assert (await hand_over(publisher, RecordingBatch([Message(topic=topic, payload=b"1")]))).delivered
        proxy.stall()
        large = Message(topic=topic, payload=b"x" * LARGE)
        assert not (await hand_over(publisher, RecordingBatch([large], timeout=0.3))).delivered
        proxy.resume()
        await until(lambda: not proxy.is_in_use)
        await publisher.close()
    assert (await only(address, topic)).body == b"1"


async def test_a_connection_that_was_slow_to_come_is_not_taken_for_a_dead_one(
    address: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time for a call runs while it waits for a connection; how long that was silent counts from its beginning."""
    open_quickly: Any = amqp._open

    with Proxy(address) as proxy:

        async def open_slowly(*given: Any) -> amqp.Channel:
            await asyncio.sleep(0.6)
            channel = await open_quickly(*given)
            proxy.stall()
            return channel

        monkeypatch.setattr(amqp, "_open", open_slowly)
        publisher = AmqpPublisher(proxy.url)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.1):
                await publisher.publish(RecordingBatch([Message(topic=topic, payload=b"1")], timeout=1.0))
        proxy.resume()
        batch = RecordingBatch([Message(topic=topic, payload=b"2")])
        async with asyncio.timeout(0.5):  # not enough for another connection
            await publisher.publish(batch)
        assert batch.delivered == batch.messages
        await publisher.close()


async def test_a_broker_that_takes_nothing_for_now_is_an_outage(address: str, topic: str) -> None:
    """It says so when it is short of memory or disk, and then reads nothing more."""
    with Proxy(address) as proxy:
        publisher = AmqpPublisher(proxy.url)
        assert (await hand_over(publisher, RecordingBatch([Message(topic=topic, payload=b"1")]))).delivered
        channel = await publisher._channels.take()
        proxy.stall()
        batch = RecordingBatch([Message(topic=topic, payload=b"2")])
        call = asyncio.create_task(publisher.publish(batch))
        await until(lambda: channel._unconfirmed)
        channel._connection._process_frame(Method(0, Connection.Blocked("low on memory")))
        await call
        [answer] = batch.answers.values()
        assert isinstance(answer, DestinationUnavailable)
        assert "low on memory" in str(answer)
        await publisher.close()


async def test_a_missing_exchange_blames_no_message(address: str, topic: str) -> None:
    messages = [Message(topic=topic, key=f"k{n}", payload=b"1") for n in range(3)]
    answers = await send(f"{address}?exchange=nowhere", *messages)
    assert all(isinstance(answer, DestinationUnavailable) and "404" in str(answer) for answer in answers)


@pytest.mark.parametrize(("kind", "code"), [("missing", "404"), ("internal", "403")])
async def test_an_exchange_that_cannot_be_used_is_no_outage_for_the_messages_of_another(
    address: str, topic: str, kind: str, code: str
) -> None:
    """The broker closes the channel, and with it everybody's confirmations."""
    async with await aio_pika.connect(address) as connection:
        channel = await connection.channel()
        exchange = await channel.declare_exchange(f"{topic}-good", "topic", auto_delete=True)
        await (await channel.get_queue(topic)).bind(exchange, "#")
        internal = await channel.declare_exchange(f"{topic}-internal", "topic", internal=True)
        publisher = AmqpPublisher(f"{address}?exchange={topic}-%7Btopic%7D")
        before, bad, after = (Message(topic=name, key=name, payload=name.encode()) for name in ("good", kind, "good"))
        after.key = "another"
        batch = await hand_over(publisher, RecordingBatch([before, bad, after]))
        assert isinstance(batch.answers[bad.id], DestinationUnavailable)
        assert code in str(batch.answers[bad.id])
        assert isinstance(batch.answers[before.id], (NotAttempted, type(None)))
        assert isinstance(batch.answers[after.id], NotAttempted)
        assert "because of another message" in str(batch.answers[after.id])
        again = await hand_over(publisher, RecordingBatch(batch.messages[::2]))
        assert again.delivered == again.messages
        await publisher.close()
        await internal.delete()


async def test_what_makes_the_broker_close_the_channel_is_found_out_and_the_others_arrive(
    address: str, topic: str
) -> None:
    """It does not say which of those that it has not confirmed it means."""
    publisher = AmqpPublisher(address)
    messages = [Message(topic=topic, key=f"k{n}", payload=b"%d" % n) for n in range(5)]
    messages[2] = bad = Message(topic=topic, key="bad", payload=b"2", headers={"CC": "it must be a list"})
    batch = await hand_over(publisher, RecordingBatch(messages))
    assert all(isinstance(error, (NotAttempted, type(None))) for error in batch.answers.values())
    again = await hand_over(publisher, RecordingBatch([each for each in messages if batch.answers[each.id]]))
    assert isinstance(again.answers[bad.id], MessageRejected)
    assert "406" in str(again.answers[bad.id])
    assert {each.id for each in (*batch.delivered, *again.delivered)} == {each.id for each in messages} - {bad.id}
    later = await hand_over(publisher, RecordingBatch([bad, Message(topic=topic, payload=b"new")]))
    assert isinstance(later.answers[bad.id], MessageRejected)
    assert len(later.delivered) == 1
    await publisher.close()


async def test_one_that_is_alone_when_the_broker_closes_the_channel_is_to_blame(address: str, topic: str) -> None:
    [answer] = await send(address, Message(topic=topic, payload=b"1", headers={"BCC": "x"}))
    assert isinstance(answer, MessageRejected)


async def test_a_message_that_never_expires_is_taken(address: str, topic: str) -> None:
    assert await send(address, Message(topic=topic, payload=b"1", expires_at=datetime(9999, 12, 31, tzinfo=UTC))) == [
        None
    ]
    assert (await only(address, topic)).expiration == amqp.LONGEST_LIFE


async def test_a_queue_that_cannot_be_declared_is_no_outage_for_the_messages_of_another(
    address: str, topic: str
) -> None:
    """There is one with other arguments, so that the broker closes the channel."""
    other = f"{topic}-other"
    await declare(address, other, **{"x-max-length": 2})
    messages = [Message(topic=name, key=f"k{n}", payload=b"1") for n, name in enumerate((topic, other, topic, other))]
    answers = await send(f"{address}?declare=true", *messages)
    assert isinstance(answers[0], (NotAttempted, type(None)))
    assert isinstance(answers[1], DestinationUnavailable)
    assert "406" in str(answers[1])
    assert [type(answer) for answer in answers[2:]] == [NotAttempted] * 2
    await delete(address, other)


def test_a_key_that_is_spread_over_exchanges_is_sent_one_by_one() -> None:
    assert AmqpPublisher("amqp://localhost?exchange={topic}&routing_key={type}&pipelined=true").features.ordered
    assert not AmqpPublisher("amqp://localhost?exchange={type}&pipelined=true").features.ordered


async def test_a_call_that_is_given_up_is_no_outage_to_another(address: str, topic: str) -> None:
    with Proxy(address) as proxy:
        publisher = AmqpPublisher(proxy.url, max_size=LARGE)
        await hand_over(publisher, RecordingBatch([Message(topic=topic, payload=b"1")]))
        channel = await publisher._channels.take()
        proxy.stall()
        other = RecordingBatch([Message(topic=topic, payload=b"2")])
        large = RecordingBatch([Message(topic=topic, payload=b"x" * LARGE)])
        calls = [asyncio.create_task(publisher.publish(batch)) for batch in (other, large)]
        await until(lambda: len(channel._unconfirmed) == 2 and not channel._connection._frames)
        calls[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await calls[1]
        await calls[0]
        [answer] = other.answers.values()
        assert isinstance(answer, NotAttempted)
        assert "another call" in str(answer)
        proxy.cut()
        await publisher.close()
    assert (await only(address, topic)).body == b"1"


async def test_what_is_too_large_is_known_before_it_is_sent(address: str, topic: str) -> None:
    large, small = Message(topic=topic, payload=b"12345"), Message(topic=topic, payload=b"1234")
    answers = await send(f"{address}?max_size=4", large, small)
    assert isinstance(answers[0], MessageRejected)
    assert answers[0].permanent
    assert answers[1] is None


@pytest.mark.parametrize("fields", [{"headers": {"n" * 300: "x"}}, {"key": "k" * 300}])
async def test_what_the_protocol_cannot_carry_is_refused_for_good(
    address: str, topic: str, fields: dict[str, Any]
) -> None:
    bad, fine = Message(topic=topic, payload=b"1", **fields), Message(topic=topic, key="b", payload=b"2")
    answers = await send(f"{address}?routing_key=%7Btopic%7D&exchange=", bad, fine)
    if "key" in fields:  # in a header it may be as long as it likes
        assert answers == [None, None]
        answers = await send(f"{address}?routing_key=%7Bkey%7D&mandatory=false", bad, fine)
    assert isinstance(answers[0], MessageRejected)
    assert answers[0].permanent
    assert answers[1] is None


# --- bad input


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("amqp://localhost?exchnge=x", "unknown option 'exchnge'"),
        ("amqp://localhost?mandatory=perhaps", "mandatory must be 'true' or 'false'"),
        ("amqp://localhost?routing_key=%7Bshop%7D", "may name {topic}, {key} and {type}"),
        ("amqp://localhost?ttl=long", "ttl"),
        ("amqp://localhost?ttl=4000d", "ttl must be at most ten years"),
        ("amqp://localhost:port", "no address of RabbitMQ"),
        ("amqp://localhost?priority=300", "priority must be between 0 and 255"),
        ("amqp://localhost?ssl_verify=true", "write 'amqps://'"),
        ("amqps://localhost?ssl_ca=/nowhere.pem", "/nowhere.pem cannot be used"),
    ],
)
def test_a_url_that_cannot_work_is_refused(url: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        AmqpPublisher(url)


@pytest.mark.parametrize(
    "url",
    [
        "amqp://127.0.0.1:1",
        "amqp://shop:hush@{place}",
        "amqp://guest:guest@{place}nowhere",
        "amqp://no.such.host.invalid",
        "amqps://{place}",
    ],
)
async def test_a_broker_that_cannot_be_used_is_told_and_found(address: str, url: str) -> None:
    url = url.format(place=address.partition("@")[2])
    [answer] = await send(url, Message(topic="orders", payload=b"1"))
    assert answer is not None
    assert is_unavailable(answer)
    finding = await examined(url, "orders")
    assert finding.verdict == "problem"
    assert finding.remedy
    assert "hush" not in finding.seen + str(answer)


async def test_a_missing_queue_is_found(address: str, topic: str) -> None:
    assert (await examined(address, topic)).verdict == "ok"
    assert (await examined(address, "nowhere")).verdict == "problem"


def test_the_example_runs(address: str, tmp_path: Path) -> None:
    assert (
        run_example("rabbitmq.py", tmp_path, address)
        == """\
delivered 1
order-1 OrderPlaced {"id":1,"total":42}
"""
    )
