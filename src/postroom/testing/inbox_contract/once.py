"""A message is handled once, if its transaction commits."""

from __future__ import annotations

from contextlib import suppress
from uuid import UUID

import pytest

from ...errors import NoTransactionError, UnsupportedConnection
from ...outbox import Outbox
from ..connection_contract import LOOKALIKES, NAMES, Undo
from .kit import InboxKit, numbered


class OnceContract(InboxKit):
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
