"""The two most telling lines, for the README. Only runs that were made as listed count. Pure."""

from __future__ import annotations

from typing import Any

from .markdown import figure
from .peers import our_best, ranking
from .results import Result, Results
from .runs import RUNS, of_kind

BEGIN = "<!-- written by `make proof`, from docs/explanation/proof/results -->"
END = "<!-- end of what `make proof` writes -->"


def rewrite(readme: str, results: Results) -> str:
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the README has no place for the lines: {BEGIN} and {END}")
    lines = [f"- {line}" for line in (chaos_line(results), speed_line(results)) if line]
    return "\n".join([before + begin, *lines, end]) + after


def as_listed(results: Results) -> dict[str, Result]:
    listed = {run.name: run.command for run in RUNS}
    return {name: result for name, result in results.items() if result.command == listed[name]}


def chaos_line(results: Results) -> str:
    full = as_listed(results)
    runs = [full[run.name] for run in of_kind("chaos") if run.name in full]
    reports = [result.report for result in runs if result.report and not result.report["mishaps"]]
    if not reports:
        return ""
    total = {name: sum(report[name] for report in reports) for name in TOTALS}
    faults = sum(fault["happened"] for report in reports for fault in report["faults"])
    minutes = sum(report["seconds"] for report in reports) / 60
    failed = len(runs) - len(reports)
    broken = [violation for result in runs for violation in (result.report or {}).get("violations", ())]
    return (
        f"**Chaos:** {figure(faults)} faults in {minutes:g} minutes and {len(reports)} runs; of "
        f"{figure(total['committed'])} committed messages {figure(total['lost'])} lost, {figure(total['phantom'])} "
        f"invented, {figure(total['reordered'])} out of order, {figure(total['dead_by_outage'])} dead by an outage."
        + (f" **Promises that were broken:** {', '.join(broken)}." if broken else "")
        + (f" {failed} more failed." if failed else "")
    )


TOTALS = ("committed", "lost", "phantom", "reordered", "dead_by_outage")


def speed_line(results: Results) -> str:
    """Against the peers; until they are measured, against the driver alone."""
    full = as_listed(results)
    peers, drain = full.get("peers-drain"), full.get("bench-postgresql-drain")
    line = peers_line(peers.report) if peers and peers.report and not peers.status else ""
    return line or (drain_line(drain.report) if drain and drain.report and not drain.status else "")


def peers_line(report: dict[str, Any]) -> str:
    """Of the first measure, the best first."""
    measure = next(iter(report.get("measures", ())), None)
    ranked = ranking(measure) if measure else {}
    if measure is None or our_best(ranked) is None or len(ranked) < 2:
        return ""
    apart = measure.get("timed_without_start_and_stop", ())
    shown = ", ".join(
        f"{system} {figure(each.value)}{' (timed without its start and stop)' if system in apart else ''}"
        for system, each in ranked.items()
    )
    return f"**{measure['measure'].capitalize()}**, {measure['unit']}, {measure['better']} is better: {shown}."


def drain_line(report: dict[str, Any]) -> str:
    return (
        f"**A backlog in PostgreSQL:** {figure(report['ours'])} {report['unit']}, and {figure(report['reference'])} of "
        f"{report['reference_is']}."
    )
