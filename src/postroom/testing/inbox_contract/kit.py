"""What the tests of inboxes are written with."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from ...inbox import Inbox
from ...wire.received import Received
from ..connection_contract import ConnectionContract


def numbered(sequence: int, generation: int = 7, *, key: str = "a", topic: str = "orders", **facts: Any) -> Received:
    return Received(
        id=f"{generation}-{sequence}", topic=topic, key=key, sequence=sequence, generation=generation, **facts
    )


class InboxKit(ConnectionContract):
    """Asks an inbox, in whatever colour the connection has."""

    @property
    def inbox_is_async(self) -> bool:
        """Whether `first_time_async` is the one to call."""
        return self.is_async

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
