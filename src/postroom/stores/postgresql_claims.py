"""Rows claimed one by one on PostgreSQL: what happens with every batch is one statement."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Delete,
    Float,
    Integer,
    SelectBase,
    SmallInteger,
    Table,
    any_,
    bindparam,
    cast,
    delete,
    func,
    insert,
    null,
    select,
)
from sqlalchemy.dialects.postgresql import ARRAY

from .schema import Moment, Tables, db_now
from .sql_rows import message_columns, with_header


def claim_hot(tables: Tables, clocked: bool, everywhere: bool) -> SelectBase:
    """A header, and the first rows (of some slots, or `everywhere`) that nobody else is taking, moved to the claims."""
    hot, claims = tables.hot, tables.claims
    first = select(hot.c.position).where(hot.c.position > bindparam("after", type_=BigInteger))
    first = first.order_by(hot.c.position).limit(bindparam("limit", type_=Integer))
    first = first if everywhere else first.where(hot.c.slot == any_(_array("slots", SmallInteger)))
    chosen = first.with_for_update(skip_locked=True).cte("chosen")
    # As one array: joined, they might be matched by a walk through the whole table.
    is_chosen = hot.c.position == any_(func.array(select(chosen.c.position).scalar_subquery()))
    taken = delete(hot).where(is_chosen).returning(*message_columns(hot)).cte("taken")
    names = ["token", "until", *(item.name for item in taken.c)]
    claim = select(bindparam("token", type_=claims.c.token.type), _until(clocked), *taken.c)
    kept = insert(claims).inline().from_select(names, claim).cte("kept")
    return with_header(hot, cast(null(), hot.c.topic.type), select(*taken.c)).add_cte(kept)


def delete_claims(claims: Table) -> Delete:
    return delete(claims).where(claims.c.position == any_(_array("positions", BigInteger)))


def _until(clocked: bool) -> ColumnElement[Any]:
    now: ColumnElement[Any] = bindparam("now", type_=Moment) if clocked else db_now()
    return now + func.make_interval(0, 0, 0, 0, 0, 0, bindparam("ttl", type_=Float))


def _array(name: str, kind: Any) -> ColumnElement[Any]:
    return bindparam(name, type_=ARRAY(kind))
