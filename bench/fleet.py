"""Several relays at once, to a destination that takes its time."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from multiprocessing.connection import Connection

from sqlalchemy import Engine, exists, func, select

from postroom.errors import NotAttempted
from postroom.message import SLOTS
from postroom.ports import Batch, Features

from .backlog import TABLES, Backlog, add_backlog, set_up
from .interleave import Comparison
from .relays import running_relay
from .run import Run
from .waits import until

FLEET = 4
WORK = 0.1
"""Seconds for a batch, one batch at a time."""
POLL_INTERVAL = 0.1
"""Also while idle: how soon relays notice that there is work is not what is measured."""


def scale(run: Run) -> Comparison:
    """Four relays against one."""
    return Comparison(
        ours=lambda: rate_of_fleet(run, FLEET),
        reference=lambda: rate_of_fleet(run, 1),
        unit="messages/s",
        reference_is="one relay; each sends 100 messages in 100 ms at best",
    )


def rate_of_fleet(run: Run, relays: int) -> float:
    """From the moment at which relays that share the slots find a backlog, until there is none."""
    url = set_up(run.database)
    engine = run.database.engine(url)
    with ExitStack() as stack:
        stack.callback(run.database.drop, url)
        stack.callback(engine.dispose)
        for _ in range(relays):
            settings = {"poll_interval": POLL_INTERVAL, "idle_interval": POLL_INTERVAL}
            stack.enter_context(running_relay(url, SlowPublisher, **settings))
        until(lambda: shares(engine) == [SLOTS // relays] * relays, "the relays share the slots")
        add_backlog(run.database, url, Backlog(messages=run.messages))
        start = time.perf_counter()
        until(lambda: is_empty(engine), "the table is empty", seconds=600)
        return run.messages / (time.perf_counter() - start)


def shares(engine: Engine) -> list[int]:
    owner = TABLES.leases.c.owner
    owned = select(func.count()).where(owner.is_not(None)).group_by(owner)
    with engine.connect() as connection:
        return list(connection.execute(owned).scalars())


def is_empty(engine: Engine) -> bool:
    with engine.connect() as connection:
        return not connection.execute(select(exists().select_from(TABLES.hot))).scalar_one()


class SlowPublisher:
    features = Features(ordered=True, max_batch=100)  # it takes a batch as a whole or not at all

    def __init__(self, pipe: Connection) -> None:
        self._turn = asyncio.Lock()

    async def publish(self, batch: Batch) -> None:
        error = None
        async with self._turn:
            if batch.may_start():
                await asyncio.sleep(WORK)
            else:
                error = NotAttempted("there was no time left to start")
        for message in batch.messages:
            batch.answer(message, error)

    async def close(self) -> None: ...
