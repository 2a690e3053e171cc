"""The tables of one inbox: the consumer's own, in a database that need not have an outbox."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from sqlalchemy import BigInteger, Column, Index, MetaData, Table

from ..errors import ConfigurationError
from .schema import DEFAULT_PREFIX, Moment, Name, db_now, long_text


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxTables:
    """`inbox` has a row for each message that was handled, `marks` one for each topic and key of a strict stream."""

    prefix: str
    metadata: MetaData
    inbox: Table
    marks: Table

    def all(self) -> list[Table]:
        return [self.inbox, self.marks]


@cache
def inbox_tables_of(prefix: str, schema: str | None) -> InboxTables:
    """In a `MetaData` of their own, which all share who have no other."""
    return define_inbox_tables(prefix=prefix, schema=schema)


def define_inbox_tables(
    metadata: MetaData | None = None, *, prefix: str = DEFAULT_PREFIX, schema: str | None = None
) -> InboxTables:
    """Define the tables in a `MetaData`: the application's own (for Alembic), or a new one."""
    metadata = MetaData() if metadata is None else metadata
    schema = schema or metadata.schema
    known = f"{schema}.{prefix}inbox" if schema else f"{prefix}inbox"
    if known in metadata.tables:
        raise ConfigurationError(f"the tables of the inbox with prefix {prefix!r} are already in this MetaData")
    name = Name()
    return InboxTables(
        prefix=prefix,
        metadata=metadata,
        inbox=Table(
            f"{prefix}inbox",
            metadata,
            Column("consumer", name, primary_key=True),
            Column("message_id", name, primary_key=True),
            Column("token", Name(36), nullable=False),
            Column("received_at", Moment, nullable=False, server_default=db_now()),
            Column("sent", long_text()),
            Index(f"{prefix}inbox_by_time", "received_at"),
            schema=schema,
            mysql_engine="InnoDB",
            mariadb_engine="InnoDB",
        ),
        marks=Table(
            f"{prefix}inbox_marks",
            metadata,
            Column("consumer", name, primary_key=True),
            Column("topic", name, primary_key=True),
            Column("key", name, primary_key=True),
            Column("generation", BigInteger, nullable=False),
            Column("sequence", BigInteger, nullable=False),
            Column("updated_at", Moment, nullable=False, server_default=db_now()),
            schema=schema,
            mysql_engine="InnoDB",
            mariadb_engine="InnoDB",
        ),
    )
