"""A relay process with tasks: `python worker.py STORE LOG`. It ends when nothing is left to do, or by a task's hand."""

from __future__ import annotations

import asyncio
import os
import sys

from postroom import Relay, TaskContext, Tasks

STORE, LOG = sys.argv[1:]
tasks = Tasks()


def say(what: object) -> None:
    line = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(line, f"{what}\n".encode())
    os.close(line)


@tasks.task("good")
def good(payload: int) -> None:
    say(payload)


@tasks.task("good.async")
async def good_async(payload: int) -> None:
    await asyncio.sleep(0.001)
    say(payload)


@tasks.task("bad")
def bad(payload: int, context: TaskContext) -> None:
    say(f"bad {context.attempt}")
    os._exit(7)


async def main() -> None:
    relay = Relay(STORE, tasks=tasks, lease_ttl="1s", concurrency=8, batch_size=20, retry="never")
    print(await relay.drain())


asyncio.run(main())
