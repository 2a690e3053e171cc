"""How much each system is given to do: a round must not take much longer than half a minute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .drivers.protocol import SIZE
from .systems import SYSTEMS, System

Amounts = Mapping[str, float | str]
"""What a measure was made with, in words, for whoever reads the report."""

KEYS = 1_000
WRITERS = 8
IDLE = (0.28, 0.32)
"""Seconds between two single messages: enough for any worker to fall asleep."""
TRICKLE = (0.05, 0.2)
"""Not always enough."""
WARMING = 3
"""Messages that do not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    rounds: int
    messages: int
    """To drain."""
    few_messages: int
    """The same for a slow system."""
    backlog: int
    seconds: float
    """No drain takes longer: what was acknowledged until then is the rate."""
    few_seconds: float
    """The same for a slow system and a backlog."""
    writing: float
    """Seconds of enqueueing."""
    samples: int
    """Of latency, in one round."""


FULL = Amount(
    rounds=5,
    messages=40_000,
    few_messages=5_000,
    backlog=200_000,
    seconds=40.0,
    few_seconds=20.0,
    writing=5.0,
    samples=60,
)
QUICK = Amount(
    rounds=2,
    messages=10_000,
    few_messages=1_000,
    backlog=50_000,
    seconds=15.0,
    few_seconds=5.0,
    writing=2.0,
    samples=20,
)


def messages_for(system: System, amount: Amount) -> int:
    return amount.few_messages if system.slow else amount.messages


def seconds_for(system: System, amount: Amount) -> float:
    return amount.few_seconds if system.slow else amount.seconds


# --- in words


def of_drain(amount: Amount) -> Amounts:
    few = for_slow("messages", amount.few_messages)
    return {"messages": amount.messages, **few, "keys": KEYS, "payload_bytes": SIZE, "limit_seconds": amount.seconds}


def of_one_key(amount: Amount) -> Amounts:
    return {**of_drain(amount), "keys": 1}


def of_backlog(amount: Amount) -> Amounts:
    few = for_slow("limit_seconds", amount.few_seconds)
    return {
        "messages": amount.backlog,
        "keys": KEYS,
        "payload_bytes": SIZE,
        "limit_seconds": amount.seconds,
        **few,
    }


def of_writing(amount: Amount) -> Amounts:
    return {"writers": WRITERS, "keys": WRITERS, "payload_bytes": SIZE, "seconds": amount.writing}


def of_latency(amount: Amount) -> Amounts:
    return of_delays(amount, IDLE)


def of_trickle(amount: Amount) -> Amounts:
    return of_delays(amount, TRICKLE)


def of_delays(amount: Amount, pauses: tuple[float, float]) -> Amounts:
    shortest, longest = pauses
    return {
        "messages_a_round": amount.samples,
        "keys": 1,
        "payload_bytes": SIZE,
        "pause_seconds": f"{shortest:g} to {longest:g}",
    }


def for_slow(what: str, value: float) -> Amounts:
    return {f"{what}_for_{system.name}": value for system in SYSTEMS.values() if system.slow}
