"""Counts what is pending every few seconds, for writers who must not fill the outbox. One relay does it for all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..clock import Clock
from ..ports import Store
from ..stores.pending import MOST_COUNTED

SHORTEST, LONGEST = 5.0, 30.0
"""Seconds between two counts."""
SHARE = 20
"""Counting takes at most one part of so many of the time: with a million rows it is no trifle."""


class Sampler:
    """`is_ours`: whether this relay is the one that counts, which is the owner of slot 0."""

    def __init__(self, store: Store, clock: Clock, is_ours: Callable[[], bool], most: int | None) -> None:
        self._store = store
        self._clock = clock
        self._is_ours = is_ours
        self.most = MOST_COUNTED if most is None else most + 1

    async def run(self) -> None:
        pause = SHORTEST
        while True:
            await asyncio.sleep(pause)
            pause = await self.sample()

    async def sample(self) -> float:
        """Count, if it is ours to do; returns the pause until the next time."""
        began = self._clock.monotonic()
        if self._is_ours():
            await self._store.sample(self.most)
        return min(LONGEST, max(SHORTEST, SHARE * (self._clock.monotonic() - began)))
