"""What is asked and changes nothing: messages for relays, holds, and the views for operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, get_args

from ..message import Message
from ..ports import NO_LIMIT, Entry, Fetched, Gate, Hold, Left, Meta, Place, Query, Range, State, Status
from .memory_rows import BreakerRow, Outcome, Row
from .memory_tables import Tables

# --- for relays


def fetch(tables: Tables, ranges: Sequence[Range], limit: int | None) -> Fetched:
    found = [row for slot, after, few, _ in ranges for row in tables.hot.read(slot, (after,), few)]
    if limit is not None:
        found = sorted(found, key=lambda row: row.position)[:limit]
    return Fetched([row.read() for row in found], NO_LIMIT, tables.now())


def glance(tables: Tables, ranges: Sequence[Range]) -> list[int]:
    told = {gate.slot for gate, hold in tables.holds.items() if hold.status == "releasing"}
    return [asked.slot for asked in ranges if asked.slot in told or _has_work(tables, asked)]


def _has_work(tables: Tables, asked: Range) -> bool:
    due = [row for shelf in (tables.later, tables.dead) for row in shelf.read(asked.slot, limit=1)]
    is_due = any(row.due_at is not None and row.due_at <= tables.now() for row in due)
    return is_due or any(tables.hot.read(asked.slot, (asked.after,), 1))


def fetch_heads(tables: Tables, heads: Sequence[tuple[int, int]]) -> list[Message]:
    found = [tables.find_waiting(position) for _, position in heads]
    return [row.read() for row in found if row]


def fetch_parked(tables: Tables, gate: Gate, after: int, limit: int) -> list[Message]:
    return [row.read() for row in tables.parked.read(gate, (after,), limit)]


def gates(tables: Tables, slots: Sequence[int]) -> tuple[list[Hold], list[Gate]]:
    holds = [_read_hold(tables, gate) for gate in tables.holds if gate.slot in slots]
    return holds, [gate for gate in tables.parked.groups if gate.key is None and gate.slot in slots]


def releasing(tables: Tables, slots: Sequence[int]) -> list[Hold]:
    return [
        _read_hold(tables, gate)
        for gate, hold in tables.holds.items()
        if hold.status == "releasing" and gate.slot in slots
    ]


def _read_hold(tables: Tables, gate: Gate, *, count: bool = False) -> Hold:
    hold = tables.holds[gate]
    return Hold(
        slot=gate.slot,
        topic=gate.topic,
        key=gate.key or "",
        message_id=hold.message_id,
        position=hold.position,
        attempts=hold.attempts,
        status=hold.status,
        due_in=(hold.until - tables.now()).total_seconds() if hold.until else None,
        error=hold.error,
        since=hold.since,
        waiting=_count_behind(tables, gate) if count else 0,
    )


def _count_behind(tables: Tables, gate: Gate) -> int:
    rows = [row for row in tables.hot.read(gate.slot) if row.key_gate == gate]
    rows += tables.parked.read(gate)
    return sum(row.position != tables.holds[gate].position for row in rows)


def count_pending(tables: Tables) -> int:
    return len(tables.hot.rows) + len(tables.parked.rows)


# --- for operators


def status(tables: Tables, outbox: str) -> Status:
    now = tables.now()
    counts = Counter(entry.state for entry in _entries(tables))
    waiting = [row.message.created_at for shelf in (tables.hot, tables.parked) for row in shelf.rows.values()]
    oldest = min((created for created in waiting if created), default=None)
    return Status(
        outbox=outbox,
        counts={state: counts[state] for state in get_args(State)},
        oldest_pending_seconds=(now - oldest).total_seconds() if oldest else None,
        parked=len(tables.parked.rows),
        holds=len(tables.holds),
        relays=[_read_relay(tables, name) for name, relay in sorted(tables.relays.items()) if relay.until > now],
        slots_owned=sum(lease.expires_at is not None and lease.expires_at > now for lease in tables.leases.values()),
        breakers=[_read_breaker(name, tables.breakers[name]) for name in sorted(tables.breakers)],
        meta=Meta(1, 1, tables.claim),
        reasons=Counter(entry.reason or "" for entry in _entries(tables) if entry.state == "dead"),
    )


def left(tables: Tables) -> Left:
    return Left(count_pending(tables) + len(tables.later.rows), len(tables.holds))


def _read_relay(tables: Tables, name: str) -> Mapping[str, Any]:
    relay, now = tables.relays[name], tables.now()
    owned = [lease for lease in tables.leases.values() if lease.owner == name]
    return {
        "id": name,
        "host": relay.beat.host,
        "pid": relay.beat.pid,
        "started_at": relay.started_at,
        "seen_at": relay.seen_at,
        "in_flight": relay.beat.in_flight,
        "woken_by": relay.beat.woken_by,
        "slots": sum(lease.expires_at is not None and lease.expires_at > now for lease in owned),
    }


def _read_breaker(destination: str, breaker: BreakerRow) -> Mapping[str, Any]:
    return {
        "destination": destination,
        "successes": breaker.successes,
        "tripped_at": breaker.tripped_at,
        "tripped_by": breaker.tripped_by,
        "error": breaker.error,
    }


def holds(tables: Tables, topic: str | None, key: str | None, limit: int) -> list[Hold]:
    gates = [gate for gate in tables.holds if topic in (None, gate.topic) and key in (None, gate.key)]
    oldest_first = sorted(gates, key=lambda gate: (tables.holds[gate].since, gate))
    return [_read_hold(tables, gate, count=True) for gate in oldest_first[:limit]]


def entries(tables: Tables, query: Query) -> list[Entry]:
    matching = (entry for entry in _entries(tables) if _matches(tables, entry, query))
    found = sorted((entry for entry in matching if query.after is None or entry.place > query.after), key=_place)
    return found[query.offset : query.offset + query.limit]


def places(tables: Tables, query: Query) -> list[Place]:
    return [entry.place for entry in entries(tables, query)]


def entry(tables: Tables, id: str) -> Entry | None:
    found = [entry for entry in _entries(tables) if entry.message.id == id]
    undelivered = [entry for entry in found if entry.state not in get_args(Outcome)]
    dead = [entry for entry in undelivered if entry.state == "dead"]
    return next(iter(dead or undelivered or reversed(found)), None)


def _entries(tables: Tables) -> Iterator[Entry]:
    for row in tables.later.rows.values():
        yield _read_entry(tables, row, "failed" if row.attempts else "later")
    for shelf in (tables.hot, tables.parked):
        for row in shelf.rows.values():
            yield _read_entry(tables, row, _state_of(tables, row))
    for row in tables.dead.rows.values():
        yield _read_entry(tables, row, "dead")
    for row in tables.archive.values():
        yield _read_entry(tables, row, row.outcome or "delivered")


def _state_of(tables: Tables, row: Row) -> State:
    held = tables.is_held_by(row.message) and tables.holds[row.key_gate].status == "retry"
    return "failed" if held else "pending"


def _read_entry(tables: Tables, row: Row, state: State) -> Entry:
    hold = tables.holds.get(row.key_gate) if row.outcome is None else None
    head = hold if hold and hold.position == row.position else None
    return Entry(
        message=row.read(),
        state=state,
        attempts=row.attempts,
        parked=row.position in tables.parked.rows and row.outcome is None,
        held=hold is not None,
        due_at=head.until if head and head.until else row.due_at,
        settled_at=row.settled_at,
        reason=row.reason,
        error=head.error if head and state == "failed" else row.error,
    )


def _matches(tables: Tables, entry: Entry, query: Query) -> bool:
    message = entry.message
    age = (tables.now() - message.created_at).total_seconds() if message.created_at else 0.0
    return (
        query.state in (None, entry.state)
        and query.key in (None, message.key)
        and message.id.startswith(query.begins or "")
        and (query.topic is None or fnmatchcase(message.topic, query.topic))
        and (query.type is None or fnmatchcase(message.type or "", query.type))
        and (query.older_than is None or age > query.older_than)
        and (query.newer_than is None or age < query.newer_than)
    )


def _place(entry: Entry) -> Place:
    return entry.place
