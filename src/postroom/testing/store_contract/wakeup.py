"""What wakes a relay."""

from __future__ import annotations

import asyncio

import pytest

from ...ports import (
    Store,
    Wakeup,
)
from .kit import (
    ALL_SLOTS,
    StoreFixtures,
    glance,
    messages,
)


class WakeupContract(StoreFixtures):
    async def fall_asleep(self, wakeup: Wakeup) -> None:
        """The first answers may still be about what went before."""
        await wakeup.doze(ALL_SLOTS)
        for _ in range(10):
            if not await wakeup.wait(0.02):
                return
        raise AssertionError("it wakes although nothing was committed")

    async def is_woken(self, store: Store, wakeup: Wakeup) -> bool:
        """By the bell, or where nobody rings by its own glance."""
        return bool(await wakeup.wait(10) if wakeup.rings else await glance(store))

    async def test_nothing_committed_lets_a_relay_sleep(self, store: Store) -> None:
        async with store.wakeup(0.01) as wakeup:
            await self.fall_asleep(wakeup)
            assert not await wakeup.wait(0.02)
            assert wakeup.name

    async def test_a_commit_before_the_wait_wakes(self, store: Store) -> None:
        async with store.wakeup(0.01) as wakeup:
            await self.fall_asleep(wakeup)
            (row,) = await self.written(store, *messages(1))
            if wakeup.rings:
                assert row.slot in await wakeup.wait(10)
            await self.fall_asleep(wakeup)

    async def test_a_commit_during_the_wait_wakes(self, store: Store) -> None:
        async with store.wakeup(0.01) as wakeup:
            await self.fall_asleep(wakeup)
            waiting = asyncio.create_task(self.is_woken(store, wakeup))
            await self.insert(store, messages(1))
            assert await waiting

    async def test_every_relay_is_woken_whose_slot_it_is(self, store: Store, another: Store) -> None:
        async with store.wakeup(0.01) as one, another.wakeup(0.01) as other:
            for wakeup in (one, other):
                await self.fall_asleep(wakeup)
            await self.insert(store, messages(1))
            assert await self.is_woken(store, one)
            assert await self.is_woken(another, other)

    async def test_a_wait_can_be_cancelled(self, store: Store) -> None:
        async with store.wakeup(0.01) as wakeup:
            await self.fall_asleep(wakeup)
            waiting = asyncio.create_task(wakeup.wait(10))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await self.insert(store, messages(1))
            assert await self.is_woken(store, wakeup)

    async def test_a_relay_that_was_roused_can_doze_again(self, store: Store) -> None:
        async with store.wakeup(0.01) as wakeup:
            await self.fall_asleep(wakeup)
            await wakeup.rouse(ALL_SLOTS)
            await self.insert(store, messages(1))
            await self.fall_asleep(wakeup)
            await self.insert(store, messages(1))
            assert await self.is_woken(store, wakeup)
