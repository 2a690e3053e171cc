"""Databases to measure with: messages that wait, and what may be in their way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count, cycle, islice
from typing import Any

from sqlalchemy import insert, update

from postroom import Outbox, Relay
from postroom.message import SLOTS, TASKS_TOPIC, new_id, slot_of
from postroom.serialize import BINARY
from postroom.stores.schema import Tables

from .database import Database

TOPIC = "orders"
PAYLOAD = b"x" * 200
HELD_KEY = "held"
NEIGHBOUR = "neighbour"
"""A relay that is alive, says its leases, and delivers nothing."""
NEIGHBOUR_SLOTS = range(SLOTS // 2)
OWN_SLOTS = range(SLOTS // 2, SLOTS)
MESSAGE = ("slot", "id", "topic", "key", "payload", "content_type")

TABLES: Tables = Outbox().tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    messages: int
    keys: int = 1_000
    held: int = 0
    """Parked behind one dead message, older than the others."""
    later: int = 0
    """Due in a week."""
    neighbour: bool = False
    """Half of the slots belong to another relay; the messages are in the other half."""
    foreign: int = 0
    """In the neighbour's slots, older than the others."""
    task: str | None = None
    """One task of this kind, older than the others, with a key of its own."""


def fill(database: Database, backlog: Backlog) -> str:
    """The URL of a database with that backlog, to be copied for every round."""
    url = set_up(database)
    positions = count(1)
    if backlog.task:
        key = f"task-{backlog.task}"
        row = (next(positions), slot_of(key, ""), new_id(), TASKS_TOPIC, key, b"null", "application/json", backlog.task)
        database.load(url, TABLES.hot, ("position", *MESSAGE, "type"), [row])
    if backlog.held:
        _hold(database, url, backlog.held, positions)
    if backlog.neighbour:
        _settle_neighbour(database, url)
    if backlog.foreign:
        _load(database, url, positions, backlog.foreign, keys_in(NEIGHBOUR_SLOTS, 1_000))
    if backlog.later:
        due = datetime.now(UTC) + timedelta(days=7)
        rows = ((due, *row) for row in messages(backlog.later, numbered_keys(1_000)))
        database.load(url, TABLES.later, ("due_at", *MESSAGE), rows)
    slots = OWN_SLOTS if backlog.neighbour else range(SLOTS)
    _load(database, url, positions, backlog.messages, keys_in(slots, backlog.keys))
    database.tidy(url)
    return url


def set_up(database: Database) -> str:
    """The URL of a new database with the tables of an outbox, as a relay makes them."""
    url = database.create()
    asyncio.run(_create_tables(url))
    return url


async def _create_tables(url: str) -> None:
    relay = Relay(url, "memory:")
    await relay.store.open(claim=relay.settings.claim)
    await relay.store.close()


def add_backlog(database: Database, url: str, backlog: Backlog) -> None:
    """All of it appears at once, while relays are running."""
    rows = messages(backlog.messages, numbered_keys(backlog.keys))
    database.load(url, TABLES.hot, MESSAGE, rows)


def _load(database: Database, url: str, positions: Iterator[int], number: int, keys: Sequence[str]) -> None:
    rows = ((next(positions), *row) for row in messages(number, keys))
    database.load(url, TABLES.hot, ("position", *MESSAGE), rows)


def messages(number: int, keys: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """The keys in turn, as columns of `MESSAGE`."""
    places = [(slot_of(key, ""), key) for key in keys]
    for slot, key in islice(cycle(places), number):
        yield slot, new_id(), TOPIC, key, PAYLOAD, BINARY


def numbered_keys(number: int) -> list[str]:
    return keys_in(range(SLOTS), number)


def keys_in(slots: Sequence[int], number: int) -> list[str]:
    names = (f"key-{each}" for each in count())
    return list(islice((name for name in names if slot_of(name, "") in slots), number))


def _hold(database: Database, url: str, number: int, positions: Iterator[int]) -> None:
    """As a relay leaves it: the head is dead, and what came after it is parked."""
    ((slot, id, *rest),) = messages(1, [HELD_KEY])
    head, place = next(positions), {"slot": slot, "topic": TOPIC, "key": HELD_KEY}
    dead = {**dict(zip(MESSAGE, (slot, id, *rest), strict=True)), "position": head, "attempts": 5}
    hold = {**place, "message_id": id, "position": head, "attempts": 5, "status": "dead", "error": "refused"}
    engine = database.engine(url)
    with engine.begin() as connection:
        connection.execute(insert(TABLES.dead), {**dead, "reason": "exhausted", "error": "refused", "holding": True})
        connection.execute(insert(TABLES.holds), hold)
    engine.dispose()
    rows = ((next(positions), "key", *row) for row in messages(number, [HELD_KEY]))
    database.load(url, TABLES.parked, ("position", "behind", *MESSAGE), rows)


def _settle_neighbour(database: Database, url: str) -> None:
    now = datetime.now(UTC)
    until = now + timedelta(days=1)
    relay = {"id": NEIGHBOUR, "host": "elsewhere", "pid": 1, "seen_at": now, "until": until}
    theirs = update(TABLES.leases).where(TABLES.leases.c.slot.in_(NEIGHBOUR_SLOTS))
    engine = database.engine(url)
    with engine.begin() as connection:
        connection.execute(insert(TABLES.relays), {**relay, "in_flight": 0, "woken_by": "polling"})
        connection.execute(theirs.values(owner=NEIGHBOUR, epoch=1, expires_at=until))
    engine.dispose()
