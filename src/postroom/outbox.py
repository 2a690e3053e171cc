"""The write side: compose the row, and write it in the caller's own transaction."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Literal, cast
from uuid import UUID

from sqlalchemy import Engine, MetaData

from .checks import (
    LONGEST_DELAY,
    RESERVED_PREFIX,
    class_name,
    delay_in,
    headers_in,
    id_in,
    moment_in,
    name_in,
    optional_name,
    refuse,
    short,
)
from .clock import Clock
from .connections import commits, function_for
from .connections.dialects import ddl
from .connections.fullness import Limit
from .connections.procedure import sync_engine
from .connections.writer import Row, Writer
from .duration import Duration, seconds
from .errors import ConfigurationError, InvalidMessage, PayloadTooLarge
from .message import (
    COPY_HEADER,
    IDEMPOTENCY_HEADER,
    LONGEST_NAME,
    NOTHING_HEADER,
    TASKS_TOPIC,
    TOMBSTONE,
    Message,
    new_id,
    slot_of,
)
from .routing import PerTopic, Routes
from .serialize import Serializer, encode, resolve
from .stores.pending import MOST_COUNTED
from .stores.schema import Tables, define_tables, prefix_of, tables_of

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

Order = Literal["key", "strict"]
OnFull = Literal["raise", "block"]
HeadersHook = Callable[[], Mapping[str, str] | None]

commits.listen()

MAX_PAYLOAD = 1024 * 1024

_NOTHING: Final[Any] = object()


class Outbox:
    """Writes messages in the caller's transaction: a message exists if and only if that transaction commits.

    Making one does no I/O, so it may be a module's global, made before a fork. `add` takes what the application already
    holds: a SQLAlchemy `Session` or `AsyncSession` (or a scoped one), where it needs no await and the rows are inserted
    right before commit, or a sync connection, where they are inserted at once. `add_async` takes async connections.

    `order="key"`: messages of one topic and key keep the order of commits among writers who lock what they change.
    `order="strict"`: they do so for all writers, and are numbered 1, 2, 3…, at the price of one writer per key at once.

    `max_pending`: if a relay has counted so many pending messages, `add` raises `OutboxFull`, or with `on_full="block"`
    waits up to `full_timeout` before it does. The number is a few seconds old, so that there may be more.

    `max_payload`: the largest payload in bytes, one for all or by globs on types and topics; None means any.
    `fan_out`: by globs on topics, further topics that get a copy of each message: `{"orders.*": ["audit.{topic}"]}`. A
    copy is a message of its own, with its own id, written with the other; each goes where its topic is routed, and
    waits for nothing but its own destination.

    `headers` is called at each `add` for default headers, as from context variables; the message's own win.
    `metadata` is where the tables are defined, so that Alembic sees them. `bind` says which database, for sessions with
    several. With `create_tables` they are created when the first message misses them. `clock` is for tests: time is the
    database's.
    """

    def __init__(
        self,
        name: str = "default",
        *,
        prefix: str | None = None,
        schema: str | None = None,
        metadata: MetaData | None = None,
        serializer: Serializer | str = "json",
        order: Order = "key",
        headers: HeadersHook | None = None,
        bind: Engine | AsyncEngine | None = None,
        max_payload: int | Mapping[str, int | None] | None = MAX_PAYLOAD,
        fan_out: Mapping[str, Sequence[str]] | None = None,
        max_pending: int | None = None,
        on_full: OnFull = "raise",
        full_timeout: Duration = "5s",
        dedupe_window: Duration = "7d",
        create_tables: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.prefix = prefix_of(name, prefix)
        self.order: Order = _known_order(order)
        self.serializer = resolve(serializer)
        self.max_payload = _payload_limits(max_payload)
        self._taken_by_destinations: Routes[int | None] | None = None
        self._fan_out = _fan_out(fan_out)
        self.max_pending = max_pending
        self.dedupe_window = _window(dedupe_window)
        self.clock = clock
        self.tables: Tables = (
            tables_of(self.prefix, schema)
            if metadata is None
            else define_tables(metadata, prefix=self.prefix, schema=schema)
        )
        self.schema = self.tables.hot.schema  # which may be that of the metadata
        self._default_headers = headers
        self._writer = Writer(
            name=name,
            tables=self.tables,
            strict=self.order == "strict",
            dedupe_window=self.dedupe_window,
            create_tables=create_tables,
            clock=clock,
            bind=sync_engine(bind),
            limit=_limit(max_pending, on_full, full_timeout),
        )

    def __repr__(self) -> str:
        return f"Outbox({self.name!r}, prefix={self.prefix!r}, order={self.order!r})"

    # --- add

    def add(
        self,
        connection: Any,
        topic: str | Message,
        payload: Any = _NOTHING,
        *,
        key: str | None = None,
        type: str | None = None,
        headers: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
        deliver_at: datetime | None = None,
        delay: Duration | None = None,
        expires_at: datetime | None = None,
        content_type: str | None = None,
        id: str | UUID | None = None,
    ) -> Message:
        """Write one message in the transaction of `connection`: a topic and options, or a `Message` that has them all.

        Returns the message as it is written: `payload` is the serialised bytes, and what happens to the caller's object
        afterwards does not matter; `content_type`, `id`, `slot` and the default headers are filled in. A `Message` that
        was handed over stays as it was, but for `duplicate`, `sequence` and `generation`, which are set on both: at
        once on a connection, at commit on a session.

        Raises `InvalidMessage` and `OutboxFull` (nothing is written), `NoTransactionError`, `UnsupportedConnection`,
        `TablesMissing`, and the database's own errors as they are. On a session, what only the database knows is raised
        at commit.
        """
        write = function_for(connection, "write")
        row = self._row_from(
            topic, payload, key=key, type=type, headers=headers, idempotency_key=idempotency_key,
            deliver_at=deliver_at, delay=delay, expires_at=expires_at, content_type=content_type, id=id,
        )  # fmt: skip
        write(connection, self._writer, self._with_copies([row]))
        return row.message

    def add_many(self, connection: Any, messages: Iterable[Message]) -> list[Message]:
        """Write several messages with one insert. All of them are checked before any is written."""
        write = function_for(connection, "write")
        rows = [self._row_of(message) for message in messages]
        if rows:
            write(connection, self._writer, self._with_copies(rows))
        return [row.message for row in rows]

    async def add_async(
        self,
        connection: Any,
        topic: str | Message,
        payload: Any = _NOTHING,
        *,
        key: str | None = None,
        type: str | None = None,
        headers: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
        deliver_at: datetime | None = None,
        delay: Duration | None = None,
        expires_at: datetime | None = None,
        content_type: str | None = None,
        id: str | UUID | None = None,
    ) -> Message:
        """`add` for async connections."""
        write = function_for(connection, "write_async")
        row = self._row_from(
            topic, payload, key=key, type=type, headers=headers, idempotency_key=idempotency_key,
            deliver_at=deliver_at, delay=delay, expires_at=expires_at, content_type=content_type, id=id,
        )  # fmt: skip
        await write(connection, self._writer, self._with_copies([row]))
        return row.message

    async def add_many_async(self, connection: Any, messages: Iterable[Message]) -> list[Message]:
        """`add_many` for async connections."""
        write = function_for(connection, "write_async")
        rows = [self._row_of(message) for message in messages]
        if rows:
            await write(connection, self._writer, self._with_copies(rows))
        return [row.message for row in rows]

    # --- again

    def resend(self, connection: Any, messages: Message | Iterable[Message]) -> list[Message]:
        """Write messages once more that were written before. Each keeps its id, so that an inbox drops it where it
        arrived, and is counted as one more replay, so that no broker drops it for its id.

        The next time, give what this has returned, which is counted. It goes to its own topic alone, at once, without
        an idempotency key; and not from an outbox with `order="strict"`, where it would be given a new number.
        """
        write = function_for(connection, "write", "outbox.resend")
        rows = self._rows_again(messages)
        if rows:
            write(connection, self._writer, rows)
        return [row.message for row in rows]

    async def resend_async(self, connection: Any, messages: Message | Iterable[Message]) -> list[Message]:
        """`resend` for async connections."""
        write = function_for(connection, "write_async", "outbox.resend")
        rows = self._rows_again(messages)
        if rows:
            await write(connection, self._writer, rows)
        return [row.message for row in rows]

    # --- tables

    def create_tables(self, connection: Any) -> None:
        """Create what is missing of the tables, through an engine or in a connection's transaction."""
        function_for(connection, "create")(connection, self._writer)

    async def create_tables_async(self, connection: Any) -> None:
        """`create_tables` for async engines and connections."""
        await function_for(connection, "create_async")(connection, self._writer)

    def ddl(self, dialect: str = "sqlite") -> str:
        """The SQL that `create_tables` would execute."""
        return ddl(dialect, lambda known: known.create(self.tables))

    # --- the doorbell within one process

    def on_commit(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call back, on whatever thread, after each commit of a session, or of Django's `atomic`, that wrote messages
        here. Other commits are not seen. Returns a function that ends it."""
        return self._writer.on_commit(callback)

    # --- composing

    def _row_from(self, topic: str | Message, payload: Any, **options: Any) -> Row:
        if not isinstance(topic, Message):
            return self._compose(topic, None if payload is _NOTHING else payload, **options)
        given = [name for name, value in options.items() if value is not None]
        if payload is not _NOTHING:
            given.append("payload")
        if given:
            raise InvalidMessage(
                f"a Message and {', '.join(sorted(given))} were given: write it all into the Message, or give a topic"
            )
        return self._row_of(topic)

    def _row_of(self, message: Message) -> Row:
        if not isinstance(cast(object, message), Message):
            refuse("message", message, f"is a {class_name(message)}", "give postroom.Message objects")
        return self._compose_from(message, given=message)

    def _rows_again(self, messages: Message | Iterable[Message]) -> list[Row]:
        if self.order == "strict":
            raise ConfigurationError(
                f"outbox {self.name!r} has order='strict': what is sent again would be given a new number, and be "
                "taken for a new message; use an outbox with order='key'"
            )
        return [self._row_again(message) for message in listed(messages)]

    def _row_again(self, message: Message) -> Row:
        """Neither asked for its headers nor for its size again: it passed once."""
        if not isinstance(cast(object, message), Message):
            refuse("message", message, f"is a {class_name(message)}", "give postroom.Message objects")
        own = {name: value for name, value in message.headers.items() if not name.startswith(RESERVED_PREFIX)}
        payload = TOMBSTONE if NOTHING_HEADER in message.headers else message.payload
        plain = replace(message, payload=payload, headers=own, idempotency_key=None, delay=None, deliver_at=None)
        row = self._compose_from(plain, again=True)
        row.message.replays = message.replays + 1
        return row

    def _compose_from(self, message: Message, *, given: Message | None = None, again: bool = False) -> Row:
        return self._compose(
            message.topic, message.payload, key=message.key, type=message.type, headers=message.headers,
            idempotency_key=message.idempotency_key, deliver_at=message.deliver_at, delay=message.delay,
            expires_at=message.expires_at, content_type=message.content_type, id=message.id, given=given, again=again,
        )  # fmt: skip

    def _compose(
        self,
        topic: str,
        payload: Any,
        *,
        key: str | None,
        type: str | None,
        headers: Mapping[str, str] | None,
        idempotency_key: str | None,
        deliver_at: datetime | None,
        delay: Duration | None,
        expires_at: datetime | None,
        content_type: str | None,
        id: str | UUID | None,
        given: Message | None = None,
        again: bool = False,
    ) -> Row:
        own = headers_in("headers", headers) if again else self._headers(headers)
        key = optional_name("key", key, "use None for no order")
        idempotency_key = optional_name("idempotency_key", idempotency_key)
        known_id = None if id is None else id_in(id)
        topic, type = name_in("topic", topic), optional_name("type", type)
        data, content_type = encode(payload, self.serializer, content_type)
        if not again:
            self._check_size(data, topic, type)
        if payload is TOMBSTONE:
            own = {**own, NOTHING_HEADER: "1"}
        unique = new_id() if known_id is None else known_id
        message = Message(
            topic=topic,
            payload=data,
            key=key,
            type=type,
            headers=own,
            id=unique,
            content_type=name_in("content_type", content_type),
            idempotency_key=idempotency_key,
            deliver_at=moment_in("deliver_at", deliver_at),
            delay=delay,
            expires_at=moment_in("expires_at", expires_at),
            slot=slot_of(key, unique),
        )
        stored = own if idempotency_key is None else {**own, IDEMPOTENCY_HEADER: idempotency_key}
        return self._row(message, stored, token=unique if known_id is None else new_id(), given=given)

    def _row(self, message: Message, headers: dict[str, str], *, token: str, given: Message | None) -> Row:
        row = Row(
            message=message,
            headers=headers,
            headers_text=json.dumps(headers, ensure_ascii=False, separators=(",", ":")) if headers else None,
            delay=self._delay(message),
            token=token,
            given=given,
        )
        if given is not None:  # it may be known from another time
            row.learn(duplicate=None, sequence=None, generation=None)
        return row

    def _with_copies(self, rows: list[Row]) -> list[Row]:
        """Each row, followed by those that go to further topics."""
        if self._fan_out is None:
            return rows
        return [copy for row in rows for copy in (row, *self._copies(row, self._fan_out))]

    def _copies(self, row: Row, fan_out: Routes[Sequence[str]]) -> Iterator[Row]:
        message = row.message
        if message.topic == TASKS_TOPIC:
            return
        for template in fan_out.target_for(message.topic) or ():
            topic, id = name_in("topic", template.format(topic=message.topic)), new_id()
            if topic == message.topic:
                continue
            self._check_size(message.payload, topic, message.type)
            headers = {**row.headers, COPY_HEADER: message.id}
            idempotency_key = None
            if message.idempotency_key is not None:  # or the copy would be a duplicate of what it is a copy of
                idempotency_key = headers[IDEMPOTENCY_HEADER] = _key_of_copy(message.idempotency_key, topic)
            copy = replace(message, topic=topic, id=id, slot=slot_of(message.key, id), idempotency_key=idempotency_key)
            yield self._row(copy, headers, token=id, given=None)

    def _headers(self, own: object) -> dict[str, str]:
        defaults = self._default_headers() if self._default_headers else None
        return {**headers_in("the headers hook's answer", defaults), **headers_in("headers", own)}

    def limit_payloads(self, limits: Mapping[str, int | None]) -> None:
        """By globs on topics: what their destinations take at most, in bytes. A relay that is given this outbox calls
        it, so that what could never be delivered is refused right away."""
        self._taken_by_destinations = Routes(limits)

    def _check_size(self, payload: bytes, topic: str, type: str | None) -> None:
        size = len(payload)
        limit = self.max_payload.value_for(topic, type)
        if limit is not None and size > limit:
            raise PayloadTooLarge(
                f"the payload for topic {short(topic)} has {size} bytes, more than max_payload ({limit}); send a "
                "reference to the data instead, or raise Outbox(max_payload=…)"
            )
        limit = self._taken_by_destinations.target_for(topic) if self._taken_by_destinations else None
        if limit is not None and size > limit:
            raise PayloadTooLarge(
                f"the payload for topic {short(topic)} has {size} bytes, and where it is to go takes {limit} at most; "
                "send a reference to the data instead"
            )

    def _delay(self, message: Message) -> float | None:
        if message.expires_at is not None and self.order == "strict" and message.key is not None:
            raise InvalidMessage(
                "expires_at cannot be used with order='strict': an expired message would leave a gap in its key's "
                "numbers, and whoever counts them would wait for it; use an outbox with order='key'"
            )
        if message.deliver_at is None and message.delay is None:
            return None
        if message.deliver_at is not None and message.delay is not None:
            refuse("delay", message.delay, "came together with deliver_at", "give one of them")
        if self.order == "strict":
            raise InvalidMessage(
                "deliver_at and delay cannot be used with order='strict': a number is taken now, and would hold up its "
                "key until then; use an outbox with order='key' for delayed messages"
            )
        return None if message.delay is None else delay_in(message.delay)


def listed(messages: Message | Iterable[Message]) -> Iterable[Message]:
    return [messages] if isinstance(messages, Message) else messages


def _payload_limits(given: int | Mapping[str, int | None] | None) -> PerTopic[int | None]:
    return PerTopic(MAX_PAYLOAD, given) if isinstance(given, Mapping) else PerTopic(given)


def _fan_out(given: Mapping[str, Sequence[str]] | None) -> Routes[Sequence[str]] | None:
    if not given:
        return None
    for glob, topics in given.items():
        if isinstance(topics, str) or not all(_is_template(topic) for topic in topics):
            raise ConfigurationError(
                f"fan_out[{glob!r}] is {topics!r}; give a list of topics, in which {{topic}} stands for the message's "
                "own, such as ['audit.{topic}']"
            )
    return Routes(given)


def _is_template(text: object) -> bool:
    try:
        return isinstance(text, str) and "" != text.format(topic="topic") != "topic"
    except (LookupError, ValueError, AttributeError):
        return False


def _key_of_copy(key: str, topic: str) -> str:
    whole = f"{key}#{topic}"
    return whole if len(whole) <= LONGEST_NAME else sha256(whole.encode()).hexdigest()


def _known_order(order: object) -> Order:
    if order not in ("key", "strict"):
        raise ConfigurationError(f"order={order!r} is not known; choose 'key' or 'strict'")
    return order


def _limit(max_pending: object, on_full: object, full_timeout: Duration) -> Limit | None:
    if on_full not in ("raise", "block"):
        raise ConfigurationError(f"on_full={on_full!r} is not known; choose 'raise' or 'block'")
    timeout = seconds(full_timeout, name="full_timeout")
    if max_pending is None:
        return None
    if not isinstance(max_pending, int) or isinstance(max_pending, bool) or not 0 < max_pending < MOST_COUNTED:
        raise ConfigurationError(
            f"max_pending={max_pending!r} must be a whole number from 1 to {MOST_COUNTED - 1}: relays count no further"
        )
    return Limit(most=max_pending, blocks=on_full == "block", timeout=timeout)


def _window(dedupe_window: Duration) -> float:
    length = seconds(dedupe_window, name="dedupe_window")
    if not 0 < length <= LONGEST_DELAY:
        raise ConfigurationError(f"dedupe_window={dedupe_window!r} must be longer than nothing, and at most 100 years")
    return length
