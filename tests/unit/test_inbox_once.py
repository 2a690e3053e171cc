"""Handlers that run once for each message, in a transaction of their own."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, Table, create_engine, func, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from postroom import ConfigurationError, Inbox, InvalidMessage, Outbox, Received, SequenceGap
from postroom.stores.memory import MemoryStore

MESSAGE = Received(id="1", topic="orders", key="a", payload=b"{}")
EFFECTS = Table("effects", MetaData(), Column("id", Integer, primary_key=True))


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path}/app.db")
    EFFECTS.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
async def async_engine(engine: Engine, tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    other = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/app.db")
    yield other
    await other.dispose()


def effects(engine: Engine) -> int:
    with engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(EFFECTS)).scalar_one()


def test_a_handler_runs_once_and_its_result_is_returned(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    inbox = Inbox()

    @inbox.once(consumer="billing", session=sessionmaker(engine))
    def handle(received: Received, session: Session) -> str:
        """Bills."""
        session.execute(insert(EFFECTS))
        return f"handled {received.id}"

    assert (handle.__name__, handle.__doc__) == ("handle", "Bills.")
    assert handle(MESSAGE) == "handled 1"
    with caplog.at_level(logging.DEBUG, "postroom.inbox"):
        assert handle(MESSAGE) is None
    assert "nothing to do for message 1" in caplog.text
    assert handle(Received(id="2")) == "handled 2"
    assert effects(engine) == 2
    with engine.begin() as connection:
        assert not inbox.first_time(connection, "1", consumer="billing")
        assert inbox.first_time(connection, "1", consumer="mail")


def test_a_handler_that_raises_leaves_nothing_and_may_try_again(engine: Engine) -> None:
    inbox, outbox, fails = Inbox(), Outbox(), [True]

    @inbox.once(consumer="billing", session=sessionmaker(engine))
    def handle(received: Received, session: Session) -> None:
        session.execute(insert(EFFECTS))
        outbox.add(session, "replies", b"")
        if fails.pop():
            raise LookupError("no such order")

    with pytest.raises(LookupError):
        handle(MESSAGE)
    assert effects(engine) == 0
    fails.append(False)
    handle(MESSAGE)
    handle(MESSAGE)
    assert effects(engine) == 1
    with engine.connect() as connection:
        assert connection.execute(select(func.count()).select_from(outbox.tables.hot)).scalar_one() == 1


async def test_an_async_handler_runs_once(async_engine: AsyncEngine, engine: Engine) -> None:
    inbox, fails = Inbox(), [False, True]

    @inbox.once(consumer="billing", session=async_sessionmaker(async_engine))
    async def handle(received: Received, session: Any) -> str:
        await session.execute(insert(EFFECTS))
        if fails.pop():
            raise LookupError
        return "handled"

    with pytest.raises(LookupError):
        await handle(MESSAGE)
    assert effects(engine) == 0
    assert [await handle(MESSAGE), await handle(MESSAGE)] == ["handled", None]
    assert effects(engine) == 1


def test_a_handler_may_have_any_kind_of_session(engine: Engine, tmp_path: Path) -> None:
    class Mine(Session):
        pass

    def insert_with(session: Any) -> None:
        session.execute(
            "INSERT INTO effects DEFAULT VALUES" if isinstance(session, sqlite3.Connection) else insert(EFFECTS)
        )

    sessions: list[Any] = [
        sessionmaker(engine),
        sessionmaker(engine).begin,
        sessionmaker(engine, class_=Mine),
        scoped_session(sessionmaker(engine)),
        engine.connect,
        engine.begin,
        lambda: sqlite3.connect(tmp_path / "app.db"),
        lambda: closing(sqlite3.connect(tmp_path / "app.db")),
    ]
    for number, session in enumerate(sessions):
        handle = Inbox().once(consumer=f"consumer {number}", session=session)(
            lambda received, session: insert_with(session)
        )
        handle(MESSAGE)
        handle(MESSAGE)
        assert effects(engine) == number + 1


async def test_an_async_handler_may_have_any_kind_of_session(
    async_engine: AsyncEngine, engine: Engine, tmp_path: Path
) -> None:
    sessions: list[Any] = [
        async_sessionmaker(async_engine),
        async_sessionmaker(async_engine).begin,
        async_engine.connect,
        async_engine.begin,
        lambda: aiosqlite.connect(tmp_path / "app.db"),
    ]
    for number, session in enumerate(sessions):

        @Inbox().once(consumer=f"consumer {number}", session=session)
        async def handle(received: Received, session: Any) -> None:
            plain = isinstance(session, aiosqlite.Connection)
            await session.execute("INSERT INTO effects DEFAULT VALUES" if plain else insert(EFFECTS))

        await handle(MESSAGE)
        await handle(MESSAGE)
        assert effects(engine) == number + 1


def test_whatever_the_session_a_handler_that_raises_leaves_nothing(engine: Engine, tmp_path: Path) -> None:
    sessions: list[Any] = [
        sessionmaker(engine),
        sessionmaker(engine).begin,
        engine.connect,
        engine.begin,
        lambda: sqlite3.connect(tmp_path / "app.db"),
        lambda: closing(sqlite3.connect(tmp_path / "app.db")),
    ]
    inbox = Inbox()
    inbox.create_tables(engine)
    for session in sessions:

        @inbox.once(consumer="billing", session=session)
        def handle(received: Received, session: Any) -> None:
            raise LookupError

        with pytest.raises(LookupError):
            handle(MESSAGE)
    with engine.begin() as connection:
        assert inbox.first_time(connection, "1", consumer="billing")


async def test_whatever_the_async_session_too(async_engine: AsyncEngine, engine: Engine, tmp_path: Path) -> None:
    @asynccontextmanager
    async def committed() -> AsyncIterator[aiosqlite.Connection]:
        async with aiosqlite.connect(tmp_path / "app.db") as connection:
            try:
                yield connection
            finally:
                await connection.commit()

    inbox = Inbox()
    inbox.create_tables(engine)
    for session in (async_sessionmaker(async_engine), async_engine.connect, async_engine.begin, committed):

        @inbox.once(consumer="billing", session=session)
        async def handle(received: Received, session: Any) -> None:
            raise LookupError

        with pytest.raises(LookupError):
            await handle(MESSAGE)
    with engine.begin() as connection:
        assert inbox.first_time(connection, "1", consumer="billing")


def test_a_handler_may_be_tested_with_a_memory_store() -> None:
    store, handled = MemoryStore(), list[str]()

    @Inbox().once(consumer="billing", session=store.begin)
    def handle(received: Received, transaction: Any) -> None:
        Outbox().add(transaction, "replies", b"")
        handled.append(received.id)

    handle(MESSAGE)
    handle(MESSAGE)
    assert (handled, len(store.tables.hot.rows)) == (["1"], 1)


def test_a_strict_handler_is_called_in_turn(engine: Engine) -> None:
    handled: list[int | None] = []

    @Inbox().once(consumer="billing", session=sessionmaker(engine), strict=True)
    def handle(received: Received, session: Session) -> None:
        handled.append(received.sequence)

    def send(sequence: int, **facts: Any) -> None:
        handle(Received(id=f"{sequence}", topic="orders", key="a", sequence=sequence, generation=1, **facts))

    send(1)
    send(1)
    with pytest.raises(SequenceGap, match=r"accept the gap with inbox\.in_turn\(…, on_gap='accept'\)"):
        send(3)
    send(2, is_tombstone=True)
    send(3)
    assert handled == [1, 3]


def test_a_tombstone_is_remembered_and_not_handled(engine: Engine) -> None:
    handled: list[str] = []

    @Inbox().once(consumer="billing", session=sessionmaker(engine))
    def handle(received: Received, session: Session) -> None:
        handled.append(received.id)

    handle(Received(id="1", is_tombstone=True))
    handle(Received(id="1"))
    assert handled == []


def nothing() -> None: ...
def one(received: Received) -> None: ...
def three(received: Received, session: Any, more: Any) -> None: ...
def keyword(received: Received, session: Any, *, more: Any) -> None: ...
def generator(received: Received, session: Any) -> Iterator[None]:
    yield


async def async_generator(received: Received, session: Any) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize("handler", [nothing, one, three, keyword, generator, async_generator, "handler", None])
def test_a_function_that_cannot_be_a_handler_is_refused_when_it_is_made_one(engine: Engine, handler: Any) -> None:
    with pytest.raises(ConfigurationError):
        Inbox().once(consumer="billing", session=sessionmaker(engine))(handler)


def test_handlers_may_be_methods_and_objects_and_have_more_arguments(engine: Engine) -> None:
    class Handler:
        def method(self, received: Received, session: Any, more: int = 5) -> int:
            return more

        async def __call__(self, received: Received, session: Any) -> None: ...

    once = Inbox().once(consumer="billing", session=sessionmaker(engine))
    assert once(Handler().method)(MESSAGE) == 5
    assert once(Handler())(MESSAGE).close() is None


def test_what_is_no_consumer_or_session_is_refused(engine: Engine) -> None:
    with pytest.raises(InvalidMessage, match="consumer"):
        Inbox().once(consumer="", session=sessionmaker(engine))
    with pytest.raises(ConfigurationError, match="sessionmaker"):
        Inbox().once(consumer="billing", session=engine)(keyword)  # pyright: ignore[reportArgumentType]


async def test_a_handler_and_its_session_have_one_colour(engine: Engine, async_engine: AsyncEngine) -> None:
    async def slow(received: Received, session: Any) -> None: ...

    def quick(received: Received, session: Any) -> None: ...

    with pytest.raises(ConfigurationError, match=r"slow\(\).*async_sessionmaker"):
        await Inbox().once(consumer="billing", session=sessionmaker(engine))(slow)(MESSAGE)
    with pytest.raises(ConfigurationError, match=r"quick\(\)"):
        Inbox().once(consumer="billing", session=async_sessionmaker(async_engine))(quick)(MESSAGE)


def test_a_coroutine_of_a_plain_function_is_an_error_and_no_success(engine: Engine) -> None:
    async def later() -> None: ...

    inbox = Inbox()
    handle = inbox.once(consumer="billing", session=sessionmaker(engine))(lambda received, session: later())
    with pytest.raises(ConfigurationError, match="async def"):
        handle(MESSAGE)
    with engine.begin() as connection:
        assert inbox.first_time(connection, "1", consumer="billing")


def test_a_handler_takes_what_was_received_and_nothing_else(engine: Engine) -> None:
    handle = Inbox().once(consumer="billing", session=sessionmaker(engine))(lambda received, session: None)
    with pytest.raises(InvalidMessage, match=r"postroom.received"):
        handle(b"{}")  # pyright: ignore[reportArgumentType]


def test_whoever_makes_the_session_may_begin_the_transaction(engine: Engine) -> None:
    ended: list[str] = []

    @contextmanager
    def session() -> Iterator[Session]:
        with Session(engine) as made:
            made.begin()
            yield made
            made.commit()
            ended.append("committed")

    handle = Inbox().once(consumer="billing", session=session)(
        lambda received, session: session.execute(insert(EFFECTS))
    )
    handle(MESSAGE)
    handle(MESSAGE)
    assert (effects(engine), ended) == (1, ["committed", "committed"])


async def test_an_async_one_too(async_engine: AsyncEngine, engine: Engine) -> None:
    @asynccontextmanager
    async def session() -> AsyncIterator[Any]:
        async with async_engine.begin() as made:
            yield made

    @Inbox().once(consumer="billing", session=session)
    async def handle(received: Received, session: Any) -> None:
        await session.execute(insert(EFFECTS))

    await handle(MESSAGE)
    await handle(MESSAGE)
    assert effects(engine) == 1
