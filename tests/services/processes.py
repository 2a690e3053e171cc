"""Programs: run to their end, or launched to outlive whoever asked; ended by their own process id."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

Command = Sequence[str | Path]

# The shell exits at once, so the server is nobody's child; it holds none of our files open.
LAUNCH = '"$@" </dev/null >>log 2>&1 & echo $! >pid'


class ServerUnavailable(Exception):
    """A server cannot be had here: why, and what to do."""


def run(command: Command, **options: Any) -> None:
    """Run it to its end, or raise `ServerUnavailable` with the end of what it said."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options)
    if done.returncode != 0:
        raise ServerUnavailable(f"{Path(command[0]).name} failed: {tail(done.stdout)}")


def launch(command: Command, folder: Path, **options: Any) -> None:
    """Start it in `folder`, detached, where its output goes to `log` and its process id to `pid`."""
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    shell = ["/bin/sh", "-c", LAUNCH, "launch", *command]
    subprocess.run(shell, cwd=folder, start_new_session=True, check=True, **quiet, **options)


def running(folder: Path) -> int | None:
    """The process id of what was launched in `folder`, while it runs.

    After a restart of the machine the number may be another's, so the process must work in the folder.
    """
    try:
        pid = int((folder / "pid").read_text())
        return pid if Path(psutil.Process(pid).cwd()).is_relative_to(folder) else None
    except (OSError, ValueError, psutil.Error):
        return None


def end(folder: Path, farewell: signal.Signals) -> None:
    """End what was launched in `folder`, and return when it is gone."""
    for signal_ in (farewell, signal.SIGKILL):
        pid = running(folder)
        if pid is None:
            return
        psutil.Process(pid).send_signal(signal_)
        wait_until(lambda: running(folder) is None, seconds=10)


def wait_until(condition: Callable[[], bool], *, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return met


def tail(text: str, lines: int = 15) -> str:
    return "\n".join(text.strip().splitlines()[-lines:]) or "it said nothing"
