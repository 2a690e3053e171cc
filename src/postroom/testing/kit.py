"""What a test of an application needs: deliver now, look at what was added and delivered, move the time, fail."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager, nullcontext
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from ..clock import Clock, SystemClock
from ..duration import Duration, seconds, spell
from ..errors import ConfigurationError, SerializationError, StoreUnavailable, TablesMissing
from ..events import Delivered, Event
from ..message import Message
from ..outbox import Outbox
from ..ports import Entry, Observer, Query, Store
from ..relay import Relay, Report
from ..serialize import encode
from ..stores.memory import MemoryStore, MemoryTransaction
from .blocking import wait_for
from .clock import FakeClock, TravelClock
from .recorder import Failing, Pattern, RecordedMessage, Recorder
from .stores import Place, has_own_time, messages_within, store_at

MOST = 100_000
"""Messages that a test is expected to have in its outbox at most."""
SHOWN = 20
"""Messages that the text of a failure lists."""

_ANY: Final[Any] = object()


class Added(NamedTuple):
    """A message that was added, and what has become of it."""

    state: str
    message: RecordedMessage


class Witness:
    """An observer that keeps what was delivered, wherever it went: tasks are delivered to nobody but themselves."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def notice(self, event: Event) -> None:
        if isinstance(event, Delivered):
            self.messages += event.messages


class PostroomKit:
    """One outbox under test: nothing is delivered until `drain`, and then into a list.

    `outbox` is the application's own; `store` says where it is: an engine, a URL or a `Store`. Without them both are
    made, in memory. Everything else is for the relay: settings by name, such as `retry="1s, 5s"`, observers, tasks.

    Until `close`, or the end of a `with` block, the outbox and the relay use the kit's clock, which `travel` moves. It
    is the system's, but stands still during a `drain`. A `Store` keeps its own time: give the `FakeClock` or
    `TravelClock` that it was made with as `clock`, or do not travel.
    """

    def __init__(
        self,
        outbox: Outbox | None = None,
        store: Place = "memory:",
        *,
        clock: FakeClock | TravelClock | None = None,
        observers: Sequence[Observer] = (),
        **settings: Any,
    ) -> None:
        self.outbox = outbox or Outbox()
        self.clock = clock or _clock_of(self.outbox) or (None if has_own_time(store) else TravelClock())
        used: Clock = self.clock or SystemClock()
        self.store: Store = store_at(store, self.outbox, used)
        self.recorder, self._witness = Recorder(), Witness()
        with ExitStack() as stack:
            stack.enter_context(_lent(self.outbox, self.clock))
            self.relay = Relay(
                self.store,
                self.recorder,
                outbox=self.outbox,
                observers=[self._witness, *observers],
                clock=used,
                **settings,
            )
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Give the outbox its own time back."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def transaction(self) -> AbstractContextManager[MemoryTransaction]:
        """A transaction of the store in memory: committed at the end of the block, rolled back if it raises."""
        if isinstance(self.store, MemoryStore):
            return self.store.begin()
        raise ConfigurationError("this outbox is in a database: add with the application's own session or connection")

    # --- delivering

    def drain(self, *, timeout: Duration = "30s") -> Report:
        """Deliver everything that is due, and say what became of it. In async tests, await `drain_async`."""
        return wait_for(self.drain_async(timeout=timeout))

    async def drain_async(self, *, timeout: Duration = "30s") -> Report:
        """`drain` on the running loop. `TimeoutError` if it comes to no end, as when another relay has the slots."""
        limit, began = seconds(timeout, name="timeout"), time.monotonic()
        async with self._opened(create_tables=self.relay.settings.create_tables):
            with self._standing_still():
                report = await self.relay.drain(timeout=limit)
        if time.monotonic() - began >= limit:
            raise TimeoutError(f"the drain did not end within {spell(limit)}: does another relay deliver this outbox?")
        return report

    @asynccontextmanager
    async def _opened(self, *, create_tables: bool) -> AsyncGenerator[None]:
        """A database that does not answer is an error at once: no test should wait for one."""
        try:
            await self.store.open(create_tables=create_tables)
        except StoreUnavailable as error:
            error.add_note("Is a transaction of the test still open? Commit it, or roll it back, first.")
            raise
        try:
            yield
        finally:
            await self.store.close()

    def _standing_still(self) -> AbstractContextManager[None]:
        return self.clock.standing_still() if isinstance(self.clock, TravelClock) else nullcontext()

    # --- what the destination answers

    def fail_next(
        self,
        n: int = 1,
        error: Failing | None = None,
        *,
        topic: str | None = None,
        type: str | None = None,
        key: str | None = None,
    ) -> None:
        """The next n attempts, to deliver messages that match, fail with this error (default: `MessageRejected`)."""
        self.recorder.fail_next(n, error, Pattern(topic=topic, type=type, key=key))

    def destination_down(self, error: Failing | None = None) -> None:
        """Nothing gets through until `destination_up`; no message is to blame."""
        self.recorder.go_down(error)

    def destination_up(self) -> None:
        self.recorder.come_up()

    # --- time

    def travel(self, duration: Duration) -> None:
        """Move the time on for due times, retries, holds, leases, expiry and idempotency keys. Then `drain`."""
        if self.clock is None:
            raise ConfigurationError(
                "this store has a time of its own: give PostroomKit a URL or an engine instead, or the FakeClock or "
                "TravelClock that the store was made with, as clock="
            )
        self.clock.advance(seconds(duration))

    # --- looking

    def published(
        self, *, topic: str | None = None, type: str | None = None, key: str | None = None
    ) -> list[RecordedMessage]:
        """What was delivered, in order; a message that was delivered twice is there twice. Globs for topic and type."""
        pattern = Pattern(topic=topic, type=type, key=key)
        return [message for message in self.recorder.messages if pattern.matches(message)]

    def added(
        self, *, topic: str | None = None, type: str | None = None, key: str | None = None
    ) -> list[RecordedMessage]:
        """What was committed, delivered or not, each once: first what was delivered, then the rest, oldest first."""
        pattern = Pattern(topic=topic, type=type, key=key)
        return [message for _, message in wait_for(self._added()) if pattern.matches(message)]

    def assert_added(
        self,
        *,
        topic: str | None = None,
        type: str | None = None,
        key: str | None = None,
        payload: Any = _ANY,
        count: int | None = None,
        within: Session | Connection | None = None,
    ) -> list[RecordedMessage]:
        """That such a message was committed, or exactly `count` of them; returns them. Delivered or not: both count.

        `payload` is what was given to `add`, or bytes. `within` is for tests that roll everything back in the end: look
        through this session or connection, at what only its transaction sees.
        """
        __tracebackhide__ = True
        pattern = Pattern(topic=topic, type=type, key=key)
        everything = wait_for(self._added()) if within is None else self._added_within(within)
        found = [message for _, message in everything if pattern.matches(message) and self._says(message, payload)]
        if (not found) if count is None else len(found) != count:
            raise AssertionError(_complaint(_spell(pattern, payload), count, len(found), everything))
        return found

    def assert_not_added(
        self,
        *,
        topic: str | None = None,
        type: str | None = None,
        key: str | None = None,
        payload: Any = _ANY,
        within: Session | Connection | None = None,
    ) -> None:
        """That no such message was committed."""
        __tracebackhide__ = True
        self.assert_added(topic=topic, type=type, key=key, payload=payload, count=0, within=within)

    def _added_within(self, transaction: Session | Connection) -> list[Added]:
        found = messages_within(transaction, self.outbox)
        return [Added(state, RecordedMessage.of(message)) for state, message in found]

    async def _added(self) -> list[Added]:
        messages = (*self.recorder.messages, *map(RecordedMessage.of, self._witness.messages))
        delivered = {message.id: Added("delivered", message) for message in messages}
        rest = [Added(entry.state, RecordedMessage.of(entry.message)) for entry in await self._entries()]
        return [*delivered.values(), *(each for each in rest if each.message.id not in delivered)]

    async def _entries(self) -> list[Entry]:
        try:
            async with self._opened(create_tables=False):
                return await self.store.entries(Query(limit=MOST))
        except TablesMissing:
            return []

    def _says(self, message: RecordedMessage, payload: Any) -> bool:
        if payload is _ANY:
            return True
        try:
            if message.json() == payload:
                return True
        except ValueError:
            pass
        try:
            return message.payload == encode(payload, self.outbox.serializer, None)[0]
        except SerializationError:
            return False


