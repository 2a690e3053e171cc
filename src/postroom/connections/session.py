"""SQLAlchemy's ORM sessions: messages are collected and written right before commit, after the session's own flush.

By then the session holds the locks of what it changed, so positions follow the order of commits for everybody who locks
the aggregate. One insert serves the whole transaction, and `AsyncSession` needs no await.

A message belongs to the savepoint it was added in: it is gone when that is rolled back, and goes to the enclosing
transaction when that is released. What a hook adds to the session while it commits, after the messages were written, is
written at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session, SessionTransaction

from ..errors import ConfigurationError, NoTransactionError, StoreError
from . import sqlalchemy as on_connection
from .commits import COLLECTOR, collector_of, is_last_to_hear
from .procedure import Clerk
from .writer import Row, Writer

What = TypeVar("What")
T = TypeVar("T")

_MOST_FLUSHES = 100


def write(session: Any, writer: Writer, rows: Sequence[Row]) -> None:
    session = _unwrap(session)
    bind = _bind_for(session, writer)
    on_connection.refuse_autocommit(bind)
    writer.check_early(bind.engine, bind.dialect.name, bind.dialect.is_async)
    _begin(session)
    _add(session, writer, rows)


async def write_async(session: Any, writer: Writer, rows: Sequence[Row]) -> None:
    write(session, writer, rows)


def run(session: Any, clerk: Clerk[What, T], what: What, sleep: Callable[[float], object] = time.sleep) -> T:
    """At once, through the session's own connection, so within the savepoint that it is in."""
    session = _unwrap(session)
    bind = _bind_for(session, clerk)
    on_connection.refuse_autocommit(bind)
    _begin(session)
    connection = session.connection(bind_arguments={"bind": bind})
    return on_connection.run(connection, clerk, what, sleep)


async def run_async(session: Any, clerk: Clerk[What, T], what: What) -> T:
    session = session.registry() if hasattr(session, "registry") else session
    return await session.run_sync(run, clerk, what, on_connection.sleep_async)


@dataclass(slots=True, eq=False)
class _Batch:
    """What one call added, and the savepoint or transaction it belongs to."""

    level: SessionTransaction
    writer: Writer
    rows: Sequence[Row]


class _Collector:
    """The messages that one session has yet to write. It lives as long as the session, and is handed it each time:
    sessions are many, and one in a cycle would stay until the next garbage collection."""

    def __init__(self, session: Session) -> None:
        self._batches: list[_Batch] = []
        self._released: SessionTransaction | None = None
        self._rung: dict[Writer, None] = {}
        self._writing = False
        self._written = False
        self._failure: BaseException | None = None
        self._listens = False
        self._listen(session)

    def _listen(self, session: Session) -> None:
        """By ourselves, if others have hooks that come after the one for all sessions."""
        if not self._listens and not is_last_to_hear(session):
            self._listens = True
            event.listen(session, "before_commit", self._write_all)

    def before_commit(self, session: Session) -> None:
        if not self._listens:
            self._write_all(session)

    def add(self, session: Session, writer: Writer, rows: Sequence[Row]) -> None:
        if self._written and _is_committing(session.get_transaction()):
            self._write(session, writer, rows)
        else:
            # If written before: that commit failed, and the transaction goes on until the next one.
            self._written = False
            level = _level(session)
            if not _is_any_committing(level):
                self._listen(session)
            self._batches.append(_Batch(level, writer, rows))

    def _write_all(self, session: Session) -> None:
        """Fired for the commit of the transaction, and for the release of each savepoint."""
        if self._writing or not _is_committing(session.get_transaction()):
            return
        if self._failure is not None:
            cause = getattr(self._failure, "orig", self._failure)
            raise StoreError(
                f"the messages of this session could not be written ({cause}); roll it back first"
            ) from self._failure
        self._writing = True
        try:
            # The outermost transaction may be committed by itself, over open savepoints; SQLAlchemy would release them
            # after this event. Now, nothing that is written here can be undone without the rest.
            while (savepoint := session.get_nested_transaction()) is not None:
                savepoint.commit()
            _flush(session)
            self._write_batches(session)
        finally:
            self._writing = False

    def _write_batches(self, session: Session) -> None:
        batches, self._batches = self._batches, []
        self._written = True
        rows_of: dict[Writer, list[Row]] = {}
        for batch in batches:
            rows_of.setdefault(batch.writer, []).extend(batch.rows)
        for writer, rows in rows_of.items():
            self._write(session, writer, rows)

    def _write(self, session: Session, writer: Writer, rows: Sequence[Row]) -> None:
        try:
            _write_now(session, writer, rows)
        except BaseException as error:
            # Cancelled or failed: half of it may have been written, and its numbers taken.
            self._failure = error
            raise
        self._rung[writer] = None

    def after_commit(self, session: Session) -> None:
        savepoint = session.get_nested_transaction()
        if savepoint is not None:
            self._released = savepoint
            return
        for writer in self._rung:
            writer.committed()
        if self._batches:
            raise StoreError(
                f"{sum(len(batch.rows) for batch in self._batches)} messages came too late for the commit of their "
                "session and were not written; please report how that was possible"
            )

    def after_transaction_end(self, session: Session, transaction: SessionTransaction) -> None:
        """The only event that every end comes by: commit, rollback, close, and what an outer rollback takes along."""
        if transaction.nested and transaction is self._released:
            self._released = None
            for batch in self._batches:
                if batch.level is transaction:
                    batch.level = _level(session)
        elif transaction.nested:
            self._batches = [batch for batch in self._batches if batch.level is not transaction]
        elif transaction.parent is None:
            self._batches, self._rung = [], {}
            self._written, self._failure = False, None


