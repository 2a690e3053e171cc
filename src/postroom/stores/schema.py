"""The tables of one outbox, for the write side and for every SQL store.

Column names can be mapped by Debezium's outbox event router through configuration alone.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Sequence,
    SmallInteger,
    String,
    Table,
    Text,
    func,
)
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import SchemaItem
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.expression import BindParameter, ColumnElement, FunctionElement
from sqlalchemy.types import TypeDecorator

from ..errors import ConfigurationError
from ..message import LONGEST_NAME

VERSION = 1
"""Of the tables that this code makes. Raised when they change in a way that code can tell."""
MIN_COMPATIBLE = 1
"""What these tables require of the code: it must know this version. Written into them, for older code to read."""
OLDEST_TABLES = 1
"""What this code requires of the tables: it can work with those of this version or later."""

SET_UP_LOCK = 0x706F7374726F70
"""PostgreSQL's advisory lock under which tables are created, by the write side and by stores alike."""

DEFAULT_PREFIX = "postroom_"


class Moment(TypeDecorator[datetime]):
    """A point in time. SQLite keeps it as readable UTC text that sorts, MySQL as UTC without a zone."""

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> Any:
        kinds: dict[str, Any] = {"sqlite": String(26), "mysql": mysql.DATETIME(fsp=6), "mariadb": mysql.DATETIME(fsp=6)}
        return dialect.type_descriptor(kinds.get(dialect.name, DateTime(timezone=True)))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        if value is None or dialect.name == "postgresql":
            return value
        return to_text(value) if dialect.name == "sqlite" else value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if isinstance(value, str):
            return from_text(value)
        return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value


class Name(TypeDecorator[str]):
    """A text that is compared byte by byte on every database: MySQL's default would take `A` and `a`, or `a` and `a `,
    for the same key."""

    impl = String
    cache_ok = True

    def __init__(self, length: int = LONGEST_NAME) -> None:
        super().__init__(length)
        self.length = length

    def load_dialect_impl(self, dialect: Dialect) -> Any:
        if dialect.name not in ("mysql", "mariadb"):
            return dialect.type_descriptor(String(self.length))
        is_mariadb = dialect.name == "mariadb" or getattr(dialect, "is_mariadb", False)
        collation = "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"
        return dialect.type_descriptor(mysql.VARCHAR(self.length, charset="utf8mb4", collation=collation))


def long_text() -> Text:
    """64 KiB, MySQL's usual text, is too little."""
    return Text().with_variant(mysql.LONGTEXT(charset="utf8mb4"), "mysql", "mariadb")


class _HexedBlob(mysql.LONGBLOB):
    """Bytes that are sent as hexadecimal text. MySQL's drivers write values into the statement, and not all of them get
    bytes right: asyncmy takes no notice of NO_BACKSLASH_ESCAPES, and aiomysql cannot do it at all with PyMySQL 1.2."""

    def bind_processor(self, dialect: Dialect) -> Any:
        def process(value: bytes | None) -> str | None:
            return None if value is None else value.hex()

        return process

    def bind_expression(self, bindvalue: BindParameter[bytes]) -> ColumnElement[bytes]:
        return func.unhex(bindvalue)


def _long_binary() -> LargeBinary:
    return LargeBinary().with_variant(_HexedBlob(), "mysql", "mariadb")


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


@compiles(db_now, "postgresql")
def _postgresql_now(element: db_now, compiler: SQLCompiler, **kw: Any) -> str:
    return "clock_timestamp()"


@compiles(db_now, "mysql", "mariadb")
def _mysql_now(element: db_now, compiler: SQLCompiler, **kw: Any) -> str:
    return "(UTC_TIMESTAMP(6))"


class seconds_from_now(FunctionElement[datetime]):
    """`seconds_from_now(x)`: the database's clock plus x seconds."""

    type = Moment()
    inherit_cache = True


@compiles(seconds_from_now, "sqlite")
def _sqlite_from_now(element: seconds_from_now, compiler: SQLCompiler, **kw: Any) -> str:
    offset = compiler.process(element.clauses, **kw)
    return f"strftime('%Y-%m-%d %H:%M:%f', 'now', {offset} || ' seconds')"


@compiles(seconds_from_now, "postgresql")
def _postgresql_from_now(element: seconds_from_now, compiler: SQLCompiler, **kw: Any) -> str:
    return f"clock_timestamp() + make_interval(secs => {compiler.process(element.clauses, **kw)})"


