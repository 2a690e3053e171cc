"""What is written down of what is under way, and what the next owner makes of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from postroom import Message, StoreUnavailable
from postroom.ports import Lease
from postroom.relay.journal import MOST_SUSPECTS, Journal
from postroom.stores.memory import MemoryStore


class Notebook(MemoryStore):
    """Counts how often something is written, and may fail."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[dict[int, Any]] = []
        self.is_down = False

    async def write_notes(
        self, relay: str, epochs: Mapping[int, int], notes: Mapping[int, str | None]
    ) -> frozenset[int]:
        await asyncio.sleep(0)
        if self.is_down:
            raise StoreUnavailable("down")
        self.written.append({slot: text and json.loads(text) for slot, text in notes.items()})
        return await super().write_notes(relay, epochs, notes)


class Relay:
    def __init__(self, store: Notebook, name: str = "relay-1") -> None:
        self.store, self.name = store, name
        self.epochs: dict[int, int] = {}
        self.journal = Journal(store, name, lambda: self.epochs)

    async def take(self, *slots: int, ttl: float = 15) -> None:
        for lease in (await self.store.acquire(self.name, slots, ttl)).values():
            self.epochs[lease.slot] = lease.epoch
            self.journal.own(lease)


def task(slot: int, id: str) -> Message:
    return Message(topic="t", id=id, slot=slot)


@pytest.fixture
def store() -> Notebook:
    return Notebook()


async def successor(relay: Relay) -> Relay:
    """Whoever takes the slots of a relay that died."""
    await relay.store.release(relay.name, relay.epochs, {}, leave=True)
    other = Relay(relay.store, "relay-2")
    await other.take(*relay.epochs)
    return other


async def test_those_that_start_together_are_written_together_and_before_they_start(store: Notebook) -> None:
    relay = Relay(store)
    await relay.take(1, 2)
    assert (
        await asyncio.gather(*(relay.journal.start(task(slot, f"{slot}{id}")) for slot in (1, 2) for id in "ab"))
        == [True] * 4
    )
    assert store.written == [
        {
            1: {"running": {"1a": 0, "1b": 0}, "suspects": {}},
            2: {"running": {"2a": 0, "2b": 0}, "suspects": {}},
        }
    ]


async def test_what_was_under_way_is_suspect_to_the_next_owner_and_counts(store: Notebook) -> None:
    relay = Relay(store)
    await relay.take(1)
    await relay.journal.start(task(1, "a"))
    other = await successor(relay)
    assert (other.journal.crashes(task(1, "a")), other.journal.crashes(task(1, "b"))) == (1, 0)
    await other.journal.start(task(1, "a"))
    await other.journal.start(task(1, "b"))
    third = await successor(other)
    assert (third.journal.crashes(task(1, "a")), third.journal.crashes(task(1, "b"))) == (2, 1)


async def test_a_suspect_that_has_not_been_tried_yet_stays_one_and_counts_no_more(store: Notebook) -> None:
    relay = Relay(store)
    await relay.take(1)
    await asyncio.gather(relay.journal.start(task(1, "a")), relay.journal.start(task(1, "b")))
    other = await successor(relay)
    await other.journal.start(task(1, "a"))
    third = await successor(other)
    assert (third.journal.crashes(task(1, "a")), third.journal.crashes(task(1, "b"))) == (2, 1)


async def test_what_came_to_an_end_is_no_suspect(store: Notebook) -> None:
    relay = Relay(store)
    await relay.take(1)
    await relay.journal.start(task(1, "a"))
    other = await successor(relay)
    await other.journal.start(task(1, "a"))
    other.journal.end(task(1, "a"), was_tried=True)
    assert other.journal.crashes(task(1, "a")) == 0
    await other.journal.catch_up()
    assert store.written[-1] == {1: None}
    assert (await successor(other)).journal.crashes(task(1, "a")) == 0


async def test_an_end_is_known_before_anything_else_starts(store: Notebook) -> None:
    """A process that dies of the next one must not cast suspicion on one that is done, also not in another slot."""
    relay = Relay(store)
    await relay.take(1, 2)
    await relay.journal.start(task(1, "good"))
    relay.journal.end(task(1, "good"), was_tried=True)
    await relay.journal.start(task(2, "bad"))
    other = await successor(relay)
    assert (other.journal.crashes(task(1, "good")), other.journal.crashes(task(2, "bad"))) == (0, 1)


async def test_what_was_not_tried_stays_a_suspect(store: Notebook) -> None:
    relay = Relay(store)
    await relay.take(1)
    await relay.journal.start(task(1, "a"))
    other = await successor(relay)
    other.journal.end(task(1, "a"), was_tried=False)
    assert other.journal.crashes(task(1, "a")) == 1


async def test_nothing_is_written_if_nothing_has_changed(store: Notebook) -> None:
    relay = Relay(store)
    await relay.take(1)
    await relay.journal.catch_up()
    relay.journal.end(task(1, "a"), was_tried=True)
    await relay.journal.catch_up()
    assert store.written == []


async def test_what_is_left_behind_on_purpose_is_no_suspect(store: Notebook) -> None:
    relay = Relay(store)
    await relay.take(1)
    await relay.journal.start(task(1, "a"))
    await relay.journal.close()
    assert (await successor(relay)).journal.crashes(task(1, "a")) == 0


async def test_nothing_starts_in_a_slot_that_is_anothers(store: Notebook) -> None:
    relay = Relay(store)
    await relay.take(1)
    await successor(relay)
    assert not await relay.journal.start(task(1, "a"))
    relay.epochs.clear()
    assert not await relay.journal.start(task(1, "b"))


async def test_nothing_starts_that_could_not_be_written_down(store: Notebook) -> None:
    relay = Relay(store)
    await relay.take(1)
    store.is_down = True
    with pytest.raises(StoreUnavailable):
        await relay.journal.start(task(1, "a"))
    relay.journal.end(task(1, "a"), was_tried=False)
    store.is_down = False
    assert await relay.journal.start(task(1, "b"))
    assert store.written == [{1: {"running": {"b": 0}, "suspects": {}}}]


async def test_one_that_is_cancelled_before_it_starts_is_forgotten(store: Notebook) -> None:
    relay = Relay(store)
    await relay.take(1)
    start = asyncio.create_task(relay.journal.start(task(1, "a")))
    await asyncio.sleep(0)
    start.cancel()
    assert isinstance((await asyncio.gather(start, return_exceptions=True))[0], asyncio.CancelledError)
    relay.journal.end(task(1, "a"), was_tried=False)
    await relay.journal.catch_up()
    assert (await successor(relay)).journal.crashes(task(1, "a")) == 0


@pytest.mark.parametrize(
    "notes", ["", "{", '{"running": {"b": "x"}}', "[]", '"x"', '{"running": 1}', '{"running": [["a", 1]]}', "null"]
)
def test_notes_that_cannot_be_read_are_none(store: Notebook, notes: str) -> None:
    relay = Relay(store)
    relay.journal.own(Lease(slot=1, owner="x", epoch=1, expires_in=1, mark=0, notes=notes))
    assert relay.journal.crashes(task(1, "b")) == 0


def test_suspects_are_not_remembered_without_end(store: Notebook) -> None:
    relay = Relay(store)
    many = {f"id-{number}": 1 for number in range(2 * MOST_SUSPECTS)}
    notes = json.dumps({"running": {}, "suspects": many})
    relay.journal.own(Lease(slot=1, owner="x", epoch=1, expires_in=1, mark=0, notes=notes))
    kept = [id for id in many if relay.journal.crashes(task(1, id))]
    assert kept == list(many)[MOST_SUSPECTS:]
