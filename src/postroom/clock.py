"""Where time comes from.

Due times and leases are the database's time, so relays whose clocks differ agree. What happens inside one process
(deadlines, pauses between probes) is monotonic time. Tests pass their own clock for both.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime:
        """The time of day, with a time zone. A store that is given a clock uses it instead of the database's."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back."""
        ...


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()
