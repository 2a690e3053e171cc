"""Make the runs of docs/explanation/proof.md, keep what they said, and write the page from it."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from .page import render
from .perform import perform
from .readme import rewrite
from .results import Result, Results, load, save
from .runs import RUNS, Run

ROOT = Path(__file__).parents[2]
PAGE = Path("docs/explanation/proof.md")
PLOTS = Path("docs/explanation/proof")
RESULTS = PLOTS / "results"
README = Path("README.md")


def main() -> None:
    arguments = make_parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what was started is ended
    results, quick = load(ROOT / RESULTS), arguments.quick
    chosen = [] if arguments.render else choose(results, arguments.only, quick=quick, missing=arguments.missing)
    try:
        failed = perform_all(chosen, quick=arguments.quick)
    finally:
        write(ROOT)
    sys.exit(1 if failed else 0)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.proof",
        description=__doc__,
        epilog="\n".join(["Runs:", *(f"  {run.name:28} {run.command}" for run in RUNS)]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", metavar="GLOB", default="*", help="those whose name matches")
    parser.add_argument(
        "--missing", action="store_true", help="those without a report: not made, or failed, or made quickly"
    )
    parser.add_argument(
        "--quick", action="store_true", help="short versions of what was not made in full: a look, and shown as such"
    )
    parser.add_argument("--render", action="store_true", help="no runs: the page from what is stored")
    return parser


def choose(results: Results, only: str, *, quick: bool = False, missing: bool = False) -> list[Run]:
    """All of that name, or those of which there is no report, or one of a run that failed. One that says that a promise
    was broken stays. A quick run never takes the place of another."""

    def is_wanted(run: Run) -> bool:
        result = results.get(run.name)
        if result is None or is_useless(result):
            return True
        is_full = result.command == run.command
        return not (quick and is_full) and not (missing and (quick or is_full))

    return [run for run in RUNS if fnmatchcase(run.name, only) and is_wanted(run)]


def perform_all(runs: Sequence[Run], *, quick: bool) -> int:
    """How many failed."""
    failed = 0
    for number, run in enumerate(runs, 1):
        print(f"[{number} of {len(runs)}] {run.name}", flush=True)
        result = perform(run, ROOT, quick=quick)
        save(ROOT / RESULTS, result)
        failed += is_failure(run, result)
        print(f"  exit status {result.status} after {result.seconds:.0f} s", flush=True)
    return failed


def is_useless(result: Result) -> bool:
    """A judge's verdict that a promise was broken is not, whatever else went wrong."""
    return result.report is None or (result.status != 0 and not result.report.get("violations"))


def is_failure(run: Run, result: Result) -> bool:
    """What is broken on purpose must be found, by what it leads to."""
    if result.report is None or run.kind == "broken":
        return not (result.report or {}).get("caught")
    return result.status != 0


def write(root: Path) -> None:
    results = load(root / RESULTS)
    page, plots = render(results)
    (root / PAGE).write_text(page, encoding="utf-8")
    (root / PLOTS).mkdir(exist_ok=True)
    for old in (root / PLOTS).glob("*.svg"):
        old.unlink()
    for name, svg in plots.items():
        (root / PLOTS / name).write_text(svg, encoding="utf-8")
    readme = root / README
    readme.write_text(rewrite(readme.read_text(encoding="utf-8"), results), encoding="utf-8")


if __name__ == "__main__":
    main()
