"""A SQLAlchemy session: python sqlalchemy_session.py sqlite:///shop.db, or postgresql+psycopg://…"""

import asyncio
import sys

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from postroom import Outbox, Relay


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]


engine = create_engine(sys.argv[1])
Base.metadata.create_all(engine)
outbox = Outbox()
outbox.create_tables(engine)  # or leave it to the first message
with Session(engine) as session, session.begin():  # commits both, or neither
    order = Order(total=42)
    session.add(order)
    session.flush()
    outbox.add(session, "orders", {"id": order.id, "total": 42}, key=f"order-{order.id}", type="OrderPlaced")
asyncio.run(Relay(sys.argv[1], "stdout:").drain())
