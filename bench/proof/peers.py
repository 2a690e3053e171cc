"""Other systems on the same machine: tables, a plot for each measure, who is first, and why if it is not us."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from . import prose
from .markdown import cell, code, figure, sentence, table
from .plots import Spread, spreads
from .reasons import REASONS
from .results import Results
from .runs import of_kind
from .section import Section, failure, made, remarks

OURS = "postroom"
"""How our names begin."""
KNOWN = {
    "report": {"name", "machine", "versions", "seconds", "configured", "measures", "behaviours", "left_out"},
    "measure": {
        "measure", "unit", "better", "value_is", "results", "first", "about", "amounts", "unfinished",
    },
    "behaviour": {"behaviour", "results", "about", "amounts"},
}  # fmt: skip
"""What has a place of its own. Whatever else is there is shown as it is."""

Report = dict[str, Any]


def peers(results: Results) -> Section:
    runs = of_kind("peers")
    section = Section("Peers", [prose.PEERS])
    for run, result in made(runs, results):
        if result.status or result.report is None:
            section.add(f"The run {code(run.name)} {failure(result)}.")
    add_reports(section, [result.report for _, result in made(runs, results) if result.report])
    section.add(*remarks(runs, results))
    return section


def add_reports(section: Section, reports: Sequence[Report]) -> None:
    """Those of several runs as one: what they have in common is said once, and where they differ, all of it."""
    configured, left_out = (rows_of(reports, name) for name in ("configured", "left_out"))
    if configured:
        section.add(table(["system", "configured"], configured))
    section.add(*dict.fromkeys(words for report in reports for words in others(report, KNOWN["report"])))
    for measure in all_of(reports, "measures"):
        add_measure(section, measure)
    for behaviour in all_of(reports, "behaviours"):
        add_behaviour(section, behaviour)
    if left_out:
        section.add("### Left out", table(["system", "why"], left_out))


def rows_of(reports: Iterable[Report], name: str) -> list[tuple[str, str]]:
    return list(dict.fromkeys(row for report in reports for row in report.get(name, {}).items()))


def all_of(reports: Iterable[Report], name: str) -> list[Report]:
    return [each for report in reports for each in report.get(name, ())]


def add_measure(section: Section, measure: Report) -> None:
    title = f"{measure['measure']}, {measure['unit']}"
    ranked = ranking(measure)
    section.add(
        f"### {measure['measure']}",
        *introduction(measure),
        f"In {measure['unit']}; {measure['better']} is better. {standing(ranked)}".rstrip(),
        *reason(measure["measure"], ranked),
        *results_of(measure, ranked),
        *unfinished(measure.get("unfinished", {})),
        *others(measure, KNOWN["measure"]),
    )
    if ranked:
        section.add_plot(f"peers-{slug(measure['measure'])}", title, spreads(title, ranked, our_best(ranked)))


def introduction(found: Report) -> list[str]:
    amounts = ", ".join(f"{spoken(name)} {amount(value)}" for name, value in found.get("amounts", {}).items())
    words = [found.get("about", ""), sentence(f"Made with: {amounts}") if amounts else ""]
    return [each for each in words if each]


def amount(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def results_of(measure: Report, ranked: Mapping[str, Spread]) -> list[str]:
    silent = [system for system in measure["results"] if system not in ranked]
    rows = [
        *([system, each.value, each.low, each.high, rounds_of(measure, system)] for system, each in ranked.items()),
        *([system, "no result", "", "", ""] for system in silent),
    ]
    heads = ["system", measure.get("value_is", "median"), "lowest round", "highest round", "rounds"]
    return [table(heads, rows)] if rows else []


def unfinished(found: Mapping[str, Mapping[str, int]]) -> list[str]:
    shown = ", ".join(f"{name} ({cell(each['acknowledged'])} of {cell(each['of'])})" for name, each in found.items())
    return [sentence(f"Cut off by the limit, with so many messages acknowledged: {shown}")] if shown else []


def ranking(measure: Report) -> dict[str, Spread]:
    """The best first; only who has a result."""
    found = {
        system: Spread(result["value"], result["low"], result["high"])
        for system, result in measure["results"].items()
        if result and result.get("value") is not None
    }
    is_higher = measure["better"] == "higher"
    return dict(sorted(found.items(), key=lambda item: item[1].value, reverse=is_higher))


def standing(ranked: Mapping[str, Spread]) -> str:
    first, ours = next(iter(ranked), None), our_best(ranked)
    if first is None:
        return ""
    if len(ranked) == 1:
        return f"Alone: {first}."
    if ours in (first, None):
        second = list(ranked)[1]
        close = f"; {second} and it are within each other's spread" if is_close(ranked, first, second) else ""
        return f"First: {first}{close}."
    lead = ranked[first].value, ranked[ours].value
    by = f", {figure(max(lead) / min(lead))} times as good as {ours}" if min(lead) > 0 else ""
    close = ", within each other's spread" if is_close(ranked, first, ours) else ""
    return f"**First: {first}**{by}{close}."


def is_close(ranked: Mapping[str, Spread], one: str, other: str) -> bool:
    """Whether the ranges of their rounds overlap."""
    return ranked[one].low <= ranked[other].high and ranked[other].low <= ranked[one].high


def reason(measure: str, ranked: Mapping[str, Spread]) -> list[str]:
    """If we are behind, and know why."""
    ours = our_best(ranked)
    is_behind = ours is not None and ours != next(iter(ranked))
    return [REASONS[measure]] if is_behind and measure in REASONS else []


def our_best(ranked: Iterable[str]) -> str | None:
    return next((system for system in ranked if system.lower().startswith(OURS)), None)


def rounds_of(measure: Report, system: str) -> str:
    return ", ".join(map(figure, measure["results"][system].get("rounds", ())))


def add_behaviour(section: Section, behaviour: Report) -> None:
    results: dict[str, Report] = behaviour["results"]
    keys = list(dict.fromkeys(key for result in results.values() for key in result))
    rows = [[system, *(result.get(key) for key in keys)] for system, result in results.items()]
    section.add(f"### {behaviour['behaviour']}", *introduction(behaviour), *others(behaviour, KNOWN["behaviour"]))
    if rows:
        section.add(table(["system", *map(spoken, keys)], rows))


def others(found: Report, known: Collection[str]) -> list[str]:
    return [
        sentence(f"{spoken(name).capitalize()}: {in_words(value)}")
        for name, value in found.items()
        if name not in known and value
    ]


def in_words(value: object) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{name}: {cell(each)}" for name, each in value.items())
    return ", ".join(map(cell, value)) if isinstance(value, list) else cell(value)


def spoken(name: str) -> str:
    return name.replace("_", " ")


def slug(words: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")
