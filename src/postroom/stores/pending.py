"""How many messages wait, as a relay last counted them: by it a writer knows that an outbox is full.

Counting at each `add` would cost more than the message. So one relay counts every few seconds, up to a limit, and notes
the number where writers find it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Select, Table, literal_column, select

NAME = "pending"
"""Of the row in the meta table."""
MOST_COUNTED = 1_000_001
"""Beyond it nobody counts: that is more than any outbox may be limited to."""


class Sample(NamedTuple):
    pending: int
    at: datetime

    def text(self) -> str:
        return f"{self.pending} {self.at.isoformat()}"

    @classmethod
    def read(cls, text: str) -> Sample | None:
        """None for what cannot be read."""
        count, _, at = text.partition(" ")
        try:
            return cls(int(count), datetime.fromisoformat(at))
        except ValueError:
            return None


def select_sample(meta: Table) -> Select[*tuple[Any, ...]]:
    return select(meta.c.value).where(meta.c.name == literal_column(f"'{NAME}'"))
