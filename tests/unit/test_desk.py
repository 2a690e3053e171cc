"""The desk, on a store in memory and on SQLite: looking at an outbox, and mending it."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from postroom import desk as desk_module
from postroom.desk import Desk
from postroom.errors import ConfigurationError, MessageRejected, NotFound, SchemaMismatch, StoreError, TablesMissing
from postroom.message import Message, new_id
from postroom.outbox import Outbox
from postroom.ports import Store
from postroom.relay.relay import Relay
from postroom.stores.memory import MemoryStore

YEAR_2020 = 1_577_836_800 * 10**9


@dataclass
class Shop:
    """An outbox with a way to write to it and to deliver from it; messages of the topic "bad" are refused for good."""

    store: str | Store
    write: Callable[[Callable[[Any], Message]], Message]
    outbox: Outbox = field(default_factory=Outbox)
    delivered: list[Message] = field(default_factory=list[Message])
    refusing: bool = True

    def add(self, topic: str = "orders", payload: object = None, **options: Any) -> Message:
        return self.write(lambda connection: self.outbox.add(connection, topic, payload, **options))

    async def deliver(self, **settings: Any) -> None:
        def publish(message: Message) -> None:
            if self.refusing and message.topic.startswith("bad"):
                raise MessageRejected("not like this", permanent=True)
            self.delivered.append(message)

        await Relay(
            self.store, publish, outbox=self.outbox, **{"retention": "7d", "trip_after": 1000, **settings}
        ).drain()

    async def dead(self, number: int = 1, topic: str = "bad", **options: Any) -> list[Message]:
        """That many dead messages, each with a key of its own."""
        added = [self.add(topic, {"n": n}, key=f"key-{n}", **options) for n in range(number)]
        await self.deliver()
        return added


def memory_shop(tmp_path: Path) -> Shop:
    store = MemoryStore()

    def write(add: Callable[[Any], Message]) -> Message:
        with store.begin() as transaction:
            return add(transaction)

    return Shop(store, write)


def sqlite_shop(tmp_path: Path) -> Shop:
    path = tmp_path / "shop.db"

    def write(add: Callable[[Any], Message]) -> Message:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            return add(connection)

    return Shop(f"sqlite:///{path}", write)


@pytest.fixture(params=[memory_shop, sqlite_shop], ids=["memory", "sqlite"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Shop:
    return request.param(tmp_path)


@pytest.fixture
async def desk(shop: Shop) -> AsyncIterator[Desk]:
    async with Desk(shop.store, outbox=shop.outbox) as desk:
        await desk.init()
        yield desk


def ids(messages: list[Message]) -> list[str]:
    return [message.id for message in messages]


async def in_state(desk: Desk, state: Any) -> list[str]:
    return [entry.message.id for entry in await desk.list(state=state, limit=1000)]


# --- opening


def test_making_a_desk_connects_to_nothing(tmp_path: Path):
    Desk(f"sqlite:///{tmp_path}/none.db")
    assert list(tmp_path.iterdir()) == []


async def test_missing_tables_are_an_error_that_names_the_remedy(tmp_path: Path):
    desk = Desk(f"sqlite:///{tmp_path}/none.db")
    with pytest.raises(TablesMissing, match="postroom init"):
        await desk.status()
    assert list(tmp_path.iterdir()) == []


async def test_init_creates_the_tables_and_may_be_repeated(tmp_path: Path):
    for _ in range(2):
        async with Desk(f"sqlite:///{tmp_path}/new.db") as desk:
            await desk.init()
            await desk.init()
            assert (await desk.status()).counts["pending"] == 0


async def test_tables_of_a_newer_version_are_refused(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/new.db"
    async with Desk(url) as desk:
        await desk.init()
    with closing(sqlite3.connect(tmp_path / "new.db")) as connection, connection:
        connection.execute("UPDATE postroom_meta SET value = '99' WHERE name IN ('version', 'min_compatible')")
    async with Desk(url) as desk:
        with pytest.raises(SchemaMismatch, match="upgrade"):
            await desk.status()


async def test_a_file_that_is_no_database_is_a_store_error(tmp_path: Path):
    (tmp_path / "text.db").write_text("this is a text, and not a database at all. " * 50)
    async with Desk(f"sqlite:///{tmp_path}/text.db") as desk:
        with pytest.raises(StoreError):
            await desk.status()


async def test_an_outbox_of_another_name_has_its_own_tables(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/two.db"
    async with Desk(url, name="billing") as desk:
        await desk.init()
        assert (await desk.status()).outbox == "billing"
    async with Desk(url) as desk:
        with pytest.raises(TablesMissing):
            await desk.status()


def test_an_outbox_and_a_name_are_a_contradiction():
    with pytest.raises(ConfigurationError, match="not both"):
        Desk("memory:", outbox=Outbox(), name="billing")


async def test_a_desk_can_be_used_again_after_closing(shop: Shop, desk: Desk):
    shop.add()
    await desk.close()
    assert (await desk.status()).counts["pending"] == 1


# --- looking


async def test_the_status_counts_by_state(shop: Shop, desk: Desk):
    await shop.dead(2)
    shop.add()
    shop.add(delay=3600)
    status = await desk.status()
    assert {state: count for state, count in status.counts.items() if count} == {"dead": 2, "pending": 1, "later": 1}
    assert status.holds == 2


async def test_messages_are_listed_by_what_they_are(shop: Shop, desk: Desk):
    first = shop.add("orders.placed", key="a", type="OrderPlaced")
    second = shop.add("orders.paid", key="b", type="OrderPaid")
    third = shop.add("mail", key="a")

    async def listed(**query: Any) -> list[str]:
        return [entry.message.id for entry in await desk.list(**query)]

    assert await listed() == ids([first, second, third])
    assert await listed(topic="orders.*") == ids([first, second])
    assert await listed(key="a") == ids([first, third])
    assert await listed(type="*Paid") == [second.id]
    assert await listed(topic="orders.*", key="a", state="pending") == [first.id]
    assert await listed(limit=1, offset=1) == [second.id]
    assert await listed(newer_than="1h") == ids([first, second, third])
    assert await listed(older_than="1h") == await listed(state="dead") == []


@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        ({"state": "lost"}, "state"),
        ({"limit": 0}, "limit"),
        ({"limit": "many"}, "limit"),
        ({"offset": -1}, "offset"),
        ({"older_than": "soon"}, "older_than"),
        ({"newer_than": -1}, "newer_than"),
    ],
)
async def test_a_query_that_makes_no_sense_is_refused(desk: Desk, query: dict[str, Any], complaint: str):
    with pytest.raises(ConfigurationError, match=complaint):
        await desk.list(**query)


async def test_a_message_is_shown_with_everything(shop: Shop, desk: Desk):
    added = shop.add("orders", {"n": 1}, key="a", type="OrderPlaced", headers={"tenant": "x"})
    entry = await desk.show(added.id)
    assert (entry.state, entry.message.payload, entry.message.headers) == ("pending", b'{"n":1}', {"tenant": "x"})


async def test_a_message_that_is_nowhere_is_not_found(desk: Desk):
    with pytest.raises(NotFound, match="postroom ls"):
        await desk.show(new_id())


async def test_holds_tell_who_waits_for_what(shop: Shop, desk: Desk):
    [head] = await shop.dead()
    shop.add("bad", key="key-0")
    [hold] = await desk.holds()
    assert (hold.topic, hold.key, hold.message_id, hold.status, hold.waiting) == ("bad", "key-0", head.id, "dead", 1)
    assert await desk.holds(topic="bad", key="key-0") == [hold]
    assert not await desk.holds(topic="orders")
    with pytest.raises(ConfigurationError, match="limit"):
        await desk.holds(limit=0)


# --- abbreviated ids


async def test_the_beginning_of_an_id_will_do(shop: Shop, desk: Desk):
    old = shop.add(id=new_id(YEAR_2020))
    other = shop.add(id=str(uuid4()))
    shop.add()
    assert (await desk.show(old.id[:8])).message.id == old.id
    assert (await desk.show(old.id[:20].upper())).message.id == old.id
    assert (await desk.show(other.id[:13])).message.id == other.id
    assert (await desk.show(other.id.upper())).message.id == other.id


async def test_a_beginning_that_fits_two_ids_is_ambiguous(shop: Shop, desk: Desk):
    moment = YEAR_2020
    one, two = shop.add(id=new_id(moment)), shop.add(id=new_id(moment))
    with pytest.raises(NotFound, match="several") as caught:
        await desk.show(one.id[:13])
    assert one.id in str(caught.value)
    assert two.id in str(caught.value)


async def test_a_beginning_of_less_than_eight_characters_is_too_short(shop: Shop, desk: Desk):
    added = shop.add()
    with pytest.raises(NotFound, match="first 8"):
        await desk.show(added.id[:7])


@pytest.mark.parametrize(("cut", "looks"), [(36, 0), (35, 1)])
async def test_a_message_is_looked_for_once(
    shop: Shop, desk: Desk, monkeypatch: pytest.MonkeyPatch, cut: int, looks: int
):
    added = shop.add()
    await desk.status()
    asked: list[str] = []

    def spy(name: str) -> None:
        original = getattr(desk._store, name)

        async def spied(what: Any) -> Any:
            asked.append(name)
            return await original(what)

        monkeypatch.setattr(desk._store, name, spied)

    spy("entry")
    spy("places")
    assert (await desk.show(added.id[:cut])).message.id == added.id
    assert asked == ["places"] * looks + ["entry"]


async def test_only_messages_in_the_right_state_count_for_the_beginning_of_an_id(shop: Shop, desk: Desk):
    dead, pending = "0aaaaaaa-0000-4000-8000-000000000001", "0aaaaaaa-0000-4000-8000-000000000002"
    await shop.dead(id=dead)
    shop.add(id=pending)
    assert await desk.revive("0aaaaaaa") == 1


# --- reviving, discarding


async def test_a_revived_message_is_delivered(shop: Shop, desk: Desk):
    [message] = await shop.dead()
    assert await desk.revive([message.id]) == 1
    shop.refusing = False
    await shop.deliver()
    assert ids(shop.delivered) == [message.id]


async def test_a_discarded_message_lets_the_next_one_go_on(shop: Shop, desk: Desk):
    [message] = await shop.dead()
    behind = shop.add("bad", key="key-0")
    assert await desk.discard(message.id) == 1
    shop.refusing = False
    await shop.deliver()
    assert ids(shop.delivered) == [behind.id]
    assert await in_state(desk, "discarded") == [message.id]


async def test_a_filter_chooses_which(shop: Shop, desk: Desk):
    chosen = await shop.dead(3, topic="bad.mail")
    others = await shop.dead(2, topic="bad.orders")
    assert await desk.revive(topic="bad.m*") == 3
    assert await in_state(desk, "dead") == ids(others)
    assert await desk.discard(older_than="1h") == 0
    assert await desk.discard(key="key-1") == 1
    assert await in_state(desk, "discarded") == [others[1].id]
    assert set(await in_state(desk, "pending")) == set(ids(chosen))


async def test_long_work_goes_in_batches_and_tells_how_far_it_is(
    shop: Shop, desk: Desk, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(desk_module, "BATCH", 2)
    await shop.dead(5)
    told: list[tuple[int, int | None]] = []
    assert await desk.revive(all=True, progress=lambda done, total: told.append((done, total))) == 5
    assert told == [(2, 5), (4, 5), (5, 5)]


async def test_a_limit_takes_the_oldest(shop: Shop, desk: Desk, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(desk_module, "BATCH", 2)
    dead = await shop.dead(5)
    assert await desk.discard(all=True, limit=3) == 3
    assert await in_state(desk, "dead") == ids(dead)[3:]


@pytest.mark.parametrize("verb", ["revive", "discard", "replay"])
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({}, "which messages"),
        ({"limit": 3}, "which messages"),
        ({"topic": "bad", "all": True}, "one or the other"),
        ({"ids": ["x"], "topic": "bad"}, "one or the other"),
        ({"ids": ["x"], "all": True}, "one or the other"),
        ({"all": True, "limit": 0}, "limit"),
        ({"older_than": "soon"}, "older_than"),
    ],
)
async def test_it_must_be_clear_which_messages_are_meant(
    shop: Shop, desk: Desk, verb: str, arguments: dict[str, Any], complaint: str
):
    [message] = await shop.dead()
    with pytest.raises(ConfigurationError, match=complaint):
        await getattr(desk, verb)(**arguments)
    assert await in_state(desk, "dead") == [message.id]


async def test_no_ids_are_none(shop: Shop, desk: Desk):
    await shop.dead()
    assert await desk.revive([]) == 0


async def test_a_message_that_is_not_dead_is_refused_before_any_is_changed(shop: Shop, desk: Desk):
    [dead] = await shop.dead()
    pending = shop.add()
    with pytest.raises(NotFound, match="is pending, not dead"):
        await desk.revive([dead.id, pending.id])
    with pytest.raises(NotFound, match="there is no dead message"):
        await desk.discard([dead.id, new_id()])
    assert await in_state(desk, "dead") == [dead.id]


# --- replaying, cleaning


async def test_a_replayed_message_is_delivered_again(shop: Shop, desk: Desk):
    message = shop.add(key="a")
    await shop.deliver()
    assert await desk.replay(message.id) == 1
    await shop.deliver()
    assert ids(shop.delivered) == [message.id, message.id]
    assert shop.delivered[1].replays == 1


async def test_a_message_can_be_replayed_while_its_last_replay_waits(shop: Shop, desk: Desk):
    message = shop.add(key="a")
    await shop.deliver()
    assert await desk.replay(message.id) == await desk.replay(message.id) == 1


async def test_a_replay_under_a_new_id_is_a_new_message(shop: Shop, desk: Desk):
    shop.add(key="a")
    await shop.deliver()
    assert await desk.replay(all=True, new_id=True) == 1
    await shop.deliver()
    assert len(set(ids(shop.delivered))) == 2


async def test_only_what_was_delivered_is_replayed(shop: Shop, desk: Desk):
    [dead] = await shop.dead()
    with pytest.raises(NotFound, match="not delivered"):
        await desk.replay(dead.id)
    assert await desk.replay(topic="*") == 0


async def test_cleaning_deletes_what_is_past_its_retention(shop: Shop, desk: Desk):
    for _ in range(5):
        shop.add()
    await shop.deliver()
    [dead] = await shop.dead()
    shop.add()
    told: list[tuple[int, int | None]] = []
    assert await desk.clean(retention="1d") == 0
    assert await desk.clean(retention=0, batch=2, progress=lambda *now: told.append(now)) == 5
    assert told == [(2, None), (4, None), (5, None)]
    counts = (await desk.status()).counts
    assert (counts["delivered"], counts["dead"], counts["pending"]) == (0, 1, 1)
    assert await in_state(desk, "dead") == [dead.id]


async def test_without_a_retention_cleaning_keeps_the_archive(shop: Shop, desk: Desk):
    shop.add()
    await shop.deliver()
    assert await desk.clean() == 0
    assert (await desk.status()).counts["delivered"] == 1


@pytest.mark.parametrize("arguments", [{"batch": 0}, {"batch": "all"}, {"retention": "soon"}, {"retention": -1}])
async def test_cleaning_refuses_what_makes_no_sense(desk: Desk, arguments: dict[str, Any]):
    with pytest.raises(ConfigurationError):
        await desk.clean(**arguments)
