import asyncio

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from postroom import Message, Outbox, Relay


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]


engine = create_engine("sqlite:///shop.db")
Base.metadata.create_all(engine)
outbox = Outbox()

with Session(engine) as session:
    order = Order(total=42)
    session.add(order)
    session.flush()
    outbox.add(session, "orders", {"id": order.id, "total": 42}, key=f"order-{order.id}", type="OrderPlaced")
    session.commit()  # both, or neither


def deliver(message: Message) -> None:
    print(message.topic, message.key, message.type, message.payload.decode())


report = asyncio.run(Relay("sqlite:///shop.db", deliver, outbox=outbox).drain())
print(f"delivered {report.delivered}, pending {report.pending}")
