"""NATS JetStream."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import secrets
import sys
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_http_event
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from postroom import ConfigurationError, Message, MessageRejected, Outbox
from postroom.errors import MissingExtra, NotAttempted
from postroom.failures import is_unavailable
from postroom.ports import Finding
from postroom.publishers.nats import NatsPublisher
from postroom.testing.batch import RecordingBatch, hand_over
from postroom.testing.publisher_contract import PublisherContract, Received, RejectionContract
from tests.acceptance.servers.database import Database
from tests.acceptance.servers.deliveries import relay_running
from tests.brokers.behind_proxy import BehindProxy
from tests.brokers.example import run_example
from tests.brokers.fault_suite import PATIENCE, SETTINGS, Arrived, FaultSuite
from tests.brokers.nats_credentials import make_credentials, stand_in_for_nkeys
from tests.brokers.nats_reader import Stored, change_stream, make_stream, stored
from tests.conftest import server_url
from tests.proxy import Proxy
from tests.services.nats import Nats
from tests.services.places import CERTIFICATES
from tests.services.private import NOT_GIVEN, PrivateServer
from tests.services.processes import Command
from tests.waiting import eventually, until


def new_name() -> str:
    return f"orders-{secrets.token_hex(6)}"


def received(entry: Stored) -> Received:
    return Received(
        id=entry.headers["postroom-id"],
        topic=entry.subject,
        key=entry.headers.get("postroom-key"),
        payload=entry.payload,
        headers=entry.headers,
    )


class OnStream(BehindProxy):
    broker = "nats"
    options = ""

    @pytest.fixture(autouse=True)
    async def _stream(self, _network: None) -> None:
        self.topic = new_name()
        await make_stream(self.address, self.topic)

    async def make_publisher(self) -> NatsPublisher:
        return NatsPublisher(f"{self.proxy.url}{self.options}")

    async def received(self) -> list[Received]:
        return [received(entry) for entry in await stored(self.address, self.topic)]


class TestNatsPublisher(OnStream, PublisherContract, RejectionContract):
    """A stream refuses a message that expects to come to another one."""

    def messages(self, *arguments: Any, **fields: Any) -> list[Message]:
        self._made = super().messages(*arguments, **fields)
        return self._made

    async def reject(self, ids: Collection[str]) -> None:
        for message in self._made:
            if message.id in ids:
                message.headers = {"Nats-Expected-Stream": "another"}

    async def mend_destination(self) -> None:
        await super().mend_destination()
        for message in self._made:
            message.headers = {}


class TestPipelined(OnStream, PublisherContract):
    options = "?pipelined=true&max_in_flight=100"


class TestFaults(FaultSuite):
    broker = "nats"

    def prepare(self, address: str) -> str:
        self.topic = new_name()
        asyncio.run(make_stream(address, self.topic))
        return self.topic

    def arrived(self, address: str, topic: str) -> list[Arrived]:
        found = asyncio.run(stored(address, topic))
        return [(entry.headers["postroom-key"], json.loads(entry.payload)["number"]) for entry in found]

    def test_a_stream_that_is_full_for_a_while_loses_and_reorders_nothing(
        self, database: Database, record_property: Callable[[str, object], None]
    ) -> None:
        address = server_url(self.broker)
        with self.load(database, address, address, record_property, faults=1) as (breakers, count):
            limit = eventually(count) + 100
            asyncio.run(change_stream(address, self.topic, max_msgs=limit, discard="new"))
            assert breakers.opened.wait(PATIENCE)
            eventually(lambda: count() == limit)
            breakers.closed.clear()
            asyncio.run(change_stream(address, self.topic, max_msgs=-1))
            assert breakers.closed.wait(PATIENCE)

    def test_a_message_that_is_refused_in_the_middle_of_a_key_holds_up_that_key_alone(self, database: Database) -> None:
        address = server_url(self.broker)
        topic = self.prepare(address)
        asyncio.run(change_stream(address, topic, max_msg_size=2_000))
        messages = [
            Message(topic=topic, key=key, payload={"number": number, "text": "x" * 3_000 * (key + str(number) == "a3")})
            for number in range(1, 6)
            for key in ("a", "b")
        ]
        with (
            relay_running(database, address, retry="fixed 50ms max=forever", **SETTINGS),
            database.connection() as connection,
        ):
            Outbox().add_many(connection, messages)
            connection.commit()
            eventually(lambda: len(self.arrived(address, topic)) == 2 + 5 and database.count("holds") == 1)
            asyncio.run(change_stream(address, topic, max_msg_size=-1))
            eventually(lambda: database.count("outbox") == 0)
        for key in ("a", "b"):
            assert [number for each, number in self.arrived(address, topic) if each == key] == [1, 2, 3, 4, 5]
        assert database.count("dead") == 0


# --- what a message looks like


@pytest.fixture
def address() -> str:
    return server_url("nats")


@pytest.fixture
async def topic(address: str) -> str:
    name = new_name()
    await make_stream(address, name)
    return name


async def send(url: str, *messages: Message, timeout: float = 5.0) -> list[BaseException | None]:
    """The answers."""
    publisher = NatsPublisher(url)
    batch = await hand_over(publisher, RecordingBatch(messages, timeout))
    await publisher.close()
    return [batch.answers[message.id] for message in messages]


async def examined(url: str, topic: str) -> Finding:
    publisher = NatsPublisher(url)
    [finding] = await publisher.examine([topic])
    await publisher.close()
    return finding


def is_refused_for_good(answer: BaseException | None) -> bool:
    return isinstance(answer, MessageRejected) and answer.permanent


async def test_content_type_and_id_are_headers_and_a_tombstone_is_empty(address: str, topic: str) -> None:
    plain = Message(topic=topic, key="a", payload=b"{}", content_type="application/json", replays=2)
    assert await send(address, plain, Message(topic=topic, key="b")) == [None, None]
    first, second = await stored(address, topic)
    assert (first.headers["content-type"], first.payload) == ("application/json", b"{}")
    assert first.headers["Nats-Msg-Id"] == f"{plain.id}+2"
    assert "content-type" not in second.headers
    assert second.payload == b""


async def test_the_broker_drops_what_it_has_already_and_a_replay_it_has_not(address: str, topic: str) -> None:
    message = Message(topic=topic, key="a", payload=b"1")
    assert await send(address, message) == [None]
    assert await send(address, message) == [None]
    message.replays = 1
    assert await send(address, message) == [None]
    assert len(await stored(address, topic)) == 2


@pytest.mark.parametrize("format", ["cloudevents", "structured"])
async def test_the_sdk_for_cloudevents_reads_what_is_sent(address: str, topic: str, format: str) -> None:
    message = Message(topic=topic, key="a", type="OrderPlaced", payload=b'{"id": 1}', content_type="application/json")
    await send(f"{address}?format={format}&source=/shop", message)
    [entry] = await stored(address, topic)
    event = from_http_event(HTTPMessage(entry.headers, entry.payload))
    assert (event.get_id(), event.get_source(), event.get_type()) == (message.id, "/shop", "OrderPlaced")
    assert (event.get_extension("partitionkey"), event.get_data()) == ("a", {"id": 1})
    if format == "structured":
        assert JSONFormat().read(CloudEvent, entry.payload).get_id() == message.id


async def test_subjects_are_named_by_a_template(address: str) -> None:
    name = new_name()
    await make_stream(address, name, subjects=[f"{name}.>"])
    url = f"{address}?subject=%7Btopic%7D.%7Bkey%7D"
    keyed, keyless = Message(topic=name, key="a", payload=b"1"), Message(topic=name, payload=b"2")
    delivered, refused = await send(url, keyed, keyless)
    assert delivered is None
    assert is_refused_for_good(refused)
    assert [entry.subject for entry in await stored(address, name)] == [f"{name}.a"]
    assert (await examined(url, name)).verdict == "ok"


async def test_no_more_is_unanswered_than_allowed(address: str, topic: str) -> None:
    """The answers are kept back until the limit is reached, for all calls together."""
    with Proxy(address) as proxy:
        publisher = NatsPublisher(f"{proxy.url}?max_in_flight=30")
        await hand_over(publisher, RecordingBatch([Message(topic=topic, payload=b"1")]))
        proxy.swallow_answers(lambda said, data: b"HPUB" in data)
        batches = [RecordingBatch([Message(topic=topic, payload=b"%d" % n) for n in range(100)], 1.0) for _ in "ab"]
        await asyncio.gather(*(hand_over(publisher, batch) for batch in batches))
        await publisher.close()
    assert 0 < len(await stored(address, topic)) <= 31


def test_it_may_be_used_on_one_loop_after_another(address: str) -> None:
    name, publisher = new_name(), NatsPublisher(address)
    asyncio.run(make_stream(address, name))
    for _ in range(3):
        batch = RecordingBatch([Message(topic=name, payload=b"1")])
        asyncio.run(hand_over(publisher, batch))
        assert batch.delivered
    asyncio.run(publisher.close())
    gc.collect()  # which warns of what was left open
    assert len(asyncio.run(stored(address, name))) == 3


# --- refusals


@pytest.mark.parametrize(
    "name", ["", "two words", "tab\tbed", "a..b", ".a", "a.", "a.*", ">", "$JS.API.INFO", "a\r\nPING"]
)
async def test_what_is_no_subject_is_refused_for_good(address: str, topic: str, name: str) -> None:
    bad, good = Message(topic=name, key="a", payload=b"1"), Message(topic=topic, key="a", payload=b"2")
    refused, delivered = await send(address, bad, good)
    assert is_refused_for_good(refused)
    assert repr(name) in str(refused)
    assert delivered is None


@pytest.mark.parametrize(
    "headers",
    [{"a": "one\r\ntwo"}, {"a": "one\ntwo"}, {"a\r\nb": "1"}, {"a:b": "1"}, {"": "1"}, {"ä": "1"}, {"a": "\ud800"}],
)
async def test_a_header_that_cannot_travel_is_refused_for_good(
    address: str, topic: str, headers: dict[str, str]
) -> None:
    bad, good = Message(topic=topic, payload=b"1", headers=headers), Message(topic=topic, payload=b"2")
    refused, delivered = await send(address, bad, good)
    assert is_refused_for_good(refused)
    assert delivered is None
    assert [entry.payload for entry in await stored(address, topic)] == [b"2"]


async def test_what_follows_a_refused_message_in_its_key_is_not_tried(address: str, topic: str) -> None:
    bad = Message(topic=topic, key="a", payload=b"1", headers={"a:b": "1"})
    rest = [Message(topic=topic, key=key, payload=b"2") for key in ("a", "b")]
    answers = await send(f"{address}?pipelined=true", bad, *rest)
    assert [type(answer) for answer in answers] == [MessageRejected, NotAttempted, type(None)]


@pytest.mark.parametrize(("spare", "is_taken"), [(0, True), (-1, False)])
async def test_a_message_that_is_too_large_for_the_server_is_not_sent(
    address: str, topic: str, spare: int, is_taken: bool
) -> None:
    """Headers count: if they were forgotten, the server would hang up on us."""
    probe = Message(topic=topic, payload=b"")
    headers = f"NATS/1.0\r\npostroom-id: {probe.id}\r\npostroom-epoch: 0\r\nNats-Msg-Id: {probe.id}\r\n\r\n"
    large = Message(topic=topic, payload=b"x" * (1024 * 1024 - len(headers) - spare))
    answer, other = await send(address, large, Message(topic=topic, payload=b"1"))
    assert (answer is None) is is_taken
    assert is_taken or (is_refused_for_good(answer) and "1,048,577 bytes" in str(answer))
    assert other is None


async def test_a_message_that_is_too_large_for_the_stream_is_refused(address: str) -> None:
    name = new_name()
    await make_stream(address, name, max_msg_size=1_000)
    answers = await send(address, *(Message(topic=name, payload=b"x" * size) for size in (100, 2_000, 100)))
    assert [type(answer) for answer in answers] == [type(None), MessageRejected, type(None)]
    assert "message size exceeds maximum allowed" in str(answers[1])
    assert not is_refused_for_good(answers[1])


# --- what blames no message


def is_outage(answer: BaseException | None, words: str) -> bool:
    assert answer is not None
    assert is_unavailable(answer)
    return words in str(answer)


async def test_a_subject_that_no_stream_takes_blames_no_message(address: str, topic: str) -> None:
    lost, delivered = await send(
        address, Message(topic="nobody.there", payload=b"1"), Message(topic=topic, payload=b"2")
    )
    assert is_outage(lost, "no stream takes the subject 'nobody.there': make one")
    assert delivered is None
    finding = await examined(address, "nobody.there")
    assert (finding.verdict, finding.seen.endswith("no stream takes 'nobody.there'")) == ("problem", True)
    assert finding.remedy is not None


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"max_msgs": 1, "discard": "new"}, "maximum messages exceeded"),
        ({"max_bytes": 300, "discard": "new"}, "maximum bytes exceeded"),
        (
            {"max_msgs_per_subject": 1, "discard": "new", "discard_new_per_subject": True, "max_msgs": 9},
            "maximum messages per subject exceeded",
        ),
    ],
)
async def test_a_stream_that_is_full_blames_no_message(address: str, limits: dict[str, Any], words: str) -> None:
    name = new_name()
    await make_stream(address, name, **limits)
    first, second = await send(address, *(Message(topic=name, payload=b"x" * 50) for _ in range(2)))
    assert first is None
    assert is_outage(second, words)


async def test_a_stream_that_is_sealed_blames_no_message(address: str, topic: str) -> None:
    await change_stream(address, topic, sealed=True, deny_delete=True, deny_purge=True)
    [answer] = await send(address, Message(topic=topic, payload=b"1"))
    assert is_outage(answer, "sealed")


async def test_a_stream_that_does_not_acknowledge_is_an_outage(address: str) -> None:
    name = new_name()
    await make_stream(address, name, no_ack=True)
    [answer] = await send(address, Message(topic=name, payload=b"1"), timeout=0.2)
    assert is_outage(answer, "")


async def test_a_call_that_is_cancelled_leaves_others_alone(address: str, topic: str) -> None:
    """Of what was sent nothing can be taken back, and the connection is as good as before."""
    with Proxy(address) as proxy:
        publisher = NatsPublisher(proxy.url)
        await hand_over(publisher, RecordingBatch([Message(topic=topic, payload=b"1")]))
        connection = await publisher._connections.take()
        proxy.stall()
        given_up, other = (RecordingBatch([Message(topic=topic, payload=text)]) for text in (b"2", b"3"))
        calls = [asyncio.create_task(publisher.publish(batch)) for batch in (given_up, other)]
        await until(lambda: len(connection._unanswered) == 2)
        calls[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await calls[0]
        given_up.over = True
        proxy.resume()
        await calls[1]
        assert other.delivered == other.messages
        assert not given_up.violations
        assert connection.lost is None
        await publisher.close()
    assert [entry.payload for entry in await stored(address, topic)] == [b"1", b"2", b"3"]


async def test_a_call_that_is_cancelled_before_all_is_sent_is_no_outage_to_another(address: str, topic: str) -> None:
    with Proxy(address) as proxy:
        publisher = NatsPublisher(proxy.url)
        await hand_over(publisher, RecordingBatch([Message(topic=topic, payload=b"1")]))
        connection = await publisher._connections.take()
        proxy.stall()
        other = RecordingBatch([Message(topic=topic, payload=b"2")])
        large = RecordingBatch([Message(topic=topic, payload=b"x" * 900_000) for _ in range(40)])
        calls = [asyncio.create_task(publisher.publish(batch)) for batch in (other, large)]
        await until(connection._wire.has_unsent)
        calls[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await calls[1]
        with pytest.raises(NotAttempted, match="another call"):
            await calls[0]
        proxy.resume()
        await until(lambda: not proxy.is_in_use)
        await publisher.close()
    assert len(await stored(address, topic)) < 40


async def test_a_connection_that_says_nothing_is_given_up(address: str, topic: str) -> None:
    with Proxy(address) as proxy:
        publisher = NatsPublisher(proxy.url)
        await hand_over(publisher, RecordingBatch([Message(topic=topic, payload=b"1")]))
        proxy.stall()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.4):
                await publisher.publish(RecordingBatch([Message(topic=topic, payload=b"2")], timeout=0.2))
        assert (await hand_over(publisher, RecordingBatch([Message(topic=topic, payload=b"3")]))).delivered
        await publisher.close()


async def test_an_answer_of_somebody_else_confirms_nothing(address: str) -> None:
    name = new_name()
    parts = address.removeprefix("nats://").split(":")
    reader, writer = await asyncio.open_connection(parts[0], int(parts[1]))
    writer.write(f'CONNECT {{"verbose": false}}\r\nSUB {name} 1\r\nPING\r\n'.encode())
    await reader.readuntil(b"PONG\r\n")
    sending = asyncio.ensure_future(send(address, Message(topic=name, payload=b"1")))
    _, _, _, reply, *_ = (await reader.readline()).split()
    writer.write(b"PUB %b 2\r\nok\r\n" % reply)
    assert is_outage((await sending)[0], "something else than a stream answers")
    writer.close()
    await writer.wait_closed()


class Configured(Nats):
    def __init__(self, name: str, settings: str, *, jetstream: bool) -> None:
        super().__init__(variable=NOT_GIVEN)
        self.name, self._settings, self._jetstream = name, settings, jetstream

    def command(self, folder: Path, port: int) -> Command:
        (folder / "settings.conf").write_text(self._settings)
        words = [word for word in super().command(folder, port) if self._jetstream or word != "-js"]
        return [*words, "-c", folder / "settings.conf"]


class PrivateNats(PrivateServer):
    def __init__(self, settings: str, *, jetstream: bool = True) -> None:
        super().__init__("nats")
        self.server = Configured(self.server.name, settings, jetstream=jetstream)


@contextmanager
def private(settings: str, *, jetstream: bool = True) -> Iterator[str]:
    """What follows the scheme of its URL."""
    broker = PrivateNats(settings, jetstream=jetstream)
    try:
        yield broker.start().removeprefix("nats://")
    finally:
        broker.stop()


ORDER = Message(topic="orders", payload=b"1")


async def test_a_server_without_jetstream_blames_no_message() -> None:
    with private("", jetstream=False) as place:
        [answer] = await send(f"nats://{place}", ORDER)
        assert is_outage(answer, "no stream takes the subject 'orders'")
        finding = await examined(f"nats://{place}", "orders")
        assert (finding.verdict, "has no JetStream" in finding.seen) == ("problem", True)


async def test_an_account_without_jetstream_blames_no_message() -> None:
    with private("accounts { A { users = [{user: shop, password: secret}] }, B { jetstream: enabled } }") as place:
        [answer] = await send(f"nats://shop:secret@{place}", ORDER)
        assert is_outage(answer, "no stream takes the subject 'orders'")
        finding = await examined(f"nats://shop:secret@{place}", "orders")
        assert (finding.verdict, "JetStream" in finding.seen) == ("problem", True)


@pytest.mark.parametrize(
    ("settings", "right", "wrong"),
    [
        ("user: shop, password: 'p@ss, word'", "shop:p%40ss%2C%20word", "shop:guess"),
        ("token: s3cret", "s3cret", "guess"),
    ],
)
async def test_who_is_not_let_in_blames_no_message(settings: str, right: str, wrong: str) -> None:
    with private(f"authorization {{ {settings} }}") as place:
        assert is_outage((await send(f"nats://{right}@{place}", ORDER))[0], "no stream takes the subject")
        for login in (f"{wrong}@", ""):
            assert is_outage((await send(f"nats://{login}{place}", ORDER))[0], "Authorization Violation")
            finding = await examined(f"nats://{login}{place}", "orders")
            assert (finding.verdict, "Authorization Violation" in finding.seen) == ("problem", True)
            assert finding.remedy is not None
            assert "guess" not in finding.seen


RIGHTS = """authorization { users = [
    {user: all, password: secret}
    {user: writer, password: secret, permissions: {publish: [Orders], subscribe: ["_INBOX.>"]}}
    {user: deaf, password: secret, permissions: {publish: [">"], subscribe: [nothing]}}
] }"""


async def test_a_right_that_lacks_blames_no_message_and_is_told_at_once() -> None:
    with private(RIGHTS) as place:
        await make_stream(f"nats://all:secret@{place}", "Orders")
        messages = [Message(topic=topic, payload=b"1") for topic in ("Orders", "Mail", "Orders")]
        first, second, third = await send(f"nats://writer:secret@{place}", *messages, timeout=60)
        assert (first, third) == (None, None)
        assert is_outage(second, 'permissions violation for publish to "mail"')
        [answer] = await send(f"nats://deaf:secret@{place}", Message(topic="Orders", payload=b"2"), timeout=60)
        assert is_outage(answer, "permissions violation for subscription")


async def test_who_may_not_ask_for_streams_is_warned() -> None:
    with private(RIGHTS) as place:
        finding = await examined(f"nats://writer:secret@{place}", "Orders")
        assert (finding.verdict, "permissions violation" in finding.seen) == ("warning", True)
        assert (await examined(f"nats://deaf:secret@{place}", "Orders")).verdict == "problem"


async def test_credentials_from_a_file_let_us_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "nkeys", stand_in_for_nkeys())
    settings, file = make_credentials(tmp_path / "shop.creds"), tmp_path / "shop.creds"
    with private(settings, jetstream=False) as place:
        assert is_outage((await send(f"nats://{place}", ORDER))[0], "Authorization Violation")
        assert is_outage((await send(f"nats://{place}?creds={file}", ORDER))[0], "no stream takes the subject")
        make_credentials(file)  # of somebody else
        assert is_outage((await send(f"nats://{place}?creds={file}", ORDER))[0], "Authorization Violation")


# --- TLS

TLS = f"tls {{ cert_file: '{CERTIFICATES / 'server.pem'}', key_file: '{CERTIFICATES / 'server.pem'}' }}\n"


@pytest.mark.parametrize("settings", [TLS, f"{TLS}allow_non_tls: true"], ids=["required", "offered"])
@pytest.mark.parametrize("form", ["tls://{}?", "nats://{}?tls=true&"])
async def test_the_certificate_of_the_server_is_checked(settings: str, form: str) -> None:
    with private(settings) as place:
        url = form.format(place)
        assert is_outage(
            (await send(f"{url}ssl_ca={CERTIFICATES / 'ca.pem'}", ORDER))[0], "no stream takes the subject"
        )
        assert is_outage((await send(f"{url}ssl_verify=false", ORDER))[0], "no stream takes the subject")
        for option in (f"ssl_ca={CERTIFICATES / 'other.pem'}", ""):
            assert is_outage((await send(url + option, ORDER))[0], "certificate verify failed")


async def test_a_server_that_wants_tls_gets_it_and_must_prove_itself() -> None:
    with private(TLS) as place:
        assert is_outage((await send(f"nats://{place}", ORDER))[0], "certificate verify failed")


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[int, asyncio.Queue[bytes]]]:
    """A server that greets like one without TLS, and writes down what it is told."""
    said = asyncio.Queue[bytes]()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id": "x", "version": "2.11.0", "max_payload": 1000, "headers": true}\r\n')
        everything = await reader.read()
        writer.close()
        await writer.wait_closed()
        said.put_nowait(everything)

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], said


async def test_a_server_that_has_no_tls_is_told_no_password() -> None:
    async with listening() as (port, said):
        [answer] = await send(f"tls://shop:secret@127.0.0.1:{port}", ORDER)
        assert is_outage(answer, "secure connection not available")
        assert await said.get() == b""


# --- bad input


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nats://localhost?stream=x", "unknown option 'stream'"),
        ("nats://localhost?max_in_flight=many", "max_in_flight must be a whole number"),
        ("nats://localhost?max_in_flight=0", "max_in_flight must be at least 1"),
        ("nats://localhost?subject=%7Bshop%7D", "may name {topic}, {key} and {type}"),
        ("nats://localhost?format=xml", "must be one of postroom, cloudevents, structured"),
        ("nats://localhost?pipelined=maybe", "pipelined must be 'true' or 'false'"),
        ("nats://localhost:port", "no address of NATS"),
        ("nats://", "no address of NATS"),
        ("nats://one,,two", "no address of NATS"),
        ("nats://shop:secret@one,nats://shop:secret@two", "write user and password once"),
        ("nats://localhost/orders", "no address of NATS"),
        ("ws://localhost", "it begins with 'nats://' or 'tls://'"),
        ("tls://localhost?ssl_ca=/nowhere.pem", "/nowhere.pem cannot be used"),
        ("nats://localhost?ssl_ca=/nowhere.pem", "ssl_ca is for TLS"),
    ],
)
def test_a_url_that_cannot_work_is_refused(url: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        NatsPublisher(url)


def test_credentials_that_cannot_work_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "nkeys", None)
    with pytest.raises(MissingExtra, match="nats-py"):
        NatsPublisher(creds="shop.creds")
    monkeypatch.setitem(sys.modules, "nkeys", stand_in_for_nkeys())
    with pytest.raises(ConfigurationError, match="cannot be read"):
        NatsPublisher(creds=str(tmp_path / "nowhere"))
    (tmp_path / "empty").touch()
    with pytest.raises(ConfigurationError, match="has no credentials"):
        NatsPublisher(creds=str(tmp_path / "empty"))


@pytest.mark.parametrize("url", ["nats://127.0.0.1:1", "nats://shop:secret@no.such.host.invalid"])
async def test_a_server_that_cannot_be_reached_is_told_and_found(url: str) -> None:
    assert is_outage((await send(url, ORDER))[0], url.partition("@")[2] or url)
    finding = await examined(url, "orders")
    assert finding.verdict == "problem"
    assert finding.remedy is not None
    assert "secret" not in finding.seen


async def test_of_several_servers_one_will_do(address: str, topic: str) -> None:
    place = address.removeprefix("nats://")
    assert await send(f"nats://127.0.0.1:1,{place}", Message(topic=topic, payload=b"1")) == [None]
    [answer] = await send("nats://127.0.0.1:1,127.0.0.1:2", Message(topic=topic, payload=b"1"))
    assert is_outage(answer, "127.0.0.1:1: ConnectionRefusedError")
    assert is_outage(answer, "127.0.0.1:2: ConnectionRefusedError")


async def test_a_server_that_works_is_found_to(address: str, topic: str) -> None:
    finding = await examined(address, topic)
    assert finding.verdict == "ok"


def test_the_example_runs(address: str, tmp_path: Path) -> None:
    assert (
        run_example("nats_jetstream.py", tmp_path, address)
        == """\
delivered 1
order-1 OrderPlaced {"id":1,"total":42}
"""
    )
