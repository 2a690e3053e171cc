"""What the doorbell costs sixteen writers at once, while the owner of their slots sleeps and wakes. PostgreSQL only.

The writers pause now and then, so that the relay falls asleep and has to be woken. After plain inserts nobody rings,
and the relay would sleep on and leave the processor to the writers: so then it is rung for from outside, as often as a
relay without a doorbell would look.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, LiteralString, NamedTuple, cast

import asyncpg
import psycopg
from sqlalchemy import select

from postroom import Outbox
from postroom.message import SLOTS
from postroom.settings import Settings
from postroom.stores.schema import bell_channel

from .backlog import PAYLOAD, TABLES, TOPIC, keys_in, set_up
from .children import child, hear
from .database import Database
from .interleave import Comparison
from .relays import running_relay
from .run import Run
from .waits import until

PROCESSES = 4
WRITERS = 4
"""In each process."""
RELAYS = 2
BURST = 1.5
PAUSE = 0.5
"""Seconds: longer than the relay takes to fall asleep."""
LOOK = Settings().poll_interval


class Burst(NamedTuple):
    start: float
    end: float


def doorbell(run: Run) -> Comparison:
    """Single inserts with the doorbell against plain ones; two relays, of which one is idle, and an old snapshot."""
    url = set_up(run.database)
    for _ in range(RELAYS):
        run.stack.enter_context(running_relay(url))
    owned = slots_of_one_relay(run.database, url)
    run.stack.enter_context(run.database.snapshot(url))
    keys = keys_in(owned, PROCESSES * WRITERS)
    pipes = [run.stack.enter_context(child(write, url, keys[number::PROCESSES])) for number in range(PROCESSES)]
    return Comparison(
        ours=lambda: commits_per_second(url, pipes, run.messages, owned, rings=True),
        reference=lambda: commits_per_second(url, pipes, run.messages, owned, rings=False),
        unit="transactions/s",
        reference_is="plain inserts, which ring no bell",
        notes={"messages_are": f"bursts of {BURST:g} s a round"},
    )


def slots_of_one_relay(database: Database, url: str) -> Sequence[int]:
    leases = TABLES.leases.c
    engine = database.engine(url)

    def owned() -> dict[str, list[int]]:
        with engine.connect() as connection:
            owners: dict[str, list[int]] = {}
            for slot, owner in connection.execute(select(leases.slot, leases.owner).where(leases.owner.is_not(None))):
                owners.setdefault(owner, []).append(slot)
            return owners

    until(lambda: sorted(map(len, owned().values())) == [SLOTS // RELAYS] * RELAYS, "the relays share the slots")
    slots = next(iter(owned().values()))
    engine.dispose()
    return slots


def commits_per_second(
    url: str, pipes: Sequence[Connection], number: int, slots: Sequence[int], *, rings: bool
) -> float:
    for pipe in pipes:
        pipe.send(rings)
    for pipe in pipes:
        hear(pipe, 30)
    first = time.monotonic() + PAUSE
    starts = [first + each * (BURST + PAUSE) for each in range(number)]
    bursts = [Burst(start, start + BURST) for start in starts]
    for pipe in pipes:
        pipe.send(bursts)
    if not rings:
        ring_during(bursts, url, slots)
    return sum(hear(pipe, 60) for pipe in pipes) / (number * BURST)


def ring_during(bursts: Sequence[Burst], url: str, slots: Sequence[int]) -> None:
    ring = f"SELECT pg_notify('{bell_channel(TABLES)}', slot::text) FROM unnest(%s::int[]) AS slot"
    with psycopg.connect(url, autocommit=True) as connection:
        for burst in bursts:
            time.sleep(max(0.0, burst.start - time.monotonic()))
            while time.monotonic() < burst.end:
                connection.execute(cast(LiteralString, ring), [list(slots)])
                time.sleep(LOOK)


# --- in the writers' processes


def write(pipe: Connection, url: str, keys: Sequence[str]) -> None:
    pipe.send("ready")
    try:
        while True:
            rings = pipe.recv()
            asyncio.run(_write(pipe, url, keys, rings))
    except EOFError:
        return


async def _write(pipe: Connection, url: str, keys: Sequence[str], rings: bool) -> None:
    connections = [await asyncpg.connect(url) for _ in range(WRITERS)]
    try:
        inserts = [await insert_of(connection, key, rings) for connection, key in zip(connections, keys, strict=True)]
        pipe.send("connected")
        bursts: list[Burst] = pipe.recv()
        writers = map(partial(_write_in_bursts, bursts), connections, inserts)
        pipe.send(sum(await asyncio.gather(*writers)))
    finally:
        for connection in connections:
            await connection.close()


async def insert_of(connection: Any, key: str, rings: bool) -> Sequence[Any]:
    """The statement and its arguments, as the outbox sends them; with nothing but the slot in its place, if nobody
    rings."""
    seen: list[Any] = []
    with connection.query_logger(seen.append):
        async with connection.transaction():
            await Outbox().add_async(connection, TOPIC, PAYLOAD, key=key)
    sent = next(each for each in seen if each.query.startswith("INSERT"))
    slot = slice(sent.query.index("VALUES (") + len("VALUES ("), sent.query.index(", $2"))
    if "pg_notify" not in sent.query[slot]:
        raise RuntimeError("the outbox found no doorbell in this database")
    plain = f"{sent.query[: slot.start]}$1{sent.query[slot.stop :]}"
    return sent.query if rings else plain, *sent.args


async def _write_in_bursts(bursts: Sequence[Burst], connection: Any, insert: Sequence[Any]) -> int:
    done = 0
    for start, end in bursts:
        await asyncio.sleep(max(0.0, start - time.monotonic()))
        while time.monotonic() < end:
            await connection.execute(*insert)
            done += 1
    return done
