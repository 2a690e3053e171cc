"""How many rows to read at a time, and to keep in memory: so many as are no burden, whatever their size."""

from __future__ import annotations

from collections.abc import Sequence

from ..message import Message

DEEP = 2
"""Batches that are read at once from a backlog: they are settled at once, too, and each read and settlement costs."""

BYTES = 16 * 1024 * 1024
"""Of payloads in one read. It has to be over before its time-out, on a slow network too."""

FIRST_GUESS = 256 * 1024
"""Bytes of a payload, before any was seen: a quarter of what an outbox takes unless it is told otherwise."""


class Appetite:
    """Large messages are read a few at a time; and a read that failed is tried again with half as many rows, for it may
    have been its size that was too much."""

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._average: float | None = None
        self._most = DEEP * batch_size
        """Since reads failed."""
        self.window = 2 * self._light(batch_size)
        """Messages in memory of one destination, those in flight apart."""

    def rows(self, batches: int = 1) -> int:
        return min(self._light(batches * self._batch_size), self._most)

    def took(self, messages: Sequence[Message]) -> None:
        """Prepared for large ones at once, and for small ones again after a while."""
        self._most = min(2 * self._most, DEEP * self._batch_size)
        if messages:
            average = sum(len(message.payload) for message in messages) / len(messages)
            before = average if self._average is None else self._average
            self._average = max(average, (before + average) / 2)
            self.window = 2 * self._light(self._batch_size)

    def failed(self, rows: int) -> None:
        self._most = max(1, rows // 2)

    def _light(self, rows: int) -> int:
        size = FIRST_GUESS if self._average is None else max(1.0, self._average)
        return max(1, min(rows, int(BYTES / size)))
