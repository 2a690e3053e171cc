"""Messages of other keys while a task takes its time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

from postroom import Relay, Tasks
from postroom.events import Event, LeasesTaken

from .backlog import Backlog, fill
from .drains import UNIT, on_copy
from .interleave import Comparison
from .relays import Stopwatch, nowhere
from .run import Run

LENGTH = 60.0
"""Seconds that the task takes, unless everything else is over before."""


def slowtask(run: Run) -> Comparison:
    """A task of 60 seconds runs in one key; the rate of messages in all the others."""
    ours = fill(run.database, Backlog(messages=run.messages, task="slow"))
    reference = fill(run.database, Backlog(messages=run.messages))
    return Comparison(
        ours=on_copy(run.database, ours, _rate(run.messages, is_slow=True)),
        reference=on_copy(run.database, reference, _rate(run.messages, is_slow=False)),
        unit=UNIT,
        reference_is="the same without the task",
    )


def _rate(messages: int, *, is_slow: bool) -> Callable[[str], float]:
    def measure(url: str) -> float:
        task = _Task()
        stopwatch = _Stopwatch(messages, task)
        tasks = Tasks()
        tasks.task("slow")(task.run)
        stopwatch.relay = Relay(url, nowhere(), tasks=tasks, observers=[stopwatch])
        asyncio.run(stopwatch.relay.drain())
        if task.ran != is_slow:
            raise RuntimeError("the task did not run beside the messages" if is_slow else "a task ran")
        return stopwatch.rate

    return measure


class _Task:
    def __init__(self) -> None:
        self.began: float | None = None
        self.is_over = threading.Event()
        self.ran = False

    def run(self, payload: None) -> None:
        self.began = time.monotonic()
        self.is_over.wait(LENGTH)

    def end(self) -> None:
        """Whether it was under way until now is what matters."""
        self.ran = self.began is not None and time.monotonic() < self.began + LENGTH
        self.is_over.set()


class _Stopwatch(Stopwatch):
    def __init__(self, messages: int, task: _Task) -> None:
        super().__init__(messages, LeasesTaken)
        self._task = task

    def notice(self, event: Event) -> None:
        super().notice(event)
        if self._ended and not self._task.is_over.is_set():
            self._task.end()
