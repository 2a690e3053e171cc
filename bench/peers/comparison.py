"""Systems measured in turn, round by round, and what is reported of them."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from bench.postgresql import SERVER
from tests import services

from .environments import NotBuilt, python_for
from .kill import kill
from .machine import machine
from .measures import MEASURES, Amount, Measure, Result
from .outage import outage
from .overlap import overlap
from .processes import DriverFailed
from .ranking import ahead_of, first, ranked, rotated, rounded, summary
from .stage import Stage
from .systems import BEHAVIOURS, SYSTEMS, System


def compare(
    stage: Stage, names: Sequence[str], chosen: Sequence[str], amount: Amount, outage_minutes: float
) -> dict[str, Any]:
    descriptions, left_out = introduce(stage, names)
    present = [SYSTEMS[name] for name in descriptions]
    measures = [result for name in chosen if name in MEASURES for result in measure(stage, name, present, amount)]
    behaviours = [observe(stage, name, present, outage_minutes) for name in chosen if name in BEHAVIOURS]
    versions = {name: description["versions"] for name, description in descriptions.items()}
    return {
        "name": "peers",
        "machine": machine(),
        "versions": {**versions, "python": platform.python_version(), "server": services.version(SERVER)},
        "durability": stage.database.fsync(),
        "configured": {name: description["configured"] for name, description in descriptions.items()},
        "measures": measures,
        "behaviours": behaviours,
        "left_out": left_out,
    }


def introduce(stage: Stage, names: Sequence[str]) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """What those that can be had say of themselves, and why the others are left out."""
    descriptions, left_out = dict[str, dict[str, Any]](), dict[str, str]()
    for name in names:
        try:
            descriptions[name] = describe(stage, SYSTEMS[name])
        except (NotBuilt, DriverFailed) as error:
            left_out[name] = str(error)
            print(f"{name} is left out: {error}", flush=True)
    return descriptions, left_out


def describe(stage: Stage, system: System) -> dict[str, Any]:
    stage.pythons[system.name] = python_for(system)
    with stage.driver(system) as driver:
        description = driver.ask("describe")
    stage.left[system.name] = description["left"]
    return description


@dataclass(slots=True, kw_only=True)
class Rounds:
    """What a measure has yielded so far, by its result and the system; and who failed, with the reason."""

    values: dict[str, dict[str, list[float]]] = field(default_factory=dict[str, dict[str, list[float]]])
    failed: dict[str, str] = field(default_factory=dict[str, str])

    def of(self, result: Result) -> dict[str, list[float]]:
        return self.values.setdefault(result.measure, {})


def measure(stage: Stage, name: str, systems: Sequence[System], amount: Amount) -> list[dict[str, Any]]:
    """Round by round all systems, so that the machine's moods are everybody's."""
    measure, able, rounds = MEASURES[name], [system.name for system in systems if name in system.does], Rounds()
    for number in range(amount.rounds):
        for each in rotated(able, number):
            if each not in rounds.failed:
                play(stage, measure, SYSTEMS[each], amount, rounds)
    stage.forget()
    unordered = [each for each in able if measure.keys_matter and not SYSTEMS[each].ordered]
    return [conclude(result, rounds, unordered) for result in measure.results]


def play(stage: Stage, measure: Measure, system: System, amount: Amount, rounds: Rounds) -> None:
    """One round of one system."""
    try:
        values = measure.run(stage, system, amount)
    except (DriverFailed, psycopg.Error) as error:  # the others go on
        rounds.failed[system.name] = str(error)
        print(f"{system.name} failed: {error}", flush=True)
        return
    for result in measure.results:
        samples = rounds.of(result).setdefault(system.name, [])
        samples.append(values[result.measure])
        shown = f"{rounded(samples[-1]):,} {result.unit}"
        print(f"round {len(samples)}, {result.measure}: {system.name} {shown}", flush=True)


def conclude(result: Result, rounds: Rounds, unordered: Sequence[str]) -> dict[str, Any]:
    results = {name: summary(values) for name, values in rounds.of(result).items()}
    order = ranked(results, result.better)
    shown = ", ".join(f"{name} {results[name]['median']:,}" for name in order)
    print(f"{result.measure}: {shown} {result.unit}", flush=True)
    return {
        "measure": result.measure,
        "unit": result.unit,
        "better": result.better,
        "results": results,
        "first": first(results, result.better),
        "ahead_of_postroom": ahead_of("postroom", order),
        **({"keeps_no_order": unordered} if unordered else {}),
        **({"failed": rounds.failed} if rounds.failed else {}),
    }


def observe(stage: Stage, name: str, systems: Sequence[System], outage_minutes: float) -> dict[str, Any]:
    able = [system for system in systems if name in system.does]
    print(f"{name}: {', '.join(system.name for system in able)}", flush=True)
    if name == "outage":
        results, length = outage(stage, able, outage_minutes), {"minutes": outage_minutes}
    else:
        results, length = {"kill": kill, "overlap": overlap}[name](stage, able), {}
    for system, result in results.items():
        print(f"{name}: {system}: {json.dumps(result)}", flush=True)
    return {"behaviour": name, **length, "results": results}
