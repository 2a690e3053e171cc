"""Rows that move because of the time or an operator's word: due, revive, discard, replay, clean."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from heapq import merge
from itertools import islice
from typing import Any

from ..message import REVIVED_HEADER, TOMBSTONE_HEADER, Message, new_id, slot_of
from ..ports import Due
from .memory_rows import Row, Shelf
from .memory_tables import Tables

DAY = 86_400.0
KEEP_UNDELIVERED = 7 * DAY
"""How long superseded and discarded messages stay in view at least."""
FORGET_RELAYS = DAY


# --- due


def move_due(tables: Tables, slots: Sequence[int], limit: int) -> Due:
    ready = _ready(tables, tables.later, slots, limit)
    for row in ready:
        tables.later.take(row.position)
        tables.append(row)
    risen = _ready(tables, tables.dead, slots, limit - len(ready))
    for row in risen:
        _revive(tables, row)
    return Due(len(ready) + len(risen), _next_in(tables, slots))


def _ready(tables: Tables, shelf: Shelf, slots: Sequence[int], limit: int) -> list[Row]:
    now = tables.now()
    earliest_first = merge(*(shelf.groups.get(slot, []) for slot in slots))
    return [shelf.rows[position] for due_at, _, position in islice(earliest_first, limit) if due_at <= now]


def _next_in(tables: Tables, slots: Sequence[int]) -> float | None:
    first = [row for shelf in (tables.later, tables.dead) for slot in slots for row in shelf.read(slot, limit=1)]
    times = [row.due_at for row in first if row.due_at is not None]
    return max(0.0, (min(times) - tables.now()).total_seconds()) if times else None


# --- the operator's word


def revive(tables: Tables, ids: Sequence[str]) -> int:
    rows = _dead_with(tables, ids)
    for row in rows:
        # Whoever asks for an expired message wants it sent: it does not expire again.
        _revive(tables, row, expires_at=None)
    return len(rows)


def discard(tables: Tables, ids: Sequence[str]) -> int:
    rows = _dead_with(tables, ids)
    for row in rows:
        tables.keep(row, "discarded")
        if row.message.sequence is None:
            tables.dead.take(row.position)
        else:
            headers = _with_header(row.message, TOMBSTONE_HEADER)
            _raise(tables, row, payload=b"", headers=headers, expires_at=None)
        if tables.is_held_by(row.message):
            tables.set_releasing(row.key_gate)
    return len(rows)


def replay(tables: Tables, ids: Sequence[str], again_as_new: bool) -> int:
    latest = {row.message.id: row for row in tables.archive.values() if row.outcome == "delivered"}
    rows = [latest[id] for id in dict.fromkeys(ids) if id in latest]
    for row in rows:
        # Counted in the archive too: with no retention the replay itself leaves no trace.
        row.message.replays += not again_as_new
        tables.append(Row(message=_renamed(row.message) if again_as_new else replace(row.message, expires_at=None)))
    return len(rows)


def _dead_with(tables: Tables, ids: Sequence[str]) -> list[Row]:
    wanted = set(ids)
    found = (row for row in tables.dead.rows.values() if row.message.id in wanted)
    return sorted(found, key=lambda row: row.position)


def _revive(tables: Tables, row: Row, **changes: Any) -> None:
    if tables.is_blocked_by(row.message):
        _raise(tables, row, **changes)
        tables.set_releasing(row.key_gate)
    else:
        _raise(tables, row, headers=_with_header(row.message, REVIVED_HEADER), **changes)


def _raise(tables: Tables, row: Row, **changes: Any) -> None:
    """From the dead: to its old place if it holds its key, else last."""
    tables.dead.take(row.position)
    message = replace(row.message, **changes)
    if tables.is_blocked_by(message):
        tables.parked.put(Row(message=message, gate=row.key_gate))
    else:
        tables.append(Row(message=message))


def _with_header(message: Message, header: str) -> Mapping[str, str]:
    return {**message.headers, header: "1"}


def _renamed(message: Message) -> Message:
    """The same content under a new name: to whoever remembers ids or sequence numbers, a message never seen."""
    id = new_id()
    unseen = {"sequence": None, "generation": None, "replays": 0, "expires_at": None}
    return replace(message, id=id, slot=slot_of(message.key, id), **unseen)


# --- clean


def clean(tables: Tables, retention: float | None, limit: int) -> int:
    removals = list(islice(_garbage(tables, retention), limit))
    for remove in removals:
        remove()
    return len(removals)


def _garbage(tables: Tables, retention: float | None) -> Iterator[Callable[[], object]]:
    now = tables.now()
    for number, row in tables.archive.items():
        keep = retention if row.outcome == "delivered" else max(retention or 0.0, KEEP_UNDELIVERED)
        if keep is not None and row.settled_at is not None and row.settled_at <= now - timedelta(seconds=keep):
            yield lambda number=number: tables.archive.pop(number)
    for key, expires_at in tables.dedupe.items():
        if expires_at <= now:
            yield lambda key=key: tables.dedupe.pop(key)
    for name, relay in tables.relays.items():
        if relay.until <= now - timedelta(seconds=FORGET_RELAYS):
            yield lambda name=name: tables.relays.pop(name)
    for gate, hold in tables.holds.items():
        is_there = tables.find_waiting(hold.position) or hold.position in tables.dead.rows
        if hold.status != "releasing" and not is_there:
            # Not deleted: its owner knows of it and has to hear that it may go on.
            yield lambda gate=gate: tables.set_releasing(gate)
