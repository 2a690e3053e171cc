"""`aiomysql.Connection` and `asyncmy.Connection`, which are used alike; their pools give the same."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar

from .drive import drive_async, executions
from .mysql import DIALECT, cursor_class, flavour_of, refuse_autocommit
from .procedure import Clerk, Rows, Step

What = TypeVar("What")
T = TypeVar("T")


async def run_async(connection: Any, clerk: Clerk[What, T], what: What) -> T:
    refuse_autocommit(connection)
    return await drive_async(clerk.procedure(what, DIALECT, place=connection), partial(_run, connection))


async def create_async(connection: Any, clerk: Clerk[Any, Any]) -> None:
    await drive_async(clerk.creation(DIALECT), partial(_run, connection))


async def _run(connection: Any, step: Step) -> Rows:
    async with connection.cursor(cursor_class(connection)) as cursor:
        for text, arguments in executions(step, flavour_of(connection)):
            await cursor.execute(text, arguments)
        return await cursor.fetchall() if step.returns else ()
