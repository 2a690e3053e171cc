"""What writers know for sure: written in the same transaction as the messages."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine, String, create_engine, event, insert, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from .checker import Committed

NAME = 64


class Base(DeclarativeBase):
    pass


class Key(Base):
    """A row to lock, and to count with."""

    __tablename__ = "chaos_keys"

    name: Mapped[str] = mapped_column(String(NAME), primary_key=True)
    number: Mapped[int] = mapped_column(default=0)


class Truth(Base):
    """A message that is to be delivered if this row is there."""

    __tablename__ = "chaos_truth"

    id: Mapped[str] = mapped_column(String(NAME), primary_key=True)
    name: Mapped[str | None] = mapped_column(String(NAME))
    number: Mapped[int | None]
    mood: Mapped[str] = mapped_column(String(NAME))


def key_name(number: int) -> str:
    return f"key-{number}"


def engine_for(url: str) -> Engine:
    engine = create_engine(url, pool_pre_ping=True)  # the server may have been restarted meanwhile
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _leave_transactions_to_us)
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    return engine


def _leave_transactions_to_us(connection: Any, _: object) -> None:
    connection.isolation_level = None
    connection.execute("PRAGMA busy_timeout = 20000")


def furnish(engine: Engine, keys: int) -> None:
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(insert(Key), [{"name": key_name(number), "number": 0} for number in range(keys)])


def read_committed(engine: Engine) -> list[Committed]:
    with engine.connect() as connection:
        return [Committed(*row) for row in connection.execute(text("SELECT id, name, number, mood FROM chaos_truth"))]


def read_dead(engine: Engine) -> frozenset[str]:
    with engine.connect() as connection:
        return frozenset(connection.scalars(text("SELECT id FROM postroom_dead")))


def count_waiting(engine: Engine) -> int:
    """In one statement: a message that moves from one to another is in one of them."""
    tables = ("postroom_outbox", "postroom_later", "postroom_parked")
    counts = " + ".join(f"(SELECT count(*) FROM {table})" for table in tables)
    with engine.connect() as connection:
        return int(connection.scalar(text(f"SELECT {counts}")) or 0)
