"""Opening and closing."""

from __future__ import annotations

import pytest

from ...errors import ConfigurationError
from ...ports import (
    Store,
)
from .kit import (
    StoreFixtures,
    fetch_all,
    ids,
    messages,
)


class OpeningContract(StoreFixtures):
    async def test_opening_twice_changes_nothing_and_the_last_close_counts(self, store: Store) -> None:
        rows = await self.written(store, *messages(2))
        await store.open()
        assert ids(await fetch_all(store)) == ids(rows)
        await store.close()
        assert ids(await fetch_all(store)) == ids(rows)

    async def test_messages_are_still_there_after_closing_and_opening(self, store: Store) -> None:
        rows = await self.written(store, *messages(2))
        await store.close()
        await store.open()
        assert ids(await fetch_all(store)) == ids(rows)

    async def test_a_second_store_on_the_same_database_sees_the_same_messages(
        self, store: Store, another: Store
    ) -> None:
        rows = await self.written(store, *messages(2))
        assert ids(await fetch_all(another)) == ids(rows)

    async def test_the_first_relay_sets_the_claim(self, store: Store) -> None:
        await store.open(claim="slots")
        await store.close()
        await store.open(claim="slots")
        await store.close()
        assert (await store.status()).meta.claim == "slots"

    async def test_a_relay_with_another_claim_is_refused(self, store: Store, another: Store) -> None:
        await store.open(claim="slots")
        await store.close()
        with pytest.raises(ConfigurationError):
            await another.open(claim="leader")

    async def test_opening_without_a_claim_takes_any(self, store: Store, another: Store) -> None:
        await store.open(claim="leader")
        await store.close()
        await another.open()
        await another.close()
        assert (await another.status()).meta.claim == "leader"

    async def test_the_name_and_the_number_of_workers_are_told(self, store: Store) -> None:
        assert store.name == (await store.status()).outbox
        assert store.workers >= 1
