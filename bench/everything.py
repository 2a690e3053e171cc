"""Every bench, on the stores and to the brokers that it is run with for the proof, and one table of them all."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from .proof.markdown import table
from .proof.perform import perform
from .proof.ratios import HEAD, row_of
from .proof.results import Result
from .proof.runs import Run, of_kind

ROOT = Path(__file__).parents[1]


def main(*, quick: bool) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what was started is ended
    runs = [*of_kind("bench"), *of_kind("broker")]
    results: list[Result] = []
    try:
        for number, run in enumerate(runs, 1):
            results.append(measure(run, f"{number} of {len(runs)}", quick=quick))
    finally:  # whoever ends it early has what there is
        print(summary(runs[: len(results)], results), flush=True)
    sys.exit(1 if any(result.status for result in results) else 0)


def measure(run: Run, number: str, *, quick: bool) -> Result:
    print(f"[{number}] {run.name}", flush=True)
    return perform(run, ROOT, quick=quick)


def summary(runs: Sequence[Run], results: Sequence[Result]) -> str:
    """As on the page, with the name of each run, as the stores are all in one table."""
    rows = [[run.name, *row_of(run, result)[1:]] for run, result in zip(runs, results, strict=True)]
    return table(["run", *HEAD[1:]], rows)
