"""The life of a private server, whatever it serves."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from tests.services import places
from tests.services.databases import Databases
from tests.services.places import Account, locked, whole
from tests.services.processes import Command, ServerUnavailable, end, launch, run, running, tail, wait_until

PORTS = range(20_000, 32_000)  # below the range from which outgoing connections take theirs


class Server(ABC):
    """A private instance: its own folder under `.services/`, its own port, loopback only.

    Its data is kept when it dies and thrown away when it is stopped. If the environment variable is set, the server is
    the user's own, and nothing is ever started or stopped.
    """

    name: str
    variable: str
    account: Account
    farewell: signal.Signals

    @abstractmethod
    def install(self) -> None:
        """Have its programs on this machine, or raise `ServerUnavailable`."""

    @abstractmethod
    def prepare(self, folder: Path, port: int) -> None:
        """Fill its folder with what `command` needs."""

    @abstractmethod
    def command(self, folder: Path, port: int) -> Command:
        """What runs it in the foreground."""

    @abstractmethod
    def address(self, port: int) -> str:
        """The URL of an administrator, without a driver."""

    @abstractmethod
    def ask_version(self, url: str) -> str:
        """Product and version as the server tells them; an error of any kind means that it does not answer."""

    def url(self) -> str:
        """Its URL. Start it unless it runs already; many processes may ask at once."""
        if given := os.environ.get(self.variable):
            return without_driver(given)
        with locked(self.name):
            folder = self._folder
            if not running(folder) or not self.is_current(folder):
                folder = self._start()
            return self.address(int((folder / "port").read_text()))

    def is_current(self, folder: Path) -> bool:
        """Whether one that runs there may go on, as what it depends on has not changed."""
        return True

    def stop(self) -> bool:
        """Stop it, by its own process id, and throw its data away. Return whether it ran."""
        with locked(self.name):
            ran = running(self._folder) is not None
            end(self._folder, self.farewell)
            shutil.rmtree(self._folder / "data", ignore_errors=True)
            return ran

    def status(self) -> str:
        if os.environ.get(self.variable):
            return f"given by {self.variable}"
        pid = running(self._folder)
        return f"runs as process {pid}: {self.url()}" if pid else "does not run"

    @property
    def _folder(self) -> Path:
        return (places.ROOT / self.name).resolve()

    def _start(self) -> Path:
        self.install()
        folder = places.settle(self.name, self.account)
        end(folder, self.farewell)
        if not (folder / "data").exists():
            (folder / "log").unlink(missing_ok=True)
        port = free_port(folder / "port")
        self.prepare(folder, port)
        launch(self.command(folder, port), folder, **self.account.rights)
        wait_until(lambda: self._answers(port) or has_ended(folder), seconds=30)
        if not self._answers(port):
            end(folder, self.farewell)
            raise ServerUnavailable(f"{self.name} did not start: {tail((folder / 'log').read_text())}")
        return folder

    def fill(self, folder: Path, create: Callable[[Path], Command]) -> None:
        """Give it data unless it has some: a copy of what the command `create` once made, as copying is quicker."""
        data, pristine = folder / "data", folder / "pristine"
        if not pristine.exists():
            with whole(pristine) as path:
                run(create(path), cwd=folder, **self.account.rights)
        if not data.exists():
            with whole(data) as path:
                run(["cp", "-Rp", pristine, path], cwd=folder, **self.account.rights)

    def _answers(self, port: int) -> bool:
        with suppress(Exception):
            self.ask_version(self.address(port))
            return True
        return False


class DatabaseServer(Server):
    databases: Databases

    def ask_version(self, url: str) -> str:
        return self.databases.version(url)


def has_ended(folder: Path) -> bool:
    """A process that has just begun may not be seen for a moment."""
    return not wait_until(lambda: running(folder) is not None, seconds=0.5)


def free_port(note: Path) -> int:
    """The port noted there if it is free, or else another, then noted."""
    noted = [int(note.read_text())] if note.exists() else []
    port = next(port for port in [*noted, *random.sample(PORTS, 100)] if is_free(port))
    note.write_text(str(port))
    return port


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return True
    return False


def without_driver(url: str) -> str:
    scheme = urlsplit(url).scheme
    return url.replace(scheme, scheme.split("+")[0], 1)
