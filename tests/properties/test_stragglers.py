"""Writers that overlap in every way, and readers that are interrupted at every point: nothing is missed or late.

The stores' own `fetch` runs over models of their databases. Both: positions come from a sequence, rows show at commit.
PostgreSQL: a transaction has the table locked from before it takes a position until after its end, and gets a number
only when it writes its row. MySQL: nobody tells who is writing, but a dirty read shows rows before their commit.
"""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest

from postroom.message import Message
from postroom.ports import Fetched, Range
from postroom.stores.mysql import MysqlStore, Region, read_dirty
from postroom.stores.postgresql import PostgresqlStore
from postroom.stores.postgresql_writers import Snapshot
from postroom.stores.sql_server import in_order
from postroom.stores.stragglers import Writer

SLOTS = (0, 1, 2)
KEYS = {0: ("a", "b"), 1: ("c", "d"), 2: ("e", "f")}
FIRST_NUMBER = 2**32 - 3
"""So that the 32 bits which locks show wrap round in the middle of a history."""


class Interruption:
    """Whatever else happens, happens while a statement is on its way."""

    def __await__(self) -> Generator[None, None, None]:
        yield


@dataclass(eq=False)
class Transaction:
    name: str
    number: int | None = None
    taken: tuple[int, int, str] | None = None
    """A position that its row does not have yet, with slot and key."""
    rows: list[tuple[int, int, str]] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)

    @property
    def has_locked(self) -> bool:
        return self.taken is not None or bool(self.rows)


class Database:
    def __init__(self) -> None:
        self.position = 0
        self.number = FIRST_NUMBER
        self.begun = 0
        self.open: list[Transaction] = []
        self.visible: dict[int, tuple[int, str]] = {}

    def begin(self) -> None:
        self.begun += 1
        self.open.append(Transaction(f"{self.begun % 3}/{self.begun}"))

    def take_position(self, transaction: Transaction, slot: int, key: str) -> None:
        """Whoever adds a message of a key has locked its aggregate, until the end of the transaction."""
        if any(key in other.keys for other in self.open if other is not transaction):
            return
        transaction.keys.add(key)
        self.position += 1
        transaction.taken = (self.position, slot, key)

    def write_row(self, transaction: Transaction) -> None:
        assert transaction.taken is not None
        if transaction.number is None:
            self.number += 1
            transaction.number = self.number
        transaction.rows.append(transaction.taken)
        transaction.taken = None

    def end(self, transaction: Transaction, commit: bool) -> None:
        self.open.remove(transaction)
        if commit:
            self.visible |= {position: (slot, key) for position, slot, key in transaction.rows}

    def restart(self) -> None:
        """Whoever is prepared goes on, under another name."""
        for transaction in self.open:
            if transaction.number is not None and transaction.taken is None:
                transaction.name = f"-1/{transaction.number}"

    def snapshot(self) -> str:
        running = sorted(each.number for each in self.open if each.number is not None)
        # What is above the last number that was ended is never listed, though it may run.
        return f"{min(running, default=self.number + 1)}:{self.number + 1}:{','.join(map(str, running))}"

    def locks(self) -> dict[str, list[int]]:
        return {
            each.name: [] if each.number is None else [each.number % 2**32] for each in self.open if each.has_locked
        }

    def rows_between(self, slot: int, after: int, to: int = 2**62) -> list[Message]:
        return [
            Message(topic="t", key=key, position=position, slot=slot)
            for position, (of, key) in sorted(self.visible.items())
            if of == slot and after < position <= to
        ]

    def late_rows(self, ranges: Sequence[Range]) -> list[Message]:
        return [message for asked in ranges for message in self.rows_between(asked.slot, asked.low, asked.after)]

    def new_rows(self, ranges: Sequence[Range], limit: int | None) -> list[Message]:
        new = [message for asked in ranges for message in self.rows_between(asked.slot, asked.after)[: asked.limit]]
        return in_order(new)[:limit]

    def all_rows(self, ranges: Sequence[Range], limit: int | None) -> list[Message]:
        return in_order([*self.late_rows(ranges), *self.new_rows(ranges, limit)])

    def rows_at(self, positions: Collection[int]) -> list[Message]:
        found = {position: self.visible[position] for position in positions if position in self.visible}
        return [Message(topic="t", key=key, position=position, slot=slot) for position, (slot, key) in found.items()]


