"""One message for several destinations: copies that are written together and settled each on its own."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from postroom import ConfigurationError, DestinationUnavailable, Message, Outbox, PayloadTooLarge, Relay
from postroom.ports import Batch, Features
from postroom.relay.wiring import targets_for

STORE = "sqlite:///shop.db"
AUDITED = {"orders.*": ["audit.{topic}"]}


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[sqlite3.Connection]:
    monkeypatch.chdir(tmp_path)
    with closing(sqlite3.connect("shop.db")) as connection:
        yield connection


class Destination:
    def __init__(self, name: str, max_size: int | None = None) -> None:
        self.name = name
        self.features = Features(ordered=True, max_size=max_size)
        self.arrived: list[Message] = []
        self.is_down = False

    async def publish(self, batch: Batch) -> None:
        if self.is_down:
            raise DestinationUnavailable("down")
        self.arrived += batch.messages
        batch.confirm_all()

    async def close(self) -> None: ...


def test_each_copy_waits_for_nothing_but_its_own_destination(shop: sqlite3.Connection) -> None:
    outbox, kafka, audit = Outbox(fan_out=AUDITED), Destination("kafka"), Destination("audit")
    relay = Relay(STORE, {"audit.*": audit, "*": kafka}, outbox=outbox)
    with shop:
        sent = [outbox.add(shop, "orders.placed", {"id": n}, key="order-1") for n in range(3)]
        outbox.add(shop, "mail", {})
    audit.is_down = True
    assert asyncio.run(relay.drain()).delivered == 4
    assert [message.id for message in kafka.arrived if message.key] == [message.id for message in sent]
    assert audit.arrived == []
    audit.is_down = False
    assert asyncio.run(relay.drain()).delivered == 3
    assert [message.topic for message in audit.arrived] == ["audit.orders.placed"] * 3
    assert [message.headers["postroom-copy-of"] for message in audit.arrived] == [message.id for message in sent]
    assert [message.payload for message in audit.arrived] == [message.payload for message in sent]
    assert len(kafka.arrived) == 4
    assert not {message.id for message in audit.arrived} & {message.id for message in sent}


def test_copies_are_written_in_the_same_transaction_or_not_at_all(shop: sqlite3.Connection) -> None:
    outbox = Outbox(fan_out=AUDITED)
    outbox.create_tables(shop)
    outbox.add_many(shop, [Message(topic="orders.placed", payload={}, key="a"), Message(topic="mail", payload={})])
    topics = [topic for (topic,) in shop.execute("SELECT topic FROM postroom_outbox ORDER BY position")]
    assert topics == ["orders.placed", "audit.orders.placed", "mail"]
    shop.rollback()
    assert shop.execute("SELECT count(*) FROM postroom_outbox").fetchone() == (0,)


@pytest.mark.parametrize("key", ["placed-1", "x" * 250])
def test_a_duplicate_has_no_copies(shop: sqlite3.Connection, key: str) -> None:
    outbox = Outbox(fan_out=AUDITED)
    for is_duplicate in (False, True):
        with shop:
            message = outbox.add(shop, "orders.placed", {}, key="a", idempotency_key=key)
        assert message.duplicate is is_duplicate
    assert shop.execute("SELECT count(*) FROM postroom_outbox").fetchone() == (2,)


@pytest.mark.parametrize("topics", ["audit", ["{topic}"], ["audit.{shop}"], ["audit.{"], [""], [3]])
def test_further_topics_that_cannot_be_are_refused(topics: object) -> None:
    with pytest.raises(ConfigurationError, match="give a list of topics"):
        Outbox(fan_out={"orders.*": topics})  # type: ignore[dict-item]


def test_a_relay_says_how_one_topic_goes_to_several_destinations() -> None:
    with pytest.raises(ConfigurationError, match="fan_out"):
        Relay(STORE, {"orders.*": ["stdout:", "memory:"]})


# --- what a destination takes at most is known at `add`


def test_a_payload_that_its_destination_would_refuse_is_refused_at_once(shop: sqlite3.Connection) -> None:
    outbox = Outbox(max_payload={"big": None, "*": 5_000})
    Relay(STORE, {"orders.*": Destination("small", 100), "rest": Destination("any")}, outbox=outbox)
    with pytest.raises(PayloadTooLarge, match="takes 100 at most"):
        outbox.add(shop, "orders.placed", b"x" * 101)
    outbox.add(shop, "orders.placed", b"x" * 100)
    outbox.add(shop, "rest", b"x" * 5_000)
    with pytest.raises(PayloadTooLarge, match="more than max_payload"):
        outbox.add(shop, "rest", b"x" * 5_001)
    outbox.add(shop, "big", b"x" * 2_000_000)


def test_a_copy_is_measured_by_its_own_destination(shop: sqlite3.Connection) -> None:
    outbox = Outbox(fan_out=AUDITED)
    Relay(STORE, {"audit.*": Destination("small", 10), "*": Destination("any")}, outbox=outbox)
    with pytest.raises(PayloadTooLarge, match=r"'audit\.orders\.placed'"):
        outbox.add(shop, "orders.placed", b"x" * 11)
    outbox.add(shop, "mail", b"x" * 11)


def test_what_goes_there_already_is_not_copied() -> None:
    outbox = Outbox(fan_out={"*": ["all"]})
    with closing(sqlite3.connect(":memory:")) as connection:
        outbox.create_tables(connection)
        outbox.add_many(connection, [Message(topic="all", payload={}), Message(topic="mail", payload={})])
        topics = [topic for (topic,) in connection.execute("SELECT topic FROM postroom_outbox ORDER BY position")]
    assert topics == ["all", "mail", "all"]


def test_a_destination_with_a_long_address_has_a_short_name(shop: sqlite3.Connection) -> None:
    """Its name is a column in the database, where others look for it."""
    hosts = ",".join(f"broker-{number}.kafka.eu-central-1.example.com:9096" for number in range(8))
    urls = [f"kafka://{hosts}?client.id={name}" for name in ("one", "two")]
    targets = targets_for({"a": urls[0], "b": urls[1]}, (), 1).targets
    names = [target.name for target in targets.values()]
    assert max(map(len, names)) <= 200
    assert len(set(names)) == 2
    assert names == [target.name for target in targets_for({"b": urls[1], "a": urls[0]}, (), 1).targets.values()][::-1]


def test_brokers_say_what_they_take(shop: sqlite3.Connection) -> None:
    outbox = Outbox(max_payload=None)
    Relay(STORE, {"q": "sqs://eu-central-1", "k": "kafka://localhost?message.max.bytes=2000"}, outbox=outbox)
    with pytest.raises(PayloadTooLarge):
        outbox.add(shop, "q", b"x" * (1024 * 1024 + 1))
    with pytest.raises(PayloadTooLarge):
        outbox.add(shop, "k", b"x" * 2001)


# --- a topic that goes nowhere


def test_a_topic_without_a_route_waits_with_a_reason_until_there_is_one(shop: sqlite3.Connection) -> None:
    from postroom import Desk

    async def reasons() -> list[str]:
        async with Desk(STORE) as desk:
            return [breaker["error"] for breaker in (await desk.status()).breakers if breaker["error"]]

    async def findings() -> list[str]:
        async with Desk(STORE) as desk:
            return [one.seen for one in await desk.doctor() if one.verdict == "warning"]

    outbox = Outbox()
    with shop:
        outbox.add(shop, "mail", {}, key="k")
        outbox.add(shop, "orders", {}, key="k")
    orders, mail = Destination("orders"), Destination("mail")
    report = asyncio.run(Relay(STORE, {"orders": orders}, outbox=outbox).drain())
    assert (report.delivered, report.pending, report.dead) == (1, 1, 0)
    assert ["no route matches the topic 'mail'" in reason for reason in asyncio.run(reasons())] == [True]
    assert any("no route matches the topic 'mail'" in seen for seen in asyncio.run(findings()))
    assert asyncio.run(Relay(STORE, {"orders": orders, "mail": mail}, outbox=outbox).drain()).delivered == 1
    assert asyncio.run(reasons()) == []
