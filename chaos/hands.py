"""Two ways to write in a transaction: an ORM session, and a driver's connection."""

from __future__ import annotations

import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import make_url, text, update
from sqlalchemy.orm import Session

from postroom import Message, Outbox

from .ledger import COLUMNS, Truth, engine_for

PLACEHOLDER = re.compile(r":(\w+)")


class TakenBack(Exception):
    """This part of a transaction, or all of it, shall not have happened."""


class Hand(ABC):
    kind: str
    writes_at_once: bool
    """Whether a message is in the database as soon as it is added, or at the commit."""

    @abstractmethod
    def number(self, key: str, count: int) -> int:
        """Lock a key until the end of the transaction, and count that many messages; the number of the last one."""

    @abstractmethod
    def add(self, outbox: Outbox, messages: list[Message]) -> None: ...

    @abstractmethod
    def note(self, truths: list[Truth]) -> None:
        """Write down, in the ledger, what was added."""

    @abstractmethod
    def savepoint(self) -> Any:
        """A block that may be taken back alone."""

    @abstractmethod
    def stamp(self, ids: list[str], at: float) -> None:
        """Note when these are committed, as far as they are still there."""

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def rollback(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class SessionHand(Hand):
    kind = "session"
    writes_at_once = False

    def __init__(self, url: str) -> None:
        self._engine = engine_for(url)
        self._session = Session(self._engine)

    def number(self, key: str, count: int) -> int:
        values = {"key": key, "count": count}
        self._session.execute(text("UPDATE chaos_keys SET number = number + :count WHERE name = :key"), values)
        return self._session.scalar(text("SELECT number FROM chaos_keys WHERE name = :key"), values)

    def add(self, outbox: Outbox, messages: list[Message]) -> None:
        for message in messages:
            outbox.add(self._session, message)

    def note(self, truths: list[Truth]) -> None:
        self._session.add_all(truths)

    def savepoint(self) -> Any:
        return self._session.begin_nested()

    def stamp(self, ids: list[str], at: float) -> None:
        self._session.flush()
        self._session.execute(update(Truth).where(Truth.id.in_(ids)).values(at=at))

    def commit(self) -> None:
        self._session.commit()

    def rollback(self) -> None:
        self._session.rollback()

    def close(self) -> None:
        self._session.close()
        self._engine.dispose()


class DriverHand(Hand):
    kind = "driver"
    writes_at_once = True

    def __init__(self, url: str) -> None:
        self._connection, self._is_named = connect(url)
        self._is_open = False

    def number(self, key: str, count: int) -> int:
        values = {"key": key, "count": count}
        self._run("UPDATE chaos_keys SET number = number + :count WHERE name = :key", values)
        return self._run("SELECT number FROM chaos_keys WHERE name = :key", values).fetchone()[0]

    def add(self, outbox: Outbox, messages: list[Message]) -> None:
        self._begin()
        outbox.add_many(self._connection, messages)

    def note(self, truths: list[Truth]) -> None:
        names = ", ".join(COLUMNS)
        values = ", ".join(f":{name}" for name in COLUMNS)
        for truth in truths:
            row = {name: getattr(truth, name) for name in COLUMNS}
            self._run(f"INSERT INTO chaos_truth ({names}) VALUES ({values})", row)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        self._run("SAVEPOINT part")
        try:
            yield
        except TakenBack:
            self._run("ROLLBACK TO SAVEPOINT part")
            raise
        self._run("RELEASE SAVEPOINT part")

    def stamp(self, ids: list[str], at: float) -> None:
        for id in ids:
            self._run("UPDATE chaos_truth SET at = :at WHERE id = :id", {"at": at, "id": id})

    def commit(self) -> None:
        self._connection.commit()
        self._is_open = False

    def rollback(self) -> None:
        self._connection.rollback()
        self._is_open = False

    def close(self) -> None:
        self._connection.close()

    def _begin(self) -> None:
        if not self._is_open and not self._is_named:
            self._connection.execute("BEGIN IMMEDIATE")
        self._is_open = True

    def _run(self, statement: str, values: dict[str, Any] | None = None) -> Any:
        self._begin()
        cursor = self._connection.cursor()
        cursor.execute(PLACEHOLDER.sub(r"%(\1)s", statement) if self._is_named else statement, values or {})
        return cursor


def connect(address: str) -> tuple[Any, bool]:
    """A connection of a driver, and whether it has Python's placeholders."""
    url = make_url(address)
    match url.get_backend_name():
        case "postgresql":
            import psycopg

            return psycopg.connect(url.set(drivername="postgresql").render_as_string(hide_password=False)), True
        case "mysql":
            import pymysql

            there = {"host": url.host, "port": url.port, "user": url.username, "database": url.database}
            return pymysql.connect(**there, connect_timeout=5, read_timeout=60), True
        case _:
            return sqlite3.connect(str(url.database), timeout=20, isolation_level=None), False
