"""Whether a publisher, or a function that handles messages, keeps what Postroom promises while faults strike."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from .. import registry
from ..duration import Duration, seconds
from ..errors import StoreUnavailable
from ..message import Message
from ..outbox import Outbox
from ..ports import Publisher, Query, State, Store
from ..publishers.callable import CallablePublisher
from ..relay import Relay, Report
from .blocking import wait_for
from .faults import Crashed, Faults, Life
from .stores import Place, store_at

MOST = 100_000
"""Messages that are looked at."""
WAITING: frozenset[State] = frozenset({"pending", "later", "failed"})

Arrivals = Callable[[], Iterable[str] | Awaitable[Iterable[str]]]
"""The ids of the messages that have arrived, oldest first, as often as they did."""
MakeRelay = Callable[[Store, Publisher], Relay]


@dataclass(frozen=True, slots=True, kw_only=True)
class Survival:
    """What came of it. Duplicates are no fault of a publisher; to a handler that remembers ids they are."""

    seed: int | None
    committed: int
    delivered: int
    lost: Sequence[str]
    """Ids that did not arrive and are not in the outbox any more either."""
    phantom: Sequence[str]
    """Ids that arrived and were not committed."""
    reordered: Sequence[str]
    """Ids that arrived for the first time after one that came behind them in their key."""
    duplicates: int
    left: int
    """Messages that are still in the outbox: dead, behind a dead one, or not delivered in time."""
    lives: int
    faults: Sequence[str] = field(repr=False)

    @property
    def ok(self) -> bool:
        """Nothing was lost or reordered, nothing came from nowhere, and nothing is left."""
        return not (self.lost or self.phantom or self.reordered or self.left)


def survive(
    store: Place,
    publisher: Any,
    *,
    received: Arrivals,
    seed: int = 0,
    faults: Faults | None = None,
    outbox: Outbox | None = None,
    relay: MakeRelay | None = None,
    patience: Duration = "60s",
) -> Survival:
    """Deliver what is in the outbox while faults strike, one relay after the other, until nothing is left to do; then
    compare what was `received` with what was committed.

    `publisher` is a publisher, its URL, or a function that takes a message. `faults` are all kinds, drawn from the
    `seed`, unless they are given. `relay` makes a relay from a store and a publisher; where a relay dies the next one
    waits for its leases to end, so give it a short `lease_ttl`, and a small `batch_size` for many calls. It takes
    `patience` at most. In async code, await `survive_async`.
    """
    return wait_for(
        survive_async(
            store, publisher, received=received, seed=seed, faults=faults, outbox=outbox, relay=relay, patience=patience
        )
    )


async def survive_async(
    store: Place,
    publisher: Any,
    *,
    received: Arrivals,
    seed: int = 0,
    faults: Faults | None = None,
    outbox: Outbox | None = None,
    relay: MakeRelay | None = None,
    patience: Duration = "60s",
) -> Survival:
    """`survive` on the running loop."""
    outbox = outbox or Outbox()
    drawn = faults or Faults(seed=seed)
    opened, made = store_at(store, outbox, None), _publisher_of(publisher)
    await opened.open()
    try:
        trial = Trial(opened, made, drawn, relay or _relay_of(outbox), received)
        return await trial.run(seconds(patience, name="patience"))
    finally:
        await opened.close()
        if made is not publisher:
            await made.close()


class Trial:
    """One store and one publisher, and one relay after the other between them."""

    def __init__(
        self, store: Store, publisher: Publisher, faults: Faults, make_relay: MakeRelay, received: Arrivals
    ) -> None:
        self._store = store
        self._publisher = publisher
        self._faults = faults
        self._make_relay = make_relay
        self._received = received
        self._lives = 0

    async def run(self, patience: float) -> Survival:
        end = time.monotonic() + patience
        committed = await self._messages(WAITING)
        ordered = await self._messages(WAITING - {"later"})
        before = len(await self._ids())
        is_left = True
        while is_left and time.monotonic() < end:
            is_left = await self._lived()
        left = {message.id for message in await self._messages({*WAITING, "dead"})}
        expected = {message.id for message in committed} - left
        return self._compare(committed, ordered, left, await self._arrived(expected, before))

    async def _lived(self) -> bool:
        """Run one relay; whether another may get further."""
        self._lives += 1
        struck = len(self._faults.struck)
        life = self._faults.life
        relay = self._make_relay(self._faults.store(self._store), self._faults.publisher(self._publisher))
        report = await _live(relay, life)
        if report is not None and len(self._faults.struck) == struck and not (report.delivered or report.retried):
            await asyncio.sleep(0.01)
            return bool(await self._messages({"failed", "later"}))
        return (await self._store.left()).pending > 0

    async def _messages(self, states: Iterable[State]) -> list[Message]:
        found = [entry for state in states for entry in await self._store.entries(Query(state=state, limit=MOST))]
        return [entry.message for entry in sorted(found, key=lambda entry: entry.message.position)]

    async def _ids(self) -> list[str]:
        ids = self._received()
        return list(await ids if inspect.isawaitable(ids) else ids)

    async def _arrived(self, expected: set[str], before: int) -> list[str]:
        """What has arrived since, once all of these have, or nothing more comes for a while."""
        end = time.monotonic() + 1.0
        ids = (await self._ids())[before:]
        while not expected.issubset(ids) and time.monotonic() < end:
            await asyncio.sleep(0.02)
            ids = (await self._ids())[before:]
        return ids

    def _compare(
        self, committed: Sequence[Message], ordered: Sequence[Message], left: set[str], arrived: Sequence[str]
    ) -> Survival:
        first = {id: place for place, id in reversed(list(enumerate(arrived)))}
        known = {message.id for message in committed}
        return Survival(
            seed=self._faults.schedule.seed if self._faults.schedule else None,
            committed=len(committed),
            delivered=len(known & first.keys()),
            lost=[message.id for message in committed if message.id not in first and message.id not in left],
            phantom=[id for id in first if id not in known],
            reordered=_late(ordered, first),
            duplicates=len(arrived) - len(first),
            left=len(left & known),
            lives=self._lives,
            faults=list(self._faults.struck),
        )


async def _live(relay: Relay, life: Life) -> Report | None:
    """What a relay did, or None if it crashed, or gave up on a database that did not answer."""
    drain = asyncio.ensure_future(relay.drain())
    crash = asyncio.ensure_future(life.crashed.wait())
    await asyncio.wait({drain, crash}, return_when=asyncio.FIRST_COMPLETED)
    crash.cancel()
    if life.is_over:
        drain.cancel()
        with suppress(Crashed, asyncio.CancelledError):
            await drain
        return None
    try:
        return await drain
    except StoreUnavailable:
        return None


def _late(ordered: Sequence[Message], first: dict[str, int]) -> list[str]:
    late: list[str] = []
    furthest: dict[Hashable, int] = {}
    for message in ordered:
        lane, place = (message.topic, message.key), first.get(message.id)
        if message.key is None or place is None:
            continue
        if place < furthest.get(lane, -1):
            late.append(message.id)
        furthest[lane] = max(furthest.get(lane, -1), place)
    return late


def _publisher_of(given: Any) -> Publisher:
    if isinstance(given, str):
        return registry.load(registry.PUBLISHERS, registry.scheme_of(given))(given)
    return given if hasattr(given, "publish") and hasattr(given, "features") else CallablePublisher(given)


def _relay_of(outbox: Outbox) -> MakeRelay:
    return lambda store, publisher: Relay(
        store, publisher, outbox=outbox, lease_ttl="300ms", batch_size=10, retry="immediate"
    )
