"""What arrived, compared with what was committed."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from postroom import Message, Relay
from postroom.events import Event, StoreDown, StoreUp
from postroom.ports import Observer
from postroom.publishers.memory import MemoryPublisher
from tests.acceptance.servers.database import Database

Orders = dict[str, list[int]]
"""For each key its versions."""


class Complaints:
    """What a relay says about its database."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.recoveries = 0

    def notice(self, event: Event) -> None:
        if isinstance(event, StoreDown):
            self.errors.append(event.error)
        elif isinstance(event, StoreUp):
            self.recoveries += 1

    @property
    def of_more_than_a_delay(self) -> list[str]:
        """With a lease of two seconds a relay gives up a question after one, which a busy machine may take."""
        return [error for error in self.errors if "has not answered for" not in error]


@contextmanager
def relay_running(
    database: Database, publisher: Any, *observers: Observer, url: str | None = None, **settings: Any
) -> Iterator[Relay]:
    """In a thread of its own. It does not know the writers' outbox, so that it hears of commits from the database."""
    relay = Relay(url or database.url, publisher, observers=observers, **settings)
    relay.start()
    try:
        yield relay
    finally:
        relay.stop()


def ids(publisher: MemoryPublisher) -> list[str]:
    return [message.id for message in publisher.messages]


def version_of(message: Message) -> int:
    return json.loads(message.payload)["version"]


def first_versions(messages: Iterable[Message]) -> Orders:
    """The versions of each key in the order of their first deliveries."""
    return in_order((str(message.key), version_of(message)) for message in messages if version_of(message))


def in_order(pairs: Iterable[tuple[str, int]]) -> Orders:
    """For each key its numbers, each where it came first."""
    found: dict[str, dict[int, None]] = defaultdict(dict)
    for key, number in pairs:
        found[key].setdefault(number)
    return {key: list(numbers) for key, numbers in found.items()}


def commit_order(database: Database) -> Orders:
    """What `first_versions` must be once everything is delivered."""
    return {key: list(range(1, version + 1)) for key, version in database.versions().items()}


def out_of_order(delivered: Orders, committed: Orders) -> dict[str, tuple[list[int], list[int]]]:
    """The keys that were not delivered as they were committed: how they were, and how they should have been."""
    keys = sorted({*delivered, *committed})
    pairs = {key: (delivered.get(key, []), committed.get(key, [])) for key in keys}
    return {key: (was, should) for key, (was, should) in pairs.items() if was != should}


def duplicates(delivered: Iterable[str]) -> int:
    return sum(count - 1 for count in Counter(delivered).values())
