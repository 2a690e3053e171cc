"""MQTT, with Mosquitto."""

from __future__ import annotations

import asyncio
import base64
import gc
import hashlib
import json
import re
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_http_event

from postroom import ConfigurationError, DestinationUnavailable, Message, MessageRejected
from postroom.errors import NotAttempted
from postroom.failures import is_unavailable
from postroom.ports import Finding
from postroom.publishers.mqtt import MqttPublisher
from postroom.testing.batch import RecordingBatch, hand_over
from postroom.testing.publisher_contract import PublisherContract, Received
from tests.brokers.behind_proxy import BehindProxy
from tests.brokers.example import run_example
from tests.brokers.fault_suite import Arrived, FaultSuite
from tests.brokers.mqtt_reader import MqttReader, Taken
from tests.brokers.refusals import RefusesWhatIsLarge
from tests.conftest import server_url
from tests.proxy import Proxy
from tests.services.mosquitto import Mosquitto
from tests.services.places import CERTIFICATES
from tests.services.private import NOT_GIVEN, PrivateServer
from tests.waiting import until


def new_name() -> str:
    return f"orders-{secrets.token_hex(6)}"


def received(taken: Taken) -> Received:
    return Received(
        id=taken.headers["postroom-id"],
        topic=taken.topic,
        key=taken.headers.get("postroom-key"),
        payload=taken.payload,
        headers=taken.headers,
    )


class Configured(Mosquitto):
    def __init__(self, name: str, settings: str) -> None:
        super().__init__(variable=NOT_GIVEN)
        self.name, self._settings = name, settings

    def prepare(self, folder: Path, port: int) -> None:
        super().prepare(folder, port)
        file, changed = folder / "settings.conf", {line.split()[0] for line in self._settings.splitlines()}
        usual = [line for line in file.read_text().splitlines() if line.split()[0] not in changed]
        file.write_text("\n".join([*usual, self._settings, ""]))

    def ask_version(self, url: str) -> str:
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=5).close()
        return "Mosquitto"


class PrivateMosquitto(PrivateServer):
    def __init__(self, settings: str) -> None:
        super().__init__("mosquitto")
        self.server = Configured(self.server.name, settings)


@contextmanager
def private(settings: str) -> Iterator[str]:
    """What follows the scheme of its URL."""
    server_url("mosquitto")  # skip if there is none
    broker = PrivateMosquitto(settings)
    try:
        yield broker.start().removeprefix("mqtt://")
    finally:
        broker.stop()


class OnBroker(BehindProxy):
    broker = "mosquitto"
    options = ""

    @pytest.fixture(autouse=True)
    def _reader(self, _network: None) -> Iterator[None]:
        self.topic = new_name()
        self.reader = MqttReader(self.address, self.topic)
        yield
        self.reader.stop()

    async def make_publisher(self) -> MqttPublisher:
        return MqttPublisher(f"{self.proxy.url}{self.options}")

    async def received(self) -> list[Received]:
        return [received(taken) for taken in await asyncio.to_thread(self.reader.taken)]


class TestMqttPublisher(OnBroker, PublisherContract):
    pass


class TestPipelined(OnBroker, PublisherContract):
    options = "?pipelined=true"


LIMITED = "max_queued_messages 100000"
"""Without a limit to its queues, Mosquitto 2.0 hangs up instead of refusing a message."""
SMALL = f"message_size_limit 1000\n{LIMITED}"


class TestRefusals(RefusesWhatIsLarge):
    """A broker refuses what is too large for it."""

    @pytest.fixture(autouse=True)
    def _reader(self) -> Iterator[None]:
        with private(SMALL) as place:
            self.place, self.topic = place, new_name()
            self.reader = MqttReader(f"mqtt://{place}", self.topic)
            yield
            self.reader.stop()

    async def make_publisher(self) -> MqttPublisher:
        return MqttPublisher(f"mqtt://{self.place}")

    async def received(self) -> list[Received]:
        return [received(taken) for taken in await asyncio.to_thread(self.reader.taken)]


