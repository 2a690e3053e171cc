"""Redis: answers that a real server gives only at bad moments."""

from __future__ import annotations

from postroom import DestinationUnavailable, Message, MessageRejected
from postroom.errors import NotAttempted
from postroom.publishers.redis import RedisPublisher
from postroom.testing.batch import RecordingBatch, hand_over
from tests.brokers.redis_stub import redis_stub
from tests.waiting import until


def messages(*payloads: bytes) -> list[Message]:
    return [Message(topic="orders", payload=payload) for payload in payloads]


def answer(command: list[bytes]) -> bytes:
    """Everything is taken, but what is bad."""
    if command[0] == b"XADD":
        return b"-ERR this one is bad\r\n" if b"bad" in command else b"+QUEUED\r\n"
    return b"-EXECABORT Transaction discarded because of previous errors.\r\n" if command[0] == b"EXEC" else b"+OK\r\n"


async def test_of_a_transaction_that_one_message_spoiled_nothing_is_delivered() -> None:
    async with redis_stub(answer) as stub:
        publisher = RedisPublisher(stub.address)
        batch = await hand_over(publisher, RecordingBatch(messages(b"1", b"bad", b"2")))
        await publisher.close()
    assert [type(error) for error in batch.answers.values()] == [NotAttempted, MessageRejected, NotAttempted]


async def test_a_connection_with_an_answer_that_nobody_waits_for_is_not_used_again() -> None:
    """The next call would take it for its own."""
    silent = True

    def reply(command: list[bytes]) -> bytes:
        return b"" if silent and command[0] == b"EXEC" else answer(command)

    async with redis_stub(reply) as stub:
        publisher = RedisPublisher(stub.address)
        batch = await hand_over(publisher, RecordingBatch(messages(b"1"), timeout=0.2))
        assert not batch.delivered
        silent = False
        await hand_over(publisher, RecordingBatch(messages(b"2")))
        await publisher.close()
        assert stub.connections == 2


async def test_what_a_call_that_is_over_had_not_sent_never_leaves() -> None:
    """Not even what the client has in a buffer that is larger than the network's."""
    async with redis_stub(answer) as stub:
        publisher = RedisPublisher(stub.address)
        await hand_over(publisher, RecordingBatch(messages(b"1")))
        assert stub.executed == 1
        stub.may_read.clear()
        await hand_over(publisher, RecordingBatch(messages(b"x" * 30_000_000), timeout=0.3))
        stub.may_read.set()
        await until(lambda: stub.ended == 1)
        assert stub.executed == 1
        await publisher.close()


async def test_nothing_is_sent_where_there_are_no_transactions() -> None:
    """It would be done at once, be told as not done, and be done again and again."""
    appended: list[list[bytes]] = []

    def refuse(command: list[bytes]) -> bytes:
        if command[0] == b"XADD":
            appended.append(command)
            return b"$3\r\n1-1\r\n"
        is_refused = command[0] in (b"MULTI", b"EXEC")
        return b"-NOPERM this user has no permissions to run it\r\n" if is_refused else b"+OK\r\n"

    async with redis_stub(refuse) as stub:
        stub.takes_empty = False
        publisher = RedisPublisher(stub.address)
        batch = await hand_over(publisher, RecordingBatch(messages(b"1", b"2")))
        [finding] = await publisher.examine(["orders"])
        await publisher.close()
    assert all(isinstance(error, DestinationUnavailable) for error in batch.answers.values())
    assert (finding.verdict, appended) == ("problem", [])
    assert "NOPERM" in finding.seen or "no permissions" in finding.seen


async def test_what_cannot_be_spelled_is_refused_for_good_and_the_others_arrive() -> None:
    """JSON may have half a character in it, and so may the headers that another language wrote."""
    bad = Message(topic="orders", payload=b"bad", headers={"note": "\ud83d"})
    async with redis_stub(lambda command: b"*1\r\n$3\r\n1-1\r\n" if command[0] == b"EXEC" else b"+OK\r\n") as stub:
        publisher = RedisPublisher(stub.address)
        batch = await hand_over(publisher, RecordingBatch([bad, *messages(b"1")]))
        await publisher.close()
    error = batch.answers[bad.id]
    assert isinstance(error, MessageRejected)
    assert error.permanent
    assert len(batch.delivered) == 1


def test_a_key_that_is_spread_over_streams_is_sent_one_by_one() -> None:
    assert RedisPublisher(stream="{topic}-{key}").features.ordered
    assert not RedisPublisher(stream="{topic}-{type}").features.ordered
