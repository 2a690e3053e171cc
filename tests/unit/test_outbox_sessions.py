"""ORM sessions: collected, and written right before commit, exactly once, whatever hooks and savepoints do."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, insert, select
from sqlalchemy.exc import IntegrityError, InvalidRequestError, PendingRollbackError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker
from sqlalchemy.pool import StaticPool

from postroom.errors import ConfigurationError, NoTransactionError, PostroomError, StoreError, UnsupportedConnection
from postroom.inbox import Inbox
from postroom.message import Message
from postroom.outbox import Outbox


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(default="")


def prepare(engine: Engine) -> Engine:
    """With SQLAlchemy's recipe for savepoints on SQLite."""
    event.listen(engine, "connect", lambda connection, record: setattr(connection, "isolation_level", None))
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    return engine


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = prepare(create_engine(f"sqlite:///{tmp_path}/app.db"))
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def outbox(engine: Engine) -> Outbox:
    outbox = Outbox()
    outbox.create_tables(engine)
    return outbox


def payloads(engine: Engine, outbox: Outbox) -> list[bytes]:
    with engine.connect() as connection:
        table = outbox.tables.hot
        return list(connection.scalars(select(table.c.payload).order_by(table.c.position)))


def statements_of(engine: Engine) -> list[str]:
    seen: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *args: seen.append(" ".join(args[2].split()[:3])))
    return seen


# --- when it is written


def test_messages_are_written_by_one_insert_after_the_sessions_own_flush(engine: Engine, outbox: Outbox) -> None:
    seen = statements_of(engine)
    with Session(engine) as session:
        outbox.add(session, "orders", b"1")
        session.add(Order(id=1))
        outbox.add(session, "orders", b"2")
        session.flush()
        session.add(Order(id=2))
        session.commit()
    assert seen == ["BEGIN", "INSERT INTO orders", "INSERT INTO orders", "INSERT INTO postroom_outbox"]
    assert payloads(engine, outbox) == [b"1", b"2"]


def test_what_is_known_only_at_commit_is_set_then(engine: Engine) -> None:
    outbox = Outbox(order="strict")
    with Session(engine) as session:
        given = Message(topic="orders", key="a", idempotency_key="x")
        first = outbox.add(session, given)
        second = outbox.add(session, "orders", key="a", idempotency_key="x")
        third = outbox.add(session, "orders", key="a")
        assert (first.duplicate, first.sequence) == (None, None)
        session.commit()
    assert [message.duplicate for message in (given, first, second, third)] == [False, False, True, None]
    assert [message.sequence for message in (given, first, second, third)] == [1, 1, None, 2]


def test_the_payload_is_serialised_at_add_not_at_commit(engine: Engine, outbox: Outbox) -> None:
    payload = {"id": 1}
    with Session(engine) as session:
        outbox.add(session, "orders", payload)
        payload["id"] = 2
        session.commit()
    assert payloads(engine, outbox) == [b'{"id":1}']


def test_a_session_that_only_adds_messages_commits_and_rolls_back_them(engine: Engine, outbox: Outbox) -> None:
    with Session(engine) as session:
        outbox.add(session, "orders", b"undone")
        session.rollback()
        session.commit()
        outbox.add(session, "orders", b"kept")
        session.commit()
        session.commit()
        outbox.add(session, "orders", b"never committed")
        session.close()
        session.commit()
        outbox.add(session, "orders", b"kept too")
        session.commit()
    assert payloads(engine, outbox) == [b"kept", b"kept too"]


def test_leaving_the_session_without_commit_leaves_nothing(engine: Engine, outbox: Outbox) -> None:
    with Session(engine) as session:
        outbox.add(session, "orders", b"never committed")
    with suppress(ZeroDivisionError), Session(engine) as session, session.begin():
        outbox.add(session, "orders", b"undone")
        raise ZeroDivisionError
    assert payloads(engine, outbox) == []


