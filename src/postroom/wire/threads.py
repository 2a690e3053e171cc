"""Functions in threads that never keep the interpreter from exiting."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from queue import SimpleQueue
from typing import NamedTuple

from ..errors import DestinationUnavailable


class Outcome(NamedTuple):
    """What became of a call in a thread; a value, because a future cannot carry every exception (StopIteration)."""

    result: object
    error: BaseException | None


class Threads:
    """Threads that are started when none is idle, and are daemons: `ThreadPoolExecutor` would join a thread that hangs
    when the interpreter exits."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._closed = False

    def run(self, function: Callable[[], object]) -> Future[Outcome]:
        """Call the function in a thread; cancelling the future before that has begun prevents it. Raises
        `DestinationUnavailable` if there is no thread to be had: then nothing is called."""
        future: Future[Outcome] = Future()
        context = copy_context()
        if not self._take_idle():
            self._start_thread()  # first of all: a job without a thread would be done later by another's
        self._jobs.put(lambda: self._do(future, lambda: context.run(function)))
        return future

    def close(self) -> None:
        """Let idle threads end now, and the others when they are done."""
        self._closed = True
        while self._take_idle():
            self._jobs.put(None)

    def _start_thread(self) -> None:
        try:
            threading.Thread(target=self._serve, name="postroom-call", daemon=True).start()
        except RuntimeError as error:
            raise DestinationUnavailable(
                f"no thread could be started for a call ({error}): lower concurrency, or let the process have more"
            ) from error

    def _serve(self) -> None:
        while job := self._jobs.get():
            job()
            if self._closed:
                break

    def _do(self, future: Future[Outcome], call: Callable[[], object]) -> None:
        if not future.set_running_or_notify_cancel():
            return self._add_idle()
        try:
            outcome = Outcome(call(), None)
        except BaseException as error:
            outcome = Outcome(None, error)
        # Before the answer, which may bring the next job at once: it shall find this thread.
        self._add_idle()
        return future.set_result(outcome)

    def _add_idle(self) -> None:
        with self._lock:
            self._idle += 1

    def _take_idle(self) -> bool:
        with self._lock:
            taken = self._idle > 0
            self._idle -= taken
            return taken