class PostgresqlModel(PostgresqlStore):
    """Its statements answer from the model, and may be interrupted before and after."""

    def __init__(self, database: Database, choose: Any) -> None:
        super().__init__("postgresql://nowhere")
        self.database = database
        self._choose = choose

    def _must_ask(self) -> bool:
        return self._choose()

    async def _lockers(self) -> Mapping[str, Sequence[int]]:
        await Interruption()
        found = self.database.locks()
        await Interruption()
        return found

    async def _read_slots(
        self, ranges: Sequence[Range], limit: int | None, writers: Sequence[Writer[Snapshot]]
    ) -> tuple[Snapshot, datetime, list[Message]]:
        await Interruption()
        found = Snapshot.parse(self.database.snapshot()), datetime.now(UTC), self.database.all_rows(ranges, limit)
        await Interruption()
        return found

    async def _read_stragglers(
        self, ranges: Sequence[Range], writers: Sequence[Writer[Snapshot]]
    ) -> tuple[Snapshot, list[Message]]:
        await Interruption()
        found = Snapshot.parse(self.database.snapshot()), self.database.late_rows(ranges)
        await Interruption()
        return found


class MysqlModel(MysqlStore):
    """A row is written in the moment in which its position is taken: what takes longer is the limit of this store."""

    def __init__(self, database: Database, choose: Any) -> None:
        super().__init__("mysql://nowhere")
        self.database = database
        self._choose = choose

    def _must_ask(self) -> bool:
        return self._choose()

    async def _read(self, work: Any, *args: Any, **kwargs: Any) -> Any:
        regions, known = args
        await Interruption()
        there = {position: slot for position, (slot, _) in self.database.visible.items()}
        if work is read_dirty:
            there |= {position: slot for each in self.database.open for position, slot, _ in each.rows}
        found = {
            position for position, slot in there.items() if position in known or _is_within(position, slot, regions)
        }
        await Interruption()
        return found

    async def _read_rows(
        self, ranges: Sequence[Range], limit: int | None, checked: Sequence[int]
    ) -> tuple[datetime, list[Message]]:
        await Interruption()
        rows = [*self.database.all_rows(ranges, limit), *self.database.rows_at(checked)]
        await Interruption()
        return datetime.now(UTC), in_order(rows)


def _is_within(position: int, slot: int, regions: Sequence[Region]) -> bool:
    return any(slot in slots and after < position <= to for slots, after, to in regions)


class Reader:
    """What a pump does with its slots: it remembers how far it read and what it was told cannot appear any more."""

    def __init__(self, store: Any, slots: Sequence[int]) -> None:
        self.store = store
        self.slots = slots
        self.cursors = dict.fromkeys(slots, 0)
        self.horizons = dict.fromkeys(slots, 0)
        self.taken: dict[str, list[int]] = {}
        self.fetching: Coroutine[Any, Any, Fetched] | None = None

    def step(self, limit: int, in_all: int | None = None) -> None:
        if self.fetching is None:
            ranges = [Range(slot, self.cursors[slot], limit, self.horizons[slot]) for slot in self.slots]
            self.fetching = self.store.fetch(ranges, in_all)
        fetching: Coroutine[Any, Any, Fetched] | None = self.fetching
        assert fetching is not None
        try:
            fetching.send(None)
        except StopIteration as stop:
            self.fetching = None
            self._take(stop.value)

    def cancel(self) -> None:
        if self.fetching is not None:
            self.fetching.close()
            self.fetching = None

    def finish(self, limit: int = 100) -> None:
        self.step(limit)
        while self.fetching is not None:
            self.step(limit)

    def _take(self, fetched: Fetched) -> None:
        for message in fetched.messages:
            queue = self.taken.setdefault(str(message.key), [])
            if message.position in queue:
                continue
            mark = min(self.cursors[message.slot], self.horizons[message.slot])
            assert message.position > mark, "a row appeared below the mark"
            assert not queue or message.position > queue[-1], f"{message.position} of {message.key} came late"
            queue.append(message.position)
            self.cursors[message.slot] = max(self.cursors[message.slot], message.position)
        for slot in self.slots:
            self.horizons[slot] = max(self.horizons[slot], fetched.horizon)

    def go_back(self, slot: int, part: float) -> None:
        """To some place above the mark: what was taken from there on, and not delivered, is to be read again."""
        if self.fetching is None:
            mark = min(self.cursors[slot], self.horizons[slot])
            back = self.cursors[slot] = mark + round(part * (self.cursors[slot] - mark))
            for key in KEYS[slot]:
                queue = self.taken.get(key, [])
                queue[:] = [each for each in queue if each <= back or each not in self.store.database.visible]

    def deliver(self) -> None:
        for queue in self.taken.values():
            for position in queue:
                self.store.database.visible.pop(position, None)