def test_sessionmaker_begin_works(engine: Engine, outbox: Outbox) -> None:
    with sessionmaker(engine).begin() as session:
        outbox.add_many(session, [Message(topic="orders", payload=b"1"), Message(topic="orders", payload=b"2")])
    assert payloads(engine, outbox) == [b"1", b"2"]


def test_tables_are_created_at_the_first_commit(engine: Engine) -> None:
    outbox = Outbox("fresh")
    with Session(engine) as session:
        session.add(Order(id=1))
        outbox.add(session, "orders", b"1", idempotency_key="a")
        session.commit()
    assert payloads(engine, outbox) == [b"1"]


# --- savepoints


def test_savepoints_of_several_levels(engine: Engine, outbox: Outbox) -> None:
    with Session(engine) as session, session.begin():
        outbox.add(session, "orders", b"1")
        with session.begin_nested():
            outbox.add(session, "orders", b"2")
            with session.begin_nested() as inner:
                outbox.add(session, "orders", b"undone")
                inner.rollback()
            with session.begin_nested():
                outbox.add(session, "orders", b"3")
        with session.begin_nested() as outer:
            with session.begin_nested():
                outbox.add(session, "orders", b"undone")
            outer.rollback()
        outbox.add(session, "orders", b"4")
    assert payloads(engine, outbox) == [b"1", b"2", b"3", b"4"]


def test_a_savepoint_left_open_is_committed_with_the_transaction(engine: Engine, outbox: Outbox) -> None:
    with Session(engine) as session, session.begin():
        outbox.add(session, "orders", b"1")
        session.begin_nested()
        outbox.add(session, "orders", b"2")
        session.begin_nested()
        outbox.add(session, "orders", b"3")
    with Session(engine) as session:
        session.begin_nested()
        outbox.add(session, "orders", b"4")
        session.commit()
    assert payloads(engine, outbox) == [b"1", b"2", b"3", b"4"]


def test_a_flush_that_fails_in_a_savepoint_takes_only_its_messages(engine: Engine, outbox: Outbox) -> None:
    with Session(engine) as session:
        session.add(Order(id=1))
        outbox.add(session, "orders", b"1")
        with suppress(IntegrityError), session.begin_nested():
            outbox.add(session, "orders", b"undone")
            session.execute(insert(Order).values(id=1))
        session.commit()
    assert payloads(engine, outbox) == [b"1"]


def test_after_a_failed_flush_the_session_must_be_rolled_back_first(engine: Engine, outbox: Outbox) -> None:
    with Session(engine) as session:
        outbox.add(session, "orders", b"undone")
        session.execute(insert(Order).values(id=1))
        session.add(Order(id=1))
        with pytest.raises(IntegrityError):
            session.flush()
        with pytest.raises(PendingRollbackError):
            outbox.add(session, "orders", b"too late")
        session.rollback()
        outbox.add(session, "orders", b"kept")
        session.commit()
    assert payloads(engine, outbox) == [b"kept"]


def test_a_session_in_a_transaction_of_its_caller_follows_that(engine: Engine, outbox: Outbox) -> None:
    """The recipe for tests that roll everything back: commit only releases a savepoint."""
    with engine.connect() as connection:
        transaction = connection.begin()
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            outbox.add(session, "orders", b"1")
            session.commit()
            outbox.add(session, "orders", b"undone")
            session.rollback()
            outbox.add(session, "orders", b"2")
            with session.begin_nested():
                outbox.add(session, "orders", b"3")
            session.commit()
        found = connection.scalars(select(outbox.tables.hot.c.payload).order_by(outbox.tables.hot.c.position)).all()
        assert found == [b"1", b"2", b"3"]
        transaction.rollback()
    assert payloads(engine, outbox) == []