# --- the outbox's clock


def _clock_of(outbox: Outbox) -> FakeClock | TravelClock | None:
    return outbox.clock if isinstance(outbox.clock, FakeClock | TravelClock) else None


@contextmanager
def _lent(outbox: Outbox, clock: Clock | None) -> Generator[None]:
    """The outbox writes by this clock, until the end; and forgets what the kit's relay told it."""
    writer = outbox._writer  # pyright: ignore[reportPrivateUsage]
    limits = outbox._taken_by_destinations  # pyright: ignore[reportPrivateUsage]
    before = outbox.clock
    _set_clock(outbox, writer, clock or before)
    try:
        yield
    finally:
        _set_clock(outbox, writer, before)
        outbox._taken_by_destinations = limits  # pyright: ignore[reportPrivateUsage]


def _set_clock(outbox: Outbox, writer: Any, clock: Clock | None) -> None:
    outbox.clock = writer.clock = clock
    writer._statements.clear()  # they differ with and without a clock


# --- texts of failures


def _spell(pattern: Pattern, payload: Any) -> str:
    given = [str(pattern), "" if payload is _ANY else f"payload={payload!r}"]
    return ", ".join(text for text in given if text) or "anything"


def _complaint(wanted: str, count: int | None, found: int, everything: list[Added]) -> str:
    if count == 0:
        opening = f"{found} with {wanted}, where there should be none"
    elif count is None:
        opening = f"no message with {wanted} was added"
    else:
        opening = f"{found} with {wanted}, where there should be {count}"
    if not everything:
        return f"{opening}; nothing was added at all: was the transaction committed, and is this its database?"
    lines = "\n".join(f"  {line}" for line in _table(everything[:SHOWN]))
    rest = f"\n  … and {len(everything) - SHOWN} more" if len(everything) > SHOWN else ""
    return f"{opening}; what was added:\n{lines}{rest}"


def _table(added: Iterable[Added]) -> list[str]:
    rows = [("state", "topic", "key", "type", "payload"), *(_cells(each) for each in added)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return ["  ".join([*(f"{cell:{width}}" for cell, width in zip(row, widths, strict=False)), row[4]]) for row in rows]


def _cells(added: Added) -> tuple[str, str, str, str, str]:
    state, message = added
    text = bytes(message.payload).decode(errors="replace")
    return state, message.topic, message.key or "-", message.type or "-", text if len(text) <= 80 else f"{text[:79]}…"
