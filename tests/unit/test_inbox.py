"""Inboxes: what they refuse, their tables, sessions, a memory store. What holds on every connection is in
tests/contract."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import aiosqlite
import pytest
from sqlalchemy import Engine, MetaData, create_engine, inspect, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from postroom import (
    ConfigurationError,
    Inbox,
    InvalidMessage,
    NoTransactionError,
    Outbox,
    Received,
    StoreError,
    UnsupportedConnection,
)
from postroom.stores.memory import MemoryStore
from postroom.testing.inbox_contract import numbered

MESSAGE = Received(id="1", topic="orders", key="a", payload=b"{}")


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
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


# --- what is refused


@pytest.mark.parametrize(
    ("id", "words"),
    [
        ("", "message_id '' is empty"),
        (None, "message_id None is a NoneType, not a text"),
        (5, "is a int, not a text"),
        (b"1", r"is a bytes, not a text; use message_id\.decode\(\)"),
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
            connection.execute("BEGIN")
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
