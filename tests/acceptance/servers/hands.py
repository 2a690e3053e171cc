"""Transactions that a test has in hand: it locks an aggregate, adds a message, and says when to commit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any, Self

from sqlalchemy import select
from sqlalchemy.orm import Session

from postroom import Message, Outbox
from tests.acceptance.servers.database import TOPIC, Aggregate, Database


class Hand(ABC):
    """One connection or session, closed at the end; what it has not committed by then is rolled back."""

    carrier: Any

    def __init__(self, database: Database, outbox: Outbox) -> None:
        self._outbox = outbox

    @abstractmethod
    def lock(self, key: str) -> int:
        """Lock the aggregate, wait for whoever has it, and return its new version: 1, 2, 3… in order of commits."""

    def add(self, key: str | None, version: int = 0) -> Message:
        return self._outbox.add(self.carrier, TOPIC, {"version": version}, key=key)

    def lock_and_add(self, key: str) -> Message:
        return self.add(key, self.lock(key))

    def commit(self) -> None:
        self.carrier.commit()

    def rollback(self) -> None:
        self.carrier.rollback()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.carrier.close()


class ConnectionHand(Hand):
    """psycopg or PyMySQL: a row is inserted by `add`."""

    def __init__(self, database: Database, outbox: Outbox) -> None:
        super().__init__(database, outbox)
        self.carrier = database.connect()

    def lock(self, key: str) -> int:
        with self.carrier.cursor() as cursor:
            cursor.execute("SELECT version FROM aggregates WHERE name = %s FOR UPDATE", [key])
            version = cursor.fetchone()[0] + 1
            cursor.execute("UPDATE aggregates SET version = %s WHERE name = %s", [version, key])
        return version

    @property
    def session(self) -> int:
        """What the server calls it."""
        is_psycopg = hasattr(self.carrier, "info")
        return self.carrier.info.backend_pid if is_psycopg else self.carrier.thread_id()

    def run(self, statement: str) -> None:
        with self.carrier.cursor() as cursor:
            cursor.execute(statement)


class SessionHand(Hand):
    """A SQLAlchemy session: rows are inserted right before commit."""

    def __init__(self, database: Database, outbox: Outbox) -> None:
        super().__init__(database, outbox)
        self.carrier = Session(database.engine)

    def lock(self, key: str) -> int:
        chosen = select(Aggregate).where(Aggregate.name == key).with_for_update()
        aggregate = self.carrier.scalars(chosen, execution_options={"populate_existing": True}).one()
        aggregate.version += 1
        return aggregate.version


KINDS = {"connection": ConnectionHand, "session": SessionHand}
