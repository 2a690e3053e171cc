"""`pymysql.connections.Connection`, and mysqlclient's `MySQLdb.connections.Connection`, which is used alike."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from .drive import drive, executions
from .mysql import DIALECT, as_rows, cursor_class, flavour_of, refuse_autocommit
from .writer import Row, Rows, Step, Writer


def write(connection: Any, writer: Writer, rows: Sequence[Row]) -> None:
    refuse_autocommit(connection)
    drive(writer.procedure(rows, DIALECT, place=connection), partial(_run, connection))


def create(connection: Any, writer: Writer) -> None:
    drive(writer.creation(DIALECT), partial(_run, connection))


def _run(connection: Any, step: Step) -> Rows:
    cursor = connection.cursor(cursor_class(connection))
    try:
        for text, arguments in executions(step, flavour_of(connection)):
            cursor.execute(text, arguments)
        return as_rows(cursor.fetchall()) if step.returns else ()
    finally:
        cursor.close()
