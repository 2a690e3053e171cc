"""What `Inbox` promises on every kind of connection.

`InboxContract` is a `ConnectionContract` with further tests: say how a transaction and a savepoint of that kind are
made. `SqlInboxContract` is for databases that SQLAlchemy can read, `ServerInboxContract` for those with several writers
at once.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext, suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select

from ..errors import NoTransactionError, SequenceGap, TablesMissing, UnsupportedConnection
from ..inbox import Inbox
from ..outbox import Outbox
from ..wire.received import Received
from .clock import FakeClock
from .connection_contract import (
    LOOKALIKES,
    NAMES,
    ConnectionContract,
    ServerConnectionContract,
    SqlConnectionContract,
    Undo,
)

REMEDY = r"postroom_absent_inbox.*postroom inbox init.*create_tables"


def numbered(sequence: int, generation: int = 7, *, key: str = "a", topic: str = "orders", **facts: Any) -> Received:
    return Received(
        id=f"{generation}-{sequence}", topic=topic, key=key, sequence=sequence, generation=generation, **facts
    )


class InboxContract(ConnectionContract):
    """The tests that each kind of connection must pass."""

    @property
    def inbox_is_async(self) -> bool:
        """Whether `first_time_async` is the one to call."""
        return self.is_async

    # --- what the tests are written with

    async def prepare_inbox(self, inbox: Inbox) -> None:
        """Create the tables of an inbox, where the first call does not."""
        assert self.creates_tables, "say here how they are created"

    async def ask(self, inbox: Inbox, verb: str, connection: Any, *args: Any, **options: Any) -> Any:
        if self.inbox_is_async:
            return await getattr(inbox, f"{verb}_async")(connection, *args, **options)
        return getattr(inbox, verb)(connection, *args, **options)

    async def first_time(self, inbox: Inbox, connection: Any, id: str | UUID, **options: Any) -> bool:
        return await self.ask(inbox, "first_time", connection, id, **options)

    async def handle(self, inbox: Inbox, id: str | UUID, **options: Any) -> bool:
        """In a transaction of its own."""
        async with self.transaction() as connection:
            return await self.first_time(inbox, connection, id, **options)

    async def in_turn(self, inbox: Inbox, message: Received, **options: Any) -> bool:
        async with self.transaction() as connection:
            return await self.ask(inbox, "in_turn", connection, message, **options)

    async def clean(self, inbox: Inbox, **options: Any) -> int:
        async with self.transaction() as connection:
            return await self.ask(inbox, "clean", connection, **options)

    async def new_inbox(self, *args: Any, **options: Any) -> Inbox:
        inbox = Inbox(*args, **options)
        await self.prepare_inbox(inbox)
        return inbox

    # --- once

    async def test_an_inbox_knows_a_message_after_the_first_time(self) -> None:
        inbox = await self.new_inbox()
        async with self.transaction() as connection:
            answers = [await self.first_time(inbox, connection, id) for id in ("1", "1", "2", "1")]
        assert answers == [True, False, True, False]
        assert [await self.handle(inbox, id) for id in ("1", "2", "3", "3")] == [False, False, True, False]

    async def test_an_inbox_forgets_what_was_rolled_back(self) -> None:
        inbox = await self.new_inbox()
        with pytest.raises(Undo):
            async with self.transaction() as connection:
                assert await self.first_time(inbox, connection, "1")
                raise Undo
        assert await self.handle(inbox, "1")
        assert not await self.handle(inbox, "1")

    async def test_an_inbox_forgets_what_a_savepoint_rolled_back_and_keeps_what_one_released(self) -> None:
        inbox = await self.new_inbox()
        async with self.transaction() as connection:
            assert await self.first_time(inbox, connection, "0")
            with pytest.raises(Undo):
                async with self.savepoint(connection):
                    assert await self.first_time(inbox, connection, "1")
                    assert not await self.first_time(inbox, connection, "0")
                    raise Undo
            async with self.savepoint(connection):
                assert await self.first_time(inbox, connection, "2")
            assert await self.first_time(inbox, connection, "1")
            assert not await self.first_time(inbox, connection, "2")
        assert [await self.handle(inbox, id) for id in ("0", "1", "2")] == [False, False, False]

    async def test_each_consumer_of_an_inbox_has_its_own_memory(self) -> None:
        inbox = await self.new_inbox()
        async with self.transaction() as connection:
            assert await self.first_time(inbox, connection, "1", consumer="billing")
            assert await self.first_time(inbox, connection, "1", consumer="mail")
            assert await self.first_time(inbox, connection, "1")
        assert not await self.handle(inbox, "1", consumer="mail")

    async def test_two_inboxes_keep_apart(self) -> None:
        first, second = await self.new_inbox("first"), await self.new_inbox("second")
        assert await self.handle(first, "1")
        assert await self.handle(second, "1")
        assert not await self.handle(first, "1")

    async def test_a_uuid_is_known_to_an_inbox_by_its_text(self) -> None:
        inbox = await self.new_inbox()
        id = UUID("018F3F3E-0000-4000-8000-0000000000AB")
        assert await self.handle(inbox, id)
        assert not await self.handle(inbox, str(id))

    @pytest.mark.parametrize("text", NAMES)
    async def test_an_inbox_takes_names_of_any_script(self, text: str) -> None:
        inbox = await self.new_inbox()
        assert await self.handle(inbox, text, consumer=text)
        assert not await self.handle(inbox, text, consumer=text)
        message = numbered(3, topic=text, key=text)
        assert await self.in_turn(inbox, message, consumer=text)
        assert not await self.in_turn(inbox, message, consumer=text)

    async def test_an_inbox_does_not_confuse_names_that_look_alike(self) -> None:
        inbox = await self.new_inbox()
        async with self.transaction() as connection:
            for name in LOOKALIKES:
                assert await self.first_time(inbox, connection, name)
                assert await self.first_time(inbox, connection, "x", consumer=name)
                for message in (numbered(1, key=name), numbered(5, topic=name)):
                    assert await self.ask(inbox, "in_turn", connection, message)
        for name in LOOKALIKES:
            assert not await self.handle(inbox, name)

    async def test_an_inbox_and_an_outbox_share_a_transaction(self) -> None:
        inbox, outbox = await self.new_inbox(), Outbox()
        for _ in range(2):
            with suppress(Undo):
                async with self.transaction() as connection:
                    assert await self.first_time(inbox, connection, "1")
                    await self.add(outbox, connection, "replies", b"undone")
                    raise Undo
        for number in range(3):
            async with self.transaction() as connection:
                if await self.first_time(inbox, connection, "1"):
                    await self.add(outbox, connection, "replies", b"%d" % number)
        assert await self.payloads(outbox) == [b"0"]

    async def test_an_inbox_refuses_a_connection_that_autocommits(self) -> None:
        inbox = await self.new_inbox()
        async with self.autocommitting() as connection:
            if connection is None:
                return
            for verb, argument in (("first_time", "1"), ("in_turn", numbered(1))):
                with pytest.raises(NoTransactionError):
                    await self.ask(inbox, verb, connection, argument)
        assert await self.handle(inbox, "1")
        assert await self.in_turn(inbox, numbered(1))

    async def test_the_wrong_colour_of_first_time_names_the_right_one(self) -> None:
        inbox = await self.new_inbox()
        async with self.transaction() as connection:
            with pytest.raises(UnsupportedConnection) as caught:
                if self.inbox_is_async:
                    inbox.first_time(connection, "1")
                else:
                    await inbox.first_time_async(connection, "1")
            assert ("inbox.first_time_async(" in str(caught.value)) is self.inbox_is_async
            assert await self.first_time(inbox, connection, "1")

    # --- strict streams

    async def test_an_inbox_takes_each_number_of_a_strict_stream_once_and_in_turn(self) -> None:
        inbox = await self.new_inbox()
        answers = [await self.in_turn(inbox, numbered(number)) for number in (1, 1, 2, 1, 3, 2, 3, 4)]
        assert answers == [True, False, True, False, True, False, False, True]

    async def test_an_inbox_begins_with_whatever_number_it_sees_first(self) -> None:
        inbox = await self.new_inbox()
        assert await self.in_turn(inbox, numbered(40))
        assert not await self.in_turn(inbox, numbered(39))
        assert await self.in_turn(inbox, numbered(41))

    async def test_a_gap_is_an_error_and_changes_nothing_in_an_inbox(self) -> None:
        inbox = await self.new_inbox()
        await self.in_turn(inbox, numbered(1))
        async with self.transaction() as connection:
            with pytest.raises(SequenceGap, match="expects number 2") as caught:
                await self.ask(inbox, "in_turn", connection, numbered(3))
            assert (caught.value.expected, caught.value.got) == (2, 3)
            assert await self.first_time(inbox, connection, "the transaction goes on")
        assert not await self.handle(inbox, "the transaction goes on")
        assert await self.in_turn(inbox, numbered(2))
        assert await self.in_turn(inbox, numbered(3))

    async def test_an_inbox_may_leap_over_a_gap(self, caplog: pytest.LogCaptureFixture) -> None:
        inbox = await self.new_inbox()
        await self.in_turn(inbox, numbered(1))
        assert await self.in_turn(inbox, numbered(5), on_gap="accept")
        assert "expects number 2" in caplog.text
        assert not await self.in_turn(inbox, numbered(2), on_gap="accept")
        assert await self.in_turn(inbox, numbered(6))

    async def test_an_inbox_begins_again_with_a_new_generation(self) -> None:
        inbox = await self.new_inbox()
        await self.in_turn(inbox, numbered(1, 7))
        with pytest.raises(SequenceGap) as caught:
            await self.in_turn(inbox, numbered(2, 8))
        assert (caught.value.expected, caught.value.got) == (1, 2)
        assert await self.in_turn(inbox, numbered(1, 8))
        assert not await self.in_turn(inbox, numbered(2, 7))
        assert await self.in_turn(inbox, numbered(2, 8))

    async def test_an_inbox_passes_over_a_tombstone(self) -> None:
        inbox = await self.new_inbox()
        await self.in_turn(inbox, numbered(1))
        assert not await self.in_turn(inbox, numbered(2, is_tombstone=True))
        assert await self.in_turn(inbox, numbered(3))

    async def test_an_inbox_moves_its_mark_back_with_the_transaction(self) -> None:
        inbox = await self.new_inbox()
        for number in (1, 2):
            with pytest.raises(Undo):
                async with self.transaction() as connection:
                    assert await self.ask(inbox, "in_turn", connection, numbered(number))
                    raise Undo
            async with self.transaction() as connection:
                with pytest.raises(Undo):
                    async with self.savepoint(connection):
                        assert await self.ask(inbox, "in_turn", connection, numbered(number))
                        raise Undo
                assert await self.ask(inbox, "in_turn", connection, numbered(number))
            assert not await self.in_turn(inbox, numbered(number))

    async def test_consumers_topics_and_keys_of_an_inbox_are_counted_apart(self) -> None:
        inbox = await self.new_inbox()
        await self.in_turn(inbox, numbered(9))
        assert await self.in_turn(inbox, numbered(1, key="b"))
        assert await self.in_turn(inbox, numbered(1, topic="bills"))
        assert await self.in_turn(inbox, numbered(1), consumer="mail")

    # --- upkeep

    async def test_an_inbox_forgets_what_is_older_than_its_window_when_cleaned(self) -> None:
        clock = FakeClock()
        inbox = await self.new_inbox(window="1h", clock=clock)
        for id in ("1", "2", "3"):
            await self.handle(inbox, id, consumer=f"consumer {id}")
            await self.in_turn(inbox, numbered(int(id)))
            clock.advance(60)
        clock.advance(3600 - 120 - 1)
        assert await self.clean(inbox) == 1
        clock.advance(120)
        assert not await self.handle(inbox, "2", consumer="consumer 2"), "only cleaning forgets"
        assert await self.clean(inbox) == 2
        assert await self.clean(inbox) == 0
        assert await self.handle(inbox, "2", consumer="consumer 2")
        assert not await self.in_turn(inbox, numbered(3)), "marks are kept"

    async def test_an_inbox_is_cleaned_a_few_at_a_time_the_oldest_first(self) -> None:
        clock = FakeClock()
        inbox = await self.new_inbox(window="1h", clock=clock)
        async with self.transaction() as connection:
            for number in range(20):
                await self.first_time(inbox, connection, f"{number}", consumer="a" if number % 3 else "b")
                clock.advance(1)
        clock.advance(3600)
        assert [await self.clean(inbox, limit=17), await self.clean(inbox, limit=2)] == [17, 2]
        assert not await self.handle(inbox, "19", consumer="a")
        assert await self.handle(inbox, "18", consumer="b")

    async def test_a_rolled_back_cleaning_of_an_inbox_forgets_nothing(self) -> None:
        clock = FakeClock()
        inbox = await self.new_inbox(window="1h", clock=clock)
        await self.handle(inbox, "1")
        clock.advance(7200)
        with pytest.raises(Undo):
            async with self.transaction() as connection:
                assert await self.ask(inbox, "clean", connection) == 1
                raise Undo
        assert not await self.handle(inbox, "1")

    async def test_an_inbox_tells_what_it_remembers(self) -> None:
        clock = FakeClock()
        inbox = await self.new_inbox(clock=clock)
        start = clock.now()
        await self.handle(inbox, "1", consumer="mail")
        clock.advance(60)
        await self.handle(inbox, "2", consumer="mail")
        await self.in_turn(inbox, numbered(1), consumer="billing")
        async with self.transaction() as connection:
            billing, mail = await self.ask(inbox, "status", connection)
        assert (billing.name, billing.messages, billing.oldest, billing.keys) == ("billing", 0, None, 1)
        assert (mail.name, mail.messages, mail.keys) == ("mail", 2, 0)
        assert (mail.oldest, mail.newest) == (start, start + timedelta(minutes=1))


class SqlInboxContract(InboxContract, SqlConnectionContract):
    """For databases that SQLAlchemy can read."""

    async def prepare_inbox(self, inbox: Inbox) -> None:
        if not self.creates_tables:
            inbox.create_tables(self.reader())

    async def test_missing_tables_of_an_inbox_are_created_by_the_first_call(self) -> None:
        inbox = await self.new_inbox("fresh")
        with pytest.raises(Undo):
            async with self.transaction() as connection:
                assert await self.first_time(inbox, connection, "1")
                raise Undo
        async with self.transaction() as connection:
            with pytest.raises(Undo):
                async with self.savepoint(connection):
                    assert await self.first_time(inbox, connection, "1")
                    assert await self.ask(inbox, "in_turn", connection, numbered(1))
                    raise Undo
            assert await self.ask(inbox, "in_turn", connection, numbered(1))
            assert await self.first_time(inbox, connection, "1")
        assert not await self.handle(inbox, "1")

    async def test_missing_tables_of_an_inbox_are_an_error_with_a_remedy_that_does_no_harm(self) -> None:
        inbox, absent = await self.new_inbox(), Inbox("absent", create_tables=False)
        async with self.transaction() as connection:
            assert await self.first_time(inbox, connection, "1")
            for verb, argument in (("first_time", "1"), ("in_turn", numbered(1))):
                with pytest.raises(TablesMissing, match=REMEDY):
                    await self.ask(absent, verb, connection, argument)
            assert not await self.first_time(inbox, connection, "1")
        assert not await self.handle(inbox, "1")

    async def test_where_an_inbox_cannot_create_its_tables_it_says_who_can(self) -> None:
        if not self.creates_tables:
            with pytest.raises(TablesMissing, match=REMEDY):
                await self.handle(Inbox("absent"), "1")

    async def test_an_inbox_has_the_time_of_the_database(self) -> None:
        inbox = await self.new_inbox()
        before = datetime.now(UTC) - timedelta(seconds=1)
        await self.handle(inbox, "1")
        await self.in_turn(inbox, numbered(1))
        with self.reader().connect() as connection:
            at = connection.execute(select(inbox.tables.inbox.c.received_at)).scalar_one()
            moved_at = connection.execute(select(inbox.tables.marks.c.updated_at)).scalar_one()
        assert before <= at <= moved_at <= datetime.now(UTC) + timedelta(seconds=1)

    async def test_by_the_time_of_the_database_nothing_in_an_inbox_is_old_yet(self) -> None:
        inbox = await self.new_inbox()
        async with self.transaction() as connection:
            for number in range(300):
                await self.first_time(inbox, connection, f"{number}")
        assert await self.clean(inbox) == 0
        hasty = Inbox(window="1ms")
        assert await self.clean(hasty) == 300
        assert await self.handle(inbox, "299")


class ServerInboxContract(SqlInboxContract, ServerConnectionContract):
    """For databases with several writers at once."""

    @pytest.mark.parametrize("commits", [True, False])
    async def test_an_inbox_waits_for_whoever_is_handling_the_same_message(self, commits: bool) -> None:
        inbox = await self.new_inbox()
        with nullcontext() if commits else suppress(Undo):
            async with self.transaction() as connection:
                assert await self.first_time(inbox, connection, "1")
                second = asyncio.create_task(self._elsewhere(inbox, "first_time", "1"))
                await self._until_somebody_waits()
                if not commits:
                    raise Undo
        assert await second is not commits
        assert not await self.handle(inbox, "1")

    @pytest.mark.parametrize("commits", [True, False])
    async def test_an_inbox_waits_for_whoever_is_handling_the_same_new_key(self, commits: bool) -> None:
        inbox = await self.new_inbox()
        with nullcontext() if commits else suppress(Undo):
            async with self.transaction() as connection:
                assert await self.ask(inbox, "in_turn", connection, numbered(1))
                second = asyncio.create_task(self._elsewhere(inbox, "in_turn", numbered(1)))
                await self._until_somebody_waits()
                if not commits:
                    raise Undo
        assert await second is not commits
        assert await self.in_turn(inbox, numbered(2))

    @pytest.mark.parametrize("commits", [True, False])
    async def test_an_inbox_waits_for_whoever_is_handling_the_number_before(self, commits: bool) -> None:
        inbox = await self.new_inbox()
        await self.in_turn(inbox, numbered(1))
        with nullcontext() if commits else suppress(Undo):
            async with self.transaction() as connection:
                assert await self.ask(inbox, "in_turn", connection, numbered(2))
                second = asyncio.create_task(self._elsewhere(inbox, "in_turn", numbered(3)))
                await self._until_somebody_waits()
                if not commits:
                    raise Undo
        if commits:
            assert await second is True
        else:
            with pytest.raises(SequenceGap):
                await second

    async def test_an_inbox_is_not_fooled_by_an_old_snapshot(self) -> None:
        """At REPEATABLE READ the database refuses, or says that it was handled."""
        inbox = await self.new_inbox()
        await self.handle(inbox, "0")
        await self.in_turn(inbox, numbered(1))
        overtaken = (
            pytest.raises(Exception, match="could not serialize") if self.overtaken_is_an_error else nullcontext()
        )
        with overtaken:
            async with self.repeatable_read() as connection:
                await self.execute(connection, "SELECT count(*) FROM postroom_inbox")
                await self._elsewhere(inbox, "first_time", "1")
                assert not await self.first_time(inbox, connection, "1")
        overtaken = (
            pytest.raises(Exception, match="could not serialize") if self.overtaken_is_an_error else nullcontext()
        )
        with overtaken:
            async with self.repeatable_read() as connection:
                await self.execute(connection, "SELECT count(*) FROM postroom_inbox_marks")
                await self._elsewhere(inbox, "in_turn", numbered(2))
                assert not await self.ask(inbox, "in_turn", connection, numbered(2))
        assert await self.in_turn(inbox, numbered(3))

    async def _elsewhere(self, inbox: Inbox, verb: str, argument: Any) -> bool:
        """In another transaction. A sync connection has to wait on a thread of its own."""

        async def work() -> bool:
            async with self.transaction() as connection:
                return await self.ask(inbox, verb, connection, argument)

        return await (work() if self.inbox_is_async else asyncio.to_thread(asyncio.run, work()))
