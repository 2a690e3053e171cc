"""Durations as people write them: seconds, `timedelta`, or text such as "1h30m"."""

from __future__ import annotations

import math
import re
from datetime import timedelta

from .errors import ConfigurationError

Duration = float | timedelta | str
"""What a user may write wherever a length of time is asked for; a bare number is seconds."""

_UNITS = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_SPELLINGS = {
    "week": 604_800.0,
    "w": 604_800.0,
    "day": 86_400.0,
    "hour": 3_600.0,
    "minute": 60.0,
    "min": 60.0,
    "second": 1.0,
    "sec": 1.0,
    **_UNITS,
}
_NUMBER = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.ASCII)


def seconds(value: object, *, name: str = "duration") -> float:
    """The length of `value` in seconds, never negative; `name` is what an error calls it.

    >>> seconds("1h30m"), seconds("100ms"), seconds("2 min"), seconds(5), seconds(timedelta(days=1))
    (5400.0, 0.1, 120.0, 5.0, 86400.0)
    """
    length = _length(value)
    if length is None or not math.isfinite(length) or length < 0:
        raise ConfigurationError(
            f"{name}: {value!r} is not a length of time; write seconds, a timedelta, or text such as '100ms' or '1h30m'"
        )
    return length


def spell(length: float) -> str:
    """Seconds as people write them, for messages; `seconds` reads it back, to the millisecond.

    >>> spell(5400), spell(0.1), spell(0)
    ('1h30m', '100ms', '0s')
    """
    rest = round(length * 1000)
    parts: list[str] = []
    for unit, size in _UNITS.items():
        count, rest = divmod(rest, round(size * 1000))
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def _length(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return _finite(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    return _read(value.strip()) if isinstance(value, str) else None


def _read(text: str) -> float | None:
    if _NUMBER.fullmatch(text):
        return float(text)
    total, place = 0.0, 0
    while match := _PART.match(text, place):
        size = _size(match[2])
        if size is None:
            return None
        total, place = total + float(match[1]) * size, match.end()
    return total if text and place == len(text) else None


def _size(unit: str) -> float | None:
    if unit in _SPELLINGS:
        return _SPELLINGS[unit]
    return _SPELLINGS.get(unit.removesuffix("s")) if len(unit) > len("ms") else None


def _finite(value: float) -> float | None:
    try:
        return float(value)
    except OverflowError:
        return None
