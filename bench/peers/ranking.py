"""What rounds amount to. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Literal

Better = Literal["higher", "lower"]


def summary(rounds: Sequence[float]) -> dict[str, Any]:
    """Of rates: the median of the rounds."""
    return {"value": rounded(median(rounds)), **spread(rounds)}


def pooled(rounds: Sequence[float], samples: Sequence[float], share: float) -> dict[str, Any]:
    """Of percentiles: that of all samples of all rounds."""
    return {"value": rounded(percentile(samples, share)), **spread(rounds), "samples": len(samples)}


def spread(rounds: Sequence[float]) -> dict[str, Any]:
    return {
        "low": rounded(min(rounds)),
        "high": rounded(max(rounds)),
        "rounds": [rounded(each) for each in rounds],
    }


def first(results: Mapping[str, Mapping[str, Any]], better: Better) -> str | None:
    """Whose value is best."""
    return next(iter(ranked(results, better)), None)


def ranked(results: Mapping[str, Mapping[str, Any]], better: Better) -> list[str]:
    return sorted(results, key=lambda name: results[name]["value"], reverse=better == "higher")


def ahead_of(name: str, order: Sequence[str]) -> list[str]:
    return list(order[: order.index(name)]) if name in order else []


def percentile(samples: Sequence[float], share: float) -> float:
    """The smallest sample that so large a share of all does not exceed."""
    return sorted(samples)[max(math.ceil(len(samples) * share) - 1, 0)]


def rotated(names: Sequence[str], by: int) -> list[str]:
    """Who begins changes with every round."""
    start = by % len(names) if names else 0
    return [*names[start:], *names[:start]]


def rounded(value: float) -> float:
    return round(value) if value >= 1_000 else round(value, 2)
