"""One message is refused: it is tried again, dies and holds its key, while the other keys go on. Then it is revived."""

import asyncio
import sqlite3

from postroom import Desk, Message, MessageRejected, Outbox, Relay

STORE = "sqlite:///refused.db"
outbox = Outbox()
bad_addresses = {"order-2"}


def deliver(message: Message) -> None:
    if message.key in bad_addresses:
        raise MessageRejected("no such address")
    print("delivered", message.key, message.type)


async def main() -> None:
    connection = sqlite3.connect("refused.db")
    with connection:  # one transaction
        for key in ("order-1", "order-2", "order-3"):
            outbox.add(connection, "orders", {"key": key}, key=key, type="OrderPlaced")
            outbox.add(connection, "orders", {"key": key}, key=key, type="OrderPaid")
    connection.close()

    relay = Relay(STORE, deliver, outbox=outbox, retry="immediate max=3")
    await relay.drain()

    async with Desk(STORE) as desk:
        for hold in await desk.holds():
            print(f"{hold.key} is on hold after {hold.attempts} attempts, {hold.waiting} waiting: {hold.error}")
        bad_addresses.clear()
        await desk.revive(all=True)
    await relay.drain()


asyncio.run(main())
