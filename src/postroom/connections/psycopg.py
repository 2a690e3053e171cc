"""`psycopg.Connection` and `psycopg.AsyncConnection`.

The cursor is our own, so the caller's cursor and row factories do not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, LiteralString, cast

from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row
from sqlalchemy.dialects.postgresql.psycopg import dialect

from ..errors import NoTransactionError
from .drive import drive, drive_async, executions
from .writer import Row, Rows, Step, Writer

DIALECT = dialect(paramstyle="format")


def write(connection: Connection[Any], writer: Writer, rows: Sequence[Row]) -> None:
    if connection.autocommit and _is_in_pipeline(connection):
        with connection.pipeline():
            pass  # what is still on its way may be a BEGIN
    refuse_autocommit(connection)
    drive(writer.procedure(rows, DIALECT.name, connection), partial(_run, connection))


async def write_async(connection: AsyncConnection[Any], writer: Writer, rows: Sequence[Row]) -> None:
    if connection.autocommit and _is_in_pipeline(connection):
        async with connection.pipeline():
            pass
    refuse_autocommit(connection)
    await drive_async(writer.procedure(rows, DIALECT.name, connection), partial(_run_async, connection))


def create(connection: Connection[Any], writer: Writer) -> None:
    drive(writer.creation(DIALECT.name), partial(_run, connection))


async def create_async(connection: AsyncConnection[Any], writer: Writer) -> None:
    await drive_async(writer.creation(DIALECT.name), partial(_run_async, connection))


def would_autocommit(connection: Connection[Any] | AsyncConnection[Any]) -> bool:
    return connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE


def refuse_autocommit(connection: Connection[Any] | AsyncConnection[Any]) -> None:
    if would_autocommit(connection):
        raise NoTransactionError(
            "this psycopg connection autocommits and is in no transaction: the message would be committed apart from "
            "your data; call `add` within `with connection.transaction()`"
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
