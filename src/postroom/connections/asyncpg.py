"""`asyncpg.Connection`, and what a pool's `acquire` gives."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from sqlalchemy.dialects.postgresql.asyncpg import dialect

from ..errors import NoTransactionError
from .drive import drive_async, sql_of
from .writer import Row, Rows, Step, Writer

DIALECT = dialect()


async def write_async(connection: Any, writer: Writer, rows: Sequence[Row]) -> None:
    if not connection.is_in_transaction():
        raise NoTransactionError(
            "this asyncpg connection is in no transaction: the message would be committed apart from your data; call "
            "`add_async` within `async with connection.transaction()`"
        )
    # A pool wraps its connection anew each time, and there is no public way to it.
    itself = getattr(connection, "_con", connection)
    await drive_async(writer.procedure(rows, DIALECT.name, itself), partial(_run, connection))


async def create_async(connection: Any, writer: Writer) -> None:
    await drive_async(writer.creation(DIALECT.name), partial(_run, connection))


async def _run(connection: Any, step: Step) -> Rows:
    sql = sql_of(step, DIALECT)
    if len(step.parameters) > 1:
        await connection.executemany(sql.text, list(map(sql.arguments, step.parameters)))
        return ()
    arguments = sql.arguments(step.parameters[0]) if step.parameters else ()
    if not step.returns:
        await connection.execute(sql.text, *arguments)
        return ()
    return [tuple(row) for row in await connection.fetch(sql.text, *arguments)]
