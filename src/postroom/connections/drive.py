"""Two tiny loops that run a procedure, and the SQL for those who execute it themselves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.schema import ExecutableDDLElement
from sqlalchemy.sql.compiler import SQLCompiler

from .writer import Procedure, Rows, Step


def drive(procedure: Procedure, run: Callable[[Step], Rows]) -> None:
    """Run each step. An error is shown to the procedure first, which may know what to do about it."""
    try:
        step = next(procedure)
        while True:
            try:
                rows = run(step)
            except Exception as error:
                step = procedure.throw(error)
            else:
                step = procedure.send(rows)
    except StopIteration:
        return


async def drive_async(procedure: Procedure, run: Callable[[Step], Awaitable[Rows]]) -> None:
    """The same, for coroutines."""
    try:
        step = next(procedure)
        while True:
            try:
                rows = await run(step)
            except Exception as error:
                step = procedure.throw(error)
            else:
                step = procedure.send(rows)
    except StopIteration:
        return


class Sql(NamedTuple):
    """A statement as a driver takes it, with positional parameters."""

    text: str
    order: tuple[str, ...]
    converters: Mapping[str, Callable[[Any], Any]]

    def arguments(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        convert = self.converters
        return tuple(convert[name](values[name]) if name in convert else values[name] for name in self.order)


def sql_of(step: Step, dialect: Dialect) -> Sql:
    if isinstance(step.statement, ExecutableDDLElement):
        return Sql(str(step.statement.compile(dialect=dialect)), (), {})
    names = tuple(step.parameters[0]) if step.parameters else ()
    return _compile(step.statement, names, dialect)


@lru_cache(maxsize=512)
def _compile(statement: Any, names: tuple[str, ...], dialect: Dialect) -> Sql:
    """Statements hash by identity: each outbox has its own, and keeps them."""
    compiled: SQLCompiler = statement.compile(dialect=dialect, column_keys=list(names))
    processors = {
        name: parameter.type.dialect_impl(dialect).bind_processor(dialect) for name, parameter in compiled.binds.items()
    }
    converters = {name: processor for name, processor in processors.items() if processor is not None}
    return Sql(str(compiled), tuple(compiled.positiontup or ()), converters)
