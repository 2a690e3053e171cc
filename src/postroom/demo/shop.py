"""A small shop on SQLite: orders, and the messages that go with them in the same transaction."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Engine, ForeignKey, String, create_engine, event, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from ..outbox import Outbox
from .plan import PlannedOrder

STOCK = 1_000_000
MOST_TRIES = 20
SAID = "said"
"""Where a session notes the ids of all messages, also of those that are rolled back."""

T = TypeVar("T")

outbox = Outbox()


class Table(DeclarativeBase):
    pass


class Customer(Table):
    __tablename__ = "customers"
    name: Mapped[str] = mapped_column(String(32), primary_key=True)
    spent: Mapped[int] = mapped_column(default=0)


class Product(Table):
    __tablename__ = "products"
    name: Mapped[str] = mapped_column(String(32), primary_key=True)
    price: Mapped[int]
    stock: Mapped[int] = mapped_column(default=STOCK)


class Order(Table):
    __tablename__ = "orders"
    reference: Mapped[str] = mapped_column(String(32), primary_key=True)
    customer_name: Mapped[str] = mapped_column(ForeignKey("customers.name"))
    status: Mapped[str] = mapped_column(String(16), default="placed")
    customer: Mapped[Customer] = relationship()
    lines: Mapped[list[OrderLine]] = relationship()


class OrderLine(Table):
    __tablename__ = "order_lines"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_reference: Mapped[str] = mapped_column(ForeignKey("orders.reference"))
    product_name: Mapped[str] = mapped_column(ForeignKey("products.name"))
    quantity: Mapped[int]
    price: Mapped[int]


class Truth(Table):
    """What was really committed, written by the shop itself: what the ledger compares everything with.

    `number` rises in the order of commits, for each key and for all: SQLite lets one transaction write at a time, and
    ours have the lock from their first statement on.
    """

    __tablename__ = "truth"
    number: Mapped[int] = mapped_column(primary_key=True)
    message_id: Mapped[str] = mapped_column(String(36), unique=True)
    topic: Mapped[str] = mapped_column(String(32))
    key: Mapped[str] = mapped_column(String(32))
    written_at: Mapped[float]


class SoldOut(Exception):
    """The warehouse has nothing left; the order, or the gift, cannot be."""


# --- the database, as SQLite wants to be used by several processes


def url_of(database: Path) -> str:
    return f"sqlite:///{database.as_posix()}"


def open_shop(database: Path) -> Engine:
    engine = create_engine(url_of(database), connect_args={"timeout": 30})
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "begin", _begin)
    return engine


def _prepare(connection: Any, record: object) -> None:
    connection.isolation_level = None  # the driver's own BEGIN comes late, and would break savepoints
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")


def _begin(connection: Any) -> None:
    """Take the lock first: a transaction that reads and then writes would fail if another one wrote in between."""
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def in_transaction(engine: Engine, work: Callable[[Session], T], said: list[str] | None = None) -> T:
    """Do the work and commit; if the database is too busy, do it all again. What is said is noted, come what may."""
    for attempt in range(1, MOST_TRIES + 1):
        try:
            with Session(engine, info={SAID: [] if said is None else said}) as session, session.begin():
                return work(session)
        except OperationalError as error:
            if "locked" not in str(error) or attempt == MOST_TRIES:
                raise
            time.sleep(0.01 * attempt)
    raise AssertionError("unreachable: the last try returns or raises")


def furnish(engine: Engine, customers: Iterable[str], products: Iterable[str]) -> None:
    """Tables, customers and something to sell."""
    Table.metadata.create_all(engine)
    outbox.create_tables(engine)

    def work(session: Session) -> None:
        session.add_all([Customer(name=name) for name in customers])
        session.add_all([Product(name=name, price=100 + 50 * number) for number, name in enumerate(products)])

    in_transaction(engine, work)


# --- the business


def place(session: Session, planned: PlannedOrder) -> Order:
    """One order, the goods it takes from stock, perhaps a gift, and everything the world has to hear about it."""
    customer = session.get_one(Customer, planned.customer)
    products = _products(session, planned)
    order = Order(reference=planned.reference, customer=customer)
    session.add(order)
    for line in planned.lines:
        _reserve(session, order, products[line.product], line.quantity)
    if planned.gift != "none":
        _add_gift(session, order, products[planned.lines[0].product], is_left=planned.gift == "wrapped")
    total = sum(line.price * line.quantity for line in order.lines)
    customer.spent += total
    say(session, "orders", "OrderPlaced", order, customer.name, {"total": total})
    say(session, "mail", "ConfirmationRequested", order, customer.name, {"template": "thanks"})
    if planned.sold_out:
        raise SoldOut(order.reference)
    return order


def _products(session: Session, planned: PlannedOrder) -> dict[str, Product]:
    names = {line.product for line in planned.lines}
    return {product.name: product for product in session.scalars(select(Product).where(Product.name.in_(names)))}


def _reserve(session: Session, order: Order, product: Product, quantity: int) -> None:
    product.stock -= quantity
    order.lines.append(OrderLine(product_name=product.name, quantity=quantity, price=product.price))
    say(session, "stock", "StockReserved", order, product.name, {"quantity": quantity, "left": product.stock})


def _add_gift(session: Session, order: Order, product: Product, *, is_left: bool) -> None:
    """In a savepoint: an order without its gift is still an order."""
    with contextlib.suppress(SoldOut), session.begin_nested():
        _reserve(session, order, product, 1)
        say(session, "orders", "GiftWrapped", order, order.customer.name, {"paper": "red"})
        if not is_left:
            raise SoldOut(order.reference)


def pay(session: Session, planned: PlannedOrder) -> None:
    order = session.get_one(Order, planned.reference)
    order.status = "paid"
    say(session, "orders", "OrderPaid", order, order.customer_name, {"by": "card"})
    say(session, "parcels", "ParcelRequested", order, order.reference, {"lines": len(planned.lines)})
    say(session, "parcels", "ParcelLabelled", order, order.reference, {"carrier": "bicycle"})


def say(session: Session, topic: str, type: str, order: Order, key: str, details: dict[str, Any]) -> None:
    """Add the message to the outbox, and write the truth about it in the same transaction."""
    message = outbox.add(session, topic, {"order": order.reference, **details}, key=key, type=type)
    session.info[SAID].append(message.id)
    session.add(Truth(message_id=message.id, topic=topic, key=key, written_at=time.time()))
