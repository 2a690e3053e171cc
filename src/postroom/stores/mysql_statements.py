"""The statements of the hot path on MySQL and MariaDB.

Which one it is depends on how many values it takes, so lists are padded to a few lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    CompoundSelect,
    Delete,
    Integer,
    Select,
    SelectBase,
    Table,
    and_,
    bindparam,
    cast,
    delete,
    exists,
    null,
    select,
    union_all,
)

from .schema import Moment, Tables, db_now
from .sql_read import has_work
from .sql_rows import message_columns, with_header


def padded(values: Sequence[int]) -> list[int]:
    """With the last one repeated, to a power of two."""
    length = 1 << (len(values) - 1).bit_length() if values else 0
    return [*values, *(values[-1] for _ in range(length - len(values)))]


def listed(values: Sequence[int]) -> dict[str, int]:
    return {f"position{number}": value for number, value in enumerate(values)}


def is_listed(column: ColumnElement[int], count: int) -> ColumnElement[bool]:
    return column.in_([bindparam(f"position{number}", type_=BigInteger) for number in range(count)])


def select_slots(hot: Table, count: int, new: bool, again: bool, checked: int) -> CompoundSelect[*tuple[Any, ...]]:
    """A header; the new rows of so many ranges, the lowest up to a limit; all rows between `low` and `after`; and those
    at the positions that are checked, in whatever slot."""
    parts: list[SelectBase] = []
    if new:
        parts.append(_new(hot, count))
    if again:
        parts += [select(*message_columns(hot)).where(_between(hot, number)) for number in range(count)]
    if checked:
        parts.append(select(*message_columns(hot)).where(is_listed(hot.c.position, checked)))
    return with_header(hot, cast(null(), hot.c.topic.type), *parts)


def _new(hot: Table, count: int) -> Select[*tuple[Any, ...]]:
    """Chosen in the index, slot by slot, before any row is read."""
    chosen = union_all(*(select(_positions(hot, number).subquery()) for number in range(count))).subquery()
    limit = bindparam("limit", type_=BigInteger)
    lowest = select(chosen.c.position).order_by(chosen.c.position).limit(limit).subquery()
    return select(*message_columns(hot)).join(lowest, hot.c.position == lowest.c.position)


def _positions(hot: Table, number: int) -> Select[*tuple[Any, ...]]:
    within = and_(hot.c.slot == _value("slot", number), hot.c.position > _value("after", number))
    return select(hot.c.position).where(within).order_by(hot.c.position).limit(_value("limit", number))


def _between(hot: Table, number: int) -> ColumnElement[bool]:
    is_above = hot.c.position > _value("low", number)
    return and_(hot.c.slot == _value("slot", number), is_above, hot.c.position <= _value("after", number))


def _value(name: str, number: int) -> ColumnElement[int]:
    return bindparam(f"{name}{number}", type_=Integer if name in ("slot", "limit") else BigInteger)


def select_news(tables: Tables, count: int, clocked: bool) -> Select[*tuple[Any, ...]]:
    """The slots of so many ranges in which there is something to do."""
    pairs = (select(_value("slot", n).label("slot"), _value("after", n).label("after")) for n in range(count))
    asked = union_all(*pairs).subquery("asked")
    now: ColumnElement[Any] = bindparam("now", type_=Moment) if clocked else db_now()
    return select(asked.c.slot).where(has_work(tables, asked, now))


def delete_claims(claims: Table, count: int) -> Delete:
    return delete(claims).where(is_listed(claims.c.position, count))


def delete_unheld(hot: Table, holds: Table, count: int) -> Delete:
    """Delete delivered rows, none if one of them holds its key."""
    is_held = exists().where(is_listed(holds.c.position, count))
    return delete(hot).where(is_listed(hot.c.position, count), ~is_held)
