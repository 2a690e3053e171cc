"""Whether an outbox is full, by what a relay last counted. Asked at most once a second for each place."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import UTC
from typing import Any
from weakref import WeakKeyDictionary

from ..errors import ConfigurationError, OutboxFull
from ..stores.pending import Sample
from .procedure import Pause

GOOD_FOR = 1.0
"""Seconds for which an answer is remembered."""
LOOK_AGAIN = 0.2
"""Seconds between two looks while waiting."""


Asking = Generator[Any, Any, Sample | None]
"""Yields the statements that find out, and returns what they say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    most: int
    blocks: bool
    timeout: float


class Fullness:
    """`limit` is None for an outbox without one, which is never full.

    A place stands for a database: an engine, or a connection. None is one that cannot be told from others.
    """

    def __init__(self, outbox: str, limit: Limit | None, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self._outbox = outbox
        self._monotonic = monotonic
        self._known: WeakKeyDictionary[object, tuple[float, Sample | None]] = WeakKeyDictionary()

    def refuse_to_wait(self, reason: str) -> None:
        if self.limit is not None and self.limit.blocks:
            raise ConfigurationError(f"on_full='block' cannot be used here: {reason}; use on_full='raise'")

    def check(self, place: object) -> None:
        """Raise if it is known to be full, without asking."""
        is_known, sample = self._recall(place)
        if is_known and self.limit is not None and not self.limit.blocks:
            self.refuse_over(sample)

    def admit(self, place: object, ask: Callable[[], Asking]) -> Generator[Any, Any, None]:
        """Raise if it is full, now or still after a wait."""
        if self.limit is None:
            return
        is_known, sample = self._recall(place)
        if not is_known:
            sample = yield from self._look(place, ask)
        deadline = time.monotonic() + (self.limit.timeout if self.limit.blocks else 0.0)
        while self._is_over(sample) and (left := deadline - time.monotonic()) > 0:
            yield Pause(min(LOOK_AGAIN, left))
            sample = yield from self._look(place, ask)
        self.refuse_over(sample)

    def refuse_over(self, sample: Sample | None) -> None:
        if sample is not None and self.limit is not None and self._is_over(sample):
            raise OutboxFull(
                f"the outbox {self._outbox!r} has {sample.pending} pending messages, counted since "
                f"{sample.since.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC, and max_pending is {self.limit.most}: try "
                "again later; if it stays so, see with `postroom status` whether a relay is alive and what holds it up"
            )

    def _is_over(self, sample: Sample | None) -> bool:
        return sample is not None and self.limit is not None and sample.pending >= self.limit.most

    def _look(self, place: object, ask: Callable[[], Asking]) -> Asking:
        sample = yield from ask()
        with contextlib.suppress(TypeError):  # nothing can be remembered for it
            if place is not None:
                self._known[place] = self._monotonic(), sample
        return sample

    def _recall(self, place: object) -> tuple[bool, Sample | None]:
        """Whether there is an answer that is still good, and that."""
        try:
            at, sample = self._known[place]
        except (KeyError, TypeError):
            return False, None
        return self._monotonic() - at < GOOD_FOR, sample
