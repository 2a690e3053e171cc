"""Forgetting what is old, and telling what is remembered."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ..clock import FakeClock
from ..connection_contract import Undo
from .kit import InboxKit, numbered


class UpkeepContract(InboxKit):
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
