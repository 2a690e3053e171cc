"""What `add` costs an application that would otherwise write the row by hand."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from hashlib import md5
from typing import Any

from sqlalchemy import Engine, Insert, column, insert, table
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from postroom import Outbox

from .backlog import set_up
from .interleave import Comparison
from .run import Run

KEYS = 1_000
NOTE = "n" * 150
"""Makes the payload about 200 bytes long."""


class Application(DeclarativeBase):
    pass


class Order(Application):
    __tablename__ = "bench_orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]


def write(run: Run) -> Comparison:
    """An ORM session: a row of the application, `outbox.add` and commit, against an insert by hand and commit."""
    engine = run.database.engine(set_up(run.database))
    run.stack.callback(engine.dispose)
    Application.metadata.create_all(engine)
    for add in (with_outbox(), by_hand()):
        transactions_per_second(engine, add, 50)
    with_ours, with_theirs = with_outbox(), by_hand()
    return Comparison(
        ours=lambda: transactions_per_second(engine, with_ours, run.messages),
        reference=lambda: transactions_per_second(engine, with_theirs, run.messages),
        unit="transactions/s",
        reference_is="the same row of the outbox, inserted by hand",
        notes={"messages_are": "transactions a round"},
    )


def transactions_per_second(engine: Engine, add: Callable[[Session, int], object], number: int) -> float:
    start = time.perf_counter()
    for total in range(number):
        with Session(engine) as session:
            session.add(Order(total=total))
            add(session, total)
            session.commit()
    return number / (time.perf_counter() - start)


def with_outbox() -> Callable[[Session, int], object]:
    outbox = Outbox()

    def add(session: Session, number: int) -> None:
        outbox.add(session, "orders", payload(number), key=f"key-{number % KEYS}", type="OrderPlaced")

    return add


def by_hand() -> Callable[[Session, int], object]:
    statement = insert_by_hand()

    def add(session: Session, number: int) -> None:
        session.execute(statement, row_by_hand(number))

    return add


def insert_by_hand() -> Insert:
    names = ("slot", "id", "topic", "key", "type", "payload", "content_type")
    return insert(table("postroom_outbox", *map(column, names)))


def row_by_hand(number: int) -> dict[str, Any]:
    key = f"key-{number % KEYS}"
    return {
        "slot": md5(key.encode(), usedforsecurity=False).digest()[0] % 64,
        "id": str(uuid.uuid4()),
        "topic": "orders",
        "key": key,
        "type": "OrderPlaced",
        "payload": json.dumps(payload(number)).encode(),
        "content_type": "application/json",
    }


def payload(number: int) -> dict[str, Any]:
    return {"order": number, "currency": "EUR", "note": NOTE}
