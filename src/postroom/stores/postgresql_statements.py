"""The statements of the hot path on PostgreSQL: each is one round trip and, by itself, one transaction."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Delete,
    Exists,
    Insert,
    Integer,
    Select,
    SelectBase,
    SmallInteger,
    Table,
    TableValuedAlias,
    Text,
    and_,
    any_,
    bindparam,
    cast,
    column,
    delete,
    exists,
    func,
    insert,
    literal_column,
    or_,
    select,
    table,
    true,
)
from sqlalchemy.dialects.postgresql import ARRAY, OID, array

from .schema import Moment, Tables, db_now
from .sql_read import has_other_work
from .sql_rows import message_columns, with_header

__all__ = ["archive_unheld", "delete_unheld", "select_lockers", "select_news", "select_slots", "select_stragglers"]


def select_slots(hot: Table, again: bool, limited: bool) -> SelectBase:
    """A header, and for each slot one range of an index: over several slots at once it would walk the rows of others.
    With `again`, all rows above `lows` besides. If `limited`, the ranges may hold more rows than are wanted in all."""
    asked = _asked()
    new = _rows(hot, asked, hot.c.position > asked.c.after).limit(asked.c.rows).lateral("new")
    found = _joined(asked, new)
    if limited:
        lowest = found.order_by(new.c.position).limit(bindparam("limit", type_=Integer))
        found = select(lowest.subquery("lowest"))
    return _with_header(hot, found, *([_stragglers(hot)] if again else []))


def select_stragglers(hot: Table) -> SelectBase:
    """A header, and all rows above `lows` and not above `afters`."""
    return _with_header(hot, _stragglers(hot))


def _stragglers(hot: Table) -> Select[*tuple[Any, ...]]:
    asked = _asked()
    between = and_(hot.c.position > asked.c.low, hot.c.position <= asked.c.after)
    return _joined(asked, _rows(hot, asked, between).lateral("late"))


def _with_header(hot: Table, *parts: SelectBase) -> SelectBase:
    return with_header(hot, cast(func.pg_current_snapshot(), Text), *parts)


def _asked() -> TableValuedAlias:
    arrays = [_array("slots", SmallInteger), _array("afters", BigInteger), _array("limits", Integer)]
    return (
        func.unnest(*arrays, _array("lows", BigInteger))
        .table_valued(
            column("slot", SmallInteger),
            column("after", BigInteger),
            column("rows", Integer),
            column("low", BigInteger),
        )
        .render_derived("asked")
    )


def _array(name: str, type: Any) -> ColumnElement[Any]:
    return bindparam(name, type_=ARRAY(type))


def _rows(hot: Table, asked: TableValuedAlias, condition: ColumnElement[bool]) -> Select[*tuple[Any, ...]]:
    """Of the slot that is asked for, in words that only the index by slot can answer.

    With a mere equality the primary key would have these rows in order, too. Where most rows are of one slot it seems
    as good, and then all of them are walked through for each slot that has none.
    """
    is_asked = hot.c.slot == any_(array([asked.c.slot]))
    return select(*message_columns(hot)).where(is_asked, condition).order_by(hot.c.slot, hot.c.position)


def _joined(asked: TableValuedAlias, rows: Any) -> Select[*tuple[Any, ...]]:
    return select(*rows.c).select_from(asked.join(rows, true()))


LOCKS = table(
    "pg_locks", column("virtualtransaction", Text), column("locktype", Text), column("mode", Text),
    column("granted", Boolean), column("pid", Integer), column("database", OID), column("relation", OID),
    column("transactionid", Text), schema="pg_catalog",
)  # fmt: skip
DATABASES = table("pg_database", column("oid", OID), column("datname", Text), schema="pg_catalog")


def select_lockers(hot: Table) -> Select[*tuple[Any, ...]]:
    """Who has the hot table locked for writing: the name of the transaction, and its numbers if it has any.

    One look at the locks gives both. Left out are our own connections of the hot path, which insert nothing.
    """
    number = cast(cast(LOCKS.c.transactionid, Text), BigInteger)
    is_own = and_(_is(LOCKS.c.locktype, "transactionid"), _is(LOCKS.c.mode, "ExclusiveLock"))
    is_foreign = or_(LOCKS.c.pid.is_(None), LOCKS.c.pid != func.all(_array("ours", Integer)))
    return (
        select(LOCKS.c.virtualtransaction, func.array_agg(number).filter(is_own))
        .where(is_foreign)
        .group_by(LOCKS.c.virtualtransaction)
        .having(func.bool_or(_locks_for_writing(hot)))
    )


def _locks_for_writing(hot: Table) -> ColumnElement[bool]:
    here = select(DATABASES.c.oid).where(DATABASES.c.datname == func.current_database()).scalar_subquery()
    return and_(
        _is(LOCKS.c.locktype, "relation"),
        _is(LOCKS.c.mode, "RowExclusiveLock"),
        LOCKS.c.database == here,
        LOCKS.c.relation == func.to_regclass(_quoted(hot)),
        LOCKS.c.granted,
    )


def _is(item: ColumnElement[str], word: str) -> ColumnElement[bool]:
    return item == literal_column(f"'{word}'", Text)


def _quoted(hot: Table) -> ColumnElement[str]:
    names = [name for name in (hot.schema, hot.name) if name]
    return literal_column(
        "'" + ".".join('"{}"'.format(name.replace('"', '""')) for name in names).replace("'", "''") + "'"
    )


def select_news(tables: Tables, clocked: bool) -> Select[*tuple[Any, ...]]:
    """The slots in which there is something to do."""
    asked = _asked()
    now: ColumnElement[Any] = bindparam("now", type_=Moment) if clocked else db_now()
    position = tables.hot.c.position
    new = _rows(tables.hot, asked, position > asked.c.after).with_only_columns(position)
    is_new = new.limit(literal_column("1", Integer)).scalar_subquery().is_not(None)
    return select(asked.c.slot).where(or_(is_new, has_other_work(tables, asked, now)))


def delete_unheld(hot: Table, holds: Table) -> Delete:
    """Delete delivered rows, none if one of them holds its key."""
    listed = any_(_array("positions", BigInteger))
    return delete(hot).where(hot.c.position == listed, ~_is_held(holds))


def _is_held(holds: Table) -> Exists:
    """Whether there is a hold by one of the positions. To look for each in the index takes a tenth of the time of the
    deletion, and hardly ever is there a hold by any between the first and the last. Only the sum keeps PostgreSQL from
    looking for each nevertheless."""
    first, last = bindparam("first", type_=BigInteger), bindparam("last", type_=BigInteger)
    is_listed = holds.c.position + literal_column("0", BigInteger) == any_(_array("positions", BigInteger))
    return exists().where(holds.c.position.between(first, last), is_listed)


def archive_unheld(tables: Tables, clocked: bool) -> Insert:
    """Move delivered rows to the archive, none if one of them holds its key."""
    hot, archive = tables.hot, tables.archive
    listed = any_(_array("positions", BigInteger))
    held = _is_held(tables.holds)
    gone = delete(hot).where(hot.c.position == listed, ~held).returning(*message_columns(hot)).cte("gone")
    now: ColumnElement[Any] = bindparam("now", type_=Moment) if clocked else db_now()
    delivered = literal_column("'delivered'", archive.c.outcome.type)
    names = ["outcome", "settled_at", *(item.name for item in gone.c)]
    return insert(archive).inline().from_select(names, select(delivered, now, *gone.c))
