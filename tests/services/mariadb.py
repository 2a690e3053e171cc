"""MariaDB, the distribution's. The isolation level is left at its default, as applications leave it."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

from tests.services import packages, places
from tests.services.databases import MySQLDatabases
from tests.services.places import Account
from tests.services.processes import Command
from tests.services.server import DatabaseServer

CERTIFICATE = "server.pem"
SETTINGS = [
    "--bind-address=127.0.0.1",
    "--socket=socket",  # within its data: the path of a socket must be short
    "--skip-name-resolve",
    "--max-connections=300",
    "--innodb-buffer-pool-size=256M",
    "--innodb-flush-log-at-trx-commit=1",
]


class MariaDB(DatabaseServer):
    name = "mariadb"
    account = Account(("mysql", "nobody"))
    farewell = signal.SIGKILL  # its data is thrown away
    databases = MySQLDatabases()

    def __init__(self, *, variable: str) -> None:
        self.variable = variable

    def install(self) -> None:
        self._program("mariadbd")

    def prepare(self, folder: Path, port: int) -> None:
        options = ["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]
        create = [self._program("mariadb-install-db"), *options]
        self.fill(folder, lambda data: [*create, f"--datadir={data}"])
        shutil.copy(places.CERTIFICATES / CERTIFICATE, folder)
        self.account.own(folder / CERTIFICATE)

    def command(self, folder: Path, port: int) -> Command:
        own = [f"--datadir={folder / 'data'}", f"--port={port}"]
        own += [f"--ssl-{each}={folder / CERTIFICATE}" for each in ("cert", "key")]  # for clients that ask for it
        return [self._program("mariadbd"), "--no-defaults", *own, *SETTINGS]

    def address(self, port: int) -> str:
        return f"mysql://root@127.0.0.1:{port}/mysql"

    def _program(self, name: str) -> str:
        return packages.program(name, package="mariadb-server")
