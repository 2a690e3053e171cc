"""Django's `connection` and `connections["other"]`: the driver's own connection does the work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from ..errors import NoTransactionError
from . import Verb, function_for
from .procedure import APART, Clerk
from .writer import Row, Writer

What = TypeVar("What")
T = TypeVar("T")


def write(connection: Any, writer: Writer, rows: Sequence[Row]) -> None:
    _do(connection, "write", writer, rows)
    if connection.in_atomic_block:
        connection.on_commit(writer.committed)


def run(connection: Any, clerk: Clerk[What, T], what: What) -> T:
    return _do(connection, "run", clerk, what)


def _do(connection: Any, verb: Verb, clerk: Clerk[What, T], what: What) -> T:
    connection.ensure_connection()
    if not connection.in_atomic_block and connection.get_autocommit():
        raise NoTransactionError(
            f"the Django connection {connection.alias!r} autocommits: {APART}; call it within "
            "`with transaction.atomic()`"
        )
    connection.validate_no_broken_transaction()
    driver = connection.connection
    with connection.wrap_database_errors:
        return function_for(driver, verb)(driver, clerk, what)


def create(connection: Any, clerk: Clerk[Any, Any]) -> None:
    connection.ensure_connection()
    driver = connection.connection
    with connection.wrap_database_errors:
        function_for(driver, "create")(driver, clerk)
