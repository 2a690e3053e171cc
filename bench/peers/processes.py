"""A driver in a process of its own, asked by lines of JSON."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

PROJECT = Path(__file__).resolve().parents[2]
PATIENCE = 120.0
ENDING_TIME = 20.0


class DriverFailed(Exception):
    """A driver could not do what it was told, or says nothing."""


class Driver:
    def __init__(self, python: Path, name: str, errors: IO[bytes]) -> None:
        self._name = name
        self._answers: queue.Queue[bytes] = queue.Queue()
        self._process = subprocess.Popen(
            [python, "-m", f"bench.peers.drivers.{name}_driver"],
            cwd=python.parents[1],  # some write logs to wherever they are
            env={**os.environ, "PYTHONPATH": str(PROJECT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        threading.Thread(target=self._listen, daemon=True).start()

    def ask(self, do: str, *, patience: float = PATIENCE, **what: Any) -> dict[str, Any]:
        self.tell(do, **what)
        return self.hear(patience)

    def tell(self, do: str, **what: Any) -> None:
        assert self._process.stdin
        with suppress(BrokenPipeError):  # `hear` says so
            self._process.stdin.write(json.dumps({"do": do, **what}).encode() + b"\n")
            self._process.stdin.flush()

    def hear(self, patience: float = PATIENCE) -> dict[str, Any]:
        try:
            line = self._answers.get(timeout=patience)
        except queue.Empty:
            raise DriverFailed(f"{self._name} said nothing for {patience:g} s") from None
        if not line:
            raise DriverFailed(f"{self._name} ended")
        answer = json.loads(line)
        if "error" in answer:
            raise DriverFailed(f"{self._name}: {answer['error']}")
        return answer

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """It ends when there is nothing more to read."""
        assert self._process.stdin
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(ENDING_TIME)
        except subprocess.TimeoutExpired:
            self.kill()

    def _listen(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put(b"")


@contextmanager
def driver(python: Path, name: str, errors: Path) -> Iterator[Driver]:
    """What it and its library complain of goes to the file `errors`."""
    with open(errors, "ab") as file:
        driver = Driver(python, name, file)
        try:
            yield driver
        finally:
            driver.close()
