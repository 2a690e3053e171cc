"""What the contract suites need to know of a database on a real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import pytest
from sqlalchemy import Engine, create_engine, delete, insert, make_url

from postroom.connections.bell import ring
from postroom.message import Message
from postroom.ports import Store
from postroom.stores.mysql import MysqlStore
from postroom.stores.postgresql import PostgresqlStore
from postroom.stores.schema import define_tables
from postroom.stores.sql import SqlStore
from postroom.testing import FakeClock
from postroom.testing.store_contract.kit import StoreFixtures
from tests.contract.test_stores import row_of

TABLES = define_tables()


class OnServer(StoreFixtures):
    server: ClassVar[str]
    kind: ClassVar[type[SqlStore]]
    driver: ClassVar[str]
    sync_driver: ClassVar[str]
    arguments: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(autouse=True)
    def database(self, empty_database: Callable[[str], str]) -> Iterator[None]:
        url = make_url(empty_database(self.server))
        self.url = url.set(drivername=self.driver).render_as_string(hide_password=False)
        self.engine: Engine = create_engine(url.set(drivername=self.sync_driver), connect_args=self.arguments)
        yield
        self.engine.dispose()

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


class OnPostgresql15(OnServer):
    server = "postgresql-15"
    kind = PostgresqlStore
    driver = "postgresql+asyncpg"
    sync_driver = "postgresql+psycopg"

    def insert_hot(self) -> Any:
        return insert(TABLES.hot).inline().returning(ring(TABLES))


class OnPostgresql18(OnPostgresql15):
    server = "postgresql-18"


class OnPostgresqlThroughPsycopg(OnPostgresql15):
    driver = "postgresql+psycopg"


class OnPostgresqlThroughPgbouncer(OnPostgresql15):
    server = "pgbouncer"
    arguments: ClassVar[dict[str, Any]] = {"prepare_threshold": None}


class OnMariadb(OnServer):
    server = "mariadb"
    kind = MysqlStore
    driver = "mysql+asyncmy"
    sync_driver = "mysql+pymysql"


class OnMariadbThroughAiomysql(OnMariadb):
    driver = "mariadb+aiomysql"