class TestFaults(FaultSuite):
    broker = "mosquitto"

    @pytest.fixture(autouse=True)
    def _reader(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        # Killed, Mosquitto forgets what it has confirmed since it last saved its database; told to stop, it saves it.
        monkeypatch.setattr(Mosquitto, "farewell", signal.SIGTERM)
        self.reader: MqttReader | None = None
        yield
        if self.reader is not None:
            self.reader.stop()

    def prepare(self, address: str) -> str:
        topic = new_name()
        self.reader = MqttReader(address, topic)
        return topic

    def arrived(self, address: str, topic: str) -> list[Arrived]:
        assert self.reader is not None
        found = self.reader.taken()
        return [(taken.headers["postroom-key"], json.loads(taken.payload)["number"]) for taken in found]


# --- what a message looks like


@pytest.fixture
def address() -> str:
    return server_url("mosquitto")


@contextmanager
def reading(url: str, topic: str) -> Iterator[MqttReader]:
    reader = MqttReader(url, topic)
    try:
        yield reader
    finally:
        reader.stop()


@pytest.fixture
def topic() -> str:
    return new_name()


@pytest.fixture
def reader(address: str, topic: str) -> Iterator[MqttReader]:
    with reading(address, topic) as reader:
        yield reader


async def send(url: str, *messages: Message, timeout: float = 5.0, **options: Any) -> list[BaseException | None]:
    """The answers."""
    publisher = MqttPublisher(url, **options)
    batch = await hand_over(publisher, RecordingBatch(messages, timeout))
    await publisher.close()
    return [batch.answers[message.id] for message in messages]


async def examined(url: str) -> Finding:
    publisher = MqttPublisher(url)
    [finding] = await publisher.examine(["orders"])
    await publisher.close()
    return finding


def is_refused_for_good(answer: BaseException | None) -> bool:
    return isinstance(answer, MessageRejected) and answer.permanent


def is_outage(answer: BaseException | None, words: str) -> bool:
    assert answer is not None
    assert is_unavailable(answer), answer
    return words in str(answer)


ORDER = Message(topic="orders", payload=b"1")


class Clock:
    def now(self) -> datetime:
        return datetime(2030, 1, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        raise AssertionError("not asked for")


async def test_content_type_and_expiry_are_properties_and_a_tombstone_is_empty(
    address: str, topic: str, reader: MqttReader
) -> None:
    soon = Clock().now() + timedelta(seconds=99.5)
    plain = Message(topic=topic, key="a", payload=b"{}", content_type="application/json", expires_at=soon)
    late = Message(topic=topic, key="b", expires_at=Clock().now())
    assert await send(address, plain, late, clock=Clock()) == [None, None]
    first, second = reader.taken()
    assert (first.content_type, first.payload) == ("application/json", b"{}")
    assert first.expiry in (98, 99, 100)  # the broker counts down
    assert (second.content_type, second.payload, second.expiry) == (None, b"", 1)


@pytest.mark.parametrize("format", ["cloudevents", "structured"])
async def test_the_sdk_for_cloudevents_reads_what_is_sent(
    address: str, topic: str, reader: MqttReader, format: str
) -> None:
    message = Message(topic=topic, key="a", type="OrderPlaced", payload=b'{"id": 1}', content_type="application/json")
    await send(f"{address}?format={format}&source=/shop", message)
    [taken] = reader.taken()
    assert taken.content_type is not None
    headers = {f"ce-{name}": value for name, value in taken.headers.items()}  # the SDK knows HTTP, which has a prefix
    event = from_http_event(HTTPMessage({**headers, "content-type": taken.content_type}, taken.payload))
    assert (event.get_id(), event.get_source(), event.get_type()) == (message.id, "/shop", "OrderPlaced")
    assert (event.get_extension("partitionkey"), event.get_data()) == ("a", {"id": 1})


async def test_topics_are_named_by_a_template(address: str, topic: str) -> None:
    with reading(address, f"{topic}/#") as reader:
        keyed, keyless = Message(topic=topic, key="a", payload=b"1"), Message(topic=topic, payload=b"2")
        delivered, refused = await send(f"{address}?topic=%7Btopic%7D/%7Bkey%7D", keyed, keyless)
        assert delivered is None
        assert is_refused_for_good(refused)
        assert [taken.topic for taken in reader.taken()] == [f"{topic}/a"]


async def test_what_is_retained_meets_those_who_come_later(address: str, topic: str) -> None:
    assert await send(f"{address}?retain=true", Message(topic=topic, payload=b"1")) == [None]
    assert await send(address, Message(topic=topic, payload=b"2")) == [None]
    with reading(address, topic) as reader:
        assert [(taken.payload, taken.is_retained) for taken in reader.taken()] == [(b"1", True)]


async def test_that_nobody_listens_is_no_refusal(address: str, topic: str) -> None:
    assert await send(address, Message(topic=topic, payload=b"1")) == [None]


def test_it_may_be_used_on_one_loop_after_another(address: str, topic: str, reader: MqttReader) -> None:
    publisher = MqttPublisher(address)
    for _ in range(3):
        batch = RecordingBatch([Message(topic=topic, payload=b"1")])
        asyncio.run(hand_over(publisher, batch))
        assert batch.delivered
    asyncio.run(publisher.close())
    gc.collect()  # which warns of what was left open
    assert len(reader.taken()) == 3


async def test_two_with_one_name_put_each_other_out_and_lose_nothing(address: str, topic: str) -> None:
    name = new_name()
    with reading(address, topic) as reader:
        publishers = [MqttPublisher(f"{address}?client_id={name}") for _ in range(2)]
        for number in range(6):
            message = Message(topic=topic, payload=b"%d" % number)
            answers = [await hand_over(publishers[number % 2], RecordingBatch([message])) for _ in range(2)]
            assert any(batch.delivered for batch in answers)
        for publisher in publishers:
            await publisher.close()
        assert {taken.payload for taken in reader.taken()} == {b"%d" % number for number in range(6)}


# --- refusals


@pytest.mark.parametrize("name", ["", "a/+", "#", "a/#/b", "one\0two", "one\ntwo", "\ufffe"])
async def test_what_is_no_topic_is_refused_for_good(address: str, topic: str, name: str) -> None:
    bad, good = Message(topic=name, key="a", payload=b"1"), Message(topic=topic, key="a", payload=b"2")
    refused, delivered = await send(address, bad, good)
    assert is_refused_for_good(refused)
    assert repr(name) in str(refused)
    assert delivered is None


@pytest.mark.parametrize(
    "headers",
    [{"a": "one\ntwo"}, {"a": "\0"}, {"a\x7f": "1"}, {"a": "\ud800"}, {"a": "\U0001ffff"}, {"a": "x" * 65_536}],
)
async def test_a_header_that_cannot_travel_is_refused_for_good(
    address: str, topic: str, reader: MqttReader, headers: dict[str, str]
) -> None:
    """A broker would hang up on whoever sends it."""
    bad, good = Message(topic=topic, payload=b"1", headers=headers), Message(topic=topic, payload=b"2")
    refused, delivered = await send(address, bad, good)
    assert is_refused_for_good(refused)
    assert delivered is None
    assert [taken.payload for taken in reader.taken()] == [b"2"]


async def test_what_follows_a_refused_message_in_its_key_is_not_tried(address: str, topic: str) -> None:
    bad = Message(topic=topic, key="a", payload=b"1", headers={"a": "\n"})
    rest = [Message(topic=topic, key=key, payload=b"2") for key in ("a", "b")]
    answers = await send(f"{address}?pipelined=true", bad, *rest)
    assert [type(answer) for answer in answers] == [MessageRejected, NotAttempted, type(None)]


async def test_a_message_that_is_too_large_for_the_broker_is_not_sent(topic: str) -> None:
    with private("max_packet_size 20000") as place:
        answers = await send(f"mqtt://{place}", *(Message(topic=topic, payload=b"x" * size) for size in (9, 20_000, 9)))
        assert [type(answer) for answer in answers] == [type(None), MessageRejected, type(None)]
        assert is_refused_for_good(answers[1])
        assert "and the broker takes 20,000" in str(answers[1])


async def test_a_message_that_the_broker_finds_too_large_is_refused(topic: str) -> None:
    with private(SMALL) as place:
        answers = await send(f"mqtt://{place}", *(Message(topic=topic, payload=b"x" * size) for size in (9, 2_000, 9)))
        assert [type(answer) for answer in answers] == [type(None), MessageRejected, type(None)]
        assert "packet too large" in str(answers[1])


# --- what blames no message


def hashed(password: str) -> str:
    salt = secrets.token_bytes(12)
    key = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, 101)
    return f"$7$101${base64.b64encode(salt).decode()}${base64.b64encode(key).decode()}"


async def test_who_is_not_let_in_blames_no_message(tmp_path: Path) -> None:
    passwords = tmp_path / "passwords"
    passwords.write_text(f"shop:{hashed('p@ss, word')}\n")
    with private(f"allow_anonymous false\npassword_file {passwords}") as place:
        assert await send(f"mqtt://shop:p%40ss%2C%20word@{place}", ORDER) == [None]
        for login in ("shop:guess@", ""):
            assert is_outage(
                (await send(f"mqtt://{login}{place}", ORDER))[0], "the broker does not let us in: Not author"
            )
            finding = await examined(f"mqtt://{login}{place}")
            assert (finding.verdict, "does not let us in" in finding.seen) == ("problem", True)
            assert finding.remedy is not None
            assert "guess" not in finding.seen


async def test_a_right_that_lacks_blames_no_message(tmp_path: Path) -> None:
    rights = tmp_path / "rights"
    rights.write_text("topic write orders/#\n")
    with private(f"acl_file {rights}\n{LIMITED}") as place:
        messages = [Message(topic=topic, payload=b"1") for topic in ("orders/new", "mail", "orders/old")]
        first, second, third = await send(f"mqtt://{place}", *messages)
        assert (first, third) == (None, None)
        assert is_outage(second, "not authorized")


@pytest.mark.parametrize(
    ("settings", "options", "words"),
    [
        ("retain_available false", "?retain=true", "the broker retains nothing"),
        ("max_qos 0", "", "the broker acknowledges nothing"),
    ],
)
async def test_a_broker_that_cannot_do_what_is_asked_for_is_told_at_once(
    settings: str, options: str, words: str
) -> None:
    with private(settings) as place:
        assert is_outage((await send(f"mqtt://{place}{options}", ORDER))[0], words)
        assert words in (await examined(f"mqtt://{place}{options}")).seen


async def test_a_call_that_is_cancelled_leaves_others_alone(address: str, topic: str, reader: MqttReader) -> None:
    """Of what was sent nothing can be taken back, and the connection is as good as before."""
    with Proxy(address) as proxy:
        publisher = MqttPublisher(proxy.url)
        await hand_over(publisher, RecordingBatch([Message(topic=topic, payload=b"1")]))
        session = await publisher._sessions.take()
        proxy.stall()
        given_up, other = (RecordingBatch([Message(topic=topic, payload=text)]) for text in (b"2", b"3"))
        calls = [asyncio.create_task(publisher.publish(batch)) for batch in (given_up, other)]
        await until(lambda: len(session._sent) == 2)
        calls[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await calls[0]
        given_up.over = True
        proxy.resume()
        await calls[1]
        assert other.delivered == other.messages
        assert not given_up.violations
        assert (session.lost, session._sent) == (None, {})
        await publisher.close()
    assert [taken.payload for taken in reader.taken()] == [b"1", b"2", b"3"]


async def test_a_call_that_is_cancelled_before_all_is_sent_is_no_outage_to_another(
    address: str, topic: str, reader: MqttReader
) -> None:
    with Proxy(address) as proxy:
        publisher = MqttPublisher(proxy.url)
        await hand_over(publisher, RecordingBatch([Message(topic=topic, payload=b"1")]))
        session = await publisher._sessions.take()
        proxy.stall()
        other = RecordingBatch([Message(topic=topic, payload=b"2")])
        large = RecordingBatch([Message(topic=topic, payload=b"x" * 30_000_000)])
        calls = [asyncio.create_task(publisher.publish(batch)) for batch in (other, large)]
        await until(lambda: len(session._sent) == 2)
        calls[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await calls[1]
        with pytest.raises(NotAttempted, match="another call"):
            await calls[0]
        proxy.resume()
        await until(lambda: not proxy.is_in_use)
        await publisher.close()
    assert large.messages[0].payload not in [taken.payload for taken in reader.taken()]


async def test_a_connection_that_says_nothing_is_given_up(address: str, topic: str) -> None:
    with Proxy(address) as proxy:
        publisher = MqttPublisher(proxy.url)
        await hand_over(publisher, RecordingBatch([Message(topic=topic, payload=b"1")]))
        proxy.stall()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.4):
                await publisher.publish(RecordingBatch([Message(topic=topic, payload=b"2")], timeout=0.2))
        assert (await hand_over(publisher, RecordingBatch([Message(topic=topic, payload=b"3")]))).delivered
        await publisher.close()


HANG_UP = bytes.fromhex("e0ff")


class Fake:
    """A broker that answers each message with what its payload says after the =, in hexadecimal digits."""

    def __init__(self) -> None:
        self.welcome = "2003000000"
        self.sizes: list[int] = []
        """Of the messages."""
        self.pinged, self.left, self.willing = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.willing.set()
        self.calls: list[asyncio.Task[None] | None] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.calls.append(asyncio.current_task())
        answers: list[asyncio.Task[None]] = []
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await self._packet(reader)
            writer.write(bytes.fromhex(self.welcome))
            while True:
                command, body = await self._packet(reader)
                if command == 0xC0:
                    self.pinged.set()
                elif command >> 4 == 3:
                    self.sizes.append(1 + (1 if len(body) < 128 else 2) + len(body))
                    answers.append(asyncio.create_task(self._reply(self._answer(body), writer)))
        self.left.set()
        writer.close()
        with suppress(ConnectionError):
            await asyncio.gather(*answers)
            await writer.wait_closed()

    async def _reply(self, answer: bytes, writer: asyncio.StreamWriter) -> None:
        await self.willing.wait()
        if answer == HANG_UP:
            writer.close()
        else:
            writer.write(answer)

    def _answer(self, body: bytes) -> bytes:
        size = 2 + int.from_bytes(body[:2], "big")
        said = bytes.fromhex(body.rpartition(b"=")[2].decode())
        return said if said[:1] == b"\xe0" else bytes([0x40, 2 + len(said)]) + body[size : size + 2] + said

    async def _packet(self, reader: asyncio.StreamReader) -> tuple[int, bytes]:
        [command], length, shift = await reader.readexactly(1), 0, 0
        while True:
            [byte] = await reader.readexactly(1)
            length |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return command, await reader.readexactly(length)


@asynccontextmanager
async def faking() -> AsyncIterator[tuple[Fake, str]]:
    fake = Fake()
    server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    async with server:
        yield fake, f"mqtt://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await asyncio.gather(*filter(None, fake.calls))


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        ("", None, ""),
        ("00", None, ""),
        ("10", None, ""),
        ("80", DestinationUnavailable, "unspecified error"),
        ("83", DestinationUnavailable, "implementation specific error"),
        ("87", DestinationUnavailable, "not authorized"),
        ("90", MessageRejected, "topic name invalid"),
        ("91", DestinationUnavailable, "packet identifier in use"),
        ("95", MessageRejected, "packet too large"),
        ("97", DestinationUnavailable, "quota exceeded"),
        ("99", MessageRejected, "payload format invalid"),
        ("fe", DestinationUnavailable, "reason code 0xfe"),
        ("97071f000466756c6c", DestinationUnavailable, "quota exceeded: full"),
        ("991f", MessageRejected, "payload format invalid"),
    ],
)
async def test_each_reason_code_counts_as_the_table_says(code: str, kind: type[Exception] | None, words: str) -> None:
    async with faking() as (_, url):
        answer, other = await send(url, *(Message(topic="orders", payload=f"={text}".encode()) for text in (code, "")))
        assert other is None
        assert (answer is None) if kind is None else isinstance(answer, kind)
        assert kind is None or str(answer) == words


