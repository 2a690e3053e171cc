"""Relays in real processes that are stopped, or killed, while a task runs in a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from postroom import Desk
from tests.tasks import jobs
from tests.waiting import LONG, eventually

ROOT = Path(__file__).parents[2]


class Place:
    """A database, and what the task says."""

    def __init__(self, folder: Path) -> None:
        self.database = folder / "shop.db"
        self.log = folder / "log"

    @property
    def store(self) -> str:
        return f"sqlite:///{self.database}"

    def said(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def schedule(self, task: Any) -> None:
        with closing(sqlite3.connect(self.database)) as connection, connection:
            task.schedule(connection, str(self.log))

    @contextmanager
    def relay(self, *options: str) -> Generator[subprocess.Popen[str]]:
        """In a group of its own, as in a terminal, where Ctrl-C reaches the whole group."""
        command = [sys.executable, "-m", "postroom", "--store", self.store, "relay", "--app", "tests.tasks.jobs:tasks"]
        relay = subprocess.Popen(
            [*command, *options], cwd=ROOT, start_new_session=True, stderr=subprocess.PIPE, text=True
        )
        with relay:
            try:
                yield relay
            finally:
                relay.kill()

    def pending(self) -> int:
        return asyncio.run(self._pending())

    async def _pending(self) -> int:
        async with Desk(self.store) as desk:
            return (await desk.status()).counts["pending"]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def press_ctrl_c(relay: subprocess.Popen[str]) -> None:
    os.killpg(relay.pid, signal.SIGINT)


def children_of(relay: subprocess.Popen[str]) -> list[psutil.Process]:
    children = psutil.Process(relay.pid).children(recursive=True)
    assert children
    return children


def is_gone(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def ending_of(relay: subprocess.Popen[str]) -> int:
    """Its status, once it has ended by itself and without a word of alarm."""
    _, stderr = relay.communicate(timeout=LONG)
    assert "Traceback" not in stderr, stderr
    return relay.returncode


def test_ctrl_c_lets_a_task_in_a_process_come_to_its_end(place: Place) -> None:
    place.schedule(jobs.waits)
    with place.relay("--stop-timeout", f"{LONG:g}s") as relay:
        eventually(place.said)
        children = children_of(relay)
        press_ctrl_c(relay)
        jobs.say(str(place.log), "end")
        assert ending_of(relay) == 0
    eventually(lambda: all(is_gone(child) for child in children))
    assert (place.said(), place.pending()) == (["begins", "end", "ends"], 0)


def test_ctrl_c_ends_a_task_in_a_process_that_takes_too_long(place: Place) -> None:
    place.schedule(jobs.hangs)
    with place.relay("--stop-timeout", "100ms") as relay:
        eventually(place.said)
        children = children_of(relay)
        press_ctrl_c(relay)
        assert ending_of(relay) == 0
    eventually(lambda: all(is_gone(child) for child in children))
    assert place.pending() == 1


def test_a_run_that_ended_with_its_relay_counts(place: Place) -> None:
    place.schedule(jobs.hangs_once)
    with place.relay("--lease-ttl", "2s") as relay:
        eventually(place.said)
        relay.kill()
    with place.relay("--lease-ttl", "2s"):
        eventually(lambda: place.said()[-1] == "2")
        eventually(lambda: place.pending() == 0)