@compiles(seconds_from_now, "mysql", "mariadb")
def _mysql_from_now(element: seconds_from_now, compiler: SQLCompiler, **kw: Any) -> str:
    seconds = compiler.process(element.clauses, **kw)
    return f"TIMESTAMPADD(MICROSECOND, ROUND({seconds} * 1000000), UTC_TIMESTAMP(6))"


def _position(**options: Any) -> Column[int]:
    return Column("position", BigInteger().with_variant(Integer, "sqlite"), **options)


def _numbered(name: str) -> Column[int]:
    """A primary key that the database counts up. On PostgreSQL an identity: unlike a sequence beside the table, it
    needs no right of its own."""
    return Column(name, BigInteger().with_variant(Integer, "sqlite"), Identity(), primary_key=True, autoincrement=True)


def _message_columns() -> list[SchemaItem]:
    return [
        Column("slot", SmallInteger, nullable=False),
        Column("id", Name(36), nullable=False),
        Column("topic", Name(), nullable=False),
        Column("key", Name()),
        Column("type", Name()),
        Column("payload", _long_binary(), nullable=False),
        Column("content_type", Name()),
        Column("headers", long_text()),
        Column("sequence", BigInteger),
        Column("generation", BigInteger),
        Column("attempts", Integer, nullable=False, server_default="0"),
        Column("replays", Integer, nullable=False, server_default="0"),
        Column("created_at", Moment, nullable=False, server_default=db_now()),
        Column("expires_at", Moment),
    ]


def _storage(**parameters: Any) -> dict[str, Any]:
    """Storage parameters on PostgreSQL. SQLAlchemy 2.0 cannot write them for tables: there the server's defaults hold,
    which is a matter of speed alone."""
    known: dict[Any, Any] = dict(postgresql.dialect.construct_arguments or ())
    return {"postgresql_with": parameters} if "with" in known.get(Table, {}) else {}


def _passed_through() -> dict[str, Any]:
    """Rows come and go, so what is to be vacuumed has nothing to do with how many there are. Rows that are about to be
    deleted need not be frozen."""
    vacuum: dict[str, Any] = {
        "autovacuum_vacuum_scale_factor": 0,
        "autovacuum_vacuum_threshold": 10_000,
        "autovacuum_vacuum_cost_delay": 0,
    }
    return _storage(
        **vacuum,
        **{f"toast.{name}": value for name, value in vacuum.items()},
        autovacuum_vacuum_insert_threshold=-1,
        autovacuum_analyze_scale_factor=0,
        autovacuum_analyze_threshold=50_000,
    )


def _rewritten() -> dict[str, Any]:
    """A few rows that change all the time: with room on their pages for the next version, and seldom more than a
    hundred old ones."""
    return _storage(fillfactor=50, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=100)


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
    claims: Table
    dead: Table
    archive: Table
    dedupe: Table
    counters: Table
    holds: Table
    leases: Table
    relays: Table
    breakers: Table
    meta: Table
    bell: Sequence
    """PostgreSQL only, and not in the metadata: its value is a mask of the slots whose owners sleep. A sequence,
    because a row that changes often would bloat under an old snapshot."""

    def all(self) -> list[Table]:
        return [getattr(self, name) for name in self.__slots__ if name not in ("prefix", "metadata", "bell")]


def bell_channel(tables: Tables) -> str:
    """Where the doorbell of these tables is heard. Names of channels are limited to 63 bytes."""
    place = f"{tables.hot.schema or ''}.{tables.prefix}"
    return f"postroom_{hashlib.md5(place.encode(), usedforsecurity=False).hexdigest()[:12]}"


def prefix_of(name: str, prefix: str | None) -> str:
    """The prefix of an outbox's tables: its own, or one derived from its name."""
    if prefix is None:
        prefix = DEFAULT_PREFIX if name == "default" else f"{DEFAULT_PREFIX}{name}_"
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,40}", prefix):
        raise ConfigurationError(
            f"the table prefix {prefix!r} cannot be used: letters, digits and underscores only, at most 41"
        )
    return prefix


@cache
def tables_of(prefix: str, schema: str | None) -> Tables:
    """In a `MetaData` of their own, which all share who have no other."""
    return define_tables(prefix=prefix, schema=schema)


