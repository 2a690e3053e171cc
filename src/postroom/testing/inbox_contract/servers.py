"""Several consumers at once: who waits for whom."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext, suppress
from typing import Any

import pytest

from ...errors import SequenceGap
from ...inbox import Inbox
from ..connection_contract import ServerConnectionContract, Undo
from .kit import numbered
from .sql import WithTables


class Several(WithTables, ServerConnectionContract):
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

    async def test_an_inbox_keeps_nobody_from_other_messages_and_keys(self) -> None:
        inbox = await self.new_inbox()
        async with self.transaction() as connection:
            assert await self.first_time(inbox, connection, "5")
            assert await self.ask(inbox, "in_turn", connection, numbered(1, key="m"))
            async with asyncio.timeout(30):
                for id, key in (("4", "a"), ("6", "z")):
                    assert await self._elsewhere(inbox, "first_time", id)
                    assert await self._elsewhere(inbox, "in_turn", numbered(1, key=key))

    async def test_of_many_who_ask_an_inbox_at_once_one_is_first(self) -> None:
        inbox = await self.new_inbox()
        for verb, argument in (("first_time", "1"), ("in_turn", numbered(1)), ("in_turn", numbered(2))):
            answers = await asyncio.gather(*(self._elsewhere(inbox, verb, argument) for _ in range(6)))
            assert sorted(answers) == [False] * 5 + [True]

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
