"""The tables of one outbox, for the write side and for every SQL store.

Column names can be mapped by Debezium's outbox event router through configuration alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
)
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import SchemaItem
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.expression import FunctionElement
from sqlalchemy.types import TypeDecorator

from ..errors import ConfigurationError
from ..message import LONGEST_NAME

VERSION = 1
"""What this code writes."""
MIN_COMPATIBLE = 1
"""The oldest code that can work with tables of `VERSION`."""

DEFAULT_PREFIX = "postroom_"


class Moment(TypeDecorator[datetime]):
    """A point in time. SQLite keeps it as readable UTC text that sorts; servers as their own type."""

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> Any:
        kind: Any = String(26) if dialect.name == "sqlite" else DateTime(timezone=True)
        return dialect.type_descriptor(kind)

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        if value is None or dialect.name != "sqlite":
            return value
        return to_text(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        return from_text(value) if isinstance(value, str) else value


def to_text(moment: datetime) -> str:
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")


def from_text(text: str) -> datetime | None:
    """None for what is no time: a foreign writer's slip must not hide its row from the operator."""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        return None


class db_now(FunctionElement[datetime]):
    """The database's clock, not the start of the transaction."""

    type = Moment()
    inherit_cache = True


@compiles(db_now, "sqlite")
def _sqlite_now(element: db_now, compiler: SQLCompiler, **kw: Any) -> str:
    return "strftime('%Y-%m-%d %H:%M:%f', 'now')"


class seconds_from_now(FunctionElement[datetime]):
    """`seconds_from_now(x)`: the database's clock plus x seconds."""

    type = Moment()
    inherit_cache = True


@compiles(seconds_from_now, "sqlite")
def _sqlite_from_now(element: seconds_from_now, compiler: SQLCompiler, **kw: Any) -> str:
    offset = compiler.process(element.clauses, **kw)
    return f"strftime('%Y-%m-%d %H:%M:%f', 'now', {offset} || ' seconds')"


def _position(**options: Any) -> Column[int]:
    return Column("position", BigInteger().with_variant(Integer, "sqlite"), **options)


def _message_columns() -> list[SchemaItem]:
    return [
        Column("slot", SmallInteger, nullable=False),
        Column("id", String(36), nullable=False),
        Column("topic", String(LONGEST_NAME), nullable=False),
        Column("key", String(LONGEST_NAME)),
        Column("type", String(LONGEST_NAME)),
        Column("payload", LargeBinary, nullable=False),
        Column("content_type", String(LONGEST_NAME)),
        Column("headers", Text),
        Column("sequence", BigInteger),
        Column("generation", BigInteger),
        Column("attempts", Integer, nullable=False, server_default="0"),
        Column("replays", Integer, nullable=False, server_default="0"),
        Column("created_at", Moment, nullable=False, server_default=db_now()),
        Column("expires_at", Moment),
    ]


MESSAGE_COLUMNS = tuple(column.name for column in _message_columns() if isinstance(column, Column))
"""What a message carries from table to table, without its position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """One outbox's tables. `hot` is the one named `outbox`: it holds only what may go now."""

    prefix: str
    metadata: MetaData
    hot: Table
    later: Table
    parked: Table
    dead: Table
    archive: Table
    dedupe: Table
    counters: Table
    holds: Table
    leases: Table
    relays: Table
    breakers: Table
    meta: Table

    def all(self) -> list[Table]:
        return [getattr(self, name) for name in self.__slots__ if name not in ("prefix", "metadata")]


def prefix_of(name: str, prefix: str | None) -> str:
    """The prefix of an outbox's tables: its own, or one derived from its name."""
    if prefix is None:
        prefix = DEFAULT_PREFIX if name == "default" else f"{DEFAULT_PREFIX}{name}_"
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,40}", prefix):
        raise ConfigurationError(
            f"the table prefix {prefix!r} cannot be used: letters, digits and underscores only, at most 41"
        )
    return prefix


