"""The standard library's `sqlite3.Connection`."""

from __future__ import annotations

import sqlite3
from functools import partial
from typing import Any, TypeVar

from sqlalchemy.dialects.sqlite.pysqlite import dialect

from ..errors import NoTransactionError
from .drive import drive, sql_of
from .procedure import APART, Clerk, Rows, Step

What = TypeVar("What")
T = TypeVar("T")

DIALECT = dialect()


def run(connection: sqlite3.Connection, clerk: Clerk[What, T], what: What) -> T:
    if would_autocommit(connection):
        raise no_transaction()
    return drive(clerk.procedure(what, DIALECT.name), partial(_run, connection))


def create(connection: sqlite3.Connection, clerk: Clerk[Any, Any]) -> None:
    drive(clerk.creation(DIALECT.name), partial(_run, connection))


def would_autocommit(connection: Any) -> bool:
    """Whether a statement that changes something would be committed by itself.

    `autocommit` came with Python 3.12: True, False, or a number that means "see `isolation_level`".
    """
    if connection.in_transaction:
        return False
    autocommit = getattr(connection, "autocommit", None)
    return autocommit if isinstance(autocommit, bool) else connection.isolation_level is None


def no_transaction() -> NoTransactionError:
    return NoTransactionError(
        f"this SQLite connection autocommits and is in no transaction: {APART}; execute BEGIN IMMEDIATE first, or "
        "leave `isolation_level` and `autocommit` alone"
    )


def _run(connection: sqlite3.Connection, step: Step) -> Rows:
    sql = sql_of(step, DIALECT)
    cursor = connection.cursor()
    cursor.row_factory = None
    try:
        if len(step.parameters) > 1:
            cursor.executemany(sql.text, map(sql.arguments, step.parameters))
        else:
            cursor.execute(sql.text, sql.arguments(step.parameters[0]) if step.parameters else ())
        return cursor.fetchall() if step.returns else ()
    finally:
        cursor.close()
