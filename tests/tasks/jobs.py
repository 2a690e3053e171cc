"""Tasks that run in processes of their own: another process finds them here."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from pathlib import Path

from postroom import Outbox, TaskContext, Tasks

outbox = Outbox()
tasks = Tasks(outbox, executor="process")


def say(path: str, what: object) -> None:
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(f"{what}\n")


@tasks.task("pid")
def pid(payload: str, context: TaskContext) -> None:
    say(payload, f"{os.getpid()} {context.attempt} {context.message_id}")


@tasks.task("pid.async")
async def pid_async(payload: str) -> None:
    await asyncio.sleep(0)
    say(payload, os.getpid())


@tasks.task("stuck", timeout="500ms")
def stuck(payload: str) -> None:
    say(payload, "begins")
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    time.sleep(60)
    say(payload, "ends")


@tasks.task("dies")
def dies(payload: int) -> None:
    os._exit(payload)


class Unpicklable(Exception):
    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


@tasks.task("fails")
def fails(payload: str) -> None:
    raise Unpicklable("not", payload)


@tasks.task("hangs")
def hangs(payload: str) -> None:
    say(payload, os.getpid())
    time.sleep(60)


@tasks.task("waits")
def waits(payload: str) -> None:
    """Until somebody adds to what it says."""
    say(payload, "begins")
    said = Path(payload).stat().st_size
    while Path(payload).stat().st_size == said:
        time.sleep(0.005)
    say(payload, "ends")


@tasks.task("hangs.once")
def hangs_once(payload: str, context: TaskContext) -> None:
    say(payload, context.attempt)
    if context.attempt == 1:
        time.sleep(60)


@tasks.task("brief", timeout="50ms")
def brief(payload: str) -> None:
    say(payload, "done")


@tasks.task("starts.another", timeout="500ms")
def starts_another(payload: str) -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        say(payload, child.pid)