async def test_the_size_is_counted_to_the_byte() -> None:
    async with faking() as (fake, url):
        fake.welcome = "20080000" + "0527000003e8"  # a thousand bytes
        answers = await send(url, *(Message(topic="orders", payload=b"x" * size + b"=") for size in range(500, 1_000)))
        assert max(fake.sizes) == 1_000
        assert len(fake.sizes) == answers.count(None)
        assert all(answer is None or is_refused_for_good(answer) for answer in answers)


async def test_no_more_is_unanswered_than_the_broker_allows() -> None:
    async with faking() as (fake, url):
        fake.welcome = "2006000003" + "210003"  # three messages
        fake.willing.clear()
        publisher = MqttPublisher(url)
        batches = [RecordingBatch([Message(topic="orders", payload=b"=") for _ in range(10)]) for _ in "ab"]
        calls = asyncio.gather(*(hand_over(publisher, batch) for batch in batches))
        await asyncio.wait([calls], timeout=0.2)
        assert len(fake.sizes) == 3
        fake.willing.set()
        await calls
        await publisher.close()
        assert [len(batch.delivered) for batch in batches] == [10, 10]


async def test_what_a_cancelled_call_sent_counts_until_the_broker_answers() -> None:
    async with faking() as (fake, url):
        fake.welcome = "2006000003" + "210003"  # three messages
        fake.willing.clear()
        publisher = MqttPublisher(url)
        given_up, other = (RecordingBatch([Message(topic="orders", payload=b"=") for _ in range(n)]) for n in (3, 1))
        call = asyncio.create_task(publisher.publish(given_up))
        await until(lambda: len(fake.sizes) == 3)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        call = asyncio.create_task(publisher.publish(other))
        await asyncio.wait([call], timeout=0.2)
        assert len(fake.sizes) == 3
        fake.willing.set()
        await call
        assert other.delivered == other.messages
        assert len(fake.calls) == 1
        await publisher.close()


