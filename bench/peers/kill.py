"""A worker is killed with -9 in the middle of a backlog, again and again, and started again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg

from .complaints import complaint
from .deliveries import judge, parse_log, silence
from .drivers.protocol import backlog, parse
from .outage import wait_until
from .processes import DriverFailed
from .stage import Stage
from .systems import System

MESSAGES = 10_000
"""More than the quickest can deliver between two looks, and that three times."""
FEW_MESSAGES = 2_000
"""For a slow system."""
KEYS = 20
KILLS = 3
STEP = 300
"""Deliveries of each worker before it is killed."""
LOOK = 0.002
PAUSE = 0.002
"""Seconds that a message takes, so that there is a middle to be killed in."""
LEASE = 120.0
"""No system waits longer for what a worker held that is no more."""


def kill(stage: Stage, systems: Sequence[System]) -> dict[str, dict[str, Any]]:
    """All at once, as most of the time is spent waiting for leases."""
    with ThreadPoolExecutor(len(systems)) as pool:
        results = pool.map(lambda system: kill_repeatedly(stage, system), systems)
        try:
            return {system.name: result for system, result in zip(systems, results, strict=True)}
        except (KeyboardInterrupt, SystemExit):
            stage.is_over.set()  # else all that they wait for would be waited for
            raise


def kill_repeatedly(stage: Stage, system: System) -> dict[str, Any]:
    log, messages = stage.file(f"{system.driver}.kill"), FEW_MESSAGES if system.slow else MESSAGES
    try:
        with stage.filled(system, messages, KEYS) as url:
            kills = sum(run_and_kill(stage, system, url, log, messages) for _ in range(KILLS))
            with stage.driver(system) as worker:
                worker.ask("work", url=url, log=str(log), keys=KEYS, pause=PAUSE)
                wait_or_end(stage, lambda: count(log) >= messages, look=0.2)
            left = [(parse(payload), state) for payload, state in stage.list_left(system, url)]
    except (DriverFailed, psycopg.Error) as error:
        return {"error": complaint(error)}
    written = [parse(payload) for _, payload in backlog(messages, KEYS)]
    deliveries = parse_log(log.read_text())
    return {
        "kills": kills,
        **judge(written, deliveries, left).as_dict(),
        "longest_silence_seconds": silence(deliveries),
    }


def run_and_kill(stage: Stage, system: System, url: str, log: Path, messages: int) -> bool:
    """Whether it was at work when it was killed."""
    with stage.driver(system) as worker:
        before, lines = count(log), count_lines(log)
        worker.ask("work", url=url, log=str(log), keys=KEYS, pause=PAUSE)
        wait_or_end(stage, lambda: count_lines(log) >= lines + STEP, look=LOOK)
        worker.kill()
    return before < count(log) < messages


def wait_or_end(stage: Stage, condition: Callable[[], bool], look: float) -> None:
    wait_until(lambda: stage.is_over.is_set() or condition(), LEASE, look=look)


def count_lines(log: Path) -> int:
    """Deliveries, whatever they were of: quick enough for many looks."""
    return log.read_bytes().count(b"\n") if log.exists() else 0


def count(log: Path) -> int:
    """Messages that arrived, each once."""
    return len({each.identity for each in parse_log(log.read_text())}) if log.exists() else 0
