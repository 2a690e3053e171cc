"""What writers know for sure: written in the same transaction as the messages."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Double, Engine, String, create_engine, event, insert, text
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
    has_sequence: Mapped[bool]
    hand: Mapped[str] = mapped_column(String(NAME))
    """Which kind of writer it is of."""
    at: Mapped[float] = mapped_column(Double)
    """When it was about to be committed."""


COLUMNS = tuple(Truth.__table__.columns.keys())


def key_name(number: int, *, strict: bool = False) -> str:
    return f"{'strict' if strict else 'key'}-{number}"


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
        names = [key_name(number, strict=strict) for number in range(keys) for strict in (False, True)]
        connection.execute(insert(Key), [{"name": name, "number": 0} for name in names])


def read_committed(engine: Engine) -> list[Committed]:
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT id, name, number, mood, has_sequence, at FROM chaos_truth"))
        return [Committed(*row)._replace(has_sequence=bool(row.has_sequence)) for row in rows]


def kinds_of_writing(engine: Engine) -> set[tuple[str, str]]:
    """Which kinds of writers committed, and with which order."""
    order = "CASE WHEN name IS NULL THEN 'none' WHEN has_sequence THEN 'strict' ELSE 'locked' END"
    with engine.connect() as connection:
        rows = connection.execute(text(f"SELECT DISTINCT hand, {order} FROM chaos_truth"))
        return {(hand, kind) for hand, kind in rows}


def read_dead(engine: Engine) -> frozenset[str]:
    with engine.connect() as connection:
        return frozenset(connection.scalars(text("SELECT id FROM postroom_dead")))


def count_waiting(engine: Engine) -> int:
    """In one statement: a message that moves from one to another is in one of them."""
    tables = ("postroom_outbox", "postroom_later", "postroom_parked")
    counts = " + ".join(f"(SELECT count(*) FROM {table})" for table in tables)
    with engine.connect() as connection:
        return int(connection.scalar(text(f"SELECT {counts}")) or 0)