def _add(session: Session, writer: Writer, rows: Sequence[Row]) -> None:
    collector: _Collector | None = collector_of(session)
    level = _level(session)
    if not level.is_active:
        # Prepared, committed, or failed and waiting for rollback: SQLAlchemy says which.
        _write_now(session, writer, rows)
    elif collector is not None:
        collector.add(session, writer, rows)
    elif _is_any_committing(level):
        # The first message of this session comes from a hook, too late to listen for this commit.
        _write_now(session, writer, rows)
    else:
        collector = _Collector(session)
        setattr(session, COLLECTOR, collector)
        collector.add(session, writer, rows)


def _write_now(session: Session, writer: Writer, rows: Sequence[Row]) -> None:
    connection = session.connection(bind_arguments={"bind": _bind_for(session, writer)})
    on_connection.run(connection, writer, rows)


def _flush(session: Session) -> None:
    """As commit does it: hooks may leave something to flush."""
    for _ in range(_MOST_FLUSHES):
        session.flush()
        if not (session.new or session.dirty or session.deleted):
            return


def _begin(session: Session) -> None:
    """So that a rollback of the session, even if nothing else was done in it, is one for the message too."""
    if session.in_transaction():
        return
    if not session.autobegin:
        raise NoTransactionError("this session begins no transaction by itself (autobegin=False): call begin() first")
    session.begin()


def _level(session: Session) -> SessionTransaction:
    """The innermost savepoint or the transaction; a flush has one of its own, which is not meant."""
    level = session.get_nested_transaction() or session.get_transaction()
    assert level is not None, "a transaction was begun"  # noqa: S101
    return level


def _is_committing(transaction: SessionTransaction | None) -> bool:
    """Whether `commit` or `prepare` of this very transaction is running.

    `before_commit` does not say whose commit it is, and the state is still "active" then; the method in progress is the
    only sign, and has no public name.
    """
    return getattr(transaction, "_current_fn", None) is not None


def _is_any_committing(level: SessionTransaction | None) -> bool:
    """An outer savepoint can be released over inner ones, and then fires its event before theirs."""
    while level is not None:
        if _is_committing(level):
            return True
        level = level.parent
    return False


def _bind_for(session: Session, clerk: Clerk[Any, Any]) -> Engine | Connection:
    if clerk.bind is None:
        return _bind_of(session, clerk)
    # The session may be bound to a connection of that very engine, as in tests that roll back: then that is meant.
    bound = session.bind
    return bound if bound is not None and bound.engine.pool is clerk.bind.pool else clerk.bind


def _bind_of(session: Session, clerk: Clerk[Any, Any]) -> Engine | Connection:
    try:
        return session.get_bind()
    except UnboundExecutionError as error:
        raise ConfigurationError(
            f"this session has no bind of its own, so where the tables of {clerk.kind} {clerk.name!r} are is unknown; "
            f"say it with {clerk.kind.capitalize()}(bind=engine)"
        ) from error


def _unwrap(session: Any) -> Session:
    """Both kinds of `scoped_session` have a `registry`; an `AsyncSession` has the session that does its work."""
    if hasattr(session, "registry"):
        session = session.registry()
    return getattr(session, "sync_session", session)
