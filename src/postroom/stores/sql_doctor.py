"""What a doctor looks at in every SQL database: versions, indexes, slots, and the clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sqlalchemy import Index, Select, Table, inspect, or_, select, union_all
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateIndex

from ..clock import Clock, SystemClock
from ..message import SLOTS, slot_of
from ..ports import Finding
from . import schema, sql_read
from .checkup import counted, fine, of_status, problem, warning
from .sql_setup import read_meta
from .sql_transaction import Transaction

SAMPLE = 500
"""Rows at either end of the hot table whose slots are computed again."""
CLOCK_DIFFERENCE = 1.0

SYSTEM_CLOCK: Clock = SystemClock()


def examine(transaction: Transaction, outbox: str) -> list[Finding]:
    checks = {"tables": tables, "indexes": indexes, "slots": slots, **transaction.dialect.checks}
    found = [_look(transaction, name, check) for name, check in checks.items()]
    return [*found, *of_status(sql_read.status(transaction, outbox))]


def _look(transaction: Transaction, name: str, check: Callable[[Transaction], Finding]) -> Finding:
    """In a savepoint: a check that is refused must not end the transaction for those that follow."""
    try:
        with transaction.connection.begin_nested():
            return check(transaction)
    except DBAPIError as error:
        said = " ".join(str(error.orig).split())
        return warning(name, f"we may not look: {said}", "grant the right, as 'Roles and rights' in the docs says")


def tables(transaction: Transaction) -> Finding:
    meta = read_meta(transaction)
    there = counted(len(transaction.tables.all()), "table", "tables")
    seen = f"{there}, version {meta.version}, for code that knows {meta.min_compatible} or later"
    if meta.version >= schema.VERSION:
        return fine("tables", seen)
    return warning("tables", f"{seen}; this Postroom makes {schema.VERSION}", "run 'postroom init' as their owner")


# --- indexes


def indexes(transaction: Transaction) -> Finding:
    """By their columns: a migration may have named them otherwise."""
    missing = [index for table in transaction.tables.all() for index in _missing(transaction, table)]
    if not missing:
        return fine("indexes", "all are there")
    dialect = transaction.connection.dialect
    create = "; ".join(" ".join(str(CreateIndex(index).compile(dialect=dialect)).split()) for index in missing)
    names = ", ".join(str(index.name) for index in missing)
    return problem("indexes", f"missing: {names}; statements walk whole tables", f"run {create}")


def _missing(transaction: Transaction, table: Table) -> Iterator[Index]:
    """One with more columns behind them does as well, and so does the primary key."""
    known = list(_known(transaction, table))
    for index in sorted(table.indexes, key=lambda index: str(index.name)):
        columns = [column.name for column in index.columns]
        if not any(names[: len(columns)] == columns for names in known):
            yield index


def _known(transaction: Transaction, table: Table) -> Iterator[list[str | None]]:
    inspector = inspect(transaction.connection)
    yield [*inspector.get_pk_constraint(table.name, schema=table.schema)["constrained_columns"]]
    for index in inspector.get_indexes(table.name, schema=table.schema):
        if "postgresql_where" not in index.get("dialect_options", {}):
            yield index["column_names"]


# --- slots


def slots(transaction: Transaction) -> Finding:
    """Foreign writers compute them by themselves."""
    waiting = (transaction.tables.hot, transaction.tables.later)
    if lost := [row for table in waiting for row in transaction.rows(_outside(table))]:
        seen = f"message {lost[0].id} is in slot {lost[0].slot}, which nobody reads: it is never delivered"
        return problem("slots", seen, "mend its writer, then update the slot of such rows; see 'Write from SQL'")
    wrong = [row for row in _sample(transaction) if row.key is not None and row.slot != slot_of(row.key, row.id)]
    if wrong:
        right = slot_of(wrong[0].key, wrong[0].id)
        seen = f"message {wrong[0].id} with key {wrong[0].key!r} is in slot {wrong[0].slot}, not {right}"
        return problem("slots", f"{seen}: it may overtake others of its key", "mend its writer; see 'Write from SQL'")
    return fine("slots", "those of the rows we looked at are right")


def _outside(table: Table) -> Select[*tuple[Any, ...]]:
    """Off the ends of the index."""
    return select(table.c.id, table.c.slot).where(or_(table.c.slot < 0, table.c.slot >= SLOTS)).limit(1)


def _sample(transaction: Transaction) -> Sequence[Any]:
    hot = transaction.tables.hot
    ends = [
        select(select(hot.c.slot, hot.c.key, hot.c.id).order_by(order).limit(SAMPLE).subquery())
        for order in (hot.c.position, hot.c.position.desc())
    ]
    return transaction.rows(union_all(*ends))


# --- for databases on other machines


def clock(transaction: Transaction) -> Finding:
    """Half of the way there and back is the best guess at when the database was asked."""
    before = SYSTEM_CLOCK.now()
    theirs = transaction.dialect.now(transaction.connection)
    ours = before + (SYSTEM_CLOCK.now() - before) / 2
    difference = (theirs - ours).total_seconds()
    if abs(difference) <= CLOCK_DIFFERENCE:
        return fine("clock", "ours and the database's agree")
    seen = f"the database's is {abs(difference):.1f} s {'ahead of' if difference > 0 else 'behind'} ours"
    return warning("clock", seen, "set both by NTP; due times are the database's, ids and deliver_at the application's")
