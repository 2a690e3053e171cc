"""What `Outbox.add` promises on every kind of connection.

Inherit from `ConnectionContract`, say how a transaction and a savepoint of that kind are made, and run it with pytest
and pytest-asyncio. `SqlConnectionContract` is for rows that can be read with SQLAlchemy, `ServerConnectionContract` for
databases with several writers at once.
"""

from __future__ import annotations

import asyncio
import json
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, Table, delete, inspect, select

from ..errors import NoTransactionError, TablesMissing, UnsupportedConnection
from ..message import IDEMPOTENCY_HEADER, TASKS_TOPIC, Message, slot_of
from ..outbox import Outbox
from ..tasks import Task, Tasks
from .clock import FakeClock
from .suite import Suite

REMEDY = r"postroom_absent_outbox.*postroom init.*create_tables"

NAMES = [
    'o\'clock "%s" ? :a \\',
    "100%",
    "%%d %(a)s $1 {b}",
    "\\",
    "\\' -- ; /* */",
    "a\nb\tc\r\x1a",
    "ünï\N{SNOWMAN}\U0001f40c",
    "k" * 255,
    " ",
    "\U0001f40c" * 255,
]
LOOKALIKES = ["a", "A", "a ", " a", "ä", "a\N{COMBINING DIAERESIS}", "\N{FULLWIDTH LATIN SMALL LETTER A}", "ss", "ß"]
"""What some collation or other takes for the same."""


class Undo(Exception):
    """Raised by a test within a transaction or savepoint, to have it rolled back."""


def _nothing(payload: Any) -> None:
    """A task."""


