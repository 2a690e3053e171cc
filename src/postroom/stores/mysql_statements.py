"""The statements of the hot path on MySQL and MariaDB.

Which one it is depends on how many values it takes, so lists are padded to a few lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    ClauseElement,
    Column,
    ColumnElement,
    CompoundSelect,
    Integer,
    Select,
    SelectBase,
    Table,
    Text,
    and_,
    bindparam,
    cast,
    null,
    select,
    union_all,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.base import Executable
from sqlalchemy.sql.compiler import SQLCompiler

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


GIVEN = "given"
"""The parameter with the numbers, as a list in JSON."""


class AtKeys(Executable, ClauseElement):
    """What is done to the rows with the given primary keys, and to no others.

    With a mere list MySQL walks through all rows if they are few, and so waits for everybody who has just inserted one.
    The order of a STRAIGHT_JOIN is kept, and a forced index that can be used for it is used.
    """

    inherit_cache = False

    def __init__(self, key: Column[int], template: str, unless: Column[int] | None = None) -> None:
        self.key = key
        self.template = template
        self.unless = unless
        """Nothing is done if one of the numbers is here."""


@compiles(AtKeys)
def _compile_at_keys(element: AtKeys, compiler: SQLCompiler, **kw: Any) -> str:
    table, key = _names(element.key, compiler)
    rows = f"{_given(compiler, **kw)} STRAIGHT_JOIN {table} FORCE INDEX (PRIMARY) ON {key} = given.number"
    if element.unless is not None:
        others, number = _names(element.unless, compiler)
        found = f"{_given(compiler, **kw)} JOIN {others} ON {number} = given.number"
        rows += f" WHERE NOT EXISTS (SELECT 1 FROM {found})"  # noqa: S608 - names of ours
    return element.template.format(table=table, key=key, rows=rows)


def _names(item: Column[int], compiler: SQLCompiler) -> tuple[str, str]:
    table = compiler.preparer.format_table(item.table)
    return table, f"{table}.{compiler.preparer.format_column(item)}"


def _given(compiler: SQLCompiler, **kw: Any) -> str:
    numbers = compiler.process(bindparam(GIVEN, type_=Text), **kw)
    return f"JSON_TABLE({numbers}, '$[*]' COLUMNS (number BIGINT PATH '$')) AS given"


def delete_at(key: Column[int]) -> AtKeys:
    return AtKeys(key, "DELETE {table} FROM {rows}")


def lock_at(key: Column[int]) -> AtKeys:
    return AtKeys(key, "SELECT {key} FROM {rows} FOR UPDATE")


def delete_unheld(tables: Tables) -> AtKeys:
    """Delete delivered rows, none if one of them holds its key."""
    return AtKeys(tables.hot.c.position, "DELETE {table} FROM {rows}", unless=tables.holds.c.position)
