"""Who is writing to the hot table, on MySQL: nobody tells, but a dirty read shows rows before their commit.

What a dirty read shows and an ordinary one after it does not is a row that may yet be committed. A position that
neither shows is one that was given back, or one whose row is about to be written: it was taken, and its statement is
still on the way to the table. So an ask covers only positions that had been read when the one before it was sent. A
statement that takes longer than that from a position to its **first** row is the limit of this: its rows may come after
younger ones of their keys, found by the sweep that reads everything again. For all its other rows the first one speaks:
when that is committed, everything above it is read again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

MOST_CHECKED = 1_000
"""Rows that are looked for one by one in each read. For more than these all rows above them are read."""


@dataclass(slots=True, eq=False)
class Uncommitted:
    """A row that is there and not committed."""

    position: int
    is_checked: bool
    """Whether each read looks for it."""

    @property
    def floor(self) -> int:
        return self.position - 1

    @property
    def may_be_over(self) -> bool:
        return not self.is_checked

    def meet_again(self, found: Uncommitted) -> None:
        self.is_checked = found.is_checked

    def is_over(self, evidence: Collection[int]) -> bool:
        return self.position in evidence


def uncommitted(positions: Iterable[int]) -> dict[int, Uncommitted]:
    return {position: Uncommitted(position, number < MOST_CHECKED) for number, position in enumerate(sorted(positions))}
