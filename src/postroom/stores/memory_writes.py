"""The write side of a memory store: what a transaction collects, and what becomes of it at commit."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Generator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

from ..errors import NoTransactionError
from ..message import Message, slot_of
from . import memory_read
from .memory_inbox import Recollection
from .memory_rows import Row
from .memory_tables import Tables
from .pending import Sample


@dataclass(slots=True, kw_only=True)
class Write:
    original: Message
    row: Row
    dedupe_seconds: float | None
    strict: bool


@dataclass(slots=True, kw_only=True)
class Ledger:
    """What decides whether a message is written and with which number: idempotency keys and counters."""

    dedupe: MutableMapping[str, datetime]
    counters: MutableMapping[tuple[str, str], tuple[int, int]]

    @classmethod
    def over(cls, tables: Tables) -> Ledger:
        return cls(dedupe=tables.dedupe, counters=tables.counters)

    def layer(self) -> Ledger:
        """One that reads through to this one and keeps its own writes to itself."""
        return Ledger(dedupe=ChainMap({}, self.dedupe), counters=ChainMap({}, self.counters))

    def admit(self, write: Write, now: datetime) -> bool:
        """Dedupe, then count: an ignored duplicate uses no sequence number."""
        message, key = write.original, write.original.idempotency_key
        if key is not None and write.dedupe_seconds is not None:
            message.duplicate = key in self.dedupe and self.dedupe[key] > now
            if message.duplicate:
                return False
            self.dedupe[key] = now + timedelta(seconds=write.dedupe_seconds)
        if write.strict and message.key is not None:
            last, generation = self.counters.get((message.topic, message.key), (0, int(now.timestamp() * 1000)))
            message.sequence, message.generation = last + 1, generation
            self.counters[message.topic, message.key] = (last + 1, generation)
        return True


class MemoryTransaction:
    """Collects messages; `MemoryStore.begin` writes them when its block ends without an error."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._ledger = Ledger.over(tables).layer()
        self.inbox = Recollection(tables.inbox, tables.now)
        self._writes: list[Write] = []
        self._over = False

    def count_pending(self) -> Sample:
        """What is committed."""
        return Sample(memory_read.count_pending(self._tables), self._tables.now())

    def add(
        self,
        message: Message,
        payload: bytes,
        headers: Mapping[str, str],
        dedupe_seconds: float | None,
        strict: bool,
        delay: float | None,
    ) -> None:
        """Write one message: a duplicate within the window is ignored, `strict` numbers it, `delay` is in seconds.

        `duplicate`, `sequence` and `generation` are set at once. Where transactions overlap, they are as they would be
        if this one committed now, and are set again at commit.
        """
        if self._over:
            raise NoTransactionError(f"message {message.id} came too late: its transaction is over")
        write = Write(
            original=message,
            row=_compose(message, payload, headers, delay, self._tables.now()),
            dedupe_seconds=dedupe_seconds,
            strict=strict,
        )
        if self._ledger.admit(write, self._tables.now()):
            self._writes.append(write)

    @contextmanager
    def savepoint(self) -> Generator[None]:
        """What is added or remembered within is gone if the block raises."""
        outer, kept = self._ledger, len(self._writes)
        self._ledger = outer.layer()
        try:
            with self.inbox.savepoint():
                yield
        except BaseException:
            del self._writes[kept:]
            raise
        else:
            outer.dedupe.update(self._ledger.dedupe)
            outer.counters.update(self._ledger.counters)
        finally:
            self._ledger = outer

    def finish(self) -> list[Write]:
        self._over = True
        self.inbox.finish()
        return self._writes


def _compose(message: Message, payload: bytes, headers: Mapping[str, str], delay: float | None, now: datetime) -> Row:
    """The row of a message, as an SQL store would read it back; its position comes at commit."""
    due_at = message.deliver_at if delay is None else now + timedelta(seconds=delay)
    written = Message(
        topic=message.topic,
        payload=payload,
        key=message.key,
        type=message.type,
        headers=dict(headers),
        id=message.id,
        content_type=message.content_type,
        expires_at=message.expires_at,
        slot=slot_of(message.key, message.id),
        replays=message.replays,
        created_at=now,
    )
    return Row(message=written, due_at=due_at)


def commit(tables: Tables, writes: Sequence[Write]) -> None:
    now, ledger = tables.now(), Ledger.over(tables)
    for write in writes:
        if ledger.admit(write, now):
            _insert(tables, write, now)


def _insert(tables: Tables, write: Write, now: datetime) -> None:
    row = write.row
    row.message.sequence, row.message.generation = write.original.sequence, write.original.generation
    if row.due_at is None or row.due_at <= now:
        tables.append(row)
    else:
        row.message.position = tables.next_position()
        tables.later.put(row)
