"""Functions in processes of their own, which can be ended at any moment and take nobody down with them."""

from __future__ import annotations

import asyncio
import inspect
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import reduce
from importlib import import_module
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from ..duration import spell
from ..errors import ConfigurationError
from ..failures import describe
from ..wire.threads import Outcome, Threads

SPAWN = multiprocessing.get_context("spawn")
"""A fork of a process with threads may hang."""


BEGUN = "begun"


class Place(NamedTuple):
    """Where another process finds a task."""

    module: str
    name: str

    @classmethod
    def of(cls, function: Any, task: str) -> Place:
        if "<" in (name := function.__qualname__):
            raise ConfigurationError(
                f"task {task!r}: {name} is defined within a function, where no other process finds it; with "
                "executor='process' it must be at the top of a module"
            )
        return cls(function.__module__, name)

    def find(self) -> Any:
        return reduce(getattr, self.name.split("."), import_module(self.module))


class Job(NamedTuple):
    place: Place
    payload: bytes
    context: Any


class Processes:
    """Each does one thing at a time, and is kept for the next."""

    def __init__(self) -> None:
        self._idle: list[_Worker] = []
        self._threads = Threads()

    async def run(self, job: Job, timeout: float | None) -> Outcome:
        """What became of it. After the time-out, and when this is cancelled, it runs no more."""
        if (worker := self._idle_one()) is not None:
            outcome = await self._run(worker, job, timeout)
            if not isinstance(outcome.error, GoneBefore):
                return outcome
        return await self._run(_Worker(), job, timeout)

    async def _run(self, worker: _Worker, job: Job, timeout: float | None) -> Outcome:
        loop = asyncio.get_running_loop()
        begun: asyncio.Future[None] = loop.create_future()
        future = self._threads.run(lambda: worker.run(job, lambda: loop.call_soon_threadsafe(_set, begun)))
        done = asyncio.wrap_future(future)
        try:
            await asyncio.wait([done, begun], return_when=asyncio.FIRST_COMPLETED)  # its imports are not its fault
            await asyncio.wait([done], timeout=timeout)
        finally:
            is_late = not done.done()
            if is_late:
                worker.kill()
        outcome = await done
        if worker.is_alive():
            self._idle.append(worker)
        if is_late and outcome.error is not None:
            return Outcome(None, TimeoutError(f"no return within {spell(timeout or 0)}: its process was ended"))
        error = outcome.error if outcome.error is not None else outcome.result
        return Outcome(None, error if isinstance(error, BaseException) else None)

    def _idle_one(self) -> _Worker | None:
        while self._idle:
            if (worker := self._idle.pop()).is_alive():
                return worker
        return None

    def close(self) -> None:
        while self._idle:
            self._idle.pop().kill()
        self._threads.close()
        self._threads = Threads()


class ProcessDied(Exception):
    """The process that a task ran in is gone."""


class GoneBefore(ProcessDied):
    """Before the task began: if the process had done others, it need not be for what it was asked."""


class _Worker:
    def __init__(self) -> None:
        self._connection, theirs = SPAWN.Pipe()
        self._process = SPAWN.Process(target=_serve, args=(theirs,), name="postroom-task", daemon=True)
        self._process.start()
        theirs.close()

    def run(self, job: Job, begin: Callable[[], object]) -> BaseException | None:
        """Returns what the function raised; blocks meanwhile. `begin` is called when it begins."""
        death: type[ProcessDied] = GoneBefore
        try:
            self._connection.send(job)
            if (answer := self._connection.recv()) != BEGUN:
                return answer
            death = ProcessDied
            begin()
            return self._connection.recv()
        except (EOFError, OSError):
            self._process.join()
            raise death(f"its process died with exit status {self._process.exitcode}") from None

    def is_alive(self) -> bool:
        return self._process.is_alive()

    def kill(self) -> None:
        """At once, with all that it has started: nothing is left of it afterwards."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid or 0, signal.SIGKILL)
        self._process.kill()
        self._process.join()


def _serve(connection: Connection) -> None:
    os.setsid()  # out of reach of Ctrl-C, which is for the relay
    threading.Thread(target=_follow_parent, daemon=True).start()
    while True:
        try:
            job: Job = connection.recv()
        except EOFError:
            return
        connection.send(_picklable(_error_of(job, lambda: connection.send(BEGUN))))


def _follow_parent() -> None:
    """Nobody would hear what becomes of it, and another relay may run it next."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _error_of(job: Job, begin: Callable[[], object]) -> BaseException | None:
    try:
        task = job.place.find()
        if not hasattr(task, "read"):
            return TypeError(
                f"{job.place.module}.{job.place.name} is the function, not the task: another process finds a task by "
                "the name of its function, so give what `tasks.task` returns that name"
            )
        payload = task.read(job.payload)
        arguments = (payload, job.context) if task.takes_context else (payload,)
        begin()
        _call(task.function, arguments)
    except BaseException as error:
        return error
    return None


def _call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    result = function(*arguments)
    if not inspect.iscoroutinefunction(function):
        if inspect.isawaitable(result):
            raise TypeError("a sync function returned something to be awaited, which nobody does: make it `async def`")
        return
    asyncio.run(result)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _picklable(error: BaseException | None) -> BaseException | None:
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own words, to see that they arrive
    except Exception:
        return RuntimeError(describe(error) if error is not None else "")
    return error
