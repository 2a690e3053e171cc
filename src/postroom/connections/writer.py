"""How messages are written: the procedure that every connection runs for `Outbox.add`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Engine

from ..clock import Clock
from ..errors import StoreError, TablesMissing
from ..message import Message
from ..stores.pending import Sample
from ..stores.schema import Tables
from . import bell
from .bell import Memory
from .dialects import Dialect, create_missing, dialect_named
from .fullness import Fullness, Limit
from .procedure import Pause, Procedure, Rows, Step, Values
from .statements import Statements, in_pieces

logger = logging.getLogger("postroom.outbox")

WORTH_A_STATEMENT = 32
"""So many rows that ring, and need not, take longer than to insert them by a statement of their own."""


@dataclass(slots=True, eq=False, kw_only=True)
class Row:
    """A message that has been checked, serialised and given its slot."""

    message: Message
    headers: Mapping[str, str]
    """As they are stored: the application's and the idempotency key."""
    headers_text: str | None
    delay: float | None
    token: str
    """What proves that an idempotency key was taken by this very call. The id cannot, if it may be in the table: the
    caller who tries again with the same message must not take the first try's row for his own."""
    given: Message | None
    """The object that the caller handed over, which learns what the returned one learns."""

    @property
    def is_later(self) -> bool:
        return self.delay is not None or self.message.deliver_at is not None

    def learn(self, **facts: Any) -> None:
        for message in (self.message, self.given):
            if message is not None:
                for name, value in facts.items():
                    setattr(message, name, value)


