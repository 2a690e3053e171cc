"""`aiosqlite.Connection`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import aiosqlite

from .drive import drive_async, sql_of
from .sqlite3 import DIALECT, as_rows, refuse_autocommit
from .writer import Row, Rows, Step, Writer


async def write_async(connection: aiosqlite.Connection, writer: Writer, rows: Sequence[Row]) -> None:
    refuse_autocommit(connection)
    await drive_async(writer.procedure(rows, DIALECT.name), partial(_run, connection))


async def create_async(connection: aiosqlite.Connection, writer: Writer) -> None:
    await drive_async(writer.creation(), partial(_run, connection))


async def _run(connection: aiosqlite.Connection, step: Step) -> Rows:
    sql = sql_of(step, DIALECT)
    async with connection.cursor() as cursor:
        cursor.row_factory = None
        if len(step.parameters) > 1:
            await cursor.executemany(sql.text, list(map(sql.arguments, step.parameters)))
        else:
            await cursor.execute(sql.text, sql.arguments(step.parameters[0]) if step.parameters else ())
        found: Any = await cursor.fetchall() if step.returns else ()
        return as_rows(found)
