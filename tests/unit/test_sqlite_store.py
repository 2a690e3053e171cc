"""What is SQLite's own: one file and several processes, its clock, its locks, its ways to fail."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, insert

from postroom.errors import ConfigurationError, SchemaMismatch, StoreError, StoreUnavailable, TablesMissing
from postroom.message import SLOTS, Message, new_id, slot_of
from postroom.ports import Dead, Query, Range, Retry, Settlement
from postroom.stores import sql_read, sqlite
from postroom.stores.schema import define_tables
from postroom.stores.sql_rows import UNREADABLE_HEADERS, message_columns, read_message
from postroom.stores.sqlite import SqliteStore

ALL = [Range(slot, 0, 1000) for slot in range(SLOTS)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "outbox.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(f"sqlite:///{path}")
    await store.open()
    yield store
    await store.close()


def write(path: Path, count: int = 1, *, key: str | None = "a", **columns: Any) -> list[str]:
    """Commit messages as any program could that knows SQL."""
    ids = [new_id() for _ in range(count)]
    values = {"topic": "orders", "key": key, "payload": b"{}", **columns}
    names = ", ".join(["id", "slot", *values])
    marks = ", ".join("?" * (2 + len(values)))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        rows = [(id, slot_of(key, id), *values.values()) for id in ids]
        connection.executemany(f"INSERT INTO postroom_outbox ({names}) VALUES ({marks})", rows)
        connection.execute("COMMIT")
    return ids


async def fetch_all(store: SqliteStore) -> list[Message]:
    return sorted((await store.fetch(ALL)).messages, key=lambda message: message.position)


async def own(store: SqliteStore, relay: str = "relay-1") -> dict[int, int]:
    taken = await store.acquire(relay, range(SLOTS), 60)
    return {slot: lease.epoch for slot, lease in taken.items()}


async def deliver(store: SqliteStore, messages: list[Message], **options: Any) -> None:
    await store.settle(Settlement(relay="relay-1", epochs={}, delivered=messages, **options))


@contextmanager
def locked(path: Path) -> Iterator[sqlite3.Connection]:
    """Another program's transaction, which keeps every writer waiting."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield connection


class Processes:
    """Programs that run beside the test and print one JSON value each."""

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[str]] = []

    def start(self, program: str, *arguments: object) -> None:
        command = [sys.executable, "-c", program, *map(str, arguments)]
        self._running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))

    async def answers(self) -> list[Any]:
        outputs = [await asyncio.to_thread(process.communicate, timeout=60) for process in self._running]
        assert [process.returncode for process in self._running] == [0] * len(self._running)
        return [json.loads(output) for output, _ in outputs]

    def kill(self) -> None:
        for process in self._running:
            with process:
                process.kill()


@pytest.fixture
def processes() -> Iterator[Processes]:
    processes = Processes()
    yield processes
    processes.kill()


# --- several processes, one file

OPEN_AND_ACQUIRE = """
import asyncio, json, sys
from postroom.stores.sqlite import SqliteStore

async def main(url, relay):
    store = SqliteStore(url)
    await store.open(claim="slots")
    taken = {}
    for slot in range(0, 64, 8):
        taken |= await store.acquire(relay, range(slot, slot + 8), 60)
    await store.close()
    print(json.dumps([[slot, lease.epoch] for slot, lease in taken.items()]))

asyncio.run(main(*sys.argv[1:]))
"""


async def test_processes_that_open_at_once_set_up_one_database_and_share_the_slots(
    path: Path, processes: Processes
) -> None:
    for number in range(4):
        processes.start(OPEN_AND_ACQUIRE, f"sqlite:///{path}", f"relay-{number}")
    taken = [lease for answer in await processes.answers() for lease in answer]
    assert sorted(slot for slot, _ in taken) == list(range(SLOTS))
    assert len({epoch for _, epoch in taken}) == SLOTS


