"""Two transactions write to one key at the same time, and the one that began first commits last."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg

from .complaints import complaint
from .deliveries import parse_log
from .outage import wait_until
from .processes import Driver, DriverFailed
from .stage import Stage
from .systems import System

KEY = "key-0"
LEAD = 2.0
"""Seconds for which the second message could be delivered before the first is there."""
PATIENCE = 30.0


def overlap(stage: Stage, systems: Sequence[System]) -> dict[str, dict[str, Any]]:
    return {system.name: overlap_of(stage, system) for system in systems}


def overlap_of(stage: Stage, system: System) -> dict[str, Any]:
    try:
        unlocked, locked = (arrivals(stage, system, lock=lock) for lock in (False, True))
    except (DriverFailed, psycopg.Error) as error:
        return {"error": complaint(error)}
    return {
        "arrived_unlocked": in_words(unlocked),
        "arrived_locked": in_words(locked),
        "lost": 4 - len(set(unlocked)) - len(set(locked)),
    }


def in_words(order: Sequence[int]) -> str:
    return ", then ".join(map(str, order)) or "none"


def arrivals(stage: Stage, system: System, *, lock: bool) -> list[int]:
    """Message 1 is written before message 2. Unlocked, 2 commits before 1; locked, 2 waits until 1 has committed."""
    log = stage.file(f"{system.driver}.overlap")
    with (
        stage.empty(system) as url,
        stage.driver(system) as worker,
        stage.driver(system) as first,
        stage.driver(system) as second,
    ):
        worker.ask("work", url=url, log=str(log), keys=1)
        first.ask("begin", url=url, lock=lock)
        first.ask("add", url=url, key=KEY, number=1)
        (follow_locked if lock else follow)(first, second, url, log)
        wait_until(lambda: len(order_of(log)) == 2, PATIENCE)
        return order_of(log)


def follow(first: Driver, second: Driver, url: str, log: Path) -> None:
    second.ask("begin", url=url, lock=False)
    second.ask("add", url=url, key=KEY, number=2)
    second.ask("commit")
    wait_until(lambda: bool(order_of(log)), LEAD)
    first.ask("commit")


def follow_locked(first: Driver, second: Driver, url: str, log: Path) -> None:
    second.tell("begin", url=url, lock=True)  # which waits
    wait_until(lambda: bool(order_of(log)), LEAD)
    first.ask("commit")
    second.hear()
    second.ask("add", url=url, key=KEY, number=2)
    second.ask("commit")


def order_of(log: Path) -> list[int]:
    return [each.number for each in parse_log(log.read_text())] if log.exists() else []
