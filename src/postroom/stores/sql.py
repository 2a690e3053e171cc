"""What every SQL store shares: the port of `ports.Store` over a SQLAlchemy engine, one short transaction per method.

A database is a `SqlDialect` and a subclass that says how to connect. The work itself is done by plain functions over a
`Transaction`, in the files named `sql_…`.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar

from sqlalchemy import ClauseElement, Connection, Dialect, bindparam
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from ..clock import Clock
from ..errors import ConfigurationError, StoreError, StoreUnavailable, TablesMissing
from ..message import Message
from ..ports import (
    NO_LIMIT,
    Beat,
    Due,
    Entry,
    Fetched,
    Finding,
    Gate,
    Glance,
    Hold,
    Lease,
    Leases,
    Left,
    Place,
    Query,
    Range,
    RowStore,
    Settled,
    Settlement,
    Status,
    Store,
    Wakeup,
)
from ..redact import redact
from . import pending, sql_doctor, sql_leases, sql_read, sql_settle, sql_setup, sql_tend
from .schema import prefix_of, tables_of
from .sql_rows import Prepared, range_values, read_message, select_lowest, select_parked, select_ranges
from .sql_transaction import SqlDialect, Transaction

P = ParamSpec("P")
T = TypeVar("T")
Rows = Sequence[Sequence[Any]]

CLOSING_TIME = 2.0
"""Seconds for a goodbye."""
MOST_CONFLICTS = 3
"""How often a transaction that lost to another is tried again before the relay hears of it."""


class SqlStore(Store):
    """Subclasses say how to connect (`_create_engine`) and what is different (`dialect`)."""

    dialect: SqlDialect
    sweep_interval = 30.0
    may_miss_rows = False

    def __init__(
        self,
        url: str,
        *,
        name: str = "default",
        prefix: str | None = None,
        schema: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.tables = tables_of(prefix_of(name, prefix), schema)
        self._url = url
        self._shown_url = redact(url)
        self._clock = clock
        self._engine: AsyncEngine | None = None
        self._openings = 0
        self._prepared: dict[object, Prepared] = {}

    @abstractmethod
    def _create_engine(self) -> AsyncEngine:
        """Called by `open`, never before: nothing may connect before a process forks."""

    # --- open and close

    async def open(self, *, claim: str | None = None, create_tables: bool = True) -> None:
        """Once everything is there it only reads. Opening an open store checks again."""
        try:
            if self._engine is None:
                await self._connect(create_tables)
            await self._set_up(claim, create_tables)
        except BaseException:
            if self._openings == 0:
                await self._disconnect()
            raise
        self._openings += 1

    async def _set_up(self, claim: str | None, create_tables: bool) -> None:
        if not await self._read(sql_setup.is_set_up, create_tables):
            await self._write(sql_setup.set_up, create_tables)
        await self._read(sql_setup.check)
        if claim is not None and (await self._read(sql_setup.read_meta)).claim != claim:
            await self._write(sql_setup.set_claim, claim)

    async def close(self) -> None:
        self._openings = max(0, self._openings - 1)
        if self._openings == 0:
            await self._disconnect()

    async def _disconnect(self) -> None:
        engine, self._engine = self._engine, None
        self._prepared.clear()
        if engine is not None:
            with suppress(TimeoutError):  # what does not answer is left alone
                async with asyncio.timeout(CLOSING_TIME):
                    await engine.dispose()

    async def _connect(self, create_tables: bool) -> None:
        self._engine = self._create_engine()

    # --- transactions

    async def _read(self, work: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run the function in a transaction that only reads."""
        return await self._perform(False, lambda transaction: work(transaction, *args, **kwargs))

    async def _write(self, work: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._perform(True, lambda transaction: work(transaction, *args, **kwargs))

    async def _perform(self, write: bool, work: Callable[[Transaction], T]) -> T:
        with self._errors_translated():
            return await self._insist(lambda: self._try(write, work))

    async def _insist(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Whoever lost a deadlock, or came too late, tries again at once."""
        for _ in range(MOST_CONFLICTS):
            try:
                return await attempt()
            except (DBAPIError, *self.dialect.driver_errors) as error:
                if not self.dialect.is_conflict(getattr(error, "orig", None) or error):
                    raise
        return await attempt()

    async def _try(self, write: bool, work: Callable[[Transaction], T]) -> T:
        async with self._begin(write) as connection:
            return await connection.run_sync(lambda sync: work(self._transaction(sync)))

    @asynccontextmanager
    async def _begin(self, write: bool) -> AsyncGenerator[AsyncConnection]:
        async with self._opened().begin() as connection:
            yield connection

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[AsyncConnection]:
        """A connection of the store, in a transaction."""
        with self._errors_translated():
            async with self._begin(True) as connection:
                yield connection

    @asynccontextmanager
    async def transaction_apart(self, *, create: bool) -> AsyncGenerator[AsyncConnection]:
        """The same of a store that is not open, for tables that are not the outbox's: that has none here, perhaps.
        `create`: a database that is a file need not be there."""
        await self._connect(create)
        try:
            async with self.transaction() as connection:
                yield connection
        finally:
            await self._disconnect()

    def _transaction(self, connection: Connection) -> Transaction:
        return Transaction(connection, self.tables, self.dialect, self._clock)

    def _opened(self) -> AsyncEngine:
        return self._engine or self._refuse()

    def _refuse(self) -> NoReturn:
        raise StoreError(f"the store {self._shown_url} is not open: await store.open() first")

    # --- errors

    @contextmanager
    def _errors_translated(self) -> Generator[None]:
        """The one place where errors of SQLAlchemy and of the driver become ours."""
        try:
            yield
        except DBAPIError as error:
            raise self._translate(error.orig or error) from error
        except (SQLAlchemyError, *self.dialect.driver_errors) as error:
            raise self._translate(error) from error

    def _translate(self, error: BaseException) -> StoreError:
        if isinstance(error, TimeoutError) and not str(error):
            error = TimeoutError("no answer in time")
        told = f"{self._shown_url}: {_in_full(error)}"
        if self.dialect.is_unavailable(error):
            return StoreUnavailable(told)
        if self.dialect.is_table_missing(error):
            return TablesMissing(f"{told}; run 'postroom init'")
        return StoreError(told)

    # --- waking up

    def by_rows(self, relay: str) -> RowStore:
        raise ConfigurationError(
            f"claim='rows' needs row locks, which {self._shown_url} does not have: use claim='slots'"
        )

    @asynccontextmanager
    async def wakeup(self, poll_interval: float) -> AsyncGenerator[Wakeup]:
        yield Polling()

    async def glance(self, ranges: Sequence[Range]) -> Glance:
        return Glance(await self._read(sql_read.glance, ranges) if ranges else ())

    @property
    def expects_stragglers(self) -> bool:
        return False

    # --- leases

    async def renew(self, beat: Beat) -> Leases:
        return await self._write(sql_leases.renew, beat)

    async def acquire(self, relay: str, slots: Sequence[int], ttl: float) -> Mapping[int, Lease]:
        return await self._write(sql_leases.acquire, relay, slots, ttl)

    async def release(self, relay: str, epochs: Mapping[int, int], marks: Mapping[int, int], leave: bool) -> None:
        await self._write(sql_leases.release, relay, epochs, marks, leave)

    async def hand_over(self, relay: str, slot: int, epoch: int, mark: int, to: str, ttl: float) -> bool:
        return await self._write(sql_leases.hand_over, relay, slot, epoch, mark, to, ttl)

    async def who_knows(self, task: str | None = None) -> list[str]:
        return await self._read(sql_leases.who_knows, task)

    async def write_notes(
        self, relay: str, epochs: Mapping[int, int], notes: Mapping[int, str | None]
    ) -> frozenset[int]:
        return await self._write(sql_leases.write_notes, relay, epochs, notes)

    # --- the flow

    async def fetch(self, ranges: Sequence[Range], limit: int | None = None) -> Fetched:
        """With a `limit`, at most so many rows in all: those with the lowest positions.

        Slots that are read in step touch each page of the database once; read each at its own pace, they drift apart,
        and a batch of deletes writes as many pages as it has rows.
        """
        messages = await self._fetch(ranges, limit) if ranges else []
        return Fetched(messages, NO_LIMIT, await self._now())

    async def _fetch(self, ranges: Sequence[Range], limit: int | None) -> list[Message]:
        select_rows, count = select_ranges if limit is None else select_lowest, len(ranges)
        prepared = self._prepare((select_rows, count), lambda: select_rows(self.tables.hot, count))
        rows = await self._driver_rows(prepared.sql, prepared.bind({**range_values(ranges), "limit": limit}))
        return [read_message(row) for row in rows]

    async def fetch_heads(self, heads: Sequence[tuple[int, int]]) -> list[Message]:
        return await self._read(sql_read.fetch_heads, heads) if heads else []

    async def fetch_parked(self, gate: Gate, after: int, limit: int) -> list[Message]:
        parked = self.tables.parked
        is_behind = parked.c.behind == bindparam("behind") if gate.key is None else parked.c.key == bindparam("key")
        prepared = self._prepare("topic" if gate.key is None else "key", lambda: select_parked(parked, is_behind))
        values = {"slot": gate.slot, "topic": gate.topic, "key": gate.key, "behind": "topic"}
        rows = await self._driver_rows(prepared.sql, prepared.bind({**values, "after": after, "limit": limit}))
        return [read_message(row) for row in rows]

    async def settle(self, settlement: Settlement) -> Settled:
        return await uninterrupted(self._write(sql_settle.settle, settlement))

    async def due(self, slots: Sequence[int], limit: int) -> Due:
        """Asked often and seldom with something to do: only then does it write."""
        wait = await self._read(sql_tend.next_in, slots)
        return await self._write(sql_tend.move_due, slots, limit) if wait == 0 else Due(0, wait)

    async def gates(self, slots: Sequence[int]) -> tuple[list[Hold], list[Gate]]:
        return await self._read(sql_read.gates, slots)

    async def releasing(self, slots: Sequence[int]) -> list[Hold]:
        return await self._read(sql_read.releasing, slots)

    async def _now(self) -> datetime:
        if self._clock is not None:
            return self._clock.now()
        return await self._read(lambda transaction: transaction.now)

    def _prepare(self, name: object, statement: Callable[[], ClauseElement]) -> Prepared:
        prepared = self._prepared.get(name)
        if prepared is None:
            dialect: Dialect = self._opened().dialect
            prepared = self._prepared[name] = Prepared(statement(), dialect)
        return prepared

    async def _driver_rows(self, sql: str, parameters: Any) -> Rows:
        """The rows as the driver returns them."""

        def run(transaction: Transaction) -> Rows:
            return transaction.connection.exec_driver_sql(sql, parameters).all()

        return await self._read(run)

    # --- breakers: whose turn it is to probe, and good news

    async def take_probe(self, destination: str, relay: str, ttl: float) -> bool:
        return await self._write(sql_leases.take_probe, destination, relay, ttl)

    async def report_trip(self, destination: str, relay: str, error: str) -> None:
        await self._write(sql_leases.report_trip, destination, relay, error)

    async def report_success(self, destination: str) -> None:
        await self._write(sql_leases.report_success, destination)

    async def successes(self) -> Mapping[str, int]:
        return await self._read(sql_leases.successes)

    # --- upkeep and the desk

    async def clean(self, *, retention: float | None, limit: int) -> int:
        return await self._write(sql_tend.clean, retention, limit)

    async def sample(self, most: int) -> int:
        prepared = self._prepare("pending", lambda: pending.count_pending(self.tables))
        [(found, noted)] = await self._driver_rows(prepared.sql, prepared.bind({"most": most}))
        count, before = min(found, most), pending.Sample.read(noted or "")
        if before is None or before.pending != count:
            await self._write(sql_tend.note_pending, count)
        return count

    async def revive(self, ids: Sequence[str]) -> int:
        return await self._write(sql_tend.revive, ids)

    async def discard(self, ids: Sequence[str]) -> int:
        return await self._write(sql_tend.discard, ids)

    async def replay(self, ids: Sequence[str], *, new_id: bool) -> int:
        return await self._write(sql_tend.replay, ids, new_id)

    # --- readers

    async def status(self) -> Status:
        return await self._read(sql_read.status, self.name)

    async def left(self) -> Left:
        return await self._read(sql_read.left)

    async def entries(self, query: Query) -> list[Entry]:
        return await self._read(sql_read.entries, query)

    async def places(self, query: Query) -> list[Place]:
        return await self._read(sql_read.places, query)

    async def entry(self, id: str) -> Entry | None:
        return await self._read(sql_read.entry, id)

    async def holds(self, topic: str | None = None, key: str | None = None, limit: int = 100) -> list[Hold]:
        return await self._read(sql_read.holds, topic, key, limit)

    async def diagnose(self) -> list[Finding]:
        return await self._read(sql_doctor.examine, self.name)


def _in_full(error: BaseException) -> str:
    """Some drivers say that there is no connection, and leave it to the error behind to say why."""
    said, reason = str(error), str(error.__cause__ or "")
    return said if reason in said else f"{said}: {reason}"


class Polling:
    """For a database that tells nobody about commits."""

    name = "polling"
    rings = False

    async def doze(self, slots: Collection[int]) -> None: ...

    async def rouse(self, slots: Collection[int]) -> None: ...

    async def wait(self, timeout: float) -> Collection[int]:
        await asyncio.sleep(timeout)
        return ()


async def uninterrupted(work: Coroutine[Any, Any, T]) -> T:
    """Await something to its end, even when cancelled meanwhile; only then is the cancellation raised.

    What a destination has confirmed must reach the database: a settlement that is given up half-way is a duplicate. And
    a connection that others wait for must not be left in the middle of a transaction.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError:
                continue
        if not task.cancelled():
            task.exception()  # seen: the caller is told of its cancellation instead
        raise
