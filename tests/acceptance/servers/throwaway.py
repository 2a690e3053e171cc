"""A private database server for one test, to be restarted as it pleases."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import cast

from tests.acceptance.servers.database import Database
from tests.services.databases import PostgreSQLDatabases, at_database
from tests.services.private import PrivateServer
from tests.services.processes import run
from tests.services.server import DatabaseServer


class Throwaway(PrivateServer):
    def start_with_database(self) -> Database:
        url = self.start()
        cast(DatabaseServer, self.server).databases.create(url, "restarted")
        return Database(self.original, at_database(url, "restarted"))

    def back_up(self) -> None:
        """What a replica knows that goes on for a while without hearing anything. The server is down."""
        run(["cp", "-Rp", self.folder / "data", self.folder / "replica"])

    def promote_backup(self) -> None:
        """The server is lost, and the replica takes its place."""
        data, replica = self.folder / "data", self.folder / "replica"
        shutil.rmtree(data)
        replica.rename(data)
        run(["cp", "-p", data / "PG_VERSION", data / "standby.signal"])
        self.start_again()
        PostgreSQLDatabases().ask(self.server.url(), "SELECT pg_promote()")


@contextmanager
def throwaway(server: str) -> Iterator[tuple[Throwaway, Database]]:
    private = Throwaway(server)
    try:
        with closing(private.start_with_database()) as database:
            database.create_tables()
            yield private, database
    finally:
        private.stop()
