"""asyncmy: python asyncmy_async.py mysql://root@localhost/shop"""

import asyncio
import sys

import asyncmy
from sqlalchemy import make_url

from postroom import Outbox, Relay

outbox = Outbox()


async def main(url: str) -> None:
    parts = make_url(url)
    place = {"host": parts.host, "port": parts.port or 3306, "user": parts.username, "password": parts.password or ""}
    connection = await asyncmy.connect(**place, database=parts.database)
    await outbox.create_tables_async(connection)  # MySQL: before any transaction, for this would commit it
    async with connection.cursor() as cursor:
        await cursor.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER AUTO_INCREMENT PRIMARY KEY, total INTEGER)")
        await cursor.execute("INSERT INTO orders (total) VALUES (42)")
        order = cursor.lastrowid
    await outbox.add_async(connection, "orders", {"id": order, "total": 42}, key=f"order-{order}")
    await connection.commit()  # both, or neither
    connection.close()
    await Relay(url, "stdout:").drain()


asyncio.run(main(sys.argv[1]))
