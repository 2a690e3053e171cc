"""Tables and figures as text. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

NOTHING = "–"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *([cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(value: object) -> str:
    if value is None or value == "":
        return NOTHING
    text = figure(value) if isinstance(value, (int, float)) else str(value)
    return " ".join(text.split()).replace("|", "\\|")


def figure(value: float) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def code(text: str) -> str:
    return f"`{text}`"


def image(title: str, path: str) -> str:
    return f"![{title}]({path})"


def sentence(words: str) -> str:
    return words if words.endswith((".", ":")) else f"{words}."
