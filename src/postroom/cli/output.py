"""Printing: tables and prose for people, JSON for programs, progress for those who wait."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager

import click
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from .. import desk
from ..duration import spell

GAP = "  "
NOTHING = "-"
SHORTEST = 20
"""Characters that are left of the last column, however narrow the terminal."""


def print_json(document: object) -> None:
    """One document; on one line unless a person is looking."""
    click.echo(json_text(document, indent=2 if is_terminal() else None))


def json_text(document: object, indent: int | None) -> str:
    """Readable, or else escaped: not every terminal can show every character, and half a character nobody can."""
    text = json.dumps(document, ensure_ascii=False, indent=indent, allow_nan=False)
    return text if _can_be_written(text) else json.dumps(document, indent=indent, allow_nan=False)


def print_table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """On a terminal only the last column is cut, so that ids can be copied; elsewhere nothing is."""
    cells = [[printable(value) for value in row] for row in rows]
    widths = [max(cell_len(line[place]) for line in [titles, *cells]) for place in range(len(titles))]
    if is_terminal():
        _print_for_terminal(titles, cells, widths)
    else:
        _print_plain([titles, *cells], widths)


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Names and values, one to a line."""
    lines = [(name, printable(value)) for name, value in facts]
    width = max((cell_len(name) for name, _ in lines), default=0)
    for name, value in lines:
        click.echo(f"{_padded(name, width)}{GAP}{value}")


def note(text: str) -> None:
    """For people, beside the data."""
    click.echo(printable(text), err=True)


def is_terminal() -> bool:
    return sys.stdout.isatty()


def printable(value: object) -> str:
    """On one line, and without what a terminal would obey: keys and errors come from anywhere."""
    if value is None or value == "":
        return NOTHING
    text = " ".join(value.splitlines()) if isinstance(value, str) else str(value)
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def age(length: float | None) -> str | None:
    """A length of time to two units or so.

    >>> age(93784.2), age(0.04), age(-1)
    ('1d2h', '0s', '0s')
    """
    if length is None:
        return None
    for size, unit in ((86_400, 3_600), (3_600, 60)):
        if length >= size:
            return spell(length // unit * unit)
    return spell(max(0, int(length)))


@contextmanager
def progress(label: str, quiet: bool = False) -> Generator[desk.Progress | None]:
    """A bar on standard error, if that is a terminal and a person is looking."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _print_for_terminal(titles: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[int]) -> None:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for title, width in zip(titles[:-1], widths[:-1], strict=True):
        table.add_column(title, no_wrap=True, min_width=width)
    table.add_column(titles[-1])
    for row in rows:
        table.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in row))
    console = Console(file=sys.stdout)
    needed = sum(widths[:-1]) + 3 * len(widths) + min(widths[-1], SHORTEST)
    console.width = max(console.width, needed)
    console.print(table)


def _print_plain(lines: Sequence[Sequence[str]], widths: Sequence[int]) -> None:
    for line in lines:
        cells = [_padded(cell, width) for cell, width in zip(line, widths, strict=True)]
        click.echo(GAP.join(cells).rstrip())


def _can_be_written(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _padded(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))