RELAY = """
import asyncio, json, sys
from postroom.ports import Range, Settlement
from postroom.stores.sqlite import SqliteStore

async def main(url, relay, first, end):
    store = SqliteStore(url)
    await store.open()
    slots = range(int(first), int(end))
    epochs = {slot: lease.epoch for slot, lease in (await store.acquire(relay, slots, 60)).items()}
    done, last = [], False
    while not last:
        messages = (await store.fetch([Range(slot, 0, 5) for slot in slots])).messages
        if not messages:
            await asyncio.sleep(0.01)
        last = any(message.topic == "the end" for message in messages)
        await store.settle(Settlement(relay=relay, epochs=epochs, delivered=messages))
        done += [message.id for message in messages]
    await store.close()
    print(json.dumps(done))

asyncio.run(main(*sys.argv[1:]))
"""


async def test_two_relays_and_a_writer_in_three_processes_lose_nothing_and_repeat_nothing(
    store: SqliteStore, path: Path, processes: Processes
) -> None:
    processes.start(RELAY, f"sqlite:///{path}", "relay-1", 0, 32)
    processes.start(RELAY, f"sqlite:///{path}", "relay-2", 32, 64)
    written = [id for number in range(50) for id in write(path, 3, key=f"key-{number}")]
    for slot in (0, 63):
        key = next(f"key-{number}" for number in range(1000) if slot_of(f"key-{number}", "") == slot)
        written += write(path, key=key, topic="the end")
    delivered = [id for answer in await processes.answers() for id in answer]
    left = [message.id for message in await fetch_all(store)]
    assert sorted(delivered + left) == sorted(written)


async def test_stores_that_open_at_once_in_one_process_agree(path: Path) -> None:
    stores = [SqliteStore(f"sqlite:///{path}") for _ in range(5)]
    await asyncio.gather(*(store.open(claim="slots") for store in stores))
    assert [(await store.status()).meta.claim for store in stores] == ["slots"] * 5
    await asyncio.gather(*(store.close() for store in stores))


async def test_readers_do_not_wait_for_a_writer(store: SqliteStore, path: Path) -> None:
    ids = write(path, 2)
    with locked(path):
        assert [message.id for message in await fetch_all(store)] == ids
        assert (await store.status()).counts["pending"] == 2


