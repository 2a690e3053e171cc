"""What becomes of messages that were answered."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from ...message import REVIVED_HEADER
from ...ports import (
    Dead,
    Query,
    Refund,
    Retry,
    Settled,
    Settlement,
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
    gate_of,
    head_of,
    hold_on,
    ids,
    message,
    messages,
    own,
    read_parked,
    retry,
    state_of,
    status_of_hold,
    topic_gate_of,
)


class SettleContract(StoreFixtures):
    async def test_an_empty_settlement_does_nothing(self, store: Store) -> None:
        await self.insert(store, messages(1))
        assert await store.settle(Settlement(relay="relay-1", epochs={})) == Settled()
        assert len(await fetch_all(store)) == 1

    # --- delivered: it is gone from the outbox, and kept in the archive if so wished

    async def test_a_delivered_message_is_gone(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, *messages(3))
        assert await owner.deliver(*rows[:2]) == Settled()
        assert await fetch_all(store) == rows[2:]
        assert await store.entry(rows[0].id) is None

    async def test_with_a_retention_a_delivered_message_is_archived(self, store: Store, clock: FakeClock) -> None:
        owner = await own(store)
        rows = await self.written(store, *messages(2, payload=b"kept"))
        clock.advance(3)
        await owner.deliver(rows[0], retention=60)
        assert await fetch_all(store) == rows[1:]
        entry = await store.entry(rows[0].id)
        assert entry is not None
        assert (entry.state, entry.message.payload, entry.settled_at) == ("delivered", b"kept", clock.now())
        assert entry.message.created_at == rows[0].created_at

    async def test_delivering_what_is_gone_already_is_tolerated(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, *messages(3))
        await owner.deliver(rows[0], retention=60)
        assert await owner.deliver(*rows, retention=60) == Settled()
        assert await fetch_all(store) == []
        assert len(await store.entries(Query(state="delivered"))) == 3

    async def test_a_delivered_message_is_found_among_the_parked(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.held(store, owner, waiting=2)
        await owner.settle(parked=behind_gate(gate_of(rows[0]), rows[1:]))
        await owner.deliver(rows[1], retention=60)
        assert await read_parked(store, gate_of(rows[0])) == rows[2:]
        assert await state_of(store, rows[1]) == "delivered"

    async def test_a_delivered_message_is_found_among_the_dead(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner, waiting=0)
        await owner.deliver(rows[0], retention=60)
        assert await state_of(store, rows[0]) == "delivered"
        assert await store.entries(Query(state="dead")) == []
        assert await hold_on(store, rows[0]) is None

    async def test_delivering_the_head_ends_its_hold(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.held(store, owner, waiting=2)
        await owner.deliver(rows[0])
        assert await hold_on(store, rows[0]) is None
        assert ids(await fetch_all(store)) == ids(rows[1:])

    async def test_delivering_the_head_lets_out_what_is_parked_behind_it(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.held(store, owner, waiting=2)
        await owner.settle(parked=behind_gate(gate_of(rows[0]), rows[1:]))
        await owner.deliver(rows[0])
        assert await status_of_hold(store, rows[0]) == "releasing"
        assert ids(await read_parked(store, gate_of(rows[0]))) == ids(rows[1:])

    async def test_delivering_the_head_ends_the_hold_also_if_its_row_is_gone(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.held(store, owner, waiting=0)
        await self.remove(store, rows[0])
        await owner.deliver(rows[0])
        assert await hold_on(store, rows[0]) is None

    async def test_delivering_another_message_of_the_key_leaves_the_hold(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.held(store, owner, waiting=1)
        await owner.deliver(rows[1])
        assert await status_of_hold(store, rows[0]) == "retry"

    # --- retries: the key is held, or without a key the message waits by itself

    async def test_a_retry_keeps_the_row_and_holds_its_key(self, store: Store, clock: FakeClock) -> None:
        owner = await own(store)
        rows = await self.written(store, *messages(2))
        clock.advance(1)
        await owner.settle(retries=[Retry(rows[0], 2, 30.0, "bad request")])
        hold = await hold_on(store, rows[0])
        assert hold is not None
        assert (hold.slot, hold.topic, hold.key) == (rows[0].slot, TOPIC, "a")
        assert (hold.message_id, hold.position) == (rows[0].id, rows[0].position)
        assert (hold.attempts, hold.status, hold.error) == (2, "retry", "bad request")
        assert close(hold.due_in, 30)
        assert ids(await fetch_all(store)) == ids(rows)

    async def test_the_next_attempt_comes_nearer(self, store: Store, clock: FakeClock) -> None:
        owner = await own(store)
        rows = await self.held(store, owner)
        clock.advance(12)
        hold = await hold_on(store, rows[0])
        assert hold is not None
        assert close(hold.due_in, -2)

    async def test_the_attempts_of_a_message_are_read_with_it(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, *messages(2), message(None))
        await owner.settle(retries=[retry(rows[0], attempts=3), retry(rows[2], attempts=2, delay=0)])
        head = await head_of(store, rows[0])
        assert head == replace(rows[0], attempt=4)
        await store.due(ALL_SLOTS, MANY)
        assert {row.id: row.attempt for row in await fetch_all(store)} == {
            rows[0].id: 4,
            rows[1].id: 1,
            rows[2].id: 3,
        }

    async def test_a_second_retry_changes_the_hold(self, store: Store, clock: FakeClock) -> None:
        owner = await own(store)
        rows = await self.held(store, owner)
        first = await hold_on(store, rows[0])
        clock.advance(10)
        await owner.settle(retries=[retry(rows[0], attempts=2, delay=60, error="again")])
        hold = await hold_on(store, rows[0])
        assert hold is not None
        assert first is not None
        assert (hold.attempts, hold.error, hold.since) == (2, "again", first.since)
        assert close(hold.due_in, 60)

    async def test_a_parked_head_is_retried_where_it_is(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner, waiting=1)
        await store.revive([rows[0].id])
        await owner.settle(retries=[retry(rows[0], attempts=1)])
        assert await status_of_hold(store, rows[0]) == "retry"
        assert ids(await read_parked(store, gate_of(rows[0]))) == ids(rows)
        head = await head_of(store, rows[0])
        assert head is not None
        assert head.attempt == 2

    async def test_the_next_message_of_a_releasing_key_takes_over_the_hold(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner, waiting=2)
        await store.discard([rows[0].id])
        await owner.settle(retries=[retry(rows[1])])
        hold = await hold_on(store, rows[0])
        assert hold is not None
        assert (hold.status, hold.message_id, hold.position) == ("retry", rows[1].id, rows[1].position)

    async def test_a_retry_without_a_key_moves_to_later(self, store: Store, clock: FakeClock) -> None:
        owner = await own(store)
        rows = await self.written(store, *messages(2, key=None))
        await owner.settle(retries=[retry(rows[0], delay=10, error="bad request")])
        assert ids(await fetch_all(store)) == ids(rows[1:])
        assert await store.gates(ALL_SLOTS) == ([], [])
        entry = await store.entry(rows[0].id)
        assert entry is not None
        assert (entry.state, entry.attempts, entry.error) == ("failed", 1, "bad request")
        assert entry.due_at == clock.now() + timedelta(seconds=10)

    async def test_a_parked_message_without_a_key_is_retried_through_later(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, message(None))
        await owner.settle(parked=[(topic_gate_of(rows[0]), rows[0])])
        await owner.settle(retries=[retry(rows[0])])
        assert await store.gates(ALL_SLOTS) == ([], [])
        assert await state_of(store, rows[0]) == "failed"

    async def test_a_retry_of_a_row_that_is_gone_leaves_no_ghost(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, message(), message(None))
        await owner.deliver(*rows)
        assert await owner.settle(retries=[retry(row) for row in rows]) == Settled()
        assert await store.gates(ALL_SLOTS) == ([], [])
        assert await store.entries(Query()) == []

    # --- dead: out of the way, and the key waits for somebody or goes on

    async def test_a_dead_message_can_hold_its_key(self, store: Store, clock: FakeClock) -> None:
        owner = await own(store)
        rows = await self.written(store, *messages(2))
        clock.advance(5)
        await owner.settle(dead=[Dead(rows[0], 5, "attempts", "bad request", True, None)])
        assert ids(await fetch_all(store)) == ids(rows[1:])
        hold = await hold_on(store, rows[0])
        assert hold is not None
        assert (hold.status, hold.message_id, hold.position) == ("dead", rows[0].id, rows[0].position)
        assert (hold.due_in, hold.attempts, hold.error) == (None, 5, "bad request")
        entry = await store.entry(rows[0].id)
        assert entry is not None
        assert (entry.state, entry.attempts, entry.reason, entry.error) == ("dead", 5, "attempts", "bad request")
        assert entry.message.payload == rows[0].payload

    async def test_a_held_message_that_dies_keeps_its_key(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.held(store, owner)
        await owner.settle(dead=[dead(rows[0])])
        assert await status_of_hold(store, rows[0]) == "dead"
        assert ids(await fetch_all(store)) == ids(rows[1:])

    async def test_a_dead_message_can_let_its_key_go_on(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.held(store, owner, waiting=2)
        await owner.settle(dead=[dead(rows[0], holding=False)])
        assert await hold_on(store, rows[0]) is None
        assert ids(await fetch_all(store)) == ids(rows[1:])
        assert await state_of(store, rows[0]) == "dead"

    async def test_a_dead_message_that_lets_its_key_go_on_lets_out_what_is_parked(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.held(store, owner, waiting=2)
        await owner.settle(parked=behind_gate(gate_of(rows[0]), rows[1:]))
        await owner.settle(dead=[dead(rows[0], holding=False)])
        assert await status_of_hold(store, rows[0]) == "releasing"

    async def test_a_dead_message_without_a_key_holds_nothing(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, *messages(2, key=None))
        await owner.settle(dead=[dead(rows[0])])
        assert await store.gates(ALL_SLOTS) == ([], [])
        assert await state_of(store, rows[0]) == "dead"

    async def test_a_parked_message_can_die(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner, waiting=2)
        await store.discard([rows[0].id])
        await owner.settle(dead=[dead(rows[1])])
        assert ids(await read_parked(store, gate_of(rows[0]))) == ids(rows[2:])
        hold = await hold_on(store, rows[0])
        assert hold is not None
        assert (hold.status, hold.message_id) == ("dead", rows[1].id)

    async def test_the_death_of_a_row_that_is_gone_leaves_no_ghost(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, message(), message(None))
        await owner.deliver(*rows)
        assert await owner.settle(dead=[dead(row) for row in rows]) == Settled()
        assert await store.gates(ALL_SLOTS) == ([], [])
        assert await store.entries(Query()) == []

    async def test_a_message_dies_once(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, message())
        for _ in range(2):
            await owner.settle(dead=[dead(rows[0])])
        assert len(await store.entries(Query())) == 1

    # --- superseded: in the archive, whatever the retention

    async def test_a_superseded_message_is_archived_whatever_the_retention(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, *messages(3))
        await owner.settle(superseded=rows[:1], retention=None)
        await owner.settle(superseded=rows[1:2], retention=60)
        assert ids(await fetch_all(store)) == ids(rows[2:])
        assert [await state_of(store, row) for row in rows] == ["superseded", "superseded", "pending"]

    async def test_a_superseded_head_ends_its_hold(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.held(store, owner, waiting=1)
        await owner.settle(superseded=rows[:1])
        assert await hold_on(store, rows[0]) is None

    async def test_a_parked_message_can_be_superseded(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.held(store, owner, waiting=2)
        await owner.settle(parked=behind_gate(gate_of(rows[0]), rows[1:]))
        await owner.settle(superseded=rows[:2])
        assert ids(await read_parked(store, gate_of(rows[0]))) == ids(rows[2:])
        assert await status_of_hold(store, rows[0]) == "releasing"

    async def test_superseding_what_is_gone_archives_nothing(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, message())
        await owner.deliver(*rows)
        await owner.settle(superseded=rows)
        assert await store.entries(Query()) == []

    async def test_superseding_a_dead_message_leaves_it_dead_and_holding(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner, waiting=0)
        await owner.settle(superseded=rows)
        assert await state_of(store, rows[0]) == "dead"
        assert await status_of_hold(store, rows[0]) == "dead"

    # --- refunds: the destination was to blame

    async def test_a_refunded_hold_is_due_at_once(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.held(store, owner, waiting=1)
        await owner.settle(refunds=[Refund(rows[0], 0)])
        hold = await hold_on(store, rows[0])
        assert hold is not None
        assert (hold.status, hold.position, hold.attempts) == ("retry", rows[0].position, 0)
        assert close(hold.due_in, 0)
        assert await head_of(store, rows[0]) == rows[0]

    async def test_a_refunded_message_without_a_key_is_due_at_once(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, message(None))
        await owner.settle(retries=[retry(rows[0], attempts=3, delay=60)])
        await owner.settle(refunds=[Refund(rows[0], 2)])
        await store.due(ALL_SLOTS, MANY)
        (row,) = await fetch_all(store)
        assert (row.id, row.attempt) == (rows[0].id, 3)

    async def test_a_refunded_dead_message_is_due_at_its_old_position(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner, waiting=2)
        await owner.settle(refunds=[Refund(rows[0], 1)])
        assert await state_of(store, rows[0]) != "dead"
        hold = await hold_on(store, rows[0])
        assert hold is not None
        assert (hold.status, hold.position, hold.attempts) == ("retry", rows[0].position, 1)
        assert close(hold.due_in, 0)
        assert await head_of(store, rows[0]) == replace(rows[0], attempt=2)
        await owner.deliver(rows[0])
        assert ids(await read_parked(store, gate_of(rows[0]))) == ids(rows[1:])

    async def test_refunded_messages_that_let_their_key_go_on_go_last_in_their_order(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, *messages(4))
        await owner.settle(dead=[dead(row, holding=False) for row in rows[:2]])
        await owner.settle(retries=[retry(rows[2], attempts=1, delay=60)])
        await owner.settle(refunds=[Refund(row, 0) for row in rows[:3]])
        hold = await hold_on(store, rows[0])
        assert hold is not None
        assert (hold.status, hold.position) == ("retry", rows[2].position)
        found = await fetch_all(store)
        assert ids(found) == ids([*rows[2:], *rows[:2]])
        assert [REVIVED_HEADER in row.headers for row in found] == [False, False, True, True]
        assert {row.attempt for row in found} == {1}
        assert len(await store.entries(Query())) == 4

    async def test_a_message_that_died_and_is_refunded_in_one_settlement_is_due(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, *messages(1), *messages(1, key="other"))
        await owner.settle(
            dead=[dead(rows[0], holding=False), dead(rows[1], holding=True)], refunds=[Refund(row, 0) for row in rows]
        )
        assert ids(await fetch_all(store)) == ids(rows[:1])
        assert await status_of_hold(store, rows[1]) == "retry"
        assert await head_of(store, rows[1]) == rows[1]

    async def test_a_refunded_dead_message_leaves_the_key_to_a_later_one_that_died_and_holds_it(
        self, store: Store
    ) -> None:
        owner = await own(store)
        rows = await self.written(store, *messages(3))
        await owner.settle(dead=[dead(rows[0], holding=False)])
        await owner.settle(dead=[dead(rows[1], holding=True)])
        await owner.settle(refunds=[Refund(rows[0], 0)])
        hold = await hold_on(store, rows[1])
        assert hold is not None
        assert (hold.status, hold.position) == ("dead", rows[1].position)
        assert ids(await fetch_all(store)) == ids([rows[2], rows[0]])

    async def test_a_refunded_dead_message_without_a_key_is_due_at_once(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, message(None))
        await owner.settle(dead=[dead(rows[0])])
        await owner.settle(refunds=[Refund(rows[0], 0)])
        await store.due(ALL_SLOTS, MANY)
        (row,) = await fetch_all(store)
        assert (row.id, row.attempt) == (rows[0].id, 1)
        assert len(await store.entries(Query())) == 1

    async def test_a_refund_for_what_is_gone_does_nothing(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.held(store, owner, waiting=0)
        await owner.deliver(rows[0])
        await owner.settle(refunds=[Refund(rows[0], 0)])
        assert await store.gates(ALL_SLOTS) == ([], [])
        assert await store.entries(Query()) == []
