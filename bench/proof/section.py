"""A part of the page: its words, its plots, and what it says of runs that are missing or were not made as listed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .markdown import code, image
from .results import Result, Results
from .runs import Run

PLOTS = "proof"
"""The folder of the plots, beside the page."""


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    blocks: list[str]
    plots: dict[str, str] = field(default_factory=dict[str, str])
    """By file name."""

    def text(self) -> str:
        return "\n\n".join([f"## {self.title}", *self.blocks])

    def add(self, *blocks: str) -> None:
        self.blocks.extend(blocks)

    def add_plot(self, name: str, title: str, svg: str) -> None:
        self.plots[f"{name}.svg"] = svg
        self.add(image(title, f"{PLOTS}/{name}.svg"))


def made(runs: Iterable[Run], results: Results) -> list[tuple[Run, Result]]:
    return [(run, results[run.name]) for run in runs if run.name in results]


def remarks(runs: Sequence[Run], results: Results) -> list[str]:
    missing = [code(run.name) for run in runs if run.name not in results]
    other = [
        f"- {code(run.name)} was run as {code(result.command)}, not as listed."
        for run, result in made(runs, results)
        if result.command != run.command
    ]
    return [
        *(["\n".join(other)] if other else []),
        *([f"**Not run:** {', '.join(missing)}."] if missing else []),
    ]


def failure(result: Result) -> str:
    return f"**failed**, exit status {result.status}"
