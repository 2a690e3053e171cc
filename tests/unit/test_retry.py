from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.errors import ConfigurationError, MessageRejected
from postroom.retry import (
    ByError,
    ByType,
    Exponential,
    Fixed,
    Immediate,
    Never,
    RetryPolicy,
    Steps,
    horizon,
    parse,
)


def waits(policy: RetryPolicy, error: BaseException | None = None, type: str | None = None) -> list[float]:
    """The waits before each further try, until the policy gives up."""
    found: list[float] = []
    for attempt in range(1, 100):
        wait = policy.delay(attempt, error, type, lambda: 0.0)
        if wait is None:
            return found
        found.append(wait)
    raise AssertionError("the policy does not give up")


def test_by_default_a_message_is_tried_six_times_over_about_two_and_a_half_minutes():
    assert waits(Steps()) == [0, 1, 5, 30, 120]


def test_each_policy_waits_as_its_name_says():
    assert waits(Immediate(max_attempts=3)) == [0, 0]
    assert waits(Fixed("10s", max_attempts=3)) == [10, 10]
    assert waits(Steps("100ms", 2)) == [0.1, 2]
    assert waits(Exponential("1s", "5s", max_attempts=6)) == [1, 2, 4, 5, 5]
    assert waits(Never()) == []


def test_one_attempt_means_no_retry():
    assert waits(Immediate(max_attempts=1)) == waits(Fixed(max_attempts=1)) == waits(Exponential(max_attempts=1)) == []


@pytest.mark.parametrize(
    "policy", [Immediate(max_attempts=None), Fixed(max_attempts=None), Exponential(max_attempts=None)]
)
def test_without_a_limit_a_policy_never_gives_up(policy: RetryPolicy):
    assert policy.delay(1_000_000, None, None, lambda: 0.5) is not None


durations = st.floats(min_value=0.001, max_value=1e6)
exponentials = st.builds(
    lambda initial, more, factor, jitter: Exponential(
        initial, initial + more, factor=factor, jitter=jitter, max_attempts=None
    ),
    durations,
    durations,
    st.floats(min_value=1, max_value=1000),
    st.floats(min_value=0, max_value=1),
)


@given(exponentials, st.integers(min_value=1, max_value=10**9))
def test_exponential_waits_never_shrink_and_never_exceed_the_cap(policy: Exponential, attempt: int):
    now = policy.delay(attempt, None, None, lambda: 0.0)
    after = policy.delay(attempt + 1, None, None, lambda: 0.0)
    assert now is not None
    assert after is not None
    assert policy.initial <= now <= after <= policy.cap


@given(exponentials, st.integers(min_value=1, max_value=100), st.floats(min_value=0, max_value=1, exclude_max=True))
def test_jitter_takes_off_no_more_than_its_share(policy: Exponential, attempt: int, chance: float):
    longest = policy.delay(attempt, None, None, lambda: 0.0)
    wait = policy.delay(attempt, None, None, lambda: chance)
    assert longest is not None
    assert wait is not None
    assert longest * (1 - policy.jitter) <= wait <= longest


def test_messages_that_have_reached_the_cap_are_still_spread():
    policy = Exponential("1s", "10s", jitter=0.5, max_attempts=None)
    assert {policy.delay(50, None, None, lambda chance=chance: chance) for chance in (0.0, 0.5)} == {10.0, 7.5}


def test_the_first_glob_that_matches_the_type_decides():
    policy = ByType({"mail.urgent": Never(), "mail.*": Fixed(3, max_attempts=2)}, default=Fixed(7, max_attempts=2))
    assert waits(policy, type="mail.urgent") == []
    assert waits(policy, type="mail.welcome") == [3]
    assert waits(policy, type="Mail.welcome") == [7]
    assert waits(policy, type=None) == [7]


def test_the_most_specific_class_of_error_decides_whatever_the_order():
    policy = ByError({OSError: Fixed(3, max_attempts=2), ConnectionError: Never()}, default=Fixed(7, max_attempts=2))
    assert waits(policy, error=ConnectionResetError()) == []
    assert waits(policy, error=FileNotFoundError()) == [3]
    assert waits(policy, error=ValueError()) == [7]
    assert waits(policy, error=None) == [7]


def test_the_cause_of_an_error_counts_when_the_error_itself_is_not_listed():
    error = MessageRejected("refused")
    error.__cause__ = ValueError("bad")
    assert waits(ByError({ValueError: Never()}), error=error) == []
    assert waits(ByError({ValueError: Never(), MessageRejected: Fixed(1, max_attempts=2)}), error=error) == [1]


def test_an_error_that_causes_itself_does_not_hang():
    first, second = RuntimeError(), RuntimeError()
    first.__cause__, second.__cause__ = second, first
    assert waits(ByError({ValueError: Never()}, default="fixed 1s max=2"), error=first) == [1]


