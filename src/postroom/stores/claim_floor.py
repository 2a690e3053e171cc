"""How far the hot table has been emptied, where rows are claimed one by one.

Whoever looks for the first row from the start of the table passes every row that was ever taken and that the database
could not clean up yet, because somebody still reads an old snapshot. Claims take the lowest positions first, so below
what was claimed there is nothing left, but for what may still appear:

- rows of writers that have not committed: the store knows how far there are none (`Fetched.horizon`);
- rows that another claim had locked, and gave up. That takes a moment, so the floor rises that much later; and now and
  then it falls to the ground, should one have taken longer.
"""

from __future__ import annotations

LAG = 1.0
SWEEP_INTERVAL = 30.0


class Floor:
    def __init__(self) -> None:
        self.position = 0
        """At or below it nobody need look."""
        self._next = 0
        self._reached = 0
        self._rises_at = 0.0
        self._falls_at = 0.0

    def note(self, reached: int, now: float) -> None:
        """A claim found nothing more at or below `reached`."""
        self._reached = max(self._reached, reached)
        if now >= self._rises_at:
            self.position, self._next, self._rises_at = self._next, self._reached, now + LAG

    def falls(self, now: float) -> bool:
        """Whether it is time to look everywhere once more; from then on it does not rise for a moment."""
        if now < self._falls_at:
            return False
        self.position, self._next, self._rises_at, self._falls_at = 0, 0, now + LAG, now + SWEEP_INTERVAL
        return True
