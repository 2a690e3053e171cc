"""Two tiny loops that run a procedure, and the SQL for drivers that are used without SQLAlchemy."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.schema import ExecutableDDLElement
from sqlalchemy.sql.compiler import SQLCompiler

from .procedure import Procedure, Rows, Step, Values

T = TypeVar("T")

MOST_ROWS = 250
LONGEST = 1_000_000
"""Bytes of one statement, roughly. MySQL takes at least 4 MiB, however it is set up."""


def drive(procedure: Procedure[T], run: Callable[[Step], Rows], sleep: Callable[[float], object] = time.sleep) -> T:
    """Run each step, and return the result. An error is shown to the procedure first, which may know what to do."""
    try:
        step = next(procedure)
        while True:
            try:
                rows = _as_text(run(step)) if isinstance(step, Step) else _rest(sleep(step.seconds))
            except Exception as error:
                step = procedure.throw(error)
            else:
                step = procedure.send(rows)
    except StopIteration as end:
        return end.value


async def drive_async(procedure: Procedure[T], run: Callable[[Step], Awaitable[Rows]]) -> T:
    """The same, for coroutines."""
    try:
        step = next(procedure)
        while True:
            try:
                rows = _as_text(await run(step)) if isinstance(step, Step) else _rest(await asyncio.sleep(step.seconds))
            except Exception as error:
                step = procedure.throw(error)
            else:
                step = procedure.send(rows)
    except StopIteration as end:
        return end.value


def _as_text(found: Rows) -> Rows:
    """A connection may be set up to give bytes, as may a database without an encoding (PostgreSQL's SQL_ASCII); what a
    procedure asks for is text and numbers."""
    return [tuple(value.decode() if isinstance(value, bytes) else value for value in row) for row in found]


def _rest(over: object) -> Rows:
    return ()


class Sql(NamedTuple):
    """A statement as a driver takes it, with positional parameters."""

    text: str
    order: tuple[str, ...]
    converters: Mapping[str, Callable[[Any], Any]]

    def arguments(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        convert = self.converters
        return tuple(convert[name](values[name]) if name in convert else values[name] for name in self.order)


def executions(step: Step, dialect: Dialect) -> Iterator[tuple[str, tuple[Any, ...] | None]]:
    """Texts and arguments for `cursor.execute` that do the step with few of them: several rows go into one INSERT.

    For drivers with `%s` whose own `executemany` sends row by row, or is slow.
    """
    sql = sql_of(step, dialect)
    if len(step.parameters) < 2:
        yield sql.text, sql.arguments(step.parameters[0]) if step.parameters else None
        return
    before, row, after = _around_row(sql.text)
    width = row.count("%s")
    for piece in _pieces(sql, step.parameters):
        values = [value for arguments in piece for value in arguments[:width]]
        yield before + ", ".join([row] * len(piece)) + after, (*values, *piece[-1][width:])


@lru_cache(maxsize=512)
def _around_row(text: str) -> tuple[str, str, str]:
    """What comes before the row of VALUES, the row in its parentheses, and what comes after it."""
    start = text.index(" VALUES (") + len(" VALUES ")
    depth, end = 1, start + 1
    while depth:
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        end += 1
    return text[:start], text[start:end], text[end:]


def _pieces(sql: Sql, parameters: Sequence[Values]) -> Iterator[list[tuple[Any, ...]]]:
    piece: list[tuple[Any, ...]] = []
    length = 0
    for arguments in map(sql.arguments, parameters):
        size = sum(len(value) for value in arguments if isinstance(value, str | bytes))
        if piece and (len(piece) == MOST_ROWS or length + size > LONGEST):
            yield piece
            piece, length = [], 0
        piece.append(arguments)
        length += size
    yield piece


def sql_of(step: Step, dialect: Dialect) -> Sql:
    if isinstance(step.statement, ExecutableDDLElement):
        return Sql(str(step.statement.compile(dialect=dialect)), (), {})
    names = tuple(step.parameters[0]) if step.parameters else ()
    return _compile(step.statement, names, dialect)


@lru_cache(maxsize=512)
def _compile(statement: Any, names: tuple[str, ...], dialect: Dialect) -> Sql:
    """Statements hash by identity: each outbox and inbox has its own, and keeps them."""
    compiled: SQLCompiler = statement.compile(dialect=dialect, column_keys=list(names))
    processors = {
        name: parameter.type.dialect_impl(dialect).bind_processor(dialect) for name, parameter in compiled.binds.items()
    }
    converters = {name: processor for name, processor in processors.items() if processor is not None}
    return Sql(str(compiled), tuple(compiled.positiontup or ()), converters)
