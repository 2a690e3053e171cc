"""A database that is not the one it was: the relay begins anew, and nothing else changes for whoever uses it."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from postroom import Outbox, Relay, StoreReplaced, TablesMissing
from postroom.events import Event, Started, Stopped
from postroom.ports import Fetched, Range
from postroom.publishers.memory import MemoryPublisher
from postroom.stores.memory import MemoryStore
from tests.waiting import until

SOON = 30.0


class ReplacedStore(MemoryStore):
    """Replaced when it is first read, and as often as one likes."""

    times = 1
    missing = 0
    """How often it cannot be opened thereafter."""
    opened = 0

    def __init__(self) -> None:
        super().__init__()
        self.failed = threading.Event()
        """It could not be opened."""

    async def fetch(self, ranges: Sequence[Range], limit: int | None = None) -> Fetched:
        if self.times > 0:
            self.times -= 1
            raise StoreReplaced("another history")
        return await super().fetch(ranges, limit)

    async def open(self, *, claim: str | None = None, create_tables: bool = True) -> None:
        self.opened += 1
        if self.opened > 1 and self.missing > 0:
            self.missing -= 1
            self.failed.set()
            raise TablesMissing("not restored yet")
        await super().open(claim=claim, create_tables=create_tables)


@pytest.fixture
def store() -> ReplacedStore:
    return ReplacedStore()


class Diary:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.stopped = threading.Event()
        """A session has ended."""

    def notice(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Stopped):
            self.stopped.set()


def relay_on(store: ReplacedStore, publisher: MemoryPublisher, *observers: Any) -> Relay:
    return Relay(store, publisher, observers=observers, lease_ttl=0.5, publish_timeout=0.1)


def add_one(store: ReplacedStore) -> None:
    with store.begin() as transaction:
        Outbox().add(transaction, "orders", {})


@pytest.mark.parametrize("missing", [0, 3])
async def test_the_relay_begins_anew_whatever_it_takes(store: ReplacedStore, missing: int) -> None:
    store.missing = missing
    publisher, diary = MemoryPublisher(), Diary()
    async with relay_on(store, publisher, diary):
        add_one(store)
        await until(lambda: publisher.messages)
    assert [type(event) for event in diary.events if isinstance(event, Started | Stopped)] == 2 * [Started, Stopped]
    assert store.opened == 2 + missing


async def test_a_relay_that_is_stopped_while_it_begins_anew_stops(store: ReplacedStore) -> None:
    """Also if no session lasts."""
    store.times = 1_000_000
    diary = Diary()
    async with asyncio.timeout(SOON):
        async with relay_on(store, MemoryPublisher(), diary):
            await until(diary.stopped.is_set)


def test_a_relay_in_a_thread_that_is_stopped_while_it_cannot_begin_anew_stops(store: ReplacedStore) -> None:
    store.missing = 1_000_000
    relay = relay_on(store, MemoryPublisher())
    relay.start()
    assert store.failed.wait(SOON)
    relay.stop(timeout=SOON)
    assert relay._thread is None, "it has ended"


async def test_a_signal_stops_a_relay_that_begins_anew(store: ReplacedStore) -> None:
    store.missing = 1_000_000
    diary = Diary()
    running = asyncio.create_task(relay_on(store, MemoryPublisher(), diary).run(handle_signals=True))
    await until(diary.stopped.is_set)
    signal.raise_signal(signal.SIGTERM)
    async with asyncio.timeout(SOON):
        await running


async def test_a_drain_says_that_it_must_be_done_again(store: ReplacedStore) -> None:
    await store.open()
    add_one(store)
    publisher = MemoryPublisher()
    with pytest.raises(StoreReplaced):
        await relay_on(store, publisher).drain()
    report = await relay_on(store, publisher).drain()
    assert (report.delivered, report.pending) == (1, 0)
    await store.close()
