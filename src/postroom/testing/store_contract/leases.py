"""Who owns which slots, and who is alive."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from ...ports import (
    DESTINATIONS,
    Store,
)
from ..clock import FakeClock
from .kit import (
    ALL_SLOTS,
    DAY,
    MANY,
    StoreFixtures,
    beat,
    close,
    epochs_of,
    own,
)


class LeaseContract(StoreFixtures):
    async def test_every_slot_is_free_at_first(self, store: Store) -> None:
        leases = await store.renew(beat("relay-1", {}))
        assert sorted(leases.slots) == list(ALL_SLOTS)
        assert all(lease.owner is None and lease.expires_in <= 0 for lease in leases.slots.values())

    async def test_a_free_slot_can_be_taken(self, store: Store) -> None:
        taken = await store.acquire("relay-1", [3, 5], 15)
        assert sorted(taken) == [3, 5]
        assert all(lease.owner == "relay-1" and close(lease.expires_in, 15) for lease in taken.values())
        leases = (await store.renew(beat("relay-2", {}))).slots
        assert [slot for slot, lease in leases.items() if lease.owner] == [3, 5]
        assert epochs_of({3: leases[3], 5: leases[5]}) == epochs_of(taken)

    async def test_taking_no_slot_takes_none(self, store: Store) -> None:
        assert await store.acquire("relay-1", [], 15) == {}

    async def test_a_slot_with_an_owner_cannot_be_taken(self, store: Store) -> None:
        await store.acquire("relay-1", [3], 15)
        assert sorted(await store.acquire("relay-2", [3, 4], 15)) == [4]
        assert await store.acquire("relay-1", [3], 15) == {}

    async def test_two_relays_that_ask_at_once_never_both_get_a_slot(self, store: Store, another: Store) -> None:
        one, other = await asyncio.gather(
            store.acquire("relay-1", ALL_SLOTS, 15), another.acquire("relay-2", ALL_SLOTS, 15)
        )
        assert not set(one) & set(other)
        assert set(one) | set(other) == set(ALL_SLOTS)

    async def test_an_expired_lease_can_be_taken(self, store: Store, clock: FakeClock) -> None:
        await store.acquire("relay-1", [3], 15)
        clock.advance(14)
        assert await store.acquire("relay-2", [3], 15) == {}
        clock.advance(1)
        assert sorted(await store.acquire("relay-2", [3], 15)) == [3]

    async def test_the_next_owner_finds_the_notes_of_the_last(self, store: Store, clock: FakeClock) -> None:
        first = epochs_of(await store.acquire("relay-1", [3, 4], 15))
        long = "lön" * 40_000
        assert await store.write_notes("relay-1", first, {3: "three", 4: long}) == frozenset()
        clock.advance(15)
        taken = await store.acquire("relay-2", [3, 4, 5], 15)
        assert [taken[slot].notes for slot in (3, 4, 5)] == ["three", long, None]
        assert await store.write_notes("relay-2", epochs_of(taken), {3: None}) == frozenset()
        clock.advance(15)
        taken = await store.acquire("relay-3", [3, 4], 15)
        assert [taken[slot].notes for slot in (3, 4)] == [None, long]

    async def test_notes_are_the_owners_alone(self, store: Store, clock: FakeClock) -> None:
        old = epochs_of(await store.acquire("relay-1", [3], 15))
        clock.advance(15)
        new = epochs_of(await store.acquire("relay-2", [3, 4], 15))
        assert await store.write_notes("relay-1", {**old, 4: new[4]}, {3: "old", 4: "old", 5: "old"}) == {3, 4, 5}
        assert await store.write_notes("relay-2", new, {3: "new", 5: "new"}) == {5}
        assert await store.write_notes("relay-2", {3: old[3]}, {3: "old"}) == {3}
        clock.advance(15)
        taken = await store.acquire("relay-3", [3, 4, 5], 15)
        assert [taken[slot].notes for slot in (3, 4, 5)] == ["new", None, None]

    async def test_notes_stay_when_a_slot_is_given_back(self, store: Store) -> None:
        epochs = epochs_of(await store.acquire("relay-1", [3, 4], 15))
        await store.write_notes("relay-1", epochs, {3: "a", 4: "b"})
        await store.release("relay-1", epochs, {3: 7}, leave=False)
        taken = await store.acquire("relay-2", [3, 4], 15)
        assert [(lease.notes, lease.mark) for lease in taken.values()] == [("a", 7), ("b", 0)]

    async def test_each_ownership_has_an_epoch_above_all_before_it(self, store: Store, clock: FakeClock) -> None:
        highest = 0
        for turn in range(4):
            slots = [turn, 63]
            taken = await store.acquire(f"relay-{turn}", slots, 15)
            assert sorted(taken) == slots
            assert min(epochs_of(taken).values()) > highest
            highest = max(epochs_of(taken).values())
            await store.release(f"relay-{turn}", epochs_of(taken), {}, leave=turn % 2 == 0)
            clock.advance(1)

    async def test_epochs_go_on_when_everybody_has_left_and_the_store_was_closed(
        self, store: Store, clock: FakeClock
    ) -> None:
        owner = await own(store)
        await store.release("relay-1", owner.epochs, {}, leave=True)
        clock.advance(60 * DAY)
        await store.clean(retention=None, limit=MANY)
        await store.close()
        await store.open()
        again = await own(store)
        assert min(again.epochs.values()) > max(owner.epochs.values())

    async def test_the_same_relay_gets_a_new_epoch_for_a_new_ownership(self, store: Store, clock: FakeClock) -> None:
        before = await own(store, slots=[3])
        clock.advance(16)
        after = await own(store, slots=[3])
        assert after.epochs[3] > before.epochs[3]

    async def test_renewing_extends_the_lease(self, store: Store, clock: FakeClock) -> None:
        owner = await own(store, slots=[3])
        clock.advance(10)
        leases = await store.renew(beat("relay-1", owner.epochs))
        assert close(leases.slots[3].expires_in, 15)
        assert leases.slots[3].epoch == owner.epochs[3]
        clock.advance(10)
        assert await store.acquire("relay-2", [3], 15) == {}

    async def test_renewing_keeps_only_the_leases_that_are_named(self, store: Store, clock: FakeClock) -> None:
        owner = await own(store, slots=[3, 4])
        clock.advance(10)
        leases = (await store.renew(beat("relay-1", {3: owner.epochs[3]}))).slots
        assert close(leases[3].expires_in, 15)
        assert close(leases[4].expires_in, 5)

    async def test_an_expired_lease_can_be_renewed_while_nobody_took_it(self, store: Store, clock: FakeClock) -> None:
        owner = await own(store, slots=[3])
        clock.advance(100)
        lease = (await store.renew(beat("relay-1", owner.epochs))).slots[3]
        assert (lease.owner, lease.epoch) == ("relay-1", owner.epochs[3])
        assert close(lease.expires_in, 15)

    async def test_a_lease_that_was_taken_cannot_be_renewed(self, store: Store, clock: FakeClock) -> None:
        stale = await own(store, slots=[3])
        clock.advance(16)
        owner = await own(store, "relay-2", [3])
        clock.advance(5)
        lease = (await store.renew(beat("relay-1", stale.epochs, marks={3: 99}))).slots[3]
        assert (lease.owner, lease.epoch, lease.mark) == ("relay-2", owner.epochs[3], 0)
        assert close(lease.expires_in, 10)

    async def test_a_lease_of_a_former_epoch_cannot_be_renewed(self, store: Store, clock: FakeClock) -> None:
        stale = await own(store, slots=[3])
        clock.advance(16)
        await own(store, slots=[3])
        clock.advance(5)
        lease = (await store.renew(beat("relay-1", stale.epochs))).slots[3]
        assert close(lease.expires_in, 10)

    async def test_a_released_slot_can_be_taken_at_once(self, store: Store) -> None:
        owner = await own(store, slots=[3, 4])
        await store.release("relay-1", {3: owner.epochs[3]}, {}, leave=False)
        assert sorted(await store.acquire("relay-2", [3, 4], 15)) == [3]

    async def test_a_released_lease_cannot_be_renewed(self, store: Store) -> None:
        owner = await own(store, slots=[3])
        await store.release("relay-1", owner.epochs, {}, leave=False)
        lease = (await store.renew(beat("relay-1", owner.epochs))).slots[3]
        assert lease.owner is None
        assert lease.expires_in <= 0

    async def test_what_is_not_ours_any_more_cannot_be_released(self, store: Store, clock: FakeClock) -> None:
        stale = await own(store, slots=[3])
        clock.advance(16)
        await own(store, "relay-2", [3])
        await store.release("relay-1", stale.epochs, {3: 99}, leave=True)
        lease = (await store.renew(beat("relay-2", {}))).slots[3]
        assert (lease.owner, lease.mark) == ("relay-2", 0)
        assert await store.acquire("relay-3", [3], 15) == {}

    async def test_the_mark_of_a_renewal_is_there_for_the_next_owner(self, store: Store, clock: FakeClock) -> None:
        owner = await own(store, slots=[3, 4])
        leases = await store.renew(beat("relay-1", owner.epochs, marks={3: 42}))
        assert (leases.slots[3].mark, leases.slots[4].mark) == (42, 0)
        clock.advance(16)
        assert (await store.acquire("relay-2", [3], 15))[3].mark == 42

    async def test_a_renewal_without_a_mark_keeps_the_old_one(self, store: Store) -> None:
        owner = await own(store, slots=[3])
        await store.renew(beat("relay-1", owner.epochs, marks={3: 42}))
        assert (await store.renew(beat("relay-1", owner.epochs))).slots[3].mark == 42

    async def test_the_mark_of_a_release_is_there_for_the_next_owner(self, store: Store) -> None:
        owner = await own(store, slots=[3])
        await store.release("relay-1", owner.epochs, {3: 42}, leave=True)
        assert (await store.acquire("relay-2", [3], 15))[3].mark == 42

    async def test_every_relay_heard_of_within_its_own_ttl_is_alive(self, store: Store, clock: FakeClock) -> None:
        assert list((await store.renew(beat("relay-1", {}, ttl=10))).relays) == ["relay-1"]
        await store.renew(beat("relay-2", {}, ttl=100))
        clock.advance(11)
        assert sorted((await store.renew(beat("relay-3", {}, ttl=10))).relays) == ["relay-2", "relay-3"]
        assert sorted((await store.renew(beat("relay-1", {}, ttl=10))).relays) == ["relay-1", "relay-2", "relay-3"]

    async def test_a_relay_that_leaves_is_forgotten(self, store: Store) -> None:
        await store.renew(beat("relay-1", {}))
        await store.renew(beat("relay-2", {}))
        await store.release("relay-1", {}, {}, leave=True)
        assert list((await store.renew(beat("relay-2", {}))).relays) == ["relay-2"]

    async def test_a_relay_that_only_releases_stays(self, store: Store) -> None:
        await store.renew(beat("relay-1", {}))
        await store.release("relay-1", {}, {}, leave=False)
        assert sorted((await store.renew(beat("relay-2", {}))).relays) == ["relay-1", "relay-2"]

    async def test_a_slot_that_is_handed_over_is_kept_for_the_other_for_a_while(
        self, store: Store, clock: FakeClock
    ) -> None:
        epochs = epochs_of(await store.acquire("relay-1", [3, 4], 15))
        assert await store.hand_over("relay-1", 3, epochs[3], 7, "relay-2", 10)
        assert await store.hand_over("relay-1", 4, epochs[4], 8, "relay-2", 10)
        leases = (await store.renew(beat("relay-3", {}))).slots
        assert (leases[3].owner, leases[3].kept_for, close(leases[3].expires_in, 10)) == (None, "relay-2", True)
        assert await store.acquire("relay-1", [3, 4], 15) == {}
        assert await store.acquire("relay-3", [3, 4], 15) == {}
        taken = await store.acquire("relay-2", [3], 15)
        assert (taken[3].owner, taken[3].mark, taken[3].epoch > epochs[3]) == ("relay-2", 7, True)
        assert (await store.renew(beat("relay-3", {}))).slots[3].kept_for is None
        clock.advance(10)
        assert sorted(await store.acquire("relay-3", [3, 4], 15)) == [4]

    async def test_only_the_owner_can_hand_a_slot_over(self, store: Store, clock: FakeClock) -> None:
        old = epochs_of(await store.acquire("relay-1", [3], 15))
        clock.advance(15)
        new = epochs_of(await store.acquire("relay-2", [3], 15))
        assert not await store.hand_over("relay-1", 3, old[3], 7, "relay-3", 10)
        assert not await store.hand_over("relay-1", 3, new[3], 7, "relay-3", 10)
        assert (await store.renew(beat("relay-2", new))).slots[3].owner == "relay-2"

    async def test_relays_say_which_tasks_they_know(self, store: Store, clock: FakeClock) -> None:
        await store.renew(replace(beat("relay-1", {}), tasks=frozenset({"mail", "bill"}), ttl=15))
        await store.renew(replace(beat("relay-2", {}), tasks=frozenset({"mail", "lün"}), ttl=30))
        await store.renew(replace(beat("relay-3", {}), tasks=frozenset({DESTINATIONS}), ttl=30))
        assert await store.who_knows(DESTINATIONS) == ["relay-3"]
        assert await store.who_knows("mail") == ["relay-1", "relay-2"]
        assert await store.who_knows("lün") == ["relay-2"]
        assert await store.who_knows("mai") == []
        assert await store.who_knows() == ["relay-1", "relay-2"]
        clock.advance(20)
        assert await store.who_knows() == ["relay-2"]
        await store.renew(replace(beat("relay-2", {}), ttl=30))
        assert await store.who_knows() == []
