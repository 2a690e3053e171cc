"""The doorbell: a sequence whose bits say which slots' owners sleep, and a connection that listens.

Who inserts a row reads the bit of its slot in the same statement and notifies only if it is set: NOTIFY takes a lock
that all commits share, so ringing with each of them would halve the rate of the writers. It is a sequence, and not a
column, because a row that changes every second grows a tail of dead versions as long as anybody has an old snapshot.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any

from sqlalchemy import BigInteger, Text, cast, column, func, literal, select, table

from ..errors import StoreUnavailable
from .schema import Tables, bell_channel
from .sql_transaction import Transaction

SELF_TEST = 2.0
"""Seconds in which a notification of our own must come back when the relay starts."""
HEARTBEAT = 30.0
"""Seconds after which a listener that heard nothing makes sure that it still could."""
ANSWER = 5.0

BELL_LOCK = 0x706F7374726F6F
"""The advisory lock under which the bits are changed: several relays keep theirs in one number."""


def has_bell(transaction: Transaction) -> bool:
    return transaction.run(select(func.to_regclass(_name(transaction.tables)))).scalar() is not None


def notify(transaction: Transaction, payload: str) -> None:
    transaction.run(select(func.pg_notify(bell_channel(transaction.tables), payload)))


def set_bits(transaction: Transaction, slots: Collection[int], asleep: bool) -> None:
    bell = transaction.tables.bell
    mask = sum(1 << slot for slot in slots)
    value = table(bell.name, column("last_value", BigInteger), schema=bell.schema)
    bits = value.c.last_value.bitwise_or(_signed(mask)) if asleep else value.c.last_value.bitwise_and(_signed(~mask))
    # In one statement: a relay that is frozen between two would keep the others waiting. As the bits are sought for the
    # row that the lock makes, they are read under it.
    locked = select(cast(func.pg_advisory_xact_lock(BELL_LOCK), Text).label("lock")).cte("locked")
    read = select(bits).where(locked.c.lock.is_not(None)).correlate(locked).scalar_subquery()
    transaction.run(select(func.setval(_name(transaction.tables), read)).select_from(locked))


def _signed(mask: int) -> Any:
    mask &= 2**64 - 1
    return literal(mask - 2**64 if mask >= 2**63 else mask, BigInteger)


def _name(tables: Tables) -> str:
    names = [name for name in (tables.bell.schema, tables.bell.name) if name]
    return ".".join('"{}"'.format(name.replace('"', '""')) for name in names)


class Listener(ABC):
    """A connection of its own that hears the payloads of one channel."""

    @abstractmethod
    async def hear(self, timeout: float) -> Collection[str]:
        """What was notified since the last call; nothing after `timeout`. Raises if the connection is gone."""

    @abstractmethod
    async def ask(self) -> None:
        """Make sure that the server is still there."""


@asynccontextmanager
async def listen_with_asyncpg(connect: Callable[[], Awaitable[Any]], channel: str) -> AsyncGenerator[Listener]:
    connection = await connect()
    try:
        listener = _AsyncpgListener(connection)
        await connection.add_listener(channel, listener.notified)
        yield listener
    finally:
        connection.terminate()


class _AsyncpgListener(Listener):
    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._heard: set[str] = set()
        self._stirred = asyncio.Event()
        connection.add_termination_listener(self._terminated)

    def _terminated(self, connection: Any) -> None:
        self._stirred.set()

    def notified(self, connection: Any, pid: int, channel: str, payload: str) -> None:
        self._heard.add(payload)
        self._stirred.set()

    async def hear(self, timeout: float) -> Collection[str]:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._stirred.wait()
        if self._connection.is_closed():
            raise StoreUnavailable("the connection that listens for the doorbell was lost")
        self._stirred.clear()
        heard, self._heard = self._heard, set()
        return heard

    async def ask(self) -> None:
        await self._connection.execute("SELECT 1", timeout=ANSWER)


@asynccontextmanager
async def listen_with_psycopg(connect: Callable[[], Awaitable[Any]], channel: str) -> AsyncGenerator[Listener]:
    connection = await connect()
    try:
        await connection.execute(f'LISTEN "{channel}"')
        yield _PsycopgListener(connection)
    finally:
        await connection.close()


class _PsycopgListener(Listener):
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def hear(self, timeout: float) -> Collection[str]:
        return {notify.payload async for notify in self._connection.notifies(timeout=timeout, stop_after=1)}

    async def ask(self) -> None:
        async with asyncio.timeout(ANSWER):
            await self._connection.execute("SELECT 1")


class Doorbell:
    name = "doorbell"
    rings = True

    def __init__(
        self,
        listener: Listener,
        set_bits: Callable[[Collection[int], bool], Awaitable[None]],
        errors_translated: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._listener = listener
        self._set_bits = set_bits
        self._errors_translated = errors_translated
        self._heard_at = asyncio.get_running_loop().time()

    async def works(self, notify: Callable[[str], Awaitable[None]]) -> bool:
        """Whether a notification of our own comes back. Through a pooler it may go astray."""
        word = f"test {secrets.token_hex(8)}"
        await notify(word)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SELF_TEST):
                while word not in await self._listener.hear(SELF_TEST):
                    pass
                return True
        return False

    async def doze(self, slots: Collection[int]) -> None:
        await self._set_bits(slots, True)

    async def rouse(self, slots: Collection[int]) -> None:
        await self._set_bits(slots, False)

    async def wait(self, timeout: float) -> Collection[int]:
        now = asyncio.get_running_loop().time()
        with self._errors_translated():
            if now - self._heard_at > HEARTBEAT:
                await self._listener.ask()
                self._heard_at = now
            return frozenset(_slots(await self._listener.hear(timeout)))


def _slots(payloads: Iterable[str]) -> Iterable[int]:
    return (int(payload) for payload in payloads if payload.isdecimal())
