"""One run: a process of its own, whose words are passed on, and of which the last line is kept."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from . import machine
from .results import Result
from .revision import revision
from .runs import Run, as_text


def perform(run: Run, root: Path, *, quick: bool) -> Result:
    argv, made_of = run.argv(quick=quick), revision(root)
    began, start = datetime.now(UTC), time.monotonic()
    status, last = follow([sys.executable, *argv], root)
    return Result(
        name=run.name,
        command=as_text(argv),
        began=f"{began:%Y-%m-%d %H:%M}",
        seconds=round(time.monotonic() - start, 1),
        status=status,
        machine=machine.describe(),
        report=as_report(last),
        revision=made_of,
    )


def follow(command: list[str], folder: Path) -> tuple[int, str]:
    """Its exit status, and its last line. What it says of itself on standard error goes where ours goes."""
    last = ""
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True, encoding="utf-8") as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.strip():
                    last = line
                    if as_report(line) is None:
                        print(f"  {line.rstrip()}", flush=True)
        except BaseException:  # we are told to end: so is it, and what it has started
            process.terminate()
            raise
    return process.returncode, last


def as_report(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
