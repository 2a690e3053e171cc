"""The port as a relay with `claim="rows"` sees it: every slot is its own, and so is each row that it has fetched."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from ..message import SLOTS, Message
from ..ports import NO_LIMIT, Beat, Fetched, Gate, Glance, Hold, Lease, Leases, Range, Settled, Settlement
from .claim_floor import Floor
from .sql import uninterrupted
from .sql_claims import Claim, Wanted
from .sql_settle import is_plain

if TYPE_CHECKING:
    from .sql_claiming import ClaimingStore

EXPIRY_INTERVAL = 1.0
"""Seconds between looks for claims that have run out, while there is enough else to do."""
SLOWEST_RELEASE = timedelta(seconds=5)
"""How long rows may be given back as of a moment ago."""
SLOW = 0.1
"""The part of `ttl` that taking rows may last: the margin by which a relay stops before its claims run out."""


class RowClaims:
    """It remembers which rows were fetched and are not settled. Only those are renewed: a row that was claimed by a
    statement whose answer was lost comes back by itself."""

    workers = 1

    def __init__(self, store: ClaimingStore, relay: str) -> None:
        self._store = store
        self._relay = relay
        self._ttl = 0.0
        self._claimed: dict[int, int] = {}
        """The slots of the rows that are ours, by position."""
        self._relays: Sequence[str] = ()
        self._floor = Floor()
        self._expiry_at = 0.0
        self._expired_to: datetime | None = None
        """What ran out by then was taken over."""

    # --- leases

    async def renew(self, beat: Beat) -> Leases:
        self._ttl = beat.ttl
        self._forget(slot for slot in range(SLOTS) if slot not in beat.epochs)
        ours = list(self._claimed)
        self._relays, kept = await self._store.renew_claims(beat, ours)
        # What was settled meanwhile is gone, and not lost.
        lost = {self._claimed.pop(position) for position in ours if position not in kept and position in self._claimed}
        return Leases(
            relays=[self._relay],
            slots={slot: self._lease(slot, None if slot in lost else beat.epochs.get(slot)) for slot in range(SLOTS)},
        )

    async def acquire(self, relay: str, slots: Sequence[int], ttl: float) -> Mapping[int, Lease]:
        self._ttl = ttl
        epoch = await self._store.next_epoch()
        return {slot: self._lease(slot, epoch) for slot in slots}

    async def release(self, relay: str, epochs: Mapping[int, int], marks: Mapping[int, int], leave: bool) -> None:
        self._forget(epochs)
        await self._store.give_back_claims(self._relay, sorted(epochs), leave)

    async def hand_over(self, relay: str, slot: int, epoch: int, mark: int, to: str, ttl: float) -> bool:
        return False  # it is everybody's already

    async def write_notes(
        self, relay: str, epochs: Mapping[int, int], notes: Mapping[int, str | None]
    ) -> frozenset[int]:
        """Everybody owns every slot, and no owner has a successor."""
        return frozenset()

    def _lease(self, slot: int, epoch: int | None) -> Lease:
        if epoch is None:
            return Lease(slot=slot, owner=None, epoch=0, expires_in=0.0, mark=0)
        return Lease(slot=slot, owner=self._relay, epoch=epoch, expires_in=self._ttl, mark=0)

    def _forget(self, slots: Iterable[int]) -> None:
        gone = set(slots)
        self._claimed = {position: slot for position, slot in self._claimed.items() if slot not in gone}

    # --- the flow

    async def fetch(self, ranges: Sequence[Range], limit: int | None = None) -> Fetched:
        if not ranges:
            return await self._store.fetch([])
        slots = [asked.slot for asked in ranges]
        most = sum(asked.limit for asked in ranges) if limit is None else limit
        began = time.monotonic()
        self._sweep()
        expired = await uninterrupted(self._take_expired(slots, most))
        wanted = Wanted(slots, most - len(expired), self._floor.position)
        fetched = await uninterrupted(self._store.claim_hot(self._claim, wanted))
        self._note(wanted, fetched)
        messages = await self._own([*expired, *fetched.messages], began)
        return Fetched(messages, NO_LIMIT, fetched.now)

    async def fetch_parked(self, gate: Gate, after: int, limit: int) -> list[Message]:
        began = time.monotonic()
        return await self._own(await uninterrupted(self._store.claim_parked(self._claim, gate, limit)), began)

    async def fetch_heads(self, heads: Sequence[tuple[int, int]]) -> list[Message]:
        return []

    @property
    def _claim(self) -> Claim:
        return Claim(self._relay, self._ttl)

    async def _take_expired(self, slots: Sequence[int], limit: int) -> list[Message]:
        now = self._store.monotonic()
        if now < self._expiry_at:
            return []
        self._expiry_at = now + EXPIRY_INTERVAL
        fetched = await self._store.claim_expired(self._claim, slots, limit, self._expired_to)
        if len(slots) >= SLOTS and len(fetched.messages) < limit:
            self._expired_to = fetched.now - SLOWEST_RELEASE
        return fetched.messages

    def _sweep(self) -> None:
        """Look everywhere once more, not only where something can be expected."""
        if self._floor.falls(self._store.monotonic()):
            self._expired_to = None

    def _note(self, wanted: Wanted, fetched: Fetched) -> None:
        """If it brought all that was asked for, there may be more above the last."""
        found = [message.position for message in fetched.messages]
        if len(wanted.slots) >= SLOTS and wanted.limit > 0:
            reached = found[-1] if len(found) >= wanted.limit else fetched.horizon
            self._floor.note(min(reached, fetched.horizon), self._store.monotonic())

    async def _own(self, messages: list[Message], began: float) -> list[Message]:
        """A renewal that overtook a slow statement has left these rows out, and granted more time than they have."""
        self._claimed |= {message.position: message.slot for message in messages}
        kept = {message.position for message in messages}
        if kept and time.monotonic() - began > SLOW * self._ttl:
            kept = await self._extend(kept)
        return sorted((message for message in messages if message.position in kept), key=_position)

    async def _extend(self, positions: set[int]) -> set[int]:
        kept: set[int] = set()
        try:
            kept = await self._store.extend_claims(self._claim, sorted(positions))
        finally:
            for position in positions - kept:
                self._claimed.pop(position, None)
        return kept

    async def settle(self, settlement: Settlement) -> Settled:
        for message in _concerned(settlement):
            self._claimed.pop(message.position, None)
        delivered = settlement.delivered
        if not is_plain(settlement) or await uninterrupted(self._store.delete_claims(delivered)) < len(delivered):
            # Also if some were not there: settling them again in full does the rest.
            await uninterrupted(self._store.settle_claims(settlement))
        return Settled()

    async def gates(self, slots: Sequence[int]) -> tuple[list[Hold], list[Gate]]:
        return [], await self._store.claim_gates(slots)

    async def releasing(self, slots: Sequence[int]) -> list[Hold]:
        return []

    async def glance(self, ranges: Sequence[Range]) -> Glance:
        slots = [asked.slot for asked in ranges]
        self._sweep()
        if slots and (news := await self._store.glance_at_hot(slots, self._floor.position)):
            return Glance(news)
        self._floor.note(0, self._store.monotonic())
        if slots and await self._store.has_expired_claims(self._expired_to):
            self._expiry_at = 0.0
            return Glance((), slots)
        return Glance(())

    @property
    def expects_stragglers(self) -> bool:
        return False  # a glance sees them

    async def is_claimed_elsewhere(self) -> bool:
        return await self._store.is_claimed_elsewhere(self._relay)

    @property
    def is_first(self) -> bool:
        return self._relay in self._relays[:1]

    def __getattr__(self, name: str) -> Any:
        """Everything else is as the store does it."""
        return getattr(self._store, name)


def _position(message: Message) -> int:
    return message.position


def _concerned(settlement: Settlement) -> Iterable[Message]:
    yield from settlement.delivered
    yield from settlement.superseded
    yield from (entry.message for entry in (*settlement.retries, *settlement.dead))
    yield from (message for _, message in settlement.parked)
