"""Try to make Postroom lose, invent or reorder messages: real processes, real servers, faults drawn from a seed.

Writers commit messages, and in the same transaction a note of each. Relays deliver them while they, the writers, the
database, the broker and the network between them are killed, frozen and cut. A consumer writes down what arrives. At
the end a judge that knows nothing of Postroom compares. The last line printed is one JSON object. Exit status: 0 if
every promise held, 1 if one was broken, 2 if the harness itself did not work, 143 if it was told to end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import signal
import sys
import tempfile
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from tests.services import ServerUnavailable

from . import relay
from .breaks import BREAKS, IMPOSSIBLE
from .checker import Verdict, judge
from .plan import Destination, Plan, Store, draw, kinds
from .screen import Screen
from .stage import Stage

TOLD_OTHERWISE = ("recoveries", "duplicates_of", "largest_gap_began")


def main() -> None:
    parser = make_parser()
    arguments = parser.parse_args()
    if arguments.store in IMPOSSIBLE.get(arguments.broken or "", {}):
        parser.error(
            f"--break {arguments.broken} makes no difference on {arguments.store}: one transaction writes at a time"
        )
    seed = random.randrange(10**6) if arguments.seed is None else arguments.seed
    plan = draw(seed, arguments.store, arguments.to, arguments.minutes * 60)
    folder = Path(arguments.keep or tempfile.mkdtemp(prefix="postroom-chaos-")).resolve()
    if arguments.keep and folder.exists() and any(folder.iterdir()):
        parser.error(f"--keep {folder}: it must be a new folder, or an empty one")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what was started is ended
    try:
        report = run(plan, folder, arguments.broken)
    except ServerUnavailable as error:
        remove(folder, arguments.keep)
        parser.error(str(error))
    except (KeyboardInterrupt, SystemExit):
        remove(folder, arguments.keep)
        raise
    except Exception:
        traceback.print_exc()
        print(f"This says nothing of Postroom: the harness failed. What there is, is in {folder}", file=sys.stderr)
        sys.exit(2)
    for mishap in report["mishaps"]:
        print(f"The harness failed: {mishap}", file=sys.stderr)
    if report["ok"] and not report["mishaps"]:
        remove(folder, arguments.keep)
    else:
        print(f"What everybody wrote down is in {folder}", file=sys.stderr)
    print(json.dumps(report))
    sys.exit(2 if report["mishaps"] else not report["ok"])


def remove(folder: Path, kept: str | None) -> None:
    if kept is None:
        shutil.rmtree(folder, ignore_errors=True)


def run(plan: Plan, folder: Path, broken: str | None) -> dict[str, Any]:
    with Screen(plan, broken) as screen:
        stage = Stage(plan, folder, broken, screen.say)
        history = asyncio.run(stage.play())
        verdict = judge(history)
        screen.conclude(verdict)
    return {
        **describe(plan, stage, broken),
        **{name: value for name, value in asdict(verdict).items() if name not in TOLD_OTHERWISE},
        "largest_gap_began": since(stage.began, verdict.largest_gap_began),
        "ok": not verdict.violations,
        "violations": verdict.violations,
        "mishaps": stage.mishaps,
        "caught": None if broken is None else is_caught(broken, verdict),
        "faults": faults(stage, verdict),
    }


def describe(plan: Plan, stage: Stage, broken: str | None) -> dict[str, Any]:
    return {
        "name": "chaos",
        "store": plan.store,
        "to": plan.to,
        "seed": plan.seed,
        "seconds": plan.seconds,
        "broken": broken,
        "keys": plan.keys,
        "settings": relay.SETTINGS,
        "in_flight": relay.IN_FLIGHT,
        "versions": stage.versions,
        "drained_in": stage.drained_in,
    }


def faults(stage: Stage, verdict: Verdict) -> list[dict[str, Any]]:
    return [
        {
            "kind": fault.kind,
            "began": since(stage.began, fault.begin),
            "seconds": round(fault.end - fault.begin, 1),
            "happened": fault.happened,
            "duplicates": duplicates,
            "recovered_in": None if recovered is None else round(recovered, 2),
        }
        for fault, duplicates, recovered in zip(stage.faults, verdict.duplicates_of, verdict.recoveries, strict=True)
    ]


def since(began: float, at: float | None) -> float | None:
    return None if at is None else round(at - began, 1)


def is_caught(broken: str, verdict: Verdict) -> bool:
    """By what it does, and not because nothing works at all."""
    return verdict.delivered > 0 and any(found.startswith(BREAKS[broken].finds) for found in verdict.violations)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m chaos",
        description=__doc__,
        epilog=f"Faults: {', '.join(kinds('postgresql', 'kafka'))}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--store", choices=get_args(Store), default="sqlite")
    parser.add_argument("--to", choices=get_args(Destination), default="file")
    parser.add_argument("--minutes", type=minutes, default=1.0, help="how long things are broken")
    parser.add_argument("--seed", type=int, help="draw the same faults again")
    parser.add_argument("--break", dest="broken", choices=list(BREAKS), help="a relay that is broken on purpose")
    parser.add_argument("--keep", metavar="FOLDER", help="what everybody writes down, kept there in any case")
    return parser


def minutes(given: str) -> float:
    number = float(given)
    if not 0.1 <= number <= 24 * 60:
        raise argparse.ArgumentTypeError("must be from 0.1 to 1440")
    return number


if __name__ == "__main__":
    main()
