"""From the database to a broker: against the broker's client alone, and one key against a thousand."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import cycle, islice

import psutil

from postroom import Relay
from postroom.events import Delivered
from postroom.message import new_id
from tests.services.places import ROOT
from tests.services.processes import running

from .backlog import PAYLOAD, Backlog, fill, numbered_keys
from .brokers import BROKERS, Broker, Record
from .drains import UNIT, copied
from .interleave import Comparison
from .relays import Stopwatch
from .run import Run

KEYS = 1_000


def publish(run: Run) -> Comparison:
    """The relay against a loop over the broker's client alone, with --to."""
    broker, notes = BROKERS[run.to](), dict[str, str]()
    template = fill(run.database, Backlog(messages=run.messages, keys=KEYS))
    keys = islice(cycle(numbered_keys(KEYS)), run.messages)
    records = [Record(new_id(), key, PAYLOAD) for key in keys]
    return Comparison(
        ours=through_relay(run, broker, template, notes, hot=False),
        reference=at_new_place(broker, lambda place: broker.rate(place, records)),
        unit=UNIT,
        reference_is=f"the client alone, from memory, to {broker.version()}",
        notes=notes,
    )


def hotpublish(run: Run) -> Comparison:
    """One key against a thousand on the way to a broker, with --to."""
    broker, notes = BROKERS[run.to](), dict[str, str]()
    one, many = (fill(run.database, Backlog(messages=run.messages, keys=keys)) for keys in (1, KEYS))
    return Comparison(
        ours=through_relay(run, broker, one, notes, hot=True),
        reference=through_relay(run, broker, many, notes, hot=False),
        unit=UNIT,
        reference_is=f"the same relay on 1,000 keys, to {broker.version()}",
        notes=notes,
    )


def through_relay(run: Run, broker: Broker, template: str, notes: dict[str, str], *, hot: bool) -> Callable[[], float]:
    """From its first delivery on: the client alone is timed once it is connected, too."""

    def rate(place: str) -> float:
        stopwatch = Stopwatch(run.messages, Delivered)
        with copied(run.database, template) as url, cpu_of(run, broker, notes):
            stopwatch.relay = Relay(url, broker.url(place, hot=hot), observers=[stopwatch])
            asyncio.run(stopwatch.relay.drain())
        return stopwatch.rate

    return at_new_place(broker, rate)


def at_new_place(broker: Broker, rate: Callable[[str], float]) -> Callable[[], float]:
    def measure() -> float:
        name = f"orders-{secrets.token_hex(6)}"
        with broker.place(name):
            return rate(name)

    return measure


# --- who took how much of the processors


@contextmanager
def cpu_of(run: Run, broker: Broker, notes: dict[str, str]) -> Iterator[None]:
    """Everybody works on the same cores; the last round's shares are in the notes."""
    parties = {"relay": psutil.Process().pid, "database": _pid(run.database.service), "broker": _pid(broker.service)}
    known = {name: pid for name, pid in parties.items() if pid is not None}
    before = {name: _seconds(pid) for name, pid in known.items()}
    yield
    spent = {name: _seconds(pid) - before[name] for name, pid in known.items()}
    notes["cpu_seconds"] = ", ".join(f"{name} {seconds:.1f}" for name, seconds in spent.items())


def _pid(service: str | None) -> int | None:
    return None if service is None else running((ROOT / service).resolve())


def _seconds(pid: int) -> float:
    """With its children, those included that have ended."""
    process = psutil.Process(pid)
    times = process.cpu_times()
    total = times.user + times.system
    if pid != psutil.Process().pid:
        total += times.children_user + times.children_system
        for each in process.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                total += sum(each.cpu_times()[:4])
    return total
