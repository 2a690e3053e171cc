"""The days of PostgreSQL's archive: made ahead of time, and dropped when they are over.

Whatever stands in the way, such as a lock or a missing right, is left for the next time: rows that no day takes are in
the default partition, and old rows are deleted one by one.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Integer,
    MetaData,
    Table,
    and_,
    column,
    func,
    insert,
    literal_column,
    select,
    table,
    text,
)

from ..errors import StoreError
from .postgresql_archive import AttachDay, CreateDay, DetachDay, DropDay, day_of, name_of
from .schema import SET_UP_LOCK
from .sql_tend import KEEP_UNDELIVERED
from .sql_transaction import Transaction

AHEAD = 2
"""Days after today that are made."""
LOCK_TIMEOUT = text("SET LOCAL lock_timeout = '1s'")

REST = 60.0
"""Seconds until it is tried again after others were in the way."""

NO_RIGHT = "42501"
IN_THE_WAY = {"23514", "42P07", "42P17", "55P03", "40P01", "57014"}
"""The default partition has rows of that day; somebody else made it; locks."""

log = logging.getLogger("postroom.stores")

DAY = timedelta(days=1)
INHERITANCE = table("pg_inherits", column("inhrelid"), column("inhparent"), schema="pg_catalog")
RELATIONS = table("pg_class", column("oid"), column("relname"), column("reltuples"), schema="pg_catalog")


class Days:
    """Sees to the days of one store's archive.

    `read` runs a function in a transaction, `attempt` in one that may fail. While others have the archive locked for
    longer, they and those behind us are left in peace for a while.
    """

    def __init__(
        self,
        place: str,
        read: Callable[..., Awaitable[Any]],
        attempt: Callable[[Callable[[Transaction], None]], Awaitable[None]],
        monotonic: Callable[[], float],
    ) -> None:
        self._place = place
        self._read = read
        self._attempt = attempt
        self._monotonic = monotonic
        self._rests_until = 0.0

    async def tend(self, retention: float | None, limit: int) -> int:
        """Make what is missing and drop what is past; how many rows went with it, more or less."""
        await self.add()
        return await self._drop(retention, limit)

    async def add(self) -> None:
        for day in await self._read(missing_days) if self._may_try() else ():
            if not await self._could(partial(add_day, day=day)):
                return

    async def _drop(self, retention: float | None, limit: int) -> int:
        dropped = 0
        past: dict[date, int] = await self._read(past_days, retention) if self._may_try() else {}
        for day, guess in past.items():
            weight = await self._read(weigh_day, day, guess, retention, limit)
            if weight.kept > (0 if retention is None else limit):
                continue
            if not await self._could(partial(drop_day, day=day, retention=retention)):
                return dropped
            dropped += weight.gone
        return dropped

    def _may_try(self) -> bool:
        return self._monotonic() >= self._rests_until

    async def _could(self, work: Callable[[Transaction], None]) -> bool:
        try:
            await self._attempt(work)
        except StoreError as error:
            state = getattr(getattr(error.__cause__, "orig", None), "sqlstate", None)
            if state not in (NO_RIGHT, *IN_THE_WAY):
                raise
            self._give_way(error, for_good=state == NO_RIGHT)
            return False
        return True

    def _give_way(self, error: StoreError, *, for_good: bool) -> None:
        self._rests_until = math.inf if for_good else self._monotonic() + REST
        if for_good:
            log.info("the archive cannot be divided into days, so old messages are deleted one by one: %s", error)
        else:
            log.debug("%s: the archive's days are left for the next time: %s", self._place, error)


# --- which there are


def days_of(transaction: Transaction) -> dict[date, int] | None:
    """The days there are, with a guess at how many rows each has; None if the archive is not divided by us."""
    archive = transaction.tables.archive
    found = transaction.rows(_partitions(transaction))
    if f"{archive.name}_default" not in {name for name, _ in found}:
        return None
    days = {day_of(archive, name): max(0, int(guess)) for name, guess in found}
    return {day: guess for day, guess in days.items() if day is not None}


def _partitions(transaction: Transaction) -> Any:
    archive = transaction.tables.archive
    parent = func.to_regclass(transaction.connection.dialect.identifier_preparer.format_table(archive))
    joined = INHERITANCE.join(RELATIONS, RELATIONS.c.oid == INHERITANCE.c.inhrelid)
    return (
        select(RELATIONS.c.relname, RELATIONS.c.reltuples)
        .select_from(joined)
        .where(INHERITANCE.c.inhparent == parent)
        .order_by(RELATIONS.c.relname)
    )


def missing_days(transaction: Transaction) -> list[date]:
    """Today, while nothing of it is in the archive, and the next ones."""
    there = days_of(transaction)
    if there is None:
        return []
    today = transaction.now.astimezone(UTC).date()
    wanted = [today + number * DAY for number in range(AHEAD + 1)]
    return [day for day in wanted if day not in there and not _is_taken(transaction, day)]


def _is_taken(transaction: Transaction, day: date) -> bool:
    archive = transaction.tables.archive
    return transaction.has(archive, archive.c.settled_at >= _start(day), archive.c.settled_at < _start(day + DAY))


def past_days(transaction: Transaction, retention: float | None) -> dict[date, int]:
    """Those that are over, whole and for longer than the retention. Without one, only what holds nothing delivered can
    be over."""
    until = transaction.after(-(KEEP_UNDELIVERED if retention is None else retention))
    there = days_of(transaction) or {}
    return {day: guess for day, guess in there.items() if _start(day + DAY) <= until}


def whole_days(transaction: Transaction, retention: float | None) -> float | None:
    """The retention, longer by what is missing to a whole day: rows of a day that is partly over go with it, and need
    not be deleted one by one. Whoever keeps them for less than a day wants them gone sooner."""
    if retention is None or retention < DAY.total_seconds() or days_of(transaction) is None:
        return retention
    until = transaction.after(-retention)
    return retention + (until - _start(until.astimezone(UTC).date())).total_seconds()


def _start(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


# --- made


def begin_set_up(transaction: Transaction) -> None:
    """Keep all others who create tables waiting until the transaction ends."""
    transaction.run(select(func.pg_advisory_xact_lock(SET_UP_LOCK)))


def add_day(transaction: Transaction, day: date) -> None:
    archive = transaction.tables.archive
    transaction.run(LOCK_TIMEOUT)
    begin_set_up(transaction)
    if day in (days_of(transaction) or ()):
        return
    transaction.run(CreateDay(archive, day))
    transaction.run(AttachDay(archive, day))


# --- dropped


class Weight(NamedTuple):
    """How many rows would go with a day, more or less, and how many of it must be kept."""

    gone: int
    kept: int


def weigh_day(transaction: Transaction, day: date, guess: int, retention: float | None, limit: int) -> Weight:
    """Counted up to just above the limit, and in a transaction of its own: a lock on the day, held while we wait for
    the archive's, would stand in the way of somebody who drops the same day."""
    partition = _partition(transaction, day)
    kept = _count(transaction, partition, limit + 1, _is_kept(transaction, partition, retention))
    count = _count(transaction, partition, limit + 1)
    return Weight((count if count <= limit else max(count, guess)) - kept, kept)


