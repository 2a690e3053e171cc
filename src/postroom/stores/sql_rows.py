"""Rows as messages and holds, and statements made ready for the driver itself."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple
from typing import cast as typed

from sqlalchemy import (
    BigInteger,
    ClauseElement,
    ColumnElement,
    CompoundSelect,
    Dialect,
    Integer,
    Select,
    SelectBase,
    Table,
    bindparam,
    cast,
    literal_column,
    null,
    select,
    union_all,
)
from sqlalchemy.sql.compiler import SQLCompiler

from ..message import Message
from ..ports import Hold, Range
from .schema import MESSAGE_COLUMNS, db_now
from .sql_transaction import Transaction

UNREADABLE_HEADERS = "postroom-unreadable-headers"
"""Headers that are no JSON object (a foreign writer's mistake) travel under this name: one bad row must not stop all
others."""


def message_columns(table: Table) -> list[ColumnElement[Any]]:
    """What `read_message` expects."""
    return [table.c[name] for name in ("position", *MESSAGE_COLUMNS)]


def read_message(row: Sequence[Any]) -> Message:
    """A row with `message_columns` as a message.

    Its fields are set one by one, all of them: that takes half as long as calling `Message`, and every message that is
    delivered passes here.
    """
    message = Message.__new__(Message)
    (
        message.position, message.slot, message.id, message.topic, message.key, message.type, payload,
        message.content_type, headers, message.sequence, message.generation, attempts, message.replays, created_at,
        expires_at,
    ) = row  # fmt: skip
    message.payload = payload if payload.__class__ is bytes else _as_bytes(payload)
    message.headers = {} if headers is None else read_headers(headers)
    message.attempt = attempts + 1
    message.created_at = (
        created_at if created_at.__class__ is datetime and created_at.tzinfo else read_moment(created_at)
    )
    message.expires_at = None if expires_at is None else read_moment(expires_at)
    message.idempotency_key = message.deliver_at = message.delay = message.duplicate = None
    message.epoch = 0
    return message


def read_headers(text: str) -> dict[str, str]:
    try:
        headers: Any = json.loads(text)
    except (ValueError, RecursionError):
        return {UNREADABLE_HEADERS: str(text)}
    if not isinstance(headers, dict):
        return {UNREADABLE_HEADERS: str(text)}
    named = typed("dict[str, Any]", headers)
    return {name: value if value.__class__ is str else json.dumps(value) for name, value in named.items()}


def add_header(text: str | None, header: str) -> str:
    headers = {} if text is None else read_headers(text)
    return json.dumps({**headers, header: "1"})


def read_moment(value: Any) -> datetime | None:
    """A time as drivers return it; one that cannot be read is unknown."""
    if value.__class__ is str:
        return _read_text(value)
    return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value


@lru_cache(maxsize=256)  # rows of one transaction were written at the same time
def _read_text(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text + "+00:00")
    except ValueError:
        return _read_odd_moment(text)


def _read_odd_moment(text: str) -> datetime | None:
    """A foreign writer's, with an offset of its own or not a time at all."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.astimezone(UTC)


def _as_bytes(payload: Any) -> bytes:
    return payload.encode() if isinstance(payload, str) else bytes(payload)


def read_hold(transaction: Transaction, row: Any) -> Hold:
    return Hold(
        slot=row.slot,
        topic=row.topic,
        key=row.key,
        message_id=row.message_id,
        position=row.position,
        attempts=row.attempts,
        status=row.status,
        due_in=None if row.until is None else transaction.seconds_until(row.until),
        error=row.error,
        since=row.since,
        waiting=row.waiting if "waiting" in row._mapping else 0,
    )


class Prepared:
    """A statement compiled once, for the driver itself: on the hot path SQLAlchemy would cost more than the rows."""

    def __init__(self, statement: ClauseElement, dialect: Dialect) -> None:
        compiled = typed("SQLCompiler", statement.compile(dialect=dialect))
        self.sql = str(compiled)
        self._names = compiled.positiontup
        self._values: dict[str, Any] = {**(compiled.params or {})}

    def bind(self, values: Mapping[str, Any]) -> Any:
        """A tuple, or by name for a driver that takes its parameters so."""
        known = {**self._values, **values}
        return known if self._names is None else tuple([known[name] for name in self._names])


class Header(NamedTuple):
    """One row of a read: the time, and what else the database has to say."""

    word: str | None
    now: datetime

    @classmethod
    def split_off(cls, rows: Iterable[Sequence[Any]]) -> tuple[Header, list[Sequence[Any]]]:
        """The header, and the rows in order of position: sorting them here costs a tenth of what it costs there."""
        ordered = sorted(rows, key=_position)
        row = ordered.pop(0)
        now = read_moment(row[_CREATED_AT])
        assert now is not None, "a database knows its time"  # noqa: S101
        return cls(row[_TOPIC], now), ordered


_position = itemgetter(0)


_TOPIC = 1 + MESSAGE_COLUMNS.index("topic")
_CREATED_AT = 1 + MESSAGE_COLUMNS.index("created_at")


def with_header(hot: Table, word: ColumnElement[str], *parts: SelectBase) -> CompoundSelect[*tuple[Any, ...]]:
    """All these rows, in no order, and a header in their own columns, with the position 0."""
    given: dict[str, ColumnElement[Any]] = {
        "position": literal_column("0", BigInteger),
        "topic": word,
        "created_at": db_now(),
    }
    header = select(*(given.get(item.name, cast(null(), item.type)).label(item.name) for item in message_columns(hot)))
    return union_all(header, *parts)


def select_ranges(hot: Table, count: int) -> SelectBase:
    """One range per slot: a single range over many slots would walk the rows of the others."""
    return union_all(*(_select_range(hot, message_columns(hot), number) for number in range(count)))


def select_lowest(hot: Table, count: int) -> SelectBase:
    """Of all ranges together the rows with the lowest positions; chosen in the index, before any row is read."""
    chosen = union_all(*(_select_range(hot, [hot.c.position], number) for number in range(count))).subquery()
    # An expression, and not the column: SQLite would merge the ranges instead of sorting them, at twice the cost.
    in_order = chosen.c.position + literal_column("0")
    lowest = select(chosen.c.position).order_by(in_order).limit(bindparam("limit", type_=Integer))
    return select(*message_columns(hot)).where(hot.c.position.in_(lowest)).order_by(hot.c.position)


def _select_range(hot: Table, columns: list[ColumnElement[Any]], number: int) -> Select[*tuple[Any, ...]]:
    within = (
        select(*columns)
        .where(hot.c.slot == bindparam(f"slot{number}", type_=Integer))
        .where(hot.c.position > bindparam(f"after{number}", type_=BigInteger))
        .order_by(hot.c.position)
        .limit(bindparam(f"limit{number}", type_=Integer))
        .subquery()
    )
    return select(within)


def range_values(ranges: Sequence[Range]) -> dict[str, int]:
    names = chain.from_iterable((f"slot{n}", f"after{n}", f"limit{n}", f"low{n}") for n in range(len(ranges)))
    return dict(zip(names, chain.from_iterable(ranges), strict=True))


def select_parked(parked: Table, *conditions: ColumnElement[bool]) -> SelectBase:
    return (
        select(*message_columns(parked))
        .where(parked.c.slot == bindparam("slot", type_=Integer))
        .where(parked.c.topic == bindparam("topic"))
        .where(parked.c.position > bindparam("after", type_=BigInteger))
        .where(*conditions)
        .order_by(parked.c.position)
        .limit(bindparam("limit", type_=Integer))
    )
