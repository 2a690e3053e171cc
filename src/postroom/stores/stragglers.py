"""Which positions may still appear below those that were read already, on a database with many writers at once.

A transaction takes its positions when it inserts and shows its rows when it commits. In between, others pass it. A
reader that only looks above the last position it saw would never see such a straggler, or see it after a younger row of
the same key whose writer waited for it. Reading everything again each time would walk all the rows that were delivered
since.

So the reader **asks** now and then who is writing. Each writer that is found has a **floor**: all its positions are
above. Whoever is not found has none at or below a position that the ask **covers**. Each read therefore looks again

- above what the last ask before the previous read of that slot covered: whoever came since may be over by now;
- above the floor of every writer that may be over unnoticed, and of every one that turned out to be, once.

Whether one that has been here for longer is over is seen by the read itself. If it is, the read is repeated from its
floor before anything is handed on.

Nothing here touches a database. How to ask, and what tells that a writer is over, is the business of each store.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

Evidence = TypeVar("Evidence", contravariant=True)


class Writer(Protocol[Evidence]):
    @property
    def floor(self) -> int:
        """All its positions are above."""
        ...

    @property
    def may_be_over(self) -> bool:
        """Whether a read could miss that it is over."""
        ...

    def meet_again(self, found: Any) -> None:
        """The next ask found it, too, as this."""
        ...

    def is_over(self, evidence: Evidence) -> bool:
        """What the read saw tells that it is over."""
        ...


@dataclass(slots=True, eq=False)
class Reading(Generic[Evidence]):
    """One read of some slots, from before it is sent until its rows are there."""

    lows: Mapping[int, int]
    """For each slot, above which position to look again."""
    covered: int
    writers: Sequence[Writer[Evidence]]
    before: Mapping[int, int]


class Stragglers(Generic[Evidence]):
    def __init__(self) -> None:
        self.highest = 0
        """Of all positions that were read."""
        self.covered = 0
        """By the last ask."""
        self.asked: frozenset[int] | None = frozenset()
        """The slots that asks were about; None for all."""
        self.writers: dict[Hashable, Writer[Evidence]] = {}
        self._lows: dict[int, int] = {}

    @property
    def slots(self) -> list[int]:
        """That were ever read."""
        return list(self._lows)

    def answered(self, covers: int, found: Mapping[Any, Writer[Evidence]], slots: frozenset[int] | None = None) -> None:
        """What an ask found, and up to which position it found everybody: in these slots, or in all."""
        for name in [name for name in self.writers if name not in found]:
            self._over(self.writers.pop(name))
        for name, writer in found.items():
            if name in self.writers:
                self.writers[name].meet_again(writer)
            else:
                self.writers[name] = writer
        self.covered = covers
        self.asked = slots

    def begin(self, slots: Iterable[int]) -> Reading[Evidence]:
        """Before a read is sent."""
        doubtful = min((writer.floor for writer in self.writers.values() if writer.may_be_over), default=self.highest)
        before = {slot: self._lows.get(slot, 0) for slot in slots}
        lows = {slot: min(low, doubtful) for slot, low in before.items()}
        covered = {slot: self.covered if self.asked is None or slot in self.asked else 0 for slot in before}
        self._lows |= covered
        return Reading(lows, min(covered.values(), default=0), list(self.writers.values()), before)

    def give_up(self, reading: Reading[Evidence]) -> None:
        """It failed: what it was to look at again is still to be looked at."""
        for slot, low in reading.before.items():
            self._lows[slot] = min(low, self._lows[slot])

    def end(self, reading: Reading[Evidence], highest: int, evidence: Evidence) -> int | None:
        """Its rows are there. If a writer was over by then that was still thought to be there, its floor: look again
        above that, with a later snapshot, before handing anything on."""
        self.highest = max(self.highest, highest)
        over = [writer for writer in reading.writers if not writer.may_be_over and writer.is_over(evidence)]
        if not over:
            return None
        for name in [name for name, writer in self.writers.items() if writer in over]:
            self._over(self.writers.pop(name))
        reading.writers = [writer for writer in reading.writers if writer not in over]
        return min(writer.floor for writer in over)

    def horizon(self, reading: Reading[Evidence]) -> int:
        """No row at or below it can appear any more that this reading did not find."""
        return min([reading.covered, *(writer.floor for writer in reading.writers)])

    def may_have_come(self, slot: int, after: int) -> bool:
        """Whether a row may have appeared in the slot, not above `after`, since it was last read."""
        return bool(self.writers) or self._lows.get(slot, 0) < after

    def _over(self, writer: Writer[Evidence]) -> None:
        for slot in self._lows:
            self._lows[slot] = min(self._lows[slot], writer.floor)
