"""`aiomysql.Connection` and `asyncmy.Connection`, which are used alike; their pools give the same."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from .drive import drive_async, executions
from .mysql import DIALECT, as_rows, cursor_class, flavour_of, refuse_autocommit
from .writer import Row, Rows, Step, Writer


async def write_async(connection: Any, writer: Writer, rows: Sequence[Row]) -> None:
    refuse_autocommit(connection)
    await drive_async(writer.procedure(rows, DIALECT, place=connection), partial(_run, connection))


async def create_async(connection: Any, writer: Writer) -> None:
    await drive_async(writer.creation(DIALECT), partial(_run, connection))


async def _run(connection: Any, step: Step) -> Rows:
    async with connection.cursor(cursor_class(connection)) as cursor:
        for text, arguments in executions(step, flavour_of(connection)):
            await cursor.execute(text, arguments)
        return as_rows(await cursor.fetchall()) if step.returns else ()
