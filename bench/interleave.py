"""Two measurements in turn, because the machine's mood changes: a line per round, and the medians of all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

Measure = Callable[[], float | Sequence[float]]
"""One round's result, or all samples of the round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    ours: Measure
    reference: Measure
    unit: str
    reference_is: str
    notes: Mapping[str, str] = field(default_factory=dict[str, str])
    """What else one must know to read the result."""


def interleave(comparison: Comparison, rounds: int) -> dict[str, Any]:
    """Who begins changes with every round."""
    ours: list[float] = []
    reference: list[float] = []
    for number in range(rounds):
        pair = [(comparison.ours, ours), (comparison.reference, reference)]
        latest: dict[int, float] = {}
        for measure, samples in pair if number % 2 == 0 else reversed(pair):
            new = as_samples(measure())
            samples.extend(new)
            latest[id(samples)] = median(new)
        shown = f"ours {rounded(latest[id(ours)]):,}, reference {rounded(latest[id(reference)]):,}"
        print(f"round {number + 1}: {shown} {comparison.unit}", flush=True)
    return {
        "ours": rounded(median(ours)),
        "reference": rounded(median(reference)),
        "ratio": round(median(ours) / median(reference), 3),
        "unit": comparison.unit,
        "reference_is": comparison.reference_is,
        **comparison.notes,
    }


def as_samples(result: float | Sequence[float]) -> Sequence[float]:
    return [result] if isinstance(result, (int, float)) else result


def rounded(value: float) -> float:
    return round(value) if value >= 1_000 else round(value, 3)
