"""What can be seen from outside while the demo runs, and afterwards: the shop's database and the destination's record.

Nothing here asks Postroom: the outbox's tables are read as they are.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Table, create_engine, func, literal, select, union_all

from .ledger import Committed, Ledger, reckon
from .shop import Truth, outbox, url_of


class Sight(NamedTuple):
    """How far things are, at one moment."""

    committed: int
    waiting: int
    dead: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The destination's side of the story."""

    deliveries: list[str]
    by_relay: Counter[str]
    refused: list[str]

    @property
    def retried(self) -> int:
        """Messages that were refused at first and delivered in the end."""
        return len(set(self.refused) & set(self.deliveries))


class Witness:
    def __init__(self, database: Path, record: Path) -> None:
        self._engine = create_engine(url_of(database))
        self._record = record
        self._read_to = 0
        self.account = Account(deliveries=[], by_relay=Counter(), refused=[])
        self.delivered: set[str] = set()

    def close(self) -> None:
        self._engine.dispose()

    def look(self) -> Sight:
        tables = outbox.tables
        waiting = _count(tables.hot) + _count(tables.later) + _count(tables.parked)
        # One statement is one snapshot: a message that moves meanwhile is seen in one of its places.
        asked = select(_count(Truth), waiting, _count(tables.dead))
        with self._engine.connect() as connection:
            sight = Sight(*connection.execute(asked).one())
        self.read_record()
        return sight

    def read_record(self) -> None:
        for noted in self._new_notes():
            if noted["outcome"] == "accepted":
                self.delivered.add(noted["id"])
                self.account.deliveries.append(noted["id"])
                self.account.by_relay[noted["relay"]] += 1
            else:
                self.account.refused.append(noted["id"])

    def _new_notes(self) -> Iterator[dict[str, Any]]:
        if not self._record.exists():
            return
        with self._record.open("rb") as file:
            file.seek(self._read_to)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # half of it is still to come
                self._read_to += len(line)
                yield json.loads(line)

    def reckon(self) -> Ledger:
        self.read_record()
        tables = outbox.tables
        asked = union_all(
            *(select(table.c.id, literal(False)) for table in (tables.hot, tables.later, tables.parked)),
            select(tables.dead.c.id, literal(True)),
        )
        truth = select(Truth.message_id, Truth.topic, Truth.key, Truth.number)
        with self._engine.connect() as connection:
            committed = [Committed(*row) for row in connection.execute(truth)]
            states = [(id, bool(dead)) for id, dead in connection.execute(asked)]
        return reckon(
            committed,
            self.account.deliveries,
            dead=[id for id, dead in states if dead],
            waiting=[id for id, dead in states if not dead],
        )

    def committed_ids(self) -> set[str]:
        with self._engine.connect() as connection:
            return set(connection.scalars(select(Truth.message_id)))

    def committed_between(self, begin: float, end: float) -> int:
        asked = select(func.count()).select_from(Truth).where(Truth.written_at.between(begin, end))
        with self._engine.connect() as connection:
            return connection.scalar(asked) or 0


def _count(table: Table | type[Truth]) -> Any:
    return select(func.count()).select_from(table).scalar_subquery()