async def test_a_broker_that_hangs_up_is_noticed_at_once() -> None:
    async with faking() as (_, url):
        [answer] = await send(url, Message(topic="orders", payload=b"=e0ff"), timeout=60)
        assert is_outage(answer, "the broker hung up")


async def test_a_broker_that_says_goodbye_blames_no_message() -> None:
    async with faking() as (_, url):
        messages = [Message(topic="orders", payload=text) for text in (b"=", b"=e00198")]
        first, second = await send(url, *messages)
        assert first is None
        assert is_outage(second, "the connection is lost: Administrative action")


@pytest.mark.parametrize(
    ("welcome", "words"),
    [
        ("2003008800", "the broker does not let us in: Server unavailable"),
        ("20020001", "the broker does not let us in: Unsupported protocol version"),  # it knows MQTT 3 only
        ("00020000", "the connection is lost: Protocol error"),
    ],
)
async def test_a_broker_that_does_not_take_us_blames_no_message(welcome: str, words: str) -> None:
    async with faking() as (fake, url):
        fake.welcome = welcome
        assert is_outage((await send(url, ORDER))[0], words)
        finding = await examined(url)
        assert (finding.verdict, words in finding.seen) == ("problem", True)


async def test_a_silent_connection_is_tested_and_given_up() -> None:
    """The fake broker never answers a ping."""
    async with faking() as (fake, url):
        publisher = MqttPublisher(f"{url}?keepalive=1")
        for _ in range(2):
            assert (await hand_over(publisher, RecordingBatch([Message(topic="orders", payload=b"=")]))).delivered
            await asyncio.wait_for(fake.pinged.wait(), 10)
            await asyncio.wait_for(fake.left.wait(), 10)
            fake.pinged.clear()
            fake.left.clear()
        await publisher.close()


