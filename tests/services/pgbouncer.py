"""PgBouncer in front of a PostgreSQL, as it is mostly run: clients have a session for the length of a transaction."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.services import packages
from tests.services.databases import PostgreSQLDatabases, at_database
from tests.services.places import Account
from tests.services.processes import Command
from tests.services.server import DatabaseServer

# What is not set is at its default, so that tests meet what users meet.
SETTINGS = """\
[databases]
{route}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 50
max_client_conn = 500
ignore_startup_parameters = extra_float_digits
"""


class PgBouncer(DatabaseServer):
    name = "pgbouncer"
    account = Account(("postgres", "nobody"))
    farewell = signal.SIGTERM
    databases = PostgreSQLDatabases()

    def __init__(self, upstream: DatabaseServer, *, variable: str) -> None:
        self.variable = variable
        self._upstream = upstream

    def install(self) -> None:
        self._program()

    def prepare(self, folder: Path, port: int) -> None:
        settings = folder / "settings.ini"
        settings.touch(mode=0o600)  # a user's own upstream may have a password
        settings.write_text(SETTINGS.format(route=self._route(), port=port))
        self.account.own(settings)

    def is_current(self, folder: Path) -> bool:
        return self._route() in (folder / "settings.ini").read_text().splitlines()

    def command(self, folder: Path, port: int) -> Command:
        return [self._program(), folder / "settings.ini"]

    def address(self, port: int) -> str:
        name = urlsplit(self._upstream.url()).path.lstrip("/")
        return f"postgresql://postgres@127.0.0.1:{port}/{name}"

    def ask_version(self, url: str) -> str:
        super().ask_version(url)
        with suppress(Exception):  # a user's own need not let us into its console
            return PostgreSQLDatabases().ask(at_database(url, "pgbouncer"), "SHOW VERSION")
        return "PgBouncer"

    def _route(self) -> str:
        """Every database is the upstream's of the same name, and every user is its administrator."""
        parts = urlsplit(self._upstream.url())
        options = {
            "host": parts.hostname or "127.0.0.1",
            "port": str(parts.port or 5432),
            "user": unquote(parts.username or "postgres"),
            "password": unquote(parts.password or ""),
        }
        quoted = {key: value.replace("'", "''") for key, value in options.items() if value}
        return "* = " + " ".join(f"{key}='{value}'" for key, value in quoted.items())

    def _program(self) -> str:
        return packages.program("pgbouncer", package="pgbouncer")
