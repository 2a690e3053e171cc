"""Large numbers on real servers: what waits costs others nothing, and can be mended in bounded steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import psycopg
import pytest
import pytest_asyncio
from sqlalchemy import Engine, create_engine, func, insert, make_url, select

from postroom import Desk, Message, Outbox, Relay
from postroom.message import new_id, slot_of
from postroom.ports import Gate, Query, Range, Store
from postroom.relay.wiring import store_for
from postroom.stores.schema import define_tables
from postroom.testing.store_contract.kit import ALL_SLOTS, fetch_all, own

MANY = 200_000
TABLES = define_tables()
SYNC = {"postgresql-15": "postgresql+psycopg", "mariadb": "mysql+pymysql", "sqlite": "sqlite"}
HELD, SLOT = "held", slot_of("held", "")


class Place:
    def __init__(self, server: str, url: str) -> None:
        self.server, self.url = server, url
        self.store: Store = store_for(url, Outbox())
        self.engine: Engine = create_engine(make_url(url).set(drivername=SYNC[server]))

    def count(self, name: str) -> int:
        with self.engine.connect() as connection:
            return connection.execute(select(func.count()).select_from(getattr(TABLES, name))).scalar_one()

    def add(self, count: int, **options: Any) -> None:
        with self.engine.begin() as connection:
            Outbox().add_many(connection, [Message(topic="t", payload=b"x", **options) for _ in range(count)])

    def bury(self, count: int) -> list[str]:
        """Dead messages without keys, as a long outage might leave them."""
        rows = [self._dead(number) for number in range(count)]
        with self.engine.begin() as connection:
            connection.execute(insert(TABLES.dead), rows)
        return [row["id"] for row in rows]

    def _dead(self, number: int) -> dict[str, Any]:
        id = new_id()
        fixed = {"topic": "t", "payload": b"x", "reason": "attempts", "error": "refused", "holding": False}
        return {"id": id, "slot": slot_of(None, id), "position": 10_000_000 + number, **fixed}


@pytest_asyncio.fixture(params=list(SYNC))
async def place(
    empty_database: Callable[[str], str], request: pytest.FixtureRequest, tmp_path: Any
) -> AsyncIterator[Place]:
    server = request.param
    place = Place(server, f"sqlite:///{tmp_path / 'app.db'}" if server == "sqlite" else empty_database(server))
    await place.store.open()
    yield place
    await place.store.close()
    place.engine.dispose()


on_postgresql = pytest.mark.parametrize("place", ["postgresql-15"], indirect=True)
on_servers = pytest.mark.parametrize("place", ["postgresql-15", "mariadb"], indirect=True)


# --- many rows of one key


@on_postgresql
async def test_a_backlog_of_one_key_is_not_walked_through_for_the_slots_that_have_no_rows(place: Place) -> None:
    """A statistic that knows one slot only makes the index by position look as good as the one by slot."""
    with psycopg.connect(place.url, autocommit=True) as connection:
        connection.execute(
            """INSERT INTO postroom_outbox (slot, id, topic, key, payload)
            SELECT %s, gen_random_uuid()::text, 't', %s, 'x' FROM generate_series(1, 20000)""",
            [SLOT, HELD],
        )
        connection.execute("ANALYZE postroom_outbox")
    await place.store.close()
    before = rows_read(place, "postroom_outbox")
    await place.store.open()
    others = [slot for slot in ALL_SLOTS if slot != SLOT]
    assert (await place.store.fetch([Range(slot, 0, 500) for slot in others], 1_000)).messages == []
    assert list((await place.store.glance([Range(slot, 0, 500) for slot in others])).seen) == []
    # Looking again at what was passed
    assert (await place.store.fetch([Range(slot, 20_000, 500, 0) for slot in others], 1_000)).messages == []
    assert len((await place.store.fetch([Range(slot, 0, 10) for slot in ALL_SLOTS], 10)).messages) == 10
    await place.store.close()
    assert rows_read(place, "postroom_outbox") - before <= 20
    await place.store.open()


# --- many rows behind one key


def hold_many(place: Place) -> str:
    """A dead message that holds its key, and many rows parked behind it."""
    id = new_id()
    with psycopg.connect(place.url) as connection:
        connection.execute(
            """INSERT INTO postroom_dead (id, slot, topic, key, payload, position, reason, error, holding)
            VALUES (%s, %s, 't', %s, 'x', 1, 'attempts', 'refused', true)""",
            [id, SLOT, HELD],
        )
        connection.execute(
            """INSERT INTO postroom_holds (slot, topic, key, message_id, position, attempts, status, error)
            VALUES (%s, 't', %s, %s, 1, 5, 'dead', 'refused')""",
            [SLOT, HELD, id],
        )
        connection.execute(
            """INSERT INTO postroom_parked (position, behind, slot, id, topic, key, payload)
            SELECT n + 1, 'key', %s, gen_random_uuid()::text, 't', %s, 'x' FROM generate_series(1, %s) AS n""",
            [SLOT, HELD, MANY],
        )
        connection.execute("SELECT setval(pg_get_serial_sequence('postroom_outbox', 'position'), %s)", [2 * MANY])
    return id


def rows_read(place: Place, table: str = "postroom_parked") -> int:
    """Of one table, so far, by everybody; once all others are gone, since only then all is told."""
    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    read = "SELECT seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_user_tables WHERE relname = %s"
    with psycopg.connect(place.url, autocommit=True) as connection:
        for _ in range(1_000):
            if connection.execute(others + " AND backend_type = 'client backend'").fetchone() == (0,):
                break
            connection.execute("SELECT pg_sleep(0.02), pg_stat_clear_snapshot()")
        [found] = connection.execute(read, [table]).fetchone() or [0]
        return found


@on_postgresql
async def test_what_is_parked_behind_one_key_costs_other_keys_nothing(place: Place) -> None:
    hold_many(place)
    await place.store.close()
    place.engine.dispose()
    before = rows_read(place)
    await place.store.open()
    # The slot of the held key too, and its neighbours in it.
    others = [number for number in range(2_000) if slot_of(f"k{number}", "") == SLOT][:10]
    place.add(5, key=f"k{others[0]}")
    owner = await own(place.store)
    await place.store.gates(ALL_SLOTS)
    for _ in range(20):
        await place.store.glance([Range(slot, 0, 1) for slot in ALL_SLOTS])
        await place.store.releasing(ALL_SLOTS)
        await place.store.due(ALL_SLOTS, 100)
    delivered = await fetch_all(place.store)
    await owner.deliver(*delivered)
    await place.store.close()
    place.engine.dispose()
    assert len(delivered) == 5
    assert rows_read(place) - before == 0
    await place.store.open()
    await place.store.fetch_parked(Gate(SLOT, "t", HELD), 0, 7)
    await place.store.close()
    assert rows_read(place) - before == 7, "it is told if somebody reads them"
    await place.store.open()


@on_postgresql
async def test_a_relay_delivers_other_keys_without_looking_at_what_is_parked(place: Place) -> None:
    hold_many(place)
    place.add(50, key="other")
    await place.store.close()
    place.engine.dispose()
    before, delivered = rows_read(place), asyncio.Event()
    seen: list[Message] = []

    def deliver(message: Message) -> None:
        seen.append(message)
        if len(seen) == 50:
            delivered.set()

    async with Relay(place.url, deliver, poll_interval="20ms"):
        await asyncio.wait_for(delivered.wait(), 30)
        await asyncio.sleep(0.5)  # it goes on looking
    assert rows_read(place) - before == 0
    await place.store.open()


@on_postgresql
async def test_a_head_with_many_rows_behind_it_is_revived_without_touching_them(place: Place) -> None:
    id = hold_many(place)
    await place.store.close()
    place.engine.dispose()
    before = rows_read(place)
    async with Desk(place.url) as desk:
        assert await desk.revive(id) == 1
    assert rows_read(place) - before <= 1
    await place.store.open()
    [hold] = await place.store.releasing(ALL_SLOTS)
    assert hold.message_id == id
    assert place.count("parked") == MANY + 1


# --- many dead messages


@pytest.mark.parametrize("verb", ["revive", "discard"])
async def test_thousands_of_dead_messages_are_mended_in_batches(place: Place, verb: str) -> None:
    ids = place.bury(2_500)
    told: list[tuple[int, int | None]] = []
    async with Desk(place.url) as desk:
        done = await getattr(desk, verb)(topic="t", progress=lambda *numbers: told.append(numbers))
    assert done == 2_500
    assert told == [(1_000, 2_500), (2_000, 2_500), (2_500, 2_500)]
    assert place.count("dead") == 0
    target = "hot" if verb == "revive" else "archive"
    assert place.count(target) == 2_500
    if verb == "revive":
        assert {row.id for row in await fetch_all(place.store)} == set(ids)


async def test_whoever_interrupts_between_batches_leaves_each_message_in_one_place(place: Place) -> None:
    place.bury(2_500)

    def interrupt(done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    async with Desk(place.url) as desk:
        with pytest.raises(KeyboardInterrupt):
            await desk.revive(all=True, progress=interrupt)
        assert (place.count("dead"), place.count("hot")) == (1_500, 1_000)
        assert await desk.revive(all=True) == 1_500
    assert (place.count("dead"), place.count("hot")) == (0, 2_500)


# --- cleaning beside delivery


@on_servers
async def test_cleaning_and_delivery_go_on_side_by_side(place: Place) -> None:
    """Idempotency keys and the archive are cleaned in small batches while messages are written and delivered."""
    outbox = Outbox(dedupe_window=0.05)
    stopping = asyncio.Event()
    added: list[str] = []
    delivered: set[str] = set()

    def write() -> None:
        number = 0
        while not stopping.is_set():
            batch = [
                Message(topic="t", payload=b"x", key=f"k{n % 7}", idempotency_key=f"{number}-{n}") for n in range(20)
            ]
            with place.engine.begin() as connection:
                outbox.add_many(connection, batch)
            added.extend(message.id for message in batch)
            number += 1

    cleaned = 0
    writer = asyncio.create_task(asyncio.to_thread(write))
    relay = Relay(place.url, lambda message: delivered.add(message.id), outbox=outbox, retention=0.05)
    async with relay:
        while cleaned < 1_500 and not writer.done():
            cleaned += await place.store.clean(retention=0.05, limit=50)
        stopping.set()
        await writer  # no deadlock has ended it
        async with asyncio.timeout(60):
            while place.count("hot"):
                await place.store.clean(retention=0.05, limit=50)
    assert delivered == set(added), "nothing undelivered was touched"
    assert cleaned >= 1_500


async def test_cleaning_leaves_keys_that_a_writer_has_renewed(place: Place) -> None:
    with place.engine.begin() as connection:
        Outbox(dedupe_window=0.01).add(connection, "t", b"x", idempotency_key="a")
    await asyncio.sleep(0.05)
    with place.engine.begin() as connection:
        assert Outbox(dedupe_window=3600).add(connection, "t", b"x", idempotency_key="a").duplicate is False
    assert await place.store.clean(retention=None, limit=10) == 0
    assert len(await place.store.entries(Query(state="pending"))) == 2
