"""Handlers whose replies are sent again when their message comes again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from postroom import TOMBSTONE, ConfigurationError, Inbox, InvalidMessage, Message, Outbox, Received, Relay
from postroom.message import NOTHING_HEADER
from postroom.testing.clock import FakeClock

COMMAND = Received(id="1", topic="commands", key="a", payload=b"{}")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.db"


@pytest.fixture
def engine(path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{path}")
    yield engine
    engine.dispose()


@pytest.fixture
async def async_engine(path: Path) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    yield engine
    await engine.dispose()


async def arrivals(path: Path) -> list[Message]:
    arrived: list[Message] = []
    await Relay(f"sqlite:///{path}", arrived.append).drain()
    return arrived


async def test_a_duplicate_command_has_its_replies_sent_again(engine: Engine, path: Path) -> None:
    inbox, outbox, calls = Inbox(), Outbox(), list[str]()

    @inbox.once(consumer="billing", session=sessionmaker(engine), replies=outbox)
    def bill(received: Received, session: Session) -> list[Message]:
        calls.append(received.id)
        outbox.add(session, "audit", "once")
        return [Message(topic="bills", payload={"bill": number}, key=received.key) for number in range(2)]

    assert len(bill(COMMAND)) == 2
    first = await arrivals(path)
    assert bill(COMMAND) is None
    assert bill(COMMAND) is None
    again = await arrivals(path)
    assert calls == ["1"]
    assert sorted(message.topic for message in first) == ["audit", "bills", "bills"]
    bills = [message for message in first if message.topic == "bills"]
    assert [message.id for message in again] == [message.id for message in bills] * 2
    assert [message.payload for message in again] == [message.payload for message in bills] * 2
    assert len({message.dedupe_id for message in (*bills, *again)}) == 6, "no broker drops them for their ids"


async def test_an_async_handler_replies_too(async_engine: AsyncEngine, path: Path) -> None:
    inbox, outbox = Inbox(), Outbox()

    @inbox.once(consumer="billing", session=async_sessionmaker(async_engine), replies=outbox)
    async def bill(received: Received, session: AsyncSession) -> Message:
        return Message(topic="bills")

    assert isinstance(await bill(COMMAND), Message)
    assert await bill(COMMAND) is None
    arrived = await arrivals(path)
    assert [(message.id == arrived[0].id, message.replays) for message in arrived] == [(True, 0), (True, 1)]


async def test_a_handler_that_replies_nothing_sends_nothing(engine: Engine, path: Path) -> None:
    inbox, outbox = Inbox(), Outbox()
    outbox.create_tables(engine)

    @inbox.once(consumer="billing", session=sessionmaker(engine), replies=outbox)
    def bill(received: Received, session: Session) -> None:
        return None

    bill(COMMAND)
    bill(COMMAND)
    assert await arrivals(path) == []


@pytest.mark.parametrize("result", ["a text", {"a": 1}, [Message(topic="t"), "text"], 7])
async def test_what_is_no_message_is_refused_and_nothing_is_done(engine: Engine, result: Any) -> None:
    inbox, outbox = Inbox(), Outbox()

    @inbox.once(consumer="billing", session=sessionmaker(engine), replies=outbox)
    def bill(received: Received, session: Session) -> Any:
        return result

    for _ in range(2):
        with pytest.raises(InvalidMessage, match=r"bill\(\) returned .* return a postroom\.Message"):
            bill(COMMAND)


@pytest.mark.parametrize(
    ("options", "problem"), [({"delay": "1s"}, "delay"), ({"idempotency_key": "a"}, "idempotency")]
)
def test_a_reply_goes_at_once_and_needs_no_idempotency_key(engine: Engine, options: Any, problem: str) -> None:
    inbox, outbox = Inbox(), Outbox()

    @inbox.once(consumer="billing", session=sessionmaker(engine), replies=outbox)
    def bill(received: Received, session: Session) -> Message:
        return Message(topic="t", **options)

    with pytest.raises(InvalidMessage, match=problem):
        bill(COMMAND)


def test_a_reply_is_not_to_be_added(engine: Engine) -> None:
    inbox, outbox = Inbox(), Outbox()

    @inbox.once(consumer="billing", session=sessionmaker(engine), replies=outbox)
    def bill(received: Received, session: Session) -> Message:
        return outbox.add(session, "bills")

    with pytest.raises(InvalidMessage, match="do not add it"):
        bill(COMMAND)


def test_replies_are_messages_and_go_to_an_outbox(engine: Engine) -> None:
    inbox, outbox, text = Inbox(), Outbox(), cast(Any, "text")
    with pytest.raises(ConfigurationError, match="'text' is no Outbox"):
        inbox.once(consumer="billing", session=sessionmaker(engine), replies=text)(lambda received, session: None)
    with engine.begin() as connection:
        inbox.first_time(connection, "1")
        with pytest.raises(InvalidMessage, match=r"is a str; give postroom\.Message objects"):
            inbox.reply(connection, "1", [text], outbox=outbox)
        with pytest.raises(InvalidMessage, match=r"is a str; give postroom\.Message objects"):
            outbox.resend(connection, [text])


async def test_what_was_sent_is_not_asked_for_again(engine: Engine, path: Path) -> None:
    """Neither its headers nor its size: it passed once, and a duplicate that fails would come for ever."""
    hook = {"trace": "1"}
    inbox, outbox = Inbox(), Outbox(headers=lambda: hook)

    @inbox.once(consumer="billing", session=sessionmaker(engine), replies=outbox)
    def bill(received: Received, session: Session) -> Message:
        return Message(topic="bills", payload=b"x" * 100)

    bill(COMMAND)
    hook["trace"], hook["tenant"] = "2", cast(Any, 7)
    outbox.limit_payloads({"*": 10})
    bill(COMMAND)
    assert [dict(message.headers) for message in await arrivals(path)] == [{"trace": "1"}] * 2


async def test_a_reply_that_has_expired_is_not_sent_again(engine: Engine, path: Path) -> None:
    clock = FakeClock()
    inbox, outbox = Inbox(clock=clock), Outbox()

    @inbox.once(consumer="billing", session=sessionmaker(engine), replies=outbox)
    def bill(received: Received, session: Session) -> list[Message]:
        return [Message(topic="brief", expires_at=datetime(2100, 1, 1, tzinfo=UTC)), Message(topic="bills")]

    bill(COMMAND)
    clock.advance(100 * 365 * 86_400)
    bill(COMMAND)
    assert [message.topic for message in await arrivals(path)] == ["brief", "bills", "bills"]


async def test_a_tombstone_is_one_again(engine: Engine, path: Path) -> None:
    outbox = Outbox()
    with engine.begin() as connection:
        message = outbox.add(connection, "t", TOMBSTONE, key="k")
        outbox.resend(connection, message)
    arrived = await arrivals(path)
    with engine.begin() as connection:
        outbox.resend(connection, arrived)
    arrived += await arrivals(path)
    assert [NOTHING_HEADER in message.headers for message in arrived] == [True] * 4


def test_strict_streams_cannot_be_replied_to_nor_with(engine: Engine) -> None:
    def handle(received: Received, session: Session) -> None:
        return None

    make_session = sessionmaker(engine)
    with pytest.raises(ConfigurationError, match="exclude each other"):
        Inbox().once(consumer="billing", session=make_session, replies=Outbox(), strict=True)(handle)
    with pytest.raises(ConfigurationError, match="order='key' for replies"):
        Inbox().once(consumer="billing", session=make_session, replies=Outbox(order="strict"))(handle)
    with engine.begin() as connection, pytest.raises(ConfigurationError, match="new number"):
        Outbox(order="strict").resend(connection, [Message(topic="t")])


async def test_copies_are_not_sent_again(engine: Engine, path: Path) -> None:
    outbox = Outbox(fan_out={"bills": ["audit.{topic}"]})
    with engine.begin() as connection:
        (message,) = outbox.add_many(connection, [Message(topic="bills")])
        outbox.resend(connection, [message])
    assert [(message.topic, message.replays) for message in await arrivals(path)] == [
        ("bills", 0), ("audit.bills", 0), ("bills", 1)
    ]  # fmt: skip
