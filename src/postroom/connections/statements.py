"""The statements of the write side, built once per outbox and dialect.

Their shape does not depend on the data, so that a driver may compile each of them once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Float, and_, bindparam, false, func, insert, or_, select, update
from sqlalchemy.sql.base import Executable

from ..stores.pending import select_sample
from ..stores.schema import Moment, Tables, db_now, seconds_from_now
from . import bell
from .dialects import Dialect

T = TypeVar("T")

_SIZES = (1, 16, 256)
"""Keys are looked up this many at a time, the last one repeated to fill up."""


class Statements:
    """`clocked`: the time comes in by parameters (`now`, `until`), not from the database."""

    def __init__(self, tables: Tables, dialect: Dialect, clocked: bool) -> None:
        self._tables = tables
        self.claim: Executable = _claim(tables, dialect, clocked)
        self.confirm: Executable = dialect.confirm(tables.dedupe)
        self.count: Executable = dialect.count(tables.counters)
        # `inline`: nobody asks for the position, so no dialect shall fetch it back.
        self.insert_hot: Executable = insert(tables.hot).inline()
        self.insert_later: Executable = insert(tables.later).inline().values(due_at=_due())
        self.holders: Callable[[int], Executable] = cache(self._holders)
        self.counters: Callable[[int], Executable] = cache(self._counters)

    @cached_property
    def sample(self) -> Executable:
        return select_sample(self._tables.meta)

    @cached_property
    def take_turn(self) -> Executable:
        """Changes nothing, and waits until it may."""
        meta = self._tables.meta
        return update(meta).values(value=meta.c.value).where(false())

    @cached_property
    def look(self) -> Executable:
        return bell.look(self._tables)

    @cached_property
    def insert_hot_and_ring(self) -> Executable:
        return insert(self._tables.hot).inline().values(slot=bell.ringing_slot(self._tables))

    def _holders(self, size: int) -> Executable:
        table = self._tables.dedupe
        keys = [bindparam(f"key_{number}", type_=table.c.key.type) for number in range(size)]
        return select(table.c.key, table.c.message_id).where(table.c.key.in_(keys))

    def _counters(self, size: int) -> Executable:
        table = self._tables.counters
        return select(table).where(or_(*(_is_counter(table.c, number) for number in range(size))))


def in_pieces(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Pieces of the sizes that there are statements for."""
    for start in range(0, len(items), _SIZES[-1]):
        piece = list(items[start : start + _SIZES[-1]])
        size = next(size for size in _SIZES if size >= len(piece))
        yield piece + piece[-1:] * (size - len(piece))


def _claim(tables: Tables, dialect: Dialect, clocked: bool) -> Executable:
    until = bindparam("until", type_=Moment) if clocked else seconds_from_now(bindparam("window", type_=Float))
    now: ColumnElement[Any] = bindparam("now", type_=Moment) if clocked else db_now()
    return dialect.claim(tables.dedupe, until, now)


def _due() -> ColumnElement[Any]:
    return func.coalesce(bindparam("moment", type_=Moment), seconds_from_now(bindparam("wait", type_=Float)))


def _is_counter(columns: Any, number: int) -> ColumnElement[bool]:
    return and_(columns.topic == bindparam(f"topic_{number}"), columns.key == bindparam(f"key_{number}"))
