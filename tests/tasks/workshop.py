"""What the tests of tasks use."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any

from postroom import Message, Outbox, Relay, Report, Tasks
from postroom.stores.memory import MemoryStore


@dataclass
class Email:
    to: str
    subject: str = "Hello"
    on: date | None = None


class Workshop:
    """A memory store, tasks, and what they did."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.outbox = Outbox()
        self.tasks = Tasks(self.outbox)
        self.done: list[Any] = []

    def schedule(self, task: Any, payload: Any = None, **options: Any) -> Message:
        with self.store.begin() as transaction:
            return task.schedule(transaction, payload, **options)

    def relay(self, publishers: Any = None, **options: Any) -> Relay:
        options.setdefault("retry", "never")
        return Relay(self.store, publishers, outbox=self.outbox, tasks=self.tasks, **options)

    async def drain(self, **options: Any) -> Report:
        return await self.relay(**options).drain()
