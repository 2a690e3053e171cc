"""From the curtain to the exit status: where the demo lives, how it is played, what is said about it."""

from __future__ import annotations

import asyncio
import json
import secrets
import shutil
import tempfile
import time
from pathlib import Path

from rich.console import Console

from ..errors import ConfigurationError
from .cast import Mishap
from .outcome import Outcome, outcome_of
from .plan import Plan, draw
from .printout import print_outcome
from .screen import screen_for
from .stage import DATABASE, RECORD, Stage
from .witness import Witness

SEEDS = 1_000_000
INTERRUPTED = 130


def show(*, seed: int | None, json_output: bool, keep: Path | None) -> int:
    console = Console(stderr=json_output)
    plan = draw(secrets.randbelow(SEEDS) if seed is None else seed)
    folder = _folder(keep)
    try:
        outcome = _play(plan, folder, console)
    except (KeyboardInterrupt, Mishap) as error:
        _remove_unless(keep, folder)
        return _give_up(console, error)
    kept = keep is not None or not outcome.is_good
    _print(console, outcome, folder / DATABASE if kept else None, json_output)
    if not kept:
        _remove_unless(keep, folder)
    return 0 if outcome.is_good else 1


def _play(plan: Plan, folder: Path, console: Console) -> Outcome:
    begin = time.monotonic()
    with screen_for(console, plan.messages, plan.deliverable) as screen:
        screen.say(f"seed {plan.seed} (`--seed {plan.seed}` plays this again)")
        happenings = asyncio.run(Stage(plan, folder, screen).play())
        screen.say("comparing what was committed with what arrived")
    witness = Witness(folder / DATABASE, folder / RECORD)
    try:
        return outcome_of(plan, happenings, witness, time.monotonic() - begin)
    finally:
        witness.close()


def _print(console: Console, outcome: Outcome, database: Path | None, json_output: bool) -> None:
    if json_output:
        print(json.dumps(outcome.as_json() | {"database": None if database is None else str(database)}))
    else:
        print_outcome(console, outcome, database)


def _give_up(console: Console, error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        console.print("Interrupted; everything is stopped.")
        return INTERRUPTED
    console.print(f"The demo could not be played: {error}", style="red", markup=False, soft_wrap=True)
    return 1


# --- the folder


def _folder(keep: Path | None) -> Path:
    if keep is None:
        return Path(tempfile.mkdtemp(prefix="postroom-demo-"))
    folder = keep.resolve()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(f"--keep {keep}: the demo needs a new or an empty folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"--keep {keep}: the folder cannot be made: {error}") from error
    return folder


def _remove_unless(keep: Path | None, folder: Path) -> None:
    if keep is None:
        shutil.rmtree(folder, ignore_errors=True)
