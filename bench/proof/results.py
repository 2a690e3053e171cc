"""What a run said, and where that is kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .runs import RUNS


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    name: str
    command: str
    began: str
    """UTC."""
    seconds: float
    status: int
    """With which the command ended."""
    machine: dict[str, str]
    report: dict[str, Any] | None
    """The last line that it printed, if that was a JSON object."""
    revision: str | None = None
    """What it was made of; None if that is not known."""


Results = Mapping[str, Result]


def load(folder: Path) -> dict[str, Result]:
    """In the order of the runs. What is not among them is none of them."""
    paths = {run.name: folder / f"{run.name}.json" for run in RUNS}
    return {name: read(path) for name, path in paths.items() if path.exists()}


def read(path: Path) -> Result:
    return Result(**json.loads(path.read_text(encoding="utf-8")))


def save(folder: Path, result: Result) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(asdict(result), indent=1, ensure_ascii=False)
    (folder / f"{result.name}.json").write_text(f"{text}\n", encoding="utf-8")
