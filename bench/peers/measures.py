"""What is measured, in one round of one system."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path

from . import amounts
from .amounts import IDLE, KEYS, TRICKLE, WARMING, WRITERS, Amount, Amounts, messages_for, seconds_for
from .deliveries import parse_log
from .processes import Driver, DriverFailed
from .ranking import Better, percentile
from .stage import Stage, snapshot
from .systems import System

LOOK = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one round of one system yields."""

    values: Mapping[str, float]
    """By result."""
    samples: Sequence[float] = ()
    """All of which the values are percentiles."""
    acknowledged: int = 0
    of: int = 0
    """So many messages, if there was a number to reach."""

    @property
    def is_finished(self) -> bool:
        return self.acknowledged >= self.of


Run = Callable[[Stage, System, Amount], Round]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    measure: str
    unit: str
    better: Better
    share: float | None = None
    """Of a percentile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    run: Run
    about: str
    amounts: Callable[[Amount], Amounts]
    results: tuple[Result, ...]
    """What a round of it yields."""
    drains: bool = False
    keys_matter: bool = False


# --- rates of workers


def drain(stage: Stage, system: System, amount: Amount) -> Round:
    return drained("drain", stage, system, messages_for(system, amount), KEYS, amount.seconds)


def drain_one_key(stage: Stage, system: System, amount: Amount) -> Round:
    return drained("drain one key", stage, system, messages_for(system, amount), 1, amount.seconds)


def backlog(stage: Stage, system: System, amount: Amount) -> Round:
    return drained("backlog", stage, system, amount.backlog, KEYS, seconds_for(system, amount))


def backlog_with_snapshot(stage: Stage, system: System, amount: Amount) -> Round:
    name, seconds = "backlog, snapshot held", seconds_for(system, amount)
    return drained(name, stage, system, amount.backlog, KEYS, seconds, held=True)


def drained(
    name: str, stage: Stage, system: System, messages: int, keys: int, seconds: float, *, held: bool = False
) -> Round:
    """Messages acknowledged per second of the whole life of a worker, from connecting until it has stopped. What reads
    the log of the database says itself what it has handled, and is timed from its first message to its last."""
    with stage.filled(system, messages, keys) as url:
        with snapshot(url) if held else nullcontext(), stage.driver(system) as driver:
            amount = {"messages": messages, "keys": keys, "seconds": seconds}
            answer = driver.ask("drain", url=url, **amount, patience=seconds + 60)
        acknowledged = answer["handled"] if system.streams else messages - stage.count_left(system, url)
    time_taken = answer["first_to_last" if system.streams else "seconds"]
    if not acknowledged or not time_taken:
        raise DriverFailed(f"{system.name} acknowledged nothing within {seconds:g} s")
    return Round(values={name: acknowledged / time_taken}, acknowledged=acknowledged, of=messages)


# --- rates of writers


def enqueue(stage: Stage, system: System, amount: Amount) -> Round:
    return Round(values={"enqueue": rate_of_writing(stage, system, amount.writing)})


def enqueue_beside_worker(stage: Stage, system: System, amount: Amount) -> Round:
    return Round(values={"enqueue, worker running": rate_of_writing(stage, system, amount.writing, worker=True)})


def enqueue_in_session(stage: Stage, system: System, amount: Amount) -> Round:
    return Round(values={"enqueue, session": rate_of_writing(stage, system, amount.writing, session=True)})


def rate_of_writing(
    stage: Stage, system: System, seconds: float, *, session: bool = False, worker: bool = False
) -> float:
    """Transactions per second, each with a row of the application and one message."""
    with ExitStack() as stack:
        url = stack.enter_context(stage.empty(system))
        if worker:
            stack.enter_context(stage.driver(system)).ask("work", url=url, log=os.devnull, keys=WRITERS)
        driver = stack.enter_context(stage.driver(system))
        answer = driver.ask("enqueue", url=url, seconds=seconds, writers=WRITERS, session=session)
    return answer["transactions"] / answer["seconds"]


# --- delays


def latency(stage: Stage, system: System, amount: Amount) -> Round:
    return delayed(LATENCY, delays_of(stage, system, amount.samples, IDLE))


def trickle(stage: Stage, system: System, amount: Amount) -> Round:
    return delayed(SLOW_TRICKLE, delays_of(stage, system, amount.samples, TRICKLE))


def percentiles(name: str) -> tuple[Result, ...]:
    return tuple(
        Result(measure=f"{name} {label}", unit="ms", better="lower", share=share)
        for label, share in (("p50", 0.5), ("p99", 0.99))
    )


LATENCY, SLOW_TRICKLE = percentiles("latency"), percentiles("trickle")


def delayed(results: Sequence[Result], delays: Sequence[float]) -> Round:
    values = {result.measure: percentile(delays, result.share) for result in results if result.share is not None}
    return Round(values=values, samples=delays)


def delays_of(stage: Stage, system: System, samples: int, pauses: tuple[float, float]) -> list[float]:
    """Milliseconds from when the commit of a single message was sent to its handling. The pauses are others each time:
    else what a worker does now and then would meet the same message in each round, or in none."""
    log = stage.file(f"{system.driver}.log")
    with stage.empty(system) as url, stage.driver(system) as worker, stage.driver(system) as writer:
        worker.ask("work", url=url, log=str(log), keys=1)
        delays: list[float] = []
        for number in range(WARMING + samples):
            delays.append(delay_of(writer, log, url, number))
            time.sleep(random.uniform(*pauses))
    return delays[WARMING:]


def delay_of(writer: Driver, log: Path, url: str, number: int, patience: float = 60.0) -> float:
    sent, deadline = writer.ask("write", url=url, key="key", number=number)["sent"], time.monotonic() + patience
    while time.monotonic() < deadline:
        for delivery in reversed(parse_log(log.read_text()) if log.exists() else ()):
            if delivery.number == number:
                return (delivery.at - sent) * 1_000
        time.sleep(LOOK)
    raise DriverFailed(f"a message was not handled within {patience:g} s")


# --- all of them


def rate(measure: str, unit: str = "messages/s") -> tuple[Result, ...]:
    return (Result(measure=measure, unit=unit, better="higher"),)


MEASURES = {
    "drain": Measure(
        run=drain,
        about="Messages that one worker acknowledges per second of its life, from connecting until it has stopped. "
        "They wait in the database when it starts, and handling one does nothing.",
        amounts=amounts.of_drain,
        results=rate("drain"),
        drains=True,
    ),
    "one-key": Measure(
        run=drain_one_key,
        about="As `drain`, with all messages in one key. Who keeps no order does less here than the others.",
        amounts=amounts.of_one_key,
        results=rate("drain one key"),
        drains=True,
        keys_matter=True,
    ),
    "enqueue": Measure(
        run=enqueue,
        about="Transactions of all writers per second, each with a row of the application and one message, through the "
        "plainest connection that the system takes. No worker runs, so nobody needs to be woken.",
        amounts=amounts.of_writing,
        results=rate("enqueue", "transactions/s"),
    ),
    "enqueue-worker": Measure(
        run=enqueue_beside_worker,
        about="As `enqueue`, beside the system's own worker on the same cores. It is idle when the writers begin; how "
        "it is woken and what it delivers meanwhile is part of what they pay.",
        amounts=amounts.of_writing,
        results=rate("enqueue, worker running", "transactions/s"),
    ),
    "session": Measure(
        run=enqueue_in_session,
        about="As `enqueue`, through a SQLAlchemy AsyncSession, for those that take one.",
        amounts=amounts.of_writing,
        results=rate("enqueue, session", "transactions/s"),
    ),
    "latency": Measure(
        run=latency,
        about="From when the commit of a single message is sent to its handling in another process, by a worker that "
        "was idle. Each message waits until the one before it has arrived, and then for a pause.",
        amounts=amounts.of_latency,
        results=LATENCY,
    ),
    "trickle": Measure(
        run=trickle,
        about="As `latency`, with shorter pauses, in which a worker may not have become idle yet.",
        amounts=amounts.of_trickle,
        results=SLOW_TRICKLE,
    ),
    "backlog": Measure(
        run=backlog,
        about="As `drain`, with more messages.",
        amounts=amounts.of_backlog,
        results=rate("backlog"),
        drains=True,
    ),
    "snapshot": Measure(
        run=backlog_with_snapshot,
        about="As `backlog`, while a transaction that began before the worker stays open, so that nothing deleted can "
        "be cleaned up.",
        amounts=amounts.of_backlog,
        results=rate("backlog, snapshot held"),
        drains=True,
    ),
}