class ConnectionContract(Suite):
    """One kind of connection, and the tests it must pass."""

    pytestmark = pytest.mark.asyncio

    is_async = False
    """Whether `add_async` is the one to call."""
    is_sql = True
    """Whether there are tables, which may be missing."""
    creates_tables = True
    """Whether the first message may create them."""
    writes_at_commit = False
    """Whether a message is only collected at first."""

    # --- how it is used: to be filled in

    @abstractmethod
    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """A connection in a transaction, which commits at the end of the block and is rolled back if that raises."""

    @abstractmethod
    def savepoint(self, connection: Any) -> AbstractAsyncContextManager[object]:
        """A savepoint, released at the end of the block and rolled back if that raises."""

    @asynccontextmanager
    async def autocommitting(self) -> AsyncGenerator[Any]:
        """A connection whose statements commit by themselves; None if there is no such thing, or nobody can tell."""
        yield None

    @abstractmethod
    async def written(self, outbox: Outbox) -> list[Message]:
        """What other connections see in the hot table, in order, with the headers as they are stored."""

    @abstractmethod
    async def waiting(self, outbox: Outbox) -> list[tuple[Message, datetime]]:
        """What they see in later, with its due time."""

    @abstractmethod
    async def deliver(self, outbox: Outbox) -> None:
        """Take everything out of the hot table, as a relay does."""

    @abstractmethod
    async def now(self) -> datetime:
        """The time by which delays are counted."""

    # --- what the tests are written with

    async def prepare(self, outbox: Outbox) -> None:
        """Create the tables of an outbox, where the first message does not."""
        assert self.creates_tables, "say here how they are created"

    async def add(self, outbox: Outbox, connection: Any, *args: Any, **options: Any) -> Message:
        if self.is_async:
            return await outbox.add_async(connection, *args, **options)
        return outbox.add(connection, *args, **options)

    async def add_many(self, outbox: Outbox, connection: Any, messages: Iterable[Message]) -> list[Message]:
        if self.is_async:
            return await outbox.add_many_async(connection, messages)
        return outbox.add_many(connection, messages)

    async def schedule(self, task: Task[..., Any], connection: Any, *args: Any, **options: Any) -> Message:
        if self.is_async:
            return await task.schedule_async(connection, *args, **options)
        return task.schedule(connection, *args, **options)

    async def commit(self, outbox: Outbox, *args: Any, **options: Any) -> Message:
        """Add in a transaction of its own."""
        async with self.transaction() as connection:
            return await self.add(outbox, connection, *args, **options)

    async def payloads(self, outbox: Outbox) -> list[bytes]:
        return [message.payload for message in await self.written(outbox)]

    # --- atomic

    async def test_a_message_exists_once_its_transaction_is_committed(self) -> None:
        outbox = Outbox()
        async with self.transaction() as connection:
            message = await self.add(outbox, connection, "orders", {"id": 1}, key="order-1", type="OrderPlaced")
        (found,) = await self.written(outbox)
        assert (found.id, found.topic, found.key, found.type) == (message.id, "orders", "order-1", "OrderPlaced")
        assert (found.payload, found.content_type) == (b'{"id":1}', "application/json")
        assert found.slot == slot_of("order-1", message.id)
        assert UUID(message.id).version == 7

    async def test_a_message_of_a_rolled_back_transaction_never_existed(self) -> None:
        outbox = Outbox()
        await self.commit(outbox, "orders", b"before")
        with pytest.raises(Undo):
            async with self.transaction() as connection:
                await self.add(outbox, connection, "orders", b"undone")
                raise Undo
        assert await self.payloads(outbox) == [b"before"]

    async def test_a_task_is_scheduled_like_a_message(self) -> None:
        outbox = Outbox()
        task: Task[..., Any] = Tasks(outbox).task("send_email")(_nothing)
        async with self.transaction() as connection:
            for number in range(2):
                await self.schedule(task, connection, {"n": number}, key="k", idempotency_key=f"once-{number}")
            await self.schedule(task, connection, {"n": 2}, idempotency_key="once-0")
        with pytest.raises(Undo):
            async with self.transaction() as connection:
                await self.schedule(task, connection, {"n": 3})
                raise Undo
        found = await self.written(outbox)
        assert [message.payload for message in found] == [b'{"n":0}', b'{"n":1}']
        assert {(message.topic, message.type, message.key) for message in found} == {(TASKS_TOPIC, "send_email", "k")}

    async def test_a_rolled_back_savepoint_takes_its_messages_along_and_a_released_one_keeps_them(self) -> None:
        outbox = Outbox()
        async with self.transaction() as connection:
            await self.add(outbox, connection, "orders", b"1")
            with pytest.raises(Undo):
                async with self.savepoint(connection):
                    await self.add(outbox, connection, "orders", b"2")
                    raise Undo
            async with self.savepoint(connection):
                await self.add(outbox, connection, "orders", b"3")
            await self.add(outbox, connection, "orders", b"4")
        assert await self.payloads(outbox) == [b"1", b"3", b"4"]

    async def test_a_released_savepoint_within_a_rolled_back_one_is_gone(self) -> None:
        outbox = Outbox()
        async with self.transaction() as connection:
            with pytest.raises(Undo):
                async with self.savepoint(connection):
                    async with self.savepoint(connection):
                        await self.add(outbox, connection, "orders", b"inner")
                    raise Undo
            await self.add(outbox, connection, "orders", b"outer")
        assert await self.payloads(outbox) == [b"outer"]

    async def test_a_connection_that_autocommits_is_refused(self) -> None:
        outbox = Outbox()
        await self.commit(outbox, "orders", b"before")
        async with self.autocommitting() as connection:
            if connection is None:
                return
            with pytest.raises(NoTransactionError):
                await self.add(outbox, connection, "orders", b"alone")
        assert await self.payloads(outbox) == [b"before"]

    async def test_the_wrong_colour_of_add_names_the_right_one(self) -> None:
        outbox = Outbox()
        async with self.transaction() as connection:
            try:
                if self.is_async:
                    outbox.add(connection, "orders")
                else:
                    await outbox.add_async(connection, "orders")
            except UnsupportedConnection as error:
                assert ("add_async(" in str(error)) is self.is_async
                assert await self.payloads(outbox) == []

    # --- tables

    async def test_missing_tables_are_created_by_the_first_message(self) -> None:
        outbox = Outbox("fresh")
        await self.prepare(outbox)
        with pytest.raises(Undo):
            async with self.transaction() as connection:
                await self.add(outbox, connection, "orders", b"undone", idempotency_key="a")
                await self.add(outbox, connection, "orders", b"undone too")
                raise Undo
        async with self.transaction() as connection:
            with pytest.raises(Undo):
                async with self.savepoint(connection):
                    await self.add(outbox, connection, "orders", b"undone", idempotency_key="a")
                    await self.add(outbox, connection, "orders", b"undone too")
                    raise Undo
            await self.add(outbox, connection, "orders", b"0")
        async with self.transaction() as connection:
            await self.add(outbox, connection, "orders", b"1")
            await self.add(outbox, connection, "orders", b"2")
        assert await self.payloads(outbox) == [b"0", b"1", b"2"]

    async def test_without_leave_to_create_tables_missing_ones_are_an_error_with_a_remedy(self) -> None:
        if not self.is_sql:
            return
        outbox = Outbox("absent", create_tables=False)
        with pytest.raises(TablesMissing, match=REMEDY):
            await self.commit(outbox, "orders", b"1")

    async def test_where_a_message_cannot_create_its_tables_it_says_who_can(self) -> None:
        if not self.is_sql or self.creates_tables:
            return
        with pytest.raises(TablesMissing, match=REMEDY):
            await self.commit(Outbox("absent"), "orders", b"1")

    async def test_missing_tables_do_no_harm_to_the_callers_transaction(self) -> None:
        if not self.is_sql or self.writes_at_commit:
            return
        outbox, absent = Outbox(), Outbox("absent", create_tables=False)
        async with self.transaction() as connection:
            await self.add(outbox, connection, "orders", b"1")
            for options in ({}, {"idempotency_key": "a"}):
                with pytest.raises(TablesMissing, match=REMEDY):
                    await self.add(absent, connection, "orders", b"2", **options)
            await self.add(outbox, connection, "orders", b"3")
        assert await self.payloads(outbox) == [b"1", b"3"]

    async def test_two_outboxes_in_one_transaction_keep_apart(self) -> None:
        first, second = Outbox("first"), Outbox("second")
        await self.prepare(first)
        await self.prepare(second)
        async with self.transaction() as connection:
            await self.add(first, connection, "orders", b"1")
            await self.add(second, connection, "orders", b"2")
        if self.is_sql:
            assert await self.payloads(first) == [b"1"]
            assert await self.payloads(second) == [b"2"]

    # --- idempotency

    async def test_the_second_message_with_an_idempotency_key_is_ignored_within_one_transaction(self) -> None:
        outbox = Outbox()
        async with self.transaction() as connection:
            first = await self.add(outbox, connection, "orders", b"1", idempotency_key="a")
            second = await self.add(outbox, connection, "orders", b"2", idempotency_key="a")
            other = await self.add(outbox, connection, "orders", b"3", idempotency_key="b")
            plain = await self.add(outbox, connection, "orders", b"4")
        assert await self.payloads(outbox) == [b"1", b"3", b"4"]
        assert [message.duplicate for message in (first, second, other, plain)] == [False, True, False, None]

    async def test_it_is_ignored_within_one_call_too(self) -> None:
        outbox = Outbox()
        messages = [
            Message(topic="orders", payload=b"1", idempotency_key="z"),
            Message(topic="orders", payload=b"2", idempotency_key="a"),
            Message(topic="orders", payload=b"3", idempotency_key="z"),
        ]
        async with self.transaction() as connection:
            await self.add_many(outbox, connection, [*messages, messages[1]])
        assert await self.payloads(outbox) == [b"1", b"2"]
        assert messages[0].duplicate is False
        assert messages[2].duplicate is True

    async def test_it_is_ignored_across_transactions_and_after_delivery(self) -> None:
        outbox = Outbox()
        await self.commit(outbox, "orders", b"1", idempotency_key="a")
        second = await self.commit(outbox, "orders", b"2", idempotency_key="a")
        await self.deliver(outbox)
        third = await self.commit(outbox, "orders", b"3", idempotency_key="a")
        assert await self.payloads(outbox) == []
        assert (second.duplicate, third.duplicate) == (True, True)

    async def test_trying_again_with_the_same_message_is_a_duplicate(self) -> None:
        outbox = Outbox()
        message = Message(topic="orders", payload=b"1", idempotency_key="a")
        await self.commit(outbox, message)
        assert message.duplicate is False
        again = await self.commit(outbox, message)
        assert (again.duplicate, message.duplicate, again.id) == (True, True, message.id)
        assert await self.payloads(outbox) == [b"1"]

    async def test_a_rolled_back_message_leaves_its_idempotency_key_free(self) -> None:
        outbox = Outbox()
        with pytest.raises(Undo):
            async with self.transaction() as connection:
                await self.add(outbox, connection, "orders", b"undone", idempotency_key="a")
                raise Undo
        async with self.transaction() as connection:
            with pytest.raises(Undo):
                async with self.savepoint(connection):
                    await self.add(outbox, connection, "orders", b"undone too", idempotency_key="a")
                    raise Undo
            message = await self.add(outbox, connection, "orders", b"kept", idempotency_key="a")
        assert await self.payloads(outbox) == [b"kept"]
        assert message.duplicate is False

    async def test_a_duplicate_does_no_harm_to_the_callers_transaction(self) -> None:
        outbox = Outbox()
        await self.commit(outbox, "orders", b"1", idempotency_key="a")
        async with self.transaction() as connection:
            await self.add(outbox, connection, "orders", b"2")
            await self.add(outbox, connection, "orders", b"3", idempotency_key="a")
            await self.add(outbox, connection, "orders", b"4")
        assert await self.payloads(outbox) == [b"1", b"2", b"4"]

    async def test_the_idempotency_key_travels_as_a_header(self) -> None:
        outbox = Outbox()
        message = await self.commit(outbox, "orders", b"1", idempotency_key="a", headers={"tenant": "x"})
        (found,) = await self.written(outbox)
        assert found.headers == {"tenant": "x", IDEMPOTENCY_HEADER: "a"}
        assert message.headers == {"tenant": "x"}

    async def test_after_the_dedupe_window_the_key_may_be_used_again(self) -> None:
        if not self.is_sql:
            return
        clock = FakeClock()
        outbox = Outbox(dedupe_window="1h", clock=clock)
        await self.commit(outbox, "orders", b"1", idempotency_key="a")
        clock.advance(3599)
        assert (await self.commit(outbox, "orders", b"2", idempotency_key="a")).duplicate is True
        clock.advance(1)
        assert (await self.commit(outbox, "orders", b"3", idempotency_key="a")).duplicate is False
        assert (await self.commit(outbox, "orders", b"4", idempotency_key="a")).duplicate is True
        assert await self.payloads(outbox) == [b"1", b"3"]

    # --- batches

    async def test_a_thousand_messages_are_written_in_order(self) -> None:
        outbox = Outbox()
        messages = [Message(topic="orders", payload=b"%d" % number, key=f"{number % 7}") for number in range(1000)]
        async with self.transaction() as connection:
            returned = await self.add_many(outbox, connection, messages)
        found = await self.written(outbox)
        assert [message.id for message in found] == [message.id for message in messages]
        assert [message.id for message in returned] == [message.id for message in messages]
        assert [message.position for message in found] == sorted({message.position for message in found})

    async def test_a_thousand_messages_with_idempotency_keys_and_numbers(self) -> None:
        outbox = Outbox(order="strict")
        messages = [
            Message(topic="orders", key=f"{number % 300}", idempotency_key=f"{number % 800}") for number in range(1000)
        ]
        async with self.transaction() as connection:
            await self.add_many(outbox, connection, messages)
        assert [message.duplicate for message in messages] == [False] * 800 + [True] * 200
        assert [message.sequence for message in messages[:800]] == [number // 300 + 1 for number in range(800)]
        assert len(await self.written(outbox)) == 800

    async def test_no_messages_at_all_are_fine(self) -> None:
        async with self.transaction() as connection:
            assert await self.add_many(Outbox(), connection, []) == []

    # --- strict order

    async def test_strict_order_numbers_each_topic_and_key_without_gaps(self) -> None:
        outbox = Outbox(order="strict")
        await self.commit(outbox, "orders", b"", key="a")
        with pytest.raises(Undo):
            async with self.transaction() as connection:
                await self.add(outbox, connection, "orders", b"undone", key="a")
                raise Undo
        async with self.transaction() as connection:
            with pytest.raises(Undo):
                async with self.savepoint(connection):
                    await self.add(outbox, connection, "orders", b"undone", key="a")
                    raise Undo
            await self.add(outbox, connection, "orders", b"", key="a")
            await self.add(outbox, connection, "bills", b"", key="a")
            await self.add(outbox, connection, "orders", b"", key="b")
            await self.add(outbox, connection, "orders", b"")
            await self.add(outbox, connection, "orders", b"", key="a")
        found = await self.written(outbox)
        numbers = [(message.topic, message.key, message.sequence) for message in found]
        assert numbers == [
            ("orders", "a", 1),
            ("orders", "a", 2),
            ("bills", "a", 1),
            ("orders", "b", 1),
            ("orders", None, None),
            ("orders", "a", 3),
        ]
        assert len({message.generation for message in found if (message.topic, message.key) == ("orders", "a")}) == 1
        assert all((message.generation is None) is (message.key is None) for message in found)

    async def test_an_ignored_duplicate_uses_no_number(self) -> None:
        outbox = Outbox(order="strict")
        await self.commit(outbox, "orders", b"1", key="a", idempotency_key="x")
        ignored = await self.commit(outbox, "orders", b"2", key="a", idempotency_key="x")
        third = await self.commit(outbox, "orders", b"3", key="a", idempotency_key="y")
        assert (ignored.sequence, third.sequence) == (None, 2)

    # --- what can be stored

    async def test_payloads_come_back_byte_for_byte(self) -> None:
        outbox = Outbox()
        payloads: list[Any] = [b"", bytes(range(256)), b"\x00" * 1000, "", "ünï\N{SNOWMAN}\U0001f40c", None, [1]]
        messages = [await self.commit(outbox, "orders", payload) for payload in payloads]
        assert await self.payloads(outbox) == [message.payload for message in messages]
        for payload, message in zip(payloads, messages, strict=True):
            assert not isinstance(payload, bytes) or message.payload == payload

    async def test_names_and_headers_of_any_script_come_back_as_they_were(self) -> None:
        outbox = Outbox(order="strict")
        for text in NAMES:
            await self.commit(
                outbox, text, b"", key=text, type=text, headers={text: text}, idempotency_key=text, content_type="a/b"
            )
        for text, found in zip(NAMES, await self.written(outbox), strict=True):
            assert (found.topic, found.key, found.type, found.sequence) == (text, text, text, 1)
            assert found.headers == {text: text, IDEMPOTENCY_HEADER: text}
            assert found.content_type == "a/b"

    async def test_names_that_look_alike_are_different_keys(self) -> None:
        outbox = Outbox(order="strict")
        async with self.transaction() as connection:
            added = [await self.add(outbox, connection, "orders", key=key, idempotency_key=key) for key in LOOKALIKES]
            again = await self.add(outbox, connection, "orders", key="a", idempotency_key="b")
        assert [(message.duplicate, message.sequence) for message in added] == [(False, 1)] * len(LOOKALIKES)
        assert again.sequence == 2
        messages = [Message(topic=key, key=key, idempotency_key=f"b{key}") for key in LOOKALIKES]
        async with self.transaction() as connection:
            await self.add_many(outbox, connection, messages)
        assert [(message.duplicate, message.sequence) for message in messages] == [(False, 1)] * len(LOOKALIKES)
        assert [message.key for message in await self.written(outbox)] == [*LOOKALIKES, "a", *LOOKALIKES]

    async def test_large_payloads_go_together_in_one_call(self) -> None:
        outbox = Outbox()
        messages = [Message(topic="orders", payload=bytes([number]) * 700_000) for number in range(5)]
        async with self.transaction() as connection:
            await self.add_many(outbox, connection, messages)
        assert await self.payloads(outbox) == [message.payload for message in messages]

    async def test_an_id_of_the_callers_own_is_kept(self) -> None:
        outbox = Outbox()
        id = UUID("018F3F3E-0000-4000-8000-0000000000AB")
        message = await self.commit(outbox, "orders", b"", id=id)
        (found,) = await self.written(outbox)
        assert found.id == message.id == "018f3f3e-0000-4000-8000-0000000000ab"
        assert found.slot == slot_of(None, found.id)

    # --- later

    async def test_a_delayed_message_waits_outside_the_hot_table(self) -> None:
        outbox = Outbox()
        before = await self.now()
        moment = datetime(2090, 5, 1, 12, 0, 0, 123000, tzinfo=UTC)
        async with self.transaction() as connection:
            delayed = await self.add(outbox, connection, "orders", b"1", delay="90s", key="a")
            timed = await self.add(outbox, connection, "orders", b"2", deliver_at=moment)
            await self.add(outbox, connection, "orders", b"3")
        after = await self.now()
        assert await self.payloads(outbox) == [b"3"]
        due = {message.id: due_at for message, due_at in await self.waiting(outbox)}
        assert due[timed.id] == moment
        slack = timedelta(milliseconds=1)
        assert before + timedelta(seconds=90) - slack <= due[delayed.id] <= after + timedelta(seconds=90) + slack

    async def test_a_delay_that_is_over_before_it_begins_is_fine(self) -> None:
        outbox = Outbox()
        async with self.transaction() as connection:
            await self.add(outbox, connection, "orders", b"1", delay=0)
            await self.add(outbox, connection, "orders", b"2", delay=timedelta(seconds=-5))
            await self.add(outbox, connection, "orders", b"3", deliver_at=datetime(2001, 1, 1, tzinfo=UTC))
        waiting = [message.payload for message, _ in await self.waiting(outbox)]
        assert sorted([*waiting, *await self.payloads(outbox)]) == [b"1", b"2", b"3"]

    async def test_the_expiry_is_kept_even_if_it_is_past(self) -> None:
        outbox = Outbox()
        moment = datetime(2001, 1, 1, tzinfo=UTC)
        await self.commit(outbox, "orders", b"1", expires_at=moment)
        (found,) = await self.written(outbox)
        assert found.expires_at == moment


class SqlConnectionContract(ConnectionContract):
    """For databases that SQLAlchemy can read."""

    @abstractmethod
    def reader(self) -> Engine:
        """An engine for the database that the connections are for."""

    async def written(self, outbox: Outbox) -> list[Message]:
        return [_message(row) for row in self._read(outbox.tables.hot, "position")]

    async def waiting(self, outbox: Outbox) -> list[tuple[Message, datetime]]:
        return [(_message(row), row.due_at) for row in self._read(outbox.tables.later, "number")]

    async def deliver(self, outbox: Outbox) -> None:
        with self.reader().begin() as connection:
            connection.execute(delete(outbox.tables.hot))

    async def now(self) -> datetime:
        return datetime.now(UTC)

    async def prepare(self, outbox: Outbox) -> None:
        if not self.creates_tables:
            outbox.create_tables(self.reader())

    async def test_the_clock_of_the_outbox_replaces_the_databases(self) -> None:
        clock = FakeClock()
        outbox = Outbox(clock=clock)
        await self.commit(outbox, "orders", b"1")
        await self.commit(outbox, "orders", b"2", delay=10)
        (found,) = await self.written(outbox)
        ((_, due_at),) = await self.waiting(outbox)
        assert found.created_at == clock.now()
        assert due_at == clock.now() + timedelta(seconds=10)

    async def test_without_one_the_database_says_when(self) -> None:
        outbox = Outbox()
        before = datetime.now(UTC) - timedelta(seconds=1)
        await self.commit(outbox, "orders", b"1")
        (found,) = await self.written(outbox)
        assert found.created_at is not None
        assert before <= found.created_at <= datetime.now(UTC) + timedelta(seconds=1)

    async def test_the_dedupe_row_names_the_winner(self) -> None:
        outbox = Outbox()
        first = await self.commit(outbox, "orders", b"1", idempotency_key="a")
        second = await self.commit(outbox, Message(topic="orders", payload=b"2", idempotency_key="b"))
        rows = {row.key: row.message_id for row in self._read(outbox.tables.dedupe, "key")}
        assert rows == {"a": first.id, "b": second.id}

    def _read(self, table: Table, order: str) -> list[Any]:
        with self.reader().connect() as connection:
            if not inspect(connection).has_table(table.name, schema=table.schema):
                return []
            return list(connection.execute(select(table).order_by(table.c[order])))


class ServerConnectionContract(SqlConnectionContract):
    """For databases with several writers at once."""

    overtaken_is_an_error = False
    """Whether the database refuses, at REPEATABLE READ, to change what another transaction has changed meanwhile."""

    @abstractmethod
    async def execute(self, connection: Any, sql: str) -> None:
        """Run a statement in the connection's transaction."""

    @abstractmethod
    async def is_anybody_waiting(self) -> bool:
        """Whether a transaction of this database waits for a lock."""

    @asynccontextmanager
    async def repeatable_read(self) -> AsyncGenerator[Any]:
        """Like `transaction`, at this level."""
        async with self.transaction() as connection:
            await self.execute(connection, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            yield connection

    async def test_a_strict_outbox_numbers_without_gaps_at_repeatable_read(self) -> None:
        outbox = Outbox(order="strict")
        await self.commit(outbox, "orders", b"1", key="a", idempotency_key="x")
        async with self.repeatable_read() as connection:
            await self.add(outbox, connection, "orders", b"2", key="a")
            ignored = await self.add(outbox, connection, "orders", b"3", key="a", idempotency_key="x")
            await self.add(outbox, connection, "orders", b"4", key="a", idempotency_key="y")
            twice = await self.add(outbox, connection, "orders", b"5", key="a", idempotency_key="y")
        assert (ignored.duplicate, twice.duplicate) == (True, True)
        found = [(message.payload, message.sequence) for message in await self.written(outbox)]
        assert found == [(b"1", 1), (b"2", 2), (b"4", 3)]

    async def test_an_idempotency_key_taken_meanwhile_is_not_taken_again_at_repeatable_read(self) -> None:
        outbox = Outbox()
        async with self._overtaken() as connection:
            await self.commit(outbox, "orders", b"1", idempotency_key="x")
            message = await self.add(outbox, connection, "orders", b"2", idempotency_key="x")
        assert await self.payloads(outbox) == [b"1"]
        assert self.overtaken_is_an_error or message.duplicate is True

    async def test_a_number_taken_meanwhile_is_not_taken_again_at_repeatable_read(self) -> None:
        outbox = Outbox(order="strict")
        async with self._overtaken() as connection:
            await self.commit(outbox, "orders", b"1", key="a")
            await self.add(outbox, connection, "orders", b"2", key="a")
        numbers = [message.sequence for message in await self.written(outbox)]
        assert numbers == ([1] if self.overtaken_is_an_error else [1, 2])

    @asynccontextmanager
    async def _overtaken(self) -> AsyncGenerator[Any]:
        """A transaction that has looked before the block changes something through another one."""
        expected = (
            pytest.raises(Exception, match="could not serialize") if self.overtaken_is_an_error else nullcontext()
        )
        with expected:
            async with self.repeatable_read() as connection:
                await self.execute(connection, "SELECT count(*) FROM postroom_outbox")
                yield connection

    @pytest.mark.parametrize("commits", [True, False])
    async def test_a_second_transaction_with_the_same_idempotency_key_waits_for_the_first(self, commits: bool) -> None:
        if not self.writes_at_commit:
            second = await self._add_behind(Outbox(), commits, idempotency_key="a")
            assert second.duplicate is commits

    @pytest.mark.parametrize("commits", [True, False])
    async def test_a_second_transaction_with_the_same_strict_key_waits_for_the_first(self, commits: bool) -> None:
        if not self.writes_at_commit:
            second = await self._add_behind(Outbox(order="strict"), commits, key="a")
            assert second.sequence == (2 if commits else 1)

    async def _add_behind(self, outbox: Outbox, commits: bool, **options: Any) -> Message:
        """Commit what has to wait for a transaction that is still open, and then commits or not."""
        with nullcontext() if commits else suppress(Undo):
            async with self.transaction() as connection:
                await self.add(outbox, connection, "orders", b"1", **options)
                second = asyncio.create_task(self._commit_elsewhere(outbox, "orders", b"2", **options))
                await self._until_somebody_waits()
                if not commits:
                    raise Undo
        return await second

    async def _commit_elsewhere(self, *args: Any, **options: Any) -> Message:
        """A sync connection has to wait on a thread of its own."""
        commit = self.commit(*args, **options)
        return await (commit if self.is_async else asyncio.to_thread(asyncio.run, commit))

    async def _until_somebody_waits(self) -> None:
        deadline = time.monotonic() + 30
        while not await self.is_anybody_waiting():
            assert time.monotonic() < deadline, "nobody waits"
            await asyncio.sleep(0.01)


def _message(row: Any) -> Message:
    return Message(
        topic=row.topic,
        payload=row.payload,
        key=row.key,
        type=row.type,
        headers=json.loads(row.headers) if row.headers else {},
        id=row.id,
        content_type=row.content_type,
        expires_at=row.expires_at,
        sequence=row.sequence,
        generation=row.generation,
        position=getattr(row, "position", 0),
        slot=row.slot,
        replays=row.replays,
        created_at=row.created_at,
    )
