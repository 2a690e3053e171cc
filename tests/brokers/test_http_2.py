"""Web hooks over HTTP/2 and TLS."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress

import httpcore
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, StreamEnded

from postroom import DestinationUnavailable, Message
from postroom.errors import NotAttempted
from postroom.publishers.http import HttpPublisher
from postroom.testing.batch import RecordingBatch, hand_over
from postroom.wire import http_client
from tests.brokers.http_hooks import examined, is_outage, publisher_sees_the_end, resolve, securely_to, send
from tests.brokers.http_server import HttpServer, SecureServer
from tests.proxy import Proxy
from tests.services.places import CERTIFICATES
from tests.waiting import until

# hypercorn's own, of a connection that ends while it begins
pytestmark = pytest.mark.filterwarnings("ignore:coroutine 'TCPServer._idle_timeout' was never awaited:RuntimeWarning")


async def test_http_2_is_spoken_where_the_server_does(secure: SecureServer) -> None:
    messages = [Message(topic="orders", key=f"key-{n % 7}", payload=b"%d" % n, position=n) for n in range(200)]
    large = Message(topic="orders", payload=b"0123456789" * 100_000, headers={"Note": "ä"})
    assert await send(securely_to(secure), *messages, large) == [None] * 201
    assert {request.version for request in secure.requests} == {"2"}
    by_key: dict[str | None, list[bytes]] = {}
    for request in secure.requests:
        by_key.setdefault(request.headers.get("postroom-key"), []).append(request.body)
    assert by_key.pop(None) == [large.payload]
    assert by_key == {f"key-{n}": [b"%d" % each for each in range(n, 200, 7)] for n in range(7)}


async def test_large_bodies_over_http_2_do_not_get_stuck(secure: SecureServer) -> None:
    publisher = securely_to(secure)
    for _ in range(5):
        messages = [Message(topic="orders", payload=b"0123456789" * 20_000) for _ in range(40)]
        assert (await hand_over(publisher, RecordingBatch(messages))).delivered == messages
    await publisher.close()
    assert {len(request.body) for request in secure.requests} == {200_000}


async def test_leave_to_send_that_came_with_the_answer_to_another_request_is_noticed() -> None:
    """Without a ping, who waits for it would wait for ever."""
    is_small_there, bodies = asyncio.Event(), dict[int, int]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = H2Connection(H2Configuration(client_side=False))
        connection.initiate_connection()
        writer.write(connection.data_to_send())
        with suppress(ConnectionError):
            while data := await reader.read(100_000):
                for event in connection.receive_data(data):
                    heard(connection, event)
                writer.write(connection.data_to_send())
        writer.transport.abort()

    def heard(connection: H2Connection, event: object) -> None:
        if isinstance(event, DataReceived):
            bodies[event.stream_id] = bodies.get(event.stream_id, 0) + len(event.data or b"")
            if sum(bodies.values()) == 65_535:  # as much as may be sent without leave
                connection.increment_flow_control_window(100_000)
                connection.increment_flow_control_window(100_000, event.stream_id)
                connection.send_headers(1, [(":status", "200")], end_stream=True)
        elif isinstance(event, StreamEnded) and event.stream_id == 1:
            is_small_there.set()
        elif isinstance(event, StreamEnded):
            connection.send_headers(event.stream_id, [(":status", "200")], end_stream=True)

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATES / "server.pem")
    context.set_alpn_protocols(["h2"])
    listener = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    port = listener.sockets[0].getsockname()[1]
    publisher = HttpPublisher(f"https://localhost:{port}#allow_private=true&ssl_ca={CERTIFICATES / 'ca.pem'}")
    small, large = (RecordingBatch([Message(topic="orders", payload=b"x" * size)]) for size in (1, 100_000))
    first = asyncio.ensure_future(hand_over(publisher, small))
    await is_small_there.wait()
    await hand_over(publisher, large)
    await first
    await publisher.close()
    listener.close()
    await asyncio.sleep(0.1)  # until they are closed indeed
    assert (small.delivered, large.delivered) == (small.messages, large.messages)


async def test_over_http_2_a_long_silence_is_broken_by_a_ping() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while await reader.read(100) == http_client.PING:
                writer.write(http_client.PONG)
        writer.transport.abort()
        is_over.set()

    is_over = asyncio.Event()
    listener = await asyncio.start_server(answer, "127.0.0.1", 0)
    network = http_client.Network(allow_private=True)
    stream = await network.connect_tcp("127.0.0.1", listener.sockets[0].getsockname()[1])
    stream.is_shared = True
    for _ in range(2):
        assert await stream.read(100, timeout=10) == http_client.PONG
    network.close()
    await is_over.wait()
    listener.close()
    await asyncio.sleep(0)


async def test_over_http_2_a_connection_that_timed_out_has_ended(server: HttpServer) -> None:
    """The network says so with the same error as a clock of our own does."""
    network = http_client.Network(allow_private=True)
    stream = await network.connect_tcp("127.0.0.1", int(server.address.rpartition(":")[2]))
    stream.is_shared = True
    stream._reader.set_exception(TimeoutError("ETIMEDOUT"))
    with pytest.raises(httpcore.ReadTimeout):
        await stream.read(100, timeout=10)
    network.close()
    await asyncio.sleep(0)


async def test_a_cancelled_call_over_http_2_gives_its_connection_up(secure: SecureServer) -> None:
    """Of what requests wait to say on it, nobody else may say a part."""
    publisher = securely_to(secure)
    messages = [Message(topic="orders", payload=b"%d" % n) for n in range(50)]
    secure.held.set()
    call = asyncio.ensure_future(publisher.publish(batch := RecordingBatch(messages)))
    await until(lambda: secure.waiting == 16)
    call.cancel()
    await asyncio.wait([call])
    batch.over = True
    assert not batch.answers
    await until(lambda: secure.waiting == 0)
    secure.held.clear()
    assert await send(publisher, *messages) == [None] * 50
    assert sorted(request.body for request in secure.requests) == sorted(message.payload for message in messages)
    assert not batch.violations


async def test_over_http_2_silence_is_an_outage_and_the_next_call_finds_a_new_connection(secure: SecureServer) -> None:
    publisher = securely_to(secure)
    messages = [Message(topic="orders", payload=b"%d" % n) for n in range(50)]
    secure.held.set()
    batch = await hand_over(publisher, RecordingBatch(messages, 0.3))
    assert all(error is not None and (is_outage(error) or isinstance(error, NotAttempted)) for error in
               batch.answers.values())  # fmt: skip
    secure.held.clear()
    assert await send(publisher, *messages) == [None] * 50


async def test_a_connection_for_many_that_has_ended_is_not_used_again(secure: SecureServer) -> None:
    with Proxy(f"https://127.0.0.1:{secure.port}") as proxy:
        publisher = HttpPublisher(f"{proxy.url}#allow_private=true&ssl_ca={CERTIFICATES / 'ca.pem'}")
        for _ in range(5):
            message = Message(topic="orders", payload=b"1")
            batch = await hand_over(publisher, RecordingBatch([message]))
            assert batch.answers == {message.id: None}
            proxy.cut()
            await until(lambda: publisher_sees_the_end(publisher))
        await publisher.close()


async def test_a_connection_for_many_is_replaced_before_the_server_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "MOST_CARRIED", 50)
    with SecureServer(most=100) as secure:
        messages = [Message(topic="orders", key=f"key-{n % 30}", payload=b"%d" % n) for n in range(500)]
        assert await send(securely_to(secure), *messages) == [None] * 500


@pytest.mark.parametrize(("host", "authority"), [("localhost", "other.pem"), ("hooks.example", "ca.pem")])
async def test_a_server_with_a_wrong_certificate_gets_nothing(
    secure: SecureServer, monkeypatch: pytest.MonkeyPatch, host: str, authority: str
) -> None:
    """The name is that of the URL, although the connection goes to an address."""
    resolve(monkeypatch, ["127.0.0.1"])
    publisher = securely_to(secure, host, authority)
    [answer] = await send(publisher, Message(topic="orders", payload=b"1"))
    assert isinstance(answer, DestinationUnavailable)
    assert "certificate verify failed" in str(answer)
    finding = await examined(publisher)
    assert (finding.verdict, "certificate verify failed" in finding.seen) == ("problem", True)
    assert not secure.requests
