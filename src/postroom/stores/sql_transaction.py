"""One transaction of an SQL store: its connection, tables and time, and what differs between databases."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, cast

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    CursorResult,
    Delete,
    Executable,
    Insert,
    Table,
    and_,
    bindparam,
    delete,
    insert,
    inspect,
    literal,
    select,
)

from ..clock import Clock
from ..ports import Finding
from .schema import MESSAGE_COLUMNS, Tables, db_now

LONGEST_ERROR = 2000
"""Characters of an error that are kept."""

Parameters = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None


class SqlDialect(ABC):
    """What differs between databases, asked in one place. The base says it in portable SQL where that can be said."""

    @property
    def driver_errors(self) -> tuple[type[Exception], ...]:
        """What may be raised past SQLAlchemy."""
        return ()

    def now(self, connection: Connection) -> datetime:
        return connection.scalars(select(db_now())).one()

    def among(self, column: ColumnElement[Any], values: Iterable[Any]) -> ColumnElement[bool]:
        """Whether the column has one of the values, however many there are."""
        return column.in_(list(values))

    def remove_at(self, transaction: Transaction, key: Column[int], numbers: Sequence[int]) -> int:
        """Delete the rows with these primary keys, without waiting for anybody who has others."""
        return transaction.remove(key.table, self.among(key, numbers))

    def lock_at(self, transaction: Transaction, key: Column[int], numbers: Sequence[int]) -> list[int]:
        """Lock the rows with these primary keys, without waiting for anybody who has others; those that are there."""
        chosen = select(key).where(self.among(key, numbers)).order_by(key)
        return list(transaction.run(chosen.with_for_update()).scalars())

    def begin_set_up(self, transaction: Transaction) -> None:
        """Wait until nobody else is creating tables, and keep others waiting until the transaction ends."""
        return

    def end_set_up(self, transaction: Transaction) -> None:
        """If the end of the transaction is not enough."""
        return

    def create(self, transaction: Transaction) -> None:
        """Create what is missing."""
        tables = transaction.tables
        tables.metadata.create_all(transaction.connection, tables=tables.all())

    def table_names(self, transaction: Transaction) -> set[str]:
        """Of the schema that our tables are in."""
        return set(inspect(transaction.connection).get_table_names(schema=transaction.tables.hot.schema))

    def is_complete(self, transaction: Transaction) -> bool:
        """Whether what there is beside the tables is there."""
        return True

    @abstractmethod
    def insert_missing(self, table: Table) -> Insert:
        """An insert that leaves rows alone whose primary key is there already."""

    def matches(self, column: ColumnElement[str], pattern: str) -> ColumnElement[bool]:
        """Whether the column matches the glob."""
        return column.regexp_match(regular_expression(pattern))

    def comparable(self, moment: ColumnElement[Any]) -> ColumnElement[Any]:
        """A time in the form in which equal ones are equal."""
        return moment

    def is_unavailable(self, error: BaseException) -> bool:
        """Whether trying again later may help."""
        return False

    def is_conflict(self, error: BaseException) -> bool:
        """Whether the same transaction may go through if it is tried again at once: it was chosen to end a deadlock, or
        came too late."""
        return False

    def is_table_missing(self, error: BaseException) -> bool:
        return False

    @property
    def checks(self) -> Mapping[str, Callable[[Transaction], Finding]]:
        """What a doctor looks at on this database besides the tables: the name of each finding, and how."""
        return {}


def regular_expression(pattern: str) -> str:
    """The glob as a regular expression that every database understands."""
    parts = re.findall(r"\[!?\]?[^\]]*\]|.", pattern, re.DOTALL)
    return f"^{''.join(_expression_of(part) for part in parts)}$"


def _expression_of(part: str) -> str:
    if part in "*?":
        return ".*" if part == "*" else "."
    if len(part) > 1:
        return "[^" + part[2:] if part.startswith("[!") else part
    return re.escape(part)


class Transaction:
    """What the functions that do a store's work get: everything they do with it is one transaction."""

    def __init__(self, connection: Connection, tables: Tables, dialect: SqlDialect, clock: Clock | None) -> None:
        self.connection = connection
        self.tables = tables
        self.dialect = dialect
        self._clock = clock

    @cached_property
    def now(self) -> datetime:
        """One time for the whole transaction: the database's, or that of the clock the store was given.

        Due times are computed from it here, so that every database adds up the same way.
        """
        return self._clock.now() if self._clock else self.dialect.now(self.connection)

    def after(self, seconds: float) -> datetime:
        try:
            return self.now + timedelta(seconds=seconds)
        except OverflowError:
            return datetime.max.replace(tzinfo=self.now.tzinfo)

    def seconds_until(self, moment: datetime) -> float:
        return (moment - self.now).total_seconds()

    def among(self, column: ColumnElement[Any], values: Iterable[Any]) -> ColumnElement[bool]:
        return self.dialect.among(column, values)

    def run(self, statement: Executable, parameters: Parameters = None) -> CursorResult[Any]:
        return self.connection.execute(statement, parameters)

    def rows(self, statement: Executable) -> Sequence[Any]:
        return self.run(statement).all()

    def has(self, table: Table, *conditions: ColumnElement[bool]) -> bool:
        return self.run(select(literal(1)).select_from(table).where(*conditions).limit(1)).first() is not None

    def changed(self, statement: Executable, parameters: Parameters = None) -> int:
        return self.run(statement, parameters).rowcount

    def remove(self, table: Table, *conditions: ColumnElement[bool]) -> int:
        statement: Delete = delete(table).where(*conditions)
        return self.changed(statement)

    def remove_at(self, key: Column[int], numbers: Sequence[int]) -> int:
        return self.dialect.remove_at(self, key, numbers)

    def lock_at(self, key: Column[int], numbers: Sequence[int]) -> list[int]:
        return self.dialect.lock_at(self, key, numbers)

    def copy(
        self,
        source: Table,
        target: Table,
        condition: ColumnElement[bool],
        given: Mapping[str, Any] | None = None,
        order: Sequence[ColumnElement[Any]] = (),
    ) -> None:
        """Insert rows of `source` into `target`, with the given values or expressions in place of their own."""
        self.run(_copy(source, target, condition, given or {}, order))

    def copy_each(
        self, source: Table, target: Table, each: Sequence[Mapping[str, Any]], given: Mapping[str, Any]
    ) -> None:
        """Row by row: each is found by its values `the_…` and gets its own values `new_…`, in the columns so named."""
        by = [name.removeprefix("the_") for name in each[0] if name.startswith("the_")]
        here = and_(*(source.c[name] == bindparam(f"the_{name}", type_=source.c[name].type) for name in by))
        own = [name.removeprefix("new_") for name in each[0] if name.startswith("new_")]
        values = {name: bindparam(f"new_{name}", type_=target.c[name].type) for name in own}
        self.run(_copy(source, target, here, {**given, **values}, ()), each)


def _copy(
    source: Table,
    target: Table,
    condition: ColumnElement[bool],
    given: Mapping[str, Any],
    order: Sequence[ColumnElement[Any]],
) -> Insert:
    values = {name: _expression(value, target.c[name]) for name, value in given.items()}
    values |= {name: source.c[name] for name in MESSAGE_COLUMNS if name not in given}
    chosen = select(*values.values()).where(condition).order_by(*order)
    return insert(target).from_select(list(values), chosen)


def _expression(value: Any, column: ColumnElement[Any]) -> ColumnElement[Any]:
    if isinstance(value, ColumnElement):
        return cast("ColumnElement[Any]", value)
    return literal(value, column.type)
