"""The consumer's side: whether a message is here for the first time, decided in the consumer's own transaction."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

from sqlalchemy import Engine, MetaData

from ..checks import name_in, refuse, short
from ..clock import Clock
from ..connections import function_for
from ..connections.dialects import ddl
from ..connections.keeper import Keeper
from ..connections.procedure import sync_engine
from ..connections.requests import Census, Clean, Consumer, FirstTime, Gap, Mark, NoteSent, Sent, Turn
from ..duration import Duration, seconds
from ..errors import ConfigurationError, InvalidMessage, SequenceGap
from ..message import Message
from ..stores.inbox_schema import InboxTables, define_inbox_tables, inbox_tables_of
from ..stores.schema import prefix_of
from ..wire.received import Received
from .once import Handled, Handler, MakeSession, handled_once
from .replies import checked_replies, pack, unpack

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from ..outbox import Outbox

OnGap = Literal["raise", "accept"]

LONGEST_WINDOW = 100 * 365 * 86_400.0
MOST_FORGOTTEN = 1_000_000

logger = logging.getLogger("postroom.inbox")


class Inbox:
    """Remembers in the consumer's transaction which messages it has handled: what a message did, it does once.

    Making one does no I/O, so it may be a module's global, made before a fork. `first_time` takes what the application
    already holds: a SQLAlchemy `Session` or a sync connection; `first_time_async` takes `AsyncSession` and async
    connections. Both execute at once, in the transaction that the connection is in, or begins by itself.

    Each `consumer` has a memory of its own, so that several may handle the same message in one database.

    The tables are the inbox's own, named like an outbox's (`postroom_inbox`, `postroom_inbox_marks`), and created when
    the first call misses them, unless `create_tables` is False; MySQL needs them created before. `window` is how long
    `clean` leaves messages remembered: longer than a message may take to be delivered again. `metadata` is where the
    tables are defined, so that Alembic sees them. `bind` says which database, for sessions with several. `clock` is
    for tests: time is the database's.
    """

    def __init__(
        self,
        name: str = "default",
        *,
        prefix: str | None = None,
        schema: str | None = None,
        metadata: MetaData | None = None,
        bind: Engine | AsyncEngine | None = None,
        window: Duration = "30d",
        create_tables: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.prefix = prefix_of(name, prefix)
        self.window = _window(window)
        self.clock = clock
        self.tables: InboxTables = (
            inbox_tables_of(self.prefix, schema)
            if metadata is None
            else define_inbox_tables(metadata, prefix=self.prefix, schema=schema)
        )
        self.schema = self.tables.inbox.schema  # which may be that of the metadata
        self._keeper = Keeper(
            name=name, tables=self.tables, create_tables=create_tables, clock=clock, bind=sync_engine(bind)
        )

    def __repr__(self) -> str:
        return f"Inbox({self.name!r}, prefix={self.prefix!r})"

    # --- messages

    def first_time(self, connection: Any, message_id: str | UUID, *, consumer: str = "default") -> bool:
        """Whether this consumer has not handled the message yet. From now on it has, if the transaction commits.

        Another transaction that is handling it is waited for: False if it commits, True if it is rolled back. What was
        remembered stays so until `clean` forgets it, however old it is.

        Raises `InvalidMessage`, `NoTransactionError`, `UnsupportedConnection`, `TablesMissing`, and the database's own
        errors as they are.
        """
        return self._run(connection, "first_time", self._first_time(message_id, consumer))

    async def first_time_async(self, connection: Any, message_id: str | UUID, *, consumer: str = "default") -> bool:
        """`first_time` for `AsyncSession` and async connections."""
        return await self._run_async(connection, "first_time", self._first_time(message_id, consumer))

    # --- strict streams

    def in_turn(
        self, connection: Any, received: Received, *, consumer: str = "default", on_gap: OnGap = "raise"
    ) -> bool:
        """Whether it is this message's turn, in a stream of an outbox with `order="strict"`; then it is the last that
        was handled, if the transaction commits. One row for each topic and key remembers it, and is never cleaned.

        False for what was handled before, for what a later generation of numbers has left behind, and for a tombstone,
        which has nothing to handle. Of a key that was never seen, any number is the first.

        If numbers are missing before it, `SequenceGap` is raised and nothing changes; with `on_gap="accept"` that is
        logged, and it is handled. Others who handle the same key wait until the transaction ends.
        """
        turn = self._turn(received, consumer, on_gap)
        return self._decided(self._run(connection, "in_turn", turn), received, turn)

    async def in_turn_async(
        self, connection: Any, received: Received, *, consumer: str = "default", on_gap: OnGap = "raise"
    ) -> bool:
        """`in_turn` for `AsyncSession` and async connections."""
        turn = self._turn(received, consumer, on_gap)
        return self._decided(await self._run_async(connection, "in_turn", turn), received, turn)

    # --- handlers

    def once(
        self, *, consumer: str, session: MakeSession, strict: bool = False, replies: Outbox | None = None
    ) -> Callable[[Handler], Handled]:
        """Make a function `handler(received, session)`, sync or async, one that handles each message once.

        What is made takes a `Received`, opens `session()`, begins a transaction, and calls the handler if it is the
        first time; with `strict`, if it is its turn. If the handler returns, everything is committed and its result
        returned; if it raises, everything is rolled back, and the message may come again. For a duplicate, and for a
        tombstone, nothing is called, and None is returned.

        With `replies`, what the handler returns, a `Message` or several, is written to that outbox in the same
        transaction, and remembered. A duplicate has it sent again, with the same ids: whoever asks twice is answered
        twice, and what was asked for is done once.
        """
        consumer = name_in("consumer", consumer)
        return lambda handler: handled_once(
            self, handler, consumer=consumer, make_session=session, strict=strict, replies=replies
        )

    # --- replies

    def reply(
        self,
        connection: Any,
        message_id: str | UUID,
        messages: Message | Iterable[Message],
        *,
        outbox: Outbox,
        consumer: str = "default",
    ) -> list[Message]:
        """Write messages to the outbox, and remember them as sent for a message that this consumer handles, after
        `first_time` has said that it is the first. Both are in one database, and in one transaction."""
        replies = checked_replies(messages, outbox)
        before = self._handled(self._run(connection, "reply", self._sent(message_id, consumer)), message_id, consumer)
        written = outbox.add_many(connection, replies)
        self._run(connection, "reply", self._note_sent(message_id, consumer, [*before, *written]))
        return written

    async def reply_async(
        self,
        connection: Any,
        message_id: str | UUID,
        messages: Message | Iterable[Message],
        *,
        outbox: Outbox,
        consumer: str = "default",
    ) -> list[Message]:
        """`reply` for `AsyncSession` and async connections."""
        replies = checked_replies(messages, outbox)
        found = await self._run_async(connection, "reply", self._sent(message_id, consumer))
        before = self._handled(found, message_id, consumer)
        written = await outbox.add_many_async(connection, replies)
        await self._run_async(connection, "reply", self._note_sent(message_id, consumer, [*before, *written]))
        return written

    def reply_again(
        self, connection: Any, message_id: str | UUID, *, outbox: Outbox, consumer: str = "default"
    ) -> list[Message]:
        """Send once more what this consumer sent for a message that it has handled: see `Outbox.resend`. Nothing, if
        that was nothing, or has expired, or is forgotten."""
        replies = self._valid(self._run(connection, "reply_again", self._sent(message_id, consumer)))
        if not replies:
            return []
        written = outbox.resend(connection, replies)
        self._run(connection, "reply_again", self._note_sent(message_id, consumer, written))
        return written

    async def reply_again_async(
        self, connection: Any, message_id: str | UUID, *, outbox: Outbox, consumer: str = "default"
    ) -> list[Message]:
        """`reply_again` for `AsyncSession` and async connections."""
        replies = self._valid(await self._run_async(connection, "reply_again", self._sent(message_id, consumer)))
        if not replies:
            return []
        written = await outbox.resend_async(connection, replies)
        await self._run_async(connection, "reply_again", self._note_sent(message_id, consumer, written))
        return written

    # --- upkeep

    def clean(self, connection: Any, *, limit: int = 10_000) -> int:
        """Forget messages that were handled longer ago than the window: the oldest, and at most `limit`. How many is
        returned; if it is the limit, there may be more. The marks of strict streams are kept."""
        return self._run(connection, "clean", self._clean(limit))

    async def clean_async(self, connection: Any, *, limit: int = 10_000) -> int:
        """`clean` for `AsyncSession` and async connections."""
        return await self._run_async(connection, "clean", self._clean(limit))

    def status(self, connection: Any) -> list[Consumer]:
        """What is remembered for each consumer. It is counted, which takes its time if it is much."""
        return self._run(connection, "status", Census())

    async def status_async(self, connection: Any) -> list[Consumer]:
        """`status` for `AsyncSession` and async connections."""
        return await self._run_async(connection, "status", Census())

    # --- tables

    def create_tables(self, connection: Any) -> None:
        """Create what is missing of the tables, through an engine or in a connection's transaction."""
        function_for(connection, "create", "inbox.create_tables")(connection, self._keeper)

    async def create_tables_async(self, connection: Any) -> None:
        """`create_tables` for async engines and connections."""
        await function_for(connection, "create_async", "inbox.create_tables")(connection, self._keeper)

    def ddl(self, dialect: str = "sqlite") -> str:
        """The SQL that `create_tables` would execute."""
        return ddl(dialect, lambda known: known.create_inbox(self.tables))

    # --- asking

    def _run(self, connection: Any, call: str, request: Any) -> Any:
        return function_for(connection, "run", f"inbox.{call}")(connection, self._keeper, request)

    async def _run_async(self, connection: Any, call: str, request: Any) -> Any:
        return await function_for(connection, "run_async", f"inbox.{call}")(connection, self._keeper, request)

    def _first_time(self, message_id: object, consumer: str) -> FirstTime:
        return FirstTime(consumer=name_in("consumer", consumer), message_id=_id(message_id), clock=self.clock)

    def _sent(self, message_id: object, consumer: str) -> Sent:
        return Sent(consumer=name_in("consumer", consumer), message_id=_id(message_id))

    def _note_sent(self, message_id: object, consumer: str, messages: Sequence[Message]) -> NoteSent:
        return NoteSent(consumer=name_in("consumer", consumer), message_id=_id(message_id), text=pack(messages))

    def _handled(self, text: str | None, message_id: object, consumer: str) -> list[Message]:
        if text is None:
            raise InvalidMessage(
                f"message {message_id} is not one that consumer {short(consumer)} handles: ask first_time before, in "
                "the same transaction and for the same consumer"
            )
        return unpack(text)

    def _valid(self, text: str | None) -> list[Message]:
        now = datetime.now(UTC) if self.clock is None else self.clock.now()
        return [message for message in unpack(text or "") if message.expires_at is None or message.expires_at > now]

    def _turn(self, received: Received, consumer: str, on_gap: str) -> Turn:
        if on_gap not in ("raise", "accept"):
            raise ConfigurationError(f"on_gap={on_gap!r} is not known; choose 'raise' or 'accept'")
        if received.sequence is None or received.key is None:
            raise InvalidMessage(
                f"message {received.id} has no {'key' if received.key is None else 'sequence number'}: in_turn is for "
                "messages with a key from an outbox with order='strict'; use first_time"
            )
        if not received.topic:
            raise InvalidMessage(
                f"the topic of message {received.id} is unknown, and numbers are counted within a topic and key; say "
                "it with received(…, topic=…)"
            )
        return Turn(
            consumer=name_in("consumer", consumer),
            topic=name_in("topic", received.topic),
            key=name_in("key", received.key),
            message=Mark(received.generation or 0, received.sequence),
            leaps=on_gap == "accept",
            clock=self.clock,
        )

    def _decided(self, verdict: bool | Gap, received: Received, turn: Turn) -> bool:
        if isinstance(verdict, Gap):
            gap = (
                f"message {received.id} is number {received.sequence} of topic {short(turn.topic)} and key "
                f"{short(turn.key)}, and consumer {short(turn.consumer)} expects number {verdict.expected}"
            )
            if not turn.leaps:
                raise SequenceGap(
                    f"{gap}: wait for what is missing, or accept the gap with inbox.in_turn(…, on_gap='accept')",
                    expected=verdict.expected,
                    got=turn.message.sequence,
                )
            logger.warning("%s: what is missing is skipped", gap)
        return bool(verdict) and not received.is_tombstone

    def _clean(self, limit: object) -> Clean:
        if not isinstance(limit, int) or isinstance(limit, bool) or not 0 < limit <= MOST_FORGOTTEN:
            raise ConfigurationError(f"limit={limit!r} must be a whole number from 1 to {MOST_FORGOTTEN}")
        return Clean(window=self.window, limit=limit, clock=self.clock)


def _id(value: object) -> str:
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Received):
        refuse("message_id", value, "is a whole message", "give its id")
    return name_in("message_id", value, "without an id nothing can be told from anything else")


def _window(window: Duration) -> float:
    length = seconds(window, name="window")
    if not 0 < length <= LONGEST_WINDOW:
        raise ConfigurationError(f"window={window!r} must be longer than nothing, and at most 100 years")
    return length
