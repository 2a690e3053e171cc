"""What operators and new owners ask; nothing here changes a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, get_args

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Integer,
    Select,
    SmallInteger,
    Table,
    and_,
    cast,
    exists,
    func,
    literal,
    literal_column,
    null,
    or_,
    select,
    union_all,
)
from sqlalchemy.types import NULLTYPE, TypeEngine

from ..message import Message
from ..ports import NO_LIMIT, Entry, Gate, Hold, Left, Place, Query, Range, State, Status
from .schema import MESSAGE_COLUMNS, Moment, Tables
from .sql_rows import message_columns, read_hold, read_message
from .sql_setup import read_meta
from .sql_transaction import Transaction

WHOLE_ID = 36
HOLD_COLUMNS = ("position", "status", "until", "error")
Conditions = Callable[[Table], list[ColumnElement[bool]]]
Branch = Callable[[Transaction, str, Table], Select[*tuple[Any, ...]]]
"""What is selected of one table that holds messages, by its name among the tables."""

# --- for the owner of a slot


def fetch_heads(transaction: Transaction, heads: Sequence[tuple[int, int]]) -> list[Message]:
    tables, positions = transaction.tables, [position for _, position in heads]
    found = union_all(
        *(
            select(*message_columns(table)).where(transaction.among(table.c.position, positions))
            for table in (tables.hot, tables.parked)
        )
    )
    wanted = set(heads)
    messages = (read_message(row) for row in transaction.rows(found))
    return sorted((message for message in messages if (message.slot, message.position) in wanted), key=_position)


def _position(message: Message) -> int:
    return message.position


def gates(transaction: Transaction, slots: Sequence[int]) -> tuple[list[Hold], list[Gate]]:
    holds, parked = transaction.tables.holds, transaction.tables.parked
    held = select(holds).where(transaction.among(holds.c.slot, slots)).order_by(holds.c.position)
    topics = select(parked.c.slot, parked.c.topic).distinct()
    topics = topics.where(transaction.among(parked.c.slot, slots), parked.c.behind == "topic")
    return (
        [read_hold(transaction, row) for row in transaction.rows(held)],
        [Gate(row.slot, row.topic, None) for row in transaction.rows(topics)],
    )


def releasing(transaction: Transaction, slots: Sequence[int]) -> list[Hold]:
    holds = transaction.tables.holds
    told = select(holds).where(is_releasing(transaction.tables), transaction.among(holds.c.slot, slots))
    return [read_hold(transaction, row) for row in transaction.rows(told.order_by(holds.c.position))]


def is_releasing(tables: Tables) -> ColumnElement[bool]:
    return tables.holds.c.status == "releasing"


def glance(transaction: Transaction, ranges: Sequence[Range]) -> list[int]:
    asked = union_all(*(_pair(slot, after) for slot, after, _, _ in ranges)).subquery()
    return list(
        transaction.run(select(asked.c.slot).where(has_work(transaction.tables, asked, transaction.now))).scalars()
    )


def _pair(slot: int, after: int) -> Select[*tuple[Any, ...]]:
    return select(literal(slot, SmallInteger).label("slot"), literal(after, BigInteger).label("after"))


def has_work(tables: Tables, asked: Any, now: Any) -> ColumnElement[bool]:
    hot = tables.hot
    is_new = exists().where(hot.c.slot == asked.c.slot, hot.c.position > asked.c.after)
    return or_(is_new, has_other_work(tables, asked, now))


def has_other_work(tables: Tables, asked: Any, now: Any) -> ColumnElement[bool]:
    """Beside new messages. Off the ends of three indexes."""
    later, dead, holds = tables.later, tables.dead, tables.holds
    return or_(
        exists().where(later.c.slot == asked.c.slot, later.c.due_at <= now),
        exists().where(dead.c.slot == asked.c.slot, dead.c.revive_at <= now),
        exists().where(holds.c.slot == asked.c.slot, is_releasing(tables)),
    )


# --- for operators

MOST_ARCHIVED = 1_000_000
"""So many are counted: an archive may have any number, and a health check must not take minutes."""


def status(transaction: Transaction, outbox: str) -> Status:
    tables = transaction.tables
    return Status(
        outbox=outbox,
        counts=_count_states(transaction),
        oldest_pending_seconds=_oldest_pending(transaction),
        parked=_count(transaction, tables.parked),
        holds=_count(transaction, tables.holds),
        relays=[_read_relay(row) for row in transaction.rows(_select_relays(transaction))],
        slots_owned=_count(transaction, tables.leases, tables.leases.c.expires_at > transaction.now),
        breakers=[_read_breaker(row) for row in transaction.rows(_select_breakers(transaction))],
        meta=read_meta(transaction),
        reasons=_count_reasons(transaction),
    )


def left(transaction: Transaction) -> Left:
    tables = transaction.tables
    hot, parked, claims, later, holds = (
        select(func.count()).select_from(table).scalar_subquery()
        for table in (tables.hot, tables.parked, tables.claims, tables.later, tables.holds)
    )
    row = transaction.run(select((hot + parked + claims + later).label("pending"), holds.label("held"))).one()
    return Left(row.pending, row.held)


def holds(transaction: Transaction, topic: str | None, key: str | None, limit: int) -> list[Hold]:
    held = transaction.tables.holds
    conditions = [held.c[name] == value for name, value in (("topic", topic), ("key", key)) if value is not None]
    chosen = select(held, _count_behind(transaction).label("waiting")).where(*conditions)
    rows = transaction.rows(chosen.order_by(held.c.since, held.c.slot, held.c.topic, held.c.key).limit(limit))
    return [read_hold(transaction, row) for row in rows]


def _count_behind(transaction: Transaction) -> ColumnElement[int]:
    held = transaction.tables.holds
    counts = [
        select(func.count()).where(_same_key(table, held), table.c.position != held.c.position).scalar_subquery()
        for table in (transaction.tables.hot, transaction.tables.parked)
    ]
    return counts[0] + counts[1]


def _count_states(transaction: Transaction) -> Mapping[str, int]:
    tables = transaction.tables
    waiting = sum(_count(transaction, table) for table in (tables.hot, tables.parked, tables.claims))
    heads = _count_heads(transaction)
    put_off = _count(transaction, tables.later, tables.later.c.attempts > 0)
    counts = {
        "pending": waiting - heads,
        "later": _count(transaction, tables.later) - put_off,
        "failed": heads + put_off,
        "dead": _count(transaction, tables.dead),
    }
    some = select(tables.archive.c.outcome).limit(MOST_ARCHIVED).subquery()
    archived = select(some.c.outcome, func.count()).group_by(some.c.outcome)
    kept = {row[0]: row[1] for row in transaction.rows(archived)}
    return dict.fromkeys(get_args(State), 0) | counts | kept


def _count_reasons(transaction: Transaction) -> Mapping[str, int]:
    dead = transaction.tables.dead
    return {row[0]: row[1] for row in transaction.rows(select(dead.c.reason, func.count()).group_by(dead.c.reason))}


def _count_heads(transaction: Transaction) -> int:
    tables, held = transaction.tables, transaction.tables.holds
    there = or_(*(exists().where(table.c.position == held.c.position) for table in (tables.hot, tables.parked)))
    return _count(transaction, held, held.c.status == "retry", there)


def _oldest_pending(transaction: Transaction) -> float | None:
    """By position, which has an index, and not by time, which would be a walk through the whole backlog."""
    tables = transaction.tables
    firsts = [
        transaction.run(select(table.c.created_at).order_by(table.c.position).limit(1)).scalar()
        for table in (tables.hot, tables.parked, tables.claims)
    ]
    return max((-transaction.seconds_until(first) for first in firsts if first is not None), default=None)


def _count(transaction: Transaction, table: Table, *conditions: ColumnElement[bool]) -> int:
    return transaction.run(select(func.count()).select_from(table).where(*conditions)).scalar_one()


def _select_relays(transaction: Transaction) -> Select[*tuple[Any, ...]]:
    relays, leases = transaction.tables.relays, transaction.tables.leases
    slots = select(func.count()).where(leases.c.owner == relays.c.id, leases.c.expires_at > transaction.now)
    alive = select(relays, slots.scalar_subquery().label("slots")).where(relays.c.until > transaction.now)
    return alive.order_by(relays.c.id)


def _read_relay(row: Any) -> Mapping[str, Any]:
    names = ("id", "host", "pid", "started_at", "seen_at", "in_flight", "woken_by", "slots")
    return {name: getattr(row, name) for name in names}


def _select_breakers(transaction: Transaction) -> Select[*tuple[Any, ...]]:
    breakers = transaction.tables.breakers
    return select(breakers).order_by(breakers.c.destination)


def _read_breaker(row: Any) -> Mapping[str, Any]:
    return {name: getattr(row, name) for name in ("destination", "successes", "tripped_at", "tripped_by", "error")}


# --- messages as operators see them


def entries(transaction: Transaction, query: Query) -> list[Entry]:
    return [_read_entry(row) for row in transaction.rows(_page(transaction, query, _select_entries))]


def places(transaction: Transaction, query: Query) -> list[Place]:
    found = transaction.rows(_page(transaction, query, _select_places))
    return [Place(row.created_at, row.place_order, row.id, bool(row.is_over)) for row in found]


def _page(transaction: Transaction, query: Query, chosen: Branch) -> Select[*tuple[Any, ...]]:
    conditions = partial(_conditions, transaction, query)
    found = union_all(*_branches(transaction, query.state, conditions, chosen)).subquery()
    created_at = transaction.dialect.comparable(found.c.created_at)
    page = select(found).order_by(created_at, found.c.place_order, found.c.id, found.c.is_over)
    return page.limit(query.limit).offset(query.offset)


def _select_places(transaction: Transaction, name: str, table: Table) -> Select[*tuple[Any, ...]]:
    return select(table.c.created_at, *(value.label(label) for label, value in _order(name, table).items()), table.c.id)


def _order(name: str, table: Table) -> dict[str, ColumnElement[Any]]:
    return {
        "place_order": table.c.get("position", literal_column(str(NO_LIMIT), BigInteger)),
        "is_over": literal_column("1" if name == "archive" else "0", Integer),
    }


def _is_after(transaction: Transaction, table: Table, place: Place) -> ColumnElement[bool]:
    """In the order of places. A time that could not be read comes before all others."""
    is_archive = table is transaction.tables.archive
    order = _order("archive" if is_archive else "", table)["place_order"]
    is_same = and_(order == place.order, table.c.id == place.id, literal(is_archive and not place.is_over))
    is_later = or_(order > place.order, and_(order == place.order, table.c.id > place.id), is_same)
    comparable = transaction.dialect.comparable
    created_at = comparable(table.c.created_at)
    if place.created_at is None:
        return or_(created_at.is_not(None), is_later)
    moment = comparable(literal(place.created_at, Moment))
    return or_(created_at > moment, and_(created_at == moment, is_later))


def entry(transaction: Transaction, id: str) -> Entry | None:
    """An undelivered one before those in the archive, of which the last.

    The dead are looked at first, by their index. What is pending has none on the id, which every message would have to
    pay for: it is read once from end to end.
    """
    return _entry_among(transaction, id, "dead") or _entry_among(transaction, id, None)


def _entry_among(transaction: Transaction, id: str, state: State | None) -> Entry | None:
    branches = _branches(transaction, state, lambda table: [table.c.id == id], _select_entries)
    found = [_read_entry(row) for row in transaction.rows(union_all(*branches))]
    undelivered = [entry for entry in found if entry.state in ("pending", "later", "failed", "dead")]
    return next(iter(undelivered or reversed(found)), None)


def _conditions(transaction: Transaction, query: Query, table: Table) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if query.topic is not None:
        conditions.append(transaction.dialect.matches(table.c.topic, query.topic))
    if query.type is not None:
        conditions.append(transaction.dialect.matches(func.coalesce(table.c.type, ""), query.type))
    if query.key is not None:
        conditions.append(table.c.key == query.key)
    if query.older_than is not None:
        conditions.append(table.c.created_at < transaction.after(-query.older_than))
    if query.newer_than is not None:
        conditions.append(table.c.created_at > transaction.after(-query.newer_than))
    if query.begins is not None:
        conditions.append(_begins(table.c.id, query.begins))
    if query.after is not None:
        conditions.append(_is_after(transaction, table, query.after))
    return conditions


def _begins(id: ColumnElement[str], text: str) -> ColumnElement[bool]:
    """A whole id is found by its index, where there is one."""
    return id == text if len(text) >= WHOLE_ID else id.startswith(text, autoescape=True)


def _branches(
    transaction: Transaction, state: State | None, conditions: Conditions, chosen: Branch
) -> Iterator[Select[*tuple[Any, ...]]]:
    """One select per table that can hold messages in that state, all with the same columns."""
    tables = transaction.tables
    for name in ("hot", "parked", "claims", "later", "dead", "archive"):
        table: Table = getattr(tables, name)
        in_state = _in_state(transaction, name, table, state)
        if in_state is not None:
            yield chosen(transaction, name, table).where(in_state, *conditions(table))


def _in_state(transaction: Transaction, name: str, table: Table, state: State | None) -> ColumnElement[bool] | None:
    """The rows of a table that are in a state; None if none can be."""
    if state is None:
        return literal(True)
    if name in ("hot", "parked") and state in ("pending", "failed"):
        is_head = _is_head(transaction, table)
        return is_head if state == "failed" else ~is_head
    if name == "claims":
        return literal(True) if state == "pending" else None
    if name == "later" and state in ("later", "failed"):
        return table.c.attempts == 0 if state == "later" else table.c.attempts > 0
    if name == "archive" and state in ("delivered", "superseded", "discarded"):
        return table.c.outcome == state
    return literal(True) if name == state else None


def _is_head(transaction: Transaction, table: Table) -> ColumnElement[bool]:
    held = transaction.tables.holds.alias()
    return exists().where(held.c.position == table.c.position, held.c.status == "retry")


def _select_entries(transaction: Transaction, name: str, table: Table) -> Select[*tuple[Any, ...]]:
    held, columns = transaction.tables.holds, table.c
    is_settled = name == "archive"
    position = columns.get("position", literal(0)).label("position")
    extra = {
        "place": literal(name),
        **_order(name, table),
        "outcome": columns.get("outcome"),
        "due_at": columns.get("due_at", columns.get("revive_at")),
        "settled_at": columns.get("settled_at", columns.get("died_at")),
        "reason": columns.get("reason"),
        "error": columns.get("error"),
        **{f"hold_{column}": None if is_settled else held.c[column] for column in HOLD_COLUMNS},
    }
    types = _types(transaction)
    labelled = [_or_null(value, types.get(label, NULLTYPE)).label(label) for label, value in extra.items()]
    chosen = select(position, *(columns[column] for column in MESSAGE_COLUMNS), *labelled)
    return chosen.select_from(table if is_settled else table.outerjoin(held, _same_key(table, held)))


def _types(transaction: Transaction) -> dict[str, TypeEngine[Any]]:
    """Of the columns that not every table has."""
    tables = transaction.tables
    types = {column.name: column.type for column in (*tables.archive.c, tables.later.c.due_at)}
    return types | {f"hold_{column}": tables.holds.c[column].type for column in HOLD_COLUMNS}


def _or_null(value: ColumnElement[Any] | None, type: TypeEngine[Any]) -> ColumnElement[Any]:
    return cast(null(), type) if value is None else value


def _read_entry(row: Any) -> Entry:
    message = read_message(row[: 1 + len(MESSAGE_COLUMNS)])
    is_head = row.hold_position is not None and row.hold_position == row.position
    state = _state_of(row, is_head)
    return Entry(
        message=message,
        state=state,
        attempts=message.attempt - 1,
        parked=row.place == "parked",
        held=row.hold_position is not None,
        due_at=row.hold_until if is_head and row.hold_until is not None else row.due_at,
        settled_at=row.settled_at,
        reason=row.reason,
        error=row.hold_error if is_head and state == "failed" else row.error,
    )


def _state_of(row: Any, is_head: bool) -> State:
    if row.place == "archive":
        return row.outcome
    if row.place == "later":
        return "failed" if row.attempts else "later"
    if row.place == "dead":
        return "dead"
    return "failed" if is_head and row.hold_status == "retry" else "pending"


def _same_key(one: Table, other: Table) -> ColumnElement[bool]:
    return and_(one.c.slot == other.c.slot, one.c.topic == other.c.topic, one.c.key == other.c.key)
