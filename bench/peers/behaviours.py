"""How systems behave when something goes wrong: what is done to them, and with how much."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from . import kill, outage, overlap
from .amounts import Amounts, for_slow
from .drivers.protocol import SIZE
from .stage import Stage
from .systems import System

Results = dict[str, dict[str, Any]]
"""By system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    about: str
    amounts: Amounts
    observe: Callable[[Stage, Sequence[System], float], Results]
    """The number is that of the minutes of an outage."""


OBSERVED = {
    "kill": Behaviour(
        about="One worker after another is killed with `kill -9` in the middle of a backlog, and the last works on. "
        "`kills` is how many were at work when they were killed. `lost` is what neither arrived nor is in the "
        "database, `pending` what had not arrived when the longest wait was over, and `longest silence` the longest "
        "time between two deliveries, such as that for what a dead worker held.",
        amounts={
            "messages": kill.MESSAGES,
            **for_slow("messages", kill.FEW_MESSAGES),
            "keys": kill.KEYS,
            "payload_bytes": SIZE,
            "kills": kill.KILLS,
            "deliveries_before_each": kill.STEP,
            "milliseconds_for_a_message": kill.PAUSE * 1_000,
            "longest_wait_seconds": kill.LEASE,
        },
        observe=lambda stage, systems, _: kill.kill(stage, systems),
    ),
    "outage": Behaviour(
        about="Handling fails for all systems at once, and each does what it does by default. An attempt raises "
        "Python's `ConnectionError`, as a client of a broker that is down would; a system that tells refusals from "
        "outages can take it for the latter. Some messages are written before, the others during the first nine "
        "tenths of the outage. `dead` is what a system has given up and keeps, `lost` what neither arrived nor is in "
        "the database.",
        amounts={
            "messages_before": outage.BEFORE,
            "messages_during": outage.DURING,
            "keys": outage.KEYS,
            "payload_bytes": SIZE,
            "longest_wait_after_it_seconds": outage.GRACE,
        },
        observe=outage.outage,
    ),
    "overlap": Behaviour(
        about="Two transactions write one message each to the same key, and the one that wrote first, message 1, "
        "commits last. Unlocked, nothing says which of the two is earlier: `2, then 1` is the order of commits, "
        "`1, then 2` that of writing, and neither is wrong; only a lost message would be. Locked, both lock a row of "
        "the application first, so that the second waits for the first: there only `1, then 2` is right.",
        amounts={"messages": 2, "keys": 1, "payload_bytes": SIZE, "head_start_seconds": overlap.LEAD},
        observe=lambda stage, systems, _: overlap.overlap(stage, systems),
    ),
}
