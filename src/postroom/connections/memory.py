"""The transaction of a memory store, known by its `add` alone: stores are found by name, never imported here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ..message import Message
from ..stores.pending import Sample
from .writer import Row, Writer


class Transaction(Protocol):
    def count_pending(self) -> Sample: ...

    def add(
        self,
        message: Message,
        payload: bytes,
        headers: Mapping[str, str],
        dedupe_seconds: float | None,
        strict: bool,
        delay: float | None,
    ) -> None: ...


def write(transaction: Transaction, writer: Writer, rows: Sequence[Row]) -> None:
    writer.check_now(transaction.count_pending())
    for row in rows:
        message = row.message
        window = None if message.idempotency_key is None else writer.dedupe_window
        transaction.add(message, message.payload, row.headers, window, writer.strict, row.delay)
        row.learn(duplicate=message.duplicate, sequence=message.sequence, generation=message.generation)
