"""Benches: ours and a reference, measured in turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import prose
from .markdown import code, sentence, table
from .plots import bars
from .results import Result, Results
from .runs import ABOUT, LOWER_IS_BETTER, Asked, Run, of_kind
from .section import Section, failure, made, remarks

STORES = {"postgresql": "PostgreSQL", "mysql": "MariaDB", "sqlite": "SQLite"}
RATE = "messages/s"
NOTES = {
    "reference_with_our_headers": "reference with all of our headers",
    "cpu_seconds": "CPU seconds of the last round",
    "counted_by": "counted by",
    "without_a_relay": "without a relay",
}
HEAD = ["bench", "what", "ours", "against", "reference", "unit", "better", "ratio", "asked", "measured with"]


def stores(results: Results) -> list[Section]:
    return [store(name, title, results) for name, title in STORES.items()]


def store(name: str, title: str, results: Results) -> Section:
    runs = of_kind("bench", name)
    section = Section(f"Speed on {title}", [prose.STORE])
    add_table(section, runs, results)
    fsync = sorted({report["fsync"] for report in reports_of(runs, results) if report.get("fsync")})
    section.add(*(sentence(f"Durability: {each}") for each in fsync))
    add_rates(section, name, f"{title}: {RATE}", runs, results)
    section.add(*remarks(runs, results))
    return section


def brokers(results: Results) -> Section:
    runs = of_kind("broker")
    section = Section("Brokers", [prose.BROKERS])
    add_table(section, runs, results)
    add_rates(section, "brokers", f"To brokers: {RATE}", runs, results)
    section.add(*remarks(runs, results))
    return section


def add_table(section: Section, runs: Sequence[Run], results: Results) -> None:
    rows = [row_of(run, result) for run, result in made(runs, results)]
    if rows:
        section.add(table(HEAD, rows))


def row_of(run: Run, result: Result) -> list[object]:
    name, what = label(run), about(run)
    report = result.report
    if result.status or report is None:
        return [code(name), what, failure(result), *[""] * 5, asked(run.asked), ""]
    return [
        code(name),
        what,
        report["ours"],
        report["reference_is"],
        report["reference"],
        report["unit"],
        "lower" if report["unit"] in LOWER_IS_BETTER else "higher",
        f"{report['ratio']:.3f}",
        judged(run.asked, report["ratio"]),
        "; ".join([amount(report), *notes(report)]),
    ]


def label(run: Run) -> str:
    return f"{run.arguments[1]} --to {run.what}" if run.kind == "broker" else run.arguments[1]


def about(run: Run) -> str:
    return f"a backlog goes to {run.what}" if run.kind == "broker" else ABOUT[run.arguments[1]]


def asked(threshold: Asked | None) -> str:
    return f"{threshold.sense} {threshold.ratio:g}" if threshold else ""


def judged(threshold: Asked | None, ratio: float) -> str:
    if threshold is None:
        return ""
    return f"{asked(threshold)}: {'met' if threshold.is_met(ratio) else '**short**'}"


def amount(report: dict[str, Any]) -> str:
    unit = report.get("messages_are", "messages").removesuffix(" a round")
    return f"{report['rounds']} × {report['messages']:,} {unit}"


def notes(report: dict[str, Any]) -> list[str]:
    return [f"{words}: {report[name]}" for name, words in NOTES.items() if name in report]


def add_rates(section: Section, name: str, title: str, runs: Sequence[Run], results: Results) -> None:
    rates = {
        label(run): (result.report["ours"], result.report["reference"])
        for run, result in made(runs, results)
        if result.report and not result.status and result.report["unit"] == RATE
    }
    if rates:
        section.add_plot(name, title, bars(title, rates, ["ours", "reference"]))


def reports_of(runs: Sequence[Run], results: Results) -> list[dict[str, Any]]:
    return [result.report for _, result in made(runs, results) if result.report]
