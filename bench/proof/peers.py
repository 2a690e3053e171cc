"""Other systems on the same machine: tables, a plot for each measure, and who is first."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from . import prose
from .markdown import cell, figure, sentence, table
from .plots import Spread, spreads
from .results import Results
from .runs import of_kind
from .section import Section, failure, made, remarks

OURS = "postroom"
"""How our names begin."""
KNOWN = {
    "report": {"name", "machine", "versions", "seconds", "configured", "measures", "behaviours", "left_out"},
    "measure": {"measure", "unit", "better", "results", "first"},
    "behaviour": {"behaviour", "results"},
}
"""What has a place of its own. Whatever else is there is shown as it is."""


def peers(results: Results) -> Section:
    runs = of_kind("peers")
    section = Section("Peers", [prose.PEERS])
    for _, result in made(runs, results):
        if result.status or result.report is None:
            section.add(f"The measurement {failure(result)}.")
        if result.report:
            add_report(section, result.report)
    section.add(*remarks(runs, results))
    return section


def add_report(section: Section, report: dict[str, Any]) -> None:
    if report.get("configured"):
        section.add(table(["system", "configured"], report["configured"].items()))
    section.add(*others(report, KNOWN["report"]))
    for measure in report.get("measures", ()):
        add_measure(section, measure)
    for behaviour in report.get("behaviours", ()):
        add_behaviour(section, behaviour)
    if report.get("left_out"):
        section.add("### Left out", table(["system", "why"], report["left_out"].items()))


def add_measure(section: Section, measure: dict[str, Any]) -> None:
    title = f"{measure['measure']}, {measure['unit']}"
    ranked = ranking(measure)
    silent = [system for system in measure["results"] if system not in ranked]
    rows = [
        *([system, each.median, each.low, each.high, rounds_of(measure, system)] for system, each in ranked.items()),
        *([system, "no result", "", "", ""] for system in silent),
    ]
    section.add(
        f"### {measure['measure']}",
        f"In {measure['unit']}; {measure['better']} is better. {standing(ranked)}".rstrip(),
        table(["system", "median", "lowest", "highest", "rounds"], rows),
        *others(measure, KNOWN["measure"]),
    )
    if ranked:
        section.add_plot(f"peers-{slug(measure['measure'])}", title, spreads(title, ranked, our_best(ranked)))


def ranking(measure: dict[str, Any]) -> dict[str, Spread]:
    """The best first; only who has a result."""
    found = {
        system: Spread(result["median"], result["low"], result["high"])
        for system, result in measure["results"].items()
        if result and result.get("median") is not None
    }
    is_higher = measure["better"] == "higher"
    return dict(sorted(found.items(), key=lambda item: item[1].median, reverse=is_higher))


def standing(ranked: Mapping[str, Spread]) -> str:
    if not ranked:
        return ""
    first, ours = next(iter(ranked)), our_best(ranked)
    if ours in (first, None):
        return f"First: {first}."
    lead = ranked[first].median, ranked[ours].median
    by = f", {figure(max(lead) / min(lead))} times as good as {ours}" if min(lead) > 0 else ""
    return f"**First: {first}**{by}."


def our_best(ranked: Iterable[str]) -> str | None:
    return next((system for system in ranked if system.lower().startswith(OURS)), None)


def rounds_of(measure: dict[str, Any], system: str) -> str:
    return ", ".join(map(figure, measure["results"][system].get("rounds", ())))


def add_behaviour(section: Section, behaviour: dict[str, Any]) -> None:
    results: dict[str, dict[str, Any]] = behaviour["results"]
    keys = list(dict.fromkeys(key for result in results.values() for key in result))
    rows = [[system, *(result.get(key) for key in keys)] for system, result in results.items()]
    heads = [key.replace("_", " ") for key in keys]
    others_first = others(behaviour, KNOWN["behaviour"])
    section.add(f"### {behaviour['behaviour']}", *others_first, table(["system", *heads], rows))


def others(found: dict[str, Any], known: Collection[str]) -> list[str]:
    return [
        sentence(f"{name.replace('_', ' ').capitalize()}: {in_words(value)}")
        for name, value in found.items()
        if name not in known and value
    ]


def in_words(value: object) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{name}: {cell(each)}" for name, each in value.items())
    return ", ".join(map(cell, value)) if isinstance(value, list) else cell(value)


def slug(words: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")
