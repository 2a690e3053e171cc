"""Who is writing to the hot table, on PostgreSQL: whoever has it locked for that.

A transaction takes the lock before its first position and keeps it to its end. One that took it after an ask takes
positions above all that had been read before that ask: there is its floor. An ask finds everybody who has a position at
or below those that had been read when it was sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from .stragglers import Writer

WRAP = 2**32
"""Locks name transactions by the last 32 bits of their number."""


class Snapshot(NamedTuple):
    """Which transactions a statement saw as over, as `pg_current_snapshot()` spells it."""

    end: int
    """This one and all later ones were running, or not begun."""
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str | None) -> Snapshot:
        _, end, running = (text or "").split(":")
        return cls(int(end), frozenset(int(number) for number in running.split(",") if number))

    def shows(self, transaction: int) -> bool:
        """Whether it was over, by the last 32 bits of its number."""
        age = (self.end - transaction) % WRAP
        if age == 0 or age > WRAP // 2:
            return False
        return self.end - age not in self.running


@dataclass(slots=True, eq=False)
class Locker:
    """A transaction that has the hot table locked for writing."""

    floor: int
    numbers: frozenset[int]
    """Its own, and those of its savepoints; none if it has written nothing yet."""
    is_new: bool = True

    @property
    def may_be_over(self) -> bool:
        """New: the ask came before the read, and it may have ended in between. Without a number: no snapshot tells."""
        return self.is_new or not self.numbers

    def meet_again(self, found: Locker) -> None:
        self.numbers, self.is_new = found.numbers, False

    def is_over(self, evidence: Snapshot) -> bool:
        return bool(self.numbers) and all(evidence.shows(number) for number in self.numbers)


NOBODY = "-1/"
"""How the name of a prepared transaction begins that no session goes on with."""


def met(known: Iterable[Writer[Snapshot]], name: str, floor: int, numbers: Iterable[int]) -> Locker:
    """One that an ask found. A prepared transaction gets another name when the server is restarted, and may be any of
    those that were known before."""
    floors = [writer.floor for writer in known] if name.startswith(NOBODY) else []
    return Locker(min([floor, *floors]), frozenset(numbers))
