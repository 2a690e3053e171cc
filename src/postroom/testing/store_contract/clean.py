"""What is over, and goes."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ...ports import (
    Query,
    Store,
)
from ..clock import FakeClock
from .kit import (
    ALL_SLOTS,
    DAY,
    MANY,
    StoreFixtures,
    beat,
    behind_gate,
    dead,
    gate_of,
    ids,
    message,
    messages,
    observe,
    own,
    read_parked,
    retry,
    status_of_hold,
)


class CleanContract(StoreFixtures):
    async def clean_all(self, store: Store, retention: float | None) -> None:
        while await store.clean(retention=retention, limit=MANY):
            pass

    async def test_archived_messages_go_after_the_retention(self, store: Store, clock: FakeClock) -> None:
        owner = await own(store)
        rows = await self.written(store, *messages(2))
        await owner.deliver(rows[0], retention=60)
        clock.advance(40)
        await owner.deliver(rows[1], retention=60)
        await self.clean_all(store, 60)
        assert len(await store.entries(Query())) == 2
        clock.advance(30)
        await self.clean_all(store, 60)
        assert [entry.message.id for entry in await store.entries(Query())] == [rows[1].id]

    async def test_what_is_pending_is_counted_up_to_a_limit(self, store: Store) -> None:
        owner, rows = await own(store), await self.written(store, *messages(4, key="k"))
        await owner.settle(retries=[retry(rows[0])], parked=behind_gate(gate_of(rows[0]), rows[1:3]))
        assert await store.sample(MANY) == 4
        assert 3 <= await store.sample(3) <= 4

    async def test_cleaning_is_bounded(self, store: Store, clock: FakeClock) -> None:
        owner = await own(store)
        await owner.deliver(*await self.written(store, *messages(5)), retention=60)
        clock.advance(100)
        assert await store.clean(retention=60, limit=2) == 2
        assert len(await store.entries(Query())) == 3
        assert await store.clean(retention=60, limit=2) == 2
        assert await store.clean(retention=60, limit=2) == 1
        assert await store.clean(retention=60, limit=2) == 0

    async def test_superseded_and_discarded_messages_are_kept_for_seven_days(
        self, store: Store, clock: FakeClock
    ) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner, waiting=1)
        await store.discard([rows[0].id])
        await owner.settle(superseded=rows[1:])
        clock.advance(6 * DAY)
        await self.clean_all(store, 60)
        assert len(await store.entries(Query())) == 2
        clock.advance(2 * DAY)
        await self.clean_all(store, 60)
        assert await store.entries(Query()) == []

    async def test_superseded_and_discarded_messages_are_kept_for_a_longer_retention(
        self, store: Store, clock: FakeClock
    ) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner, waiting=1)
        await store.discard([rows[0].id])
        await owner.settle(superseded=rows[1:])
        clock.advance(29 * DAY)
        await self.clean_all(store, 30 * DAY)
        assert len(await store.entries(Query())) == 2

    @pytest.mark.parametrize("retention", [None, 1.0])
    async def test_an_undelivered_message_is_never_cleaned(
        self, store: Store, clock: FakeClock, retention: float | None
    ) -> None:
        owner = await own(store)
        await self.held(store, owner)
        await self.blocked(store, owner, key="b")
        rows = await self.written(store, *messages(2, key=None))
        await owner.settle(retries=[retry(rows[0])], dead=[dead(rows[1], holding=False)])
        await self.insert(store, [message("c", deliver_at=clock.now() + timedelta(days=1))])
        await self.insert(store, [message("d", expires_at=clock.now() + timedelta(days=1))])
        clock.advance(3650 * DAY)
        before = await observe(store)
        await self.clean_all(store, retention)
        assert await observe(store) == before
        assert len(before[0]) == 10

    async def test_relays_long_gone_are_forgotten(self, store: Store, clock: FakeClock) -> None:
        await store.renew(beat("relay-1", {}))
        clock.advance(60 * DAY)
        await store.renew(beat("relay-2", {}))
        await self.clean_all(store, None)
        assert [relay["id"] for relay in (await store.status()).relays] == ["relay-2"]

    @pytest.mark.parametrize("is_dead", [False, True])
    async def test_a_hold_whose_message_is_nowhere_holds_no_longer(self, store: Store, is_dead: bool) -> None:
        owner = await own(store)
        rows = await self.held(store, owner, waiting=0)
        if is_dead:
            await owner.settle(dead=[dead(rows[0])])
        await self.remove(store, rows[0])
        await self.clean_all(store, None)
        assert await status_of_hold(store, rows[0]) in (None, "releasing")

    async def test_what_is_parked_behind_a_message_that_is_nowhere_is_let_out(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner, waiting=2)
        await self.remove(store, rows[0])
        await self.clean_all(store, None)
        assert await status_of_hold(store, rows[0]) == "releasing"
        assert ids(await read_parked(store, gate_of(rows[0]))) == ids(rows[1:])

    async def test_a_hold_that_is_being_released_is_left_to_its_owner(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner, waiting=0)
        await store.discard([rows[0].id])
        await self.clean_all(store, None)
        assert [hold.key for hold in await store.releasing(ALL_SLOTS)] == ["a"]
