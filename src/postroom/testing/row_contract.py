"""What a store with row locks must do for `claim="rows"`: `ports.RowStore`, sentence by sentence.

Run it beside the suite for every store, with the same four methods:

    class TestMyRows(MyFixtures, RowStoreContract):
        pass
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from ..message import SLOTS, Message
from ..ports import Gate, Leases, Query, Range, Refund, RowStore, Settled, Settlement, Store
from .clock import FakeClock
from .store_contract.kit import (
    ALL_SLOTS,
    MANY,
    StoreFixtures,
    beat,
    dead,
    epochs_of,
    ids,
    keys_of_slot,
    message,
    messages,
    retry,
    state_of,
    topic_gate_of,
)

TTL = 15.0
LONG = 3600.0
"""By then a row behind a closed topic may be taken by anybody."""


@dataclass(slots=True)
class Claimant:
    """A relay that claims rows, with what it was granted."""

    rows: RowStore
    relay: str
    epochs: dict[int, int]

    async def fetch(self, limit: int = MANY, slots: Sequence[int] = ALL_SLOTS) -> list[Message]:
        fetched = await self.rows.fetch([Range(slot, 0, MANY) for slot in slots], limit)
        return fetched.messages

    async def settle(self, **entries: Any) -> Settled:
        return await self.rows.settle(Settlement(relay=self.relay, epochs=self.epochs, **entries))

    async def deliver(self, *delivered: Message, retention: float | None = None) -> Settled:
        return await self.settle(delivered=list(delivered), retention=retention)

    async def renew(self, *, without: int | None = None) -> Leases:
        kept = {slot: epoch for slot, epoch in self.epochs.items() if slot != without}
        return await self.rows.renew(beat(self.relay, kept, ttl=TTL))

    async def release(self, slots: Sequence[int] = ALL_SLOTS, *, leave: bool = False) -> None:
        await self.rows.release(self.relay, {slot: self.epochs[slot] for slot in slots}, {}, leave)

    async def glance(self) -> set[int]:
        found = await self.rows.glance([Range(slot, 0, 1) for slot in ALL_SLOTS])
        return {*found.seen, *found.doubtful}


async def claimant(store: Store, relay: str = "relay-1") -> Claimant:
    rows = store.by_rows(relay)
    await rows.renew(beat(relay, {}, ttl=TTL))
    return Claimant(rows, relay, epochs_of(await rows.acquire(relay, ALL_SLOTS, TTL)))


def owned(leases: Leases, relay: str) -> set[int]:
    return {slot for slot, lease in leases.slots.items() if lease.owner == relay}


class ClaimingContract(StoreFixtures):
    async def test_every_slot_is_everybodys(self, store: Store, another: Store) -> None:
        one, other = await claimant(store), await claimant(another, "relay-2")
        for each in (one, other):
            leases = await each.renew()
            assert set(each.epochs) == owned(leases, each.relay) == set(ALL_SLOTS)
            assert leases.relays == [each.relay], "a fair share is everything"

    async def test_a_row_that_was_fetched_is_fetched_by_nobody_else(self, store: Store, another: Store) -> None:
        await self.insert(store, messages(3))
        one, other = await claimant(store), await claimant(another, "relay-2")
        assert len(await one.fetch()) == 3
        assert await one.fetch() == []
        assert await other.fetch() == []

    async def test_what_is_fetched_is_all_that_was_said(self, store: Store) -> None:
        sent = message("key", type="Placed", payload=b"\x00\xff", headers={"a": "b"}, content_type="x/y", sequence=7)
        await self.insert(store, [sent])
        [row] = await (await claimant(store)).fetch()
        for name in ("id", "topic", "key", "type", "payload", "headers", "content_type", "sequence"):
            assert getattr(row, name) == getattr(sent, name), name
        assert (row.attempt, row.replays) == (1, 0)

    async def test_a_fetch_takes_the_oldest_and_no_more_than_asked(self, store: Store) -> None:
        sent = messages(5, None)
        await self.insert(store, sent)
        one = await claimant(store)
        assert ids(await one.fetch(limit=2)) == ids(sent[:2])
        assert ids(await one.fetch(limit=2)) == ids(sent[2:4])

    async def test_only_rows_of_the_slots_that_were_asked_for_are_taken(self, store: Store) -> None:
        [here], [elsewhere] = keys_of_slot(3, 1), keys_of_slot(4, 1)
        sent = [message(elsewhere), message(here)]
        await self.insert(store, sent)
        one = await claimant(store)
        assert ids(await one.fetch(slots=[3])) == [sent[1].id]
        assert ids(await one.fetch(slots=[4])) == [sent[0].id]

    async def test_two_at_once_never_get_the_same_row_and_together_get_all(self, store: Store, another: Store) -> None:
        await self.insert(store, messages(60, None))
        claimants = [await claimant(store if n % 2 else another, f"relay-{n}") for n in range(4)]
        taken: list[str] = []
        while found := await asyncio.gather(*(each.fetch(limit=3) for each in claimants)):
            rows = [row.id for part in found for row in part]
            taken += rows
            if not rows:
                break
        assert len(taken) == len(set(taken)) == 60

    async def test_rows_of_a_fetch_that_was_cancelled_come_back(self, store: Store, clock: FakeClock) -> None:
        await self.insert(store, messages(3))
        one = await claimant(store)
        fetching = asyncio.create_task(one.fetch())
        await asyncio.sleep(0)
        fetching.cancel()
        await asyncio.gather(fetching, return_exceptions=True)
        await one.renew()
        clock.advance(TTL)
        assert len(await one.fetch()) == 3


class VisibilityContract(StoreFixtures):
    async def test_a_row_comes_back_when_its_claim_has_run_out(
        self, store: Store, another: Store, clock: FakeClock
    ) -> None:
        await self.insert(store, messages(2))
        one, other = await claimant(store), await claimant(another, "relay-2")
        rows = await one.fetch()
        clock.advance(TTL - 0.5)
        assert await other.fetch() == []
        clock.advance(0.5 + 1)
        assert [(row.id, row.position, row.attempt) for row in await other.fetch()] == [
            (row.id, row.position, 1) for row in rows
        ]

    async def test_a_renewal_keeps_what_was_fetched(self, store: Store, another: Store, clock: FakeClock) -> None:
        await self.insert(store, messages(2))
        one, other = await claimant(store), await claimant(another, "relay-2")
        await one.fetch()
        clock.advance(TTL - 1)
        assert owned(await one.renew(), one.relay) == set(ALL_SLOTS)
        clock.advance(TTL - 1)
        assert await other.fetch() == []

    async def test_a_renewal_denies_the_slots_of_rows_that_somebody_took(
        self, store: Store, another: Store, clock: FakeClock
    ) -> None:
        await self.insert(store, [message("a"), message("b")])
        one, other = await claimant(store), await claimant(another, "relay-2")
        rows = {row.key: row for row in await one.fetch()}
        clock.advance(TTL + 1)
        [lost] = await other.fetch(slots=[rows["a"].slot])
        assert owned(await one.renew(), one.relay) == set(ALL_SLOTS) - {lost.slot}
        assert owned(await one.renew(), one.relay) == set(ALL_SLOTS), "it is told once"

    async def test_what_was_settled_is_not_missed_by_the_next_renewal(self, store: Store) -> None:
        await self.insert(store, messages(2))
        one = await claimant(store)
        await one.deliver(*await one.fetch())
        assert owned(await one.renew(), one.relay) == set(ALL_SLOTS)

    async def test_rows_of_a_slot_that_was_lost_are_not_renewed(self, store: Store, clock: FakeClock) -> None:
        [here], [elsewhere] = keys_of_slot(3, 1), keys_of_slot(4, 1)
        sent = [message(here), message(elsewhere)]
        await self.insert(store, sent)
        one, other = await claimant(store), await claimant(store, "relay-2")
        await one.fetch()
        clock.advance(TTL - 1)
        await one.renew(without=3)
        await one.renew()
        clock.advance(2)
        assert ids(await other.fetch()) == [sent[0].id]

    async def test_rows_that_are_given_back_can_be_taken_at_once(self, store: Store, another: Store) -> None:
        [here], [elsewhere] = keys_of_slot(3, 1), keys_of_slot(4, 1)
        sent = [message(here), message(elsewhere)]
        await self.insert(store, sent)
        one, other = await claimant(store), await claimant(another, "relay-2")
        rows = await one.fetch()
        await one.release([3])
        assert [(row.id, row.position) for row in await other.fetch()] == [(sent[0].id, rows[0].position)]
        await one.release([4], leave=True)
        assert [relay["id"] for relay in (await store.status()).relays] == ["relay-2"]

    async def test_a_glance_tells_of_new_rows_and_of_claims_that_ran_out(self, store: Store, clock: FakeClock) -> None:
        one = await claimant(store)
        assert await one.glance() == set()
        await self.insert(store, messages(1))
        assert await one.glance() != set()
        [row] = await one.fetch()
        assert await one.glance() == set(), "it is being delivered"
        clock.advance(TTL)
        assert row.slot in await one.glance()
        assert ids(await one.fetch()) == [row.id]

    async def test_a_claim_of_somebody_else_is_known_of(self, store: Store) -> None:
        await self.insert(store, messages(2))
        one, other = await claimant(store), await claimant(store, "relay-2")
        await one.fetch(limit=1)
        assert not await one.rows.is_claimed_elsewhere()
        [row] = await other.fetch()
        assert await one.rows.is_claimed_elsewhere()
        await other.settle(parked=[(topic_gate_of(row), row)])
        assert not await one.rows.is_claimed_elsewhere(), "nobody delivers it now"

    async def test_one_of_the_relays_cleans(self, store: Store) -> None:
        one, other = await claimant(store), await claimant(store, "relay-2")
        for each in (one, other):
            await each.renew()
        assert (one.rows.is_first, other.rows.is_first) == (True, False)


class RowSettlingContract(StoreFixtures):
    async def lost(self, store: Store, clock: FakeClock, **fields: Any) -> tuple[Claimant, Claimant, Message]:
        """A message that was taken from the one, who does not know it, by the other."""
        await self.insert(store, [message(**fields)])
        one, other = await claimant(store), await claimant(store, "relay-2")
        [row] = await one.fetch()
        clock.advance(TTL + 1)
        assert ids(await other.fetch()) == [row.id]
        return one, other, row

    async def test_delivered_messages_are_gone(self, store: Store) -> None:
        sent = messages(3)
        await self.insert(store, sent)
        one = await claimant(store)
        rows = await one.fetch()
        assert await one.deliver(*rows[:2]) == Settled()
        assert [await state_of(store, each) for each in sent] == [None, None, "pending"]

    async def test_delivering_what_is_gone_is_tolerated(self, store: Store) -> None:
        await self.insert(store, messages(2))
        one = await claimant(store)
        rows = await one.fetch()
        await one.deliver(rows[0])
        assert await one.deliver(*rows) == Settled()
        assert await store.entries(Query()) == []

    async def test_delivered_messages_are_kept_for_the_retention_once(self, store: Store, clock: FakeClock) -> None:
        one, other, row = await self.lost(store, clock)
        await asyncio.gather(one.deliver(row, retention=60), other.deliver(row, retention=60))
        [entry] = await store.entries(Query())
        assert (entry.state, entry.message.position) == ("delivered", row.position)
        assert await store.replay([row.id], new_id=False) == 1
        [again] = await one.fetch()
        assert (again.id, again.replays) == (row.id, 1)

    async def test_a_row_that_somebody_took_is_gone_once_it_is_delivered(self, store: Store, clock: FakeClock) -> None:
        one, other, row = await self.lost(store, clock)
        await one.deliver(row)
        assert await state_of(store, row) is None
        await other.settle(retries=[retry(row)])
        await other.settle(dead=[dead(row)])
        assert await state_of(store, row) is None, "whoever comes too late does not bring it back"

    async def test_delivering_what_somebody_else_put_off_or_buried_removes_it(
        self, store: Store, clock: FakeClock
    ) -> None:
        for entries in ("retries", "dead"):
            one, other, row = await self.lost(store, clock)
            await other.settle(**{entries: [retry(row) if entries == "retries" else dead(row)]})
            await one.deliver(row)
            assert await state_of(store, row) is None

    async def test_a_retry_waits_in_later_with_or_without_a_key(self, store: Store, clock: FakeClock) -> None:
        sent = [message("a"), message(None)]
        await self.insert(store, sent)
        one = await claimant(store)
        await one.settle(retries=[retry(row, attempts=2, delay=10, error="no") for row in await one.fetch()])
        for each in sent:
            entry = await store.entry(each.id)
            assert entry is not None
            assert (entry.state, entry.attempts, entry.held, entry.error) == ("failed", 2, False, "no")
        assert (await one.rows.due(ALL_SLOTS, MANY)).moved == 0
        clock.advance(10)
        assert (await one.rows.due(ALL_SLOTS, MANY)).moved == 2
        assert {(row.id, row.attempt) for row in await one.fetch()} == {(each.id, 3) for each in sent}
        assert await one.rows.gates(ALL_SLOTS) == ([], [])

    async def test_a_failed_message_does_not_hold_its_key(self, store: Store) -> None:
        await self.insert(store, messages(2))
        one = await claimant(store)
        first, _ = await one.fetch()
        await one.settle(dead=[dead(first, holding=True)])
        await self.insert(store, messages(1))
        assert len(await one.fetch()) == 1
        assert (await store.holds(), (await store.status()).holds) == ([], 0)

    async def test_a_retry_of_a_row_that_somebody_took_has_no_effect(self, store: Store, clock: FakeClock) -> None:
        one, other, row = await self.lost(store, clock)
        assert await one.settle(retries=[retry(row)]) == Settled()
        assert (await state_of(store, row), (await store.status()).counts["failed"]) == ("pending", 0)
        clock.advance(TTL - 2)
        assert await one.fetch() == [], "it is still the other's"
        await other.settle(retries=[retry(row)])
        assert await state_of(store, row) == "failed"

    async def test_a_death_of_a_row_that_somebody_took_has_no_effect(self, store: Store, clock: FakeClock) -> None:
        one, _, row = await self.lost(store, clock)
        assert await one.settle(dead=[dead(row)], superseded=[row]) == Settled()
        assert await state_of(store, row) == "pending"

    async def test_a_claim_that_ran_out_counts_until_somebody_takes_the_row(
        self, store: Store, clock: FakeClock
    ) -> None:
        await self.insert(store, messages(1))
        one = await claimant(store)
        [row] = await one.fetch()
        clock.advance(2 * TTL)
        await one.settle(retries=[retry(row)])
        assert await state_of(store, row) == "failed"

    async def test_one_settlement_says_what_became_of_many(self, store: Store) -> None:
        sent = messages(4, None)
        await self.insert(store, sent)
        one = await claimant(store)
        delivered, failed, died, replaced = await one.fetch()
        await one.settle(delivered=[delivered], retries=[retry(failed)], dead=[dead(died)], superseded=[replaced])
        assert [await state_of(store, each) for each in sent] == [None, "failed", "dead", "superseded"]

    async def test_a_dead_message_can_be_revived_and_discarded(self, store: Store) -> None:
        await self.insert(store, [message("a"), message("a", sequence=1)])
        one = await claimant(store)
        first, second = await one.fetch()
        await one.settle(dead=[dead(first), dead(second)])
        assert await store.revive([first.id]) == 1
        assert [(row.id, row.attempt) for row in await one.fetch()] == [(first.id, 1)]
        assert await store.discard([second.id]) == 1
        assert ids(await one.fetch()) == [second.id], "a sequence leaves a tombstone"

    async def test_dead_messages_try_again_by_themselves(self, store: Store, clock: FakeClock) -> None:
        await self.insert(store, messages(1))
        one = await claimant(store)
        [row] = await one.fetch()
        await one.settle(dead=[dead(row, revive_after=5)])
        clock.advance(5)
        assert (await one.rows.due(ALL_SLOTS, MANY)).moved == 1
        assert ids(await one.fetch()) == [row.id]


class RefundContract(StoreFixtures):
    async def test_attempts_are_given_back(self, store: Store) -> None:
        await self.insert(store, [message("a"), message(None)])
        one = await claimant(store)
        for entries in ("retries", "dead"):
            rows = await one.fetch()
            failed = [retry(row, delay=LONG) if entries == "retries" else dead(row) for row in rows]
            await one.settle(**{entries: failed})
            await one.settle(refunds=[Refund(row, 0) for row in rows])
            await one.rows.due(ALL_SLOTS, MANY)
        assert [row.attempt for row in await one.fetch()] == [1, 1]

    async def test_a_dead_message_that_two_give_back_at_once_is_there_once(self, store: Store, another: Store) -> None:
        await self.insert(store, messages(1))
        one, other = await claimant(store), await claimant(another, "relay-2")
        [row] = await one.fetch()
        await one.settle(dead=[dead(row)])
        await asyncio.gather(*(each.settle(refunds=[Refund(row, 0)]) for each in (one, other)))
        assert len(await one.fetch()) + len(await other.fetch()) == 1


class ClosedTopicContract(StoreFixtures):
    async def parked(self, store: Store) -> tuple[Claimant, Gate, list[Message]]:
        await self.insert(store, messages(3))
        one = await claimant(store)
        rows = await one.fetch()
        gate = topic_gate_of(rows[0])
        await one.settle(parked=[(gate, row) for row in rows])
        return one, gate, rows

    async def test_rows_behind_a_closed_topic_are_kept_from_everybody_and_count_no_attempt(
        self, store: Store, clock: FakeClock
    ) -> None:
        one, gate, rows = await self.parked(store)
        other = await claimant(store, "relay-2")
        assert (await one.fetch(), await other.fetch()) == ([], [])
        assert await one.glance() == set()
        clock.advance(TTL + 1)
        assert (await one.fetch(), await other.fetch()) == ([], []), "not for one lease either"
        found = await one.rows.fetch_parked(gate, 0, 2)
        assert {(row.id, row.attempt) for row in found} < {(row.id, 1) for row in rows}
        assert len(await other.rows.fetch_parked(gate, 0, MANY)) == 1
        assert (await store.status()).counts["pending"] == 3

    async def test_a_new_relay_is_told_which_topics_have_rows_waiting(self, store: Store) -> None:
        one, gate, _ = await self.parked(store)
        assert await (await claimant(store, "relay-2")).rows.gates(ALL_SLOTS) == ([], [gate])
        assert await one.rows.gates([slot for slot in range(SLOTS) if slot != gate.slot]) == ([], [])
        await one.deliver(*await one.rows.fetch_parked(gate, 0, MANY))
        assert await one.rows.gates(ALL_SLOTS) == ([], [])

    async def test_topics_and_slots_are_told_apart(self, store: Store) -> None:
        await self.insert(store, [message("a", "one"), message("a", "two")])
        one = await claimant(store)
        await one.settle(parked=[(topic_gate_of(row), row) for row in await one.fetch()])
        [_, gate] = sorted((await one.rows.gates(ALL_SLOTS))[1])
        assert [row.topic for row in await one.rows.fetch_parked(gate, 0, MANY)] == ["two"]
        assert await one.rows.fetch_parked(gate._replace(slot=(gate.slot + 1) % SLOTS), 0, MANY) == []

    async def test_after_a_while_anybody_takes_them(self, store: Store, clock: FakeClock) -> None:
        await self.parked(store)
        other = await claimant(store, "relay-2")
        clock.advance(LONG)
        assert len(await other.fetch()) == 3

    async def test_a_row_that_somebody_took_is_not_parked(self, store: Store, clock: FakeClock) -> None:
        await self.insert(store, messages(1))
        one, other = await claimant(store), await claimant(store, "relay-2")
        [row] = await one.fetch()
        clock.advance(TTL + 1)
        await other.fetch()
        await one.settle(parked=[(topic_gate_of(row), row)])
        assert await one.rows.fetch_parked(topic_gate_of(row), 0, MANY) == []
        assert owned(await other.renew(), other.relay) == set(ALL_SLOTS)


class RowTendingContract(StoreFixtures):
    async def test_several_relays_move_what_is_due_once(self, store: Store, another: Store, clock: FakeClock) -> None:
        due = clock.now() + timedelta(seconds=5)
        await self.insert(store, messages(20, None, deliver_at=due))
        one, other = await claimant(store), await claimant(another, "relay-2")
        clock.advance(5)
        moved = await asyncio.gather(*(each.rows.due(ALL_SLOTS, 15) for each in (one, other, one, other)))
        assert sum(each.moved for each in moved) == 20
        taken = [*await one.fetch(), *await other.fetch()]
        assert len(set(ids(taken))) == len(taken) == 20

    async def test_a_claimed_message_is_pending_wherever_one_looks(self, store: Store, clock: FakeClock) -> None:
        sent = messages(2)
        await self.insert(store, sent)
        clock.advance(7)
        await (await claimant(store)).fetch()
        status = await store.status()
        assert (status.counts["pending"], status.oldest_pending_seconds) == (2, 7.0)
        assert ids(entry.message for entry in await store.entries(Query(state="pending"))) == ids(sent)
        assert await store.entries(Query(state="failed")) == []
        entry = await store.entry(sent[0].id)
        assert entry is not None
        assert (entry.state, entry.attempts) == ("pending", 0)

    async def test_cleaning_leaves_claimed_messages_alone(self, store: Store, clock: FakeClock) -> None:
        await self.insert(store, messages(2))
        one = await claimant(store)
        await one.fetch()
        clock.advance(365 * 86_400)
        await one.rows.clean(retention=1.0, limit=MANY)
        assert len(await one.fetch()) == 2


class RowStoreContract(
    ClaimingContract, VisibilityContract, RowSettlingContract, RefundContract, ClosedTopicContract, RowTendingContract
):
    pass