def define_tables(
    metadata: MetaData | None = None, *, prefix: str = DEFAULT_PREFIX, schema: str | None = None
) -> Tables:
    """Define the tables in a `MetaData`: the application's own (for Alembic), or a new one."""
    metadata = MetaData() if metadata is None else metadata
    schema = schema or metadata.schema
    known = f"{schema}.{prefix}outbox" if schema else f"{prefix}outbox"
    if known in metadata.tables:
        raise ConfigurationError(f"the tables of the outbox with prefix {prefix!r} are already in this MetaData")

    def table(name: str, *items: SchemaItem, **options: Any) -> Table:
        # A server may have another default engine, without transactions.
        engine = {"mysql_engine": "InnoDB", "mariadb_engine": "InnoDB"}
        return Table(f"{prefix}{name}", metadata, *items, schema=schema, **engine, **options)

    def index(name: str, *columns: str) -> Index:
        return Index(f"{prefix}{name}", *columns)

    name = Name()
    return Tables(
        prefix=prefix,
        metadata=metadata,
        hot=table(
            "outbox",
            _numbered("position"),
            *_message_columns(),
            index("outbox_by_slot", "slot", "position"),
            # A plain rowid would restart at 1 once the table is empty, and order would be lost.
            sqlite_autoincrement=True,
            **_passed_through(),
        ),
        later=table(
            "later",
            _numbered("number"),
            Column("due_at", Moment, nullable=False),
            Column("error", long_text()),
            *_message_columns(),
            index("later_by_due", "slot", "due_at", "number"),
            sqlite_autoincrement=True,
            **_passed_through(),
        ),
        parked=table(
            "parked",
            _position(primary_key=True, autoincrement=False),
            Column("behind", String(5), nullable=False),
            *_message_columns(),
            index("parked_by_key", "slot", "topic", "key", "position"),
            index("parked_by_topic", "slot", "behind", "topic", "position"),
            **_passed_through(),
        ),
        claims=table(
            "claims",
            _position(primary_key=True, autoincrement=False),
            Column("token", Name(64), nullable=False),
            Column("until", Moment, nullable=False),
            *_message_columns(),
            index("claims_by_token", "token"),
            index("claims_by_until", "until"),
            **_passed_through(),
        ),
        dead=table(
            "dead",
            _numbered("number"),
            _position(nullable=False),
            Column("reason", String(32), nullable=False),
            Column("error", long_text(), nullable=False),
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
            _numbered("number"),
            _position(nullable=False),
            Column("outcome", String(16), nullable=False),
            Column("settled_at", Moment, nullable=False, server_default=db_now()),
            Column("reason", String(32)),
            Column("error", long_text()),
            *_message_columns(),
            index("archive_by_id", "id"),
            index("archive_by_time", "settled_at"),
            sqlite_autoincrement=True,
        ),
        dedupe=table(
            "dedupe",
            Column("key", name, primary_key=True),
            Column("message_id", Name(36), nullable=False),
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
            Column("message_id", Name(36), nullable=False),
            _position(nullable=False),
            Column("attempts", Integer, nullable=False),
            Column("status", String(10), nullable=False),
            Column("since", Moment, nullable=False, server_default=db_now()),
            Column("until", Moment),
            Column("error", long_text(), nullable=False),
            index("holds_by_position", "position"),
            index("holds_by_status", "status", "slot"),
        ),
        leases=table(
            "leases",
            Column("slot", SmallInteger, primary_key=True, autoincrement=False),
            Column("owner", Name(64)),
            Column("epoch", BigInteger, nullable=False),
            Column("expires_at", Moment),
            Column("mark", BigInteger, nullable=False, server_default="0"),
            Column("notes", long_text()),
            Column("kept_for", Name(64)),
            **_rewritten(),
        ),
        relays=table(
            "relays",
            Column("id", Name(64), primary_key=True),
            Column("host", name, nullable=False),
            Column("pid", Integer, nullable=False),
            Column("started_at", Moment, nullable=False, server_default=db_now()),
            Column("seen_at", Moment, nullable=False),
            Column("until", Moment, nullable=False),
            Column("in_flight", Integer, nullable=False),
            Column("woken_by", String(32), nullable=False),
            Column("tasks", long_text()),
            **_rewritten(),
        ),
        breakers=table(
            "breakers",
            Column("destination", name, primary_key=True),
            Column("successes", BigInteger, nullable=False, server_default="0"),
            Column("probe_by", Name(64)),
            Column("probe_until", Moment),
            Column("tripped_at", Moment),
            Column("tripped_by", Name(64)),
            Column("error", long_text()),
            **_rewritten(),
        ),
        meta=table(
            "meta",
            Column("name", String(32), primary_key=True),
            Column("value", Name(), nullable=False),
            **_rewritten(),
        ),
        bell=Sequence(f"{prefix}bell", start=0, minvalue=-(2**63), maxvalue=2**63 - 1, schema=schema),
    )
