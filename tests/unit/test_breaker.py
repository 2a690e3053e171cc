"""When a destination is tried again. Whose fault a failure is, the plan's tests and generated histories show."""

from __future__ import annotations

from itertools import count

import pytest

from postroom.message import Message
from postroom.relay.breaker import Breaker, Failure
from postroom.relay.outlet import Rate

DOWN = "down"
MIDDLE = 0.5
"""The chance that makes a pause as long as it is meant."""


def of_topic(topic: str, key: str = "k") -> Message:
    return Message(topic=topic, payload=b"", key=key)


def fail(breaker: Breaker, message: Message, now: float = 0.0, retry_after: float | None = None) -> bool:
    return breaker.unavailable(message, DOWN, now, lambda: MIDDLE, retry_after)


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
    assert pauses(8) == [0.5, 1, 2, 4, 8, 12, 12, 12]


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


@pytest.mark.parametrize(("chance", "pause"), [(0.0, 9.0), (1.0, 15.0)])
def test_at_the_longest_pause_relays_spread_but_none_pauses_longer(chance: float, pause: float) -> None:
    breaker = Breaker(initial=0.5, cap=15.0, trip_after=5, trips=20)
    breaker.unavailable(of_topic("t"), DOWN, 0.0, lambda: chance, None)
    assert breaker.until == pause


def test_of_all_pauses_that_the_failures_of_a_batch_ask_for_the_longest_is_kept() -> None:
    breaker = Breaker(initial=0.5, cap=15.0, trip_after=5)
    fail(breaker, of_topic("t", "first"))
    for asked in (30.0, 120.0, 60.0, None, 1e9):
        fail(breaker, of_topic("t", str(asked)), retry_after=asked)
        if asked == 60.0:
            assert breaker.until == 120.0
    assert (breaker.until, breaker.trips) == (600.0, 1)


def test_a_turn_that_somebody_else_has_makes_no_pause_shorter() -> None:
    breaker = Breaker(initial=0.5, cap=15.0, trip_after=5)
    fail(breaker, of_topic("t"), retry_after=120.0)
    breaker.probe_lost(1.0, 0.5)
    assert breaker.until == 120.0


def test_a_success_of_what_was_sent_before_makes_no_pause_shorter_that_the_destination_asked_for() -> None:
    breaker = Breaker(initial=0.5, cap=15.0, trip_after=5)
    fail(breaker, of_topic("t"), retry_after=60.0)
    assert not breaker.succeeded(of_topic("t", "sent before"))
    assert (breaker.state, breaker.until) == ("tripped", 60.0)
    breaker.half_open()
    assert breaker.succeeded(of_topic("t", "probe"))
    fail(breaker, of_topic("t"), 100.0)
    assert breaker.succeeded(of_topic("t", "sent before")), "it asked for nothing this time"


@pytest.mark.parametrize(("retry_after", "until"), [(None, 1.0), (0.1, 1.0), (60.0, 60.0)])
def test_successes_of_another_relay_end_a_pause_unless_the_destination_asked_for_it(
    retry_after: float | None, until: float
) -> None:
    breaker = Breaker(initial=8.0, cap=15.0, trip_after=5)
    fail(breaker, of_topic("t"), retry_after=retry_after)
    breaker.succeeded_elsewhere(7, 0.5)
    assert breaker.until >= 8.0
    breaker.succeeded_elsewhere(8, 1.0)
    assert breaker.until == until


def test_no_message_is_to_blame_for_a_destination_that_says_when_to_come_again() -> None:
    breaker, message = Breaker(initial=0.5, cap=15.0, trip_after=5), of_topic("t")
    for now in range(10):
        assert not fail(breaker, message, float(now), retry_after=1.0)
        breaker.succeeded(of_topic("t", "other"))


def test_a_message_that_fails_as_the_very_first_after_the_pause_that_was_asked_for_is_to_blame() -> None:
    """Others got through each time, so it is not the destination that wants to be left alone."""
    breaker, poison, other = Breaker(initial=0.5, cap=15.0, trip_after=5), of_topic("t"), of_topic("t", "other")
    moments = count(0, 10)
    for _ in range(2):
        assert not fail(breaker, poison, next(moments), retry_after=5.0)
        breaker.half_open()
        assert not breaker.needs_trial(poison), "nobody got through since it failed"
        breaker.succeeded(other)
    for charged in (False, False, True, False, True, False, True):  # later attempts are found out sooner
        assert breaker.needs_trial(poison)
        assert breaker.has_trials()
        assert not fail(breaker, poison, next(moments), retry_after=5.0), "it came after others"
        breaker.half_open()
        breaker.probes_with(poison, None)
        now = next(moments)
        assert fail(breaker, poison, now, retry_after=5.0) is charged
        assert (breaker.state, breaker.until) == ("tripped", now + 5.0), "what was asked for is obeyed all the same"
        assert not breaker.has_trials()
        breaker.half_open()
        breaker.succeeded(other)


