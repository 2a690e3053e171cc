"""What the contract suites need to know of a database on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
from sqlalchemy import Connection, Engine, Table, create_engine, delete, insert, inspect, make_url, select, text

from postroom.connections.bell import ringing_slot
from postroom.message import Message
from postroom.ports import Store
from postroom.stores.mysql import MysqlStore
from postroom.stores.postgresql import PostgresqlStore
from postroom.stores.schema import define_tables
from postroom.stores.sql import SqlStore
from postroom.testing import FakeClock
from postroom.testing.store_contract.kit import StoreFixtures
from tests import services
from tests.conftest import server_url
from tests.contract.test_stores import row_of

TABLES = define_tables()
OURS = {table.name for table in TABLES.all()} | {f"{TABLES.archive.name}_default"}


class OnServer(StoreFixtures):
    server: ClassVar[str]
    kind: ClassVar[type[SqlStore]]
    driver: ClassVar[str]
    sync_driver: ClassVar[str]

    database_url: ClassVar[str]
    seeds: ClassVar[dict[Table, list[dict[str, Any]]]]

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def with_tables(cls) -> Iterator[None]:
        """A database for each class, with the tables that its store makes: that takes longer than a test."""
        server_url(cls.server)
        with services.fresh_database(cls.server) as url:
            cls.database_url = url
            asyncio.run(make_tables(cls.kind(with_driver(url, cls.driver))))
            with closing_engine(cls.make_engine()) as engine, engine.connect() as connection:
                cls.seeds = {table: rows_of(connection, table) for table in (TABLES.meta, TABLES.leases)}
            yield

    @pytest.fixture(autouse=True)
    def database(self, with_tables: None) -> Iterator[None]:
        """As it was when the tables were new, with nobody connected to it."""
        services.disconnect(self.server, self.database_url)
        self.url = with_driver(self.database_url, self.driver)
        with closing_engine(self.make_engine()) as self.engine:
            with self.engine.begin() as connection:
                self.clear(connection)
            yield

    @classmethod
    def make_engine(cls) -> Engine:
        return create_engine(with_driver(cls.database_url, cls.sync_driver), connect_args=cls.arguments())

    @classmethod
    def arguments(cls) -> dict[str, Any]:
        return {}

    def clear(self, connection: Connection) -> None:
        for name in set(inspect(connection).get_table_names()) - OURS:
            connection.execute(text(f"DROP TABLE {name}"))  # a day of the archive
        for table in TABLES.all():
            connection.execute(delete(table))
        for table, rows in self.seeds.items():
            connection.execute(insert(table), rows)

    async def make_store(self, clock: FakeClock) -> Store:
        return self.kind(self.url, clock=clock)

    async def make_another(self, store: Store, clock: FakeClock) -> Store:
        return self.kind(self.url, clock=clock)

    async def insert(self, store: Any, messages: Sequence[Message]) -> None:
        now = (await store.fetch([])).now
        with self.engine.begin() as connection:
            for message in messages:
                if message.deliver_at is not None and message.deliver_at > now:
                    connection.execute(insert(TABLES.later), row_of(message, now) | {"due_at": message.deliver_at})
                else:
                    connection.execute(self.insert_hot(), row_of(message, now))

    def insert_hot(self) -> Any:
        return insert(TABLES.hot)

    async def remove(self, store: Any, message: Message) -> None:
        with self.engine.begin() as connection:
            for table in (TABLES.hot, TABLES.parked, TABLES.dead):
                connection.execute(delete(table).where(table.c.position == message.position))


def with_driver(url: str, driver: str) -> str:
    return make_url(url).set(drivername=driver).render_as_string(hide_password=False)


@contextmanager
def closing_engine(engine: Engine) -> Iterator[Engine]:
    yield engine
    engine.dispose()


def rows_of(connection: Connection, table: Table) -> list[dict[str, Any]]:
    return [dict(row) for row in connection.execute(select(table)).mappings()]


async def make_tables(store: Store) -> None:
    await store.open()
    await store.close()


class OnPostgresql15(OnServer):
    server = "postgresql-15"
    kind = PostgresqlStore
    driver = "postgresql+asyncpg"
    sync_driver = "postgresql+psycopg"

    def insert_hot(self) -> Any:
        return insert(TABLES.hot).inline().values(slot=ringing_slot(TABLES))

    def clear(self, connection: Connection) -> None:
        super().clear(connection)
        restart = "SELECT setval(format('%I.%I', schemaname, sequencename), start_value, false) FROM pg_sequences"
        connection.execute(text(restart))


class OnPostgresql18(OnPostgresql15):
    server = "postgresql-18"


class OnPostgresqlThroughPsycopg(OnPostgresql15):
    driver = "postgresql+psycopg"


class OnPostgresqlThroughPgbouncer(OnPostgresql15):
    server = "pgbouncer"

    @classmethod
    def arguments(cls) -> dict[str, Any]:
        return {"prepare_threshold": None}


class OnMariadb(OnServer):
    server = "mariadb"
    kind = MysqlStore
    driver = "mysql+asyncmy"
    sync_driver = "mysql+pymysql"

    @classmethod
    def arguments(cls) -> dict[str, Any]:
        """Without a password there is nothing to protect, and reading all certificates takes 20 ms."""
        return {"ssl_disabled": not make_url(cls.database_url).password}

    def clear(self, connection: Connection) -> None:
        super().clear(connection)
        positions = f"ALTER TABLE {TABLES.hot.name} AUTO_INCREMENT = 1"  # nobody looks at the other counters
        connection.execute(text(positions))


class OnMariadbThroughAiomysql(OnMariadb):
    driver = "mariadb+aiomysql"