async def test_the_database_is_in_wal_mode(store: SqliteStore, path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


async def test_positions_are_never_used_again(store: SqliteStore, path: Path) -> None:
    for expected in (1, 2, 3):
        write(path)
        (message,) = await fetch_all(store)
        assert message.position == expected
        await deliver(store, [message])
        await store.close()
        await store.open()


# --- waking up

WRITER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("INSERT INTO postroom_outbox (slot, id, topic, payload) VALUES (0, 'x', 't', '')")
print(1)
"""


async def test_a_commit_of_another_process_wakes(store: SqliteStore, path: Path, processes: Processes) -> None:
    async with store.wakeup(0.01) as wakeup:
        assert wakeup.name == "data_version"
        while await wakeup.wait(0):
            pass
        waiting = asyncio.create_task(wakeup.wait(30))
        processes.start(WRITER, path)
        assert await waiting
    assert await processes.answers() == [1]


async def test_its_own_commits_wake_nobody(store: SqliteStore, path: Path) -> None:
    write(path, 2)
    async with store.wakeup(0.01) as wakeup:
        while await wakeup.wait(0):
            pass
        await deliver(store, await fetch_all(store))
        await own(store)
        assert not await wakeup.wait(0.03)


async def test_a_database_in_memory_is_polled_and_written_to_through_the_store() -> None:
    store = SqliteStore("sqlite://")
    await store.open()
    id = new_id()
    async with store.transaction() as connection:
        row = {"slot": 1, "id": id, "topic": "t", "payload": b"", "created_at": datetime.now(UTC)}
        await connection.execute(insert(store.tables.hot), row)
    with suppress(RuntimeError):
        async with store.transaction() as connection:
            await connection.execute(insert(store.tables.hot), row)
            raise RuntimeError
    async with store.wakeup(0) as wakeup:
        assert (wakeup.name, wakeup.rings) == ("polling", False)
    assert (await store.glance([Range(1, 0, 1)])).seen
    assert [message.id for message in await fetch_all(store)] == [id]
    await store.close()


# --- cancellation


async def until_it_waits(store: SqliteStore, task: asyncio.Task[Any]) -> None:
    while not store._turn.locked():
        assert not task.done()
        await asyncio.sleep(0.001)


async def test_a_settlement_that_is_cancelled_is_finished_first(store: SqliteStore, path: Path) -> None:
    epochs = await own(store)
    write(path, 2)
    head, _ = await fetch_all(store)
    settlement = Settlement(relay="relay-1", epochs=epochs, retries=[Retry(head, 1, 60, "refused")])
    with locked(path) as other:
        settling = asyncio.create_task(store.settle(settlement))
        await until_it_waits(store, settling)
        for _ in range(3):
            settling.cancel()
            await asyncio.sleep(0.001)
        assert not settling.done()
        other.execute("COMMIT")
    with pytest.raises(asyncio.CancelledError):
        await settling
    assert [hold.message_id for hold in await store.holds()] == [head.id]


async def test_deliveries_that_are_cancelled_are_written(store: SqliteStore, path: Path) -> None:
    write(path, 2)
    with locked(path) as other:
        settling = asyncio.create_task(deliver(store, await fetch_all(store)))
        await until_it_waits(store, settling)
        settling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await settling
        other.execute("COMMIT")
    assert await fetch_all(store) == []


async def test_a_cancelled_call_leaves_the_connection_usable(store: SqliteStore, path: Path) -> None:
    write(path)
    calls = [
        lambda: store.acquire("relay-1", [1], 60),
        lambda: store.fetch(ALL),
        lambda: store.gates([1]),
        lambda: store.entries(Query()),
        lambda: store.clean(retention=None, limit=10),
    ]
    for call in calls:
        for steps in range(1, 6):
            task = asyncio.create_task(call())
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            # After one step the answer cannot have come yet; later the call may be over before it is cancelled.
            assert task.cancelled() or (steps > 1 and task.exception() is None)
    await deliver(store, await fetch_all(store))
    assert (await store.status()).counts["pending"] == 0


async def test_a_call_that_waits_for_its_turn_can_be_cancelled_at_once(store: SqliteStore, path: Path) -> None:
    with locked(path):
        first = asyncio.create_task(store.acquire("relay-1", [1], 60))
        await until_it_waits(store, first)
        second = asyncio.create_task(store.acquire("relay-2", [2], 60))
        await asyncio.sleep(0.001)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert not first.done()
    assert list(await first) == [1]
    assert list(await store.acquire("relay-3", [1, 2], 60)) == [2]


# --- set-up and versions


def change_meta(path: Path, **values: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for name, value in values.items():
            connection.execute("UPDATE postroom_meta SET value = ? WHERE name = ?", (value, name))


async def reopened(path: Path, **options: Any) -> None:
    store = SqliteStore(f"sqlite:///{path}")
    await store.open(**options)
    await store.close()


async def test_tables_of_a_newer_version_are_used_if_they_allow_it(store: SqliteStore, path: Path) -> None:
    change_meta(path, version="9")
    await reopened(path)


async def test_tables_of_a_newer_version_that_need_newer_code_are_refused(store: SqliteStore, path: Path) -> None:
    change_meta(path, version="9", min_compatible="9")
    with pytest.raises(SchemaMismatch, match="upgrade postroom"):
        await reopened(path)


async def test_nothing_is_created_in_a_database_that_needs_newer_code(store: SqliteStore, path: Path) -> None:
    change_meta(path, version="9", min_compatible="9")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE postroom_later")
        with pytest.raises(SchemaMismatch):
            await reopened(path)
        assert connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'postroom_later'").fetchall() == []


async def test_tables_of_an_older_version_are_refused(store: SqliteStore, path: Path) -> None:
    change_meta(path, version="0")
    with pytest.raises(SchemaMismatch, match="postroom init"):
        await reopened(path)


async def test_a_table_that_is_not_ours_is_refused(store: SqliteStore, path: Path) -> None:
    change_meta(path, version="blue")
    with pytest.raises(SchemaMismatch, match="blue"):
        await reopened(path)


@pytest.mark.parametrize("create_tables", [True, False])
async def test_rows_are_seeded_where_somebody_else_made_the_tables(path: Path, create_tables: bool) -> None:
    engine = create_engine(f"sqlite:///{path}")
    define_tables().metadata.create_all(engine)
    engine.dispose()
    write(path)
    store = SqliteStore(f"sqlite:///{path}")
    await store.open(create_tables=create_tables)
    assert len(await own(store)) == SLOTS
    assert len(await fetch_all(store)) == 1
    await store.close()


async def test_missing_tables_name_the_remedy_and_leave_no_file(path: Path) -> None:
    with pytest.raises(TablesMissing, match="postroom init"):
        await reopened(path, create_tables=False)
    assert not path.exists()
    path.touch()
    with pytest.raises(TablesMissing, match="postroom init"):
        await reopened(path, create_tables=False)


async def test_opening_a_database_that_is_set_up_waits_for_no_writer(store: SqliteStore, path: Path) -> None:
    await reopened(path, claim="slots")
    with locked(path):
        await reopened(path, claim="slots")


async def test_outboxes_with_different_names_live_in_one_file(store: SqliteStore, path: Path) -> None:
    other = SqliteStore(f"sqlite:///{path}", name="billing")
    await other.open()
    write(path)
    assert len(await fetch_all(store)) == 1
    assert await fetch_all(other) == []
    assert other.tables.hot.name == "postroom_billing_outbox"
    await other.close()


# --- bad input


async def test_nothing_connects_before_open(path: Path) -> None:
    store = SqliteStore(f"sqlite:///{path}")
    assert not path.exists()
    with pytest.raises(StoreError, match="not open"):
        await store.fetch(ALL)
    with pytest.raises(StoreError, match="not open"):
        await store.status()
    await store.close()


@pytest.mark.parametrize("url", ["sqlite+aiosqlite:///{path}", "sqlite:///{path}"])
async def test_both_forms_of_the_url_are_the_same_database(store: SqliteStore, path: Path, url: str) -> None:
    write(path)
    other = SqliteStore(url.format(path=path))
    await other.open()
    assert len(await fetch_all(other)) == 1
    await other.close()


@pytest.mark.parametrize("url", ["postgresql://localhost/app", "no url", "sqlite+pysqlcipher:///x.db"])
def test_the_url_of_something_else_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"sqlite:///app\.db"):
        SqliteStore(url)


def test_a_schema_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="prefix"):
        SqliteStore("sqlite://", schema="app")


async def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=f"{tmp_path}/nowhere does not exist"):
        await reopened(tmp_path / "nowhere" / "outbox.db")


async def test_a_folder_is_no_database(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is a folder"):
        await reopened(tmp_path)


async def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.write_bytes(b"Dear Sir or Madam, " * 100)
    with pytest.raises(StoreError, match="not a database") as caught:
        await reopened(path)
    assert not isinstance(caught.value, StoreUnavailable)
    assert str(path) in str(caught.value)
    assert path.read_bytes().startswith(b"Dear")


async def test_a_read_only_database_can_be_read(store: SqliteStore, path: Path) -> None:
    write(path)
    reader = SqliteStore(f"sqlite:///file:{path}?mode=ro&uri=true")
    await reader.open()
    assert (await reader.status()).counts["pending"] == 1
    with pytest.raises(StoreError, match="readonly") as caught:
        await own(reader)
    assert not isinstance(caught.value, StoreUnavailable)
    await reader.close()


async def test_a_database_that_stays_locked_is_unavailable(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT", 0.01)
    store = SqliteStore(f"sqlite:///{path}")
    await store.open()
    write(path)
    messages = await fetch_all(store)
    with locked(path):
        with pytest.raises(StoreUnavailable, match="locked"):
            await own(store)
        with pytest.raises(StoreUnavailable, match="locked"):
            await deliver(store, messages)
    await deliver(store, messages)
    assert await fetch_all(store) == []
    await store.close()


async def test_tables_that_vanish_are_missing(store: SqliteStore, path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DROP TABLE postroom_outbox")
    with pytest.raises(TablesMissing, match="postroom init"):
        await store.fetch(ALL)
    with pytest.raises(TablesMissing, match="postroom init"):
        await store.entry("x")


async def test_a_row_that_a_foreign_writer_got_wrong_stops_nobody(store: SqliteStore, path: Path) -> None:
    write(path, key=None, headers="tenant=1", payload="grüße", created_at="yesterday")
    write(path, key=None, headers='{"tenant": 1}', created_at="2024-05-06T07:08:09+02:00")
    write(path, key=None, headers="[1]", expires_at="2024-05-06 07:08:09")
    first, second, third = await fetch_all(store)
    assert (first.payload, first.created_at) == ("grüße".encode(), None)
    assert first.headers == {UNREADABLE_HEADERS: "tenant=1"}
    assert second.headers == {"tenant": "1"}
    assert second.created_at == datetime(2024, 5, 6, 5, 8, 9, tzinfo=UTC)
    assert third.headers == {UNREADABLE_HEADERS: "[1]"}
    assert third.expires_at == datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)


def test_every_field_of_a_message_is_read() -> None:
    now = datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
    values = {
        "position": 7, "slot": 3, "id": "x", "topic": "t", "key": "k", "type": "T", "payload": b"p",
        "content_type": "text/plain", "sequence": 4, "generation": 5, "replays": 6, "created_at": now,
        "expires_at": now,
    }  # fmt: skip
    row = {**values, "headers": '{"a": "b"}', "attempts": 2}
    message = read_message([row[column.name] for column in message_columns(define_tables().hot)])
    assert message == Message(**values, headers={"a": "b"}, attempt=3)
    assert all(hasattr(message, field.name) for field in fields(Message))


# --- reading in step, and corners of the flow


async def test_with_a_limit_the_lowest_positions_of_all_ranges_come(store: SqliteStore, path: Path) -> None:
    for number in range(10):
        write(path, 3, key=f"key-{number}")
    everything = await fetch_all(store)
    ranges = [Range(slot, everything[1].position, 2) for slot in range(SLOTS)]
    in_turn = sorted((await store.fetch(ranges)).messages, key=lambda message: message.position)
    assert (await store.fetch(ranges, 7)).messages == in_turn[:7]
    assert (await store.fetch(ranges, 1000)).messages == in_turn


async def test_what_a_successor_put_off_is_gone_once_a_former_owner_delivered_it(
    store: SqliteStore, path: Path
) -> None:
    epochs = await own(store, "relay-2")
    for retention in (None, 60.0):
        write(path, key=None)
        (message,) = await fetch_all(store)
        await store.settle(Settlement(relay="relay-2", epochs=epochs, retries=[Retry(message, 1, 60, "refused")]))
        await deliver(store, [message], retention=retention)
        assert [entry.state for entry in await store.entries(Query())] == ([] if retention is None else ["delivered"])


async def test_replays_are_counted_even_if_they_leave_no_trace(store: SqliteStore, path: Path) -> None:
    (id,) = write(path)
    await deliver(store, await fetch_all(store), retention=60.0)
    for count in (1, 2):
        assert await store.replay([id], new_id=False) == 1
        (message,) = await fetch_all(store)
        assert (message.id, message.replays) == (id, count)
        await deliver(store, [message])


async def test_an_expired_message_that_is_revived_does_not_expire_again(store: SqliteStore, path: Path) -> None:
    epochs = await own(store)
    (id,) = write(path, expires_at="2024-05-06 07:08:09")
    (message,) = await fetch_all(store)
    expired = Dead(message, 0, "expired", "", False, None)
    await store.settle(Settlement(relay="relay-1", epochs=epochs, dead=[expired]))
    assert await store.revive([id]) == 1
    (again,) = await fetch_all(store)
    assert (again.id, again.expires_at) == (id, None)


async def test_status_counts_so_many_archived_messages_and_no_more(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs = await own(store)
    write(path, 3)
    rows = await fetch_all(store)
    await store.settle(Settlement(relay="relay-1", epochs=epochs, retention=60, delivered=rows))
    assert (await store.status()).counts["delivered"] == 3
    monkeypatch.setattr(sql_read, "MOST_ARCHIVED", 2)
    assert (await store.status()).counts["delivered"] == 2