def suspected(breaker: Breaker, *messages: Message) -> None:
    """Each of them lacks nothing but trials."""
    for now in (0.0, 10.0):
        for message in messages:
            fail(breaker, message, now, retry_after=5.0)
        breaker.half_open()
        breaker.succeeded(of_topic("t", "other"))


def test_no_two_trials_follow_each_other_without_a_success_between() -> None:
    breaker, messages = Breaker(initial=0.5, cap=15.0, trip_after=5), [of_topic("t", str(each)) for each in range(3)]
    suspected(breaker, *messages)
    for now, message in enumerate(messages, 2):
        assert all(breaker.needs_trial(each) for each in messages[now - 2 :])
        fail(breaker, of_topic("t", f"in burst {now}"), 10.0 * now, retry_after=5.0)
        breaker.half_open()
        breaker.probes_with(message, None)
        fail(breaker, message, 10.0 * now + 5.0, retry_after=5.0)
        assert not breaker.has_trials(), "others wait for the pause each time"
        breaker.half_open()
        breaker.succeeded(of_topic("t", "other"))


def test_a_message_that_is_not_at_hand_is_waited_for_only_once() -> None:
    """It may be gone, or wait for its next attempt."""
    breaker, gone = Breaker(initial=0.5, cap=15.0, trip_after=5), of_topic("t", "gone")
    suspected(breaker, gone)
    fail(breaker, of_topic("t", "another"), 20.0, retry_after=5.0)
    breaker.half_open()
    assert breaker.has_trials()
    breaker.probes_with(of_topic("t", "other"), None)
    breaker.succeeded(of_topic("t", "other"))
    assert not breaker.has_trials()
    fail(breaker, gone, 30.0, retry_after=5.0)
    breaker.half_open()
    breaker.succeeded(of_topic("t", "other"))
    assert breaker.needs_trial(gone), "it is back"


def test_what_was_sent_as_a_probe_before_is_not_one_of_this_time() -> None:
    breaker, message = Breaker(initial=0.5, cap=15.0, trip_after=5), of_topic("t", "late")
    suspected(breaker, message)
    for _ in range(10):
        fail(breaker, of_topic("t", "another"), 20.0, retry_after=5.0)
        breaker.half_open()
        assert not fail(breaker, message, 30.0, retry_after=5.0)
        breaker.half_open()
        breaker.succeeded(of_topic("t", "other"))
        breaker.probe = message.dedupe_id


def test_a_message_that_fails_as_a_probe_while_nobody_got_through_is_not_to_blame() -> None:
    breaker, message = Breaker(initial=0.5, cap=15.0, trip_after=5), of_topic("t")
    for now in range(10):
        assert not fail(breaker, message, 20.0 * now, retry_after=5.0)
        breaker.half_open()
        breaker.probes_with(message, None)


# --- whose fault it is, by topic


def test_successes_of_other_topics_are_no_proof_against_a_message() -> None:
    breaker, missing, other = Breaker(initial=0.5, cap=15.0, trip_after=5), of_topic("b"), of_topic("a")
    for now in range(100):
        breaker.succeeded(other)
        assert not fail(breaker, missing, float(now))


def test_successes_of_its_own_topic_are() -> None:
    breaker, poison, other = Breaker(initial=0.5, cap=15.0, trip_after=5), of_topic("t"), of_topic("t", "other")
    charged: list[bool] = []
    for now in range(4):
        charged.append(fail(breaker, poison, float(now)))
        breaker.succeeded(of_topic("a"))
        breaker.succeeded(other)
    assert charged == [False, False, True, True]


def test_only_topics_that_have_a_suspect_are_counted() -> None:
    breaker, poison = Breaker(initial=0.5, cap=15.0, trip_after=5), of_topic("t")
    fail(breaker, poison)
    for number in range(10):
        breaker.succeeded(of_topic(str(number)))
    assert set(breaker.of_topic) == {"t"}
    breaker.succeeded(poison)
    assert (breaker.of_topic, breaker.suspects, breaker.failing) == ({}, {}, {})


