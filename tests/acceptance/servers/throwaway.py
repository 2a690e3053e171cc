"""A private server for one test, to be restarted as it pleases."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sqlalchemy import make_url

from tests.acceptance.servers.database import Database
from tests.services import places
from tests.services.databases import PostgreSQLDatabases, at_database
from tests.services.mariadb import MariaDB
from tests.services.places import locked
from tests.services.postgresql import PostgreSQL
from tests.services.processes import end, run, wait_until
from tests.services.registry import MARIADB, OLDEST
from tests.services.server import DatabaseServer, is_free

NOT_GIVEN = "POSTROOM_TEST_NEVER_SET"
"""A user's own server is not restarted."""


class Throwaway:
    def __init__(self, server: str) -> None:
        self._server: DatabaseServer = (
            MariaDB(variable=NOT_GIVEN) if server == "mariadb" else PostgreSQL(15, variable=NOT_GIVEN)
        )
        self._server.name = f"throwaway-{server}-{os.environ.get('PYTEST_XDIST_WORKER', 'only')}"
        self._original = MARIADB if server == "mariadb" else OLDEST

    def start(self) -> Database:
        self._copy_pristine()
        url = self._server.url()
        self._server.databases.create(url, "restarted")
        return Database(self._original.name, at_database(url, "restarted"))

    def crash(self) -> None:
        """Without a goodbye: what was not committed is lost, and what was is not."""
        with locked(self._server.name):
            end(self._folder, self._server.farewell)

    def start_again(self) -> None:
        """On the same port, with the same data. The threads of a process that was killed may be there for a moment."""
        port = int((self._folder / "port").read_text())
        wait_until(lambda: is_free(port), seconds=10)
        assert make_url(self._server.url()).port == port

    def back_up(self) -> None:
        """What a replica knows that goes on for a while without hearing anything. The server is down."""
        run(["cp", "-Rp", self._folder / "data", self._folder / "replica"])

    def promote_backup(self) -> None:
        """The server is lost, and the replica takes its place."""
        data, replica = self._folder / "data", self._folder / "replica"
        shutil.rmtree(data)
        replica.rename(data)
        run(["cp", "-p", data / "PG_VERSION", data / "standby.signal"])
        self.start_again()
        PostgreSQLDatabases().ask(self._server.url(), "SELECT pg_promote()")

    def stop(self) -> None:
        self._server.stop()
        assert wait_until(self._is_removed, seconds=10)

    def _is_removed(self) -> bool:
        """The server's children may outlive it for a moment, and write."""
        shutil.rmtree(self._folder, ignore_errors=True)
        return not self._folder.exists()

    @property
    def _folder(self) -> Path:
        return (places.ROOT / self._server.name).resolve()

    def _copy_pristine(self) -> None:
        """Data that was made for the shared server need not be made again."""
        source = (places.ROOT / self._original.name).resolve() / "pristine"
        folder = places.settle(self._server.name, self._server.account)
        if source.exists() and not (folder / "pristine").exists():
            with places.whole(folder / "pristine") as path:
                run(["cp", "-Rp", source, path])


@contextmanager
def throwaway(server: str) -> Iterator[tuple[Throwaway, Database]]:
    private = Throwaway(server)
    try:
        with closing(private.start()) as database:
            database.create_tables()
            yield private, database
    finally:
        private.stop()
