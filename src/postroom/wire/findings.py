"""What an examination of a destination found."""

from __future__ import annotations

from ..ports import Finding, Verdict


def finding(verdict: Verdict, seen: str, remedy: str | None = None) -> Finding:
    return Finding(name="destination", verdict=verdict, seen=seen, remedy=remedy)
