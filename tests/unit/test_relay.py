"""What a relay delivers and when, seen from outside: over the memory store."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from postroom import (
    InvalidMessage,
    Message,
    Outbox,
    events,
)
from postroom.ports import Query
from tests.unit.relay_shop import Shop, keeper_of, owned
from tests.waiting import until

# --- draining


async def test_a_drain_delivers_what_is_due_and_reports_it(shop: Shop) -> None:
    ids = [shop.add(key=f"k{n}").id for n in range(5)]
    report = await shop.relay().drain()
    assert (report.delivered, report.pending, report.held, report.dead, report.retried) == (5, 0, 0, 0, 0)
    assert sorted(message.id for message in shop.arrived) == sorted(ids)


async def test_a_delivered_message_has_all_that_was_said(shop: Shop) -> None:
    shop.add("orders", "k", {"n": 1}, type="OrderPlaced", headers={"tenant": "a"})
    await shop.relay().drain()
    [message] = shop.arrived
    assert (message.topic, message.key, message.type, message.payload) == ("orders", "k", "OrderPlaced", b'{"n":1}')
    assert message.headers == {"tenant": "a"}
    assert (message.attempt, message.sequence) == (1, None)
    assert message.wire_headers()["postroom-id"] == message.id


@pytest.mark.parametrize("lost_after", [10, 20, 100])
async def test_a_drain_reads_what_is_below_the_marks(shop: Shop, lost_after: int) -> None:
    """There is something if the table was emptied and counts from 1 again. Also when the slots are lost meanwhile."""
    messages = [shop.add(key="k") for _ in range(50)]
    for lease in shop.store.tables.leases.values():
        lease.mark = 1_000

    def take(message: Message) -> None:
        shop.arrived.append(message)
        if len(shop.arrived) == lost_after:
            keeper_of(relay).lose_all()
            for lease in shop.store.tables.leases.values():
                lease.owner = lease.expires_at = None

    relay = shop.relay(take, batch_size=10)
    assert (await relay.drain()).pending == 0
    assert {message.id for message in shop.arrived} == {message.id for message in messages}


async def test_a_drain_looks_again_for_rows_that_its_store_may_miss(shop: Shop) -> None:
    """One whose statement was slow: its position was taken before those that the relay has passed meanwhile."""
    shop.store.may_miss_rows = True
    messages = [shop.add(key="k") for _ in range(40)]
    rows = shop.store.tables.hot
    late = rows.take(sorted(rows.rows)[4])
    assert late is not None

    def take(message: Message) -> None:
        shop.arrived.append(message)
        if len(shop.arrived) == 30:
            rows.put(late)

    report = await shop.relay(take).drain()
    assert (report.delivered, report.pending) == (len(messages), 0)


async def test_a_relay_can_drain_again(shop: Shop) -> None:
    relay = shop.relay()
    shop.add()
    await relay.drain()
    shop.add()
    assert (await relay.drain()).delivered == 1


async def test_one_key_is_delivered_in_order_by_a_publisher_that_is_slow_at_random(shop: Shop) -> None:
    sent = [shop.add(key=f"k{n % 3}", payload={"n": n}).id for n in range(60)]

    async def publish(message: Message) -> None:
        await asyncio.sleep(hash(message.id) % 3 / 1000)
        shop.arrived.append(message)

    await shop.relay(publish).drain()
    for key in ("k0", "k1", "k2"):
        ids = [message.id for message in shop.arrived if message.key == key]
        assert ids == [id for id in sent if id in set(ids)]


async def test_the_strict_sequence_travels_with_the_message(shop: Shop) -> None:
    shop.outbox = Outbox(order="strict")
    for _ in range(3):
        shop.add(key="k")
    await shop.relay().drain()
    assert [message.sequence for message in shop.arrived] == [1, 2, 3]
    assert shop.arrived[2].wire_headers()["postroom-sequence"] == "3"


# --- time


async def test_a_delayed_message_waits_for_its_time_and_blocks_nothing(shop: Shop) -> None:
    late = shop.add(key="k", delay="1h")
    now = shop.add(key="k")
    report = await shop.relay().drain()
    assert [message.id for message in shop.arrived] == [now.id]
    assert report.pending == 1
    soon = shop.add(key="k", delay="50ms")
    async with shop.relay():
        await until(lambda: len(shop.arrived) == 2)
    assert shop.arrived[1].id == soon.id
    assert await shop.state_of(late) == "later"


async def test_an_expired_message_is_dead_and_never_sent_nor_holds_its_key(shop: Shop) -> None:
    expired = shop.add(key="k", expires_at=datetime.now(UTC) - timedelta(seconds=1))
    behind = shop.add(key="k")
    report = await shop.relay().drain()
    assert [message.id for message in shop.arrived] == [behind.id]
    assert (report.dead, report.held) == (1, 0)
    [entry] = await shop.store.entries(Query(state="dead"))
    assert (entry.message.id, entry.reason) == (expired.id, "expired")


async def test_of_several_messages_only_the_latest_is_sent(shop: Shop) -> None:
    prices = [shop.add("prices", "eur", {"n": n}) for n in range(700)]
    other = shop.add("orders", "eur")
    report = await shop.relay(latest_only=["prices"]).drain()
    assert {message.id for message in shop.arrived} == {prices[-1].id, other.id}
    assert report.superseded == 699
    assert await shop.state_of(prices[0]) == "superseded"


async def test_a_dense_sequence_has_no_gaps_whatever_is_asked_for(shop: Shop) -> None:
    shop.outbox = Outbox(order="strict")
    for _ in range(3):
        shop.add("prices", "eur")
    with pytest.raises(InvalidMessage, match="expires_at"):
        shop.add("prices", "eur", expires_at=datetime.now(UTC))
    await shop.relay(latest_only=["prices"], on_dead="continue").drain()
    assert [message.sequence for message in shop.arrived] == [1, 2, 3]


async def test_one_bulk_import_does_not_delay_every_other_key(shop: Shop) -> None:
    for _ in range(300):
        shop.add("bulk", "one-key")
    late = shop.add("orders", "another-key")
    order: list[str] = []

    def publish(message: Message) -> None:
        order.append(message.id)

    await shop.relay(publish, batch_size=20).drain()
    assert order.index(late.id) < 60


# --- the archive


async def test_delivered_messages_are_kept_for_the_retention_and_can_be_replayed(shop: Shop) -> None:
    message = shop.add(key="k")
    relay = shop.relay(retention="1h")
    await relay.drain()
    assert await shop.state_of(message) == "delivered"
    await shop.store.replay([message.id], new_id=False)
    await relay.drain()
    assert [(m.id, m.replays) for m in shop.arrived] == [(message.id, 0), (message.id, 1)]
    assert shop.arrived[1].dedupe_id != message.id


async def test_only_the_owner_of_slot_0_cleans_and_it_keeps_what_it_was_not_told_to_delete(shop: Shop) -> None:
    kept = shop.add(key="k")
    await shop.relay(retention="1h").drain()
    async with shop.relay(lease_ttl=2) as one, shop.relay(lease_ttl=2) as two:
        await until(lambda: len(owned(one)) == len(owned(two)) == 32)
        shop.diary.events.clear()
        for relay in (one, two):
            assert relay._session is not None
            await relay._session.clean()
        assert len(shop.diary.of(events.Cleaned)) == 1
    assert await shop.state_of(kept) == "delivered"
