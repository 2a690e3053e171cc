"""The messages of a strict stream are handled in turn."""

from __future__ import annotations

import pytest

from ...errors import SequenceGap
from ..connection_contract import Undo
from .kit import InboxKit, numbered


class StrictContract(InboxKit):
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
