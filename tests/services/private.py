"""A server of one's own, to be killed and started again as one pleases."""

from __future__ import annotations

import copy
import os
import shutil
import signal
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from tests.services import places
from tests.services.places import locked
from tests.services.processes import end, run, wait_until
from tests.services.registry import SERVERS
from tests.services.server import is_free

NOT_GIVEN = "POSTROOM_TEST_NEVER_SET"
"""A user's own server is not stopped."""


class PrivateServer:
    """Another of those that the tests share. `purpose`: whoever has the same gets the same, within a test process."""

    def __init__(self, name: str, purpose: str = "private") -> None:
        self.original = SERVERS[name].name
        self.server = copy.copy(SERVERS[name])
        self.server.variable = NOT_GIVEN
        self.server.name = f"{purpose}-{name}-{os.environ.get('PYTEST_XDIST_WORKER', 'only')}"

    def start(self) -> str:
        self._copy_pristine()
        return self.server.url()

    def crash(self) -> None:
        """Without a goodbye: of a database, what was not committed is lost, and what was is not."""
        with locked(self.server.name):
            end(self.folder, self.server.farewell)

    def restart(self) -> None:
        """With a goodbye: all that it has is on disk."""
        with locked(self.server.name):
            end(self.folder, signal.SIGTERM)
        self.start_again()

    def start_again(self) -> None:
        """On the same port, with the same data. The threads of a process that was killed may be there for a moment, and
        its number for longer: PostgreSQL does not start while there is anything by that number."""
        port, pid = int((self.folder / "port").read_text()), int((self.folder / "pid").read_text())
        wait_until(lambda: is_free(port) and not psutil.pid_exists(pid), seconds=10)
        assert urlsplit(self.server.url()).port == port

    def stop(self) -> None:
        self.server.stop()
        assert wait_until(self._is_removed, seconds=10)

    @property
    def folder(self) -> Path:
        return (places.ROOT / self.server.name).resolve()

    def _is_removed(self) -> bool:
        """The server's children may outlive it for a moment, and write."""
        shutil.rmtree(self.folder, ignore_errors=True)
        return not self.folder.exists()

    def _copy_pristine(self) -> None:
        """Data that was made for the shared server need not be made again."""
        source = (places.ROOT / self.original).resolve() / "pristine"
        folder = places.settle(self.server.name, self.server.account)
        if source.exists() and not (folder / "pristine").exists():
            with places.whole(folder / "pristine") as path:
                run(["cp", "-Rp", source, path])
