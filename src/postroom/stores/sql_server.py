"""What stores on database servers share: many writers at once, and a network in between."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Any, Generic, TypeVar

from sqlalchemy import URL, ClauseElement, ColumnElement, Integer, literal_column, make_url, select
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as SQLAlchemyTimeout
from sqlalchemy.ext.asyncio import AsyncConnection

from ..clock import Clock
from ..errors import ConfigurationError, MissingExtra, StoreError
from ..message import Message
from ..ports import Due, Fetched, Glance, Hold, Range, Settled, Settlement
from ..redact import redact
from .drivers import Drivers
from .limits import limited
from .schema import db_now
from .sql import Rows, uninterrupted
from .sql_claiming import ClaimingStore
from .sql_claims import Claim, Wanted
from .sql_read import is_releasing
from .sql_rows import read_moment
from .sql_settle import is_delivered
from .sql_tend import first_times, move_due
from .sql_transaction import SqlDialect, Transaction
from .stragglers import Evidence, Stragglers, Writer

T = TypeVar("T")

CONNECT_TIMEOUT = 10.0
STATEMENT_TIMEOUT = 30.0

IDLE_TIMEOUT = 5
"""Seconds after which the server ends a transaction in which nothing happens: its relay is frozen, and must not keep
the others waiting."""

EXTRAS = {"asyncpg": "postgres", "asyncmy": "mysql"}
"""Where the name of the extra is not that of the driver."""

STALE_AFTER = 1.0
"""Seconds after which it is asked again whether known writers are still there."""


class ServerStore(ClaimingStore, Generic[Evidence]):
    """Subclasses say how to connect, how to ask who is writing, and how to read."""

    drivers: Mapping[str, str]
    """What a URL may begin with, and what that means to SQLAlchemy: an application gives us the one that it has."""
    parameters: Mapping[str, Mapping[str, str | None]]
    """By driver: what parameters of others' URLs are called there; None for what a store sets by itself."""

    ask_interval: float
    """Seconds between asks while there is something new."""
    ask_distance: int
    """After so many new positions it is asked even sooner."""

    def __init__(
        self,
        url: str,
        *,
        name: str = "default",
        prefix: str | None = None,
        schema: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(url, name=name, prefix=prefix, schema=schema, clock=clock)
        self._driver_url = self._choose_driver(url)
        self._drivers = Drivers(self._connect_driver, self._end_driver, self._is_closed)
        self._stragglers = Stragglers[Evidence]()
        self._asked_at = 0.0
        self._is_asking = False

    # --- connections

    @property
    def _driver(self) -> str:
        return self._driver_url.get_driver_name()

    def _choose_driver(self, text: str) -> URL:
        try:
            url = make_url(text)
        except ArgumentError as error:
            raise ConfigurationError(f"{redact(text)!r} is not the URL of a database") from error
        name = self.drivers.get(url.drivername, url.drivername)
        if name not in self.drivers.values():
            known = ", ".join(sorted(set(self.drivers.values())))
            raise ConfigurationError(f"{redact(text)}: a relay needs an asynchronous driver, one of {known}")
        names = self.parameters.get(url.set(drivername=name).get_driver_name(), {})
        query = {names.get(each) or each: value for each, value in url.query.items() if names.get(each, each)}
        return url.set(drivername=name, query=query)

    async def open(self, *, claim: str | None = None, create_tables: bool = True) -> None:
        try:
            await super().open(claim=claim, create_tables=create_tables)
        except TypeError as error:
            if "keyword argument" not in str(error):
                raise
            raise ConfigurationError(
                f"{self._shown_url}: a parameter of this URL is not one of {self._driver}'s: {error}; leave it out, or "
                f"name another driver ({', '.join(sorted(set(self.drivers.values())))})"
            ) from error
        self._forget_writers()  # the tables may be others than before

    def _forget_writers(self) -> None:
        self._stragglers = Stragglers[Evidence]()

    async def _connect(self, create_tables: bool) -> None:
        self._drivers = Drivers(self._connect_driver, self._end_driver, self._is_closed)
        try:
            await super()._connect(create_tables)
        except ModuleNotFoundError as error:
            extra = EXTRAS.get(self._driver, self._driver)
            raise MissingExtra(
                f"{self._shown_url} needs the library {error.name!r}, which is not installed: "
                f"pip install 'postroom[{extra}]'"
            ) from error

    async def _disconnect(self) -> None:
        self._drivers.close()
        await super()._disconnect()

    async def _try(self, write: bool, work: Callable[[Transaction], T]) -> T:
        sessions: list[Any] = []

        def note_session(transaction: Transaction) -> T:
            sessions.append(transaction.connection.connection.driver_connection)
            return work(transaction)

        def hang_up() -> None:
            for session in sessions:
                self._end_driver(session)

        return await limited(super()._try(write, note_session), STATEMENT_TIMEOUT, hang_up)

    @asynccontextmanager
    async def _begin(self, write: bool) -> AsyncGenerator[AsyncConnection]:
        """A session on which something failed is not used again: it may have rights and settings of before."""
        async with super()._begin(write) as connection:
            try:
                yield connection
            except DBAPIError as error:
                if not self.dialect.is_conflict(error.orig or error):
                    await connection.invalidate(error)
                raise

    def _goes_past_sqlalchemy(self) -> bool:
        return True

    async def _driver_rows(self, sql: str, parameters: Any) -> Rows:
        if not self._goes_past_sqlalchemy():
            return await super()._driver_rows(sql, parameters)
        return await self._past_sqlalchemy(lambda connection: self._run_on(connection, sql, parameters))

    async def _driver_changed(self, sql: str, parameters: Any) -> int:
        if not self._goes_past_sqlalchemy():
            return await self._write(
                lambda transaction: transaction.connection.exec_driver_sql(sql, parameters).rowcount
            )
        return await self._past_sqlalchemy(lambda connection: self._change_on(connection, sql, parameters))

    async def _past_sqlalchemy(self, work: Callable[[Any], Awaitable[T]]) -> T:
        async def attempt() -> T:
            async with asyncio.timeout(STATEMENT_TIMEOUT), self._drivers.borrow() as connection:
                return await work(connection)

        with self._errors_translated():
            return await self._insist(attempt)

    async def _change(self, name: object, statement: Callable[[], ClauseElement], **values: Any) -> int:
        """Run a statement of the hot path that changes rows; how many."""
        prepared = self._prepare(name, statement)
        return await self._driver_changed(prepared.sql, prepared.bind(values))

    @abstractmethod
    async def _connect_driver(self) -> Any:
        """A connection whose statements are transactions of their own, at READ COMMITTED."""

    @abstractmethod
    def _end_driver(self, connection: Any) -> None:
        """Let go of it, without waiting for anything."""

    @abstractmethod
    def _is_closed(self, connection: Any) -> bool:
        """Whether it knows that it has ended."""

    @abstractmethod
    async def _run_on(self, connection: Any, sql: str, parameters: Any) -> Rows:
        """Its rows."""

    @abstractmethod
    async def _change_on(self, connection: Any, sql: str, parameters: Any) -> int:
        """How many rows it changed."""

    # --- reading

    async def fetch(self, ranges: Sequence[Range], limit: int | None = None) -> Fetched:
        if not ranges:
            return Fetched([], 0, await self._now())
        await self._ask_if_due()
        stragglers = self._stragglers
        reading = stragglers.begin(asked.slot for asked in ranges)
        try:
            evidence, now, messages = await self._read_slots(
                looking_again(ranges, reading.lows), limit, reading.writers
            )
            # What is read again is read later, and may show that yet another writer is over.
            while (floor := stragglers.end(reading, _highest(messages), evidence)) is not None:
                lower = looking_again(ranges, dict.fromkeys(reading.lows, floor))
                evidence, late = await self._read_stragglers(having_read(lower, messages), reading.writers)
                messages = in_order([*messages, *late])
        except BaseException:
            stragglers.give_up(reading)
            raise
        return Fetched(messages, stragglers.horizon(reading), self._clock.now() if self._clock else now)

    async def claim_hot(self, claim: Claim, wanted: Wanted) -> Fetched:
        await self._ask_if_due()
        stragglers = self._stragglers
        reading = stragglers.begin(wanted.slots)
        try:
            fetched = await self._claim_hot(claim, wanted)
        except BaseException:
            stragglers.give_up(reading)
            raise
        stragglers.highest = max(stragglers.highest, _highest(fetched.messages))
        return fetched._replace(horizon=stragglers.horizon(reading))

    async def glance(self, ranges: Sequence[Range]) -> Glance:
        if not ranges:
            return Glance(())
        doubtful = {asked.slot for asked in ranges if self._stragglers.may_have_come(asked.slot, asked.after)}
        return Glance(await self._look(ranges), doubtful)

    @property
    def expects_stragglers(self) -> bool:
        return bool(self._stragglers.writers)

    async def _ask_if_due(self) -> None:
        """One at a time: answers that overtake each other would tell of writers that are over, and hide new ones."""
        if self._is_asking or not self._must_ask():
            return
        self._is_asking, self._asked_at = True, time.monotonic()
        try:
            await self._ask()
        finally:
            self._is_asking = False

    def _must_ask(self) -> bool:
        ago, stragglers = time.monotonic() - self._asked_at, self._stragglers
        if ago >= STALE_AFTER and stragglers.writers:
            return True
        return stragglers.highest - stragglers.covered >= (1 if ago >= self.ask_interval else self.ask_distance)

    @abstractmethod
    async def _ask(self) -> None:
        """Find out who is writing, and tell the stragglers."""

    @abstractmethod
    async def _read_slots(
        self, ranges: Sequence[Range], limit: int | None, writers: Sequence[Writer[Evidence]]
    ) -> tuple[Any, datetime, list[Message]]:
        """What tells which of the writers is over, the time, and the rows of the ranges in order: new ones, and all
        above `low`."""

    @abstractmethod
    async def _read_stragglers(
        self, ranges: Sequence[Range], writers: Sequence[Writer[Evidence]]
    ) -> tuple[Any, list[Message]]:
        """What tells which of the writers is over, and all rows above `low` and not above `after`."""

    # --- looking: asked often, and seldom with something to do, so with one statement each and no transaction

    async def due(self, slots: Sequence[int], limit: int) -> Due:
        leases, values = self.tables.leases, self._slot_values(slots)
        prepared = self._prepare(
            ("due", len(values)),
            lambda: first_times(self.tables, self._is_among(leases.c.slot, len(values))).add_columns(db_now()),
        )
        rows = await self._driver_rows(prepared.sql, prepared.bind(values)) if slots else ()
        moments = [[read_moment(value) for value in row] for row in rows]
        times = [time for *row, _ in moments for time in row if time is not None]
        now = self._clock.now() if self._clock else next((row[-1] for row in moments), None)
        if now is None or not times:
            return Due(0, None)
        wait = (min(times) - now).total_seconds()
        return Due(0, wait) if wait > 0 else await self._write(move_due, slots, limit)

    async def releasing(self, slots: Sequence[int]) -> list[Hold]:
        holds, values = self.tables.holds, self._slot_values(slots)
        there = select(holds.c.slot).where(is_releasing(self.tables)).limit(literal_column("1", Integer))
        prepared = self._prepare(
            ("releasing", len(values)), lambda: there.where(self._is_among(holds.c.slot, len(values)))
        )
        is_any = slots and await self._driver_rows(prepared.sql, prepared.bind(values))
        return await super().releasing(slots) if is_any else []

    @abstractmethod
    def _slot_values(self, slots: Sequence[int]) -> dict[str, Any]:
        """The values of a statement about these slots."""

    @abstractmethod
    def _is_among(self, slot: ColumnElement[int], count: int) -> ColumnElement[bool]:
        """Whether it is one of those in so many values."""

    # --- settling

    async def settle(self, settlement: Settlement) -> Settled:
        settled = await self._settle(settlement)
        with suppress(StoreError):  # which the next read will say
            await self._ask_if_due()  # now, and not before the next message, which shall not wait for it
        return settled

    async def _settle(self, settlement: Settlement) -> Settled:
        if is_delivered(settlement) and await self._settle_hot(settlement):
            return Settled()
        # Not all there was to do: settling them again in full does the rest.
        return await super().settle(settlement)

    async def _settle_hot(self, settlement: Settlement) -> bool:
        """Settle delivered messages in one statement; whether that was all there was to do."""
        if settlement.retention is not None:
            return False
        positions = sorted(message.position for message in settlement.delivered)
        return await uninterrupted(self._delete_hot(positions)) == len(positions)

    @abstractmethod
    async def _delete_hot(self, positions: Sequence[int]) -> int:
        """Delete the rows at these positions, none of them if one holds its key; how many."""


class ServerDialect(SqlDialect):
    @property
    def driver_errors(self) -> tuple[type[Exception], ...]:
        return (OSError, TimeoutError, SQLAlchemyTimeout)

    def is_unavailable(self, error: BaseException) -> bool:
        return isinstance(error, (OSError, TimeoutError, SQLAlchemyTimeout))


def looking_again(ranges: Sequence[Range], lows: Mapping[int, int]) -> list[Range]:
    return [asked._replace(low=max(asked.low, lows[asked.slot])) for asked in ranges]


def having_read(ranges: Sequence[Range], messages: Sequence[Message]) -> list[Range]:
    reached = {message.slot: message.position for message in messages}
    return [asked._replace(after=max(asked.after, reached.get(asked.slot, 0))) for asked in ranges]


def _highest(messages: Sequence[Message]) -> int:
    """They are in order."""
    return messages[-1].position if messages else 0


def in_order(messages: Sequence[Message]) -> list[Message]:
    """By position, each once."""
    found = {message.position: message for message in messages}
    return [found[position] for position in sorted(found)]
