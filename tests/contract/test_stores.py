"""Every store, through the suite that ships with the package; and what is special about each."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, delete, insert

from postroom.errors import NoTransactionError, TablesMissing
from postroom.message import Message, slot_of
from postroom.ports import Query, Store
from postroom.stores.memory import MemoryStore, MemoryTransaction
from postroom.stores.schema import define_tables
from postroom.stores.sqlite import SqliteStore
from postroom.testing import FakeClock
from postroom.testing.store_contract import StoreContract
from postroom.testing.store_contract.kit import ALL_SLOTS, MANY, fetch_all, ids, message, messages, own


class TestMemoryStore(StoreContract):
    async def make_store(self, clock: FakeClock) -> Store:
        return MemoryStore(clock=clock)

    async def make_another(self, store: MemoryStore, clock: FakeClock) -> Store:
        return store

    async def insert(self, store: MemoryStore, messages: Sequence[Message]) -> None:
        with store.begin() as transaction:
            for message in messages:
                add(transaction, message, strict=message.sequence is not None)

    async def remove(self, store: MemoryStore, message: Message) -> None:
        for shelf in (store.tables.hot, store.tables.parked, store.tables.dead):
            shelf.take(message.position)


class TestSqliteStore(StoreContract):
    TABLES = define_tables()

    @pytest.fixture(autouse=True)
    def database(self, tmp_path: Path) -> Iterator[None]:
        self.url = f"sqlite:///{tmp_path}/outbox.db"
        self.engine: Engine = create_engine(self.url)
        yield
        self.engine.dispose()

    async def make_store(self, clock: FakeClock) -> Store:
        return SqliteStore(self.url, clock=clock)

    async def make_another(self, store: SqliteStore, clock: FakeClock) -> Store:
        return SqliteStore(self.url, clock=clock)

    async def insert(self, store: SqliteStore, messages: Sequence[Message]) -> None:
        now = (await store.fetch([])).now
        with self.engine.begin() as connection:
            for message in messages:
                if message.deliver_at is not None and message.deliver_at > now:
                    connection.execute(insert(self.TABLES.later), row_of(message, now) | {"due_at": message.deliver_at})
                else:
                    connection.execute(insert(self.TABLES.hot), row_of(message, now))

    async def remove(self, store: SqliteStore, message: Message) -> None:
        with self.engine.begin() as connection:
            for table in (self.TABLES.hot, self.TABLES.parked, self.TABLES.dead):
                connection.execute(delete(table).where(table.c.position == message.position))

    async def test_tables_are_not_created_unasked(self, clock: FakeClock, tmp_path: Path) -> None:
        store = SqliteStore(f"sqlite:///{tmp_path}/empty.db", clock=clock)
        with pytest.raises(TablesMissing):
            await store.open(create_tables=False)
        await store.close()


def row_of(message: Message, now: Any) -> dict[str, Any]:
    return {
        "slot": slot_of(message.key, message.id),
        "id": message.id,
        "topic": message.topic,
        "key": message.key,
        "type": message.type,
        "payload": message.payload,
        "content_type": message.content_type,
        "headers": json.dumps(dict(message.headers)) if message.headers else None,
        "sequence": message.sequence,
        "generation": None if message.sequence is None else 1,
        "created_at": now,
        "expires_at": message.expires_at,
    }


# --- the memory store as a place to write to


def add(
    transaction: MemoryTransaction,
    message: Message,
    *,
    window: float | None = None,
    strict: bool = False,
    delay: float | None = None,
) -> Message:
    transaction.add(message, message.payload, message.headers, window, strict, delay)
    return message


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def memory(clock: FakeClock) -> MemoryStore:
    return MemoryStore(clock=clock)


async def test_messages_appear_at_commit_and_not_before(memory: MemoryStore) -> None:
    with memory.begin() as transaction:
        written = [add(transaction, message()) for _ in range(3)]
        assert await fetch_all(memory) == []
    assert ids(await fetch_all(memory)) == ids(written)


async def test_positions_follow_the_commits(memory: MemoryStore) -> None:
    with memory.begin() as slow:
        first = add(slow, message())
        with memory.begin() as quick:
            second = add(quick, message())
    assert ids(await fetch_all(memory)) == ids([second, first])


async def test_a_rollback_leaves_nothing(memory: MemoryStore) -> None:
    with suppress(RuntimeError), memory.begin() as transaction:
        add(transaction, message(idempotency_key="once"), window=60, strict=True)
        raise RuntimeError
    assert await memory.entries(Query()) == []
    with memory.begin() as transaction:
        again = add(transaction, message(idempotency_key="once"), window=60, strict=True)
    assert (again.duplicate, again.sequence) == (False, 1)


async def test_a_savepoint_that_is_rolled_back_leaves_nothing(memory: MemoryStore) -> None:
    with memory.begin() as transaction:
        before = add(transaction, message(), strict=True)
        with suppress(RuntimeError), transaction.savepoint():
            add(transaction, message(idempotency_key="once"), window=60, strict=True)
            with transaction.savepoint():
                add(transaction, message(), strict=True)
            raise RuntimeError
        after = add(transaction, message(idempotency_key="once"), window=60, strict=True)
    assert ids(await fetch_all(memory)) == ids([before, after])
    assert [row.sequence for row in await fetch_all(memory)] == [1, 2]


async def test_a_savepoint_that_is_released_stays(memory: MemoryStore) -> None:
    with memory.begin() as transaction:
        with transaction.savepoint():
            kept = add(transaction, message(idempotency_key="once"), window=60, strict=True)
        assert add(transaction, message(idempotency_key="once"), window=60).duplicate
        assert add(transaction, message(), strict=True).sequence == 2
    assert (await fetch_all(memory))[0].id == kept.id


async def test_a_transaction_that_is_over_takes_no_message(memory: MemoryStore) -> None:
    with memory.begin() as transaction:
        pass
    with pytest.raises(NoTransactionError):
        add(transaction, message())


async def test_what_the_caller_changes_after_add_is_not_written(memory: MemoryStore) -> None:
    with memory.begin() as transaction:
        changed = add(transaction, message(headers={"tenant": "1"}))
        changed.topic = "elsewhere"
        changed.headers["tenant"] = "2"  # type: ignore[index]
    (row,) = await fetch_all(memory)
    assert (row.topic, dict(row.headers)) == ("orders", {"tenant": "1"})


async def test_a_duplicate_is_ignored_within_one_transaction(memory: MemoryStore) -> None:
    with memory.begin() as transaction:
        first, second = (add(transaction, message(idempotency_key="once"), window=60) for _ in range(2))
    assert (first.duplicate, second.duplicate) == (False, True)
    assert ids(await fetch_all(memory)) == [first.id]


async def test_a_duplicate_is_ignored_across_transactions_and_after_delivery(
    memory: MemoryStore, clock: FakeClock
) -> None:
    owner = await own(memory)
    with memory.begin() as transaction:
        add(transaction, message(idempotency_key="once"), window=60)
    await owner.deliver(*await fetch_all(memory))
    clock.advance(59)
    with memory.begin() as transaction:
        assert add(transaction, message(idempotency_key="once"), window=60, strict=True).sequence is None
    assert await fetch_all(memory) == []
    clock.advance(1)
    with memory.begin() as transaction:
        assert add(transaction, message(idempotency_key="once"), window=60).duplicate is False
    assert len(await fetch_all(memory)) == 1


async def test_of_two_open_transactions_with_one_idempotency_key_the_first_to_commit_wins(memory: MemoryStore) -> None:
    with memory.begin() as slow:
        loser = add(slow, message(idempotency_key="once"), window=60)
        with memory.begin() as quick:
            winner = add(quick, message(idempotency_key="once"), window=60)
    assert (winner.duplicate, loser.duplicate) == (False, True)
    assert ids(await fetch_all(memory)) == [winner.id]


async def test_dedupe_keys_are_cleaned_after_their_window(memory: MemoryStore, clock: FakeClock) -> None:
    with memory.begin() as transaction:
        add(transaction, message(idempotency_key="once"), window=60)
    assert await memory.clean(retention=None, limit=MANY) == 0
    clock.advance(61)
    assert await memory.clean(retention=None, limit=MANY) == 1
    assert len(await fetch_all(memory)) == 1


async def test_strict_numbers_are_dense_per_topic_and_key_in_commit_order(memory: MemoryStore) -> None:
    with memory.begin() as slow:
        add(slow, message("a"), strict=True)
        with memory.begin() as quick:
            for key, topic in [("a", "orders"), ("a", "mail"), ("b", "orders"), ("a", "orders"), (None, "orders")]:
                add(quick, message(key, topic), strict=True)
    rows = await fetch_all(memory)
    assert [row.sequence for row in rows] == [1, 1, 1, 2, None, 3]
    assert len({row.generation for row in rows if (row.topic, row.key) == ("orders", "a")}) == 1


async def test_a_delayed_message_is_due_after_its_delay(memory: MemoryStore, clock: FakeClock) -> None:
    with memory.begin() as transaction:
        later = [
            add(transaction, message(), delay=30),
            add(transaction, message(deliver_at=clock.now() + timedelta(seconds=10))),
        ]
        now = add(transaction, message(deliver_at=clock.now() - timedelta(seconds=10)))
    assert ids(await fetch_all(memory)) == [now.id]
    clock.advance(30)
    assert (await memory.due(ALL_SLOTS, MANY)).moved == 2
    assert ids(await fetch_all(memory)) == ids([now, later[1], later[0]])


async def test_a_commit_on_another_thread_wakes_a_relay(memory: MemoryStore) -> None:
    def write() -> None:
        with memory.begin() as transaction:
            add(transaction, message())

    async with memory.wakeup(1) as wakeup:
        waiting = asyncio.create_task(wakeup.wait(10))
        await asyncio.sleep(0)
        thread = threading.Thread(target=write)
        thread.start()
        assert await waiting
    thread.join()


async def test_threads_that_write_and_a_relay_that_reads_do_not_disturb_each_other(memory: MemoryStore) -> None:
    owner = await own(memory)

    def write() -> None:
        for one in messages(300):
            with memory.begin() as transaction:
                add(transaction, one, strict=True)

    threads = [threading.Thread(target=write) for _ in range(3)]
    for thread in threads:
        thread.start()
    delivered: list[Message] = []
    while len(delivered) < 900:
        rows = await fetch_all(memory)
        await owner.deliver(*rows)
        delivered += rows
    for thread in threads:
        thread.join()
    assert [row.sequence for row in delivered] == list(range(1, 901))
