"""`aiosqlite.Connection`."""

from __future__ import annotations

import sqlite3
from functools import partial
from typing import Any, TypeVar

import aiosqlite

from .drive import drive_async, sql_of
from .procedure import Clerk, Rows, Step
from .sqlite3 import DIALECT, no_transaction, would_autocommit

What = TypeVar("What")
T = TypeVar("T")


async def run_async(connection: aiosqlite.Connection, clerk: Clerk[What, T], what: What) -> T:
    if await _would_autocommit(connection):
        raise no_transaction()
    return await drive_async(clerk.procedure(what, DIALECT.name, place=connection), partial(_run, connection))


async def create_async(connection: aiosqlite.Connection, clerk: Clerk[Any, Any]) -> None:
    await drive_async(clerk.creation(DIALECT.name), partial(_run, connection))


async def _would_autocommit(connection: aiosqlite.Connection) -> bool:
    if connection.in_transaction or not hasattr(sqlite3.Connection, "autocommit"):
        return would_autocommit(connection)
    # What Python 3.12 added may be read on the connection's own thread only, and aiosqlite has no public way there.
    hidden: Any = connection
    return await hidden._execute(would_autocommit, hidden._conn)


async def _run(connection: aiosqlite.Connection, step: Step) -> Rows:
    sql = sql_of(step, DIALECT)
    async with connection.cursor() as cursor:
        cursor.row_factory = None
        if len(step.parameters) > 1:
            await cursor.executemany(sql.text, list(map(sql.arguments, step.parameters)))
        else:
            await cursor.execute(sql.text, sql.arguments(step.parameters[0]) if step.parameters else ())
        return [tuple(row) for row in await cursor.fetchall()] if step.returns else ()
