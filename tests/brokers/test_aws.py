"""SQS and SNS."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import secrets
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from postroom import ConfigurationError, DestinationUnavailable, Message, MessageRejected
from postroom.errors import NotAttempted
from postroom.failures import is_unavailable
from postroom.ports import Finding, Publisher
from postroom.publishers.sns import SnsPublisher
from postroom.publishers.sqs import SqsPublisher
from postroom.testing.batch import RecordingBatch, hand_over
from postroom.testing.publisher_contract import PublisherContract, Received, RejectionContract
from tests.brokers.aws_reader import Aws, headers_of, payload_of, picky_sqs, received, url_of
from tests.brokers.behind_proxy import BehindProxy
from tests.brokers.example import run_example
from tests.brokers.fault_suite import SETTINGS, Arrived, FaultSuite
from tests.brokers.http_server import Answer, HttpServer, Request
from tests.conftest import server_url
from tests.proxy import Proxy
from tests.waiting import until

PUBLISHERS: dict[str, Callable[[str], SqsPublisher | SnsPublisher]] = {"sqs": SqsPublisher, "sns": SnsPublisher}
services = pytest.mark.parametrize("service", PUBLISHERS)


@pytest.fixture
def address() -> str:
    return server_url("moto")


@pytest.fixture
def aws(address: str) -> Iterator[Aws]:
    aws = Aws(address)
    yield aws
    aws.close()


@pytest.fixture
def topic() -> str:
    return f"orders-{secrets.token_hex(6)}"


async def send(url: str, *messages: Message) -> list[BaseException | None]:
    """The answers."""
    publisher = PUBLISHERS[url[:3]](url)
    batch = await hand_over(publisher, RecordingBatch(messages, timeout=20.0))
    await publisher.close()
    return [batch.answers[message.id] for message in messages]


async def examined(url: str, topic: str) -> Finding:
    publisher = PUBLISHERS[url[:3]](url)
    [finding] = await publisher.examine([topic])
    await publisher.close()
    return finding


# --- the contract


class TestSqsPublisher(BehindProxy, PublisherContract, RejectionContract):
    """Before moto stands a server that refuses entries, as it does not."""

    broker = "moto"
    patience = 100.0
    many = 200

    @pytest.fixture(autouse=True)
    def _network(self) -> Iterator[None]:
        self.address = server_url(self.broker)
        with picky_sqs(self.address) as picky, Proxy(picky.address) as proxy:
            self.picky, self.proxy = picky, proxy
            yield

    @pytest.fixture(autouse=True)
    def _place(self, _network: None) -> Iterator[None]:
        self.topic = f"orders-{secrets.token_hex(6)}"
        self.aws = Aws(self.address)
        self.aws.make_queue(f"{self.topic}.fifo")
        self.aws.keep_taking(f"{self.topic}.fifo")
        yield
        self.aws.close()

    async def make_publisher(self) -> Publisher:
        return SqsPublisher(url_of("sqs", self.proxy.url, queue="{topic}.fifo"))

    async def received(self) -> list[Received]:
        return [received(self.topic, message) for message in self.aws.take(f"{self.topic}.fifo")]

    async def reject(self, ids: Collection[str]) -> None:
        self.picky.refused = set(ids)

    async def mend_destination(self) -> None:
        await super().mend_destination()
        self.picky.refused = set()


class TestSnsPublisher(BehindProxy, PublisherContract):
    """Without refusals: SNS refuses as SQS does, with the same answers."""

    broker = "moto"
    patience = 100.0
    many = 200

    @pytest.fixture(autouse=True)
    def _place(self, _network: None) -> Iterator[None]:
        self.topic = f"orders-{secrets.token_hex(6)}"
        self.aws = Aws(self.address)
        self.aws.make_topic(f"{self.topic}.fifo")
        self.aws.keep_taking(f"{self.topic}.fifo")
        yield
        self.aws.close()

    async def make_publisher(self) -> Publisher:
        return SnsPublisher(url_of("sns", self.proxy.url, topic="{topic}.fifo"))

    async def received(self) -> list[Received]:
        return [received(self.topic, message) for message in self.aws.take(f"{self.topic}.fifo")]


# --- faults


class Network:
    """What moto has in memory would be lost with it, so only the way to it is."""

    def __init__(self) -> None:
        self._proxy = Proxy(server_url("moto"))

    def start(self) -> str:
        return self._proxy.__enter__().url

    def crash(self) -> None:
        self._proxy.shut()

    def start_again(self) -> None:
        self._proxy.heal()

    def stop(self) -> None:
        self._proxy.__exit__(None, None, None)


class TestFaults(FaultSuite):
    broker = "moto"
    pause = 1.0
    settings: ClassVar[dict[str, Any]] = {**SETTINGS, "publish_timeout": "5s", "lease_ttl": "15s"}
    """moto is slow."""
    enough = 1_000
    """It closes each connection after an answer."""

    @pytest.fixture(autouse=True)
    def _aws(self, aws: Aws) -> None:
        self.aws = aws

    def private(self) -> Network:
        return Network()

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


# --- what arrives


@services
async def test_text_is_the_body_and_anything_else_says_how_to_read_it(
    service: str, address: str, topic: str, aws: Aws
) -> None:
    aws.make_topic(topic)
    payloads = [b'{"id": 1}', "Zürich\n".encode(), b"\xff\xfe", b"bell \x07", b"", None]
    messages = [Message(topic=topic, payload=payload, content_type="text/plain") for payload in payloads]
    assert await send(url_of(service, address), *messages) == [None] * 6
    arrived = {headers_of(each)["postroom-id"]: each for each in aws.take(topic)}
    assert [payload_of(arrived[message.id]) for message in messages] == payloads
    assert arrived[messages[0].id]["Body"] == '{"id": 1}'
    assert headers_of(arrived[messages[0].id])["content-type"] == "text/plain"


async def test_headers_that_are_too_many_or_cannot_be_attributes_arrive_together(
    address: str, topic: str, aws: Aws
) -> None:
    aws.make_queue(topic)
    headers = {**{f"h{n}": str(n) for n in range(12)}, "empty": "", "AWS.x": "1", "two..dots": "1", "bell": "\x07"}
    message = Message(topic=topic, key="a", type="T", payload=b"x", headers=headers)
    assert await send(url_of("sqs", address), message) == [None]
    [arrived] = aws.take(topic)
    assert headers_of(arrived).items() >= message.wire_headers().items()
    assert len(arrived["MessageAttributes"]) == 10
    assert arrived["MessageAttributes"]["postroom-key"]["StringValue"] == "a"


async def test_a_fifo_queue_gets_the_key_as_group_and_drops_what_it_has_seen(
    address: str, topic: str, aws: Aws
) -> None:
    aws.make_queue(f"{topic}.fifo")
    keys = ["order-1", "Kunde/ä", "x" * 200, None]
    messages = [Message(topic=topic, key=key, payload=b"x") for key in keys]
    url = url_of("sqs", address, queue="{topic}.fifo")
    for _ in range(2):
        assert await send(url, *messages) == [None] * 4
    found = {
        headers_of(each)["postroom-id"]: each["Attributes"]["MessageGroupId"] for each in aws.take(f"{topic}.fifo")
    }
    hashes = [hashlib.sha256(str(key).encode()).hexdigest() for key in keys[1:3]]
    assert [found[message.id] for message in messages] == ["order-1", *hashes, messages[3].id]
    assert len(aws.take(f"{topic}.fifo")) == 4


async def test_a_replay_is_not_dropped_as_a_duplicate(address: str, topic: str, aws: Aws) -> None:
    aws.make_queue(f"{topic}.fifo")
    message = Message(topic=topic, key="a", payload=b"x")
    url = url_of("sqs", address, queue="{topic}.fifo")
    await send(url, message)
    message.replays = 1
    await send(url, message)
    assert len(aws.take(f"{topic}.fifo")) == 2


async def test_dots_of_a_topic_are_dashes(address: str, topic: str, aws: Aws) -> None:
    aws.make_queue(f"shop-{topic}")
    assert await send(url_of("sqs", address), Message(topic=f"shop.{topic}", payload=b"x")) == [None]
    assert len(aws.take(f"shop-{topic}")) == 1


async def test_the_sdk_for_cloudevents_reads_what_is_sent(address: str, topic: str, aws: Aws) -> None:
    aws.make_queue(topic)
    message = Message(topic=topic, key="a", type="OrderPlaced", payload=b'{"id": 1}', content_type="application/json")
    await send(url_of("sqs", address, format="structured", source="/shop"), message)
    [arrived] = aws.take(topic)
    event = JSONFormat().read(CloudEvent, arrived["Body"].encode())
    assert (event.get_id(), event.get_type(), event.get_source()) == (message.id, "OrderPlaced", "/shop")
    assert event.get_data() == {"id": 1}


# --- refusals


async def test_what_is_too_large_is_known_before_it_is_sent(address: str, topic: str, aws: Aws) -> None:
    aws.make_queue(topic)
    large, small = (Message(topic=topic, key=key, payload=b"x" * size) for key, size in (("a", 1_048_577), ("b", 10)))
    answers = await send(url_of("sqs", address), large, small)
    assert isinstance(answers[0], MessageRejected)
    assert answers[0].permanent
    assert "max_size=1048576" in str(answers[0])
    assert answers[1] is None


async def test_a_batch_that_is_too_large_as_a_whole_goes_in_several(address: str, topic: str, aws: Aws) -> None:
    aws.make_queue(topic)
    messages = [Message(topic=topic, payload=b"x" * 400_000) for _ in range(7)]
    assert await send(url_of("sqs", address), *messages) == [None] * 7
    assert len(aws.take(topic)) == 7


def answering(status: int, said: dict[str, Any]) -> Callable[[Request], Answer]:
    """A server that has every queue, and says this to whatever is sent."""

    def react(request: Request) -> Answer:
        is_question = request.headers["x-amz-target"].endswith("GetQueueUrl")
        body = {"QueueUrl": "http://127.0.0.1/1/q"} if is_question else said
        headers = {"content-type": "application/x-amz-json-1.0"}
        return Answer(status=200 if is_question else status, body=json.dumps(body).encode(), headers=headers)

    return react


@pytest.mark.parametrize(
    ("code", "is_ours", "kind"),
    [
        ("InvalidMessageContents", True, MessageRejected),
        ("InvalidParameterValue", True, MessageRejected),
        ("ThrottlingException", True, DestinationUnavailable),
        ("RequestThrottled", True, DestinationUnavailable),
        ("KmsThrottled", True, DestinationUnavailable),
        ("KmsAccessDenied", True, DestinationUnavailable),
        ("AccessDenied", True, DestinationUnavailable),
        ("InternalError", False, DestinationUnavailable),
        ("InvalidParameterValue", False, DestinationUnavailable),
    ],
)
async def test_an_entry_is_answered_by_what_is_said_of_it(code: str, is_ours: bool, kind: type[Exception]) -> None:
    said = {
        "Successful": [{"Id": "0", "MessageId": "1", "MD5OfMessageBody": "x"}],
        "Failed": [{"Id": "1", "SenderFault": is_ours, "Code": code, "Message": "why"}],
    }
    with HttpServer() as server:
        server.react = answering(200, said)
        messages = [Message(topic="orders", payload=b"x") for _ in range(3)]
        first, second, third = await send(url_of("sqs", server.address), *messages)
    assert first is None
    assert type(second) is kind
    assert f"{code}: why" in str(second)
    assert type(third) is DestinationUnavailable, "nothing was said of it"


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "ThrottlingException", DestinationUnavailable),
        (400, "com.amazonaws.sqs#QueueDoesNotExist", DestinationUnavailable),
        (400, "ExpiredTokenException", DestinationUnavailable),
        (403, "AccessDeniedException", DestinationUnavailable),
        (403, "SignatureDoesNotMatch", DestinationUnavailable),
        (500, "InternalFailure", DestinationUnavailable),
        (503, "ServiceUnavailable", DestinationUnavailable),
        (400, "InvalidMessageContents", MessageRejected),
        (400, "com.amazonaws.sqs#InvalidMessageContents", MessageRejected),
    ],
)
async def test_a_request_is_answered_by_what_is_said_of_it(status: int, code: str, kind: type[Exception]) -> None:
    with HttpServer() as server:
        server.react = answering(status, {"__type": code, "message": "why"})
        answers = await send(url_of("sqs", server.address), *(Message(topic="orders", payload=b"x") for _ in range(2)))
        asked = [request for request in server.refused if "Entries" in json.loads(request.body)]
    assert [type(answer) for answer in answers] == [kind, kind]
    assert all("why" in str(answer) for answer in answers)
    assert len(asked) == (3 if kind is MessageRejected else 1), "if it may be one message, each is tried alone"


# --- bad input


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqs://eu-central-1?qeue=x", "unknown option 'qeue'"),
        ("sqs:orders", "write sqs://REGION"),
        ("sqs://eu-central-1/orders", "write sqs://REGION"),
        ("sqs://eu-central-1?max_size=big", "max_size must be a whole number"),
        ("sqs://eu-central-1?queue=%7Bshop%7D", "may name {topic}, {key} and {type}"),
        ("sqs://eu-central-1?ssl_ca=/nowhere.pem", "/nowhere.pem cannot be used"),
        ("sns://eu-central-1", "needs account="),
    ],
)
def test_a_url_that_cannot_work_is_refused(url: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        PUBLISHERS[url[:3]](url)


class TwoAtATime(SqsPublisher):
    """Its requests do not end before they are let go."""

    def __init__(self) -> None:
        super().__init__("sqs://id:secret@eu-central-1?concurrency=2")
        self.begun = self.most = 0
        self.may_end = asyncio.Event()

    async def _address(self, client: Any, name: str) -> str:
        return name

    async def _transmit(self, client: Any, address: str, entries: list[dict[str, Any]]) -> dict[str, Any]:
        self.begun += 1
        self.most = max(self.most, self.begun)
        await asyncio.sleep(0)  # the others have their turn
        await self.may_end.wait()
        self.begun -= 1
        return {"Successful": entries}


async def test_no_more_requests_than_allowed_are_under_way() -> None:
    publisher = TwoAtATime()
    publisher.may_end.set()
    messages = [Message(topic="t", payload=b"1") for _ in range(100)]
    batch = await hand_over(publisher, RecordingBatch(messages, timeout=60.0))
    await publisher.close()
    assert [*batch.answers.values()] == [None] * 100
    assert publisher.most <= 2


async def test_who_waits_long_for_others_is_not_answered_for_as_an_outage() -> None:
    publisher = TwoAtATime()
    batch = RecordingBatch([Message(topic="t", payload=b"1") for _ in range(30)], timeout=0.5)
    call = asyncio.create_task(publisher.publish(batch))
    await until(lambda: len(batch.answers) == 10)
    assert {type(answer) for answer in batch.answers.values()} == {NotAttempted}
    publisher.may_end.set()
    await call
    await publisher.close()
    assert [*batch.answers.values()].count(None) == 20
    assert publisher.most == 2


@services
async def test_a_place_that_is_not_there_blames_no_message(service: str, address: str, topic: str) -> None:
    url = url_of(service, address)
    [answer] = await send(url, Message(topic=topic, payload=b"x"))
    assert answer is not None
    assert is_unavailable(answer)
    finding = await examined(url, topic)
    assert finding.verdict == "problem"
    assert finding.remedy is not None
    assert "test:test" not in finding.seen


@services
async def test_a_place_that_is_there_is_found(service: str, address: str, topic: str, aws: Aws) -> None:
    aws.make_topic(topic)
    finding = await examined(url_of(service, address), topic)
    assert finding.verdict == "ok", finding


@services
async def test_nobody_at_that_address_is_told_and_found(service: str) -> None:
    url = url_of(service, "http://127.0.0.1:1")
    [answer] = await send(url, Message(topic="orders", payload=b"x"))
    assert answer is not None
    assert is_unavailable(answer)
    assert (await examined(url, "orders")).verdict == "problem"


async def test_no_credentials_are_told_and_found(monkeypatch: pytest.MonkeyPatch, address: str, tmp_path: Path) -> None:
    for name, value in {
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    url = f"sqs://eu-central-1?endpoint={address}"
    [answer] = await send(url, Message(topic="orders", payload=b"x"))
    assert answer is not None
    assert is_unavailable(answer)
    assert "credentials" in str(answer).lower()
    assert (await examined(url, "orders")).verdict == "problem"


def test_it_works_on_one_event_loop_after_another(address: str, topic: str, aws: Aws) -> None:
    aws.make_queue(topic)
    publisher = SqsPublisher(url_of("sqs", address))

    async def deliver() -> None:
        batch = await hand_over(publisher, RecordingBatch([Message(topic=topic, payload=b"x")], timeout=20.0))
        assert not batch.failed
        await publisher.close()

    asyncio.run(deliver())
    asyncio.run(deliver())
    assert len(aws.take(topic)) == 2


def test_the_example_runs(address: str, aws: Aws, tmp_path: Path) -> None:
    aws.make_queue("shop-orders.fifo")
    assert (
        run_example("sqs_fifo.py", tmp_path, address)
        == """\
delivered 1
order-1 OrderPlaced {"id":1,"total":42}
"""
    )
