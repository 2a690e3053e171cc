"""Messages to the subscribers of a topic: python mqtt_qos1.py mqtt://localhost:1883"""

import asyncio
import sqlite3
import sys
from typing import Any
from urllib.parse import urlsplit

import aiomqtt

from postroom import Outbox, Relay

url = sys.argv[1]
outbox = Outbox()

connection = sqlite3.connect("shop.db")
with connection:  # the order and its message, or neither
    connection.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, total INTEGER)")
    connection.execute("INSERT INTO orders (total) VALUES (42)")
    outbox.add(connection, "shop/orders", {"id": 1, "total": 42}, key="order-1", type="OrderPlaced")
connection.close()


async def main() -> None:
    parts = urlsplit(url)
    version = aiomqtt.ProtocolVersion.V5
    async with aiomqtt.Client(parts.hostname or "localhost", parts.port or 1883, protocol=version) as client:
        await client.subscribe("shop/#", qos=1)  # a broker keeps nothing for those who come later

        relay = Relay("sqlite:///shop.db", url, outbox=outbox)
        print("delivered", (await relay.drain()).delivered)

        message: Any = await anext(aiter(client.messages))
        headers = dict(message.properties.UserProperty)
        print(headers["postroom-key"], headers["postroom-type"], message.payload.decode())


asyncio.run(main())
