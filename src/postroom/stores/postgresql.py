"""PostgreSQL 15 and later, through asyncpg or psycopg."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import datetime
from functools import partial
from importlib import import_module
from itertools import product
from pathlib import Path
from socket import SHUT_RDWR, socket
from typing import Any
from urllib.parse import urlencode

from sqlalchemy import URL, ColumnElement, Insert, Table, any_, bindparam, event, inspect, literal
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.schema import CreateSequence

from ..clock import Clock
from ..errors import ConfigurationError, StoreReplaced, StoreUnavailable
from ..message import SLOTS, Message
from ..ports import Beat, Fetched, Finding, Leases, Range, Settlement, Wakeup
from ..redact import redact
from . import postgresql_doctor
from .postgresql_archive import create_archive
from .postgresql_bell import Doorbell, has_bell, listen_with_asyncpg, listen_with_psycopg, notify, set_bits
from .postgresql_claims import claim_hot, delete_claims
from .postgresql_days import Days, begin_set_up, whole_days
from .postgresql_leases import read_renewal, renewal, values_of
from .postgresql_statements import (
    archive_unheld,
    delete_unheld,
    select_lockers,
    select_news,
    select_slots,
    select_stragglers,
)
from .postgresql_writers import Snapshot, met
from .schema import bell_channel
from .sql import Polling, Rows, uninterrupted
from .sql_claims import Claim, Wanted
from .sql_rows import Header, Prepared, read_message
from .sql_server import CONNECT_TIMEOUT, IDLE_TIMEOUT, STATEMENT_TIMEOUT, ServerDialect, ServerStore
from .sql_settle import positions_of
from .sql_transaction import Transaction
from .stragglers import Writer

CONNECTING: dict[str, dict[str, Any]] = {
    "asyncpg": {"timeout": CONNECT_TIMEOUT, "command_timeout": STATEMENT_TIMEOUT},
    "psycopg": {"connect_timeout": int(CONNECT_TIMEOUT), "client_encoding": "utf8"},  # as asyncpg's always is
}
PARAMETERS: dict[str, dict[str, str | None]] = {
    "asyncpg": {
        "sslmode": "ssl",
        **dict.fromkeys(("application_name", "client_encoding", "connect_timeout")),
        **dict.fromkeys(("prepared_statement_cache_size", "prepared_statement_name_func")),  # SQLAlchemy's
    },
    "psycopg": {"connect_timeout": None},
}
TLS_FILES = ("sslrootcert", "sslcert", "sslkey", "sslcrl")
SYSTEM = "system"
"""Instead of a file: the authorities that the system trusts."""
SERVER_SETTINGS = {
    "application_name": "postroom",
    "default_transaction_isolation": "read committed",
    "idle_in_transaction_session_timeout": f"{IDLE_TIMEOUT}s",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}
"""The server lets go of our locks when our process is frozen in a transaction, or our host is gone."""


def _escaped(value: str) -> str:
    return value.replace(" ", r"\ ")


SETTINGS: dict[str, dict[str, Any]] = {
    "asyncpg": {"server_settings": SERVER_SETTINGS},
    "psycopg": {"options": " ".join(f"-c {name}={_escaped(value)}" for name, value in SERVER_SETTINGS.items())},
}
"""What a driver is told for a session of its own. A pooler would refuse it."""
HOT = {
    "max_cached_statement_lifetime": 0,  # seconds, and without an end: they are few
    "server_settings": {
        **SERVER_SETTINGS,
        "jit": "off",
        "plan_cache_mode": "force_generic_plan",
        "enable_seqscan": "off",
        "enable_sort": "off",
    },
}
"""For the few statements of the hot path: planned once, by indexes that have the rows in the order that is wanted,
whatever the tables looked like at that time."""
CAREFUL: dict[str, dict[str, Any]] = {
    "asyncpg": {
        "statement_cache_size": 0,
        "prepared_statement_cache_size": 0,
        "prepared_statement_name_func": lambda: "",
    },
    "psycopg": {"prepare_threshold": None},
}
"""What keeps a driver from preparing statements under a name."""

NOTICE_OUR_END = "SET client_connection_check_interval = 5000"
"""Milliseconds after which a statement that waits, for a lock say, ends when we have hung up. Not on every platform."""
LIMIT_TRANSACTIONS = (
    f"SELECT set_config('transaction_timeout', '{int(STATEMENT_TIMEOUT)}s', false)"
    " WHERE current_setting('transaction_timeout', true) = '0'"
)
"""If the server can (PostgreSQL 17), and nobody else has done so for our role. A relay that is frozen when it has said
the first half of a statement keeps its locks, and the server does not call that idle."""
HISTORY = (
    "SELECT CASE WHEN pg_is_in_recovery() THEN '' ELSE"
    " system_identifier || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8) END FROM pg_control_system()"
)
"""Which cluster it is, and its timeline: a new one begins when a replica is promoted or a backup restored. Nothing for
a replica, which has none of its own yet."""

CONFLICTS = {"40001", "40P01"}
"""Serialisation failure, deadlock."""
MAY_PASS = ("08", "25P03", "25P04", "26000", "42P05", "53", "57P", "57014", "55P03", "40")
"""Beginnings of SQLSTATEs: connection, transactions that took too long, prepared statements that a pooler lost,
resources, shutdown and restart, cancelled, lock not available, conflicts."""

REFUSALS = ("authentication failed", "does not exist", "no pg_hba.conf entry", "permission denied", "not permitted")
"""What libpq says, without a SQLSTATE, when it is not let in."""

BROKEN = ("InterfaceError", "InternalClientError", "InternalError", "OperationalError")
"""What drivers raise, without a SQLSTATE, when their connection has ended, or says what they cannot follow."""

log = logging.getLogger("postroom.stores")


class PostgresqlDialect(ServerDialect):
    @property
    def driver_errors(self) -> tuple[type[Exception], ...]:
        """Of the driver that is in use, if any."""
        asyncpg, psycopg = sys.modules.get("asyncpg"), sys.modules.get("psycopg")
        errors = [*super().driver_errors]
        errors += [asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError] if asyncpg else []
        errors += [psycopg.Error] if psycopg else []
        return tuple(errors)

    def among(self, column: ColumnElement[Any], values: Iterable[Any]) -> ColumnElement[bool]:
        """As one array: the statement is the same for any number of values, and is prepared once."""
        return column == any_(literal(list(values), ARRAY(column.type)))

    def begin_set_up(self, transaction: Transaction) -> None:
        begin_set_up(transaction)

    def create(self, transaction: Transaction) -> None:
        if not inspect(transaction.connection).has_table(
            transaction.tables.archive.name, schema=transaction.tables.archive.schema
        ):
            for statement in create_archive(transaction.tables):
                transaction.run(statement)
        super().create(transaction)
        transaction.run(CreateSequence(transaction.tables.bell, if_not_exists=True))

    def is_complete(self, transaction: Transaction) -> bool:
        return has_bell(transaction)

    def insert_missing(self, table: Table) -> Insert:
        return insert(table).on_conflict_do_nothing()

    def is_unavailable(self, error: BaseException) -> bool:
        return super().is_unavailable(error) or state_of(error).startswith(MAY_PASS)

    def is_conflict(self, error: BaseException) -> bool:
        return state_of(error) in CONFLICTS

    def is_table_missing(self, error: BaseException) -> bool:
        return state_of(error) == "42P01"

    @property
    def checks(self) -> Mapping[str, Callable[[Transaction], Finding]]:
        return postgresql_doctor.CHECKS


def state_of(error: BaseException) -> str:
    """The SQLSTATE; a connection that broke without a word counts as one of those that say so."""
    state = getattr(error, "sqlstate", None)
    if state:
        return state
    is_refusal = any(word in str(error) for word in REFUSALS)
    return "08006" if type(error).__name__ in BROKEN and not is_refusal else ""


class PostgresqlStore(ServerStore[Snapshot]):
    """Reading and settling go straight to asyncpg, each one statement; everything else through SQLAlchemy."""

    workers = 4
    sweep_interval = 600.0  # nothing depends on it, and dead rows may be many
    drivers = {  # noqa: RUF012 - nobody changes it
        "postgresql": "postgresql+asyncpg",
        "postgres": "postgresql+asyncpg",
        "postgresql+asyncpg": "postgresql+asyncpg",
        "postgresql+psycopg": "postgresql+psycopg",
        "postgresql+psycopg_async": "postgresql+psycopg",
        "postgresql+psycopg2": "postgresql+asyncpg",
        "postgresql+pg8000": "postgresql+asyncpg",
    }
    parameters = PARAMETERS
    ask_interval = 0.05
    ask_distance = 2_000
    dialect = PostgresqlDialect()

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
        self._is_pooled = True
        self._has_warned = False
        self._history: str | None = None
        """Of the server that a relay works with, as far as it is known."""
        self._is_for_a_relay = False
        monotonic = clock.monotonic if clock else time.monotonic
        self._days = Days(self._shown_url, self._read, self._try_once, monotonic)

    # --- open and close

    def _choose_driver(self, text: str) -> URL:
        """asyncpg knows libpq's words for files of certificates only in a URL of its own."""
        url = super()._choose_driver(text)
        files = {name: str(url.query[name]) for name in TLS_FILES if url.query.get(name, SYSTEM) != SYSTEM}
        missing = [f"{name}={path}" for name, path in files.items() if not Path(path).is_file()]
        if missing:
            raise ConfigurationError(f"{redact(text)}: there is no such file: {', '.join(missing)}")
        if not files or url.get_driver_name() != "asyncpg":
            return url
        rest = {name: value for name, value in url.query.items() if name not in (*TLS_FILES, "ssl")}
        mode = {"sslmode": str(url.query["ssl"])} if "ssl" in url.query else {}
        return url.set(query={**rest, "dsn": f"postgresql:///?{urlencode(files | mode)}"})

    async def _connect(self, create_tables: bool) -> None:
        """A pooler that gives each transaction another server must not be sent prepared statements, nor a LISTEN: so
        the first connection is a careful one."""
        self._is_pooled = True
        await super()._connect(create_tables)
        with self._errors_translated():
            self._is_pooled = await self._is_behind_a_pooler()
        if not self._is_pooled:
            await self._disconnect()
            await super()._connect(create_tables)

    async def open(self, *, claim: str | None = None, create_tables: bool = True) -> None:
        if claim is not None:
            self._history, self._is_for_a_relay = None, True  # which knows nothing yet that could be wrong
        await super().open(claim=claim, create_tables=create_tables)

    async def _set_up(self, claim: str | None, create_tables: bool) -> None:
        await super()._set_up(claim, create_tables)
        if create_tables:
            await self._days.add()

    def _create_engine(self) -> AsyncEngine:
        arguments = CAREFUL[self._driver] if self._is_pooled else self._settings()
        engine = create_async_engine(
            self._driver_url,
            isolation_level="READ COMMITTED",
            pool_size=self.workers + 2,
            max_overflow=2,
            pool_timeout=CONNECT_TIMEOUT,
            connect_args=CONNECTING[self._driver] | arguments,
        )
        if not self._is_pooled:
            event.listen(engine.sync_engine, "connect", self._greet)
        return engine

    def _settings(self) -> dict[str, Any]:
        """libpq takes settings as one text; those of the URL come last, and win."""
        ours, theirs = SETTINGS[self._driver], self._driver_url.query.get("options")
        return ours if theirs is None else {**ours, "options": f"{ours['options']} {theirs}"}

    def _greet(self, connection: Any, _: object) -> None:
        """Each new connection of the pool."""
        cursor, dialect = connection.cursor(), self._opened().dialect
        history = None
        cursor.execute(LIMIT_TRANSACTIONS)
        connection.commit()
        with suppress(dialect.loaded_dbapi.Error):  # not every server tells
            cursor.execute(HISTORY)
            [history] = cursor.fetchone()
        connection.rollback()
        cursor.close()
        self._compare(history)

    def _compare(self, history: str | None) -> None:
        """A server that lost the last commits gives out positions a second time: whoever goes on where he was passes
        messages by, and settles others than those he delivered."""
        if not self._is_for_a_relay:
            return
        if history == "" and self._history:
            raise StoreUnavailable(f"{self._shown_url}: a replica answers, which takes no writes")
        if history and self._history and history != self._history:
            raise StoreReplaced(f"{self._shown_url}: another server has taken over, or this one was restored")
        self._history = history or self._history

    # --- past SQLAlchemy

    def _goes_past_sqlalchemy(self) -> bool:
        return self._driver == "asyncpg" and not self._is_pooled

    async def _connect_driver(self) -> Any:
        if self._driver != "asyncpg":
            return await self._connect_past({})
        driver: Any = import_module(self._driver)
        connection, history = await self._connect_past(HOT), None
        try:
            with suppress(driver.PostgresError):  # not every server tells
                history = await connection.fetchval(HISTORY)
                await connection.execute(NOTICE_OUR_END)
            self._compare(history)
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _connect_past(self, options: Mapping[str, Any]) -> Any:
        driver: Any = import_module(self._driver)
        _, arguments = self._opened().dialect.create_connect_args(self._driver_url)
        if self._driver == "asyncpg":
            return await driver.connect(**{**arguments, **CONNECTING["asyncpg"], **options})
        arguments = {**arguments, **CONNECTING["psycopg"], **options, "autocommit": True}
        return await driver.AsyncConnection.connect(**arguments)

    async def _is_behind_a_pooler(self) -> bool:
        """A pooler makes up the process id that a connection is told at its start."""
        question = "SELECT pg_backend_pid()"
        if self._driver == "asyncpg":
            connection = await self._connect_past({"statement_cache_size": 0})
            try:
                return connection.get_server_pid() != await connection.fetchval(question)
            finally:
                connection.terminate()
        async with await self._connect_past(CAREFUL["psycopg"]) as connection:
            [pid] = await (await connection.execute(question)).fetchone()
            return connection.info.backend_pid != pid

    def _end_driver(self, connection: Any) -> None:
        if self._driver == "asyncpg":
            connection.terminate()
            return
        # Its own close() pulls the socket from under whoever waits for it.
        with suppress(OSError, import_module(self._driver).Error), socket(fileno=os.dup(connection.fileno())) as end:
            end.shutdown(SHUT_RDWR)

    def _is_closed(self, connection: Any) -> bool:
        return connection.is_closed()

    async def _run_on(self, connection: Any, sql: str, parameters: Any) -> Rows:
        return await connection.fetch(sql, *parameters)

    async def _change_on(self, connection: Any, sql: str, parameters: Any) -> int:
        status: str = await connection.execute(sql, *parameters)
        return int(status.rpartition(" ")[2])

    # --- reading and settling

    async def _ask(self) -> None:
        covers, floor = self._stragglers.highest, self._stragglers.covered
        found = await self._lockers()
        known = list(self._stragglers.writers.values())
        lockers = {name: met(known, name, floor, numbers) for name, numbers in found.items()}
        self._stragglers.answered(covers, lockers)

    async def _lockers(self) -> Mapping[str, Sequence[int]]:
        prepared = self._prepare("lockers", lambda: select_lockers(self.tables.hot))
        rows = await self._driver_rows(
            prepared.sql, prepared.bind({"ours": [each.get_server_pid() for each in self._drivers.open()]})
        )
        return {name: numbers or () for name, numbers in rows}

    async def _read_slots(
        self, ranges: Sequence[Range], limit: int | None, writers: Sequence[Writer[Snapshot]]
    ) -> tuple[Snapshot, datetime, list[Message]]:
        again = any(asked.low < asked.after for asked in ranges)
        limited = limit is not None and sum(asked.limit for asked in ranges) > limit
        prepared = self._slots_statement(again=again, limited=limited)
        found = await self._driver_rows(prepared.sql, prepared.bind({**_arrays(ranges), "limit": limit}))
        header, rows = Header.split_off(found)
        return Snapshot.parse(header.word), header.now, [read_message(row) for row in rows]

    def _slots_statement(self, *, again: bool, limited: bool) -> Prepared:
        return self._prepare(("slots", again, limited), lambda: select_slots(self.tables.hot, again, limited))

    async def _read_stragglers(
        self, ranges: Sequence[Range], writers: Sequence[Writer[Snapshot]]
    ) -> tuple[Snapshot, list[Message]]:
        prepared = self._stragglers_statement()
        header, rows = Header.split_off(await self._driver_rows(prepared.sql, prepared.bind(_arrays(ranges))))
        return Snapshot.parse(header.word), [read_message(row) for row in rows]

    def _stragglers_statement(self) -> Prepared:
        return self._prepare("stragglers", lambda: select_stragglers(self.tables.hot))

    async def _delete_hot(self, positions: Sequence[int]) -> int:
        statement = partial(delete_unheld, self.tables.hot, self.tables.holds)
        return await self._change("delivered", statement, **_range_of(positions))

    async def _settle_hot(self, settlement: Settlement) -> bool:
        if settlement.retention is None:
            return await super()._settle_hot(settlement)
        positions = sorted(message.position for message in settlement.delivered)
        return await uninterrupted(self._archive_hot(positions)) == len(positions)

    async def _archive_hot(self, positions: Sequence[int]) -> int:
        """Move the rows at these positions to the archive, none of them if one holds its key; how many."""
        statement = partial(archive_unheld, self.tables, self._clock is not None)
        now = {"now": self._clock.now()} if self._clock else {}
        return await self._change("archived", statement, **_range_of(positions), **now)

    # --- rows claimed one by one

    async def _claim_hot(self, claim: Claim, wanted: Wanted) -> Fetched:
        shape = (self._clock is not None, len(wanted.slots) >= SLOTS)
        prepared = self._prepare(("claim", *shape), lambda: claim_hot(self.tables, *shape))
        values = {**claim._asdict(), **wanted._asdict(), **self._given_time()}
        header, rows = Header.split_off(await self._driver_rows(prepared.sql, prepared.bind(values)))
        return Fetched([read_message(row) for row in rows], 0, self._clock.now() if self._clock else header.now)

    async def delete_claims(self, messages: Sequence[Message]) -> int:
        return await self._change(
            "claimed", partial(delete_claims, self.tables.claims), positions=positions_of(messages)
        )

    def _given_time(self) -> dict[str, datetime]:
        return {"now": self._clock.now()} if self._clock else {}

    # --- cleaning: old days of the archive go as a whole

    async def clean(self, *, retention: float | None, limit: int) -> int:
        dropped = await self._days.tend(retention, limit)
        longer = await self._read(whole_days, retention)
        return dropped + await super().clean(retention=longer, limit=limit)

    async def _try_once(self, work: Callable[[Transaction], None]) -> None:
        with self._errors_translated():
            await self._try(True, work)

    async def diagnose(self) -> list[Finding]:
        return [*await super().diagnose(), postgresql_doctor.of_pooler(self._is_pooled)]

    # --- what an idle relay does: one statement each

    def _slot_values(self, slots: Sequence[int]) -> dict[str, Any]:
        return {"slots": list(slots)}

    def _is_among(self, slot: ColumnElement[int], count: int) -> ColumnElement[bool]:
        return slot == any_(bindparam("slots", type_=ARRAY(slot.type)))

    async def renew(self, beat: Beat) -> Leases:
        prepared = self._prepare("renewal", lambda: renewal(self.tables, self._clock is not None))
        values = values_of(beat) | ({"now": self._clock.now()} if self._clock else {})
        return read_renewal(beat, await self._driver_rows(prepared.sql, prepared.bind(values)))

    async def _look(self, ranges: Sequence[Range]) -> Collection[int]:
        prepared = self._glance_statement()
        values = _arrays(ranges) | ({"now": self._clock.now()} if self._clock else {})
        return [slot for (slot,) in await self._driver_rows(prepared.sql, prepared.bind(values))]

    def _glance_statement(self) -> Prepared:
        return self._prepare("glance", lambda: select_news(self.tables, self._clock is not None))

    # --- waking up

    @asynccontextmanager
    async def wakeup(self, poll_interval: float) -> AsyncGenerator[Wakeup]:
        """What is hardly ever read is compiled ahead: else the first message that needs it would wait twice as long."""
        for again, limited in product((False, True), repeat=2):
            self._slots_statement(again=again, limited=limited)
        self._stragglers_statement()
        self._glance_statement()
        async with AsyncExitStack() as stack:
            yield await self._doorbell(stack) or Polling()

    async def _doorbell(self, stack: AsyncExitStack) -> Doorbell | None:
        if self._is_pooled or not await self._read(has_bell):
            self._warn_once("there is no doorbell" if not self._is_pooled else "the database is behind a pooler")
            return None
        listen = listen_with_asyncpg if self._driver == "asyncpg" else listen_with_psycopg
        with self._errors_translated():
            listener = await stack.enter_async_context(listen(self._connect_driver, bell_channel(self.tables)))
        doorbell = Doorbell(listener, partial(self._write, set_bits), self._errors_translated)
        if not await doorbell.works(partial(self._write, notify)):
            self._warn_once("a notification of our own did not come back: is there a pooler?")
            return None
        return doorbell

    def _warn_once(self, reason: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning("%s: %s; looking for messages every poll_interval instead", self._shown_url, reason)


def _arrays(ranges: Sequence[Range]) -> dict[str, list[int]]:
    slots, afters, limits, lows = zip(*ranges, strict=True)
    return {"slots": list(slots), "afters": list(afters), "limits": list(limits), "lows": list(lows)}


def _range_of(positions: Sequence[int]) -> dict[str, Any]:
    """Positions, which are in order, and what they lie between."""
    return {"positions": positions, "first": positions[0], "last": positions[-1]}
