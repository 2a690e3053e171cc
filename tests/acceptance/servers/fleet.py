"""Relay processes: started, stopped, killed and frozen, and what they published together."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from postroom.message import SLOTS
from tests.acceptance.servers.database import Database
from tests.acceptance.servers.deliveries import commit_order, in_order, out_of_order
from tests.acceptance.servers.worker import IMPORTS, Orders, Record, main
from tests.waiting import LONG, eventually

LEASE_TTL = 2.0
SETTINGS = {"lease_ttl": LEASE_TTL, "publish_timeout": 0.5, "batch_size": 20}


# A process that has imported everything is forked, which takes a tenth of the time.
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["tests.acceptance.servers.worker", *IMPORTS])
SPAWNED = multiprocessing.get_context("spawn")


class Worker:
    def __init__(self, orders: Orders, errors: Path) -> None:
        context = SPAWNED if orders.clock_is_wrong_by else FORKED
        self._process = context.Process(target=main, args=(orders, str(errors)))
        self._process.start()
        self.errors = errors

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def stop(self) -> None:
        """Ask it to, and wait until it has."""
        os.kill(self.pid, signal.SIGTERM)
        self._process.join(60)
        assert self._process.exitcode == 0, f"{self._process.exitcode} {self.said()}"

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def is_frozen(self) -> bool:
        assert self.is_running(), self.said()
        return psutil.Process(self.pid).status() == psutil.STATUS_STOPPED

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def is_running(self) -> bool:
        return self._process.is_alive()

    def said(self) -> str:
        return f"{self.pid}: {self.errors.read_text() if self.errors.exists() else ''}"


class Fleet:
    def __init__(self, database: Database, folder: Path) -> None:
        self._database = database
        self._folder = folder
        self._log = folder / "published"
        self._log.touch()
        self._workers: list[Worker] = []
        self._records: list[Record] = []
        self._read_to = 0

    def start(self, *, settings: dict[str, Any] | None = None, url: str | None = None, **orders: Any) -> Worker:
        """Return when it has registered as a relay."""
        worker = self.launch(settings=settings, url=url, **orders)
        self.eventually(lambda: worker.pid in self._database.relays())
        return worker

    def launch(self, *, settings: dict[str, Any] | None = None, url: str | None = None, **orders: Any) -> Worker:
        chosen = Orders(
            url=url or self._database.url, log=str(self._log), settings=SETTINGS | (settings or {}), **orders
        )
        worker = Worker(chosen, self._folder / f"errors-{len(self._workers)}")
        self._workers.append(worker)
        return worker

    # --- what they did

    def records(self) -> list[Record]:
        with open(self._log, "rb") as file:
            file.seek(self._read_to)
            lines = file.read().rpartition(b"\n")[0]  # the last one may not be there as a whole yet
        if lines:
            self._read_to += len(lines) + 1
            self._records += [Record(*json.loads(line)) for line in lines.splitlines()]
        return self._records

    def first_versions(self) -> dict[str, list[int]]:
        """The versions of each key in the order in which they were first published."""
        return in_order((record.key, record.version) for record in self.records() if record.version)

    def eventually_delivers_all(self) -> None:
        """In the order of commits, and nothing is left."""
        self.eventually(lambda: self._database.count("outbox") == 0)
        self.eventually(lambda: len(self._distinct()) >= sum(self._database.versions().values()))
        wrong = out_of_order(self.first_versions(), commit_order(self._database))
        assert not wrong, f"published, and committed: {wrong}"

    def _distinct(self) -> set[str]:
        return {record.id for record in self.records() if record.version}

    # --- who owns what

    def owns_all(self, worker: Worker) -> bool:
        return len(self.owned(worker)) == SLOTS

    def owned(self, worker: Worker) -> set[int]:
        """Its slots, by leases that are valid."""
        relay = self._database.relays().get(worker.pid)
        return {slot for slot, lease in self._database.leases().items() if lease.owner == relay and lease.is_valid}

    def eventually_share(self, *workers: Worker, within: float = LONG) -> None:
        """All slots fairly, and each has one owner."""
        shares = sorted(64 // len(workers) + (number < 64 % len(workers)) for number in range(len(workers)))
        self.eventually(
            lambda: sorted(len(self.owned(worker)) for worker in workers) == shares,
            within=within,
        )

    def _said(self) -> str:
        return "\n".join(worker.said() for worker in self._workers)

    def situation(self) -> str:
        """For the message of a test that failed."""
        owned = {worker.pid: len(self.owned(worker)) for worker in self._workers}
        return f"{self._said()}\nslots: {owned}\n{self._database.sessions()}"

    def eventually(self, condition: Callable[[], object], *, within: float = LONG) -> None:
        eventually(condition, within=within, otherwise=self.situation)

    # --- the end

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for worker in self._workers:
            if worker.is_running():
                worker.kill()
        print(self._said())  # shown if the test fails
