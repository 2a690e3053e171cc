"""Each test runs on both databases, with the outbox's tables in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.acceptance.servers.database import Database
from tests.acceptance.servers_rows.workshop import Workshop


@pytest.fixture(params=["postgresql-15", "mariadb"])
def workshop(
    request: pytest.FixtureRequest, database_of_this_worker: Callable[[str], str], tmp_path: Path
) -> Iterator[Workshop]:
    database = Database(request.param, database_of_this_worker(request.param))
    database.create_tables()
    database.clear()
    with closing(database), Workshop(database, tmp_path) as workshop:
        yield workshop
