"""Whose turn it is to probe, and good news."""

from __future__ import annotations

import asyncio

from ...ports import (
    Store,
)
from ..clock import FakeClock
from .kit import (
    StoreFixtures,
)


class BreakerContract(StoreFixtures):
    async def test_one_relay_at_a_time_may_probe(self, store: Store, clock: FakeClock) -> None:
        assert await store.take_probe("kafka", "relay-1", 10)
        assert not await store.take_probe("kafka", "relay-2", 10)
        clock.advance(11)
        assert await store.take_probe("kafka", "relay-2", 10)
        assert not await store.take_probe("kafka", "relay-1", 10)

    async def test_whose_turn_it_is_may_take_it_again(self, store: Store, clock: FakeClock) -> None:
        assert await store.take_probe("kafka", "relay-1", 10)
        clock.advance(5)
        assert await store.take_probe("kafka", "relay-1", 10)
        clock.advance(6)
        assert not await store.take_probe("kafka", "relay-2", 10)

    async def test_two_relays_that_ask_at_once_never_both_probe(self, store: Store, another: Store) -> None:
        turns = await asyncio.gather(
            store.take_probe("kafka", "relay-1", 10), another.take_probe("kafka", "relay-2", 10)
        )
        assert sorted(turns) == [False, True]

    async def test_each_destination_has_its_own_turn(self, store: Store) -> None:
        assert await store.take_probe("kafka", "relay-1", 10)
        assert await store.take_probe("mail", "relay-2", 10)

    async def test_a_success_ends_the_turn(self, store: Store) -> None:
        await store.take_probe("kafka", "relay-1", 10)
        await store.report_success("kafka")
        assert await store.take_probe("kafka", "relay-2", 10)

    async def test_successes_are_counted_by_destination(self, store: Store) -> None:
        assert not any((await store.successes()).values())
        await store.take_probe("redis", "relay-1", 10)
        for destination in ("kafka", "mail", "kafka"):
            await store.report_success(destination)
        assert {name: times for name, times in (await store.successes()).items() if times} == {"kafka": 2, "mail": 1}

    async def test_a_trip_is_shown_until_a_success(self, store: Store) -> None:
        async def shown() -> list[tuple[str, str]]:
            breakers = (await store.status()).breakers
            return [(breaker["destination"], breaker["error"]) for breaker in breakers if breaker["error"]]

        await store.report_trip("kafka", "relay-1", "refused")
        await store.report_trip("kafka", "relay-2", "timed out")
        assert await shown() == [("kafka", "timed out")]
        await store.report_success("mail")
        assert await shown() == [("kafka", "timed out")]
        await store.report_success("kafka")
        assert await shown() == []

    async def test_a_trip_takes_no_turn_and_counts_no_success(self, store: Store) -> None:
        await store.report_trip("kafka", "relay-1", "refused")
        assert not any((await store.successes()).values())
        assert await store.take_probe("kafka", "relay-2", 10)
