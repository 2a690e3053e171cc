"""One run of a bench: what it measures with, and how much."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from .database import Database
from .interleave import Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    database: Database
    messages: int
    to: str = ""
    """A broker."""
    stack: ExitStack = field(default_factory=ExitStack)
    """What is open until the last round is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    prepare: Callable[[Run], Comparison]
    messages: int
    rounds: int
    quick_messages: int
    quick_rounds: int
    stores: frozenset[str] = frozenset({"postgresql", "mysql", "sqlite"})
    why_not: str = ""
    to: frozenset[str] = frozenset()
    """Brokers, if there must be one; it says how many messages."""
    """Why other stores cannot have it."""

    @property
    def about(self) -> str:
        return (self.prepare.__doc__ or "").replace("\n", " ")
