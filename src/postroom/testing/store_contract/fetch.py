"""What is read of the hot rows, and a glance at whether there are any."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from ...message import SLOTS, slot_of
from ...ports import (
    NO_LIMIT,
    Range,
    Store,
)
from ..clock import FakeClock
from .kit import (
    ALL_SLOTS,
    MANY,
    TOPIC,
    StoreFixtures,
    behind_gate,
    close,
    dead,
    fetch_all,
    glance,
    ids,
    keys_of_slot,
    message,
    messages,
    own,
    topic_gate_of,
)


class FetchContract(StoreFixtures):
    async def test_a_message_is_read_as_it_was_written(self, store: Store, clock: FakeClock) -> None:
        written = message(
            payload=b"\x00\xff\x27", type="OrderPlaced", headers={"tenant": "ä'1", "empty": ""}, content_type="x/y"
        )
        written.expires_at = clock.now() + timedelta(hours=1)
        written.sequence, written.generation = 1, None
        (row,) = await self.written(store, written)
        assert (row.id, row.topic, row.key, row.type) == (written.id, TOPIC, "a", "OrderPlaced")
        assert (row.payload, row.content_type) == (b"\x00\xff\x27", "x/y")
        assert dict(row.headers) == {"tenant": "ä'1", "empty": ""}
        assert (row.expires_at, row.created_at) == (written.expires_at, clock.now())
        assert (row.sequence, row.attempt, row.replays) == (1, 1, 0)
        assert (row.slot, row.position > 0) == (slot_of("a", written.id), True)

    async def test_what_was_not_given_is_read_as_nothing(self, store: Store) -> None:
        (row,) = await self.written(store, message(key=None, payload=b""))
        assert (row.key, row.type, row.content_type, row.expires_at, row.sequence) == (None, None, None, None, None)
        assert (row.payload, dict(row.headers)) == (b"", {})
        assert row.slot == slot_of(None, row.id)

    async def test_rows_come_in_order_of_position_which_is_commit_order(self, store: Store) -> None:
        written = [message(key) for key in keys_of_slot(7, 3) * 3]
        for one in written:
            await self.insert(store, [one])
        fetched = await store.fetch([Range(7, 0, MANY)])
        assert ids(fetched.messages) == ids(written)
        positions = [row.position for row in fetched.messages]
        assert positions == sorted(set(positions))

    async def test_rows_of_one_transaction_keep_their_order(self, store: Store) -> None:
        written = messages(20)
        assert ids(await self.written(store, *written)) == ids(written)

    async def test_a_range_gives_at_most_its_limit_above_its_position(self, store: Store) -> None:
        rows = await self.written(store, *messages(5))
        slot = rows[0].slot
        assert ids((await store.fetch([Range(slot, 0, 2)])).messages) == ids(rows[:2])
        assert ids((await store.fetch([Range(slot, rows[1].position, 2)])).messages) == ids(rows[2:4])
        assert (await store.fetch([Range(slot, rows[4].position, 2)])).messages == []

    async def test_each_slot_has_its_own_range_in_one_call(self, store: Store) -> None:
        one, other, third = (keys_of_slot(slot, 1)[0] for slot in (1, 2, 3))
        rows = await self.written(store, *(message(key) for key in [one, other, third] * 3))
        fetched = await store.fetch([Range(1, 0, 2), Range(2, rows[1].position, MANY)])
        assert [row.id for row in fetched.messages if row.slot == 1] == ids([rows[0], rows[3]])
        assert [row.id for row in fetched.messages if row.slot == 2] == ids([rows[4], rows[7]])
        assert len(fetched.messages) == 4

    async def test_no_range_gives_no_rows(self, store: Store) -> None:
        await self.insert(store, messages(2))
        assert (await store.fetch([])).messages == []

    async def test_fetching_changes_nothing(self, store: Store) -> None:
        await self.insert(store, messages(3))
        assert await fetch_all(store) == await fetch_all(store)

    async def test_what_is_fetched_is_a_copy(self, store: Store) -> None:
        await self.insert(store, messages(1))
        (row,) = await fetch_all(store)
        row.epoch, row.attempt = 7, 9
        (again,) = await fetch_all(store)
        assert (again.epoch, again.attempt) == (0, 1)

    async def test_fetching_tells_the_database_time(self, store: Store, clock: FakeClock) -> None:
        clock.advance(1234)
        assert close(((await store.fetch([])).now - clock.now()).total_seconds(), 0)

    async def test_no_row_appears_at_or_below_the_horizon(self, store: Store) -> None:
        await self.insert(store, messages(1))
        fetched = await store.fetch([Range(slot, 0, MANY) for slot in ALL_SLOTS])
        rows = await self.written(store, message("b"))
        assert fetched.horizon == NO_LIMIT or fetched.horizon < rows[0].position

    async def test_a_position_is_never_used_again(self, store: Store) -> None:
        owner = await own(store)
        highest = 0
        for _ in range(3):
            rows = await self.written(store, *messages(2))
            assert min(row.position for row in rows) > highest
            highest = max(row.position for row in rows)
            await owner.deliver(*rows)
            await store.close()
            await store.open()

    async def test_a_message_that_is_not_due_is_not_hot(self, store: Store, clock: FakeClock) -> None:
        await self.insert(store, [message(deliver_at=clock.now() + timedelta(seconds=5))])
        clock.advance(10)
        assert await fetch_all(store) == []

    async def test_heads_are_found_hot_or_parked(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, *messages(3), message("b"))
        await owner.settle(parked=behind_gate(topic_gate_of(rows[0]), rows[:2]))
        heads = await store.fetch_heads([(row.slot, row.position) for row in [rows[3], rows[0], rows[2]]])
        assert sorted(ids(heads)) == sorted(ids([rows[0], rows[2], rows[3]]))
        assert {row.id: row for row in heads}[rows[0].id] == rows[0]

    async def test_heads_that_are_gone_are_left_out(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, *messages(3))
        await owner.deliver(rows[0])
        await owner.settle(dead=[dead(rows[1], holding=False)])
        assert ids(await store.fetch_heads([(row.slot, row.position) for row in rows])) == ids(rows[2:])
        assert await store.fetch_heads([]) == []


class GlanceContract(StoreFixtures):
    async def test_there_is_nothing_to_do_in_an_empty_outbox(self, store: Store) -> None:
        assert list(await glance(store)) == []
        assert list((await store.glance([])).seen) == []

    async def test_a_row_that_was_not_read_is_something_to_do(self, store: Store) -> None:
        (row,) = await self.written(store, *messages(1))
        assert list(await glance(store)) == [row.slot]
        assert list((await store.glance([Range((row.slot + 1) % SLOTS, 0, 1)])).seen) == []

    async def test_there_is_nothing_to_do_once_everything_was_read(self, store: Store) -> None:
        """Right after a read, there may be doubt about what others were writing; it must not last."""
        await self.written(store, *messages(2))
        rows = await fetch_all(store)
        read = [Range(slot, rows[-1].position, MANY, 0) for slot in ALL_SLOTS]
        async with asyncio.timeout(10):
            while any(await store.glance(read)):
                assert ids((await store.fetch(read)).messages) in ([], ids(rows))
                await asyncio.sleep(0.02)

    async def test_news_are_found_in_one_slot_right_after_another_was_read(self, store: Store) -> None:
        """A slot in which much happens must not hide what happens in others."""
        busy, quiet = slot_of("a", ""), slot_of("b", "")
        await self.insert(store, [message(key="a")])
        (row,) = (await store.fetch([Range(busy, 0, 1)])).messages
        await self.insert(store, [message(key="b")])
        assert quiet in (await store.glance([Range(busy, row.position, 1), Range(quiet, 0, 1)])).seen

    async def test_a_later_row_is_something_to_do_when_it_is_due(self, store: Store, clock: FakeClock) -> None:
        await self.insert(store, [message(deliver_at=clock.now() + timedelta(seconds=10))])
        assert list(await glance(store)) == []
        clock.advance(10)
        assert list(await glance(store)) == [slot_of("a", "")]

    async def test_a_revival_is_something_to_do_when_its_time_has_come(self, store: Store, clock: FakeClock) -> None:
        owner = await own(store)
        (row,) = await self.written(store, *messages(1))
        await owner.settle(dead=[dead(row, revive_after=10)])
        assert list(await glance(store)) == []
        clock.advance(10)
        assert list(await glance(store)) == [row.slot]

    async def test_a_hold_to_release_is_something_to_do(self, store: Store) -> None:
        owner = await own(store)
        (row,) = await self.written(store, *messages(1))
        await owner.settle(dead=[dead(row)])
        assert list(await glance(store)) == []
        await store.discard([row.id])
        assert list(await glance(store)) == [row.slot]
