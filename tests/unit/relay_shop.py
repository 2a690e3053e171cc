"""What the tests of relays use."""

from __future__ import annotations

from typing import Any

from postroom import (
    Message,
    Outbox,
    Relay,
    events,
)
from postroom.relay.leases import LeaseKeeper
from postroom.stores.memory import MemoryStore


class Diary:
    """An observer that keeps everything."""

    def __init__(self) -> None:
        self.events: list[events.Event] = []

    def notice(self, event: events.Event) -> None:
        self.events.append(event)

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def dead(self) -> set[str]:
        """Who died and was not taken back."""
        ids: set[str] = set()
        for event in self.events:
            if isinstance(event, events.Died):
                ids.add(event.message.id)
            elif isinstance(event, events.Refunded):
                ids.discard(event.message.id)
        return ids


class Shop:
    """A memory store, an outbox and a list of what arrived."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.outbox = Outbox()
        self.arrived: list[Message] = []
        self.diary = Diary()

    def add(self, topic: str = "orders", key: str | None = None, payload: Any = None, **options: Any) -> Message:
        with self.store.begin() as transaction:
            return self.outbox.add(transaction, topic, payload or {}, key=key, **options)

    def relay(self, publisher: Any = None, **options: Any) -> Relay:
        options.setdefault("observers", [self.diary])
        return Relay(self.store, publisher or self.arrived.append, outbox=self.outbox, **options)

    async def state_of(self, message: Message) -> str | None:
        entry = await self.store.entry(message.id)
        return entry and entry.state


def owned(relay: Relay) -> set[int]:
    session = relay._session
    return {slot for pump in session.pumps for slot in pump.plan.slots} if session else set()


def keeper_of(relay: Relay) -> LeaseKeeper:
    assert relay._session is not None
    return relay._session._keeper_or_fail()
