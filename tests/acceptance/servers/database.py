"""A database on a real server as these tests use it: connections, an aggregate to lock, and what the relays wrote."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import psycopg
import pymysql
from sqlalchemy import URL, Engine, String, create_engine, delete, make_url
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.pool import NullPool

from postroom import Outbox
from postroom.stores.schema import define_tables

TABLES = define_tables()
TOPIC = "orders"


class Base(DeclarativeBase):
    pass


class Aggregate(Base):
    """What applications lock. Its version counts the commits, so that it tells their order."""

    __tablename__ = "aggregates"

    name: Mapped[str] = mapped_column(String(60), primary_key=True)
    version: Mapped[int]


class Lease(NamedTuple):
    slot: int
    owner: str | None
    epoch: int
    mark: int
    expires_in: float
    """Seconds, by the database's clock."""

    @property
    def is_valid(self) -> bool:
        return self.owner is not None and self.expires_in > 0


@dataclass(eq=False)
class Database:
    server: str
    url: str
    """As a user gives it to a relay, without a driver."""
    _asking: Any = field(default=None, repr=False)
    _turn: threading.RLock = field(default_factory=threading.RLock, repr=False)

    @property
    def is_postgresql(self) -> bool:
        return self.server != "mariadb"

    @property
    def parts(self) -> URL:
        return make_url(self.url)

    @cached_property
    def engine(self) -> Engine:
        driver = "postgresql+psycopg" if self.is_postgresql else "mysql+pymysql"
        return create_engine(self.parts.set(drivername=driver), poolclass=NullPool, connect_args=self._options)

    def connect(self, **options: Any) -> Any:
        """A plain driver connection: psycopg's or PyMySQL's, which are used alike."""
        if self.is_postgresql:
            return psycopg.connect(self.url, **options)
        parts = self.parts
        return pymysql.connect(
            host=parts.host or "127.0.0.1",
            port=parts.port or 3306,
            user=parts.username,
            password=parts.password or "",
            database=parts.database,
            **self._options,
            **options,
        )

    @property
    def _options(self) -> dict[str, Any]:
        """Without a password there is nothing to protect, and reading all certificates takes 20 ms."""
        return {} if self.is_postgresql or self.parts.password else {"ssl_disabled": True}

    @contextmanager
    def connection(self) -> Iterator[Any]:
        """What is not committed within is rolled back."""
        with closing(self.connect()) as connection:
            yield connection
            connection.rollback()

    def ask(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run it by itself, and return the rows if there are any."""
        with self._turn:
            if self._asking is None:
                self._asking = self.connect(autocommit=True)
            try:
                with self._asking.cursor() as cursor:
                    cursor.execute(statement, values or None)
                    return list(cursor.fetchall()) if cursor.description else []
            except (psycopg.OperationalError, pymysql.OperationalError, pymysql.InterfaceError):
                self.close()  # it may be the connection
                raise

    def close(self) -> None:
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.close()

    def value(self, statement: str, *values: Any) -> Any:
        return self.ask(statement, *values)[0][0]

    # --- set-up

    def create_tables(self) -> None:
        Outbox().create_tables(self.engine)
        Base.metadata.create_all(self.engine)

    def clear(self) -> None:
        """Tables are much slower to make than to empty."""
        with self.engine.begin() as connection:
            for table in (*TABLES.all(), *Base.metadata.sorted_tables):
                connection.execute(delete(table))

    def create_aggregates(self, names: Sequence[str]) -> None:
        with self.connection() as connection:
            connection.cursor().executemany(
                "INSERT INTO aggregates (name, version) VALUES (%s, 0)", [(name,) for name in names]
            )
            connection.commit()

    # --- what is there

    def versions(self) -> dict[str, int]:
        """How many messages of each key were committed."""
        return {name: version for name, version in self.ask("SELECT name, version FROM aggregates") if version}

    def count(self, table: str) -> int:
        return self.value(f"SELECT count(*) FROM postroom_{table}")

    def leases(self) -> dict[int, Lease]:
        left = (
            "EXTRACT(EPOCH FROM expires_at - clock_timestamp())"
            if self.is_postgresql
            else "TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at) / 1000000"
        )
        rows = self.ask(f"SELECT slot, owner, epoch, mark, {left} FROM postroom_leases")
        return {row[0]: Lease(*row[:4], expires_in=float(row[4] or 0)) for row in rows}

    def mark_of(self, slot: int) -> int:
        return self.leases()[slot].mark

    def relays(self) -> dict[int, str]:
        """The id of each relay, by its process."""
        return dict(self.ask("SELECT pid, id FROM postroom_relays"))

    # --- who else is there

    def waiting_for_a_lock(self) -> int:
        """How many sessions."""
        if self.is_postgresql:
            return self.value(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
        # Not from information_schema.innodb_trx: it shows an old state to whoever asks every few milliseconds.
        report = str(self.ask("SHOW ENGINE INNODB STATUS")[0][2]).split("---TRANSACTION")
        waiting = {
            int(found) for part in report if "LOCK WAIT" in part for found in re.findall(r"thread id (\d+)", part)
        }
        sessions = self.ask("SELECT id, state FROM information_schema.processlist WHERE db = DATABASE()")
        return sum(id in waiting or "lock" in (state or "") for id, state in sessions)

    def end_sessions(self, *spared: int) -> int:
        """All but our own and those to be spared; how many."""
        if self.is_postgresql:
            return self.value(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid() AND pid <> ALL (%s)",
                list(spared),
            )
        query = "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"
        others = {id for (id,) in self.ask(query)} - set(spared)
        for session in others:
            with suppress(pymysql.OperationalError):  # it has gone by itself
                self.ask(f"KILL {session}")
        return len(others)

    def sessions(self) -> str:
        """Who is in a transaction, for the message of a test that failed."""
        if self.is_postgresql:
            rows = self.ask(
                "SELECT pid, state, wait_event, pg_blocking_pids(pid), left(query, 100) FROM pg_stat_activity"
                " WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> pg_backend_pid()"
            )
            return "\n".join(map(str, rows))
        report = str(self.ask("SHOW ENGINE INNODB STATUS")[0][2])
        parts = report.partition("LIST OF TRANSACTIONS")[2].partition("FILE I/O")[0].split("---TRANSACTION")
        return "\n".join(part[:500] for part in parts if "ACTIVE" in part)
