"""Markdown as far as the tests of the documentation need it: fenced blocks, headings and links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#+\s+(?P<title>.+?)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    info: str
    text: str
    line: int


def pages() -> list[Path]:
    """Every page of the project, relative to its root."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(page.relative_to(ROOT) for page in found)


def blocks(text: str) -> Iterator[Block]:
    for match in FENCE.finditer(text):
        yield Block(match["info"].strip(), match["text"], text.count("\n", 0, match.start()) + 2)


def links(text: str) -> list[str]:
    return [match["target"] for match in LINK.finditer(FENCE.sub("", text))]


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives to headings."""
    titles = (match["title"] for match in HEADING.finditer(FENCE.sub("", text)))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
