"""An async session: python sqlalchemy_async_session.py sqlite+aiosqlite:///shop.db, postgresql+asyncpg://…, mysql+asyncmy://…"""

import asyncio
import sys

from sqlalchemy import Column, Integer, MetaData, Table
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from postroom import Outbox, Relay

metadata = MetaData()
orders = Table("orders", metadata, Column("id", Integer, primary_key=True), Column("total", Integer))
outbox = Outbox()


async def main(url: str) -> None:
    engine = create_async_engine(url)
    await outbox.create_tables_async(engine)  # MySQL needs it; elsewhere the first message would do it
    async with AsyncSession(engine) as session, session.begin():  # commits both, or neither
        await session.run_sync(lambda sync: metadata.create_all(sync.connection()))
        order = {"id": 1, "total": 42}
        await session.execute(orders.insert(), order)
        outbox.add(session, "orders", order, key="order-1", type="OrderPlaced")  # no await
    await engine.dispose()

    await Relay(url, "stdout:").drain()


asyncio.run(main(sys.argv[1]))
