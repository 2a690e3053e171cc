"""From the database to a broker: against the broker's client alone, and one key against a thousand."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import cycle, islice
from statistics import median

import psutil

from postroom import Relay
from postroom.events import Event, Fetched, LeasesTaken
from postroom.message import Message
from postroom.serialize import BINARY
from tests.services.places import ROOT
from tests.services.processes import running

from .backlog import PAYLOAD, TOPIC, Backlog, fill, numbered_keys
from .brokers import BROKERS, Broker, Record
from .drains import UNIT, copied
from .interleave import Comparison, rounded
from .relays import Stopwatch
from .run import Run

KEYS = 1_000


def publish(run: Run) -> Comparison:
    """The relay against a loop over the broker's client alone, with --to."""
    broker, notes = BROKERS[run.to](), dict[str, str]()
    template = fill(run.database, Backlog(messages=run.messages, keys=KEYS))
    keys, now = islice(cycle(numbered_keys(KEYS)), run.messages), datetime.now(UTC)
    messages = [Message(topic=TOPIC, payload=PAYLOAD, key=key, created_at=now) for key in keys]
    bare = [_record(message, broker.headers(message.id, str(message.key))) for message in messages]
    return Comparison(
        ours=through_relay(run, broker, template, notes, hot=False),
        reference=alone(broker, bare, [_record(message, all_headers(message)) for message in messages], notes),
        unit=UNIT,
        reference_is=f"the client alone, as it comes, from memory, with the fewest headers, to {broker.version()}",
        notes=notes,
    )


def _record(message: Message, headers: dict[str, str]) -> Record:
    return Record(message.id, str(message.key), PAYLOAD, headers)


def all_headers(message: Message) -> dict[str, str]:
    """Those that the relay sends, though a broker may have another place for some."""
    return {**message.wire_headers(), "content-type": BINARY}


def alone(broker: Broker, bare: Sequence[Record], full: Sequence[Record], notes: dict[str, str]) -> Callable[[], float]:
    """How fast it is with all of our headers is in the notes, as far as it was measured in the rounds so far."""
    rates: list[float] = []

    def measure() -> float:
        rates.append(at_new_place(broker, lambda place: broker.rate(place, full))())
        notes["reference_with_our_headers"] = f"{rounded(median(rates)):,}"
        return at_new_place(broker, lambda place: broker.rate(place, bare))()

    return measure


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
    """Without its start: the client alone is timed once it is connected, too, as far as it connects ahead."""

    def rate(place: str) -> float:
        stopwatch = WarmStopwatch(run.messages)
        with copied(run.database, template) as url, cpu_of(run, broker, notes):
            stopwatch.relay = Relay(url, broker.url(place, hot=hot), observers=[stopwatch])
            asyncio.run(stopwatch.relay.drain())
        return stopwatch.rate

    return at_new_place(broker, rate)


class WarmStopwatch(Stopwatch):
    """Starts once as many are delivered as had been read before the first delivery. If that is most of them, it takes
    the time of all, from when the relay owns its slots."""

    def __init__(self, messages: int) -> None:
        super().__init__(messages, LeasesTaken)
        self._read_before = 0
        self._is_warm = False

    def notice(self, event: Event) -> None:
        super().notice(event)
        delivered = self._messages - self._left
        if isinstance(event, Fetched) and not delivered:
            self._read_before += event.count
        if not self._is_warm and 0 < self._read_before <= delivered < self._messages // 2:
            self._is_warm = True
            self._started, self._timed = time.perf_counter(), 0


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
