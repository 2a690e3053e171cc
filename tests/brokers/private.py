"""A private broker for one test, to be stopped and started as it pleases."""

from __future__ import annotations

import copy
import os
import shutil
from pathlib import Path
from urllib.parse import urlsplit

from tests.services import places
from tests.services.places import locked
from tests.services.processes import end, wait_until
from tests.services.registry import BROKERS
from tests.services.server import is_free

NOT_GIVEN = "POSTROOM_TEST_NEVER_SET"
"""A user's own broker is not stopped."""


class PrivateBroker:
    def __init__(self, name: str) -> None:
        self._server = copy.copy(BROKERS[name])
        self._server.variable = NOT_GIVEN
        self._server.name = f"private-{name}-{os.environ.get('PYTEST_XDIST_WORKER', 'only')}"

    def start(self) -> str:
        return self._server.url()

    def crash(self) -> None:
        """Without a goodbye."""
        with locked(self._server.name):
            end(self._folder, self._server.farewell)

    def start_again(self) -> None:
        """On the same port, with the same data."""
        port = int((self._folder / "port").read_text())
        wait_until(lambda: is_free(port), seconds=10)
        assert urlsplit(self._server.url()).port == port

    def stop(self) -> None:
        self._server.stop()
        assert wait_until(self._is_removed, seconds=10)

    def _is_removed(self) -> bool:
        shutil.rmtree(self._folder, ignore_errors=True)
        return not self._folder.exists()

    @property
    def _folder(self) -> Path:
        return (places.ROOT / self._server.name).resolve()
