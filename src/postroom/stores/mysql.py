"""MariaDB 10.6 and MySQL 8, and later ones of both."""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from datetime import datetime
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple, cast

from sqlalchemy import Column, ColumnElement, Insert, Table, and_, column, event, func, select, table
from sqlalchemy.dialects.mysql import insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from ..clock import Clock
from ..errors import StoreUnavailable
from ..message import Message
from ..ports import NO_LIMIT, Finding, Range
from . import mysql_doctor
from .mysql_statements import (
    GIVEN,
    delete_at,
    delete_unheld,
    is_listed,
    listed,
    lock_at,
    padded,
    select_news,
    select_slots,
)
from .mysql_writers import uncommitted
from .sql import Rows
from .sql_rows import Header, range_values, read_message
from .sql_server import CONNECT_TIMEOUT, IDLE_TIMEOUT, ServerDialect, ServerStore, in_order
from .sql_transaction import Transaction
from .stragglers import Writer

SYNC_DRIVERS = ("pymysql", "mysqldb")
OURS = ("autocommit", "charset", "connect_timeout", "init_command", "read_timeout", "use_unicode", "write_timeout")
PARAMETERS: dict[str, dict[str, str | None]] = {"asyncmy": dict.fromkeys(OURS), "aiomysql": dict.fromkeys(OURS)}
SET_UP_LOCK = "postroom"
READ_COMMITTED = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
END_IDLE = f"SET @postroom = 1 /*M!100300 , SESSION idle_transaction_timeout = {IDLE_TIMEOUT} */"
"""MariaDB can do so. For MySQL, which cannot, the rest of the line is a comment."""
ALWAYS = {"charset": "utf8mb4", "connect_timeout": int(CONNECT_TIMEOUT)}
"""With any other character set names would be changed on their way, silently."""
CONFLICTS = {1213}
"""Deadlock."""
MAY_PASS = {1040, 1042, 1043, 1053, 1077, 1078, 1079, 1152, 1153, 1159, 1160, 1161, 1203, 1205, 1213, 1226, 1317, 1927,
            1969, 2002, 2003, 2006, 2013, 2014, 2055, 3024, 4031}  # fmt: skip
"""Connections, shutdown, limits, lock wait time-outs, deadlocks, interrupted statements."""
TABLE_MISSING = 1146
TABLE_EXISTS = 1050


class MysqlDialect(ServerDialect):
    def among(self, column: ColumnElement[Any], values: Iterable[Any]) -> ColumnElement[bool]:
        """Sorted, so that rows are locked in one order."""
        return column.in_(sorted(values))

    def remove_at(self, transaction: Transaction, key: Column[int], numbers: Sequence[int]) -> int:
        return transaction.changed(delete_at(key), {GIVEN: json.dumps(list(numbers))}) if numbers else 0

    def lock_at(self, transaction: Transaction, key: Column[int], numbers: Sequence[int]) -> list[int]:
        locked = lock_at(key), {GIVEN: json.dumps(list(numbers))}
        return list(transaction.run(*locked).scalars()) if numbers else []

    def begin_set_up(self, transaction: Transaction) -> None:
        """Tables are created outside of any transaction here, so a lock by name keeps others waiting."""
        if transaction.run(select(func.get_lock(SET_UP_LOCK, int(CONNECT_TIMEOUT)))).scalar() != 1:
            raise StoreUnavailable("somebody else has been creating tables for a while; try again later")

    def end_set_up(self, transaction: Transaction) -> None:
        transaction.run(select(func.release_lock(SET_UP_LOCK)))

    def create(self, transaction: Transaction) -> None:
        """An application may create the same tables meanwhile, which has no lock."""
        there = self.table_names(transaction)
        for missing in transaction.tables.all():
            if missing.name not in there:
                try:
                    missing.create(transaction.connection, checkfirst=False)
                except DBAPIError as error:
                    if code_of(error.orig or error) != TABLE_EXISTS:
                        raise

    def table_names(self, transaction: Transaction) -> set[str]:
        """SQLAlchemy asks for more than the names, and then fails while somebody else creates one of the tables."""
        known = table("tables", column("table_name"), column("table_schema"), schema="information_schema")
        schema = func.coalesce(transaction.tables.hot.schema, func.database())
        return set(transaction.run(select(known.c.table_name).where(known.c.table_schema == schema)).scalars())

    def insert_missing(self, table: Table) -> Insert:
        """Not INSERT IGNORE, which swallows what it should say."""
        first = next(iter(table.primary_key.columns))
        return insert(table).on_duplicate_key_update({first.name: first})

    @property
    def driver_errors(self) -> tuple[type[Exception], ...]:
        """Of the driver that is in use, if any."""
        modules = [sys.modules.get(name) for name in ("asyncmy.errors", "pymysql.err")]
        return (*super().driver_errors, *(module.MySQLError for module in modules if module))

    def is_unavailable(self, error: BaseException) -> bool:
        return super().is_unavailable(error) or code_of(error) in MAY_PASS

    def is_conflict(self, error: BaseException) -> bool:
        return code_of(error) in CONFLICTS

    def is_table_missing(self, error: BaseException) -> bool:
        return code_of(error) == TABLE_MISSING

    @property
    def checks(self) -> Mapping[str, Callable[[Transaction], Finding]]:
        return mysql_doctor.CHECKS


