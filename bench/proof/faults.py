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
    "dead": "dead",
    "dead_by_outage": "dead by outage",
    "duplicates": "duplicates",
    "duplicates_allowed": "allowed",
    "largest_gap": "largest gap, s",
}


def chaos(results: Results) -> Section:
    runs = of_kind("chaos")
    section = Section("Chaos", [prose.CHAOS])
    rows = [row_of(result) for _, result in made(runs, results)]
    if rows:
        section.add(table(["store", "destination", "seed", "minutes", *COUNTS.values(), "verdict"], rows))
    reports = [result.report for _, result in made(runs, results) if result.report]
    recoveries = recoveries_of(reports)
    if recoveries:
        add_recoveries(section, recoveries)
    section.add(*remarks(runs, results))
    return section


def row_of(result: Result) -> list[object]:
    report = result.report
    if report is None:
        return [code(result.name), *[""] * (len(COUNTS) + 3), failure(result)]
    return [*place_of(report), *(report[name] for name in COUNTS), verdict(report)]


def place_of(report: dict[str, Any]) -> list[object]:
    return [report["store"], report["to"], str(report["seed"]), f"{report['seconds'] / 60:g}"]


def verdict(report: dict[str, Any]) -> str:
    return "held" if report["ok"] else f"**broken**: {', '.join(report['violations'])}"


Recoveries = dict[str, list[float | None]]


def recoveries_of(reports: Sequence[dict[str, Any]]) -> Recoveries:
    found: Recoveries = defaultdict(list)
    for report in reports:
        for fault in report["faults"]:
            found[fault["kind"]].append(fault["recovered_in"])
    return dict(sorted(found.items()))


def add_recoveries(section: Section, recoveries: Recoveries) -> None:
    times = {kind: [each for each in found if each is not None] for kind, found in recoveries.items()}
    section.add(
        prose.RECOVERIES,
        table(
            ["fault", "times", "median, s", "longest, s", "nothing came after it"],
            [
                [kind, len(found), *spread(times[kind]), len(found) - len(times[kind])]
                for kind, found in recoveries.items()
            ],
        ),
    )
    drawn = {kind: (median(seconds), max(seconds)) for kind, seconds in times.items() if seconds}
    if drawn:
        title = "Seconds until messages arrive again, by kind of fault"
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
    return [code(what), *place_of(report), found, "**not found**" if report["ok"] else "found"]
