"""What is measured, in one round of one system."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from .deliveries import parse_log
from .processes import Driver, DriverFailed
from .ranking import Better, percentile
from .stage import Stage, snapshot
from .systems import System

WRITERS = 8
IDLE = (0.3, 0.5)
"""Seconds between two single messages: enough for any worker to fall asleep."""
TRICKLE = (0.05, 0.25)
"""Not always enough."""
WARMING = 3
"""Messages that do not count."""
LOOK = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    rounds: int
    messages: int
    """To drain."""
    few_messages: int
    """The same for a slow system."""
    backlog: int
    seconds: float
    """No drain takes longer: what was acknowledged until then is the rate."""
    few_seconds: float
    """The same for a slow system and a backlog."""
    writing: float
    """Seconds of enqueueing."""
    samples: int
    """Of latency."""


FULL = Amount(
    rounds=5,
    messages=40_000,
    few_messages=5_000,
    backlog=200_000,
    seconds=40.0,
    few_seconds=20.0,
    writing=5.0,
    samples=60,
)
QUICK = Amount(
    rounds=2,
    messages=10_000,
    few_messages=1_000,
    backlog=50_000,
    seconds=15.0,
    few_seconds=5.0,
    writing=2.0,
    samples=20,
)

Run = Callable[[Stage, System, Amount], Mapping[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    measure: str
    unit: str
    better: Better


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    run: Run
    results: tuple[Result, ...]
    """What a round of it yields."""
    keys_matter: bool = False


def drain(stage: Stage, system: System, amount: Amount) -> Mapping[str, float]:
    return {"drain": rate_of_drain(stage, system, messages_for(system, amount), 1_000, amount.seconds)}


def drain_one_key(stage: Stage, system: System, amount: Amount) -> Mapping[str, float]:
    return {"drain one key": rate_of_drain(stage, system, messages_for(system, amount), 1, amount.seconds)}


def backlog(stage: Stage, system: System, amount: Amount) -> Mapping[str, float]:
    return {"backlog": rate_of_drain(stage, system, amount.backlog, 1_000, seconds_for(system, amount))}


def backlog_with_snapshot(stage: Stage, system: System, amount: Amount) -> Mapping[str, float]:
    rate = rate_of_drain(stage, system, amount.backlog, 1_000, seconds_for(system, amount), held=True)
    return {"backlog, snapshot held": rate}


def rate_of_drain(
    stage: Stage, system: System, messages: int, keys: int, seconds: float, *, held: bool = False
) -> float:
    """Messages acknowledged per second of the whole life of a worker, from connecting until it has stopped. What reads
    the log of the database says itself what it has handled, and is timed from its first message to its last."""
    with stage.filled(system, messages, keys) as url:
        with snapshot(url) if held else nullcontext(), stage.driver(system) as driver:
            amount = {"messages": messages, "keys": keys, "seconds": seconds}
            answer = driver.ask("drain", url=url, **amount, patience=seconds + 60)
        acknowledged = answer["handled"] if system.streams else messages - stage.count_left(system, url)
    if not acknowledged:
        raise DriverFailed(f"{system.name} acknowledged nothing within {seconds:g} s")
    return acknowledged / answer["first_to_last" if system.streams else "seconds"]


def messages_for(system: System, amount: Amount) -> int:
    return amount.few_messages if system.slow else amount.messages


def seconds_for(system: System, amount: Amount) -> float:
    return amount.few_seconds if system.slow else amount.seconds


def enqueue(stage: Stage, system: System, amount: Amount) -> Mapping[str, float]:
    return {"enqueue": rate_of_writing(stage, system, amount.writing)}


def enqueue_in_session(stage: Stage, system: System, amount: Amount) -> Mapping[str, float]:
    return {"enqueue, session": rate_of_writing(stage, system, amount.writing, session=True)}


def rate_of_writing(stage: Stage, system: System, seconds: float, *, session: bool = False) -> float:
    """Transactions per second, each with a row of the application and one message; no worker runs."""
    with stage.empty(system) as url, stage.driver(system) as driver:
        answer = driver.ask("enqueue", url=url, seconds=seconds, writers=WRITERS, session=session)
    return answer["transactions"] / answer["seconds"]


def latency(stage: Stage, system: System, amount: Amount) -> Mapping[str, float]:
    delays = delays_of(stage, system, amount.samples, IDLE)
    return {"latency p50": percentile(delays, 0.5), "latency p99": percentile(delays, 0.99)}


def trickle(stage: Stage, system: System, amount: Amount) -> Mapping[str, float]:
    delays = delays_of(stage, system, amount.samples, TRICKLE)
    return {"trickle p50": percentile(delays, 0.5), "trickle p99": percentile(delays, 0.99)}


def delays_of(stage: Stage, system: System, samples: int, pauses: tuple[float, float]) -> list[float]:
    """Milliseconds from when the commit of a single message was sent to its handling."""
    log, chance = stage.file(f"{system.driver}.log"), random.Random(0)
    with stage.empty(system) as url, stage.driver(system) as worker, stage.driver(system) as writer:
        worker.ask("work", url=url, log=str(log), keys=1)
        delays: list[float] = []
        for number in range(WARMING + samples):
            delays.append(delay_of(writer, log, url, number))
            time.sleep(chance.uniform(*pauses))
    return delays[WARMING:]


def delay_of(writer: Driver, log: Path, url: str, number: int, patience: float = 60.0) -> float:
    sent, deadline = writer.ask("write", url=url, key="key", number=number)["sent"], time.monotonic() + patience
    while time.monotonic() < deadline:
        for delivery in reversed(parse_log(log.read_text()) if log.exists() else ()):
            if delivery.number == number:
                return (delivery.at - sent) * 1_000
        time.sleep(LOOK)
    raise DriverFailed(f"a message was not handled within {patience:g} s")


MEASURES = {
    "drain": Measure(run=drain, results=(Result(measure="drain", unit="messages/s", better="higher"),)),
    "one-key": Measure(
        run=drain_one_key,
        results=(Result(measure="drain one key", unit="messages/s", better="higher"),),
        keys_matter=True,
    ),
    "enqueue": Measure(run=enqueue, results=(Result(measure="enqueue", unit="transactions/s", better="higher"),)),
    "session": Measure(
        run=enqueue_in_session, results=(Result(measure="enqueue, session", unit="transactions/s", better="higher"),)
    ),
    "latency": Measure(
        run=latency,
        results=(
            Result(measure="latency p50", unit="ms", better="lower"),
            Result(measure="latency p99", unit="ms", better="lower"),
        ),
    ),
    "trickle": Measure(
        run=trickle,
        results=(
            Result(measure="trickle p50", unit="ms", better="lower"),
            Result(measure="trickle p99", unit="ms", better="lower"),
        ),
    ),
    "backlog": Measure(run=backlog, results=(Result(measure="backlog", unit="messages/s", better="higher"),)),
    "snapshot": Measure(
        run=backlog_with_snapshot,
        results=(Result(measure="backlog, snapshot held", unit="messages/s", better="higher"),),
    ),
}