@pytest.mark.parametrize("options", [{}, {"schema_translate_map": {"elsewhere": None}}])
def test_a_session_on_a_connection_without_a_transaction_commits_by_itself(
    engine: Engine, outbox: Outbox, options: dict[str, Any]
) -> None:
    with engine.connect().execution_options(**options) as connection:
        session = Session(connection)
        outbox.add(session, "orders", b"1")
        session.add(Order(id=1))
        session.commit()
        assert not connection.in_transaction()
    with engine.connect() as connection:
        session = Session(connection)
        assert Inbox().first_time(session, "1")
        session.add(Order(id=2))
        session.commit()
    with Session(engine) as session:
        assert session.scalars(select(Order.id)).all() == [1, 2]
        assert not Inbox().first_time(session, "1")
    assert payloads(engine, outbox) == [b"1"]


def test_a_bound_outbox_uses_the_connection_that_the_session_has_of_that_engine(engine: Engine) -> None:
    outbox = Outbox(bind=engine)
    outbox.create_tables(engine)
    with engine.connect() as connection:
        transaction = connection.begin()
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            outbox.add(session, "orders", b"1")
            session.commit()
        assert connection.scalars(select(outbox.tables.hot.c.payload)).all() == [b"1"]
        transaction.rollback()
    with Session(engine.execution_options(some_option=1)) as session:
        session.add(Order(id=1))
        outbox.add(session, "orders", b"2")
        session.commit()
    assert payloads(engine, outbox) == [b"2"]


# --- hooks of the application


@pytest.mark.parametrize("registered", ["before ours", "after ours", "on the class"])
@pytest.mark.parametrize("known", [True, False], ids=["after a message", "as the first message"])
def test_a_message_added_by_a_commit_hook_is_not_lost(
    engine: Engine, outbox: Outbox, registered: str, known: bool
) -> None:
    class Mine(Session):
        pass

    def hook(session: Session) -> None:
        outbox.add(session, "orders", b"hook")

    with Mine(engine) as session:
        if registered != "after ours":
            event.listen(Mine if registered == "on the class" else session, "before_commit", hook)
        if known:
            outbox.add(session, "orders", b"1")
        if registered == "after ours":
            event.listen(session, "before_commit", hook)
        session.commit()
    assert payloads(engine, outbox) == ([b"1"] if known else []) + [b"hook"]


@pytest.mark.parametrize("registered", ["on the session", "on the class"])
def test_messages_are_written_after_the_hooks_that_were_there_before(
    engine: Engine, outbox: Outbox, registered: str
) -> None:
    """A hook may take locks: positions must follow them."""

    class Mine(Session):
        pass

    found: list[Any] = []
    with Mine(engine) as session:
        hook = lambda session: found.append(session.scalars(select(outbox.tables.hot.c.payload)).all())  # noqa: E731
        event.listen(Mine if registered == "on the class" else session, "before_commit", hook)
        outbox.add(session, "orders", b"1")
        session.commit()
    assert found == [[]]
    assert payloads(engine, outbox) == [b"1"]


@pytest.mark.parametrize("added", [0, 1], ids=["used before", "has a message already"])
def test_so_are_they_after_a_hook_for_all_sessions_that_came_when_a_session_was_in_use(
    engine: Engine, outbox: Outbox, added: int
) -> None:
    class Mine(Session):
        pass

    found: list[Any] = []
    with Mine(engine) as session:
        outbox.add(session, "orders", b"1")
        if not added:
            session.commit()
        event.listen(
            Mine, "before_commit", lambda session: found.append(len(session.scalars(select(outbox.tables.hot)).all()))
        )
        outbox.add(session, "orders", b"2")
        session.commit()
    assert found == [1 - added]
    assert payloads(engine, outbox) == [b"1", b"2"]


FIRST_OF_ALL = """
import sys
from sqlalchemy import create_engine, event, func, select
from sqlalchemy.orm import Session
from postroom import Outbox

outbox, engine = Outbox(), create_engine(sys.argv[1])
event.listen(Session, "before_commit", lambda session: outbox.add(session, "orders", b"hook"))
with Session(engine) as session:
    session.commit()
with engine.connect() as connection:
    assert connection.scalar(select(func.count()).select_from(outbox.tables.hot)) == 1
"""


