"""psycopg: python psycopg_sync.py postgresql://localhost/shop"""

import asyncio
import sys

import psycopg
from psycopg.rows import scalar_row

from postroom import Outbox, Relay

url = sys.argv[1]
outbox = Outbox()

with psycopg.connect(url, row_factory=scalar_row) as connection:  # commits both, or neither
    connection.execute("CREATE TABLE IF NOT EXISTS orders (id SERIAL PRIMARY KEY, total INTEGER)")
    order = connection.execute("INSERT INTO orders (total) VALUES (42) RETURNING id").fetchone()
    outbox.add(connection, "orders", {"id": order, "total": 42}, key=f"order-{order}", type="OrderPlaced")

asyncio.run(Relay(url, "stdout:").drain())
