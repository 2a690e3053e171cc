"""An async one: python sqlalchemy_async_connection.py sqlite+aiosqlite:///shop.db, postgresql+asyncpg://…, mysql+asyncmy://…"""

import asyncio
import sys

from sqlalchemy import Column, Integer, MetaData, Table
from sqlalchemy.ext.asyncio import create_async_engine

from postroom import Outbox, Relay

metadata = MetaData()
orders = Table("orders", metadata, Column("id", Integer, primary_key=True), Column("total", Integer))
outbox = Outbox()


async def main(url: str) -> None:
    engine = create_async_engine(url)
    await outbox.create_tables_async(engine)  # MySQL needs it; elsewhere the first message would do it
    async with engine.begin() as connection:  # commits both, or neither
        await connection.run_sync(metadata.create_all)
        order = {"id": 1, "total": 42}
        await connection.execute(orders.insert(), order)
        await outbox.add_async(connection, "orders", order, key="order-1", type="OrderPlaced")
    await engine.dispose()

    await Relay(url, "stdout:").drain()


asyncio.run(main(sys.argv[1]))