def test_the_very_first_message_of_a_process_may_come_from_a_hook_of_all_sessions(tmp_path: Path) -> None:
    """A process of its own: whatever is set up at the first message was set up by other tests here."""
    url = f"sqlite:///{tmp_path}/app.db"
    done = subprocess.run([sys.executable, "-c", FIRST_OF_ALL, url], stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("when", ["before_flush", "after_flush", "after_flush_postexec"])
@pytest.mark.parametrize("known", [True, False], ids=["after a message", "as the first message"])
def test_a_message_added_by_a_flush_hook_is_not_lost(engine: Engine, outbox: Outbox, when: str, known: bool) -> None:
    with Session(engine) as session:
        if known:
            outbox.add(session, "orders", b"1")
        event.listen(session, when, lambda session, *args: outbox.add(session, "orders", b"hook"))
        session.add(Order(id=1))
        session.commit()
    assert payloads(engine, outbox) == ([b"1"] if known else []) + [b"hook"]


def test_a_message_added_by_a_mapper_event_is_not_lost(engine: Engine, outbox: Outbox) -> None:
    def inserted(mapper: Any, connection: Any, order: Order) -> None:
        outbox.add(Session.object_session(order), "orders", f"{order.name}".encode())

    event.listen(Order, "after_insert", inserted)
    try:
        with Session(engine) as session:
            session.add(Order(id=1, name="first"))
            session.flush()
            session.add(Order(id=2, name="second"))
            session.commit()
    finally:
        event.remove(Order, "after_insert", inserted)
    assert payloads(engine, outbox) == [b"first", b"second"]


def test_what_a_late_hook_changes_and_adds_is_not_lost(engine: Engine, outbox: Outbox) -> None:
    """A hook behind ours leaves the session dirty; the flush that follows fires hooks that add again."""
    with Session(engine) as session:
        outbox.add(session, "orders", b"1")
        event.listen(session, "before_commit", lambda session: session.add(Order(name="late")), once=True)
        event.listen(session, "before_flush", lambda session, *args: outbox.add(session, "orders", b"hook"))
        session.commit()
    assert payloads(engine, outbox) == [b"1", b"hook"]


def test_a_hook_at_the_release_of_a_savepoint_adds_to_it(engine: Engine, outbox: Outbox) -> None:
    with Session(engine) as session, session.begin():
        outbox.add(session, "orders", b"1")
        with session.begin_nested() as savepoint:
            event.listen(session, "before_commit", lambda session: outbox.add(session, "orders", b"hook"), once=True)
            outbox.add(session, "orders", b"2")
            savepoint.commit()
        outbox.add(session, "orders", b"3")
    assert payloads(engine, outbox) == [b"1", b"2", b"hook", b"3"]


def test_a_message_added_after_commit_is_refused_while_the_session_is_closing(engine: Engine, outbox: Outbox) -> None:
    errors: list[Exception] = []

    def hook(session: Session) -> None:
        try:
            outbox.add(session, "orders", b"too late")
        except Exception as error:
            errors.append(error)

    for known in (True, False):
        with Session(engine) as session:
            event.listen(session, "after_commit", hook)
            if known:
                outbox.add(session, "orders", b"1")
            session.commit()
    assert [type(error) for error in errors] == [InvalidRequestError, InvalidRequestError]
    assert payloads(engine, outbox) == [b"1"]


def test_a_commit_that_a_hook_refuses_can_be_tried_again(engine: Engine, outbox: Outbox) -> None:
    def refuse(session: Session) -> None:
        raise ZeroDivisionError

    with Session(engine) as session:
        outbox.add(session, "orders", b"1")
        event.listen(session, "before_commit", refuse)
        with pytest.raises(ZeroDivisionError):
            session.commit()
        event.remove(session, "before_commit", refuse)
        outbox.add(session, "orders", b"2")
        with session.begin_nested() as savepoint:
            outbox.add(session, "orders", b"undone")
            savepoint.rollback()
        session.commit()
    assert payloads(engine, outbox) == [b"1", b"2"]


def test_a_commit_over_a_savepoint_that_a_hook_refuses_writes_nothing_into_that_savepoint(
    engine: Engine, outbox: Outbox
) -> None:
    def refuse(session: Session) -> None:
        raise ZeroDivisionError

    with Session(engine) as session:
        transaction = session.begin()
        outbox.add(session, "orders", b"1")
        savepoint = session.begin_nested()
        event.listen(session, "before_commit", refuse)
        with pytest.raises(ZeroDivisionError):
            transaction.commit()
        event.remove(session, "before_commit", refuse)
        savepoint.rollback()
        session.commit()
    assert payloads(engine, outbox) == [b"1"]


def test_the_first_message_may_come_from_a_hook_at_the_release_of_an_outer_savepoint(
    engine: Engine, outbox: Outbox
) -> None:
    with Session(engine) as session:
        event.listen(session, "before_commit", lambda session: outbox.add(session, "orders", b"hook"), once=True)
        outer = session.begin_nested()
        session.begin_nested()
        outer.commit()
        session.commit()
    assert payloads(engine, outbox) == [b"hook"]


def test_after_a_failed_write_the_session_must_be_rolled_back(engine: Engine, outbox: Outbox) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TRIGGER refuse BEFORE INSERT ON postroom_outbox WHEN new.topic = 'bad' "
            "BEGIN SELECT RAISE(FAIL, 'not this one'); END"
        )
    with Session(engine) as session:
        outbox.add(session, "good", b"undone")
        outbox.add(session, "bad", b"undone")
        with pytest.raises(IntegrityError, match="not this one"):
            session.commit()
        with pytest.raises(StoreError, match=r"not this one.*roll it back first"):
            session.commit()
        session.rollback()
        outbox.add(session, "good", b"kept")
        session.commit()
    assert payloads(engine, outbox) == [b"kept"]