class Writer:
    """One outbox, as far as connections need to know it."""

    kind = "outbox"

    def __init__(
        self,
        *,
        name: str,
        tables: Tables,
        strict: bool,
        dedupe_window: float,
        create_tables: bool,
        clock: Clock | None,
        bind: Engine | None,
        limit: Limit | None = None,
    ) -> None:
        self.name = name
        self.tables = tables
        self.strict = strict
        self.dedupe_window = dedupe_window
        self.create_tables = create_tables
        self.clock = clock
        self.bind = bind
        self._statements: dict[str, Statements] = {}
        monotonic = clock.monotonic if clock else time.monotonic
        self._memory = Memory(monotonic)
        self._fullness = Fullness(name, limit, monotonic)
        self._listeners: list[Callable[[], object]] = []

    # --- the doorbell within one process

    def on_commit(self, callback: Callable[[], object]) -> Callable[[], None]:
        entry = lambda: callback()  # noqa: E731 - an object of its own: a callback given twice is there twice
        self._listeners.append(entry)

        def unsubscribe() -> None:
            if entry in self._listeners:
                self._listeners.remove(entry)

        return unsubscribe

    def committed(self) -> None:
        """Tell the listeners. The data is committed: whatever they raise must not look like a failed commit."""
        for listener in tuple(self._listeners):
            try:
                listener()
            except Exception:
                logger.exception("a listener of outbox %r failed", self.name)

    # --- the procedure

    def procedure(
        self, rows: Sequence[Row], dialect_name: str, connection: object = None, place: object = None
    ) -> Procedure[None]:
        """dedupe → counter → insert, so that an ignored duplicate uses no number.

        Nothing is asked before the first write, unless errors abort the transaction: on SQLite one that begins by
        reading cannot wait for another writer. Missing tables are there noticed by the error, which leaves the
        transaction as it was.
        """
        dialect = dialect_named(dialect_name)
        statements = self._statements_for(dialect_name)
        rings = False
        try:
            rings = dialect.asks_first and (yield from self._look(statements, dialect_name, connection))
            yield from self._admit(statements, dialect, connection if place is None else place)
            yield from self._write(rows, statements, rings)
        except Exception as error:
            if rings and bell.was_lost(self.tables, _cause(error)):
                self._memory.forget(connection)
                raise self._bell_gone() from error
            if not self._is_about_tables(error, dialect):
                raise
            if dialect.asks_first:
                self._memory.forget(connection)
                raise self._tables_missing() from error
            if not (self.create_tables and dialect.creates_tables):
                raise self._tables_missing() from error
        else:
            return
        yield from self.creation(dialect_name)
        yield from self._write(rows, statements)

    def creation(self, dialect_name: str) -> Procedure[None]:
        dialect = dialect_named(dialect_name)
        return create_missing(dialect, self.tables.hot, dialect.create(self.tables))

    # --- a full outbox

    def check_early(self, place: object, dialect_name: str, is_async: bool) -> None:
        """For those who write later: raise what is known now."""
        if is_async:
            self._fullness.refuse_to_wait("an AsyncSession would hold up the event loop")
        self._refuse_waiting_turns(dialect_named(dialect_name))
        self._fullness.check(place)

    def check_now(self, sample: Sample | None) -> None:
        """For a store in this process, which can tell at once."""
        self._fullness.refuse_to_wait("the relay that is waited for may be on the same thread")
        self._fullness.refuse_over(sample)

    def _refuse_waiting_turns(self, dialect: Dialect) -> None:
        if dialect.takes_turns:
            self._fullness.refuse_to_wait("SQLite has one writer at a time, and the relay would wait for us")

    def _admit(self, statements: Statements, dialect: Dialect, place: object) -> Procedure[None]:
        self._refuse_waiting_turns(dialect)

        def ask() -> Generator[Step, Rows, Sample | None]:
            if dialect.takes_turns:
                yield Step(statements.take_turn)
            found = yield Step(statements.sample, returns=True)
            return Sample.read(found[0][0]) if found else None

        yield from self._fullness.admit(place, ask)

    def _look(
        self, statements: Statements, dialect_name: str, connection: object
    ) -> Generator[Step | Pause, Rows, bool]:
        """Whether there is a bell to ring. The tables are there afterwards."""
        known = self._memory.bell_of(connection)
        if known is not None:
            return known
        ((tables, can_ring, was_before),) = yield Step(statements.look, returns=True)
        if not tables:
            if not self.create_tables:
                raise self._tables_missing()
            yield from self.creation(dialect_name)
        elif was_before:
            self._memory.remember(connection, can_ring)
        return can_ring

    def _is_about_tables(self, error: Exception, dialect: Dialect) -> bool:
        """Whether it says that one of ours is missing: an application's trigger may lack one of its own."""
        cause = _cause(error)
        return dialect.lacks_table(cause) and self.tables.prefix.lower() in str(cause).lower()

    def _statements_for(self, dialect_name: str) -> Statements:
        statements = self._statements.get(dialect_name)
        if statements is None:
            statements = Statements(self.tables, dialect_named(dialect_name), self.clock is not None)
            self._statements[dialect_name] = statements
        return statements

    def _write(self, rows: Sequence[Row], statements: Statements, rings: bool = False) -> Procedure[None]:
        rows = yield from self._claim_keys(rows, statements)
        if self.strict:
            yield from self._number(rows, statements)
        now = self.clock.now() if self.clock else None
        hot = [_columns(row, now) for row in rows if not row.is_later and not row.message.replays]
        again = [{**_columns(row, now), "replays": row.message.replays} for row in rows if row.message.replays]
        for columns in (hot, again):
            yield from _insert(columns, statements, rings)
        if later := [{**_columns(row, now), **_due(row, now)} for row in rows if row.is_later]:
            yield Step(statements.insert_later, later)
        if claims := [_claim_of(row) for row in rows if row.message.duplicate is False and row.token != row.message.id]:
            yield Step(statements.confirm, claims)

    def _claim_keys(self, rows: Sequence[Row], statements: Statements) -> Generator[Step, Rows, Sequence[Row]]:
        """The rows that are no duplicates. Of several with one idempotency key the first stands for all of them."""
        claims: dict[str, Row] = {}
        for row in rows:
            if row.message.idempotency_key is not None:
                claims.setdefault(row.message.idempotency_key, row)
        if not claims:
            return rows
        keys = sorted(claims)
        times = self._dedupe_times()
        yield Step(statements.claim, [{"key": key, "message_id": claims[key].token, **times} for key in keys])
        holders: dict[str, str] = {}
        for piece in in_pieces(keys):
            parameters = {f"key_{number}": key for number, key in enumerate(piece)}
            found = yield Step(statements.holders(len(piece)), [parameters], returns=True)
            holders.update(dict(found))
        return [row for row in rows if not _is_duplicate(row, claims, holders)]

    def _dedupe_times(self) -> Values:
        if self.clock is None:
            return {"window": self.dedupe_window}
        now = self.clock.now()
        return {"now": now, "until": now + timedelta(seconds=self.dedupe_window)}

    def _number(self, rows: Sequence[Row], statements: Statements) -> Procedure[None]:
        """Dense numbers per topic and key. Taking them locks the counter, and so makes them follow commit order."""
        queues: dict[tuple[str, str], list[Row]] = {}
        for row in rows:
            if row.message.key is not None:
                queues.setdefault((row.message.topic, row.message.key), []).append(row)
        if not queues:
            return
        places = sorted(queues)
        generation = self._generation()
        yield Step(statements.count, [_counter(place, len(queues[place]), generation) for place in places])
        for piece in in_pieces(places):
            parameters = dict(_named(piece))
            for topic, key, last, kept in (yield Step(statements.counters(len(piece)), [parameters], returns=True)):
                queue = queues[topic, key]
                for number, row in enumerate(queue, last - len(queue) + 1):
                    row.learn(sequence=number, generation=kept)

    def _generation(self) -> int:
        """Milliseconds: a counter made anew has a later one."""
        return int((self.clock.now().timestamp() if self.clock else time.time()) * 1000)

    def _bell_gone(self) -> StoreError:
        return StoreError(
            f"the doorbell of outbox {self.name!r} (the sequence {self.tables.bell.name}) was dropped or cannot be "
            "read any more: roll this transaction back and try again; the next one will not ring. To ring again, "
            "create the sequence with `postroom init`, or GRANT SELECT on it"
        )

    def _tables_missing(self) -> TablesMissing:
        return TablesMissing(
            f"the tables of outbox {self.name!r} ({self.tables.hot.fullname} and its siblings) are not in this "
            "database; create them with `postroom init` or `outbox.create_tables(engine)`"
        )


