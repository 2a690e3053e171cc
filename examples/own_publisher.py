"""A publisher of one's own: it sends messages one by one, and stops a key at its first failure."""

import asyncio
import sqlite3

from postroom import Outbox, Relay
from postroom.errors import NotAttempted
from postroom.ports import Batch, Features


class Megaphone:
    name = "megaphone"
    features = Features(ordered=True, max_batch=100)

    async def publish(self, batch: Batch) -> None:
        failed: set[tuple[str, str | None]] = set()
        for message in batch.messages:
            lane = (message.topic, message.key or message.id)
            if lane in failed or not batch.may_start():
                batch.answer(message, NotAttempted("one before it failed, or no time is left"))
                continue
            try:
                await self.shout(message.payload.decode())
            except Exception as error:
                failed.add(lane)
                batch.answer(message, error)
            else:
                batch.answer(message)

    async def shout(self, text: str) -> None:
        print(text.upper())

    async def close(self) -> None:
        """Nothing to let go of."""


outbox = Outbox()
connection = sqlite3.connect("megaphone.db")
with connection:
    outbox.add(connection, "news", "the post is here", key="all")
connection.close()
asyncio.run(Relay("sqlite:///megaphone.db", Megaphone(), outbox=outbox).drain())
