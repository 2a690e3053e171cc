"""The transaction of a memory store, known by its methods alone: stores are found by name, never imported here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeVar

from ..message import Message
from ..stores.pending import Sample
from .procedure import Clerk
from .requests import Name, Request
from .writer import Row, Writer

T = TypeVar("T")


class Recollection(Protocol):
    """What inboxes remember. A name begins with that of its inbox."""

    def now(self) -> datetime: ...

    def recall(self, name: Name) -> Any: ...

    def note(self, name: Name, value: Any) -> None: ...

    def noted(self, *beginning: str) -> Iterable[tuple[Name, Any]]: ...


class Transaction(Protocol):
    @property
    def inbox(self) -> Recollection: ...

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


def run(transaction: Transaction, clerk: Clerk[Any, T], request: Request[T]) -> T:
    return request.within(_Notes(transaction.inbox, clerk.name))


class _Notes:
    """Those of one inbox."""

    def __init__(self, all: Recollection, inbox: str) -> None:
        self._all = all
        self._inbox = inbox

    def now(self) -> datetime:
        return self._all.now()

    def recall(self, name: Name) -> Any:
        return self._all.recall((self._inbox, *name))

    def note(self, name: Name, value: Any) -> None:
        self._all.note((self._inbox, *name), value)

    def noted(self, kind: str) -> Iterable[tuple[Name, Any]]:
        return [(name[1:], value) for name, value in self._all.noted(self._inbox, kind)]
