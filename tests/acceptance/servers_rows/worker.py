"""A relay process with `claim="rows"`: `python -m tests.acceptance.servers_rows.worker URL FOLDER SETTINGS`.

It works on messages as their payloads tell it to, and writes what it does to a file that all workers share: lines are
appended whole, so their order is the order of events.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from postroom import Message, MessageRejected, Relay

EVENTS = "events"
POLL = 0.01
"""Seconds between two looks whether a door is open."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a message asks for."""

    seconds: float = 0.0
    door: str | None = None
    """A file: wait until it is there."""
    frozen_by: int | None = None
    """This process stops itself as SIGSTOP does, and refuses the message once it goes on."""

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()


class Event(NamedTuple):
    pid: int
    what: Literal["began", "done"]
    id: str
    attempt: int


class Hands:
    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / EVENTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def work(self, message: Message) -> None:
        work = Work(**json.loads(message.payload))
        self._note("began", message)
        if work.frozen_by == os.getpid():
            os.kill(os.getpid(), signal.SIGSTOP)
            raise MessageRejected("the relay slept over it")
        await asyncio.sleep(work.seconds)
        while work.door is not None and not Path(work.door).exists():  # noqa: ASYNC110 - another process opens it
            await asyncio.sleep(POLL)
        self._note("done", message)

    def _note(self, what: Literal["began", "done"], message: Message) -> None:
        line = json.dumps(Event(os.getpid(), what, message.id, message.attempt))
        os.write(self._file, line.encode() + b"\n")


def main() -> None:
    url, folder, settings = sys.argv[1:]
    hands = Hands(Path(folder))
    asyncio.run(Relay(url, hands.work, claim="rows", **json.loads(settings)).run(handle_signals=True))


if __name__ == "__main__":
    main()
