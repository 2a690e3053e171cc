"""What operators see."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from ...message import Message
from ...ports import (
    Beat,
    Left,
    Place,
    Query,
    State,
    Store,
)
from ..clock import FakeClock
from .kit import (
    MANY,
    TOPIC,
    StoreFixtures,
    beat,
    close,
    dead,
    gate_of,
    ids,
    message,
    messages,
    observe,
    own,
    retry,
    state_of,
    topic_gate_of,
)


class ReaderContract(StoreFixtures):
    async def one_of_each(self, store: Store, clock: FakeClock) -> dict[State, Message]:
        owner = await own(store)
        kinds: list[State] = ["pending", "failed", "dead", "delivered", "superseded", "discarded"]
        rows: dict[State, Message] = {}
        for kind in kinds:
            (rows[kind],) = await self.written(store, message(kind))
            clock.advance(1)
        await owner.settle(
            retries=[retry(rows["failed"])],
            dead=[dead(rows["dead"]), dead(rows["discarded"])],
            delivered=[rows["delivered"]],
            superseded=[rows["superseded"]],
            retention=60,
        )
        await store.discard([rows["discarded"].id])
        rows["later"] = message("later", deliver_at=clock.now() + timedelta(seconds=60))
        await self.insert(store, [rows["later"]])
        return rows

    async def test_an_empty_outbox_has_an_empty_status(self, store: Store) -> None:
        status = await store.status()
        assert not any(status.counts.values())
        assert status.oldest_pending_seconds is None
        assert (status.parked, status.holds, status.slots_owned) == (0, 0, 0)
        assert (list(status.relays), list(status.breakers)) == ([], [])
        assert status.meta.version >= status.meta.min_compatible > 0

    async def test_a_doctor_finds_no_problem_in_a_served_outbox(self, store: Store) -> None:
        await own(store)
        await store.renew(beat("relay-1", {}))
        await self.insert(store, messages(3))
        findings = await store.diagnose()
        assert [finding for finding in findings if finding.verdict == "problem"] == []
        assert all(finding.seen and (finding.remedy or finding.verdict == "ok") for finding in findings)
        assert len({finding.name for finding in findings}) == len(findings)

    async def test_a_doctor_finds_that_nobody_delivers(self, store: Store, clock: FakeClock) -> None:
        await own(store)
        await store.renew(beat("relay-1", {}))
        await self.insert(store, messages(3))
        clock.advance(60)
        problems = [finding for finding in await store.diagnose() if finding.verdict == "problem"]
        assert [(finding.name, bool(finding.remedy)) for finding in problems] == [("relays", True)]

    async def test_status_counts_each_state(self, store: Store, clock: FakeClock) -> None:
        rows = await self.one_of_each(store, clock)
        assert dict((await store.status()).counts) == dict.fromkeys(rows, 1)

    async def test_what_is_left_is_a_part_of_the_status(self, store: Store, clock: FakeClock) -> None:
        assert await store.left() == Left(0, 0)
        await self.one_of_each(store, clock)
        status = await store.status()
        counts = (status.counts[state] for state in ("pending", "failed", "later"))
        assert await store.left() == Left(sum(counts), status.holds)

    async def test_every_state_can_be_listed_and_shown(self, store: Store, clock: FakeClock) -> None:
        rows = await self.one_of_each(store, clock)
        for state, row in rows.items():
            assert [entry.message.id for entry in await store.entries(Query(state=state))] == [row.id]
            assert await state_of(store, row) == state

    async def test_entries_come_oldest_first_from_all_places(self, store: Store, clock: FakeClock) -> None:
        rows = await self.one_of_each(store, clock)
        assert [entry.message.id for entry in await store.entries(Query())] == ids(rows.values())

    async def test_entries_are_limited_and_skipped(self, store: Store, clock: FakeClock) -> None:
        rows = ids((await self.one_of_each(store, clock)).values())
        assert [entry.message.id for entry in await store.entries(Query(limit=2))] == rows[:2]
        assert [entry.message.id for entry in await store.entries(Query(limit=3, offset=2))] == rows[2:5]
        assert await store.entries(Query(offset=MANY)) == []

    async def test_entries_are_found_by_what_their_ids_begin_with(self, store: Store, clock: FakeClock) -> None:
        rows = await self.one_of_each(store, clock)
        for row in rows.values():
            found = await store.entries(Query(begins=row.id[:-1]))
            assert row.id in [entry.message.id for entry in found]
        assert await store.entries(Query(begins="_" * 8)) == []

    async def read_in_pages(self, store: Store, size: int) -> list[Place]:
        found: list[Place] = []
        after: Place | None = None
        while page := await store.entries(Query(limit=size, after=after)):
            after = page[-1].place
            found += [entry.place for entry in page]
        return found

    @pytest.mark.parametrize("size", [1, 2, 3])
    async def test_pages_follow_one_another(self, store: Store, clock: FakeClock, size: int) -> None:
        """Also of messages that were written at the same moment, in one place or in several."""
        await self.one_of_each(store, clock)
        await self.insert(store, messages(3))
        await self.insert(store, [message(deliver_at=clock.now() + timedelta(hours=1)) for _ in range(3)])
        whole = [entry.place for entry in await store.entries(Query(limit=MANY))]
        assert len(whole) == 13
        assert await self.read_in_pages(store, size) == whole

    async def test_a_tombstone_and_its_message_are_both_in_the_pages(self, store: Store) -> None:
        owner, [row] = await own(store), await self.written(store, message(key="k", sequence=1))
        await owner.settle(dead=[dead(row)])
        await store.discard([row.id])
        assert [(place.id, place.is_over) for place in await self.read_in_pages(store, 1)] == [
            (row.id, False),
            (row.id, True),
        ]

    async def test_a_page_begins_where_the_last_one_ended_whatever_went_meanwhile(self, store: Store) -> None:
        rows = await self.written(store, *messages(5))
        [first, second] = await store.entries(Query(limit=2))
        await (await own(store)).deliver(*rows[:3])
        left = await store.entries(Query(after=second.place))
        assert [entry.message.id for entry in left] == ids(rows[3:])
        assert first.place < second.place < left[0].place

    async def test_places_are_those_of_the_entries(self, store: Store, clock: FakeClock) -> None:
        await self.one_of_each(store, clock)
        for query in (Query(), Query(state="dead"), Query(limit=2, offset=1), Query(topic="nothing")):
            assert await store.places(query) == [entry.place for entry in await store.entries(query)]

    @pytest.mark.parametrize(
        ("query", "expected"),
        [
            (Query(topic="orders"), "ab"),
            (Query(topic="mail.*"), "cd"),
            (Query(topic="*r*"), "abc"),
            (Query(topic="ORDERS"), ""),
            (Query(topic="order_"), ""),
            (Query(topic="order?"), "ab"),
            (Query(key="k1"), "ac"),
            (Query(key="k*"), ""),
            (Query(type="Order*"), "ac"),
            (Query(topic="orders", key="k1", type="OrderPlaced"), "a"),
            (Query(older_than=15), "ab"),
            (Query(newer_than=15), "cd"),
            (Query(older_than=15, newer_than=25), "b"),
            (Query(state="pending", topic="mail.*"), "cd"),
            (Query(state="dead"), ""),
        ],
    )
    async def test_everything_in_a_query_must_match(
        self, store: Store, clock: FakeClock, query: Query, expected: str
    ) -> None:
        await self.insert(store, [message("k1", payload=b"a", type="OrderPlaced")])
        clock.advance(10)
        await self.insert(store, [message("k2", payload=b"b")])
        clock.advance(10)
        await self.insert(store, [message("k1", topic="mail.return", payload=b"c", type="OrderPaid")])
        await self.insert(store, [message(None, topic="mail.go", payload=b"d", type="Reminder")])
        clock.advance(10)
        found = await store.entries(query)
        assert b"".join(entry.message.payload for entry in found).decode() == expected

    async def test_an_unknown_message_is_shown_as_nothing(self, store: Store) -> None:
        assert await store.entry("nobody") is None

    async def test_a_message_that_is_sent_again_is_shown_as_pending(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, message())
        await owner.deliver(*rows, retention=60)
        await store.replay(ids(rows), new_id=False)
        assert await state_of(store, rows[0]) == "pending"

    async def test_an_entry_tells_about_its_key(self, store: Store, clock: FakeClock) -> None:
        owner = await own(store)
        rows = await self.held(store, owner, waiting=2)
        await owner.settle(parked=[(gate_of(rows[1]), rows[1])])
        await self.insert(store, [message("b")])
        entries = {entry.message.id: entry for entry in await store.entries(Query())}
        head, parked, hot = (entries[row.id] for row in rows)
        assert (head.state, head.attempts, head.error) == ("failed", 1, "refused")
        assert head.due_at == clock.now() + timedelta(seconds=10)
        assert (parked.state, parked.parked, parked.held) == ("pending", True, True)
        assert (hot.state, hot.parked, hot.held) == ("pending", False, True)
        assert [entry.held for entry in entries.values() if entry.message.key == "b"] == [False]

    async def test_a_message_that_is_not_due_tells_when(self, store: Store, clock: FakeClock) -> None:
        due_at = clock.now() + timedelta(seconds=90)
        later = message(deliver_at=due_at)
        await self.insert(store, [later])
        entry = await store.entry(later.id)
        assert entry is not None
        assert (entry.state, entry.due_at, entry.attempts) == ("later", due_at, 0)

    async def test_status_tells_the_age_of_the_oldest_pending_message(self, store: Store, clock: FakeClock) -> None:
        owner = await own(store)
        rows = await self.written(store, message("a"))
        clock.advance(30)
        await self.insert(store, [message("b")])
        clock.advance(5)
        assert close((await store.status()).oldest_pending_seconds, 35)
        await owner.settle(parked=[(topic_gate_of(rows[0]), rows[0])])
        assert close((await store.status()).oldest_pending_seconds, 35)
        await owner.deliver(rows[0])
        assert close((await store.status()).oldest_pending_seconds, 5)

    async def test_status_counts_parked_rows_and_holds(self, store: Store) -> None:
        owner = await own(store)
        await self.blocked(store, owner, waiting=2)
        await self.held(store, owner, key="b")
        status = await store.status()
        assert (status.parked, status.holds) == (2, 2)

    async def test_status_tells_of_relays_and_slots(self, store: Store, clock: FakeClock) -> None:
        owner = await own(store, slots=[1, 2, 3])
        await store.renew(
            Beat(
                relay="relay-1",
                host="here",
                pid=42,
                ttl=15,
                epochs=owner.epochs,
                marks={},
                in_flight=7,
                woken_by="doorbell",
            )
        )
        status = await store.status()
        (relay,) = status.relays
        assert (relay["id"], relay["host"], relay["pid"]) == ("relay-1", "here", 42)
        assert (relay["in_flight"], relay["woken_by"], status.slots_owned) == (7, "doorbell", 3)
        clock.advance(16)
        assert (await store.status()).slots_owned == 0

    async def test_holds_come_oldest_first_with_what_waits_behind_them(self, store: Store, clock: FakeClock) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner, waiting=2)
        await self.insert(store, [message()])
        clock.advance(1)
        await self.held(store, owner, waiting=1, key="b")
        clock.advance(1)
        await self.held(store, owner, waiting=0, key="c")
        holds = await store.holds()
        assert [(hold.key, hold.status, hold.waiting) for hold in holds] == [
            ("a", "dead", 3),
            ("b", "retry", 1),
            ("c", "retry", 0),
        ]
        assert holds[0].since == rows[0].created_at

    async def test_holds_can_be_chosen(self, store: Store, clock: FakeClock) -> None:
        owner = await own(store)
        for key, topic in [("a", "mail"), ("a", TOPIC), ("b", TOPIC)]:
            await self.held(store, owner, waiting=0, key=key, topic=topic)
            clock.advance(1)

        async def chosen(**choice: Any) -> list[tuple[str, str]]:
            return [(hold.topic, hold.key) for hold in await store.holds(**choice)]

        assert await chosen(topic=TOPIC) == [(TOPIC, "a"), (TOPIC, "b")]
        assert await chosen(key="a") == [("mail", "a"), (TOPIC, "a")]
        assert await chosen(topic=TOPIC, key="b") == [(TOPIC, "b")]
        assert await chosen(limit=1) == [("mail", "a")]

    async def test_reading_changes_nothing(self, store: Store, clock: FakeClock) -> None:
        await self.one_of_each(store, clock)
        before = await observe(store)
        await store.status()
        assert await observe(store) == before
