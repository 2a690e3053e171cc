"""Inboxes: what they refuse, their tables, and handlers that run once. What holds on every connection is in
tests/contract."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import aiosqlite
import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, Table, create_engine, func, insert, inspect, select
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from postroom import (
    ConfigurationError,
    Inbox,
    InvalidMessage,
    NoTransactionError,
    Outbox,
    Received,
    SequenceGap,
    StoreError,
    UnsupportedConnection,
)
from postroom.stores.memory import MemoryStore
from postroom.testing.inbox_contract import numbered

MESSAGE = Received(id="1", topic="orders", key="a", payload=b"{}")
EFFECTS = Table("effects", MetaData(), Column("id", Integer, primary_key=True))


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as connection:
        yield connection


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path}/app.db")
    EFFECTS.metadata.create_all(engine)
    Base.metadata.create_all(engine)
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


# --- what is refused


@pytest.mark.parametrize(
    ("id", "words"),
    [
        ("", "message_id '' is empty"),
        (None, "message_id None is a NoneType, not a text"),
        (5, "is a int, not a text"),
        (b"1", "is a bytes"),
        ("x" * 256, "has 256 characters; shorten it to at most 255"),
        ("a\x00b", "NUL"),
        ("\ud800", "half a character"),
        (MESSAGE, "is a whole message; give its id"),
    ],
)
def test_an_id_that_cannot_be_one_is_refused(connection: sqlite3.Connection, id: Any, words: str) -> None:
    with pytest.raises(InvalidMessage, match=words):
        Inbox().first_time(connection, id)
    with pytest.raises(InvalidMessage, match="consumer"):
        Inbox().first_time(connection, "1", consumer=id)
    assert not connection.in_transaction


def test_ids_are_texts_or_uuids(connection: sqlite3.Connection) -> None:
    inbox = Inbox()
    assert inbox.first_time(connection, UUID(int=1))
    assert not inbox.first_time(connection, "00000000-0000-0000-0000-000000000001")
    assert inbox.first_time(connection, "x" * 255)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (Received(id="1", topic="orders", key="a"), r"has no sequence number.*order='strict'; use first_time"),
        (Received(id="1", topic="orders", sequence=1), "has no key"),
        (Received(id="1", key="a", sequence=1), r"topic of message 1 is unknown.*topic="),
    ],
)
def test_a_message_without_a_place_in_a_strict_stream_is_refused(
    connection: sqlite3.Connection, message: Received, words: str
) -> None:
    with pytest.raises(InvalidMessage, match=words):
        Inbox().in_turn(connection, message)


def test_settings_that_cannot_work_are_refused(connection: sqlite3.Connection) -> None:
    with pytest.raises(ConfigurationError, match="window"):
        Inbox(window=0)
    with pytest.raises(ConfigurationError, match="window"):
        Inbox(window="soon")
    with pytest.raises(ConfigurationError, match="prefix"):
        Inbox(prefix="no prefix")
    with pytest.raises(ConfigurationError, match="bind"):
        Inbox(bind=5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigurationError, match="on_gap='skip'"):
        Inbox().in_turn(connection, MESSAGE, on_gap="skip")  # pyright: ignore[reportArgumentType]
    for limit in (0, -1, True, "5", 1.5):
        with pytest.raises(ConfigurationError, match="limit"):
            Inbox().clean(connection, limit=limit)  # pyright: ignore[reportArgumentType]


async def test_each_colour_names_the_other(connection: sqlite3.Connection) -> None:
    inbox = Inbox()
    for verb in ("first_time", "in_turn", "clean", "status"):
        arguments = () if verb in ("clean", "status") else (Received(id="1", topic="t", key="k", sequence=1),)
        arguments = ("1",) if verb == "first_time" else arguments
        with pytest.raises(UnsupportedConnection, match=rf"is synchronous: use `inbox.{verb}\("):
            await getattr(inbox, f"{verb}_async")(connection, *arguments)
        async with aiosqlite.connect(":memory:") as other:
            with pytest.raises(UnsupportedConnection, match=rf"use `await inbox.{verb}_async\("):
                getattr(inbox, verb)(other, *arguments)
    with pytest.raises(UnsupportedConnection, match=r"use `inbox.create_tables\("):
        await inbox.create_tables_async(connection)
    with pytest.raises(UnsupportedConnection, match=r"object is no connection.*inbox.first_time_async"):
        inbox.first_time(object(), "1")


def test_an_engine_is_answered_with_how_to_begin(engine: Engine) -> None:
    with pytest.raises(UnsupportedConnection, match=r"inbox.first_time.*engine.begin"):
        Inbox().first_time(engine, "1")


# --- tables


def test_the_tables_are_named_like_an_outboxs() -> None:
    assert [table.name for table in Inbox().tables.all()] == ["postroom_inbox", "postroom_inbox_marks"]
    assert Inbox("billing").tables.inbox.name == "postroom_billing_inbox"
    assert Inbox(prefix="mine_", schema="s").tables.marks.fullname == "s.mine_inbox_marks"


def test_the_tables_may_be_in_the_applications_metadata(engine: Engine) -> None:
    metadata = MetaData()
    Outbox(metadata=metadata)
    inbox = Inbox(metadata=metadata, create_tables=False)
    with pytest.raises(ConfigurationError, match="already"):
        Inbox(metadata=metadata)
    metadata.create_all(engine)
    with engine.begin() as connection:
        assert inbox.first_time(connection, "1")


def test_tables_are_created_through_an_engine_and_again(engine: Engine) -> None:
    inbox = Inbox(create_tables=False)
    inbox.create_tables(engine)
    inbox.create_tables(engine)
    assert {"postroom_inbox", "postroom_inbox_marks"} <= set(inspect(engine).get_table_names())
    assert "postroom_outbox" not in inspect(engine).get_table_names()


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql", "mysql", "mariadb"])
def test_the_sql_of_the_tables_can_be_had(dialect: str) -> None:
    sql = Inbox().ddl(dialect)
    assert sql.count("CREATE TABLE IF NOT EXISTS") == 2
    assert "postroom_inbox_by_time" in sql
    with pytest.raises(ConfigurationError, match="oracle"):
        Inbox().ddl("oracle")


def test_the_sql_of_the_tables_runs(connection: sqlite3.Connection) -> None:
    connection.executescript(Inbox().ddl())
    assert Inbox(create_tables=False).first_time(connection, "1")


# --- sessions


def test_a_session_is_asked_at_once_and_within_its_savepoints(engine: Engine) -> None:
    inbox, outbox = Inbox(), Outbox()
    with Session(engine) as session:
        session.add(Order(id=1))
        assert inbox.first_time(session, "1")
        outbox.add(session, "replies")
        assert not inbox.first_time(session, "1")
        session.rollback()
        assert inbox.first_time(session, "1")
        session.commit()
    with Session(engine) as session:
        assert not inbox.first_time(session, "1")
        assert session.scalars(select(Order)).all() == []


def test_a_session_with_several_databases_needs_to_be_told_which(engine: Engine) -> None:
    with Session(binds={Order: engine}) as session:
        with pytest.raises(ConfigurationError, match=r"inbox 'default'.*Inbox\(bind=engine\)"):
            Inbox().first_time(session, "1")
        assert Inbox(bind=engine).first_time(session, "1")
        session.commit()
    with engine.begin() as connection:
        assert not Inbox().first_time(connection, "1")


def test_a_session_that_autocommits_is_refused(engine: Engine) -> None:
    with Session(engine.execution_options(isolation_level="AUTOCOMMIT")) as session:
        with pytest.raises(NoTransactionError):
            Inbox().first_time(session, "1")
        assert not session.in_transaction()


# --- a memory store


def test_transactions_of_a_memory_store_that_overlap_do_not_both_commit() -> None:
    inbox, store, outbox = Inbox(), MemoryStore(), Outbox()

    def overlap(ask: Callable[[Any], bool]) -> None:
        with store.begin() as first:
            assert ask(first)
            outbox.add(first, "replies", b"twice")
            with store.begin() as second:
                assert ask(second)
                outbox.add(second, "replies", b"once")

    with pytest.raises(StoreError, match=r"another transaction has handled '1'.*try again"):
        overlap(lambda transaction: inbox.first_time(transaction, "1"))
    for sequence in (1, 2):
        message = Received(id="1", topic="t", key="k", sequence=sequence)
        with pytest.raises(StoreError):
            overlap(lambda transaction, message=message: inbox.in_turn(transaction, message))
    assert [row.message.payload for row in store.tables.hot.rows.values()] == [b"once"] * 3


def test_a_transaction_of_a_memory_store_that_is_over_is_refused() -> None:
    with MemoryStore().begin() as transaction:
        pass
    with pytest.raises(NoTransactionError, match="too late"):
        Inbox().first_time(transaction, "1")


# --- SQLite has one writer at a time


@pytest.mark.parametrize("verb", ["first_time", "in_turn", "clean"])
def test_on_sqlite_nothing_is_read_before_it_is_the_callers_turn_to_write(tmp_path: Path, verb: str) -> None:
    """Whoever has read before another one commits can wait as long as he likes: he may not write."""
    inbox, begun, answers = Inbox(), threading.Event(), list[object]()
    arguments = {"first_time": ["2"], "in_turn": [numbered(2)], "clean": []}[verb]

    def ask() -> None:
        with closing(sqlite3.connect(tmp_path / "app.db", timeout=60)) as connection, connection:
            connection.set_trace_callback(lambda sql: begun.set() if sql.startswith(("INSERT", "UPDATE")) else None)
            answers.append(getattr(inbox, verb)(connection, *arguments))

    with closing(sqlite3.connect(tmp_path / "app.db")) as first:
        first.execute("PRAGMA journal_mode = WAL")
        inbox.create_tables(first)
        with first:
            assert inbox.first_time(first, "1")
            assert inbox.in_turn(first, numbered(1))
            second = threading.Thread(target=ask)
            second.start()
            assert begun.wait(60)
    second.join()
    assert answers == [0 if verb == "clean" else True]


# --- once


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
    with pytest.raises(SequenceGap):
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
