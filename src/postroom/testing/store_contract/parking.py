"""Rows behind a held key or a closed topic."""

from __future__ import annotations

from ...ports import (
    Gate,
    Settled,
    Store,
)
from .kit import (
    ALL_SLOTS,
    MANY,
    TOPIC,
    StoreFixtures,
    behind_gate,
    fetch_all,
    gate_of,
    hold_on,
    ids,
    keys_of_slot,
    message,
    messages,
    own,
    read_parked,
    retry,
    status_of_hold,
    topic_gate_of,
)


class ParkingContract(StoreFixtures):
    async def test_parked_rows_leave_the_hot_ones(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.held(store, owner, waiting=3)
        await owner.settle(parked=behind_gate(gate_of(rows[0]), rows[1:3]))
        assert ids(await fetch_all(store)) == ids([rows[0], rows[3]])
        assert await read_parked(store, gate_of(rows[0])) == rows[1:3]

    async def test_parked_rows_of_a_key_come_in_order_with_a_limit(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.held(store, owner, waiting=4)
        gate = gate_of(rows[0])
        for row in reversed(rows[1:]):
            await owner.settle(parked=[(gate, row)])
        assert ids(await store.fetch_parked(gate, 0, 2)) == ids(rows[1:3])
        assert ids(await store.fetch_parked(gate, rows[2].position, MANY)) == ids(rows[3:])

    async def test_rows_of_a_key_are_found_whatever_gate_they_were_parked_behind(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.held(store, owner, waiting=2)
        gate, topic_gate = gate_of(rows[0]), topic_gate_of(rows[0])
        await owner.settle(parked=[(topic_gate, rows[1]), (gate, rows[2])])
        assert ids(await read_parked(store, gate)) == ids(rows[1:])
        assert ids(await read_parked(store, topic_gate)) == ids(rows[1:2])

    async def test_a_topic_gate_gives_every_key_of_its_slot_and_topic(self, store: Store) -> None:
        one, other = keys_of_slot(7, 2)
        owner = await own(store)
        rows = await self.written(store, message(one), message(other), message(one), message(one, topic="mail"))
        gate = Gate(7, TOPIC, None)
        await owner.settle(parked=[*behind_gate(gate, rows[:3]), (Gate(7, "mail", None), rows[3])])
        assert ids(await read_parked(store, gate)) == ids(rows[:3])
        assert ids(await store.fetch_parked(gate, rows[0].position, 1)) == ids(rows[1:2])
        assert await read_parked(store, Gate(8, TOPIC, None)) == []

    async def test_a_message_without_a_key_can_be_parked_behind_its_topic(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, message(None))
        gate = topic_gate_of(rows[0])
        await owner.settle(parked=[(gate, rows[0])])
        assert await fetch_all(store) == []
        assert await read_parked(store, gate) == rows

    async def test_a_row_that_is_parked_already_changes_its_gate(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.held(store, owner, waiting=2)
        gate, topic_gate = gate_of(rows[0]), topic_gate_of(rows[0])
        await owner.settle(parked=behind_gate(topic_gate, rows[1:]))
        await owner.settle(parked=[(gate, rows[1])])
        assert ids(await read_parked(store, topic_gate)) == ids(rows[2:])
        assert ids(await read_parked(store, gate)) == ids(rows[1:])
        await owner.settle(parked=[(topic_gate, rows[1])])
        assert ids(await read_parked(store, topic_gate)) == ids(rows[1:])

    async def test_a_row_that_is_gone_is_not_parked(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.held(store, owner, waiting=2)
        await owner.deliver(rows[1])
        await owner.settle(parked=behind_gate(gate_of(rows[0]), rows[1:]))
        assert ids(await read_parked(store, gate_of(rows[0]))) == ids(rows[2:])

    async def test_a_new_owner_finds_what_was_parked_behind_a_hold_that_is_gone(self, store: Store) -> None:
        """A former owner's answer may remove the hold between two looks of the new one."""
        owner = await own(store)
        rows = await self.held(store, owner, waiting=2)
        await owner.deliver(rows[0])
        await owner.settle(parked=behind_gate(gate_of(rows[0]), rows[1:]))
        assert await status_of_hold(store, rows[0]) == "releasing"
        assert ids(await read_parked(store, gate_of(rows[0]))) == ids(rows[1:])

    async def test_a_new_owner_finds_what_was_parked_in_the_settlement_that_ends_the_hold(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.held(store, owner, waiting=2)
        await owner.settle(delivered=rows[:1], parked=behind_gate(gate_of(rows[0]), rows[1:]))
        assert await status_of_hold(store, rows[0]) == "releasing"

    async def test_rows_can_be_parked_behind_a_hold_of_the_same_settlement(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, *messages(3))
        await owner.settle(retries=[retry(rows[0])], parked=behind_gate(gate_of(rows[0]), rows[1:]))
        hold = await hold_on(store, rows[0])
        assert hold is not None
        assert (hold.status, hold.message_id) == ("retry", rows[0].id)

    async def test_gates_are_the_holds_and_the_topics_with_parked_rows(self, store: Store) -> None:
        one, other, third = (keys_of_slot(slot, 1)[0] for slot in (1, 2, 3))
        owner = await own(store)
        await self.held(store, owner, waiting=0, key=one)
        await self.held(store, owner, waiting=0, key=other)
        rows = await self.written(store, message(third), message(third))
        await owner.settle(parked=behind_gate(topic_gate_of(rows[0]), rows))
        holds, gates = await store.gates(ALL_SLOTS)
        assert sorted((hold.slot, hold.topic, hold.key) for hold in holds) == [(1, TOPIC, one), (2, TOPIC, other)]
        assert gates == [Gate(3, TOPIC, None)]
        holds, gates = await store.gates([1, 4])
        assert [hold.slot for hold in holds] == [1]
        assert gates == []
        await owner.deliver(*rows)
        assert (await store.gates([3])) == ([], [])

    async def test_a_gate_is_released_when_nothing_is_parked(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner, waiting=1)
        await store.discard([rows[0].id])
        await owner.deliver(rows[1])
        settled = await owner.settle(released=[gate_of(rows[0])])
        assert settled == Settled()
        assert await hold_on(store, rows[0]) is None

    async def test_a_gate_is_not_released_while_rows_of_it_are_parked(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner, waiting=1)
        await store.discard([rows[0].id])
        settled = await owner.settle(released=[gate_of(rows[0])])
        assert settled.still_parked == {gate_of(rows[0])}
        assert await status_of_hold(store, rows[0]) == "releasing"

    async def test_a_gate_is_not_released_while_rows_of_its_key_are_parked_behind_the_topic(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.held(store, owner, waiting=1)
        await owner.settle(parked=[(topic_gate_of(rows[1]), rows[1])])
        await owner.deliver(rows[0])
        settled = await owner.settle(released=[gate_of(rows[0])])
        assert settled.still_parked == {gate_of(rows[0])}

    async def test_a_row_parked_in_the_same_settlement_keeps_the_gate(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner, waiting=0)
        await store.discard([rows[0].id])
        rows += await self.written(store, message())
        settled = await owner.settle(parked=[(gate_of(rows[0]), rows[1])], released=[gate_of(rows[0])])
        assert settled.still_parked == {gate_of(rows[0])}
        assert await status_of_hold(store, rows[0]) == "releasing"

    async def test_releasing_a_gate_leaves_other_keys_held(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner, waiting=0)
        others = [
            *await self.held(store, owner, waiting=0, topic="mail"),
            *await self.held(store, owner, waiting=0, key="b"),
        ]
        await store.discard([rows[0].id])
        await owner.settle(released=[gate_of(rows[0])])
        assert [await status_of_hold(store, row) for row in others] == ["retry", "retry"]

    async def test_only_what_an_operator_released_is_releasing(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner, waiting=1)
        others = await self.blocked(store, owner, waiting=1, key="b")
        await self.held(store, owner, waiting=1, key="c")
        assert await store.releasing(ALL_SLOTS) == []
        await store.revive([rows[0].id])
        (hold,) = await store.releasing(ALL_SLOTS)
        assert (hold.slot, hold.topic, hold.key, hold.status) == (rows[0].slot, TOPIC, "a", "releasing")
        assert await store.releasing([others[0].slot]) == []
