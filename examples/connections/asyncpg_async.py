"""asyncpg with a pool: python asyncpg_async.py postgresql://localhost/shop"""

import asyncio
import sys

import asyncpg

from postroom import Outbox, Relay

outbox = Outbox()


async def main(url: str) -> None:
    async with asyncpg.create_pool(url, min_size=1) as pool, pool.acquire() as connection:
        await connection.execute("CREATE TABLE IF NOT EXISTS orders (id SERIAL PRIMARY KEY, total INTEGER)")
        async with connection.transaction():  # commits both, or neither
            order = await connection.fetchval("INSERT INTO orders (total) VALUES (42) RETURNING id")
            await outbox.add_async(connection, "orders", {"id": order, "total": 42}, key=f"order-{order}")

    await Relay(url, "stdout:").drain()


asyncio.run(main(sys.argv[1]))
