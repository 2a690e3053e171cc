"""`pymysql.connections.Connection`, and mysqlclient's `MySQLdb.connections.Connection`, which is used alike."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar

from .drive import drive, executions
from .mysql import DIALECT, cursor_class, flavour_of, refuse_autocommit
from .procedure import Clerk, Rows, Step

What = TypeVar("What")
T = TypeVar("T")


def run(connection: Any, clerk: Clerk[What, T], what: What) -> T:
    refuse_autocommit(connection)
    return drive(clerk.procedure(what, DIALECT, place=connection), partial(_run, connection))


def create(connection: Any, clerk: Clerk[Any, Any]) -> None:
    drive(clerk.creation(DIALECT), partial(_run, connection))


def _run(connection: Any, step: Step) -> Rows:
    cursor = connection.cursor(cursor_class(connection))
    try:
        for text, arguments in executions(step, flavour_of(connection)):
            cursor.execute(text, arguments)
        return cursor.fetchall() if step.returns else ()
    finally:
        cursor.close()
