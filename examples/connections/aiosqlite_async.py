"""aiosqlite: python aiosqlite_async.py shop.db"""

import asyncio
import sys

import aiosqlite

from postroom import Outbox, Relay

outbox = Outbox()


async def main(path: str) -> None:
    async with aiosqlite.connect(path) as connection:
        await connection.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, total INTEGER)")
        cursor = await connection.execute("INSERT INTO orders (total) VALUES (42)")
        order = cursor.lastrowid
        await outbox.add_async(connection, "orders", {"id": order, "total": 42}, key=f"order-{order}")
        await connection.commit()  # both, or neither

    await Relay(f"sqlite:///{path}", "stdout:").drain()


asyncio.run(main(sys.argv[1]))
