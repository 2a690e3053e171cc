"""Messages in a stream of Redis: python redis_streams.py redis://localhost:6379/0"""

import asyncio
import sqlite3
import sys
from typing import Any

import redis

from postroom import Outbox, Relay

url = sys.argv[1]
outbox = Outbox()

connection = sqlite3.connect("shop.db")
with connection:  # the order and its message, or neither
    connection.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, total INTEGER)")
    connection.execute("INSERT INTO orders (total) VALUES (42)")
    outbox.add(connection, "orders", {"id": 1, "total": 42}, key="order-1", type="OrderPlaced")
connection.close()

relay = Relay("sqlite:///shop.db", f"{url}?maxlen=1000000", outbox=outbox)
print("delivered", asyncio.run(relay.drain()).delivered)

with redis.Redis.from_url(url, decode_responses=True) as client:
    entries: Any = client.xrevrange("orders", count=1)
    for _, entry in entries:
        print(entry["postroom-key"], entry["postroom-type"], entry["payload"])
