"""How much a process grows while it drains a backlog."""

from __future__ import annotations

import asyncio
import re
from multiprocessing.connection import Connection
from pathlib import Path

from postroom import Relay

from .backlog import Backlog, fill
from .children import child, hear
from .drains import copied
from .interleave import Comparison
from .relays import nowhere
from .run import Run

LIMIT = 100e6 / 2**20


def memory(run: Run) -> Comparison:
    """The peak of the resident memory during a drain, less what it was right before, against 100 MB."""
    template = fill(run.database, Backlog(messages=run.messages))

    def measure() -> float:
        with copied(run.database, template) as url, child(_drain, url) as pipe:
            return hear(pipe, 1_800)

    return Comparison(ours=measure, reference=lambda: LIMIT, unit="MiB", reference_is="the limit, 100 MB")


def _drain(pipe: Connection, url: str) -> None:
    relay = Relay(url, nowhere())
    pipe.send("ready")
    before = resident("VmRSS")
    asyncio.run(relay.drain())
    pipe.send(resident("VmHWM") - before)


def resident(name: str) -> float:
    """MiB now (`VmRSS`) or at most so far (`VmHWM`), as Linux says. What `getrusage` says begins with the parent's."""
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    if not found:
        raise RuntimeError("this system does not say how much memory a process has")
    return int(found[1]) / 1024
