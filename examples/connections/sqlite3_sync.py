"""The standard library's sqlite3: python sqlite3_sync.py shop.db"""

import asyncio
import sqlite3
import sys

from postroom import Outbox, Relay

outbox = Outbox()

connection = sqlite3.connect(sys.argv[1])
connection.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, total INTEGER)")
with connection:  # commits both, or neither
    order = connection.execute("INSERT INTO orders (total) VALUES (42)").lastrowid
    outbox.add(connection, "orders", {"id": order, "total": 42}, key=f"order-{order}", type="OrderPlaced")
connection.close()

asyncio.run(Relay(f"sqlite:///{sys.argv[1]}", "stdout:").drain())
