"""What will be broken, and when: everything that chance decides is drawn here, from the seed. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Literal, get_args

Store = Literal["postgresql", "mysql", "sqlite"]
Destination = Literal["kafka", "amqp", "file"]
STORES: tuple[Store, ...] = get_args(Store)
DESTINATIONS: tuple[Destination, ...] = get_args(Destination)

Kind = Literal[
    "kill relay", "freeze relay", "wrong clock", "storm", "kill writer",
    "cut database", "stall database", "swallow database", "kill database", "restart database", "hold snapshot",
    "cut broker", "stall broker", "swallow broker", "kill broker", "restart broker",
    "down", "refuse",
]  # fmt: skip
"""`down`: the destination cannot be reached, by nobody. `refuse`: it refuses some messages."""

DATABASE = frozenset({"cut database", "stall database", "swallow database", "kill database", "restart database"})
MACHINE = frozenset({"wrong clock"})
"""What cannot be wrong for one process alone where all of them, and the database, share a machine and its clock."""
BROKER = frozenset({"cut broker", "stall broker", "swallow broker", "kill broker", "restart broker"})

SECONDS: dict[str, tuple[float, float]] = {
    "kill relay": (0.5, 3.0),
    "freeze relay": (4.0, 7.0),
    "wrong clock": (4.0, 8.0),
    "storm": (3.0, 6.0),
    "kill writer": (0.1, 1.0),
    "hold snapshot": (8.0, 15.0),
    "stall database": (2.0, 5.0),
    "swallow database": (1.0, 3.0),
    "kill database": (0.0, 2.0),
    "restart database": (0.0, 2.0),
    "stall broker": (2.0, 5.0),
    "swallow broker": (1.0, 3.0),
    "kill broker": (1.0, 4.0),
    "restart broker": (1.0, 4.0),
    "down": (10.0, 14.0),
    "refuse": (1.0, 3.0),
}
"""How long each lasts; the others are over at once. A frozen relay loses its leases. An outage lasts longer than the
retries of a message, a refusal does not."""
PAUSE = (1.0, 5.0)
"""Seconds between the beginnings of two faults."""
OVERLAP = 0.25
"""How often one does not wait for the end of the one before it."""
QUIET = 4.0
"""Seconds at the beginning, in which everybody starts to work."""

WRITERS = 4
RELAYS = 2
KEYS = (1, 5, 50, 500)


@dataclass(frozen=True, slots=True)
class Fault:
    kind: Kind
    at: float
    """Seconds since the beginning."""
    seconds: float
    choice: int
    """Which of several is hit, whatever their number is."""


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    store: Store
    to: Destination
    seconds: float
    keys: tuple[int, ...]
    """How many keys each writer uses; all take them from the same ones."""
    faults: tuple[Fault, ...]


def draw(seed: int, store: Store, to: Destination, seconds: float) -> Plan:
    random = Random(f"{seed} {store} {to}")
    keys = tuple(random.choice(KEYS) for _ in range(WRITERS))
    return Plan(seed, store, to, seconds, keys, tuple(_faults(random, kinds(store, to), seconds)))


def kinds(store: Store, to: Destination) -> list[Kind]:
    """Of faults that are possible with these."""
    possible: list[Kind] = [*get_args(Kind)]
    if store == "sqlite":
        possible = [kind for kind in possible if kind not in DATABASE | MACHINE]
    if to == "file":
        possible = [kind for kind in possible if kind not in BROKER]
    return possible


def _faults(random: Random, possible: list[Kind], seconds: float) -> Iterator[Fault]:
    """Each kind in turn, in an order that changes, so that even a short run has most of them."""
    at, over = QUIET, QUIET
    for kind in _deck(random, possible):
        lasts = random.uniform(*SECONDS.get(kind, (0.0, 0.0)))
        at = (at if random.random() < OVERLAP else over) + random.uniform(*PAUSE)
        if at + lasts > seconds:
            return
        over = max(over, at + lasts)
        yield Fault(kind, at, lasts, random.randrange(2**16))


def _deck(random: Random, possible: list[Kind]) -> Iterator[Kind]:
    for _ in count():
        yield from random.sample(possible, len(possible))
