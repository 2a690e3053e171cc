"""Where systems are measured: databases of their own on one server, and their drivers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from bench.postgresql import PostgreSQL, ask, name_of
from tests.services.processes import wait_until

from .complaints import complaint
from .processes import Driver, DriverFailed, driver
from .systems import System

APPLICATION = "CREATE TABLE bench_orders (id bigserial PRIMARY KEY, total integer NOT NULL)"
FIRST_ORDER = "INSERT INTO bench_orders (total) VALUES (0)"
DROP_SLOTS = """
    SELECT count(pg_drop_replication_slot(slot_name)) FROM pg_replication_slots WHERE database = '{}' AND NOT active"""
SLOTS = "SELECT count(*) FROM pg_replication_slots WHERE database = '{}'"


@dataclass(slots=True, kw_only=True)
class Stage:
    database: PostgreSQL
    folder: Path
    """For what drivers write down."""
    pythons: dict[str, Path] = field(default_factory=dict[str, Path])
    left: dict[str, str] = field(default_factory=dict[str, str])
    """By system: how it is asked what is in its tables."""
    is_over: threading.Event = field(default_factory=threading.Event)
    """Set when we are told to end: then nobody enters any more."""
    _templates: dict[tuple[str, int, int], str] = field(default_factory=dict[tuple[str, int, int], str])

    def driver(self, system: System) -> AbstractContextManager[Driver]:
        if self.is_over.is_set():
            raise DriverFailed("we were told to end")
        return driver(self.pythons[system.name], system.driver, self.folder / f"{system.driver}.errors")

    def file(self, name: str) -> Path:
        """A new one, which nobody has written to."""
        path = self.folder / name
        path.unlink(missing_ok=True)
        return path

    @contextmanager
    def empty(self, system: System) -> Iterator[str]:
        """The URL of a database with its tables, and one of the application."""
        with self._dropped(self._prepare(system)) as url:
            yield url

    @contextmanager
    def filled(self, system: System, messages: int, keys: int) -> Iterator[str]:
        """The same with messages that wait. All are in the same state: on disk, with nothing left to vacuum."""
        if system.streams:
            url = self._fill(system, messages, keys)
        else:
            if (system.name, messages, keys) not in self._templates:
                self._templates[system.name, messages, keys] = self._fill(system, messages, keys)
            url = self.database.copy(self._templates[system.name, messages, keys])
        with self._dropped(url):
            yield url

    def forget(self) -> None:
        """Backlogs that no measure needs any more."""
        while self._templates:
            self.database.drop(self._templates.popitem()[1])

    def count_left(self, system: System, url: str) -> int:
        return int(ask(url, f"SELECT count(*) FROM ({self.left[system.name]}) AS waiting"))

    def list_left(self, system: System, url: str) -> list[tuple[Any, ...]]:
        """Payloads, and whether each is pending or dead."""
        with psycopg.connect(url) as connection:
            return connection.execute(self.left[system.name].encode()).fetchall()

    def _prepare(self, system: System) -> str:
        url = self.database.create()
        ask(url, APPLICATION)
        ask(url, FIRST_ORDER)
        with self.driver(system) as driver:
            driver.ask("prepare", url=url)
        return url

    def _fill(self, system: System, messages: int, keys: int) -> str:
        url = self._prepare(system)
        with self.driver(system) as driver:
            driver.ask("fill", url=url, messages=messages, keys=keys, patience=300)
        ask(url, "VACUUM (ANALYZE)")
        ask(url, "CHECKPOINT")
        return url

    @contextmanager
    def _dropped(self, url: str) -> Iterator[str]:
        try:
            yield url
        finally:
            self._drop(url)

    def _drop(self, url: str) -> None:
        """What has been measured there counts, even if this fails."""
        try:
            wait_until(lambda: drop_slots(url), seconds=20)
            self.database.drop(url)
        except Exception as error:
            print(f"a database could not be dropped: {complaint(error)}", flush=True)


def drop_slots(url: str) -> bool:
    """Whether all are gone, without which the database cannot be dropped. A reader that has ended may still count as
    active for a moment."""
    ask(url, DROP_SLOTS.format(name_of(url)))
    return ask(url, SLOTS.format(name_of(url))) == 0


@contextmanager
def snapshot(url: str) -> Iterator[None]:
    """A transaction that has read and stays open, so that nothing deleted since can be cleaned up."""
    with psycopg.connect(url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT count(*) FROM bench_orders")
        yield
