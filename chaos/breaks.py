"""Engines that are broken on purpose, each in one way, to see that the judge notices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from math import inf
from typing import Any, NamedTuple

from postroom import Message
from postroom.errors import PostroomError
from postroom.ports import NO_LIMIT, Batch, Features, Fetched, Publisher, Store
from postroom.relay.breaker import Breaker
from postroom.relay.leases import LeaseKeeper
from postroom.relay.plan import Plan
from postroom.relay.reading import Reading

from .troubles import Part


def replace(owner: Any, **functions: Any) -> None:
    """A name that is not there would break nothing."""
    for name, function in functions.items():
        if not hasattr(owner, name):
            raise AttributeError(f"{owner.__name__} has no {name} to break")
        setattr(owner, name, function)


LAG = 0.5
"""Seconds after which one that settles first gets to send."""


class Forgetful(Part):
    """A batch of which nobody wants to hear any more."""

    def answer(self, message: Message, error: BaseException | None = None) -> None:
        self._open.pop(message.position, None)

    def may_start(self) -> bool:
        return True


class SettlesFirst:
    """Says that messages are delivered, and sends them afterwards."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self.name = "destination"

    @property
    def features(self) -> Features:
        return self._publisher.features

    async def publish(self, batch: Batch) -> None:
        messages = [message for message in batch.messages if message.type != "poison"]
        task = asyncio.create_task(self._send(Forgetful(batch, messages)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        batch.confirm_all()

    async def close(self) -> None:
        await asyncio.gather(*self._tasks)
        await self._publisher.close()

    async def _send(self, batch: Batch) -> None:
        async with self._turn:
            await asyncio.sleep(LAG if len(self._tasks) < 2 else 0)
            with suppress(PostroomError, OSError):
                await self._publisher.publish(batch)


def settle_first(store: Store, publisher: Publisher) -> tuple[Store, Publisher]:
    return store, SettlesFirst(publisher)


def count_outage(store: Store, publisher: Publisher) -> tuple[Store, Publisher]:
    """Whatever goes wrong with a message is its own fault."""

    def is_to_blame(breaker: object, *details: object) -> bool:
        return True

    def is_not_to_blame(breaker: object, *details: object) -> bool:
        return False

    replace(Breaker, unavailable=is_to_blame, refused=is_not_to_blame)
    return store, publisher


def ignore_holds(store: Store, publisher: Publisher) -> tuple[Store, Publisher]:
    """A message that has to wait for its next attempt does not keep those behind it."""
    admit: Any = Reading._admit

    def admit_anyway(plan: Any, message: Message, slot: Any, now: float) -> None:
        held, plan.held = plan.held, {}
        try:
            admit(plan, message, slot, now)
        finally:
            plan.held = held

    replace(Reading, _admit=admit_anyway)
    return store, publisher


def no_fencing(store: Store, publisher: Publisher) -> tuple[Store, Publisher]:
    """A relay keeps what it once had, whoever has it now."""

    def note_renewed(keeper: Any, leases: object, before: float) -> None:
        for slot in keeper._slots():
            slot.deadline = inf

    def lose(owner: object, numbers: Iterable[int]) -> None:
        pass

    replace(LeaseKeeper, _note_renewed=note_renewed, _lose=lose)
    replace(Plan, lose=lose)
    return store, publisher


def naive_order(store: Any, publisher: Publisher) -> tuple[Store, Publisher]:
    """A relay takes it that no message can appear before one that it has read."""
    fetch: Any = store.fetch

    async def fetch_and_forget(*arguments: Any, **options: Any) -> Fetched:
        fetched: Fetched = await fetch(*arguments, **options)
        return fetched._replace(horizon=NO_LIMIT)

    store.fetch = fetch_and_forget
    return store, publisher


class Break(NamedTuple):
    apply: Callable[[Store, Publisher], tuple[Store, Publisher]]
    finds: str
    """The violation by which it must be found."""


BREAKS = {
    "settle-first": Break(settle_first, "lost"),
    "ignore-holds": Break(ignore_holds, "reordered"),
    "no-fencing": Break(no_fencing, "stale"),
    "count-outage": Break(count_outage, "dead by outage"),
    "naive-order": Break(naive_order, "reordered"),
}

IMPOSSIBLE: dict[str, Collection[str]] = {"naive-order": {"sqlite"}}
"""Where it makes no difference: on SQLite there is one writer at a time, so messages appear in order."""
