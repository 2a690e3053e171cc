"""`psycopg.Connection` and `psycopg.AsyncConnection`.

The cursor is our own, so the caller's cursor and row factories do not matter.
"""

from __future__ import annotations

from functools import partial
from typing import Any, LiteralString, TypeVar, cast

from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row
from sqlalchemy.dialects.postgresql.psycopg import dialect

from ..errors import NoTransactionError
from .drive import drive, drive_async, executions
from .procedure import APART, Clerk, Rows, Step

What = TypeVar("What")
T = TypeVar("T")

DIALECT = dialect(paramstyle="format")


def run(connection: Connection[Any], clerk: Clerk[What, T], what: What) -> T:
    if connection.autocommit and _is_in_pipeline(connection):
        with connection.pipeline():
            pass  # what is still on its way may be a BEGIN
    refuse_autocommit(connection)
    return drive(clerk.procedure(what, DIALECT.name, connection), partial(_run, connection))


async def run_async(connection: AsyncConnection[Any], clerk: Clerk[What, T], what: What) -> T:
    if connection.autocommit and _is_in_pipeline(connection):
        async with connection.pipeline():
            pass
    refuse_autocommit(connection)
    return await drive_async(clerk.procedure(what, DIALECT.name, connection), partial(_run_async, connection))


def create(connection: Connection[Any], clerk: Clerk[Any, Any]) -> None:
    drive(clerk.creation(DIALECT.name), partial(_run, connection))


async def create_async(connection: AsyncConnection[Any], clerk: Clerk[Any, Any]) -> None:
    await drive_async(clerk.creation(DIALECT.name), partial(_run_async, connection))


def would_autocommit(connection: Connection[Any] | AsyncConnection[Any]) -> bool:
    return connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE


def refuse_autocommit(connection: Connection[Any] | AsyncConnection[Any]) -> None:
    if would_autocommit(connection):
        raise NoTransactionError(
            f"this psycopg connection autocommits and is in no transaction: {APART}; call it within "
            "`with connection.transaction()`"
        )


def _is_in_pipeline(connection: Connection[Any] | AsyncConnection[Any]) -> bool:
    return connection.pgconn.pipeline_status != PipelineStatus.OFF


def _run(connection: Connection[Any], step: Step) -> Rows:
    with Cursor(connection, row_factory=tuple_row) as cursor:
        for text, arguments in executions(step, DIALECT):
            cursor.execute(cast(LiteralString, text), arguments)
        return cursor.fetchall() if step.returns else ()


async def _run_async(connection: AsyncConnection[Any], step: Step) -> Rows:
    async with AsyncCursor(connection, row_factory=tuple_row) as cursor:
        for text, arguments in executions(step, DIALECT):
            await cursor.execute(cast(LiteralString, text), arguments)
        return await cursor.fetchall() if step.returns else ()
