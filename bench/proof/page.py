"""The page, from what is stored: a frame of fixed words, and figures that nobody typed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from . import faults, peers, prose, ratios
from .markdown import code, figure, table
from .results import Result, Results
from .runs import RUNS, Run
from .section import PLOTS, Section, made

Machine = tuple[tuple[str, str], ...]


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
    made_on = by_machine(results)
    if not made_on:
        return Section("Machines", ["No run was made yet."])
    names = list(dict.fromkeys(name for machine in made_on for name, _ in machine))
    rows = [
        [f"machine {number}", *(dict(machine).get(name) for name in names), len(found), *period(found)]
        for number, (machine, found) in enumerate(made_on.items(), 1)
    ]
    return Section("Machines", [table(["", *names, "runs", "first", "last"], rows)])


def by_machine(results: Results) -> dict[Machine, list[Result]]:
    """In the order in which they are numbered."""
    made_on: dict[Machine, list[Result]] = {}
    for result in results.values():
        made_on.setdefault(tuple(result.machine.items()), []).append(result)
    return made_on


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
    numbers = {machine: number for number, machine in enumerate(by_machine(results), 1)}
    rows = [run_row(run, results, numbers) for run in RUNS]
    total = sum(result.seconds for _, result in made(RUNS, results))
    words = f"Made: {len(results)} of {len(RUNS)}, in {figure(total / 60)} minutes. Dates are in UTC."
    return Section(
        "Runs", [words, table(["run", "command", "revision", "machine", "date", "seconds", "exit status"], rows)]
    )


def run_row(run: Run, results: Results, numbers: Mapping[Machine, int]) -> list[object]:
    result = results.get(run.name)
    if result is None:
        return [run.name, code(run.command), "", "", "**not run**", "", ""]
    link = f"[{run.name}]({PLOTS}/results/{run.name}.json)"
    machine = str(numbers[tuple(result.machine.items())])
    return [link, command(run, result), result.revision, machine, result.began, result.seconds, str(result.status)]


def command(run: Run, result: Result) -> str:
    if result.command == run.command:
        return code(run.command)
    return f"{code(result.command)}, listed as {code(run.command)}"
