"""SQS and SNS as moto plays them: the real protocol, in memory."""

from __future__ import annotations

import signal
import sys
from importlib.metadata import version
from pathlib import Path
from urllib.request import urlopen

from tests.services.places import OUR_OWN
from tests.services.processes import Command, ServerUnavailable
from tests.services.server import Server


class Moto(Server):
    name = "moto"
    account = OUR_OWN
    farewell = signal.SIGKILL

    def __init__(self, *, variable: str) -> None:
        self.variable = variable

    def install(self) -> None:
        if not self._program.exists():
            raise ServerUnavailable(f"{self._program} is not there: make setup")

    def prepare(self, folder: Path, port: int) -> None:
        """It keeps nothing."""

    def command(self, folder: Path, port: int) -> Command:
        return [self._program, "-H", "127.0.0.1", "-p", str(port)]

    def address(self, port: int) -> str:
        return f"http://127.0.0.1:{port}"

    def ask_version(self, url: str) -> str:
        with urlopen(f"{url}/moto-api/", timeout=5) as answer:
            answer.read()
        return f"moto {version('moto')}"

    @property
    def _program(self) -> Path:
        return Path(sys.executable).parent / "moto_server"
