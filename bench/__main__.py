"""`python -m bench drain --store sqlite`: the last line printed is one JSON object."""

from __future__ import annotations

import argparse
import json
import platform
import resource
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import sqlalchemy

import postroom

from . import drains, rows


def drain(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The relay against a raw loop on the same rows: 1,000 keys."""
    backlog = rows.make_backlog(folder, "backlog", messages=arguments.messages, keys=1_000, payload=200)
    return interleave(
        arguments,
        ours=lambda: drains.by_relay(rows.copy_of(backlog, "ours"), arguments.messages),
        reference=lambda: drains.by_raw_loop(rows.copy_of(backlog, "reference"), arguments.messages),
        unit="messages/s",
        reference_is="raw sqlite3 loop: select 500, delete by id",
    )


def hotkey(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The relay on one key against the relay on 1,000 keys."""
    one = rows.make_backlog(folder, "one", messages=arguments.messages, keys=1, payload=200)
    many = rows.make_backlog(folder, "many", messages=arguments.messages, keys=1_000, payload=200)
    return interleave(
        arguments,
        ours=lambda: drains.by_relay(rows.copy_of(one, "ours"), arguments.messages),
        reference=lambda: drains.by_relay(rows.copy_of(many, "reference"), arguments.messages),
        unit="messages/s",
        reference_is="the same relay on 1,000 keys",
    )


def memory(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Peak memory of a process that drains the whole backlog against one that drains a tenth of it."""
    whole = rows.make_backlog(folder, "whole", messages=arguments.messages, keys=1_000, payload=200)
    tenth = rows.make_backlog(folder, "tenth", messages=arguments.messages // 10, keys=1_000, payload=200)
    return interleave(
        arguments,
        ours=lambda: peak_of_drain(rows.copy_of(whole, "ours"), arguments.messages),
        reference=lambda: peak_of_drain(rows.copy_of(tenth, "reference"), arguments.messages // 10),
        unit="MiB peak resident (1.0 = does not grow with the backlog)",
        reference_is="a tenth of the backlog",
    )


def peak_of_drain(path: Path, messages: int) -> float:
    command = [sys.executable, "-m", "bench", "_peak", str(path), str(messages)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def interleave(
    arguments: argparse.Namespace,
    *,
    ours: Callable[[], float],
    reference: Callable[[], float],
    unit: str,
    reference_is: str,
) -> dict[str, Any]:
    """Alternate the two, because the machine's mood changes; report medians."""
    our_results: list[float] = []
    reference_results: list[float] = []
    for number in range(arguments.rounds):
        for measure, results in ((reference, reference_results), (ours, our_results))[:: 1 if number % 2 else -1]:
            results.append(measure())
        print(f"round {number + 1}: ours {our_results[-1]:,.0f}, reference {reference_results[-1]:,.0f} {unit}")
    return {
        "ours": round(median(our_results)),
        "reference": round(median(reference_results)),
        "ratio": round(median(our_results) / median(reference_results), 3),
        "unit": unit,
        "reference_is": reference_is,
    }


BENCHES = {"drain": drain, "hotkey": hotkey, "memory": memory}


def main() -> None:
    if sys.argv[1:2] == ["_peak"]:
        drains.by_relay(Path(sys.argv[2]), int(sys.argv[3]))
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("bench", choices=sorted(BENCHES))
    parser.add_argument("--store", choices=["sqlite"], default="sqlite")
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="postroom-bench-") as folder:
        result = BENCHES[arguments.bench](arguments, Path(folder))
    versions = {
        "postroom": postroom.__version__,
        "python": platform.python_version(),
        "sqlalchemy": sqlalchemy.__version__,
        "sqlite": sqlite3.sqlite_version,
    }
    what = {"store": arguments.store, "messages": arguments.messages, "rounds": arguments.rounds, "versions": versions}
    print(json.dumps({"name": arguments.bench, **result, **what}))


if __name__ == "__main__":
    main()
