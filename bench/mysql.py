"""MariaDB and MySQL: filled by inserts of many rows, copied table by table, drained by asyncmy alone."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from typing import Any
from urllib.parse import unquote, urlsplit

import asyncmy
import pymysql
from sqlalchemy import Engine, Table, create_engine, inspect

from tests import services
from tests.services.databases import MySQLDatabases, at_database

from .database import BATCH, COLUMNS, Database

SERVER = "mariadb"
NAMES = ", ".join(f"`{name}`" for name in COLUMNS)
SELECT = f"SELECT {NAMES} FROM postroom_outbox ORDER BY position LIMIT {BATCH}"
DELETE = "DELETE FROM postroom_outbox WHERE position IN ({})"


class MySQL(Database):
    store = "mysql"
    service = SERVER

    def __init__(self) -> None:
        super().__init__()
        self._asked = 0

    def _create(self) -> str:
        name = f"postroom_bench_{secrets.token_hex(6)}"
        MySQLDatabases().create(self._administrator, name)
        return at_database(self._administrator, name)

    def _copy(self, url: str) -> str:
        copy = self._create()
        engine = self.engine(url)
        with closing(connect(copy)) as connection, connection.cursor() as cursor:
            for table in inspect(engine).get_table_names():
                original = f"`{name_of(url)}`.`{table}`"
                cursor.execute(f"CREATE TABLE `{table}` LIKE {original}")
                cursor.execute(f"INSERT INTO `{table}` SELECT * FROM {original}")
            connection.commit()
        engine.dispose()
        self.tidy(copy)
        return copy

    def _drop(self, url: str) -> None:
        MySQLDatabases().drop(self._administrator, name_of(url))

    def load(self, url: str, table: Table, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        names, marks = ", ".join(f"`{name}`" for name in columns), ", ".join(["%s"] * len(columns))
        statement = f"INSERT INTO `{table.name}` ({names}) VALUES ({marks})"
        with closing(connect(url)) as connection, connection.cursor() as cursor:
            cursor.executemany(statement, (list(map(as_stored, row)) for row in rows))
            connection.commit()

    def tidy(self, url: str) -> None:
        """Exporting a table begins with writing all of its pages to disk."""
        engine = self.engine(url)
        tables = ", ".join(f"`{name}`" for name in inspect(engine).get_table_names())
        engine.dispose()
        with closing(connect(url)) as connection, connection.cursor() as cursor:
            cursor.execute(f"ANALYZE TABLE {tables}")
            cursor.execute(f"FLUSH TABLES {tables} FOR EXPORT")
            cursor.execute("UNLOCK TABLES")

    def engine(self, url: str) -> Engine:
        return create_engine(url.replace("mysql:", "mysql+pymysql:", 1))

    @contextmanager
    def snapshot(self, url: str) -> Iterator[None]:
        with closing(connect(url)) as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            cursor.execute("SELECT 1 FROM postroom_outbox LIMIT 1")
            yield

    async def drain_raw(self, url: str) -> int:
        connection = await asyncmy.connect(**arguments_of(url), autocommit=True)
        try:
            seen = 0
            async with connection.cursor() as cursor:
                while await cursor.execute(SELECT):
                    rows = await cursor.fetchall()
                    await cursor.execute(DELETE.format(",".join(str(row[0]) for row in rows)))
                    seen += len(rows)
            return seen
        finally:
            connection.close()

    def versions(self) -> dict[str, str]:
        drivers = ", ".join(f"{name} {version(name)}" for name in ("asyncmy", "PyMySQL"))
        return {"driver": drivers, "server": services.version(SERVER)}

    def fsync(self) -> str:
        names = ("innodb_flush_log_at_trx_commit", "sync_binlog", "innodb_doublewrite")
        return ", ".join(f"{name}={self._ask(f'SELECT @@{name}')[0]}" for name in names)

    def count_statements(self, url: str) -> int:
        """Of the whole server, but for this question; nobody else should use it meanwhile."""
        self._asked += 1
        return int(self._ask("SHOW GLOBAL STATUS LIKE 'Questions'")[1]) - self._asked

    @property
    def counted_by(self) -> str:
        return "SHOW GLOBAL STATUS LIKE 'Questions', of the whole server"

    def _ask(self, question: str) -> tuple[Any, ...]:
        with self._observer.cursor() as cursor:
            cursor.execute(question)
            return cursor.fetchone() or ()

    @cached_property
    def _observer(self) -> Any:
        """Always the same connection: each new one says more than it is asked to."""
        return connect(self._administrator)

    @property
    def _administrator(self) -> str:
        return services.url(SERVER)


def connect(url: str) -> Any:
    return pymysql.connect(**arguments_of(url))


def arguments_of(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    return {
        "host": parts.hostname,
        "port": parts.port or 3306,
        "user": unquote(parts.username or "root"),
        "password": unquote(parts.password or ""),
        "database": name_of(url),
    }


def as_stored(value: Any) -> Any:
    return value.astimezone(UTC).replace(tzinfo=None) if isinstance(value, datetime) else value


def name_of(url: str) -> str:
    return urlsplit(url).path.lstrip("/")
