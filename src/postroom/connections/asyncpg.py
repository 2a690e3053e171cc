"""`asyncpg.Connection`, and what a pool's `acquire` gives."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar

from sqlalchemy.dialects.postgresql.asyncpg import dialect

from ..errors import NoTransactionError
from .drive import drive_async, sql_of
from .procedure import APART, Clerk, Rows, Step

What = TypeVar("What")
T = TypeVar("T")

DIALECT = dialect()


async def run_async(connection: Any, clerk: Clerk[What, T], what: What) -> T:
    if not connection.is_in_transaction():
        raise NoTransactionError(
            f"this asyncpg connection is in no transaction: {APART}; call it within `async with "
            "connection.transaction()`"
        )
    # A pool wraps its connection anew each time, and there is no public way to it.
    itself = getattr(connection, "_con", connection)
    return await drive_async(clerk.procedure(what, DIALECT.name, itself), partial(_run, connection))


async def create_async(connection: Any, clerk: Clerk[Any, Any]) -> None:
    await drive_async(clerk.creation(DIALECT.name), partial(_run, connection))


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