def test_a_topic_that_fails_alone_trips_its_destination_once_and_is_then_held_back_with_growing_pauses() -> None:
    breaker, other, now = Breaker(initial=0.5, cap=5.0, trip_after=5), of_topic("a"), 0.0
    found: list[float] = []
    for number in range(7):
        message = of_topic("b", str(number))
        assert breaker.take_turn(message, now)
        fail(breaker, message, now)
        fail(breaker, of_topic("b", f"the rest of the batch {number}"), now)
        assert breaker.state == ("closed" if number else "tripped")
        breaker.succeeded(other)
        until = max((breaker.turns()[0], now))
        assert (breaker.held_back(now) == {"b"}) is (number > 0)
        assert not breaker.held_back(until)
        found.append(until - now)
        now = until
    assert found == [0, 0.5, 1, 2, 4, 4, 4]
    breaker.succeeded(of_topic("b"))
    assert breaker.take_turn(of_topic("b", "new"), now)


def test_one_message_of_a_topic_that_is_held_back_goes_in_each_pause_and_those_that_have_not_failed_first() -> None:
    breaker, failed = Breaker(initial=0.5, cap=15.0, trip_after=5), of_topic("b")
    fail(breaker, failed)
    breaker.succeeded(of_topic("a"))
    fail(breaker, failed)
    assert not breaker.take_turn(of_topic("b", "new"), 0.4)
    assert not breaker.take_turn(failed, 0.9)
    assert breaker.take_turn(of_topic("b", "new"), 0.9)
    assert not breaker.take_turn(of_topic("b", "newer"), 0.9)
    assert breaker.take_turn(failed, 20.0), "with nothing else to try it is tried itself"


def test_a_topic_that_is_asked_to_wait_waits_as_long() -> None:
    breaker = Breaker(initial=0.5, cap=15.0, trip_after=5)
    fail(breaker, of_topic("b"))
    breaker.succeeded(of_topic("a"))
    fail(breaker, of_topic("b"), retry_after=120.0)
    assert breaker.state == "closed"
    assert breaker.held_back(119.0) == {"b"}
    breaker.succeeded(of_topic("b", "sent before"))
    assert breaker.held_back(119.0) == {"b"}
    assert breaker.take_turn(of_topic("b", "first"), 121.0)
    breaker.succeeded(of_topic("b", "first"))
    assert not breaker.failing


def test_a_destination_that_is_down_is_tripped_whatever_got_through_before() -> None:
    breaker = Breaker(initial=0.5, cap=15.0, trip_after=5)
    fail(breaker, of_topic("b"))
    breaker.succeeded(of_topic("a"))
    for topic in ("b", "a", "b", "a"):
        fail(breaker, of_topic(topic))
    assert breaker.state == "tripped"
    breaker.half_open()
    fail(breaker, of_topic("b"), breaker.until)
    assert (breaker.state, breaker.trips) == ("tripped", 2)


def test_a_topic_that_refuses_a_message_is_there() -> None:
    breaker = Breaker(initial=0.5, cap=15.0, trip_after=5)
    for answer in ("refused", "refused for good"):
        fail(breaker, of_topic("b"))
        breaker.succeeded(of_topic("a"))
        fail(breaker, of_topic("b"))
        assert breaker.failing
        if answer == "refused":
            breaker.refused("lane", Failure(of_topic("b"), 0), "no", 0.0, lambda: MIDDLE)
        else:
            breaker.answered("b")
        assert not breaker.failing


# --- rates


def test_a_rate_belongs_to_all_who_ask_for_it_together() -> None:
    rate = Rate(100.0)
    assert rate.allows(0.0) == 10
    rate.take(10)
    assert (rate.allows(0.0), rate.next_in(0.0)) == (0, 0.01)
    assert (rate.allows(0.05), rate.next_in(0.05)) == (5, None)
    assert rate.allows(60.0) == 10, "what may burst at once is a tenth of a second's"


def test_successes_are_not_only_counted_while_a_topic_fails() -> None:
    breaker = Breaker(initial=0.5, cap=15.0, trip_after=5)
    assert breaker.succeed(1)
    fail(breaker, of_topic("b"))
    breaker.state = "closed"
    breaker.suspects.clear()
    assert not breaker.succeed(1), "it matters which"