def define_tables(
    metadata: MetaData | None = None, *, prefix: str = DEFAULT_PREFIX, schema: str | None = None
) -> Tables:
    """Define the tables in a `MetaData`: the application's own (for Alembic), or a new one."""
    metadata = MetaData() if metadata is None else metadata
    known = f"{schema}.{prefix}outbox" if schema else f"{prefix}outbox"
    if known in metadata.tables:
        raise ConfigurationError(f"the tables of the outbox with prefix {prefix!r} are already in this MetaData")

    def table(name: str, *items: SchemaItem, **options: Any) -> Table:
        return Table(f"{prefix}{name}", metadata, *items, schema=schema, **options)

    def index(name: str, *columns: str) -> Index:
        return Index(f"{prefix}{name}", *columns)

    number = BigInteger().with_variant(Integer, "sqlite")
    name = String(LONGEST_NAME)
    return Tables(
        prefix=prefix,
        metadata=metadata,
        hot=table(
            "outbox",
            _position(primary_key=True, autoincrement=True),
            *_message_columns(),
            index("outbox_by_slot", "slot", "position"),
            # A plain rowid would restart at 1 once the table is empty, and order would be lost.
            sqlite_autoincrement=True,
        ),
        later=table(
            "later",
            Column("number", number, primary_key=True, autoincrement=True),
            Column("due_at", Moment, nullable=False),
            Column("error", Text),
            *_message_columns(),
            index("later_by_due", "slot", "due_at", "number"),
            sqlite_autoincrement=True,
        ),
        parked=table(
            "parked",
            _position(primary_key=True, autoincrement=False),
            Column("behind", String(5), nullable=False),
            *_message_columns(),
            index("parked_by_key", "slot", "topic", "key", "position"),
            index("parked_by_topic", "slot", "behind", "topic", "position"),
        ),
        dead=table(
            "dead",
            Column("number", number, primary_key=True, autoincrement=True),
            _position(nullable=False),
            Column("reason", String(32), nullable=False),
            Column("error", Text, nullable=False),
            Column("holding", Boolean, nullable=False),
            Column("died_at", Moment, nullable=False, server_default=db_now()),
            Column("revive_at", Moment),
            *_message_columns(),
            index("dead_by_id", "id"),
            index("dead_by_revival", "slot", "revive_at"),
            sqlite_autoincrement=True,
        ),
        archive=table(
            "archive",
            Column("number", number, primary_key=True, autoincrement=True),
            _position(nullable=False),
            Column("outcome", String(16), nullable=False),
            Column("settled_at", Moment, nullable=False, server_default=db_now()),
            Column("reason", String(32)),
            Column("error", Text),
            *_message_columns(),
            index("archive_by_id", "id"),
            index("archive_by_time", "settled_at"),
            sqlite_autoincrement=True,
        ),
        dedupe=table(
            "dedupe",
            Column("key", name, primary_key=True),
            Column("message_id", String(36), nullable=False),
            Column("expires_at", Moment, nullable=False),
            index("dedupe_by_time", "expires_at"),
        ),
        counters=table(
            "counters",
            Column("topic", name, primary_key=True),
            Column("key", name, primary_key=True),
            Column("sequence", BigInteger, nullable=False),
            Column("generation", BigInteger, nullable=False),
        ),
        holds=table(
            "holds",
            Column("slot", SmallInteger, primary_key=True, autoincrement=False),
            Column("topic", name, primary_key=True),
            Column("key", name, primary_key=True),
            Column("message_id", String(36), nullable=False),
            _position(nullable=False),
            Column("attempts", Integer, nullable=False),
            Column("status", String(10), nullable=False),
            Column("since", Moment, nullable=False, server_default=db_now()),
            Column("until", Moment),
            Column("error", Text, nullable=False),
            index("holds_by_position", "position"),
            index("holds_by_status", "status", "slot"),
        ),
        leases=table(
            "leases",
            Column("slot", SmallInteger, primary_key=True, autoincrement=False),
            Column("owner", String(64)),
            Column("epoch", BigInteger, nullable=False),
            Column("expires_at", Moment),
            Column("mark", BigInteger, nullable=False, server_default="0"),
        ),
        relays=table(
            "relays",
            Column("id", String(64), primary_key=True),
            Column("host", name, nullable=False),
            Column("pid", Integer, nullable=False),
            Column("started_at", Moment, nullable=False, server_default=db_now()),
            Column("seen_at", Moment, nullable=False),
            Column("until", Moment, nullable=False),
            Column("in_flight", Integer, nullable=False),
            Column("woken_by", String(32), nullable=False),
        ),
        breakers=table(
            "breakers",
            Column("destination", name, primary_key=True),
            Column("successes", BigInteger, nullable=False, server_default="0"),
            Column("probe_by", String(64)),
            Column("probe_until", Moment),
            Column("tripped_at", Moment),
            Column("tripped_by", String(64)),
            Column("error", Text),
        ),
        meta=table(
            "meta",
            Column("name", String(32), primary_key=True),
            Column("value", String(LONGEST_NAME), nullable=False),
        ),
    )