class History:
    """Drawn from a seed, and not by Hypothesis: tens of thousands of steps a second find what its few would not."""

    def __init__(self, model: type[PostgresqlModel | MysqlModel], seed: int) -> None:
        self.random = Random(seed)
        self.database = Database()
        asking = self.random.choice((0.05, 0.3, 0.8))
        store = model(self.database, lambda: self.random.random() < asking)
        self.takes_its_time = model is PostgresqlModel
        self.readers = [Reader(store, (0, 1))]
        self.joining = [Reader(store, (2,))]
        """Slots that the relay gets later."""
        self.patience = self.random.choice((0.05, 0.3, 0.8))
        """How likely a transaction is to end when it could write on."""
        self.committed: set[int] = set()

    def step(self) -> None:
        if self.joining and self.random.random() < 0.003:
            self.readers.append(self.joining.pop())
        match self.random.choice("wwwwwrrrrrrrrrrrrdcnb"):
            case "b":
                reader = self.random.choice(self.readers)
                reader.go_back(self.random.choice(reader.slots), self.random.random())
            case "n":
                self.database.restart()
            case "w":
                self.write()
            case "d":
                self.random.choice(self.readers).deliver()
            case "c":
                self.random.choice(self.readers).cancel()
            case _:
                in_all = self.random.choice((None, 1, 2, 3))
                self.random.choice(self.readers).step(self.random.randint(1, 3), in_all)

    def write(self) -> None:
        if not self.database.open or (len(self.database.open) < 4 and self.random.random() < 0.3):
            self.database.begin()
            return
        transaction = self.random.choice(self.database.open)
        if transaction.taken is not None:
            self.database.write_row(transaction)
        elif transaction.rows and self.random.random() < self.patience:
            self.end(transaction, self.random.random() < 0.8)
        elif len(transaction.rows) < 3:
            slot = self.random.choice(SLOTS)
            self.database.take_position(transaction, slot, self.random.choice(KEYS[slot]))
            if transaction.taken is not None and not self.takes_its_time:
                self.database.write_row(transaction)

    def end(self, transaction: Transaction, commit: bool) -> None:
        self.database.end(transaction, commit)
        if commit:
            self.committed |= {position for position, _, _ in transaction.rows}

    def settle(self) -> None:
        """Everybody comes to an end, and the readers look twice more."""
        for transaction in list(self.database.open):
            if transaction.taken is not None:
                self.database.write_row(transaction)
            self.end(transaction, True)
        for reader in (*self.readers, *self.joining):
            reader.cancel()
            reader.finish()
            reader.finish()

    def taken(self) -> set[int]:
        readers = (*self.readers, *self.joining)
        return {position for reader in readers for queue in reader.taken.values() for position in queue}


@pytest.mark.parametrize("hundred", range(15))
@pytest.mark.parametrize("model", [PostgresqlModel, MysqlModel])
def test_no_straggler_is_missed_or_comes_late_however_writers_and_readers_overlap(
    model: type[PostgresqlModel | MysqlModel], hundred: int
) -> None:
    for seed in range(hundred * 100, hundred * 100 + 100):
        history = History(model, seed)
        for _ in range(900):
            history.step()
        history.settle()
        assert history.taken() == history.committed, f"rows were missed with seed {seed}"
