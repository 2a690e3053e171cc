"""The processes of a run: started, frozen, thawed, stopped, killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.services.places import ROOT

GRACE = 20.0
"""Seconds that a process has to stop by itself."""


class Player:
    def __init__(self, name: str, module: str, orders: Any, log: Path) -> None:
        self.name = name
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.{module}", json.dumps(asdict(orders))],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                cwd=ROOT.parent,
                start_new_session=True,  # Ctrl-C is for us
            )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """Ask it to; after a while, make it."""
        self.thaw()
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.kill()

    def last_words(self, lines: int = 15) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, number)
