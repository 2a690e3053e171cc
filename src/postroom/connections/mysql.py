"""What the drivers of MySQL and MariaDB have in common."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from sqlalchemy.dialects.mysql.pymysql import dialect

from ..errors import NoTransactionError
from .procedure import APART

DIALECT = "mysql"

_IN_TRANSACTION = 1
"""A bit of the status that the server sends with each answer."""


@cache
def flavour(is_mariadb: bool) -> Any:
    """SQLAlchemy's dialect as it would be after its first connection. MySQL is taken for 8.0.20 or later."""
    made: Any = dialect()
    made.is_mariadb = is_mariadb
    made._requires_alias_for_on_duplicate_key = not is_mariadb
    return made


def flavour_of(connection: Any) -> Any:
    return flavour("mariadb" in connection.get_server_info().lower())


def refuse_autocommit(connection: Any) -> None:
    if would_autocommit(connection):
        raise NoTransactionError(
            f"this MySQL connection autocommits and is in no transaction: {APART}; connect with autocommit=False, or "
            "call `begin()` first"
        )


def would_autocommit(connection: Any) -> bool:
    """mysqlclient does not tell whether it is in a transaction: there autocommit must be off."""
    status = getattr(connection, "server_status", 0)
    return bool(connection.get_autocommit()) and not status & _IN_TRANSACTION


def cursor_class(connection: Any) -> Any:
    """The plain one of this driver, whatever the caller prefers."""
    packages = (cls.__module__.partition(".")[0] for cls in type(connection).__mro__)
    package = next(name for name in packages if name in ("pymysql", "MySQLdb", "aiomysql", "asyncmy"))
    return import_module(f"{package}.cursors").Cursor