def test_an_interrupted_write_is_a_failed_one(engine: Engine, outbox: Outbox) -> None:
    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    with Session(engine) as session:
        outbox.add(session, "orders", b"undone")
        event.listen(engine, "before_cursor_execute", interrupt)
        with pytest.raises(KeyboardInterrupt):
            session.commit()
        event.remove(engine, "before_cursor_execute", interrupt)
        with pytest.raises(StoreError, match="roll it back first"):
            session.commit()
        session.rollback()
        outbox.add(session, "orders", b"kept")
        session.commit()
    assert payloads(engine, outbox) == [b"kept"]


# --- several of everything


def test_several_sessions_and_outboxes_keep_apart(engine: Engine) -> None:
    first, second = Outbox("first"), Outbox("second")
    with Session(engine) as one, Session(engine) as other:
        first.add(one, "orders", b"one 1")
        second.add(other, "orders", b"other 2")
        second.add(one, "orders", b"one 2")
        first.add(other, "orders", b"other 1")
        one.commit()
        other.rollback()
        first.add(other, "orders", b"again 1")
        other.commit()
    assert payloads(engine, first) == [b"one 1", b"again 1"]
    assert payloads(engine, second) == [b"one 2"]


def test_the_info_of_a_session_is_the_applications(engine: Engine, outbox: Outbox) -> None:
    with Session(engine) as one:
        outbox.add(one, "orders", b"one")
        with Session(engine, info=one.info) as other:
            outbox.add(other, "orders", b"other")
            other.commit()
        assert payloads(engine, outbox) == [b"other"]
        one.info.clear()
        outbox.add(one, "orders", b"after clearing")
        one.commit()
        outbox.add(one, "orders", b"undone")
        one.info.clear()
        one.rollback()
        one.commit()
    assert payloads(engine, outbox) == [b"other", b"one", b"after clearing"]