def _insert(rows: Sequence[Values], statements: Statements, rings: bool) -> Generator[Step, Rows, None]:
    """To ring costs more than the row itself, and once for each slot is enough. Within a slot the order is kept."""
    if rings:
        firsts = {row["slot"]: number for number, row in reversed(list(enumerate(rows)))}.values()
        rest = set(range(len(rows))).difference(firsts)
        if len(rest) < WORTH_A_STATEMENT:
            rest = set[int]()
        if ringing := [row for number, row in enumerate(rows) if number not in rest]:
            yield Step(statements.insert_hot_and_ring, ringing)
        rows = [rows[number] for number in sorted(rest)]
    if rows:
        yield Step(statements.insert_hot, rows)


def _cause(error: Exception) -> BaseException:
    return getattr(error, "orig", None) or error


def _is_duplicate(row: Row, claims: Mapping[str, Row], holders: Mapping[str, str]) -> bool:
    key = row.message.idempotency_key
    if key is None:
        return False
    duplicate = claims[key] is not row or holders.get(key) != row.token
    row.learn(duplicate=duplicate)
    return duplicate


def _columns(row: Row, now: datetime | None) -> dict[str, Any]:
    message = row.message
    columns: dict[str, Any] = {
        "slot": message.slot,
        "id": message.id,
        "topic": message.topic,
        "key": message.key,
        "type": message.type,
        "payload": message.payload,
        "content_type": message.content_type,
        "headers": row.headers_text,
        "sequence": message.sequence,
        "generation": message.generation,
        "expires_at": message.expires_at,
    }
    return columns if now is None else {**columns, "created_at": now}


def _due(row: Row, now: datetime | None) -> Values:
    if row.delay is not None and now is not None:
        return {"moment": now + timedelta(seconds=row.delay), "wait": 0.0}
    return {"moment": row.message.deliver_at, "wait": row.delay or 0.0}


def _claim_of(row: Row) -> Values:
    return {"claimed": row.message.idempotency_key, "winner": row.message.id}


def _counter(place: tuple[str, str], count: int, generation: int) -> Values:
    topic, key = place
    return {"topic": topic, "key": key, "sequence": count, "generation": generation}


def _named(places: Iterable[tuple[str, str]]) -> Iterable[tuple[str, str]]:
    for number, (topic, key) in enumerate(places):
        yield f"topic_{number}", topic
        yield f"key_{number}", key
