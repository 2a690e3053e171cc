"""Redis and Valkey."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from coredis import Redis

from postroom import ConfigurationError, DestinationUnavailable, Message, MessageRejected
from postroom.errors import NotAttempted
from postroom.failures import is_unavailable
from postroom.ports import Finding
from postroom.publishers.redis import RedisPublisher
from postroom.testing.batch import RecordingBatch, hand_over
from postroom.testing.publisher_contract import PublisherContract, Received, RejectionContract
from tests.brokers.behind_proxy import BehindProxy
from tests.brokers.example import run_example
from tests.brokers.fault_suite import Arrived, FaultSuite
from tests.conftest import server_url
from tests.proxy import Proxy
from tests.services.private import PrivateServer


async def entries(address: str, stream: str) -> list[dict[bytes, bytes]]:
    async with Redis.from_url(address, decode_responses=False) as client:
        found: Any = await client.xrange(stream)
    return [entry.field_values for entry in found]


def received(topic: str, fields: dict[bytes, bytes]) -> Received:
    headers = {name.decode(): value.decode() for name, value in fields.items() if name != b"payload"}
    return Received(
        id=headers["postroom-id"],
        topic=topic,
        key=headers.get("postroom-key"),
        payload=fields[b"payload"],
        headers=headers,
    )


class TestRedisPublisher(BehindProxy, PublisherContract):
    @pytest.fixture(autouse=True, params=["redis", "valkey"])
    def _broker(self, request: pytest.FixtureRequest) -> None:
        self.broker = request.param
        self.topic = f"orders-{secrets.token_hex(6)}"

    async def make_publisher(self) -> RedisPublisher:
        return RedisPublisher(self.proxy.url)

    async def received(self) -> list[Received]:
        return [received(self.topic, fields) for fields in await entries(self.address, self.topic)]


class TestRefusals(RejectionContract):
    """It refuses nothing by itself that a message could be made of; we refuse a header in the place of the payload."""

    @pytest.fixture(autouse=True)
    def _stream(self) -> None:
        self.address, self.topic = server_url("redis"), f"orders-{secrets.token_hex(6)}"

    async def make_publisher(self) -> RedisPublisher:
        return RedisPublisher(self.address)

    async def received(self) -> list[Received]:
        return [received(self.topic, fields) for fields in await entries(self.address, self.topic)]

    def messages(self, *arguments: Any, **fields: Any) -> list[Message]:
        self._made = super().messages(*arguments, **fields)
        return self._made

    async def reject(self, ids: Collection[str]) -> None:
        for message in self._made:
            if message.id in ids:
                message.headers = {"payload": "in the way"}

    async def mend_destination(self) -> None:
        for message in self._made:
            message.headers = {}


class TestFaults(FaultSuite):
    broker = "redis"

    def prepare(self, address: str) -> str:
        return f"orders-{secrets.token_hex(6)}"

    def arrived(self, address: str, topic: str) -> list[Arrived]:
        found = asyncio.run(entries(address, topic))
        return [(fields[b"postroom-key"].decode(), json.loads(fields[b"payload"])["number"]) for fields in found]


# --- what an entry looks like


@pytest.fixture
def address() -> str:
    return server_url("redis")


@pytest.fixture
def topic() -> str:
    return f"orders-{secrets.token_hex(6)}"


async def send(url: str, *messages: Message) -> list[BaseException | None]:
    """The answers."""
    publisher = RedisPublisher(url)
    batch = await hand_over(publisher, RecordingBatch(messages))
    await publisher.close()
    return [batch.answers[message.id] for message in messages]


async def examined(url: str, topic: str) -> Finding:
    publisher = RedisPublisher(url)
    [finding] = await publisher.examine([topic])
    await publisher.close()
    return finding


async def test_content_type_and_payload_are_fields_and_a_tombstone_has_no_payload(address: str, topic: str) -> None:
    plain = Message(topic=topic, key="a", payload=b"{}", content_type="application/json")
    assert await send(f"{address}?payload=body", plain, Message(topic=topic, key="a")) == [None, None]
    first, second = await entries(address, topic)
    assert (first[b"content-type"], first[b"body"]) == (b"application/json", b"{}")
    assert b"body" not in second


async def test_the_sdk_for_cloudevents_reads_what_is_sent(address: str, topic: str) -> None:
    message = Message(topic=topic, key="a", type="OrderPlaced", payload=b'{"id": 1}', content_type="application/json")
    await send(f"{address}?format=structured&source=/shop", message)
    [fields] = await entries(address, topic)
    event = JSONFormat().read(CloudEvent, fields[b"payload"])
    assert (event.get_id(), event.get_source(), event.get_type()) == (message.id, "/shop", "OrderPlaced")
    assert (event.get_extension("partitionkey"), event.get_data()) == ("a", {"id": 1})


async def test_streams_are_named_by_a_template(address: str, topic: str) -> None:
    keyed = Message(topic=topic, key="a", payload=b"1")
    keyless = Message(topic=topic, payload=b"2")
    answers = await send(f"{address}?stream=%7Btopic%7D.%7Bkey%7D", keyed, keyless)
    assert answers[0] is None
    assert isinstance(answers[1], MessageRejected)
    assert answers[1].permanent
    assert len(await entries(address, f"{topic}.a")) == 1


async def test_a_stream_does_not_grow_beyond_its_limit(address: str, topic: str) -> None:
    await send(f"{address}?maxlen=3&exact=true", *(Message(topic=topic, payload=b"%d" % n) for n in range(10)))
    assert [fields[b"payload"] for fields in await entries(address, topic)] == [b"7", b"8", b"9"]


# --- refusals


async def test_a_header_that_has_the_name_of_the_payload_is_refused_and_what_follows_is_not_tried(
    address: str, topic: str
) -> None:
    bad = Message(topic=topic, key="a", payload=b"1", headers={"payload": "x"})
    rest = [Message(topic=topic, key=key, payload=b"2") for key in ("a", "b")]
    answers = await send(address, bad, *rest)
    assert [type(answer) for answer in answers] == [MessageRejected, NotAttempted, type(None)]
    assert len(await entries(address, topic)) == 1


async def test_something_else_in_the_place_of_a_stream_blames_no_message(address: str, topic: str) -> None:
    async with Redis.from_url(address) as client:
        await client.set(topic, "in the way")
    [answer] = await send(address, Message(topic=topic, key="a", payload=b"1"))
    assert answer is not None
    assert is_unavailable(answer)
    assert "WRONGTYPE" in str(answer)
    finding = await examined(address, topic)
    assert (finding.verdict, topic in finding.seen) == ("problem", True)


async def test_a_connection_that_the_server_has_closed_meanwhile_is_no_outage(address: str, topic: str) -> None:
    with Proxy(address) as proxy:
        publisher = RedisPublisher(proxy.url)
        for _ in range(3):
            batch = await hand_over(publisher, RecordingBatch([Message(topic=topic, payload=b"1")]))
            assert batch.delivered
            proxy.cut()
            await asyncio.sleep(0.05)  # for the end of the connection to be read; without it the next call reads it
        await publisher.close()


async def test_a_server_without_memory_blames_no_message() -> None:
    private = PrivateServer("redis")
    try:
        address = private.start()
        async with Redis.from_url(address) as client:
            await client.config_set({"maxmemory": "1"})
        messages = [Message(topic="orders", key="a", payload=b"%d" % n) for n in range(3)]
        answers = await send(address, *messages)
        assert isinstance(answers[0], DestinationUnavailable)
        assert "memory" in str(answers[0])
        assert [type(answer) for answer in answers[1:]] == [NotAttempted, NotAttempted]
    finally:
        private.stop()


# --- bad input


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://localhost?maxlength=3", "unknown option 'maxlength'"),
        ("redis://localhost?maxlen=many", "maxlen must be a whole number"),
        ("redis://localhost?stream=%7Bshop%7D", "may name {topic}, {key} and {type}"),
        ("redis://localhost?format=xml", "must be one of postroom, cloudevents, structured"),
        ("redis://localhost:port", "no address of Redis"),
        ("redis://localhost/prod", "where the number of a database is expected"),
        ("redis://localhost/0/1", "where the number of a database is expected"),
        ("rediss://localhost?ssl_key=/key.pem", "ssl_key is of use only with ssl_cert"),
        ("rediss://localhost?ssl_ca=/nowhere.pem", "/nowhere.pem cannot be used"),
        ("redis://localhost?ssl_ca=/ca.pem", "write 'rediss://'"),
    ],
)
def test_a_url_that_cannot_work_is_refused(url: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        RedisPublisher(url)


@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1:1",
        "redis://shop:wrong@{place}",
        "redis://{place}?db=9999",
        "redis://no.such.host.invalid",
    ],
)
async def test_a_server_that_cannot_be_used_is_told_and_found(address: str, url: str) -> None:
    url = url.format(place=address.partition("://")[2])
    [answer] = await send(url, Message(topic="orders", payload=b"1"))
    assert answer is not None
    assert is_unavailable(answer)
    finding = await examined(url, "orders")
    assert finding.verdict == "problem"
    assert "wrong" not in finding.seen.partition("@")[0]


async def test_a_server_that_works_is_found_to(address: str, topic: str) -> None:
    finding = await examined(address, topic)
    assert finding.verdict == "ok"


def test_the_example_runs(address: str, tmp_path: Path) -> None:
    assert (
        run_example("redis_streams.py", tmp_path, address)
        == """\
delivered 1
order-1 OrderPlaced {"id":1,"total":42}
"""
    )
