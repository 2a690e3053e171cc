"""What was sent for a message is sent again when it comes again."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from ...errors import InvalidMessage
from ...inbox import Inbox
from ...message import NOTHING_HEADER, TOMBSTONE, Message
from ...outbox import Outbox
from ..clock import FakeClock
from ..connection_contract import NAMES, Undo
from .kit import InboxKit


class RepliesContract(InboxKit):
    async def reply_once(self, inbox: Inbox, outbox: Outbox, id: str, *replies: Message) -> list[Message]:
        """In a transaction of its own: the replies, or once more those of the first time."""
        async with self.transaction() as connection:
            if await self.first_time(inbox, connection, id, consumer="billing"):
                return await self.ask(inbox, "reply", connection, id, replies, outbox=outbox, consumer="billing")
            return await self.ask(inbox, "reply_again", connection, id, outbox=outbox, consumer="billing")

    async def test_replies_are_sent_again_under_the_same_ids(self) -> None:
        inbox, outbox = await self.new_inbox(), Outbox()
        expires_at = datetime(2100, 1, 2, 3, 4, 5, 678900, tzinfo=UTC)
        await self.reply_once(
            inbox, outbox, "1",
            Message(topic="bills", payload={"total": 7}, key="k", type="Billed", headers={"a": NAMES[6]}),
            Message(topic="bytes", payload=bytes(range(256)), expires_at=expires_at),
            Message(topic="gone", payload=TOMBSTONE, key="k"),
        )  # fmt: skip
        first = await self.written(outbox)
        await self.deliver(outbox)
        for times in (1, 2):
            again = await self.reply_once(inbox, outbox, "1", Message(topic="never"))
            found = await self.written(outbox)
            assert [message.replays for message in found] == [message.replays for message in again] == [times] * 3
            assert [_content(message) for message in found] == [_content(message) for message in first]
            await self.deliver(outbox)
        assert [NOTHING_HEADER in message.headers for message in first] == [False, False, True]

    async def test_replies_are_sent_again_while_the_first_ones_wait(self) -> None:
        inbox, outbox = await self.new_inbox(), Outbox()
        await self.reply_once(inbox, outbox, "1", Message(topic="bills", key="k"))
        await self.reply_once(inbox, outbox, "1")
        first, again = await self.written(outbox)
        assert (first.id, first.replays, again.replays) == (again.id, 0, 1)

    async def test_replies_that_were_rolled_back_are_nothing(self) -> None:
        inbox, outbox = await self.new_inbox(), Outbox()
        message = Message(topic="bills")
        with pytest.raises(Undo):
            async with self.transaction() as connection:
                assert await self.first_time(inbox, connection, "1", consumer="billing")
                await self.ask(inbox, "reply", connection, "1", [message], outbox=outbox, consumer="billing")
                raise Undo
        await self.reply_once(inbox, outbox, "1")
        assert await self.reply_once(inbox, outbox, "1") == []
        await self.reply_once(inbox, outbox, "2", message)
        with pytest.raises(Undo):
            async with self.transaction() as connection:
                assert len(await self.ask(inbox, "reply_again", connection, "2", **_by(outbox))) == 1
                raise Undo
        assert [again.replays for again in await self.reply_once(inbox, outbox, "2")] == [1]

    async def test_replies_to_one_message_add_up_and_need_one_that_is_handled(self) -> None:
        inbox, outbox = await self.new_inbox(), Outbox()
        async with self.transaction() as connection:
            with pytest.raises(InvalidMessage, match="ask first_time before"):
                await self.ask(inbox, "reply", connection, "1", Message(topic="never"), **_by(outbox))
            assert await self.first_time(inbox, connection, "1", consumer="billing")
            for topic in ("begun", "done"):
                await self.ask(inbox, "reply", connection, "1", Message(topic=topic), **_by(outbox))
        await self.reply_once(inbox, outbox, "1")
        assert [message.topic for message in await self.written(outbox)] == ["begun", "done"] * 2

    async def test_replies_are_forgotten_with_their_message(self) -> None:
        clock = FakeClock()
        inbox, outbox = await self.new_inbox(window="1h", clock=clock), Outbox()
        await self.reply_once(inbox, outbox, "1", Message(topic="bills"))
        clock.advance(7200)
        assert await self.clean(inbox) == 1
        async with self.transaction() as connection:
            assert await self.ask(inbox, "reply_again", connection, "1", **_by(outbox)) == []
        await self.reply_once(inbox, outbox, "1")
        assert await self.reply_once(inbox, outbox, "1") == []


def _by(outbox: Outbox) -> dict[str, Any]:
    return {"outbox": outbox, "consumer": "billing"}


def _content(message: Message) -> tuple[Any, ...]:
    return (
        message.id, message.topic, message.key, message.type, message.payload, message.content_type,
        dict(message.headers), message.expires_at, message.slot,
    )  # fmt: skip
