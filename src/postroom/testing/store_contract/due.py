"""What comes due: later ones, and dead ones that rise again."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from ...message import REVIVED_HEADER, Message
from ...ports import (
    Store,
)
from ..clock import FakeClock
from .kit import (
    ALL_SLOTS,
    DAY,
    MANY,
    StoreFixtures,
    close,
    dead,
    fetch_all,
    gate_of,
    ids,
    keys_of_slot,
    message,
    messages,
    own,
    read_parked,
    retry,
    state_of,
    status_of_hold,
)


class DueContract(StoreFixtures):
    async def insert_later(
        self, store: Store, clock: FakeClock, *delays: float, key: str | None = "a"
    ) -> list[Message]:
        rows = [message(key, deliver_at=clock.now() + timedelta(seconds=delay)) for delay in delays]
        await self.insert(store, rows)
        return rows

    async def test_what_is_due_moves_to_the_hot_rows_earliest_first(self, store: Store, clock: FakeClock) -> None:
        later = await self.insert_later(store, clock, 30, 10, 20, 40)
        clock.advance(30)
        due = await store.due(ALL_SLOTS, MANY)
        assert due.moved == 3
        assert close(due.next_in, 10)
        assert ids(await fetch_all(store)) == ids([later[1], later[2], later[0]])

    async def test_due_times_are_compared_over_all_slots(self, store: Store, clock: FakeClock) -> None:
        (one,) = await self.insert_later(store, clock, 20, key=keys_of_slot(1, 1)[0])
        (other,) = await self.insert_later(store, clock, 10, key=keys_of_slot(2, 1)[0])
        clock.advance(30)
        await store.due(ALL_SLOTS, 1)
        assert ids(await fetch_all(store)) == [other.id]
        await store.due(ALL_SLOTS, 1)
        assert ids(await fetch_all(store)) == ids([other, one])

    async def test_rows_due_at_the_same_time_keep_their_order(self, store: Store, clock: FakeClock) -> None:
        later = await self.insert_later(store, clock, *[10] * 5)
        clock.advance(10)
        await store.due(ALL_SLOTS, MANY)
        assert ids(await fetch_all(store)) == ids(later)

    async def test_a_due_row_goes_to_the_end_of_its_key(self, store: Store, clock: FakeClock) -> None:
        later = await self.insert_later(store, clock, 10)
        rows = await self.written(store, *messages(2))
        clock.advance(10)
        await store.due(ALL_SLOTS, MANY)
        found = await fetch_all(store)
        assert ids(found) == ids([*rows, *later])
        assert found[2].position > rows[1].position
        assert (found[2].created_at, found[2].attempt) == (rows[0].created_at, 1)

    async def test_at_most_the_limit_is_moved_and_the_rest_is_due_at_once(self, store: Store, clock: FakeClock) -> None:
        later = await self.insert_later(store, clock, 10, 20, 30)
        clock.advance(60)
        due = await store.due(ALL_SLOTS, 2)
        assert due.moved == 2
        assert due.next_in is not None
        assert due.next_in <= 0
        assert ids(await fetch_all(store)) == ids(later[:2])
        due = await store.due(ALL_SLOTS, 2)
        assert (due.moved, due.next_in) == (1, None)

    async def test_only_the_given_slots_move(self, store: Store, clock: FakeClock) -> None:
        one, other = (keys_of_slot(slot, 1)[0] for slot in (1, 2))
        later = await self.insert_later(store, clock, 10, key=one)
        await self.insert_later(store, clock, 5, key=other)
        due = await store.due([1], MANY)
        assert due.moved == 0
        assert close(due.next_in, 10)
        clock.advance(10)
        assert (await store.due([1], MANY)) == (1, None)
        assert ids(await fetch_all(store)) == ids(later)
        assert (await store.due([], MANY)) == (0, None)

    async def test_nothing_waits_when_there_is_nothing(self, store: Store) -> None:
        await self.insert(store, messages(1))
        assert await store.due(ALL_SLOTS, MANY) == (0, None)

    async def test_a_row_is_never_moved_twice(self, store: Store, another: Store, clock: FakeClock) -> None:
        later = await self.insert_later(store, clock, *[10] * 20)
        clock.advance(10)
        one, other = await asyncio.gather(store.due(ALL_SLOTS, 15), another.due(ALL_SLOTS, 15))
        assert one.moved + other.moved == 20
        assert sorted(ids(await fetch_all(store))) == sorted(ids(later))
        assert (await store.due(ALL_SLOTS, MANY)) == (0, None)

    async def test_a_failed_message_without_a_key_comes_back_when_it_is_due(
        self, store: Store, clock: FakeClock
    ) -> None:
        owner = await own(store)
        rows = await self.written(store, message(None))
        await owner.settle(retries=[retry(rows[0], delay=10)])
        assert close((await store.due(ALL_SLOTS, MANY)).next_in, 10)
        clock.advance(10)
        assert (await store.due(ALL_SLOTS, MANY)).moved == 1
        (row,) = await fetch_all(store)
        assert (row.id, row.slot, row.attempt) == (rows[0].id, rows[0].slot, 2)
        assert row.position > rows[0].position
        assert await state_of(store, row) == "pending"

    async def test_a_dead_message_that_holds_its_key_revives_by_itself(self, store: Store, clock: FakeClock) -> None:
        owner = await own(store)
        rows = await self.written(store, *messages(2))
        await owner.settle(dead=[dead(rows[0], revive_after=60)])
        due = await store.due(ALL_SLOTS, MANY)
        assert due.moved == 0
        assert close(due.next_in, 60)
        assert await status_of_hold(store, rows[0]) == "dead"
        clock.advance(60)
        await store.due(ALL_SLOTS, MANY)
        assert await status_of_hold(store, rows[0]) == "releasing"
        (row,) = await read_parked(store, gate_of(rows[0]))
        assert (row.id, row.position, row.attempt) == (rows[0].id, rows[0].position, 1)
        assert (await store.due(ALL_SLOTS, MANY)) == (0, None)

    async def test_a_dead_message_that_holds_nothing_revives_by_itself_and_goes_last(
        self, store: Store, clock: FakeClock
    ) -> None:
        owner = await own(store)
        rows = await self.written(store, *messages(2))
        await owner.settle(dead=[dead(rows[0], holding=False, revive_after=60)])
        clock.advance(60)
        await store.due(ALL_SLOTS, MANY)
        found = await fetch_all(store)
        assert ids(found) == ids([rows[1], rows[0]])
        assert REVIVED_HEADER in found[1].headers

    async def test_a_dead_message_without_a_time_stays_dead(self, store: Store, clock: FakeClock) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner, waiting=0)
        clock.advance(1000 * DAY)
        assert await store.due(ALL_SLOTS, MANY) == (0, None)
        assert await state_of(store, rows[0]) == "dead"
