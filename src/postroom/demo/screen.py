"""What the audience sees while the demo runs: bars on a terminal, a few plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from .witness import Sight


class Screen(Protocol):
    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def say(self, text: str, *, style: str = "") -> None: ...

    def show(self, sight: Sight, delivered: int) -> None: ...


def screen_for(console: Console, messages: int, deliverable: int) -> Screen:
    return LiveScreen(console, messages, deliverable) if console.is_terminal else PlainScreen(console)


class PlainScreen:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._begin = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass

    def say(self, text: str, *, style: str = "") -> None:
        elapsed = time.monotonic() - self._begin
        self._console.print(f"[dim]{elapsed:5.1f} s[/dim]  {text}", style=style, soft_wrap=True, highlight=False)

    def show(self, sight: Sight, delivered: int) -> None:
        pass


class LiveScreen(PlainScreen):
    def __init__(self, console: Console, messages: int, deliverable: int) -> None:
        super().__init__(console)
        self._progress = Progress(
            TextColumn("{task.description:>9}"),
            BarColumn(bar_width=40),
            TextColumn("{task.completed:>5} of {task.total}"),
            TextColumn("[dim]{task.fields[note]}[/dim]"),
            console=console,
            transient=True,
        )
        self._committed = self._progress.add_task("committed", total=messages, note="")
        self._delivered = self._progress.add_task("delivered", total=deliverable, note="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, sight: Sight, delivered: int) -> None:
        self._progress.update(self._committed, completed=sight.committed, note=f"{sight.waiting} wait in the outbox")
        self._progress.update(self._delivered, completed=delivered, note=f"{sight.dead} dead")
