"""What operators do."""

from __future__ import annotations

from ...message import REVIVED_HEADER, TOMBSTONE_HEADER, slot_of
from ...ports import (
    Query,
    Store,
)
from .kit import (
    ALL_SLOTS,
    TOPIC,
    StoreFixtures,
    dead,
    fetch_all,
    gate_of,
    ids,
    message,
    messages,
    observe,
    own,
    read_parked,
    retry,
    state_of,
    status_of_hold,
)


class DeskContract(StoreFixtures):
    async def test_a_revived_message_that_holds_its_key_keeps_its_place(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner, waiting=2)
        assert await store.revive([rows[0].id]) == 1
        assert await status_of_hold(store, rows[0]) == "releasing"
        assert await read_parked(store, gate_of(rows[0])) == rows
        assert await state_of(store, rows[0]) == "pending"

    async def test_a_revived_message_that_holds_nothing_goes_last(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, message(headers={"tenant": "1"}), message(), message(None))
        await owner.settle(dead=[dead(rows[0], holding=False), dead(rows[2])])
        assert await store.revive([rows[0].id, rows[2].id]) == 2
        found = await fetch_all(store)
        assert found[0] == rows[1]
        assert sorted(ids(found[1:])) == sorted(ids([rows[0], rows[2]]))
        assert all(REVIVED_HEADER in row.headers and row.attempt == 1 for row in found[1:])
        assert all(row.position > rows[2].position for row in found[1:])
        assert {row.id: row for row in found}[rows[0].id].headers["tenant"] == "1"
        assert await store.gates(ALL_SLOTS) == ([], [])

    async def test_only_dead_messages_are_revived(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.held(store, owner)
        await owner.deliver(rows[1], retention=60)
        before = await observe(store)
        assert await store.revive([*ids(rows), "nobody"]) == 0
        assert await store.revive([]) == 0
        assert await observe(store) == before

    async def test_a_message_is_revived_once(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner)
        assert await store.revive([rows[0].id]) == 1
        assert await store.revive([rows[0].id]) == 0
        assert len(await store.entries(Query())) == 3

    async def test_a_discarded_message_is_archived_and_its_key_let_go(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner, waiting=2)
        assert await store.discard([rows[0].id]) == 1
        assert await state_of(store, rows[0]) == "discarded"
        assert await status_of_hold(store, rows[0]) == "releasing"
        assert ids(await read_parked(store, gate_of(rows[0]))) == ids(rows[1:])
        entry = await store.entry(rows[0].id)
        assert entry is not None
        assert entry.message.payload == rows[0].payload

    async def test_a_discarded_message_that_holds_nothing_touches_no_hold(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, *messages(2))
        await owner.settle(dead=[dead(rows[0], holding=False)])
        await owner.settle(retries=[retry(rows[1])])
        assert await store.discard([rows[0].id]) == 1
        assert await status_of_hold(store, rows[1]) == "retry"

    async def test_a_discarded_message_with_a_sequence_leaves_a_tombstone_in_its_place(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner, waiting=1, sequence=1, headers={"tenant": "1"}, type="OrderPlaced")
        assert await store.discard([rows[0].id]) == 1
        tombstone, behind = await read_parked(store, gate_of(rows[0]))
        assert (tombstone.id, tombstone.position) == (rows[0].id, rows[0].position)
        assert (tombstone.sequence, tombstone.generation) == (rows[0].sequence, rows[0].generation)
        assert (tombstone.payload, tombstone.attempt) == (b"", 1)
        assert TOMBSTONE_HEADER in tombstone.headers
        assert behind == rows[1]
        discarded = await store.entries(Query(state="discarded"))
        assert [(entry.message.id, entry.message.payload) for entry in discarded] == [(rows[0].id, b"{}")]

    async def test_only_dead_messages_are_discarded(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.held(store, owner)
        before = await observe(store)
        assert await store.discard([*ids(rows), "nobody"]) == 0
        assert await observe(store) == before

    async def test_a_replayed_message_is_sent_again_last_with_its_id(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, *messages(2, payload=b"again"))
        await owner.deliver(rows[0], retention=60)
        for times in (1, 2):
            assert await store.replay([rows[0].id], new_id=False) == 1
            found = await fetch_all(store)
            assert ids(found) == ids([rows[1], rows[0]])
            assert (found[1].replays, found[1].attempt, found[1].payload) == (times, 1, b"again")
            assert found[1].position > rows[1].position
            await owner.deliver(found[1], retention=60)

    async def test_a_message_replayed_under_a_new_id_is_a_new_one(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.written(store, message(type="OrderPlaced", headers={"tenant": "1"}), message(None))
        await owner.deliver(*rows, retention=60)
        assert await store.replay(ids(rows), new_id=True) == 2
        found = await fetch_all(store)
        assert not {row.id for row in found} & {row.id for row in rows}
        assert all((row.replays, row.slot) == (0, slot_of(row.key, row.id)) for row in found)
        (keyed,) = (row for row in found if row.key)
        assert (keyed.topic, keyed.type, dict(keyed.headers)) == (TOPIC, "OrderPlaced", {"tenant": "1"})

    async def test_only_delivered_messages_are_replayed(self, store: Store) -> None:
        owner = await own(store)
        rows = await self.blocked(store, owner)
        await store.discard([rows[0].id])
        await owner.settle(superseded=[rows[1]])
        before = await observe(store)
        assert await store.replay([*ids(rows), "nobody"], new_id=False) == 0
        assert await observe(store) == before
