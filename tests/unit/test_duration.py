import doctest
from contextlib import suppress
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom import duration
from postroom.duration import seconds, spell
from postroom.errors import ConfigurationError


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (5, 5.0),
        (0, 0.0),
        (0.25, 0.25),
        (timedelta(minutes=2), 120.0),
        ("100ms", 0.1),
        ("5s", 5.0),
        ("2 min", 120.0),
        ("2m", 120.0),
        ("1h", 3600.0),
        ("7d", 604_800.0),
        ("1w", 604_800.0),
        ("1h30m", 5400.0),
        ("1 hour 30 minutes", 5400.0),
        ("1.5h", 5400.0),
        (" 10 sec ", 10.0),
        ("2 days", 172_800.0),
        ("15", 15.0),
    ],
)
def test_a_duration_may_be_written_in_many_ways(written: object, expected: float):
    assert seconds(written) == pytest.approx(expected)


NO_TEXT = [
    "",
    " ",
    "soon",
    "5 parsecs",
    "-5s",
    "5s later",
    "s",
    "1h-30m",
    "5M",
    "mss",
    "1e3",
    "\N{ARABIC-INDIC DIGIT FIVE}s",
]
NO_LENGTH = [-1, float("nan"), float("inf"), 10**400, timedelta(seconds=-1)]


@pytest.mark.parametrize("written", [*NO_TEXT, *NO_LENGTH, True, None, [], b"5s"])
def test_what_is_no_duration_is_refused_with_its_value_and_an_example(written: object):
    with pytest.raises(ConfigurationError) as caught:
        seconds(written, name="lease_ttl")
    assert str(caught.value).startswith(f"lease_ttl: {written!r} ")
    assert "'1h30m'" in str(caught.value)


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=10_000)))
def test_a_timedelta_is_as_long_as_its_seconds(length: timedelta):
    assert seconds(length) == seconds(length.total_seconds())


@given(st.integers(min_value=0, max_value=10**12))
def test_what_is_spelled_out_reads_back_the_same(milliseconds: int):
    assert seconds(spell(milliseconds / 1000)) == pytest.approx(milliseconds / 1000)


@given(st.text(max_size=20))
def test_any_text_is_either_a_length_or_a_configuration_error(text: str):
    with suppress(ConfigurationError):
        assert seconds(text) >= 0


def test_lengths_are_spelled_as_people_write_them():
    assert [spell(length) for length in (0, 0.1, 1, 90, 5400, 604_800)] == ["0s", "100ms", "1s", "1m30s", "1h30m", "7d"]


def test_the_examples_in_the_docstrings_are_true():
    assert doctest.testmod(duration).attempted > 0
    assert doctest.testmod(duration).failed == 0
