"""Web hooks: what answers mean, and their absence."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from postroom import DestinationUnavailable, Message, MessageRejected
from postroom.errors import NotAttempted
from postroom.publishers import http
from postroom.publishers.http import HttpPublisher
from postroom.testing.batch import RecordingBatch, hand_over
from tests.brokers.http_hooks import is_outage, publisher_sees_the_end, send, streams_of, to
from tests.brokers.http_server import Answer, Drip, HangUp, HttpServer, Reaction, Silence
from tests.waiting import until

# hypercorn's own, of a connection that ends while it begins
pytestmark = pytest.mark.filterwarnings("ignore:coroutine 'TCPServer._idle_timeout' was never awaited:RuntimeWarning")


@pytest.mark.parametrize("status", [401, 403, 404, 407, 408, 425, 429, 500, 502, 503, 504, 507, 302, 304])
async def test_answers_that_blame_no_message(server: HttpServer, status: int) -> None:
    server.react = lambda _: Answer(status=status, body=b"" if status == 304 else b"because\n of <b>this</b>")
    messages = [Message(topic="orders", key=key, payload=b"1") for key in ("a", "a", "b")]
    answers = await send(to(server, "#concurrency=1"), *messages)
    assert [type(answer) for answer in answers] == [DestinationUnavailable, NotAttempted, NotAttempted]
    assert str(answers[0]).startswith(f"HTTP {status} ")
    assert ("because of <b>this</b>" in str(answers[0])) == (status != 304)
    assert len(server.refused) == 1


@pytest.mark.parametrize("status", [400, 405, 409, 410, 413, 415, 418, 422])
async def test_answers_that_blame_the_message_but_never_for_good(server: HttpServer, status: int) -> None:
    """If the hook is broken, and refuses all of them, the relay can still find out."""
    refuse(server, status, "a")
    messages = [Message(topic="orders", key=key, payload=b"1") for key in ("a", "a", "b")]
    answers = await send(to(server), *messages)
    assert [type(answer) for answer in answers] == [MessageRejected, NotAttempted, type(None)]
    assert isinstance(answers[0], MessageRejected)
    assert not answers[0].permanent
    assert "x" * 150 in str(answers[0])
    assert len(str(answers[0])) < 250


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_every_2xx_is_a_delivery(server: HttpServer, status: int) -> None:
    server.react = lambda _: f"HTTP/1.1 {status} Fine\r\ncontent-length: 0\r\n\r\n".encode()
    assert await send(to(server), Message(topic="orders", payload=b"1")) == [None]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120.0),
        ("in 300 s", 300.0),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 0.0),
        ("soon", None),
        ("-1", None),
        ("9" * 5_000, None),
    ],
)
async def test_the_server_says_how_long_to_wait(server: HttpServer, value: str, seconds: float | None) -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=300), usegmt=True)
    server.react = lambda _: Answer(status=429, headers={"retry-after": date if value == "in 300 s" else value})
    [answer] = await send(to(server), Message(topic="orders", payload=b"1"))
    assert isinstance(answer, DestinationUnavailable)
    assert answer.retry_after == (None if seconds is None else pytest.approx(seconds, abs=60))


async def test_redirects_are_not_followed(server: HttpServer) -> None:
    server.react = lambda _: Answer(status=307, headers={"location": "https://shop:hush@hooks.example/x?token=hush"})
    [answer] = await send(to(server), Message(topic="orders", payload=b"1"))
    assert isinstance(answer, DestinationUnavailable)
    assert "redirects are not followed, and it leads to https://shop:***@hooks.example/x?token=***" in str(answer)
    assert len(server.refused) == 1


@pytest.mark.parametrize("reaction", [HangUp(), Silence(), b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 200 OK\r\n"])
async def test_no_proper_answer_is_an_outage(server: HttpServer, reaction: Reaction) -> None:
    server.react = lambda _: reaction
    messages = [Message(topic="orders", key="a", payload=b"%d" % number) for number in range(3)]
    answers = await send(to(server), *messages, timeout=0.5)
    assert is_outage(answers[0])
    server.react = lambda _: Answer()
    assert await send(to(server), *messages) == [None] * 3


async def test_a_drip_of_an_answer_has_no_more_time_than_any_other(server: HttpServer) -> None:
    server.react = lambda _: Drip()
    publisher = to(server)
    await asyncio.wait_for(publisher.publish(batch := RecordingBatch([Message(topic="orders", payload=b"1")], 0.5)), 10)
    await publisher.close()
    assert [type(error) for error in batch.answers.values()] == [DestinationUnavailable]


@pytest.mark.parametrize("status", [200, 503])
async def test_an_answer_counts_from_the_moment_its_status_is_known(server: HttpServer, status: int) -> None:
    server.react = lambda _: f"HTTP/1.1 {status} Whatever\r\ncontent-length: 100\r\n\r\nwait".encode()
    publisher = to(server)
    await asyncio.wait_for(publisher.publish(batch := RecordingBatch([Message(topic="orders", payload=b"1")], 2)), 10)
    await publisher.close()
    [answer] = batch.answers.values()
    assert answer is None if status == 200 else str(answer) == "HTTP 503 Whatever: wait"


@pytest.mark.parametrize("times", [1, 2])
async def test_what_has_not_left_when_a_call_is_cancelled_never_leaves(times: int) -> None:
    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # pyright: ignore[reportAttributeAccessIssue]
        await is_over.wait()
        writer.transport.resume_reading()  # pyright: ignore[reportAttributeAccessIssue]
        with suppress(ConnectionError):
            heard.set_result(await reader.read())
        writer.close()

    is_over, heard = asyncio.Event(), asyncio.get_running_loop().create_future()
    listener = await asyncio.start_server(listen, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    publisher = HttpPublisher(f"http://127.0.0.1:{port}", allow_private=True)
    payload = b"x" * 50_000_000
    call = asyncio.ensure_future(publisher.publish(RecordingBatch([Message(topic="orders", payload=payload)])))
    await until(lambda: any(map(has_unsent, streams_of(publisher))))
    for _ in range(times):
        call.cancel()
        await asyncio.sleep(0)
    await asyncio.wait([call])
    assert not streams_of(publisher)
    is_over.set()
    assert len(await asyncio.wait_for(heard, 10)) < len(payload)
    listener.close()
    await publisher.close()


async def test_of_a_long_answer_only_a_beginning_is_read(server: HttpServer) -> None:
    server.react = lambda _: Answer(body=b"x" * 50_000_000)
    messages = [Message(topic="orders", key="a", payload=b"%d" % number) for number in range(3)]
    assert await send(to(server), *messages) == [None] * 3
    assert (len(server.requests), server.connections) == (3, 3)


async def test_at_most_so_many_go_at_once_and_after_an_outage_nothing_more_is_begun(server: HttpServer) -> None:
    server.react = lambda _: Silence()
    publisher = to(server, "#concurrency=4")
    batch = RecordingBatch([Message(topic="orders", payload=b"%d" % number) for number in range(50)], 30)
    call = asyncio.ensure_future(publisher.publish(batch))
    await until(lambda: len(server.refused) == 4)
    server.hang_up()
    await call
    await publisher.close()
    assert len(server.refused) == 4
    assert [type(error) for error in batch.answers.values()].count(NotAttempted) == 46


async def test_waiting_for_room_is_not_the_silence_of_the_hook(server: HttpServer) -> None:
    """What has waited for long is given back; what has begun goes on."""
    server.pause, timeout = 0.4, 2.0
    publisher = to(server, "#concurrency=2")
    calls = [[Message(topic="orders", key=f"{n}", payload=b"%d" % (2 * n + m)) for m in range(2)] for n in range(16)]
    rounds, left = 0, calls
    while left:
        batches = [RecordingBatch(messages, timeout) for messages in left]
        await asyncio.gather(*(hand_over(publisher, batch) for batch in batches))
        assert {type(error) for batch in batches for error in batch.answers.values()} <= {type(None), NotAttempted}
        assert all(batch.delivered == batch.messages[: len(batch.delivered)] for batch in batches)
        assert not any(batch.violations for batch in batches)
        left, rounds = [batch.failed for batch in batches if batch.failed], rounds + 1
    await publisher.close()
    assert rounds > 1
    assert len(server.requests) == 32
    for messages in calls:
        bodies = [request.body for request in server.requests if request.headers["postroom-key"] == messages[0].key]
        assert bodies == [message.payload for message in messages]


async def test_who_waits_for_room_is_patient_while_answers_come() -> None:
    room, message = asyncio.Semaphore(0), Message(topic="orders")
    call = http.Call(RecordingBatch([message], 2.0))
    waiting = asyncio.ensure_future(call.found(room))
    await asyncio.sleep(0.6)
    call.answer(message, None)
    await asyncio.sleep(0.6)
    assert not waiting.done()
    room.release()
    assert await waiting


async def test_a_connection_that_the_server_has_closed_is_not_used_again(server: HttpServer) -> None:
    publisher = to(server)
    message = Message(topic="orders", payload=b"1")
    for _ in range(20):
        batch = await hand_over(publisher, RecordingBatch([message]))
        assert batch.answers == {message.id: None}
        server.hang_up()
        await until(lambda: publisher_sees_the_end(publisher))
    await publisher.close()


async def test_what_nobody_asked_for_is_not_taken_for_an_answer(server: HttpServer) -> None:
    publisher = to(server)
    message = Message(topic="orders", payload=b"1")
    assert (await hand_over(publisher, RecordingBatch([message]))).answers == {message.id: None}
    server.say(Answer().spelled())
    server.react = lambda _: Answer(status=503)
    await until(lambda: publisher_sees_the_end(publisher))
    [answer] = await send(publisher, message)
    assert is_outage(answer)


def refuse(server: HttpServer, status: int, key: str) -> None:
    answers = {True: Answer(status=status, body=b"x" * 5_000), False: Answer()}
    server.react = lambda request: answers[request.headers["postroom-key"] == key]


def has_unsent(stream: Any) -> bool:
    return stream._writer.transport.get_write_buffer_size() > 0
