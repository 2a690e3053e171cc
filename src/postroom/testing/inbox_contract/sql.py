"""The tables of an inbox, which may be missing, and the time of the database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select

from ...errors import TablesMissing
from ...inbox import Inbox
from ..connection_contract import SqlConnectionContract, Undo
from .kit import InboxKit, numbered

REMEDY = r"postroom_absent_inbox.*postroom inbox init.*create_tables"


class WithTables(InboxKit, SqlConnectionContract):
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
