"""Systems measured in turn, round by round, and what is reported of them."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.postgresql import SERVER
from tests import services

from .amounts import Amount
from .behaviours import OBSERVED
from .complaints import complaint
from .environments import NotBuilt, python_for
from .machine import machine
from .measures import MEASURES, Measure, Result, Round
from .processes import DriverFailed
from .ranking import ahead_of, first, pooled, ranked, rotated, rounded, summary
from .stage import Stage
from .systems import BEHAVIOURS, SYSTEMS, System

Report = dict[str, Any]
OURS = "postroom"


def compare(stage: Stage, names: Sequence[str], chosen: Sequence[str], amount: Amount, outage_minutes: float) -> Report:
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
            left_out[name] = complaint(error)
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
    """What a measure has yielded so far."""

    values: dict[str, dict[str, list[float]]] = field(default_factory=dict[str, dict[str, list[float]]])
    """By result and system."""
    samples: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """By system, of all rounds."""
    unfinished: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    """By system: how much of how much was acknowledged, in the round with the least of it."""
    failed: dict[str, str] = field(default_factory=dict[str, str])
    """By system: why."""

    def of(self, result: Result) -> dict[str, list[float]]:
        return self.values.setdefault(result.measure, {})

    def add(self, system: str, round: Round) -> None:
        for name, value in round.values.items():
            self.values.setdefault(name, {}).setdefault(system, []).append(value)
        self.samples.setdefault(system, []).extend(round.samples)
        if not round.is_finished and round.acknowledged <= self.least_of(system, round.of):
            self.unfinished[system] = {"acknowledged": round.acknowledged, "of": round.of}

    def least_of(self, system: str, otherwise: int) -> int:
        return self.unfinished.get(system, {}).get("acknowledged", otherwise)


def measure(stage: Stage, name: str, systems: Sequence[System], amount: Amount) -> list[Report]:
    """Round by round all systems, so that the machine's moods are everybody's. Who fails once has no result."""
    measure, able, rounds = MEASURES[name], [system.name for system in systems if name in system.does], Rounds()
    for number in range(amount.rounds):
        for each in rotated(able, number):
            if each not in rounds.failed:
                play(stage, measure, SYSTEMS[each], amount, rounds)
    stage.forget()
    unfinished = {name: least for name, least in rounds.unfinished.items() if name not in rounds.failed}
    notes = {**notes_on(measure, able), "unfinished": unfinished, "failed": rounds.failed}
    frame = {"about": measure.about, "amounts": dict(measure.amounts(amount))}
    return [
        {**conclude(result, rounds), **frame, **{name: note for name, note in notes.items() if note}}
        for result in measure.results
    ]


def play(stage: Stage, measure: Measure, system: System, amount: Amount, rounds: Rounds) -> None:
    """One round of one system."""
    try:
        round = measure.run(stage, system, amount)
    except Exception as error:  # the others go on
        rounds.failed[system.name] = complaint(error)
        print(f"{system.name} failed: {error}", flush=True)
        return
    rounds.add(system.name, round)
    for result in measure.results:
        values = rounds.of(result)[system.name]
        print(f"round {len(values)}, {result.measure}: {system.name} {rounded(values[-1]):,} {result.unit}", flush=True)


def notes_on(measure: Measure, able: Sequence[str]) -> dict[str, list[str]]:
    """Whose result is not quite what the others' is."""
    return {
        "keeps_no_order": [each for each in able if measure.keys_matter and not SYSTEMS[each].ordered],
        "timed_without_start_and_stop": [each for each in able if measure.drains and SYSTEMS[each].streams],
    }


def conclude(result: Result, rounds: Rounds) -> Report:
    results = {
        name: summarise(result, values, rounds.samples[name])
        for name, values in rounds.of(result).items()
        if name not in rounds.failed
    }
    order = ranked(results, result.better)
    shown = ", ".join(f"{name} {results[name]['value']:,}" for name in order)
    print(f"{result.measure}: {shown} {result.unit}", flush=True)
    return {
        "measure": result.measure,
        "unit": result.unit,
        "better": result.better,
        "value_is": "median" if result.share is None else "all rounds together",
        "results": results,
        "first": first(results, result.better),
        "ahead_of_postroom": ahead_of(OURS, order),
    }


def summarise(result: Result, values: Sequence[float], samples: Sequence[float]) -> dict[str, Any]:
    return summary(values) if result.share is None else pooled(values, samples, result.share)


def problems_of(report: Report) -> list[str]:
    """Why it says nothing of ours beside others. That another one cannot be had, or fails, is a result."""
    left_out = report["left_out"]
    problems = [f"{OURS} is left out: {left_out[OURS]}"] if OURS in left_out else []
    if left_out and len(report["configured"]) < 2:
        problems.append("nobody is left to compare with")
    for each in report["measures"]:
        if OURS in each.get("failed", {}):
            problems.append(f"{each['measure']} failed: {each['failed'][OURS]}")
    for each in report["behaviours"]:
        if error := each.get("failed") or each["results"].get(OURS, {}).get("error"):
            problems.append(f"{each['behaviour']} failed: {error}")
    return problems


def observe(stage: Stage, name: str, systems: Sequence[System], outage_minutes: float) -> Report:
    behaviour, able = OBSERVED[name], [system for system in systems if name in system.does]
    print(f"{name}: {', '.join(system.name for system in able) or 'nobody can be asked'}", flush=True)
    results, failed = dict[str, dict[str, Any]](), ""
    try:
        results = behaviour.observe(stage, able, outage_minutes) if able else {}
    except Exception as error:  # what else there is goes on
        failed = complaint(error)
        print(f"{name} failed: {error}", flush=True)
    stage.forget()
    for system, result in results.items():
        print(f"{name}: {system}: {json.dumps(result)}", flush=True)
    return {
        "behaviour": name,
        "about": behaviour.about,
        "amounts": dict(behaviour.amounts),
        **({"minutes": outage_minutes} if name == "outage" else {}),
        "results": results,
        **({"failed": failed} if failed else {}),
    }
