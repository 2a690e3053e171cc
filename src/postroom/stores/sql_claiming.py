"""What a store that can lock single rows does for `claim="rows"`: one short transaction per method."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import cast

from ..message import Message
from ..ports import Beat, Fetched, Gate, Range, RowStore, Settlement
from . import sql_claims
from .row_claims import RowClaims
from .sql import SqlStore
from .sql_claims import Claim, Wanted
from .sql_leases import next_epochs
from .sql_settle import positions_of
from .sql_transaction import Transaction


class ClaimingStore(SqlStore):
    def by_rows(self, relay: str) -> RowStore:
        return cast("RowStore", RowClaims(self, relay))

    @abstractmethod
    async def _look(self, ranges: Sequence[Range]) -> Collection[int]:
        """A glance at what is committed."""

    @abstractmethod
    async def claim_hot(self, claim: Claim, wanted: Wanted) -> Fetched:
        """Take rows that nobody has claimed, lowest positions first, and say how far no more can appear."""

    async def _claim_hot(self, claim: Claim, wanted: Wanted) -> Fetched:
        def work(transaction: Transaction) -> Fetched:
            return Fetched(sql_claims.take_hot(transaction, claim, wanted), 0, transaction.now)

        return await self._write(work)

    async def claim_expired(self, claim: Claim, slots: Sequence[int], limit: int, since: datetime | None) -> Fetched:
        return await self._write(sql_claims.take_expired, claim, slots, limit, since)

    async def claim_parked(self, claim: Claim, gate: Gate, limit: int) -> list[Message]:
        return await self._write(sql_claims.take_parked, claim, gate, limit)

    async def renew_claims(self, beat: Beat, positions: Sequence[int]) -> tuple[list[str], set[int]]:
        return await self._write(sql_claims.renew, beat, positions)

    async def extend_claims(self, claim: Claim, positions: Sequence[int]) -> set[int]:
        return await self._write(sql_claims.extend, claim, positions)

    async def give_back_claims(self, token: str, slots: Sequence[int], leave: bool) -> None:
        await self._write(sql_claims.give_back, token, slots, leave)

    async def glance_at_hot(self, slots: Sequence[int], after: int) -> Collection[int]:
        return await self._look([Range(slot, after, 1) for slot in slots])

    async def has_expired_claims(self, since: datetime | None) -> bool:
        return await self._read(sql_claims.has_expired, since)

    async def claim_gates(self, slots: Sequence[int]) -> list[Gate]:
        return await self._read(sql_claims.gates, slots)

    async def is_claimed_elsewhere(self, token: str) -> bool:
        return await self._read(sql_claims.is_claimed_elsewhere, token)

    async def delete_claims(self, messages: Sequence[Message]) -> int:
        return await self._write(sql_claims.delete_claims, positions_of(messages))

    async def settle_claims(self, settlement: Settlement) -> None:
        await self._write(sql_claims.settle, settlement)

    async def next_epoch(self) -> int:
        return await self._write(next_epochs, 1)

    def monotonic(self) -> float:
        return self._clock.monotonic() if self._clock else time.monotonic()
