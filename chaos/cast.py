"""The processes of a run: started, frozen, thawed, stopped, killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.services.places import ROOT

GRACE = 20.0
"""Seconds that a process has to stop by itself."""


class Player:
    def __init__(self, name: str, module: str, orders: Any, log: Path) -> None:
        self.name = name
        self.module = module
        self._log = log
        self._was_ended = False
        """By us."""
        self._is_unwilling = False
        """It did not stop when it was asked to."""
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.{module}", json.dumps(asdict(orders))],
                stdin=subprocess.PIPE,  # its end is ours: see parent.py
                stdout=errors,
                stderr=errors,
                cwd=ROOT.parent,
                start_new_session=True,  # Ctrl-C is for us
            )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def failure(self) -> str | None:
        """What it did that nobody asked for."""
        status = self._process.poll()
        if self._is_unwilling:
            return f"{self.name} did not stop within {GRACE:g} s"
        if status is None or self._was_ended:
            return None
        return f"{self.name} ended with status {status}"

    def has_said(self, words: str) -> bool:
        return words in self._log.read_text(errors="replace")

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        self._was_ended = self._was_ended or self.is_running
        self._signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """Ask it to; after a while, make it."""
        was_running = self.is_running
        self.thaw()
        self._signal(signal.SIGTERM)
        try:
            status = self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self._is_unwilling = True
            self.kill()
        else:
            too_early = status == -signal.SIGTERM and not self._log.stat().st_size  # before it could listen
            self._was_ended = self._was_ended or (was_running and (status == 0 or too_early))

    def last_words(self, lines: int = 15) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    def _signal(self, number: int) -> None:
        self._process.send_signal(number)  # which looks whether it is still there
