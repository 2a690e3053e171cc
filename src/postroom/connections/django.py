"""Django's `connection` and `connections["other"]`: the driver's own connection does the work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import NoTransactionError
from . import function_for
from .writer import Row, Writer


def write(connection: Any, writer: Writer, rows: Sequence[Row]) -> None:
    connection.ensure_connection()
    if not connection.in_atomic_block and connection.get_autocommit():
        raise NoTransactionError(
            f"the Django connection {connection.alias!r} autocommits: the message would be committed apart from your "
            "data; call `add` within `with transaction.atomic()`"
        )
    connection.validate_no_broken_transaction()
    driver = connection.connection
    with connection.wrap_database_errors:
        function_for(driver, "write")(driver, writer, rows)
    if connection.in_atomic_block:
        connection.on_commit(writer.committed)


def create(connection: Any, writer: Writer) -> None:
    connection.ensure_connection()
    driver = connection.connection
    with connection.wrap_database_errors:
        function_for(driver, "create")(driver, writer)