def code_of(error: BaseException) -> int:
    code = error.args[0] if error.args else 0
    if isinstance(code, int):
        return code
    return 2013 if type(error).__name__ == "InterfaceError" else 0


class MysqlStore(ServerStore[Collection[int]]):
    workers = 2
    may_miss_rows = True  # see mysql_writers
    drivers = {  # noqa: RUF012 - nobody changes it
        "mysql": "mysql+asyncmy",
        "mariadb": "mariadb+asyncmy",
        **{name: name for name in ("mysql+asyncmy", "mariadb+asyncmy", "mysql+aiomysql", "mariadb+aiomysql")},
        **{f"mysql+{name}": "mysql+asyncmy" for name in SYNC_DRIVERS},
        **{f"mariadb+{name}": "mariadb+asyncmy" for name in SYNC_DRIVERS},
    }
    parameters = PARAMETERS
    ask_interval = 0.1
    ask_distance = NO_LIMIT
    dialect = MysqlDialect()

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
        self._read_before = 0
        """The highest position that had been read when the last ask was sent."""

    # --- connections

    def _forget_writers(self) -> None:
        super()._forget_writers()
        self._read_before = 0

    def _create_engine(self) -> AsyncEngine:
        engine = create_async_engine(
            self._driver_url,
            isolation_level="READ COMMITTED",
            pool_size=self.workers + 2,
            max_overflow=2,
            pool_timeout=CONNECT_TIMEOUT,
            pool_recycle=3600,
            connect_args={**ALWAYS, "init_command": END_IDLE},
        )
        if self._driver == "aiomysql":
            event.listen(engine.sync_engine, "do_connect", lambda *given: give_context(given[-1]))
            event.listen(engine.sync_engine, "close", self._hang_up_on_tls)
        return engine

    async def _connect_driver(self) -> Any:
        driver: Any = import_module(self._driver)
        _, arguments = self._opened().dialect.create_connect_args(self._driver_url)
        arguments.pop("client_flag", None)
        if self._driver == "aiomysql":
            give_context(arguments)
        return await driver.connect(**{**arguments, **ALWAYS}, autocommit=True, init_command=READ_COMMITTED)

    def _end_driver(self, connection: Any) -> None:
        if transport := _transport_of(connection):
            transport.abort()  # over TLS, close() alone waits for the server's goodbye
        connection.close()

    def _hang_up_on_tls(self, _: object, record: Any) -> None:
        """aiomysql does not wait for the server's goodbye, and the event loop may be gone when it comes."""
        connection = record.driver_connection
        transport = _transport_of(connection)
        if transport is not None and transport.get_extra_info("ssl_object") is not None:
            self._end_driver(connection)

    def _is_closed(self, connection: Any) -> bool:
        return connection.closed if self._driver == "aiomysql" else not connection.connected

    async def _run_on(self, connection: Any, sql: str, parameters: Any) -> Rows:
        async with connection.cursor() as cursor:
            await cursor.execute(sql, parameters)
            return await cursor.fetchall()

    async def _change_on(self, connection: Any, sql: str, parameters: Any) -> int:
        async with connection.cursor() as cursor:
            return await cursor.execute(sql, parameters)

    # --- reading and settling

    async def _ask(self) -> None:
        """What lies below has been asked before, except in slots that are new to us."""
        stragglers = self._stragglers
        covers, self._read_before = self._read_before, stragglers.highest
        known = [writer.floor + 1 for writer in stragglers.writers.values()]
        slots, before = frozenset(stragglers.slots), stragglers.asked or frozenset()
        regions = [Region(slots & before, stragglers.covered, covers), Region(slots - before, 0, covers)]
        dirty = await self._read(read_dirty, regions, known)
        visible = await self._read(read_positions, regions, known) if dirty else dirty
        stragglers.answered(covers, uncommitted(dirty - visible), slots)

    async def _read_slots(
        self, ranges: Sequence[Range], limit: int | None, writers: Sequence[Writer[Collection[int]]]
    ) -> tuple[Collection[int], datetime, list[Message]]:
        checked = [each.floor + 1 for each in writers if not each.may_be_over]
        now, messages = await self._read_rows(ranges, limit, checked)
        visible = {message.position for message in messages}
        return visible, now, asked_for(messages, ranges, limit) if checked else messages

    async def _read_rows(
        self, ranges: Sequence[Range], limit: int | None, checked: Sequence[int]
    ) -> tuple[datetime, list[Message]]:
        """The rows of these ranges, and those at the positions that are checked, wherever they are."""
        again = any(asked.low < asked.after for asked in ranges)
        checked = padded(checked)
        shape = ("slots", len(ranges), limit != 0, again, len(checked))
        prepared = self._prepare(shape, lambda: select_slots(self.tables.hot, *shape[1:]))
        values = {**range_values(ranges), **listed(checked), "limit": NO_LIMIT if limit is None else limit}
        header, rows = Header.split_off(await self._driver_rows(prepared.sql, prepared.bind(values)))
        return header.now, in_order([read_message(row) for row in rows])

    async def _read_stragglers(
        self, ranges: Sequence[Range], writers: Sequence[Writer[Collection[int]]]
    ) -> tuple[Collection[int], list[Message]]:
        evidence, _, messages = await self._read_slots(ranges, 0, writers)
        return evidence, messages

    async def _look(self, ranges: Sequence[Range]) -> Collection[int]:
        shape = ("news", len(ranges), self._clock is not None)
        prepared = self._prepare(shape, lambda: select_news(self.tables, *shape[1:]))
        now = {"now": self._clock.now().replace(tzinfo=None)} if self._clock else {}
        rows = await self._driver_rows(prepared.sql, prepared.bind({**range_values(ranges), **now}))
        return [slot for (slot,) in rows]

    def _slot_values(self, slots: Sequence[int]) -> dict[str, Any]:
        return listed(padded(slots))

    def _is_among(self, slot: ColumnElement[int], count: int) -> ColumnElement[bool]:
        return is_listed(slot, count)

    async def _delete_hot(self, positions: Sequence[int]) -> int:
        statement = partial(delete_unheld, self.tables)
        return await self._change("delivered", statement, **{GIVEN: json.dumps(positions)})

    async def delete_claims(self, messages: Sequence[Message]) -> int:
        positions = sorted(message.position for message in messages)
        statement = partial(delete_at, self.tables.claims.c.position)
        return await self._change("claimed", statement, **{GIVEN: json.dumps(positions)})


