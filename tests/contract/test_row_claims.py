"""`claim="rows"` on real servers, through the suite that ships with the package; and what only SQL can show."""

from __future__ import annotations

from typing import Any

from sqlalchemy import delete, func, select, update

from postroom.ports import Query, Range, Store
from postroom.stores.claim_floor import LAG
from postroom.testing import FakeClock
from postroom.testing.row_contract import RowStoreContract, claimant
from postroom.testing.store_contract.kit import ALL_SLOTS, behind_gate, dead, fetch_all, gate_of, ids, messages, own
from tests.contract.on_servers import (
    TABLES,
    OnMariadb,
    OnPostgresql15,
    OnPostgresql18,
    OnPostgresqlThroughPgbouncer,
    OnPostgresqlThroughPsycopg,
    OnServer,
)
from tests.contract.test_stores import row_of


class RowsOnServer(OnServer, RowStoreContract):
    async def test_a_row_that_is_locked_is_skipped(self, store: Store) -> None:
        sent = messages(3, None)
        await self.insert(store, sent)
        one, hot = await claimant(store), TABLES.hot
        with self.engine.begin() as connection:
            first = connection.execute(select(func.min(hot.c.position))).scalar_one()
            connection.execute(select(hot.c.position).where(hot.c.position == first).with_for_update())
            assert ids(await one.fetch(limit=2)) == ids(sent[1:])
        assert ids(await one.fetch(limit=2)) == [sent[0].id]

    async def test_a_claim_that_ran_out_is_skipped_while_it_is_locked(self, store: Store, clock: FakeClock) -> None:
        await self.insert(store, messages(2, None))
        one, other, claims = await claimant(store), await claimant(store, "relay-2"), TABLES.claims
        rows = await one.fetch()
        clock.advance(60)
        with self.engine.begin() as connection:
            locked = select(claims.c.position).where(claims.c.position == rows[0].position)
            connection.execute(locked.with_for_update())
            assert ids(await other.fetch()) == [rows[1].id]

    async def test_a_writer_that_has_not_committed_holds_up_nobody(self, store: Store, clock: FakeClock) -> None:
        one, hot = await claimant(store), TABLES.hot
        sent = messages(2, None)
        with self.engine.begin() as connection:
            connection.execute(self.insert_hot(), row_of(sent[0], clock.now()))
            await self.insert(store, sent[1:])
            assert ids(await one.fetch()) == [sent[1].id]
        assert ids(await one.fetch()) == [sent[0].id], "though its position is lower"
        with self.engine.begin() as connection:
            assert connection.execute(select(hot.c.position)).all() == []

    async def test_a_writer_that_takes_long_is_not_passed_by_for_good(self, store: Any, clock: FakeClock) -> None:
        """Though meanwhile nobody looks any more where there can be nothing."""
        store.ask_interval = 0.0
        one, [late] = await claimant(store), messages(1, None)
        with self.engine.begin() as connection:
            connection.execute(self.insert_hot(), row_of(late, clock.now()))
            for _ in range(5):
                await self.insert(store, messages(2, None))
                assert len(await one.fetch()) == 2
                clock.advance(LAG)
        assert one.rows._floor.position == 0  # type: ignore[attr-defined]
        assert ids(await one.fetch()) == [late.id]

    async def test_what_was_claimed_is_not_looked_at_again(self, store: Any, clock: FakeClock) -> None:
        store.ask_interval = 0.0
        one, positions = await claimant(store), [0]
        for _ in range(6):
            await self.insert(store, messages(2, None))
            positions += [row.position for row in await one.fetch()]
            clock.advance(LAG)
        assert one.rows._floor.position in positions[1:]  # type: ignore[attr-defined]

    async def test_rows_that_were_parked_or_held_are_sent_after_a_change_to_rows(self, store: Store) -> None:
        await store.open(claim="slots")
        owner, rows = await own(store), await self.written(store, *messages(4))
        await owner.settle(dead=[dead(rows[0])], parked=behind_gate(gate_of(rows[0]), rows[1:3]))
        await self.change_to(store, "rows")
        one = await claimant(store)
        assert ids(await one.fetch()) == ids(rows[1:])
        assert await store.revive([rows[0].id]) == 1
        assert ids(await one.fetch()) == [rows[0].id]
        assert await store.holds() == []

    async def test_rows_that_were_claimed_are_sent_in_order_after_a_change_to_slots(self, store: Store) -> None:
        await store.open(claim="rows")
        sent = messages(4)
        await self.insert(store, sent)
        await (await claimant(store)).fetch(limit=2)
        await self.change_to(store, "slots")
        assert ids(await fetch_all(store)) == ids(sent)
        assert len(await store.entries(Query(state="pending"))) == 4

    async def test_what_comes_back_from_claims_is_not_below_anybodys_mark(self, store: Store) -> None:
        await store.open(claim="rows")
        await self.insert(store, messages(2))
        await (await claimant(store)).fetch()
        with self.engine.begin() as connection:
            connection.execute(update(TABLES.leases).values(mark=1_000_000))  # of a time when slots were claimed
        await self.change_to(store, "slots")
        with self.engine.connect() as connection:
            assert connection.execute(select(func.max(TABLES.leases.c.mark))).scalar() == 0

    async def test_a_slot_is_fetched_though_rows_of_others_come_first(self, store: Store) -> None:
        sent = messages(50, None)
        await self.insert(store, sent)
        one = await claimant(store)
        rows = await one.rows.fetch([Range(slot, 0, 1) for slot in ALL_SLOTS[32:]], 5)
        assert rows.messages
        assert all(row.slot >= 32 for row in rows.messages)

    async def change_to(self, store: Store, claim: str) -> None:
        """As an operator does it, with all relays stopped."""
        with self.engine.begin() as connection:
            connection.execute(update(TABLES.meta).where(TABLES.meta.c.name == "claim").values(value=""))
            connection.execute(delete(TABLES.relays))
        await store.open(claim=claim)
        await store.close()
        await store.close()


class TestRowsOnPostgresql15(RowsOnServer, OnPostgresql15):
    pass


class TestRowsOnPostgresql18(RowsOnServer, OnPostgresql18):
    pass


class TestRowsThroughPsycopg(RowsOnServer, OnPostgresqlThroughPsycopg):
    pass


class TestRowsThroughPgbouncer(RowsOnServer, OnPostgresqlThroughPgbouncer):
    pass


class TestRowsOnMariadb(RowsOnServer, OnMariadb):
    pass
