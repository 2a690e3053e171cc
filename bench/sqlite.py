"""SQLite: a file, copied as a file, drained by `sqlite3` alone."""

from __future__ import annotations

import secrets
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any

from sqlalchemy import Engine, Table, create_engine

from postroom.stores.schema import to_text

from .database import BATCH, COLUMNS, Database

SELECT = f"SELECT {', '.join(COLUMNS)} FROM postroom_outbox ORDER BY position LIMIT {BATCH}"
DELETE = "DELETE FROM postroom_outbox WHERE position IN ({})"


class SQLite(Database):
    store = "sqlite"

    def __init__(self) -> None:
        super().__init__()
        self._folder = Path(tempfile.mkdtemp(prefix="postroom-bench-"))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _create(self) -> str:
        return f"sqlite:///{self._folder / secrets.token_hex(6)}.db"

    def _copy(self, url: str) -> str:
        copy = self._create()
        shutil.copyfile(path_of(url), path_of(copy))
        return copy

    def _drop(self, url: str) -> None:
        for path in self._folder.glob(f"{path_of(url).name}*"):
            path.unlink()

    def load(self, url: str, table: Table, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        statement = f"INSERT INTO {table.name} ({', '.join(columns)}) VALUES ({marks(columns)})"
        with closing(sqlite3.connect(path_of(url))) as connection, connection:
            connection.executemany(statement, (list(map(as_stored, row)) for row in rows))

    def tidy(self, url: str) -> None:
        with closing(sqlite3.connect(path_of(url))) as connection:
            connection.execute("ANALYZE")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def engine(self, url: str) -> Engine:
        return create_engine(url)

    @contextmanager
    def snapshot(self, url: str) -> Iterator[None]:
        with closing(sqlite3.connect(path_of(url), isolation_level=None)) as connection:
            connection.execute("BEGIN")
            connection.execute("SELECT 1 FROM postroom_outbox LIMIT 1").fetchall()
            yield

    async def drain_raw(self, url: str) -> int:
        """As durable as the relay's own connection."""
        seen = 0
        with closing(sqlite3.connect(path_of(url), isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            while rows := connection.execute(SELECT).fetchall():
                connection.execute("BEGIN IMMEDIATE")
                connection.execute(DELETE.format(marks(rows)), [row[0] for row in rows])
                connection.execute("COMMIT")
                seen += len(rows)
        return seen

    def versions(self) -> dict[str, str]:
        drivers = f"aiosqlite {version('aiosqlite')}, sqlite3 of Python"
        return {"driver": drivers, "server": f"SQLite {sqlite3.sqlite_version}"}

    def fsync(self) -> str:
        return "journal_mode=WAL; synchronous=NORMAL in relays and raw loops, FULL in applications"


def path_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


def marks(items: Sequence[Any]) -> str:
    return ",".join("?" * len(items))


def as_stored(value: Any) -> Any:
    return to_text(value) if isinstance(value, datetime) else value