def asked_for(messages: Sequence[Message], ranges: Sequence[Range], limit: int | None) -> list[Message]:
    """Without those that were only checked. One that lies above others that are not read yet must not be handed on:
    whoever reads goes on from the highest position there is, and would pass them."""
    afters = {asked.slot: asked.after for asked in ranges}
    left = {asked.slot: asked.limit for asked in ranges}
    room = NO_LIMIT if limit is None else limit
    found: list[Message] = []
    for message in messages:
        after = afters.get(message.slot)
        if after is None:
            continue
        if message.position > after:
            if room <= 0 or left[message.slot] <= 0:
                continue
            room, left[message.slot] = room - 1, left[message.slot] - 1
        found.append(message)
    return found


class Region(NamedTuple):
    slots: Collection[int]
    after: int
    to: int


def read_dirty(transaction: Transaction, regions: Sequence[Region], known: Sequence[int]) -> set[int]:
    """The positions of all rows there are, committed or not."""
    transaction.connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED")
    return read_positions(transaction, regions, known)


def read_positions(transaction: Transaction, regions: Sequence[Region], known: Sequence[int]) -> set[int]:
    hot = transaction.tables.hot
    within = [
        and_(hot.c.slot.in_(slots), hot.c.position > after, hot.c.position <= to)
        for slots, after, to in regions
        if slots and to > after
    ]
    within += [hot.c.position.in_(known)] if known else []
    return {row[0] for each in within for row in transaction.rows(select(hot.c.position).where(each))}


def give_context(arguments: MutableMapping[str, Any]) -> None:
    """aiomysql does not take the words of a URL for how to encrypt, which asyncmy and the synchronous drivers do."""
    words = cast("dict[str, Any] | ssl.SSLContext | None", arguments.get("ssl"))
    if not isinstance(words, dict):
        return
    authority, authorities = words.get("ca"), words.get("capath")
    context = ssl.create_default_context(cafile=authority, capath=authorities)
    is_verified = bool(authority or authorities)
    context.check_hostname = is_verified and words.get("check_hostname", True)
    context.verify_mode = ssl.CERT_REQUIRED if is_verified else ssl.CERT_NONE
    if "cert" in words:
        context.load_cert_chain(words["cert"], words.get("key"))
    if "cipher" in words:
        context.set_ciphers(words["cipher"])
    arguments["ssl"] = context


def _transport_of(connection: Any) -> asyncio.Transport | None:
    """With aiomysql, and with asyncmy."""
    writer = getattr(connection, "_writer", None)
    return writer.transport if writer else getattr(connection, "_transport", None)