@pytest.mark.parametrize(
    "name", ["json.JSONDecodeError", "json.decoder.JSONDecodeError", "ValueError", "builtins.ValueError"]
)
def test_errors_may_be_named_in_text_by_any_path_they_are_reachable_under(name: str):
    import json

    assert waits(ByError({name: "never"}), error=json.JSONDecodeError("", "", 0)) == []


def test_a_named_error_that_nobody_has_imported_matches_nothing():
    assert waits(ByError({"not_there.Error": "never"}, default="immediate max=2"), error=ValueError()) == [0]


def test_policies_nest():
    policy = ByType({"mail.*": ByError({TimeoutError: "fixed 1s max=3"}, default=Never())})
    assert waits(policy, TimeoutError(), "mail.welcome") == [1, 1]
    assert waits(policy, ValueError(), "mail.welcome") == []


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("never", Never()),
        ("immediate", Immediate()),
        ("Immediate max=forever", Immediate(max_attempts=None)),
        ("fixed 10s", Fixed(10)),
        ("fixed 10s max=3", Fixed(10, max_attempts=3)),
        ("steps", Steps()),
        ("steps 0s 1s 5s", Steps(0, 1, 5)),
        ("exponential", Exponential()),
        ("exponential 1s 10m max=8", Exponential(1, 600, max_attempts=8)),
        ("exponential initial=2s factor=1.5 jitter=0", Exponential(2, factor=1.5, jitter=0)),
        (["0s", 1, "5s"], Steps(0, 1, 5)),
        ({"policy": "exponential", "initial": "2s", "max_attempts": 4}, Exponential(2, max_attempts=4)),
        ({"policy": "fixed", "wait": "2s", "max": "forever"}, Fixed(2, max_attempts=None)),
        ({"policy": "steps", "waits": ["1s", "2s"]}, Steps(1, 2)),
        ({"mail.*": "never", "*": [1]}, ByType({"mail.*": Never(), "*": Steps(1)})),
        ({ValueError: "never"}, ByError({ValueError: Never()})),
        ({"policy": "by-error", "policies": {"ssl.SSLError": "never"}}, ByError({"ssl.SSLError": Never()})),
        ({"policy": "by_type", "policies": {"a": "never"}, "default": "never"}, ByType({"a": Never()}, Never())),
    ],
)
def test_a_policy_can_be_written_in_configuration(written: object, expected: RetryPolicy):
    assert parse(written) == expected


def test_a_policy_of_the_users_own_passes_through():
    class Tomorrow:
        def delay(
            self, attempt: int, error: BaseException | None, type: str | None, random: Callable[[], float]
        ) -> float | None:
            return 86_400.0

    policy = Tomorrow()
    assert parse(policy) is policy


NO_TEXT = [
    "",
    "sometimes",
    "fixed soon",
    "fixed 1s 2s",
    "fixed 1s max=0",
    "fixed 1s max=many",
    "fixed 1s speed=3",
    "never 1s",
]
NO_EXPONENTIAL = [f"exponential {options}" for options in ("10s 1s", "0s", "factor=0.5", "factor=x", "jitter=2")]
NO_TABLE: list[object] = [
    {"policy": "none"},
    {"policy": ["fixed"]},
    {"policy": "steps", "waits": "1s"},
    {"policy": "by_type", "policies": "x"},
    {"policy": "by_error", "policies": {"X": "never"}},
    {"initial": "1s"},
    {"": "never"},
    {int: "never"},
]
NO_POLICY = [[], ["x"], 5, 1.5, True, None, Fixed, b"fixed 1s"]


@pytest.mark.parametrize("written", [*NO_TEXT, *NO_EXPONENTIAL, *NO_TABLE, *NO_POLICY])
def test_what_is_no_policy_is_refused_and_the_setting_named(written: object):
    with pytest.raises(ConfigurationError, match=r"^retry: "):
        parse(written)


@pytest.mark.parametrize("attempts", [0, -1, 1.5, "5", True])
def test_a_number_of_attempts_is_a_whole_number_from_one(attempts: int):
    with pytest.raises(ConfigurationError, match="max_attempts"):
        Fixed(1, max_attempts=attempts)


def test_the_horizon_is_the_longest_time_a_message_may_be_retried():
    assert horizon(Steps()) == 156
    assert horizon(Never()) == 0
    assert horizon(Fixed(10, max_attempts=3)) == 20
    assert horizon(ByType({"a": Fixed(100, max_attempts=2)}, default=Never())) == 100
    assert horizon(ByError({ValueError: Immediate(max_attempts=None)})) is None
    assert horizon(Exponential(max_attempts=None)) is None
