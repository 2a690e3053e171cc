"""PostgreSQL: filled by COPY, copied as a template, drained by asyncpg alone."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib.metadata import version
from typing import Any, LiteralString, cast
from urllib.parse import urlsplit

import asyncpg
import psycopg
from psycopg import sql
from sqlalchemy import Engine, Table, create_engine

from tests import services
from tests.services.databases import at_database

from .database import BATCH, COLUMNS, Database

SERVER = "postgresql-15"
SELECT = f"SELECT {', '.join(COLUMNS)} FROM postroom_outbox ORDER BY position LIMIT {BATCH}"
DELETE = "DELETE FROM postroom_outbox WHERE position = ANY($1)"

ADVANCE = """
    SELECT setval(pg_get_serial_sequence('postroom_outbox', 'position'), max(position)) FROM postroom_outbox
    HAVING max(position) IS NOT NULL"""

STATEMENTS = """
    SELECT coalesce(sum(calls), 0) FROM pg_stat_statements JOIN pg_database ON dbid = pg_database.oid
    WHERE datname = '{}'"""
TRANSACTIONS = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = '{}'"


class PostgreSQL(Database):
    store = "postgresql"
    service = SERVER

    def _create(self) -> str:
        return self._create_as("")

    def _copy(self, url: str) -> str:
        """By files: that is one checkpoint before and one after."""
        return self._create_as(f'TEMPLATE "{name_of(url)}" STRATEGY file_copy')

    def _create_as(self, options: str) -> str:
        name = f"postroom_bench_{secrets.token_hex(6)}"
        ask(self._administrator, f'CREATE DATABASE "{name}" {options}')
        return at_database(self._administrator, name)

    def _drop(self, url: str) -> None:
        ask(self._administrator, f'DROP DATABASE IF EXISTS "{name_of(url)}" WITH (FORCE)')

    def load(self, url: str, table: Table, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        names = sql.SQL(", ").join(map(sql.Identifier, columns))
        statement = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier(table.name), names)
        with psycopg.connect(url) as connection, connection.cursor().copy(statement) as copy:
            for row in rows:
                copy.write_row(row)

    def tidy(self, url: str) -> None:
        ask(url, ADVANCE)
        ask(url, "VACUUM (ANALYZE)")
        ask(url, "CHECKPOINT")

    def engine(self, url: str) -> Engine:
        return create_engine(url.replace("postgresql:", "postgresql+psycopg:", 1))

    @contextmanager
    def snapshot(self, url: str) -> Iterator[None]:
        with psycopg.connect(url) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.execute("SELECT 1 FROM postroom_outbox LIMIT 1")
            yield

    async def drain_raw(self, url: str) -> int:
        connection = await asyncpg.connect(url)
        try:
            seen = 0
            while rows := await connection.fetch(SELECT):
                await connection.execute(DELETE, [row[0] for row in rows])
                seen += len(rows)
            return seen
        finally:
            await connection.close()

    def versions(self) -> dict[str, str]:
        drivers = ", ".join(f"{name} {version(name)}" for name in ("asyncpg", "psycopg"))
        return {"driver": drivers, "server": services.version(SERVER)}

    def fsync(self) -> str:
        settings = ("fsync", "synchronous_commit")
        return ", ".join(f"{name}={ask(self._administrator, f'SHOW {name}')}" for name in settings)

    def count_statements(self, url: str) -> int:
        question = STATEMENTS if self._has_statements else TRANSACTIONS
        return int(ask(self._observatory, question.format(name_of(url))))

    @property
    def counting_lag(self) -> float:
        return 0.0 if self._has_statements else 10.0

    @property
    def counted_by(self) -> str:
        return (
            "pg_stat_statements: every statement, BEGIN and COMMIT too"
            if self._has_statements
            else "pg_stat_database: transactions only, as pg_stat_statements is not loaded"
        )

    @cached_property
    def _has_statements(self) -> bool:
        ask(self._observatory, "CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        try:
            ask(self._observatory, STATEMENTS.format(""))
        except psycopg.errors.ObjectNotInPrerequisiteState:
            return False
        return True

    @cached_property
    def _observatory(self) -> str:
        """A database of our own to ask from, so that asking is not counted."""
        return self.create()

    @property
    def _administrator(self) -> str:
        return services.url(SERVER)


def ask(url: str, statement: str) -> Any:
    """Run one statement in no transaction, and return the first value if there are rows."""
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(cast(LiteralString, statement))
        row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None


def name_of(url: str) -> str:
    return urlsplit(url).path.lstrip("/")
