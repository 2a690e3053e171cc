"""What a run tells while it goes on, on standard error."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from .checker import Verdict
from .plan import Plan


class Screen:
    def __init__(self, plan: Plan, broken: str | None) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=self._console, transient=True
        )
        self._task = self._progress.add_task("faults", total=max(1, len(plan.faults)))
        self._plan, self._broken = plan, broken

    def say(self, words: str) -> None:
        self._progress.console.print(f"{self._progress.tasks[0].elapsed or 0:6.1f} s  {words}", markup=False)
        self._progress.advance(self._task)

    def conclude(self, verdict: Verdict) -> None:
        found = verdict.violations
        facts = (
            f"committed {verdict.committed}, delivered {verdict.delivered}, lost {verdict.lost}, "
            f"phantom {verdict.phantom}, reordered {verdict.reordered}, dead by outage {verdict.dead_by_outage}, "
            f"duplicates {verdict.duplicates} of at most {verdict.duplicates_allowed}"
        )
        self._console.print(f"BROKEN: {'; '.join(found)}" if found else "ok", style="red" if found else "green")
        self._console.print(facts, markup=False)
        for failure in verdict.failures:
            self._console.print(failure, markup=False)

    def __enter__(self) -> Self:
        plan = self._plan
        self._console.print(
            f"chaos: {plan.store} to {plan.to}, {plan.seconds:g} s, {len(plan.faults)} faults, seed {plan.seed}"
            + (f", broken on purpose: {self._broken}" if self._broken else ""),
            markup=False,
        )
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()
