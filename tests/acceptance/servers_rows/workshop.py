"""Relay processes that share one outbox row by row, and what they did."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from postroom import Message, Outbox, Relay
from postroom.publishers.memory import MemoryPublisher
from postroom.relay.relay import Report
from tests.acceptance.servers.database import Database
from tests.acceptance.servers_rows.worker import EVENTS, Event, Work
from tests.waiting import eventually

PROJECT = Path(__file__).resolve().parents[3]
LEASE_TTL = 3.0
BATCH = 4
SETTINGS = {"lease_ttl": LEASE_TTL, "publish_timeout": 1.0, "batch_size": BATCH, "concurrency": BATCH}


class Worker:
    def __init__(self, database: Database, folder: Path, settings: dict[str, Any]) -> None:
        module = "tests.acceptance.servers_rows.worker"
        command = [sys.executable, "-m", module, database.url, str(folder), json.dumps(settings)]
        self.process = subprocess.Popen(command, cwd=PROJECT, stderr=subprocess.PIPE)
        self.pid = self.process.pid

    def stop(self) -> None:
        """Ask it to, and wait until it has."""
        self.ask_to_stop()
        _, said = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, said.decode()

    def ask_to_stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def is_frozen(self) -> bool:
        return psutil.Process(self.pid).status() == psutil.STATUS_STOPPED

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)


class Workshop:
    def __init__(self, database: Database, folder: Path) -> None:
        self.database = database
        self.folder = folder
        self._events = folder / EVENTS
        self._events.touch()
        self._workers: list[Worker] = []

    def start(self, **settings: Any) -> Worker:
        """Return when it has registered as a relay."""
        worker = Worker(self.database, self.folder, SETTINGS | settings)
        self._workers.append(worker)
        eventually(lambda: worker.pid in self.database.relays())
        return worker

    def add(self, works: Sequence[Work], keys: int = 0, once: Sequence[int] = ()) -> list[str]:
        """Messages that ask for this work, spread over so many keys or without any; their ids. Those with these numbers
        have the type "once"."""
        messages = [
            Message(
                topic="work",
                payload=work.to_json(),
                key=f"key-{number % keys}" if keys else None,
                type="once" if number in once else None,
            )
            for number, work in enumerate(works)
        ]
        with self.database.engine.begin() as connection:
            Outbox().add_many(connection, messages)
        return [message.id for message in messages]

    def add_until(self, enough: Callable[[], object], works: Sequence[Work], keys: int) -> list[str]:
        """Such messages, again and again; their ids."""
        ids: list[str] = []
        eventually(lambda: ids.extend(self.add(works, keys)) or enough())
        return ids

    def door(self) -> Path:
        return self.folder / "door"

    def drain(self) -> Report:
        """In this process."""
        relay = Relay(self.database.url, MemoryPublisher(), claim="rows", **SETTINGS)
        return asyncio.run(relay.drain())

    # --- what they did

    def events(self) -> list[Event]:
        return [Event(*json.loads(line)) for line in self._events.read_text().splitlines()]

    def begun(self, worker: Worker) -> list[str]:
        return [event.id for event in self.events() if event.what == "began" and event.pid == worker.pid]

    def done(self, worker: Worker | None = None) -> Counter[str]:
        """How often each message was worked on to the end, by this worker or by any."""
        pids = {worker.pid} if worker else {event.pid for event in self.events()}
        return Counter(event.id for event in self.events() if event.what == "done" and event.pid in pids)

    def left(self) -> dict[str, int]:
        """Rows that are not delivered, by table."""
        counts = {table: self.database.count(table) for table in ("outbox", "claims", "later", "parked", "dead")}
        return {table: count for table, count in counts.items() if count}

    def eventually_does(self, ids: Sequence[str]) -> None:
        """All of it, and nothing is left."""
        eventually(lambda: set(ids) <= set(self.done()), otherwise=lambda: f"{self.left()} {len(self.done())}")
        eventually(lambda: not self.left(), otherwise=self.left)

    # --- the end

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for worker in self._workers:
            if worker.process.poll() is None:
                worker.kill()
