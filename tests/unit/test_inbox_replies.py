"""Handlers whose replies are sent again when their message comes again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from postroom import ConfigurationError, Inbox, InvalidMessage, Message, Outbox, Received, Relay

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
