"""The page, from what is stored: a frame of fixed words, and figures that nobody typed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from . import faults, peers, prose, ratios
from .markdown import code, figure, table
from .results import Result, Results
from .runs import RUNS, Run
from .section import PLOTS, Section, made


def render(results: Results) -> tuple[str, dict[str, str]]:
    """The page, and its plots by file name."""
    sections = [
        machines(results),
        faults.chaos(results),
        faults.broken(results),
        *ratios.stores(results),
        ratios.brokers(results),
        peers.peers(results),
        versions(results),
        runs(results),
    ]
    text = "\n\n".join([prose.HEAD, *(section.text() for section in sections)])
    return f"{text}\n", {name: svg for section in sections for name, svg in section.plots.items()}


def machines(results: Results) -> Section:
    made_on: dict[tuple[tuple[str, str], ...], list[Result]] = {}
    for result in results.values():
        made_on.setdefault(tuple(result.machine.items()), []).append(result)
    if not made_on:
        return Section("Machine", ["No run was made yet."])
    names = list(dict.fromkeys(name for machine in made_on for name, _ in machine))
    rows = [
        [*(dict(machine).get(name) for name in names), len(found), *period(found)] for machine, found in made_on.items()
    ]
    return Section("Machine", [table([*names, "runs", "first", "last"], rows)])


def period(results: Iterable[Result]) -> list[str]:
    dates = [result.began for result in results]
    return [f"{date} UTC" for date in (min(dates), max(dates))]


def versions(results: Results) -> Section:
    found = sorted({each for result in results.values() for each in versions_in(result.report)}, key=str.lower)
    return Section("Versions", ["\n".join(f"- {each}" for each in found) or "No run was made yet."])


def versions_in(report: dict[str, Any] | None) -> Iterator[str]:
    """A run of chaos lists its servers; a bench says what each version is of; of a peer there are several."""
    given = (report or {}).get("versions") or []
    if isinstance(given, list):
        yield from map(str, given)
        return
    for name, version in given.items():
        if isinstance(version, dict):
            yield from (f"{package} {each}" for package, each in version.items())
        else:
            yield str(version) if name in ("driver", "server") else f"{name} {version}"


def runs(results: Results) -> Section:
    rows = [run_row(run, results) for run in RUNS]
    total = sum(result.seconds for _, result in made(RUNS, results))
    words = f"Made: {len(results)} of {len(RUNS)}, in {figure(total / 60)} minutes. Dates are in UTC."
    return Section("Runs", [words, table(["run", "command", "revision", "date", "seconds", "exit status"], rows)])


def run_row(run: Run, results: Results) -> list[object]:
    result = results.get(run.name)
    if result is None:
        return [run.name, code(run.command), "", "**not run**", "", ""]
    link = f"[{run.name}]({PLOTS}/results/{run.name}.json)"
    return [link, command(run, result), result.revision, result.began, result.seconds, str(result.status)]


def command(run: Run, result: Result) -> str:
    if result.command == run.command:
        return code(run.command)
    return f"{code(result.command)}, listed as {code(run.command)}"
