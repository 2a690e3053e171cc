"""How far a claimant of rows need not look any more."""

from __future__ import annotations

from postroom.stores.claim_floor import LAG, SWEEP_INTERVAL, Floor


def risen(*reached: int) -> Floor:
    """After claims that found nothing more up to there, a moment apart."""
    floor = Floor()
    assert floor.falls(0.0), "it begins on the ground"
    for number, each in enumerate(reached, start=1):
        floor.note(each, number * LAG)
    return floor


def test_it_rises_a_moment_after_what_was_reached() -> None:
    assert [risen(10).position, risen(10, 20).position, risen(10, 20, 30).position] == [0, 10, 20]


def test_it_does_not_rise_sooner_however_often_something_is_claimed() -> None:
    floor = risen(10, 20)
    for reached in range(21, 30):
        floor.note(reached, 2.5 * LAG)
    assert floor.position == 10


def test_it_does_not_sink_when_a_claim_reached_less() -> None:
    assert risen(10, 20, 5, 5).position == 20


def test_it_falls_now_and_then_and_rises_again() -> None:
    floor = risen(10, 20, 30)
    assert not floor.falls(SWEEP_INTERVAL - 0.1)
    assert floor.falls(SWEEP_INTERVAL)
    assert floor.position == 0
    assert not floor.falls(SWEEP_INTERVAL)
    for number in (1, 2):
        floor.note(0, SWEEP_INTERVAL + number * LAG)
    assert floor.position == 30