def test_each_thread_has_its_own_scoped_session(engine: Engine, outbox: Outbox) -> None:
    sessions = scoped_session(sessionmaker(engine))
    barrier = threading.Barrier(4)
    lock = threading.Lock()

    def work(number: int) -> None:
        for turn in range(10):
            outbox.add(sessions, "orders", b"%d" % number)
            outbox.add(sessions, "orders", b"undone") if turn % 2 else None
            barrier.wait()
            with lock:
                sessions.rollback() if turn % 2 else sessions.commit()
        sessions.remove()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(payloads(engine, outbox)) == [b"%d" % number for number in range(4) for _ in range(5)]


def test_a_session_with_several_binds_needs_to_be_told(engine: Engine) -> None:
    other = create_engine("sqlite://", poolclass=StaticPool)
    with Session(binds={Order: engine}) as session:
        with pytest.raises(ConfigurationError, match=r"Outbox\(bind=engine\)"):
            Outbox().add(session, "orders", b"1")
        outbox = Outbox(bind=engine)
        session.add(Order(id=1))
        outbox.add(session, "orders", b"2")
        session.commit()
    assert payloads(engine, outbox) == [b"2"]
    with Session(other) as session:
        outbox.add(session, "orders", b"3")
        session.commit()
    assert payloads(engine, outbox) == [b"2", b"3"]
    other.dispose()


def test_sessions_that_are_dropped_are_forgotten(engine: Engine, outbox: Outbox) -> None:
    references: list[weakref.ref[Session]] = []
    for commit in (True, False):
        session = Session(engine)
        outbox.add(session, "orders", b"1")
        if commit:
            session.commit()
        references.append(weakref.ref(session))
        del session
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_a_session_used_many_times_listens_once(engine: Engine, outbox: Outbox) -> None:
    with Session(engine) as session:
        for _ in range(5):
            outbox.add(session, "orders", b"1")
            session.commit()
            session.close()
        assert len(list(session.dispatch.before_commit)) == 1
    assert len(payloads(engine, outbox)) == 5


# --- no transaction


def test_sessions_that_autocommit_are_refused(engine: Engine, outbox: Outbox) -> None:
    autocommitting = engine.execution_options(isolation_level="AUTOCOMMIT")
    with Session(autocommitting) as session, pytest.raises(NoTransactionError):
        outbox.add(session, "orders", b"1")
    with Session(engine) as session:
        session.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
        outbox.add(session, "orders", b"1")
        with pytest.raises(NoTransactionError):
            session.commit()
    with Session(engine, autobegin=False) as session:
        with pytest.raises(NoTransactionError, match="begin"):
            outbox.add(session, "orders", b"1")
        session.begin()
        outbox.add(session, "orders", b"kept")
        session.commit()
    assert payloads(engine, outbox) == [b"kept"]


async def test_add_async_on_a_sync_session_names_add(engine: Engine, outbox: Outbox) -> None:
    complaint = r"SQLAlchemy Session is synchronous: use `outbox.add\("
    with Session(engine) as session, pytest.raises(UnsupportedConnection, match=complaint):
        await outbox.add_async(session, "orders")


# --- the doorbell within one process


def test_listeners_hear_of_commits_that_wrote_something(engine: Engine, outbox: Outbox) -> None:
    heard: list[list[bytes]] = []
    other = Outbox("other")
    unsubscribe = outbox.on_commit(lambda: heard.append(payloads(engine, outbox)))
    with Session(engine) as session:
        session.add(Order(id=1))
        session.commit()
        other.add(session, "orders", b"elsewhere")
        session.commit()
        outbox.add(session, "orders", b"undone")
        session.rollback()
        assert heard == []
        with session.begin_nested():
            outbox.add(session, "orders", b"1")
        assert heard == []
        session.commit()
        assert heard == [[b"1"]]
        session.commit()
        assert heard == [[b"1"]]
        unsubscribe()
        unsubscribe()
        outbox.add(session, "orders", b"2")
        session.commit()
    assert heard == [[b"1"]]


