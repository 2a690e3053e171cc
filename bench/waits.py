"""A relay with next to nothing to do: how soon it notices a message, and how often it asks."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

import asyncpg
from sqlalchemy import Connection as SqlConnection
from sqlalchemy import Engine, text

from postroom import Outbox
from postroom.ports import Batch, Features
from postroom.settings import Settings

from .backlog import PAYLOAD, TOPIC, set_up
from .children import child, closed, hear
from .database import COLUMNS, Database
from .interleave import Comparison
from .relays import running_relay
from .run import Run
from .writes import insert_by_hand, row_by_hand

CHANNEL = "bench"
PAUSES = (0.15, 0.4)
"""Seconds between two messages: mostly enough to fall asleep."""
FALLING_ASLEEP = 5.0
LIMITS = {"postgresql": 2.0, "mysql": 12.0}
"""Statements per second."""


# --- latency


def latency(run: Run) -> Comparison:
    """From the commit of a single message to its publishing, by a relay in another process that was idle."""
    url = set_up(run.database)
    engine = run.database.engine(url)
    run.stack.callback(engine.dispose)
    pipe = run.stack.enter_context(running_relay(url, StampingPublisher))
    outbox, chance = Outbox(), random.Random(0)

    def add(connection: SqlConnection) -> None:
        outbox.add(connection, TOPIC, PAYLOAD, key="key")

    ours = lambda: [delay_of(engine, add, pipe, chance) for _ in range(run.messages)]  # noqa: E731
    if run.database.store != "postgresql":
        interval = Settings().poll_interval
        return Comparison(ours=ours, reference=lambda: interval * 1000, unit="ms", reference_is="poll_interval")
    return Comparison(
        ours=ours,
        reference=raw_latency(run, chance),
        unit="ms",
        reference_is="asyncpg alone: LISTEN, and a SELECT when notified",
    )


def raw_latency(run: Run, chance: random.Random) -> Callable[[], Sequence[float]]:
    url = set_up(run.database)
    engine = run.database.engine(url)
    run.stack.callback(engine.dispose)
    pipe = run.stack.enter_context(child(listen, url))
    insert = insert_by_hand()

    def add(connection: SqlConnection) -> None:
        connection.execute(insert, row_by_hand(1))
        connection.execute(text(f"SELECT pg_notify('{CHANNEL}', '')"))

    return lambda: [delay_of(engine, add, pipe, chance) for _ in range(run.messages)]


def delay_of(engine: Engine, add: Callable[[SqlConnection], object], pipe: Connection, chance: random.Random) -> float:
    """Milliseconds from when the commit was sent: it returns to us no sooner than it is heard of elsewhere."""
    time.sleep(chance.uniform(*PAUSES))
    with engine.connect() as connection:
        add(connection)
        sent = time.monotonic()
        connection.commit()
    return (hear(pipe, 10) - sent) * 1000


class StampingPublisher:
    """Says when it got a message. The clock is the same in all processes."""

    features = Features(ordered=True)

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    async def publish(self, batch: Batch) -> None:
        now = time.monotonic()
        for message in batch.messages:
            self._pipe.send(now)
            batch.answer(message)

    async def close(self) -> None: ...


def listen(pipe: Connection, url: str) -> None:
    asyncio.run(_listen(pipe, url))


async def _listen(pipe: Connection, url: str) -> None:
    connection = await asyncpg.connect(url)
    rung = asyncio.Event()
    await connection.add_listener(CHANNEL, lambda *_: rung.set())
    answering = asyncio.create_task(_answer(pipe, connection, rung))
    pipe.send("ready")
    await closed(pipe)
    answering.cancel()
    await connection.close()


async def _answer(pipe: Connection, connection: asyncpg.Connection, rung: asyncio.Event) -> None:
    question = f"SELECT {', '.join(COLUMNS)} FROM postroom_outbox WHERE position > $1 ORDER BY position LIMIT 500"
    after = 0
    while True:
        await rung.wait()
        rung.clear()
        for row in await connection.fetch(question, after):
            after = row[0]
            pipe.send(time.monotonic())


# --- idle


def idle(run: Run) -> Comparison:
    """Statements per second of a relay that sleeps, against the limit."""
    database, url = run.database, set_up(run.database)
    others = statements_per_second(database, url, 2.0)
    run.stack.enter_context(running_relay(url))
    time.sleep(FALLING_ASLEEP + database.counting_lag)
    limit = LIMITS[database.store]
    return Comparison(
        ours=lambda: statements_per_second(database, url, run.messages),
        reference=lambda: limit,
        unit="statements/s",
        reference_is="the limit",
        notes={
            "counted_by": database.counted_by,
            "without_a_relay": f"{others:.1f}",
            "messages_are": "seconds a round",
        },
    )


def statements_per_second(database: Database, url: str, seconds: float) -> float:
    before, start = database.count_statements(url), time.monotonic()
    time.sleep(seconds)
    count = database.count_statements(url) - before
    return count / (time.monotonic() - start)


def until(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:g} s: {what}")
        time.sleep(0.02)
