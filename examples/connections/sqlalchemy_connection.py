"""A SQLAlchemy connection: python sqlalchemy_connection.py sqlite:///shop.db, or postgresql+psycopg://…"""

import asyncio
import sys

from sqlalchemy import Column, Integer, MetaData, Table, create_engine

from postroom import Outbox, Relay

engine = create_engine(sys.argv[1])
metadata = MetaData()
orders = Table("orders", metadata, Column("id", Integer, primary_key=True), Column("total", Integer))
outbox = Outbox()

metadata.create_all(engine)
outbox.create_tables(engine)  # or leave it to the first message

with engine.begin() as connection:  # commits both, or neither
    order = {"id": 1, "total": 42}
    connection.execute(orders.insert(), order)
    outbox.add(connection, "orders", order, key="order-1", type="OrderPlaced")

asyncio.run(Relay(sys.argv[1], "stdout:").drain())
