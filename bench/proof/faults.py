"""Chaos: what the judge said of engines that are sound, and of those that are broken on purpose."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any

from . import prose
from .markdown import code, table
from .plots import bars
from .results import Result, Results
from .runs import of_kind
from .section import Section, failure, made, remarks

COUNTS = {
    "committed": "committed",
    "delivered": "delivered",
    "lost": "lost",
    "phantom": "phantom",
    "reordered": "reordered",
    "stale": "stale",
    "corrupted": "corrupted",
    "dead": "dead",
    "dead_by_outage": "dead by outage",
    "duplicates": "duplicates",
    "most_of_one_fault": "most of one fault",
    "largest_gap": "largest gap, s",
    "largest_delay": "largest delay, s",
    "longest_wait_in_peace": "longest wait in peace, s",
}


def chaos(results: Results) -> Section:
    runs = of_kind("chaos")
    section = Section("Chaos", [prose.CHAOS])
    rows = [row_of(result) for _, result in made(runs, results)]
    if rows:
        section.add(table(["store", "destination", "seed", "minutes", *COUNTS.values(), "verdict"], rows))
    reports = [result.report for _, result in made(runs, results) if result.report]
    if faults := faults_of(reports):
        add_recoveries(section, faults)
    section.add(*remarks(runs, results))
    return section


def row_of(result: Result) -> list[object]:
    report = result.report
    if report is None:
        return [code(result.name), *[""] * (len(COUNTS) + 3), failure(result)]
    counts = {**report, "most_of_one_fault": max((fault["duplicates"] for fault in report["faults"]), default=0)}
    return [*place_of(report), *(counts.get(name) for name in COUNTS), verdict(report)]


def place_of(report: dict[str, Any]) -> list[object]:
    return [report["store"], report["to"], str(report["seed"]), f"{report['seconds'] / 60:g}"]


def verdict(report: dict[str, Any]) -> str:
    words = "held" if report["ok"] else f"**broken**: {', '.join(report['violations'])}"
    return f"{words}; **the harness failed**: {', '.join(report['mishaps'])}" if report["mishaps"] else words


Faults = dict[str, list[dict[str, Any]]]
"""By kind."""


def faults_of(reports: Sequence[dict[str, Any]]) -> Faults:
    found: Faults = defaultdict(list)
    for report in reports:
        for fault in report["faults"]:
            found[fault["kind"]].append(fault)
    return dict(sorted(found.items()))


def add_recoveries(section: Section, faults: Faults) -> None:
    times = {
        kind: [fault["recovered_in"] for fault in found if fault["recovered_in"] is not None]
        for kind, found in faults.items()
    }
    section.add(
        prose.RECOVERIES,
        table(
            ["fault", "times", "had nothing to break", "duplicates", "alone", "median, s", "longest, s"],
            [
                [
                    kind,
                    len(found),
                    sum(not fault["happened"] for fault in found),
                    sum(fault["duplicates"] for fault in found),
                    len(times[kind]),
                    *spread(times[kind]),
                ]
                for kind, found in faults.items()
            ],
        ),
    )
    drawn = {kind: (median(seconds), max(seconds)) for kind, seconds in times.items() if seconds}
    if drawn:
        title = "Seconds until all messages have arrived, by kind of fault"
        section.add_plot("recovery", title, bars(title, drawn, ["median", "longest"]))


def spread(seconds: Sequence[float]) -> list[float | None]:
    return [median(seconds), max(seconds)] if seconds else [None, None]


def broken(results: Results) -> Section:
    runs = of_kind("broken")
    section = Section("Engines that are broken on purpose", [prose.BROKEN])
    rows = [broken_row(run.what, result) for run, result in made(runs, results)]
    if rows:
        section.add(table(["break", "store", "destination", "seed", "minutes", "found as", "verdict"], rows))
    section.add(*remarks(runs, results))
    return section


def broken_row(what: str, result: Result) -> list[object]:
    report = result.report
    if report is None:
        return [code(what), "", "", "", "", "", failure(result)]
    found = ", ".join(report["violations"])
    return [code(what), *place_of(report), found, "found" if report["caught"] else "**not found**"]
