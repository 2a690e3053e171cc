"""SQLAlchemy's `Connection` and `AsyncConnection`, in the transaction that they are in or begin by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine

from ..errors import NoTransactionError
from .drive import drive
from .sqlite3 import would_autocommit
from .writer import Row, Rows, Step, Writer

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine


def write(connection: Connection, writer: Writer, rows: Sequence[Row]) -> None:
    refuse_autocommit(connection)
    drive(writer.procedure(rows, connection.dialect.name), partial(_run, connection))


async def write_async(connection: AsyncConnection, writer: Writer, rows: Sequence[Row]) -> None:
    await connection.run_sync(write, writer, rows)


def create(target: Connection | Engine, writer: Writer) -> None:
    if isinstance(target, Engine):
        with target.begin() as connection:
            create(connection, writer)
    else:
        drive(writer.creation(), partial(_run, target))


async def create_async(target: AsyncConnection | AsyncEngine, writer: Writer) -> None:
    from sqlalchemy.ext.asyncio import AsyncEngine

    if isinstance(target, AsyncEngine):
        async with target.begin() as connection:
            await connection.run_sync(create, writer)
    else:
        await target.run_sync(create, writer)


def refuse_autocommit(bind: Connection | Engine) -> None:
    """Raise if a statement would be committed by itself."""
    level: Any = bind.get_execution_options().get("isolation_level")
    if level is None:
        # `create_engine(isolation_level=…)`; there is no public name for it that needs no round trip.
        level = getattr(bind.dialect, "_on_connect_isolation_level", None)
    if level == "AUTOCOMMIT" or (isinstance(bind, Connection) and _driver_autocommits(bind)):
        raise NoTransactionError(
            f"this {type(bind).__name__} is in AUTOCOMMIT mode: the message would be committed apart from your data; "
            "use a connection with a transactional isolation level"
        )


def _driver_autocommits(connection: Connection) -> bool:
    """An application may have told the sqlite3 connection itself; it may also emit BEGIN by itself, upon begin."""
    if connection.dialect.name != "sqlite":
        return False
    if not connection.in_transaction():
        connection.begin()
    return would_autocommit(connection.connection.driver_connection)


def _run(connection: Connection, step: Step) -> Rows:
    result = connection.execute(step.statement, list(step.parameters) or None)
    return [tuple(row) for row in result] if step.returns else ()
