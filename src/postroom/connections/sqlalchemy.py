"""SQLAlchemy's `Connection` and `AsyncConnection`, in the transaction that they are in or begin by themselves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.util import await_only

from ..errors import NoTransactionError
from . import mysql, sqlite3
from .drive import drive, executions
from .procedure import APART, Clerk, Rows, Step

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

What = TypeVar("What")
T = TypeVar("T")

_MYSQL_DRIVERS = ("pymysql", "mysqldb", "aiomysql", "asyncmy")


def run(connection: Connection, clerk: Clerk[What, T], what: What, sleep: Callable[[float], object] = time.sleep) -> T:
    refuse_autocommit(connection)
    if _driver_autocommits(connection):
        raise _refusal(connection)
    known_by = place = None
    if not _translates_schemas(connection):
        known_by, place = connection.connection.driver_connection, connection.engine
    return drive(clerk.procedure(what, connection.dialect.name, known_by, place), partial(_run, connection), sleep)


async def run_async(connection: AsyncConnection, clerk: Clerk[What, T], what: What) -> T:
    return await connection.run_sync(run, clerk, what, sleep_async)


def sleep_async(seconds: float) -> None:
    await_only(asyncio.sleep(seconds))


def create(target: Connection | Engine, clerk: Clerk[Any, Any]) -> None:
    if isinstance(target, Engine):
        with target.begin() as connection:
            create(connection, clerk)
    else:
        drive(clerk.creation(target.dialect.name), partial(_run, target))


async def create_async(target: AsyncConnection | AsyncEngine, clerk: Clerk[Any, Any]) -> None:
    from sqlalchemy.ext.asyncio import AsyncEngine

    if isinstance(target, AsyncEngine):
        async with target.begin() as connection:
            await connection.run_sync(create, clerk)
    else:
        await target.run_sync(create, clerk)


def refuse_autocommit(bind: Connection | Engine) -> None:
    """Raise if SQLAlchemy was told that each statement is to be committed by itself. Begins nothing: a session takes a
    connection on which it finds a transaction for a guest's place, and leaves the commit to somebody else."""
    level: Any = bind.get_execution_options().get("isolation_level")
    if level is None:
        # `create_engine(isolation_level=…)`; there is no public name for it that needs no round trip.
        level = getattr(bind.dialect, "_on_connect_isolation_level", None)
    if level == "AUTOCOMMIT":
        raise _refusal(bind)


def _refusal(bind: Connection | Engine) -> NoTransactionError:
    return NoTransactionError(
        f"this {type(bind).__name__} is in AUTOCOMMIT mode: {APART}; use a connection with a transactional isolation "
        "level"
    )


def _driver_autocommits(connection: Connection) -> bool:
    """An application may have told the driver's connection itself; it may also emit BEGIN by itself, upon begin."""
    would_autocommit = _would_autocommit(connection.dialect.driver)
    if would_autocommit is None:
        return False
    if not connection.in_transaction():
        connection.begin()
    return would_autocommit(connection.connection.driver_connection)


@cache
def _would_autocommit(driver: str) -> Callable[[Any], bool] | None:
    """The driver's file knows. asyncpg has no such mode, and of the drivers without a file nobody can tell."""
    if driver in ("pysqlite", "aiosqlite", "pysqlcipher"):
        return sqlite3.would_autocommit
    if driver in _MYSQL_DRIVERS:
        return mysql.would_autocommit
    if driver in ("psycopg", "psycopg_async"):
        from .psycopg import would_autocommit

        return would_autocommit
    return None


def _run(connection: Connection, step: Step) -> Rows:
    dialect = _dialect_of_driver(connection) if step.parameters and not step.returns else None
    if dialect is not None:
        for text, arguments in executions(step, dialect):
            connection.exec_driver_sql(text, arguments).close()
        return ()
    with connection.execute(step.statement, list(step.parameters) or None) as result:
        return [tuple(row) for row in result] if step.returns else ()


def _dialect_of_driver(connection: Connection) -> Dialect | None:
    """For drivers to which SQLAlchemy would give a batch row by row, or in a form that is slow. With it, a statement
    goes to the driver as text, which costs a single row less, too."""
    if _translates_schemas(connection):
        return None
    driver = connection.dialect.driver
    if driver in ("psycopg", "psycopg_async"):
        from .psycopg import DIALECT

        return DIALECT
    is_mariadb: bool = getattr(connection.dialect, "is_mariadb", False)
    return mysql.flavour(is_mariadb) if driver in _MYSQL_DRIVERS else None


def _translates_schemas(connection: Connection) -> bool:
    return "schema_translate_map" in connection.get_execution_options()
