"""Fault injection: a store or a publisher that does something terrible at a chosen step.

A step is a call of the relay to its store or its publisher; each has a moment before and one after it takes effect.
`Faults(at=n)` strikes at the n-th of these moments, so a loop over n visits every point at which a process can die.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from ..ports import Batch, Features, Publisher, Store


def kill_this_process() -> None:
    """What `kill -9` does: no clean-up, no goodbye."""
    os.kill(os.getpid(), signal.SIGKILL)


class Faults:
    """Counts moments and strikes at one of them. `at=None` only counts."""

    def __init__(self, at: int | None = None, strike: Callable[[], None] = kill_this_process) -> None:
        self.moments = 0
        self.trail: list[str] = []
        self._at = at
        self._strike = strike

    def pass_by(self, what: str) -> None:
        self.trail.append(what)
        self.moments += 1
        if self.moments - 1 == self._at:
            self._strike()

    def store(self, store: Store) -> Store:
        return FaultyStore(store, self)  # type: ignore[return-value]

    def publisher(self, publisher: Publisher) -> Publisher:
        return FaultyPublisher(publisher, self)


class FaultyStore:
    """A store with a fault before and after each call that the flow makes."""

    FLOW = frozenset({"renew", "acquire", "release", "fetch", "fetch_heads", "fetch_parked", "settle", "due"})

    def __init__(self, store: Store, faults: Faults) -> None:
        self._store = store
        self._faults = faults

    def by_rows(self, relay: str) -> Any:
        return FaultyStore(self._store.by_rows(relay), self._faults)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._store, name)
        if name not in self.FLOW:
            return attribute

        async def call(*arguments: Any, **options: Any) -> Any:
            self._faults.pass_by(f"before {name}")
            result = await attribute(*arguments, **options)
            self._faults.pass_by(f"after {name}")
            return result

        return call


class FaultyPublisher:
    """A publisher with a fault before and after each call."""

    def __init__(self, publisher: Publisher, faults: Faults) -> None:
        self._publisher = publisher
        self._faults = faults

    @property
    def features(self) -> Features:
        return self._publisher.features

    async def publish(self, batch: Batch) -> None:
        self._faults.pass_by("before publish")
        await self._publisher.publish(batch)
        self._faults.pass_by("after publish")

    async def close(self) -> None:
        await self._publisher.close()
