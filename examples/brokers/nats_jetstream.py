"""Messages in a stream of NATS: python nats_jetstream.py nats://localhost:4222"""

import asyncio
import sqlite3
import sys

import nats

from postroom import Outbox, Relay

url = sys.argv[1]
outbox = Outbox()

connection = sqlite3.connect("shop.db")
with connection:  # the order and its message, or neither
    connection.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, total INTEGER)")
    connection.execute("INSERT INTO orders (total) VALUES (42)")
    outbox.add(connection, "shop.orders", {"id": 1, "total": 42}, key="order-1", type="OrderPlaced")
connection.close()


async def main() -> None:
    async with await nats.connect(url) as client:
        stream = client.jetstream()
        await stream.add_stream(name="SHOP", subjects=["shop.>"])  # Postroom makes none by itself

        relay = Relay("sqlite:///shop.db", url, outbox=outbox)
        print("delivered", (await relay.drain()).delivered)

        found = await stream.get_last_msg("SHOP", "shop.orders")
        assert found.headers
        assert found.data
        print(found.headers["postroom-key"], found.headers["postroom-type"], found.data.decode())


asyncio.run(main())
