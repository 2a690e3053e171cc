"""Functions in processes of their own. They end when they are told to, and also when we are no more."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

from postroom.relay.process import collect_garbage_less

STARTING_TIME = 60.0
ENDING_TIME = 20.0

_spawn = multiprocessing.get_context("spawn")


@contextmanager
def child(function: Callable[..., None], *arguments: Any) -> Iterator[Connection]:
    """Call `function(pipe, *arguments)` in another process, once that has said that it is ready. At the end the pipe is
    closed, which it is to notice."""
    ours, theirs = _spawn.Pipe()
    process = _spawn.Process(target=_begin, args=(function, theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        heard = hear(ours, STARTING_TIME)
        if heard != "ready":
            raise RuntimeError(f"{function.__name__} did not start: {heard}")
        yield ours
    finally:
        ours.close()
        process.join(ENDING_TIME)
        if process.is_alive():
            process.kill()
            process.join()


def hear(pipe: Connection, timeout: float) -> Any:
    """What the other side says next."""
    if not pipe.poll(timeout):
        raise TimeoutError(f"another process of this bench said nothing for {timeout:g} s")
    return pipe.recv()


async def closed(pipe: Connection) -> None:
    """Wait until the other side closes the pipe, or dies."""
    await asyncio.to_thread(_wait_for_end, pipe)


def _wait_for_end(pipe: Connection) -> None:
    with suppress(EOFError, OSError):
        while True:
            pipe.recv()


def _begin(function: Callable[..., None], pipe: Connection, *arguments: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for us all, but the parent says when to end
    collect_garbage_less()
    with suppress(BrokenPipeError):
        function(pipe, *arguments)
