"""Orders come from Kafka, an invoice is written for each, and RabbitMQ hears of it: once, whatever dies and when.

    python invoicing.py postgresql+psycopg://… localhost:9092 'amqp://guest:guest@localhost:5672/?declare=true'

What makes it so: the invoice, the memory that its order was handled (inbox) and the message about it (outbox) are one
transaction. Only afterwards Kafka is told that the order is done with. If the process dies in between, the order comes
again, and the inbox knows it. The relay delivers from the outbox at least once, so whoever reads from RabbitMQ has an
inbox, too.
"""

import json
import sys
from collections.abc import Iterator

from confluent_kafka import Consumer, Message
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from postroom import Inbox, Outbox, Received, Relay
from postroom.consumers import kafka


class Base(DeclarativeBase): ...


class Invoice(Base):
    __tablename__ = "invoices"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int]
    total: Mapped[int]


inbox, outbox = Inbox(), Outbox()
make_session = sessionmaker[Session]()


@inbox.once(consumer="invoicing", session=make_session)
def write_invoice(received: Received, session: Session) -> None:
    order = json.loads(received.payload or b"")
    invoice = Invoice(order_id=order["id"], total=order["total"])
    session.add(invoice)
    session.flush()
    outbox.add(
        session, "invoices", {"invoice": invoice.id, "order": order["id"]}, key=received.key, type="InvoiceWritten"
    )


def consume(consumer: Consumer, idle: float) -> None:
    """Until nothing has come for so many seconds."""
    for message in records(consumer, idle):
        write_invoice(kafka.received(message))
        consumer.commit(message=message, asynchronous=False)


def records(consumer: Consumer, idle: float) -> Iterator[Message]:
    while (message := consumer.poll(idle)) is not None:
        if (error := message.error()) is not None:
            raise RuntimeError(str(error))
        yield message


def make_consumer(brokers: str, topic: str) -> Consumer:
    """With a name of its own, so that it gets its partitions back at once when it is started again."""
    consumer = Consumer({
        "bootstrap.servers": brokers,
        "group.id": f"invoicing-of-{topic}",
        "group.instance.id": "invoicing-1",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    })  # fmt: skip
    consumer.subscribe([topic])
    return consumer


def main(database: str, brokers: str, destination: str, topic: str = "orders", idle: float = 10.0) -> None:
    engine = create_engine(database)
    Base.metadata.create_all(engine)
    make_session.configure(bind=engine)
    relay = Relay(database, destination, outbox=outbox)
    relay.start()
    consumer = make_consumer(brokers, topic)
    try:
        consume(consumer, idle)
    finally:
        consumer.close()
        relay.stop()
        engine.dispose()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3])
