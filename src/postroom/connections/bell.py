"""PostgreSQL's doorbell, and the one question that must be asked there before the first write.

A sequence beside the tables says which slots' owners sleep, one bit each. A commit rings only for those: NOTIFY takes a
lock that all commits share.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    MetaData,
    SmallInteger,
    Table,
    Text,
    bindparam,
    cast,
    false,
    func,
    literal_column,
    select,
    true,
)
from sqlalchemy.sql.base import Executable

from ..stores.schema import Tables, bell_channel
from .presence import is_older, regclass

ASK_AGAIN = 60.0
"""Seconds until a bell that was not there is looked for again."""


LOST = {"42P01", "42501"}
"""Undefined table, insufficient privilege."""


def ringing_slot(tables: Tables) -> ColumnElement[Any]:
    """The value of `slot` in VALUES: that number, whose owner is notified if it sleeps. Notifying gives nothing, whose
    length is added. RETURNING would read better, but costs a result for each insert, and the right to read."""
    mask = Table(tables.bell.name, MetaData(), Column("last_value", BigInteger), schema=tables.bell.schema)
    slot = bindparam("slot", type_=SmallInteger)
    is_asleep = mask.c.last_value.bitwise_rshift(slot).bitwise_and(literal_column("1")) == literal_column("1")
    channel = literal_column(f"'{bell_channel(tables)}'", Text)
    nothing = func.length(cast(func.pg_notify(channel, cast(slot, Text)), Text))
    rung = select(nothing).select_from(mask).where(is_asleep).scalar_subquery()
    return slot + func.coalesce(rung, literal_column("0"))


def look(tables: Tables) -> Executable:
    """Three answers: whether the tables are there, whether the bell can be rung, and whether this was so before this
    transaction. If it made the tables, they may vanish with it."""
    hot, bell = (regclass(tables.hot, name) for name in (tables.hot.name, tables.bell.name))
    may_read = literal_column("'SELECT'", Text)
    can_ring = func.has_sequence_privilege(bell, may_read)
    return select(hot.is_not(None), func.coalesce(can_ring, false()), func.coalesce(is_older(hot), true()))


def was_lost(tables: Tables, error: BaseException) -> bool:
    """Whether it says that the bell is missing, or that we may not read it; when it was looked for we could."""
    states = {getattr(error, "sqlstate", None), getattr(error, "pgcode", None)}
    return not states.isdisjoint(LOST) and tables.bell.name in str(error)


class Sight(NamedTuple):
    bell: bool
    at: float


class Memory:
    """What was seen through each connection: an application, or its tests, may use several databases. None stands for
    a connection whose answer may be another one next time."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._sights: WeakKeyDictionary[object, Sight] = WeakKeyDictionary()

    def bell_of(self, connection: object) -> bool | None:
        """Whether there is a bell; None if it must be asked."""
        sight = None if connection is None else self._sights.get(connection)
        if sight is None or (not sight.bell and self._monotonic() - sight.at >= ASK_AGAIN):
            return None
        return sight.bell

    def remember(self, connection: object, bell: bool) -> None:
        if connection is not None:
            self._sights[connection] = Sight(bell, self._monotonic())

    def forget(self, connection: object) -> None:
        if connection is not None:
            self._sights.pop(connection, None)
