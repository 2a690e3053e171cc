"""The statements of an inbox, built once per inbox and dialect."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Float,
    Integer,
    and_,
    bindparam,
    delete,
    false,
    func,
    literal_column,
    select,
    true,
    update,
)
from sqlalchemy.sql.base import Executable

from ..stores.inbox_schema import InboxTables
from ..stores.schema import Moment, db_now, seconds_from_now
from .dialects import Dialect
from .presence import is_older, regclass


class InboxStatements:
    """`clocked`: the time comes in by parameters (`now`, `until`), not from the database."""

    def __init__(self, tables: InboxTables, dialect: Dialect, clocked: bool) -> None:
        self._tables = tables
        self._until = bindparam("until", type_=Moment) if clocked else seconds_from_now(bindparam("age", type_=Float))
        self.tells_new = dialect.tells_new
        self.looks_first = dialect.looks_first
        self.takes_turns = dialect.takes_turns
        inbox, marks = tables.inbox, tables.marks
        remember = dialect.insert_missing(inbox)
        self.remember: Executable = remember.returning(inbox.c.token) if dialect.tells_new else remember
        is_message = _matches(inbox.c, "consumer", "message_id")
        self.token: Executable = select(inbox.c.token).where(is_message)
        self.sent: Executable = select(inbox.c.sent).where(is_message).with_for_update()  # as it is, not as it was
        self.note_sent: Executable = update(inbox).where(is_message).values(sent=bindparam("text"))
        self.make_mark: Executable = dialect.insert_missing(marks)
        is_mark = _matches(marks.c, "consumer", "topic", "key")
        self.mark: Executable = select(marks.c.generation, marks.c.sequence).where(is_mark).with_for_update()
        now: Any = bindparam("now", type_=Moment) if clocked else db_now()
        self.move: Executable = (
            update(marks)
            .where(is_mark)
            .values(generation=bindparam("new_generation"), sequence=bindparam("new_sequence"), updated_at=now)
        )
        # Neither reads what is there nor changes it: for databases in which a reader cannot become a writer.
        self.take_turn: Executable = update(inbox).values(token=inbox.c.token).where(false())
        self.old: Executable = (
            select(inbox.c.consumer, inbox.c.message_id)
            .where(inbox.c.received_at <= self._until)
            .order_by(inbox.c.received_at)
            .limit(bindparam("most", type_=Integer))
            .offset(literal_column("0"))  # SQLite's would be a parameter that nobody gives
        )
        self.forget: Callable[[int], Executable] = cache(self._forget)
        self.consumers: Executable = (
            select(inbox.c.consumer, func.count(), func.min(inbox.c.received_at), func.max(inbox.c.received_at))
            .group_by(inbox.c.consumer)
            .order_by(inbox.c.consumer)
        )
        self.marked: Executable = select(marks.c.consumer, func.count()).group_by(marks.c.consumer)

    @cached_property
    def look(self) -> Executable:
        """PostgreSQL: whether the tables are there, and whether this was so before this transaction. If it made them,
        they may vanish with it."""
        inbox = regclass(self._tables.inbox, self._tables.inbox.name)
        return select(inbox.is_not(None), func.coalesce(is_older(inbox), true()))

    def _forget(self, size: int) -> Executable:
        """By primary key. The time is asked again: somebody may have forgotten and remembered it meanwhile."""
        inbox = self._tables.inbox
        ids = [bindparam(f"id_{number}", type_=inbox.c.message_id.type) for number in range(size)]
        return delete(inbox).where(
            _matches(inbox.c, "consumer"), inbox.c.message_id.in_(ids), inbox.c.received_at <= self._until
        )


def _matches(columns: Any, *names: str) -> ColumnElement[bool]:
    """Parameters that are named like the columns would be taken for values to set."""
    return and_(*(columns[name] == bindparam(f"the_{name}", type_=columns[name].type) for name in names))
