"""How fast a backlog is emptied: against the driver alone, and with something in the way against nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from postroom.events import Delivered, Event, LeasesTaken

from .backlog import Backlog, fill
from .database import Database
from .interleave import Comparison
from .relays import rate_of_delivery, rate_of_drain
from .run import Run

UNIT = "messages/s"
REPEATED = 5


def drain(run: Run) -> Comparison:
    """The relay against a raw loop over the driver, on the same rows."""
    template = fill(run.database, Backlog(messages=run.messages))
    return Comparison(
        ours=on_copy(run.database, template, lambda url: rate_of_drain(url, run.messages)),
        reference=on_copy(run.database, template, lambda url: rate_of_raw_loop(run.database, url, run.messages)),
        unit=UNIT,
        reference_is="the driver alone: select 500, delete them by position",
    )


def hotkey(run: Run) -> Comparison:
    """One key against a thousand."""
    return compare(
        run,
        ours=Backlog(messages=run.messages, keys=1),
        reference=Backlog(messages=run.messages),
        reference_is="the same relay on 1,000 keys",
    )


def heldxmin(run: Run) -> Comparison:
    """An old snapshot is open, so that nothing that is deleted can be cleaned up."""
    template = fill(run.database, Backlog(messages=run.messages))
    return Comparison(
        ours=on_copy(run.database, template, rate_for(run.messages), held=True),
        reference=on_copy(run.database, template, rate_for(run.messages)),
        unit=UNIT,
        reference_is="the same with no snapshot open",
    )


def heldkey(run: Run) -> Comparison:
    """Twice as many messages are parked behind a dead one."""
    return compare(
        run,
        ours=Backlog(messages=run.messages, held=2 * run.messages),
        reference=Backlog(messages=run.messages),
        reference_is="the same without the held key",
    )


def backlog(run: Run) -> Comparison:
    """A large backlog against a small one, message by message."""
    large = fill(run.database, Backlog(messages=run.messages))
    few = max(run.messages // 50, 10_000)
    small = fill(run.database, Backlog(messages=few))
    drain_small = on_copy(run.database, small, rate_for(few, since=Delivered))
    return Comparison(
        ours=on_copy(run.database, large, rate_for(run.messages, since=Delivered)),
        reference=lambda: [drain_small() for _ in range(REPEATED)],
        unit=UNIT,
        reference_is=f"a backlog of {few:,}",
    )


def fetch(run: Run) -> Comparison:
    """Fourteen times as many messages, all older, are in slots of another relay that does not deliver."""
    return compare(
        run,
        ours=Backlog(messages=run.messages, neighbour=True, foreign=14 * run.messages),
        reference=Backlog(messages=run.messages, neighbour=True),
        reference_is="the same without the other relay's messages",
    )


def later(run: Run) -> Comparison:
    """As many messages are due in a week, and an old snapshot is open."""
    return compare(
        run,
        ours=Backlog(messages=run.messages, later=run.messages),
        reference=Backlog(messages=run.messages),
        reference_is="the same without messages for later",
        held=True,
    )


def compare(run: Run, *, ours: Backlog, reference: Backlog, reference_is: str, held: bool = False) -> Comparison:
    """The relay on two backlogs."""
    measures = [
        on_copy(run.database, fill(run.database, backlog), rate_for(run.messages), held=held)
        for backlog in (ours, reference)
    ]
    return Comparison(ours=measures[0], reference=measures[1], unit=UNIT, reference_is=reference_is)


def rate_for(messages: int, since: type[Event] = LeasesTaken) -> Callable[[str], float]:
    return lambda url: rate_of_delivery(url, messages, since)


def rate_of_raw_loop(database: Database, url: str, messages: int) -> float:
    start = time.perf_counter()
    seen = asyncio.run(database.drain_raw(url))
    elapsed = time.perf_counter() - start
    if seen != messages:
        raise RuntimeError(f"the raw loop saw {seen} of {messages} messages")
    return messages / elapsed


def on_copy(
    database: Database, template: str, rate: Callable[[str], float], *, held: bool = False
) -> Callable[[], float]:
    def measure() -> float:
        with copied(database, template) as url, database.snapshot(url) if held else nullcontext():
            return rate(url)

    return measure


@contextmanager
def copied(database: Database, template: str) -> Iterator[str]:
    url = database.copy(template)
    try:
        yield url
    finally:
        database.drop(url)