# --- TLS

TLS = f"certfile {CERTIFICATES / 'server.pem'}\nkeyfile {CERTIFICATES / 'server.pem'}"


async def test_the_certificate_of_the_broker_is_checked() -> None:
    with private(TLS) as place:
        url = f"mqtts://{place}"
        assert await send(f"{url}?ssl_ca={CERTIFICATES / 'ca.pem'}", ORDER) == [None]
        assert await send(f"{url}?ssl_verify=false", ORDER) == [None]
        for option in (f"?ssl_ca={CERTIFICATES / 'other.pem'}", ""):
            assert is_outage((await send(url + option, ORDER))[0], "certificate verify failed")
            assert "certificate verify failed" in (await examined(url + option)).seen


async def test_a_broker_without_tls_is_an_outage(address: str) -> None:
    assert is_outage((await send(address.replace("mqtt:", "mqtts:"), ORDER))[0], "127.0.0.1")


# --- bad input


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mqtt://localhost?qos=2", "unknown option 'qos'"),
        ("mqtt://localhost?keepalive=long", "keepalive must be a whole number"),
        ("mqtt://localhost?keepalive=100000", "keepalive must be between 1 and 65535 seconds"),
        ("mqtt://localhost?retain=maybe", "retain must be 'true' or 'false'"),
        ("mqtt://localhost?topic=%7Bshop%7D", "may name {topic}, {key} and {type}"),
        ("mqtt://localhost?format=xml", "must be one of postroom, cloudevents, structured"),
        ("mqtt://localhost:port", "no address of a broker"),
        ("mqtt://", "no address of a broker"),
        ("mqtt://localhost/orders", "no address of a broker"),
        ("ws://localhost", "no address of a broker"),
        ("mqtts://localhost?ssl_ca=/nowhere.pem", "/nowhere.pem cannot be used"),
        ("mqtt://localhost?ssl_ca=/nowhere.pem", "ssl_ca is for TLS"),
    ],
)
def test_a_url_that_cannot_work_is_refused(url: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        MqttPublisher(url)


@pytest.mark.parametrize("url", ["mqtt://127.0.0.1:1", "mqtt://shop:secret@no.such.host.invalid"])
async def test_a_broker_that_cannot_be_reached_is_told_and_found(url: str) -> None:
    assert is_outage((await send(url, ORDER))[0], re.split("//|@", url)[-1])
    finding = await examined(url)
    assert finding.verdict == "problem"
    assert finding.remedy is not None
    assert "secret" not in finding.seen


async def test_a_broker_that_works_is_found_to(address: str) -> None:
    finding = await examined(address)
    assert finding.verdict == "ok"


async def test_who_looks_for_a_broker_does_not_put_out_the_relay(address: str) -> None:
    """Of two sessions with one client id a broker ends the first."""
    url = f"{address}?client_id=relay-{secrets.token_hex(4)}"
    relay = MqttPublisher(url)
    assert (await hand_over(relay, RecordingBatch([ORDER]))).delivered
    session = await relay._sessions.take()
    assert (await examined(url)).verdict == "ok"
    assert (await hand_over(relay, RecordingBatch([ORDER]))).delivered
    assert await relay._sessions.take() is session
    await relay.close()


def test_the_example_runs(address: str, tmp_path: Path) -> None:
    assert (
        run_example("mqtt_qos1.py", tmp_path, address)
        == """\
delivered 1
order-1 OrderPlaced {"id":1,"total":42}
"""
    )
