"""What a bench asks of a database, whichever it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Engine, Table

from postroom.stores.schema import MESSAGE_COLUMNS

BATCH = 500
"""Rows that a raw loop reads at a time, as many as the relay by default."""
COLUMNS = ("position", *MESSAGE_COLUMNS)
"""What a raw loop reads: what the relay reads."""


class Unmeasurable(Exception):
    """This database does not have what the bench is about: what, and where to look instead."""


class Database(ABC):
    """One server, or one folder of files. What is created here is gone when it closes."""

    store: str
    service: str | None = None
    """Of those that the tests start."""

    def __init__(self) -> None:
        self._urls: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for url in reversed(self._urls):
            self._drop(url)
        self._urls.clear()

    # --- databases

    def create(self) -> str:
        """The URL of a new and empty one, without a driver."""
        return self._keep(self._create())

    def copy(self, url: str) -> str:
        """Another one with the same content; nobody may be connected to the first. All copies are in the same state:
        written to disk, with statistics, and nothing left to vacuum."""
        return self._keep(self._copy(url))

    def drop(self, url: str) -> None:
        """Whoever is still connected to it."""
        self._urls.remove(url)
        self._drop(url)

    def _keep(self, url: str) -> str:
        self._urls.append(url)
        return url

    @abstractmethod
    def _create(self) -> str: ...

    @abstractmethod
    def _copy(self, url: str) -> str: ...

    @abstractmethod
    def _drop(self, url: str) -> None: ...

    @abstractmethod
    def load(self, url: str, table: Table, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Write many rows in one transaction, as fast as it goes."""

    @abstractmethod
    def tidy(self, url: str) -> None:
        """After loading: statistics, nothing left to vacuum, all on disk, and no position is given twice."""

    # --- connections

    @abstractmethod
    def engine(self, url: str) -> Engine:
        """What an application without asyncio would use."""

    @abstractmethod
    def snapshot(self, url: str) -> AbstractContextManager[None]:
        """A transaction that has read the hot table and stays open, so that nothing deleted since can be cleaned up."""

    @abstractmethod
    async def drain_raw(self, url: str) -> int:
        """Empty the hot table by the barest loop over the driver: select a batch, delete it by position. Returns how
        many rows it saw."""

    # --- what it is

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """Of the `driver` and the `server`."""

    @abstractmethod
    def fsync(self) -> str:
        """What a commit waits for, as the server is set."""

    def count_statements(self, url: str) -> int:
        """How many were executed in this database so far, by anybody but us."""
        raise Unmeasurable(f"{self.store} does not count its statements: choose another store")

    @property
    def counted_by(self) -> str:
        """What `count_statements` reads."""
        return ""

    @property
    def counting_lag(self) -> float:
        """Seconds until what was executed is counted."""
        return 0.0
