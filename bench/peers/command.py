"""`python -m bench peers`: measure, print a line per round, and as the last line one JSON object.

Exit status: 1 if ours could not be measured, or nobody beside it, else 0. That another one failed is a result.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.postgresql import PostgreSQL
from tests import services

from .amounts import FULL, QUICK
from .comparison import compare, problems_of
from .measures import MEASURES
from .stage import Stage
from .systems import BEHAVIOURS, SYSTEMS

CHOICES = [*MEASURES, *sorted(BEHAVIOURS)]
OUTAGE = 15.0


def main(words: Sequence[str]) -> None:
    arguments = make_parser().parse_args(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    amount = QUICK if arguments.quick else FULL
    amount = replace(amount, rounds=arguments.rounds or amount.rounds)
    start = time.monotonic()
    with services.in_use(), PostgreSQL() as database, tempfile.TemporaryDirectory(prefix="postroom-peers-") as folder:
        stage = Stage(database=database, folder=Path(folder))
        report = compare(stage, arguments.only, arguments.measures, amount, arguments.outage_minutes)
    problems = problems_of(report)
    for problem in problems:
        print(problem, file=sys.stderr)
    print(json.dumps({**report, "seconds": round(time.monotonic() - start)}))
    sys.exit(1 if problems else 0)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less of everything: a look, not a result")
    parser.add_argument("--only", type=some_of(SYSTEMS), default=list(SYSTEMS), help=f"systems: {', '.join(SYSTEMS)}")
    parser.add_argument("--measures", type=some_of(CHOICES), default=CHOICES, help=f"of: {', '.join(CHOICES)}")
    parser.add_argument("--rounds", type=positive, help="how often")
    parser.add_argument("--outage-minutes", type=minutes, default=OUTAGE, help="how long the destination fails")
    return parser


def some_of(choices: Sequence[str] | dict[str, Any]) -> Any:
    def read(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in choices]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose of {', '.join(choices)}")
        return names

    return read


def positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be at least 1")
    return number


def minutes(text: str) -> float:
    if (number := float(text)) <= 0:
        raise argparse.ArgumentTypeError(f"{text}: must be more than 0")
    return number
