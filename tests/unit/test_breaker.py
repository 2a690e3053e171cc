"""When a destination is tried again. Whose fault a failure is, the plan's tests and generated histories show."""

from __future__ import annotations

import pytest

from postroom.message import Message
from postroom.relay.breaker import Breaker

MIDDLE = 0.5
"""The chance that makes a pause as long as it is meant."""


def pauses(count: int, *, retry_after: float | None = None, cap: float = 15.0) -> list[float]:
    """Each as long after a probe that failed."""
    breaker, found = Breaker(initial=0.5, cap=cap, trip_after=5), list[float]()
    for number in range(count):
        now = breaker.until
        breaker.half_open()
        breaker.unavailable(Message(topic="t", payload=b"", id=str(number)), "down", now, lambda: MIDDLE, retry_after)
        found.append(breaker.until - now)
    return found


def test_pauses_double_up_to_the_longest() -> None:
    assert pauses(8) == [0.5, 1, 2, 4, 8, 15, 15, 15]


@pytest.mark.parametrize(("chance", "pause"), [(0.0, 0.375), (1.0, 0.625)])
def test_each_probe_may_come_a_quarter_sooner_or_later(chance: float, pause: float) -> None:
    breaker = Breaker(initial=0.5, cap=15.0, trip_after=5)
    breaker.unavailable(Message(topic="t", payload=b""), "down", 0.0, lambda: chance, None)
    assert breaker.until == pause


@pytest.mark.parametrize(
    ("asked", "cap", "pause"), [(0.1, 15.0, 0.5), (120.0, 15.0, 120.0), (1e9, 15.0, 600.0), (1e9, 5.0, 200.0)]
)
def test_a_destination_may_ask_for_a_longer_pause_but_not_for_any(asked: float, cap: float, pause: float) -> None:
    assert pauses(1, retry_after=asked, cap=cap) == [pause]
