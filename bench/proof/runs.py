"""What is run, and what is asked of it. Data only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["chaos", "broken", "bench", "broker", "peers"]

MINUTES = "5"
SEEDS = (1, 2, 3)
CHAOS = {"postgresql": "kafka", "mysql": "amqp", "sqlite": "file"}
BREAKS = ("settle-first", "ignore-holds", "no-fencing", "count-outage", "naive-order")
BACKLOGS = ("drain", "hotkey", "heldxmin", "heldkey", "backlog", "fetch", "slowtask", "later", "scale")
SERVER = (*BACKLOGS, "write", "latency", "idle", "memory")
BENCHES = {
    "postgresql": (*SERVER, "doorbell"),
    "mysql": SERVER,
    "sqlite": ("drain", "hotkey", "write", "latency"),
}
BROKERS = ("kafka", "amqp", "redis", "nats", "mqtt", "sqs", "http")
PEERS = {
    "drain": "drain",
    "onekey": "one-key",
    "enqueue": "enqueue,enqueue-worker,session",
    "latency": "latency",
    "trickle": "trickle",
    "backlog": "backlog,snapshot",
    "kill": "kill",
    "outage": "outage",
    "overlap": "overlap",
}
"""The runs beside other systems, and what is measured in each: an error late in one does not lose the others."""

ABOUT = {
    "drain": "a backlog is emptied",
    "hotkey": "a backlog of a single key",
    "heldxmin": "a backlog, while an old snapshot is open",
    "heldkey": "a backlog, while twice as much waits behind a dead message",
    "backlog": "a large backlog",
    "fetch": "a backlog, while another relay has fourteen times as much and delivers nothing",
    "slowtask": "a backlog, while a task of 60 seconds runs in another key",
    "later": "a backlog, while as much is due in a week and an old snapshot is open",
    "scale": "four relays at once, to a destination that takes its time",
    "write": "transactions that add a message",
    "doorbell": "sixteen writers at once, while a relay sleeps and wakes",
    "latency": "from a commit to the publishing, by a relay that was idle",
    "idle": "what a relay that sleeps asks of the database",
    "memory": "how much a relay grows while it empties a backlog",
}
LOWER_IS_BETTER = frozenset({"ms", "MiB", "statements/s"})
"""Units."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Of the ratio of ours to the reference."""

    sense: Literal["at least", "at most"]
    ratio: float

    def is_met(self, ratio: float) -> bool:
        return ratio >= self.ratio if self.sense == "at least" else ratio <= self.ratio


SERVERS = ("postgresql", "mysql")
AT_LEAST = {
    "drain": 0.6, "hotkey": 0.6, "heldxmin": 0.5, "heldkey": 0.9, "backlog": 0.85, "fetch": 0.9, "later": 0.9,
    "scale": 3.0, "write": 0.85,
}  # fmt: skip
AT_MOST = {"latency": 1.0, "idle": 1.0, "memory": 1.0}
OF_BROKERS = {"kafka": 0.4, "amqp": 0.5, "redis": 0.4, "nats": 0.5, "http": 0.5}
HOT = ("kafka", "redis", "amqp")
"""Brokers that take a single key at the speed of many."""

ASKED: dict[str, Asked] = {
    **{f"bench-{store}-{what}": Asked("at least", ratio) for store in SERVERS for what, ratio in AT_LEAST.items()},
    **{f"bench-{store}-{what}": Asked("at most", ratio) for store in SERVERS for what, ratio in AT_MOST.items()},
    "bench-postgresql-doorbell": Asked("at least", 0.85),
    "bench-postgresql-latency": Asked("at most", 3.0),
    "bench-mysql-drain": Asked("at least", 0.4),
    **{f"publish-{to}": Asked("at least", ratio) for to, ratio in OF_BROKERS.items()},
    **{f"hotpublish-{to}": Asked("at least", 0.4) for to in HOT},
}
"""By the name of the run; of the others nothing is asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    name: str
    kind: Kind
    what: str
    """The store, the break or the broker that it is about."""
    arguments: tuple[str, ...]
    """Of `python -m`."""
    full: tuple[str, ...] = ()
    quick: tuple[str, ...] = ("--quick",)

    def argv(self, *, quick: bool = False) -> tuple[str, ...]:
        return ("-m", *self.arguments, *(self.quick if quick else self.full))

    @property
    def command(self) -> str:
        """As it is to be run, for people."""
        return as_text(self.argv())

    @property
    def asked(self) -> Asked | None:
        return ASKED.get(self.name)


def as_text(argv: tuple[str, ...]) -> str:
    return " ".join(("python", *argv))


def chaos(store: str, to: str, seed: int) -> Run:
    return Run(
        name=f"chaos-{store}-{to}-{seed}",
        kind="chaos",
        what=store,
        arguments=("chaos", "--store", store, "--to", to, "--seed", str(seed)),
        full=("--minutes", MINUTES),
        quick=("--minutes", "0.5"),
    )


def broken(what: str) -> Run:
    return Run(
        name=f"broken-{what}",
        kind="broken",
        what=what,
        arguments=("chaos", "--break", what, "--store", "postgresql", "--to", "kafka", "--seed", "1"),
        full=("--minutes", "2"),
        quick=("--minutes", "1"),
    )


def bench(store: str, what: str) -> Run:
    return Run(name=f"bench-{store}-{what}", kind="bench", what=store, arguments=("bench", what, "--store", store))


def broker(what: str, to: str) -> Run:
    arguments = ("bench", what, "--store", "postgresql", "--to", to)
    return Run(name=f"{what}-{to}", kind="broker", what=to, arguments=arguments)


def peers(what: str, measures: str) -> Run:
    shorter = ("--outage-minutes", "1") if what == "outage" else ()
    arguments = ("bench", "peers", "--measures", measures)
    return Run(name=f"peers-{what}", kind="peers", what=what, arguments=arguments, quick=("--quick", *shorter))


RUNS: tuple[Run, ...] = (
    *(chaos(store, to, seed) for store, to in CHAOS.items() for seed in SEEDS),
    *map(broken, BREAKS),
    *(bench(store, what) for store, benches in BENCHES.items() for what in benches),
    *(broker("publish", to) for to in BROKERS),
    broker("ownloop", "kafka"),
    *(broker("hotpublish", to) for to in HOT),
    *(peers(what, measures) for what, measures in PEERS.items()),
)


def of_kind(kind: Kind, what: str | None = None) -> list[Run]:
    return [run for run in RUNS if run.kind == kind and what in (None, run.what)]
