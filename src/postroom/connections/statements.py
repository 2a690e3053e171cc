"""The statements of the write side, built once per outbox and dialect.

Their shape does not depend on the data, so that a driver may compile each of them once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Float, and_, bindparam, func, insert, or_, select, update
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateIndex, CreateTable, ExecutableDDLElement
from sqlalchemy.sql.base import Executable

from ..errors import UnsupportedConnection
from ..stores.schema import Moment, Tables, db_now, seconds_from_now

T = TypeVar("T")

_SIZES = (1, 16, 256)
"""Keys are looked up this many at a time, the last one repeated to fill up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """What the write side must know about a database."""

    insert: Callable[..., Any]
    """An INSERT with `on_conflict_do_update`."""
    creates_tables: bool
    """Tables may be created when a statement missed them: the transaction goes on, and DDL does not commit it."""
    lacks_table: Callable[[str], bool]
    """Whether an error's text says that a table is missing."""


DIALECTS = {
    "sqlite": Dialect(insert=sqlite.insert, creates_tables=True, lacks_table=lambda text: "no such table" in text),
}


def dialect_named(name: str) -> Dialect:
    if name not in DIALECTS:
        raise UnsupportedConnection(f"Postroom cannot write to {name!r} databases; known are: {', '.join(DIALECTS)}")
    return DIALECTS[name]


class Statements:
    """`clocked`: the time comes in by parameters (`now`, `until`), not from the database."""

    def __init__(self, tables: Tables, dialect: Dialect, clocked: bool) -> None:
        self._tables = tables
        self.claim: Executable = _claim(tables, dialect, clocked)
        self.confirm: Executable = _confirm(tables)
        self.count: Executable = _count(tables, dialect)
        # `inline`: nobody asks for the position, so no dialect shall fetch it back.
        self.insert_hot: Executable = insert(tables.hot).inline()
        self.insert_later: Executable = insert(tables.later).inline().values(due_at=_due())
        self.holders: Callable[[int], Executable] = cache(self._holders)
        self.counters: Callable[[int], Executable] = cache(self._counters)

    def _holders(self, size: int) -> Executable:
        table = self._tables.dedupe
        keys = [bindparam(f"key_{number}", type_=table.c.key.type) for number in range(size)]
        return select(table.c.key, table.c.message_id).where(table.c.key.in_(keys))

    def _counters(self, size: int) -> Executable:
        table = self._tables.counters
        return select(table).where(or_(*(_is_counter(table.c, number) for number in range(size))))


def creation(tables: Tables) -> Iterator[ExecutableDDLElement]:
    """What makes the tables, and changes nothing where they exist."""
    for table in tables.all():
        yield CreateTable(table, if_not_exists=True)
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            yield CreateIndex(index, if_not_exists=True)


def in_pieces(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Pieces of the sizes that there are statements for."""
    for start in range(0, len(items), _SIZES[-1]):
        piece = list(items[start : start + _SIZES[-1]])
        size = next(size for size in _SIZES if size >= len(piece))
        yield piece + piece[-1:] * (size - len(piece))


def _claim(tables: Tables, dialect: Dialect, clocked: bool) -> Executable:
    """Take an idempotency key that nobody holds, or whose holder's time is over."""
    table = tables.dedupe
    until = bindparam("until", type_=Moment) if clocked else seconds_from_now(bindparam("window", type_=Float))
    now: ColumnElement[Any] = bindparam("now", type_=Moment) if clocked else db_now()
    statement = dialect.insert(table).values(expires_at=until)
    new = statement.excluded
    return statement.on_conflict_do_update(
        index_elements=[table.c.key],
        set_={"message_id": new.message_id, "expires_at": new.expires_at},
        where=table.c.expires_at <= now,
    )


def _confirm(tables: Tables) -> Executable:
    table = tables.dedupe
    return update(table).where(table.c.key == bindparam("claimed")).values(message_id=bindparam("winner"))


def _count(tables: Tables, dialect: Dialect) -> Executable:
    """Move a counter on by `sequence`; a new one starts there, with a generation of its own."""
    table = tables.counters
    statement = dialect.insert(table)
    return statement.on_conflict_do_update(
        index_elements=[table.c.topic, table.c.key],
        set_={"sequence": table.c.sequence + statement.excluded.sequence},
    )


def _due() -> ColumnElement[Any]:
    return func.coalesce(bindparam("moment", type_=Moment), seconds_from_now(bindparam("wait", type_=Float)))


def _is_counter(columns: Any, number: int) -> ColumnElement[bool]:
    return and_(columns.topic == bindparam(f"topic_{number}"), columns.key == bindparam(f"key_{number}"))