def test_a_listener_that_raises_does_not_make_the_commit_fail(
    engine: Engine, outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[int] = []
    outbox.on_commit(lambda: 1 // 0)
    outbox.on_commit(lambda: heard.append(1))
    with Session(engine) as session:
        outbox.add(session, "orders", b"1")
        session.commit()
    assert heard == [1]
    assert "a listener of outbox 'default' failed" in caplog.text
    assert payloads(engine, outbox) == [b"1"]


# --- async sessions


@pytest.fixture
async def async_engine(engine: Engine) -> Any:
    async_engine = create_async_engine(f"sqlite+aiosqlite:///{engine.url.database}")
    prepare(async_engine.sync_engine)
    yield async_engine
    await async_engine.dispose()


async def test_an_async_session_needs_no_await(engine: Engine, async_engine: Any, outbox: Outbox) -> None:
    async with AsyncSession(async_engine) as session:
        session.add(Order(id=1))
        outbox.add(session, "orders", b"1")
        async with session.begin_nested() as savepoint:
            outbox.add(session, "orders", b"undone")
            await savepoint.rollback()
        await outbox.add_async(session, "orders", b"2")
        await outbox.add_many_async(session, [Message(topic="orders", payload=b"3")])
        await session.commit()
        outbox.add(session, "orders", b"undone")
        await session.rollback()
    assert payloads(engine, outbox) == [b"1", b"2", b"3"]


async def test_async_sessions_at_once_keep_apart(engine: Engine, async_engine: Any) -> None:
    outbox = Outbox(bind=async_engine)
    outbox.create_tables(engine)
    lock = asyncio.Lock()

    async def work(number: int) -> None:
        async with AsyncSession(async_engine) as session:
            outbox.add(session, "orders", b"%d" % number)
            await asyncio.sleep(0)
            async with lock:
                await (session.rollback() if number % 2 else session.commit())

    await asyncio.gather(*(work(number) for number in range(10)))
    assert sorted(payloads(engine, outbox)) == [b"0", b"2", b"4", b"6", b"8"]


async def test_an_async_session_on_a_connection_commits_by_itself(
    engine: Engine, async_engine: Any, outbox: Outbox
) -> None:
    async with async_engine.connect() as connection:
        session = AsyncSession(connection)
        outbox.add(session, "orders", b"1")
        session.add(Order(id=1))
        await session.commit()
        assert await Inbox().first_time_async(session, "1")
        await session.commit()
    with Session(engine) as again:
        assert again.scalars(select(Order.id)).all() == [1]
        assert not Inbox().first_time(again, "1")
    assert payloads(engine, outbox) == [b"1"]


async def test_hooks_of_async_sessions_may_add(engine: Engine, async_engine: Any, outbox: Outbox) -> None:
    async with AsyncSession(async_engine) as session:
        outbox.add(session, "orders", b"1")
        event.listen(session.sync_session, "before_commit", lambda _: outbox.add(session, "orders", b"late"))
        await session.commit()
    assert payloads(engine, outbox) == [b"1", b"late"]


async def test_a_failed_commit_of_an_async_session_can_be_followed_by_another(
    engine: Engine, async_engine: Any, outbox: Outbox
) -> None:
    def refuse(session: Session) -> None:
        raise ZeroDivisionError

    async with AsyncSession(async_engine) as session:
        outbox.add(session, "orders", b"1")
        event.listen(session.sync_session, "before_commit", refuse)
        with pytest.raises(ZeroDivisionError):
            await session.commit()
        event.remove(session.sync_session, "before_commit", refuse)
        outbox.add(session, "orders", b"2")
        await session.commit()
    assert payloads(engine, outbox) == [b"1", b"2"]


async def test_an_async_session_that_autocommits_is_refused(async_engine: Any, outbox: Outbox) -> None:
    async with AsyncSession(async_engine.execution_options(isolation_level="AUTOCOMMIT")) as session:
        with pytest.raises(PostroomError):
            outbox.add(session, "orders")
