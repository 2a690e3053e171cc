"""One relay with `claim="rows"` and several topics: what fails or is closed delays nobody else, and nothing is lost."""

from __future__ import annotations

import asyncio

from postroom import DestinationUnavailable, Message, MessageRejected, Outbox, Relay
from tests.acceptance.servers_rows.workshop import Workshop
from tests.waiting import until

BATCH = 5
MANY = 12 * BATCH
"""More than a relay keeps in memory for one destination."""


class Counter:
    """A destination that can be down, and one that cannot."""

    def __init__(self) -> None:
        self.is_down = False
        self.orders: list[str] = []
        self.mails: list[str] = []

    async def order(self, message: Message) -> None:
        if self.is_down:
            raise DestinationUnavailable("closed")
        self.orders.append(message.id)

    async def mail(self, message: Message) -> None:
        self.mails.append(message.id)

    def relay(self, workshop: Workshop, **settings: object) -> Relay:
        routes = {"orders": self.order, "mails": self.mail}
        chosen = {"batch_size": BATCH, "breaker_initial": 0.05, "breaker_cap": 0.2, **settings}
        return Relay(workshop.database.url, routes, claim="rows", **chosen)


def add(workshop: Workshop, topic: str, count: int, key: str | None = None) -> list[str]:
    messages = [Message(topic=topic, payload=b"{}", key=key) for _ in range(count)]
    with workshop.database.engine.begin() as connection:
        Outbox().add_many(connection, messages)
    return [message.id for message in messages]


async def test_a_destination_that_is_down_delays_no_other_and_loses_nothing(workshop: Workshop) -> None:
    counter = Counter()
    counter.is_down = True
    async with counter.relay(workshop) as relay:
        orders = add(workshop, "orders", MANY)
        mails = add(workshop, "mails", MANY)
        await until(lambda: sorted(counter.mails) == sorted(mails))
        await until(lambda: workshop.left() == {"claims": MANY})
        counter.is_down = False
        await until(lambda: sorted(counter.orders) == sorted(orders), within=20.0)
        await until(lambda: not workshop.left())
        entry = await relay.store.entry(orders[0])
    assert entry is None


async def test_a_missing_topic_delays_no_other_of_its_destination_and_loses_nothing(workshop: Workshop) -> None:
    missing = True
    arrived: dict[str, list[str]] = {"orders": [], "mails": []}
    attempts: set[int] = set()

    async def publish(message: Message) -> None:
        attempts.add(message.attempt)
        if missing and message.topic == "orders":
            raise DestinationUnavailable("no such topic")
        arrived[message.topic].append(message.id)

    relay = Relay(
        workshop.database.url, publish, claim="rows", batch_size=BATCH, breaker_initial=0.02, breaker_cap=0.05,
        retry="never",
    )  # fmt: skip
    async with relay:
        orders: list[str] = []
        for number in range(5 * BATCH):
            orders += add(workshop, "orders", 1)
            add(workshop, "mails", 1)
            await until(lambda: len(arrived["mails"]) > number)  # noqa: B023
        missing = False
        await until(lambda: sorted(arrived["orders"]) == sorted(orders))
        await until(lambda: not workshop.left())
    assert attempts == {1}


async def test_a_paused_topic_waits_and_goes_on_when_it_is_resumed(workshop: Workshop) -> None:
    counter = Counter()
    async with counter.relay(workshop) as relay:
        relay.pause("orders")
        orders = add(workshop, "orders", MANY)
        mails = add(workshop, "mails", MANY)
        await until(lambda: sorted(counter.mails) == sorted(mails))
        assert counter.orders == []
        relay.resume("orders")
        await until(lambda: sorted(counter.orders) == sorted(orders), within=20.0)
        await until(lambda: not workshop.left())


async def test_what_a_relay_has_paused_another_one_delivers_after_it_stopped(workshop: Workshop) -> None:
    first, second = Counter(), Counter()
    async with first.relay(workshop) as relay:
        relay.pause("orders")
        orders = add(workshop, "orders", MANY)
        await until(lambda: workshop.left() == {"claims": MANY})
    async with second.relay(workshop):
        await until(lambda: sorted(second.orders) == sorted(orders), within=20.0)
    assert first.orders == []


async def test_a_message_that_fails_does_not_hold_up_its_key(workshop: Workshop) -> None:
    refused, *others = add(workshop, "orders", 10, key="key")
    arrived: list[str] = []

    async def picky(message: Message) -> None:
        if message.id == refused and message.attempt < 3:
            raise MessageRejected("not yet")
        arrived.append(message.id)

    relay = Relay(workshop.database.url, picky, claim="rows", retry="steps 500ms 500ms")
    async with relay:
        await until(lambda: sorted(arrived) == sorted([refused, *others]))
        await until(lambda: not workshop.left())
    assert arrived[-1] == refused


async def test_a_dead_message_lets_its_key_go_on(workshop: Workshop) -> None:
    refused, *others = add(workshop, "orders", 3, key="key")

    async def picky(message: Message) -> None:
        if message.id == refused:
            raise MessageRejected("never")

    relay = Relay(workshop.database.url, picky, claim="rows", retry="never", on_dead="block")
    report = await relay.drain()
    assert (report.delivered, report.dead, report.held, report.pending) == (len(others), 1, 0, 0)


async def test_a_drain_does_not_wait_for_ever_for_what_another_relay_is_doing(workshop: Workshop) -> None:
    began, finish = asyncio.Event(), asyncio.Event()

    async def slow(message: Message) -> None:
        began.set()
        await finish.wait()

    async with Relay(workshop.database.url, slow, claim="rows", lease_ttl="60s", publish_timeout="30s"):
        add(workshop, "orders", 1)
        await began.wait()
        add(workshop, "mails", 3)
        counter = Counter()
        report = await counter.relay(workshop, lease_ttl="1s").drain()
        finish.set()
    assert report.pending >= 1
    assert len(counter.mails) == report.delivered
