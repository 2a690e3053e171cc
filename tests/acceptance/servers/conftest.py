"""Each test runs on both databases, with the outbox's tables and the application's in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from tests.acceptance.servers.database import Database

Named = Callable[[str], str]


@pytest.fixture(params=["postgresql-15", "mariadb"])
def server(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def database(server: str, database_of_this_worker: Named) -> Iterator[Database]:
    with closing(emptied(server, database_of_this_worker)) as database:
        yield database


@pytest.fixture
def postgresql(database_of_this_worker: Named) -> Iterator[Database]:
    with closing(emptied("postgresql-15", database_of_this_worker)) as database:
        yield database


@pytest.fixture
def newest(database_of_this_worker: Named) -> Iterator[Database]:
    """PostgreSQL, where it can do more than the oldest."""
    with closing(emptied("postgresql-18", database_of_this_worker)) as database:
        yield database


def emptied(server: str, database_of_this_worker: Named) -> Database:
    database = Database(server, database_of_this_worker(server))
    database.create_tables()
    database.clear()
    return database