def drop_day(transaction: Transaction, day: date, retention: float | None) -> None:
    """With a lock on the whole archive, so what must be kept of that day should be little."""
    archive, partition = transaction.tables.archive, _partition(transaction, day)
    names = [item.name for item in archive.columns]
    transaction.run(LOCK_TIMEOUT)
    transaction.run(DetachDay(archive, day))
    # Through the archive, which has no such day any more: they land in the default partition.
    kept = select(*(partition.c[name] for name in names)).where(_is_kept(transaction, partition, retention))
    transaction.run(insert(archive).inline().from_select(names, kept))
    transaction.run(DropDay(archive, day))


def _partition(transaction: Transaction, day: date) -> Table:
    archive = transaction.tables.archive
    return archive.to_metadata(MetaData(), name=name_of(archive, day))


def _is_kept(transaction: Transaction, partition: Table, retention: float | None) -> ColumnElement[bool]:
    """Written out, so that the index of what is undelivered serves."""
    is_undelivered = partition.c.outcome != literal_column("'delivered'")
    longer = max(retention or 0.0, KEEP_UNDELIVERED)
    is_young = and_(is_undelivered, partition.c.settled_at > transaction.after(-longer))
    return is_young if retention is not None else is_young | ~is_undelivered


def _count(transaction: Transaction, counted: Table, most: int, *conditions: ColumnElement[bool]) -> int:
    some = select(literal_column("1", Integer)).select_from(counted).where(*conditions).limit(most).subquery()
    return transaction.run(select(func.count()).select_from(some)).scalar_one()
