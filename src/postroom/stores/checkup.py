"""What a doctor says, and what the status of an outbox tells him; on every store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..duration import spell
from ..message import SLOTS
from ..ports import Finding, Status

OVERDUE = 300.0
"""Seconds after which a message that is still pending means that something does not work."""


def fine(name: str, seen: str) -> Finding:
    return Finding(name=name, verdict="ok", seen=seen)


def warning(name: str, seen: str, remedy: str) -> Finding:
    return Finding(name=name, verdict="warning", seen=seen, remedy=remedy)


def problem(name: str, seen: str, remedy: str) -> Finding:
    return Finding(name=name, verdict="problem", seen=seen, remedy=remedy)


def of_status(status: Status) -> list[Finding]:
    return [_relays(status), _slots(status), _pending(status), _held(status), _breakers(status)]


def waiting(status: Status) -> int:
    return status.counts.get("pending", 0) + status.counts.get("failed", 0)


def _relays(status: Status) -> Finding:
    alive = counted(len(status.relays), "relay is", "relays are")
    if not status.relays and waiting(status):
        seen = f"{counted(waiting(status), 'message waits', 'messages wait')}, and nobody delivers: no relay is alive"
        return problem("relays", seen, "start one with `postroom relay`, or look why those you have do not run")
    return fine("relays", f"{alive} alive")


def _slots(status: Status) -> Finding:
    """Relays that share rows need no slots."""
    owned = f"{status.slots_owned} of {SLOTS} slots have an owner"
    if status.meta.claim == "rows" or not status.relays or status.slots_owned == SLOTS or not waiting(status):
        return fine("leases", owned)
    remedy = f"look again in a moment: relays take over expired leases, also those of one that was killed; {_LOOK}"
    return warning("leases", owned, remedy)


def _pending(status: Status) -> Finding:
    oldest = status.oldest_pending_seconds
    if oldest is None:
        return fine("pending", "nothing is pending")
    seen = f"the oldest of {waiting(status)} is {spell(max(0, int(oldest)))} old"
    if oldest <= OVERDUE or not status.relays:
        return fine("pending", seen)
    return warning("pending", f"{seen}, although a relay is alive", f"see `postroom holds`; {_LOOK}")


def _held(status: Status) -> Finding:
    dead = status.counts.get("dead", 0)
    seen = f"{counted(status.holds, 'key is', 'keys are')} on hold, {counted(dead, 'message is', 'messages are')} dead"
    return fine("holds", seen)


def _breakers(status: Status) -> Finding:
    tripped = [breaker for breaker in status.breakers if breaker.get("tripped_at") is not None]
    if not tripped:
        return fine("destinations", "none is reported unavailable")
    named = "; ".join(_trip(breaker) for breaker in tripped)
    return warning("destinations", named, "mend them: deliveries go on by themselves, and no message dies meanwhile")


def _trip(breaker: Mapping[str, Any]) -> str:
    return f"{breaker['destination']} is unavailable: {breaker['error']}"


def counted(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


_LOOK = "then look into the relay's log"
