"""How many messages wait, as a relay last counted them: by it a writer knows that an outbox is full.

Counting at each `add` would cost more than the message. So one relay counts every few seconds, up to a limit, and notes
the number where writers find it, if it has changed.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Integer, Select, Table, bindparam, func, literal_column, select

from .schema import Tables

NAME = "pending"
"""Of the row in the meta table."""
MOST_COUNTED = 1_000_001
"""Beyond it nobody counts: that is more than any outbox may be limited to."""


class Sample(NamedTuple):
    """What was counted, and since when it has been so."""

    pending: int
    since: datetime

    def text(self) -> str:
        return f"{self.pending} {self.since.isoformat()}"

    @classmethod
    def read(cls, text: str) -> Sample | None:
        """None for what cannot be read."""
        count, _, since = text.partition(" ")
        try:
            return cls(int(count), datetime.fromisoformat(since))
        except ValueError:
            return None


def select_sample(meta: Table) -> Select[*tuple[Any, ...]]:
    return select(meta.c.value).where(meta.c.name == literal_column(f"'{NAME}'"))


def count_pending(tables: Tables) -> Select[*tuple[Any, ...]]:
    """How many there are, `most` of each kind at most, and what was noted before."""
    hot, parked, claims = (_count(table) for table in (tables.hot, tables.parked, tables.claims))
    return select(hot + parked + claims, select_sample(tables.meta).scalar_subquery())


def _count(table: Table) -> ColumnElement[int]:
    most = bindparam("most", type_=Integer)
    some = select(literal_column("1", Integer)).select_from(table).limit(most).subquery()
    return select(func.count()).select_from(some).scalar_subquery()
