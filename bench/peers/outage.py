"""The destination fails for a while, for all systems at once, and each does what it does by default."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from .complaints import complaint
from .deliveries import Delivery, Identity, judge, parse_log
from .drivers.protocol import parse
from .processes import Driver, DriverFailed
from .stage import Stage
from .systems import System

KEYS = 20
BEFORE = 20
"""Messages that are delivered before it begins."""
DURING = 180
WRITING_SHARE = 0.9
"""Of the outage: what is written last has waited least when it ends."""
GRACE = 300.0
"""Seconds after its end in which messages may still arrive."""


@dataclass(slots=True, kw_only=True)
class Scene:
    """One system in the outage."""

    system: System
    url: str
    log: Path
    writer: Driver
    written: list[Identity] = field(default_factory=list[Identity])
    error: str = ""

    def write(self, number: int) -> None:
        """Unless it has failed before: the others go on."""
        key, number = f"key-{number % KEYS}", number // KEYS
        try:
            if not self.error:
                self.writer.ask("write", url=self.url, key=key, number=number)
                self.written.append((key, number))
        except DriverFailed as error:
            self.error = complaint(error)

    def deliveries(self) -> list[Delivery]:
        return parse_log(self.log.read_text()) if self.log.exists() else []

    def is_complete(self) -> bool:
        return {each.identity for each in self.deliveries()} >= set(self.written)


def outage(stage: Stage, systems: Sequence[System], minutes: float) -> dict[str, dict[str, Any]]:
    switch, failures = stage.file("outage"), dict[str, dict[str, Any]]()
    with ExitStack() as stack:
        scenes: list[Scene] = []
        for system in systems:
            try:
                scenes.append(set_up(stage, system, switch, stack))
            except (DriverFailed, psycopg.Error) as error:
                failures[system.name] = {"error": complaint(error)}
        ended = run_outage(scenes, switch, minutes * 60)
        wait_until(lambda: all(is_over(stage, scene) for scene in scenes), ended + GRACE - time.monotonic(), look=1.0)
        return failures | {scene.system.name: report(stage, scene, ended) for scene in scenes}


def set_up(stage: Stage, system: System, switch: Path, stack: ExitStack) -> Scene:
    url, log = stack.enter_context(stage.empty(system)), stage.file(f"{system.driver}.outage")
    worker = stack.enter_context(stage.driver(system))
    writer = stack.enter_context(stage.driver(system))
    worker.ask("work", url=url, log=str(log), keys=KEYS, switch=str(switch))
    return Scene(system=system, url=url, log=log, writer=writer)


def run_outage(scenes: Sequence[Scene], switch: Path, seconds: float) -> float:
    """Returns when it ended."""
    write_to_all(scenes, range(BEFORE))
    wait_until(lambda: all(scene.is_complete() for scene in scenes), 30)
    switch.touch()
    start = time.monotonic()
    for number in range(DURING):
        wait_until(lambda: False, start + seconds * WRITING_SHARE * number / DURING - time.monotonic())
        write_to_all(scenes, [BEFORE + number])
    wait_until(lambda: False, start + seconds - time.monotonic())
    switch.unlink()
    return time.monotonic()


def write_to_all(scenes: Sequence[Scene], numbers: Sequence[int]) -> None:
    for number in numbers:
        for scene in scenes:
            scene.write(number)


def is_over(stage: Stage, scene: Scene) -> bool:
    """All has arrived, or nothing is left that might."""
    return bool(scene.error) or scene.is_complete() or all(state != "pending" for _, state in list_left(stage, scene))


def list_left(stage: Stage, scene: Scene) -> list[tuple[Any, ...]]:
    try:
        return stage.list_left(scene.system, scene.url)
    except psycopg.Error as error:
        scene.error = complaint(error)
        return []


def wait_until(condition: Callable[[], bool], seconds: float, look: float = 0.05) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not condition():
        time.sleep(max(0.0, min(look, deadline - time.monotonic())))


def report(stage: Stage, scene: Scene, ended: float) -> dict[str, Any]:
    deliveries = scene.deliveries()
    left = [(parse(payload), state) for payload, state in list_left(stage, scene)]
    if scene.error:
        return {"error": scene.error}
    verdict = judge(scene.written, deliveries, left)
    last = max((each.at for each in deliveries), default=ended) - ended
    return {
        **verdict.as_dict(),
        "seconds_until_all_delivered": round(max(last, 0.0), 1) if verdict.delivered == verdict.written else None,
    }
