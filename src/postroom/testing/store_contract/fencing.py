"""What a relay may not do any more once its slots are another's."""

from __future__ import annotations

from typing import Any

import pytest

from ...message import Message
from ...ports import (
    Refund,
    Settled,
    Store,
)
from ..clock import FakeClock
from .kit import (
    ALL_SLOTS,
    Owner,
    StoreFixtures,
    dead,
    fetch_all,
    gate_of,
    hold_on,
    ids,
    keys_of_slot,
    message,
    messages,
    observe,
    own,
    read_parked,
    retry,
    status_of_hold,
    topic_gate_of,
)


def fenced_entries(head: Message, parked: Message, hot: Message) -> dict[str, dict[str, Any]]:
    """One settlement per kind, each of which would change something."""
    return {
        "retries": {"retries": [retry(hot)]},
        "retries again": {"retries": [retry(head, attempts=2)]},
        "dead": {"dead": [dead(hot)]},
        "dead and go on": {"dead": [dead(hot, holding=False)]},
        "superseded": {"superseded": [hot]},
        "parked": {"parked": [(gate_of(head), hot)]},
        "parked elsewhere": {"parked": [(topic_gate_of(parked), parked)]},
        "refunds": {"refunds": [Refund(head, 0)]},
    }


FENCED = list(fenced_entries(message(), message(), message()))


class FencingContract(StoreFixtures):
    async def prepared(self, store: Store, owner: Owner) -> tuple[Message, Message, Message]:
        """A held head, a row parked behind it, a hot row behind that."""
        head, parked, hot = await self.held(store, owner, waiting=2)
        await owner.settle(parked=[(gate_of(head), parked)])
        return head, parked, hot

    async def check_refused(self, store: Store, stale: Owner, entries: dict[str, Any], slot: int) -> None:
        before = await observe(store)
        settled = await stale.settle(**entries)
        assert settled.refused == {slot}
        assert await observe(store) == before

    @pytest.mark.parametrize("kind", FENCED)
    async def test_each_kind_of_entry_is_done_for_the_owner(self, store: Store, kind: str) -> None:
        owner = await own(store)
        entries = fenced_entries(*await self.prepared(store, owner))[kind]
        before = await observe(store)
        assert (await owner.settle(**entries)).refused == frozenset()
        assert await observe(store) != before or kind == "parked elsewhere"

    @pytest.mark.parametrize("kind", FENCED)
    async def test_a_former_owner_is_refused(self, store: Store, clock: FakeClock, kind: str) -> None:
        stale = await own(store)
        rows = await self.prepared(store, stale)
        clock.advance(16)
        await own(store, "relay-2")
        await self.check_refused(store, stale, fenced_entries(*rows)[kind], rows[0].slot)

    @pytest.mark.parametrize("kind", FENCED)
    async def test_a_former_epoch_of_the_same_relay_is_refused(self, store: Store, clock: FakeClock, kind: str) -> None:
        stale = await own(store)
        rows = await self.prepared(store, stale)
        clock.advance(16)
        await own(store)
        await self.check_refused(store, stale, fenced_entries(*rows)[kind], rows[0].slot)

    @pytest.mark.parametrize("kind", FENCED)
    async def test_a_lease_that_was_given_back_is_refused(self, store: Store, kind: str) -> None:
        stale = await own(store)
        rows = await self.prepared(store, stale)
        await store.release("relay-1", stale.epochs, {}, leave=True)
        await self.check_refused(store, stale, fenced_entries(*rows)[kind], rows[0].slot)

    async def test_a_former_owner_cannot_release_a_gate(self, store: Store, clock: FakeClock) -> None:
        stale = await own(store)
        rows = await self.held(store, stale, waiting=0)
        clock.advance(16)
        await own(store, "relay-2")
        await self.check_refused(store, stale, {"released": [gate_of(rows[0])]}, rows[0].slot)

    async def test_a_former_owner_cannot_park_behind_a_key_that_is_not_held(
        self, store: Store, clock: FakeClock
    ) -> None:
        stale = await own(store)
        rows = await self.written(store, message())
        await stale.settle(parked=[(topic_gate_of(rows[0]), rows[0])])
        clock.advance(16)
        await own(store, "relay-2")
        await self.check_refused(store, stale, {"parked": [(gate_of(rows[0]), rows[0])]}, rows[0].slot)

    async def test_a_slot_without_an_epoch_is_refused(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, message())
        await self.check_refused(store, Owner(store, "relay-1", {}), {"retries": [retry(rows[0])]}, rows[0].slot)
        assert (await owner.settle(retries=[retry(rows[0])])).refused == frozenset()

    async def test_an_expired_lease_that_nobody_took_is_still_ours(self, store: Store, clock: FakeClock) -> None:
        owner = await own(store)
        rows = await self.written(store, message())
        clock.advance(100)
        assert (await owner.settle(retries=[retry(rows[0])])).refused == frozenset()
        assert await status_of_hold(store, rows[0]) == "retry"

    async def test_other_slots_of_the_same_settlement_are_done(self, store: Store) -> None:
        one, other = (keys_of_slot(slot, 1)[0] for slot in (1, 2))
        await own(store, "relay-2", [2])
        owner = await own(store, "relay-1", [1])
        rows = await self.written(store, *messages(3, key=one), *messages(3, key=other))
        both = Owner(store, "relay-1", {**owner.epochs, 2: owner.epochs[1]})
        mine, theirs = rows[:3], rows[3:]
        settled = await both.settle(
            retries=[retry(mine[0]), retry(theirs[0])],
            superseded=[mine[1], theirs[1]],
            parked=[(gate_of(mine[2]), mine[2]), (gate_of(theirs[2]), theirs[2])],
        )
        assert settled.refused == {2}
        assert await status_of_hold(store, mine[0]) == "retry"
        assert ids(await read_parked(store, gate_of(mine[0]))) == ids(mine[2:])
        assert await hold_on(store, theirs[0]) is None
        assert ids(await fetch_all(store)) == ids([mine[0], *theirs])

    async def test_delivered_is_not_fenced(self, store: Store, clock: FakeClock) -> None:
        stale = await own(store)
        rows = await self.held(store, stale, waiting=1)
        clock.advance(16)
        await own(store, "relay-2")
        assert await stale.deliver(rows[0]) == Settled()
        assert ids(await fetch_all(store)) == ids(rows[1:])
        assert await hold_on(store, rows[0]) is None

    async def test_delivered_is_done_beside_entries_that_are_refused(self, store: Store) -> None:
        rows = await self.written(store, *messages(2))
        stale = Owner(store, "relay-1", {})
        settled = await stale.settle(delivered=rows[:1], retries=[retry(rows[1])])
        assert settled.refused == {rows[0].slot}
        assert ids(await fetch_all(store)) == ids(rows[1:])
        assert await hold_on(store, rows[1]) is None

    async def test_a_stale_retry_after_delivery_leaves_no_hold(self, store: Store, clock: FakeClock) -> None:
        stale = await own(store)
        rows = await self.written(store, message())
        clock.advance(16)
        owner = await own(store, "relay-2")
        await owner.deliver(rows[0])
        await stale.settle(retries=[retry(rows[0])])
        assert await store.gates(ALL_SLOTS) == ([], [])
