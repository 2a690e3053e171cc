"""Rows that move because of the time or an operator's word: due, revive, discard, replay, clean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Select,
    Table,
    and_,
    exists,
    func,
    select,
    union_all,
    update,
)

from ..message import REVIVED_HEADER, TOMBSTONE_HEADER, new_id, slot_of
from ..ports import Due
from . import pending
from .schema import Tables
from .sql_rows import add_header
from .sql_settle import archive
from .sql_transaction import Transaction

DAY = 86_400.0
KEEP_UNDELIVERED = 7 * DAY
"""How long superseded and discarded messages stay in view at least."""
FORGET_RELAYS = DAY


# --- due


def next_in(transaction: Transaction, slots: Sequence[int]) -> float | None:
    """Seconds until the first row of the slots is due; 0 if one is."""
    ours = transaction.among(transaction.tables.leases.c.slot, slots)
    times = [time for row in transaction.rows(first_times(transaction.tables, ours)) for time in row if time]
    return max(0.0, transaction.seconds_until(min(times))) if times else None


def first_times(tables: Tables, ours: ColumnElement[bool]) -> Select[*tuple[Any, ...]]:
    """Off the ends of two indexes, slot by slot: a minimum over several slots at once would walk all their rows."""
    leases, later, dead = tables.leases, tables.later, tables.dead
    due = select(func.min(later.c.due_at)).where(later.c.slot == leases.c.slot).scalar_subquery()
    revival = select(func.min(dead.c.revive_at)).where(dead.c.slot == leases.c.slot).scalar_subquery()
    return select(due, revival).where(ours)


def move_due(transaction: Transaction, slots: Sequence[int], limit: int) -> Due:
    ready = _ready(transaction, transaction.tables.later, "due_at", slots, limit)
    _append_later(transaction, ready)
    risen = _ready(transaction, transaction.tables.dead, "revive_at", slots, limit - len(ready))
    _revive(transaction, _read_dead(transaction, transaction.tables.dead.c.number, risen))
    return Due(len(ready) + len(risen), next_in(transaction, slots))


def _ready(transaction: Transaction, table: Table, time: str, slots: Sequence[int], limit: int) -> list[int]:
    """The numbers of the rows whose time has come, earliest first; locked, so that nobody else moves them."""
    if limit <= 0 or not slots:
        return []
    ready = union_all(*(_ready_in(transaction, table, table.c[time], slot, limit) for slot in slots))
    while earliest := [row[0] for row in sorted(transaction.rows(ready), key=lambda row: (row[1], row[0]))[:limit]]:
        there = set(transaction.lock_at(table.c.number, earliest))
        if there:
            return [number for number in earliest if number in there]
    return []  # somebody else moved them all


def _ready_in(
    transaction: Transaction, table: Table, time: ColumnElement[datetime], slot: int, limit: int
) -> Select[*tuple[Any, ...]]:
    ready = select(table.c.number, time).where(table.c.slot == slot, time <= transaction.now)
    return select(ready.order_by(time, table.c.number).limit(limit).subquery())


def _append_later(transaction: Transaction, numbers: Sequence[int]) -> None:
    later, hot = transaction.tables.later, transaction.tables.hot
    if numbers:
        chosen = transaction.among(later.c.number, numbers)
        transaction.copy(later, hot, chosen, order=(later.c.due_at, later.c.number))
        transaction.remove_at(later.c.number, numbers)


# --- the desk


def revive(transaction: Transaction, ids: Sequence[str]) -> int:
    """Whoever revives an expired message wants it sent: it does not expire again."""
    rows = _read_dead(transaction, transaction.tables.dead.c.id, ids)
    _revive(transaction, rows, expires_at=None)
    return len(rows)


def discard(transaction: Transaction, ids: Sequence[str]) -> int:
    dead = transaction.tables.dead
    rows = _read_dead(transaction, dead.c.id, ids)
    chosen = transaction.among(dead.c.number, _numbers(rows))
    if rows:
        archive(
            transaction, dead, chosen, "discarded", position=dead.c.position, reason=dead.c.reason, error=dead.c.error
        )
        _leave_tombstones(transaction, [row for row in rows if row.sequence is not None])
        _set_releasing(transaction, rows)
        transaction.remove(dead, chosen)
    return len(rows)


def replay(transaction: Transaction, ids: Sequence[str], again_as_new: bool) -> int:
    rows = _latest_delivered(transaction, ids)
    kept = transaction.tables.archive
    each = [_renamed(row) if again_as_new else _repeated(row) for row in rows]
    if each:
        transaction.copy_each(kept, transaction.tables.hot, each, {"attempts": 0, "expires_at": None})
    if not again_as_new:
        # Counted here too: with no retention the replay itself leaves no trace, and the next one needs another number.
        these = transaction.among(kept.c.id, ids), transaction.among(kept.c.number, _numbers(rows))
        transaction.run(update(kept).where(*these).values(replays=kept.c.replays + 1))
    return len(rows)


def _read_dead(transaction: Transaction, column: ColumnElement[Any], values: Sequence[Any]) -> Sequence[Any]:
    dead = transaction.tables.dead
    if not values:
        return ()
    chosen = select(dead.c.number, dead.c.position, dead.c.headers, dead.c.sequence)
    return transaction.rows(chosen.where(transaction.among(column, values)).order_by(dead.c.position).with_for_update())


def _revive(transaction: Transaction, rows: Sequence[Any], **given: Any) -> None:
    if rows:
        _raise(transaction, rows, last_header=REVIVED_HEADER, **given)
        _set_releasing(transaction, rows)
        dead = transaction.tables.dead
        transaction.remove(dead, transaction.among(dead.c.number, _numbers(rows)))


def _leave_tombstones(transaction: Transaction, rows: Sequence[Any]) -> None:
    if rows:
        same = {"payload": b"", "expires_at": None}
        _raise(transaction, rows, header=TOMBSTONE_HEADER, last_header=TOMBSTONE_HEADER, **same)


def _raise(
    transaction: Transaction, rows: Sequence[Any], *, last_header: str, header: str | None = None, **given: Any
) -> None:
    """Copy dead rows to their old places if they hold their keys, else to the end."""
    dead, tables, holding = transaction.tables.dead, transaction.tables, _holding(transaction, rows)
    in_place = [_with_header(row, header) for row in rows if row.position in holding]
    last = [_with_header(row, last_header) for row in rows if row.position not in holding]
    given["attempts"] = 0
    if in_place:
        place = {"position": dead.c.position, "behind": "key"}
        _copy_dead(transaction, tables.parked, in_place, {**given, **place})
    if last:
        _copy_dead(transaction, tables.hot, last, given)


def _copy_dead(
    transaction: Transaction, target: Table, each: Sequence[dict[str, Any]], given: Mapping[str, Any]
) -> None:
    """In one statement, if all have the same headers, as most of many will."""
    dead, headers = transaction.tables.dead, {one["new_headers"] for one in each}
    if len(headers) > 1:
        transaction.copy_each(dead, target, each, given)
        return
    these = transaction.among(dead.c.number, [one["the_number"] for one in each])
    transaction.copy(dead, target, these, {**given, "headers": headers.pop()}, order=(dead.c.position, dead.c.number))


def _with_header(row: Any, header: str | None) -> dict[str, Any]:
    headers = row.headers if header is None else add_header(row.headers, header)
    return {"the_number": row.number, "new_headers": headers}


def _holding(transaction: Transaction, rows: Sequence[Any]) -> set[int]:
    holds = transaction.tables.holds
    # A hold that lets out what is parked may bear the name of one that died and let its key go on.
    by_these = and_(transaction.among(holds.c.position, [row.position for row in rows]), holds.c.status != "releasing")
    return set(transaction.run(select(holds.c.position).where(by_these).with_for_update()).scalars())


def _set_releasing(transaction: Transaction, rows: Sequence[Any]) -> None:
    """Only the owner of the slot drops a hold: it knows what it is about to park there."""
    holds = transaction.tables.holds
    by_these = transaction.among(holds.c.position, [row.position for row in rows])
    transaction.run(update(holds).where(by_these).values(status="releasing", until=None))


def _latest_delivered(transaction: Transaction, ids: Sequence[str]) -> list[Any]:
    kept = transaction.tables.archive
    found = select(kept.c.number, kept.c.id, kept.c.key, kept.c.slot, kept.c.replays)
    found = found.where(transaction.among(kept.c.id, ids), kept.c.outcome == "delivered").order_by(kept.c.number)
    latest = {row.id: row for row in transaction.rows(found)}
    return [latest[id] for id in dict.fromkeys(ids) if id in latest]


def _repeated(row: Any) -> dict[str, Any]:
    return {**_archived(row), "new_replays": row.replays + 1}


def _archived(row: Any) -> dict[str, Any]:
    """By the id too, which has an index in every archive; the number alone has not."""
    return {"the_id": row.id, "the_number": row.number}


def _renamed(row: Any) -> dict[str, Any]:
    """The same content under a new name: to whoever remembers ids or sequence numbers, a message never seen."""
    id = new_id()
    return {
        **_archived(row),
        "new_id": id,
        "new_slot": slot_of(row.key, id),
        "new_sequence": None,
        "new_generation": None,
        "new_replays": 0,
    }


def _numbers(rows: Sequence[Any]) -> list[int]:
    return [row.number for row in rows]


# --- upkeep


def note_pending(transaction: Transaction, count: int) -> None:
    """A row that is there is only changed, which keeps it where it is."""
    meta, text = transaction.tables.meta, pending.Sample(count, transaction.now).text()
    noted = update(meta).where(meta.c.name == pending.NAME).values(value=text)
    if not transaction.changed(noted):
        transaction.run(transaction.dialect.insert_missing(meta), {"name": pending.NAME, "value": text})


def clean(transaction: Transaction, retention: float | None, limit: int) -> int:
    done = 0
    for name, time, conditions in _garbage(transaction, retention):
        if done < limit:
            done += _remove(transaction, name, time, conditions, limit - done)
    return done + _release_headless(transaction, limit - done)


def _garbage(
    transaction: Transaction, retention: float | None
) -> Iterator[tuple[Column[Any], Column[datetime], list[ColumnElement[bool]]]]:
    """Columns that name rows, what these are old by, and which of them nobody needs."""
    archive, dedupe, relays = transaction.tables.archive, transaction.tables.dedupe, transaction.tables.relays
    is_delivered = archive.c.outcome == "delivered"
    if retention is not None:
        is_past = archive.c.settled_at <= transaction.after(-retention)
        yield archive.c.number, archive.c.settled_at, [is_past, is_delivered]
    is_long_past = archive.c.settled_at <= transaction.after(-max(retention or 0.0, KEEP_UNDELIVERED))
    yield archive.c.number, archive.c.settled_at, [is_long_past, ~is_delivered]
    yield dedupe.c.key, dedupe.c.expires_at, [dedupe.c.expires_at <= transaction.now]
    yield relays.c.id, relays.c.until, [relays.c.until <= transaction.after(-FORGET_RELAYS)]


def _remove(
    transaction: Transaction,
    name: Column[Any],
    time: Column[datetime],
    conditions: list[ColumnElement[bool]],
    limit: int,
) -> int:
    """In two steps: not every database can limit a delete. Asked twice: a writer may have renewed a row meanwhile.

    The oldest, and none after the last of them: of an archive that is divided by time, only the beginning is searched.
    """
    oldest = transaction.rows(select(name, time).where(*conditions).order_by(time).limit(limit))
    if not oldest:
        return 0
    chosen, last = transaction.among(name, [row[0] for row in oldest]), oldest[-1][1]
    return transaction.remove(name.table, chosen, *conditions, *([time <= last] if last else []))


def _release_headless(transaction: Transaction, limit: int) -> int:
    """Not deleted: its owner knows of the hold and has to hear that it may go on."""
    tables, holds = transaction.tables, transaction.tables.holds
    if limit <= 0:
        return 0
    waiting = [exists().where(table.c.position == holds.c.position) for table in (tables.hot, tables.parked)]
    buried = exists().where(tables.dead.c.id == holds.c.message_id, tables.dead.c.position == holds.c.position)
    headless = select(holds.c.position).where(holds.c.status != "releasing", *(~there for there in (*waiting, buried)))
    positions = list(transaction.run(headless.limit(limit)).scalars())
    if not positions:
        return 0
    by_these = update(holds).where(transaction.among(holds.c.position, positions), holds.c.status != "releasing")
    return transaction.changed(by_these.values(status="releasing", until=None))
