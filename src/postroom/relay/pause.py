"""How long to wait before trying again."""

from __future__ import annotations

import random


class Pause:
    """Growing, jittered pauses between tries."""

    def __init__(self, shortest: float = 0.05, longest: float = 5.0) -> None:
        self._shortest, self._longest, self._length = shortest, longest, shortest

    def next(self) -> float:
        length, self._length = self._length, min(self._longest, self._length * 2)
        return length * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        self._length = self._shortest
