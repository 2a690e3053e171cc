"""psycopg, async: python psycopg_async.py postgresql://localhost/shop"""

import asyncio
import sys

import psycopg
from psycopg.rows import scalar_row

from postroom import Outbox, Relay

outbox = Outbox()


async def main(url: str) -> None:
    connection = await psycopg.AsyncConnection.connect(url, autocommit=True, row_factory=scalar_row)
    await connection.execute("CREATE TABLE IF NOT EXISTS orders (id SERIAL PRIMARY KEY, total INTEGER)")
    async with connection.transaction():  # commits both, or neither
        order = await (await connection.execute("INSERT INTO orders (total) VALUES (42) RETURNING id")).fetchone()
        await outbox.add_async(connection, "orders", {"id": order, "total": 42}, key=f"order-{order}")
    await connection.close()

    await Relay(url, "stdout:").drain()


asyncio.run(main(sys.argv[1]))
