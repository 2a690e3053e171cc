"""The store in plain Python: for tests, for one process, and for reading before you write another one.

It is also a place to write to. What a transaction adds is there for others when its block ends, and never if it raises:

    with store.begin() as transaction:
        outbox.add(transaction, "orders", {"id": 1}, key="order-1")

The work itself is done by plain functions over `Tables`, in the files named `memory_…`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Concatenate, ParamSpec, TypeVar

from ..clock import Clock, SystemClock
from ..errors import ConfigurationError
from ..message import SLOTS, Message
from ..ports import (
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
    Wakeup,
)
from . import checkup, memory_leases, memory_read, memory_settle, memory_tend
from .memory_inbox import Recollection
from .memory_tables import Tables
from .memory_writes import MemoryTransaction, Write, commit

__all__ = ["MemoryStore", "MemoryTransaction"]

P = ParamSpec("P")
T = TypeVar("T")


class MemoryStore:
    """Everything in this object: share it between relays of one process. Nothing survives the process."""

    workers = 1
    sweep_interval = 30.0
    may_miss_rows = False

    def __init__(
        self,
        url: str = "memory:",
        *,
        name: str = "default",
        prefix: str | None = None,
        schema: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.tables = Tables(clock or SystemClock())
        self.commits = 0
        self._bells: list[Callable[[], object]] = []
        self._lock = threading.RLock()

    async def open(self, *, claim: str | None = None, create_tables: bool = True) -> None:
        self._perform(self._set_claim, claim)

    def _set_claim(self, tables: Tables, claim: str | None) -> None:
        if claim is not None and tables.claim not in ("", claim):
            raise ConfigurationError(
                f"the relays of outbox {self.name!r} use claim {tables.claim!r}, this one {claim!r}: "
                "stop them all before you change it"
            )
        tables.claim = claim or tables.claim

    async def close(self) -> None:
        """The messages stay: another relay may hold the same store."""

    # --- transactions

    def _perform(self, work: Callable[Concatenate[Tables, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """One function, one transaction: nothing suspends within, so the lock only keeps other threads out."""
        with self._lock:
            return work(self.tables, *args, **kwargs)

    def _perform_and_ring(self, work: Callable[Concatenate[Tables, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        with self._lock:
            result = work(self.tables, *args, **kwargs)
            self._ring()
            return result

    @contextmanager
    def begin(self) -> Generator[MemoryTransaction]:
        """A transaction: committed at the end of the block, rolled back if it raises."""
        transaction = MemoryTransaction(self.tables)
        try:
            yield transaction
        except BaseException:
            transaction.finish()
            raise
        self._commit(transaction.finish(), transaction.inbox)

    def _commit(self, writes: Sequence[Write], inbox: Recollection) -> None:
        with self._lock:
            inbox.keep()
            if writes:
                self._perform_and_ring(commit, writes)

    def by_rows(self, relay: str) -> RowStore:
        raise ConfigurationError(
            "claim='rows' needs row locks, which the memory store does not have: use claim='slots'"
        )

    # --- waking relays, on whatever thread they are

    @asynccontextmanager
    async def wakeup(self, poll_interval: float) -> AsyncGenerator[Wakeup]:
        yield _Event(self)

    async def glance(self, ranges: Sequence[Range]) -> Glance:
        return Glance(self._perform(memory_read.glance, ranges))

    @property
    def expects_stragglers(self) -> bool:
        return False

    def _ring(self) -> None:
        self.commits += 1
        for ring in self._bells:
            ring()

    @contextmanager
    def listening(self, ring: Callable[[], object]) -> Generator[None]:
        with self._lock:
            self._bells.append(ring)
        try:
            yield
        finally:
            with self._lock:
                self._bells.remove(ring)

    # --- leases

    async def renew(self, beat: Beat) -> Leases:
        return self._perform(memory_leases.renew, beat)

    async def acquire(self, relay: str, slots: Sequence[int], ttl: float) -> Mapping[int, Lease]:
        return self._perform(memory_leases.acquire, relay, slots, ttl)

    async def release(self, relay: str, epochs: Mapping[int, int], marks: Mapping[int, int], leave: bool) -> None:
        self._perform(memory_leases.release, relay, epochs, marks, leave)

    async def hand_over(self, relay: str, slot: int, epoch: int, mark: int, to: str, ttl: float) -> bool:
        return self._perform(memory_leases.hand_over, relay, slot, epoch, mark, to, ttl)

    async def who_knows(self, task: str | None = None) -> list[str]:
        return self._perform(memory_leases.who_knows, task)

    async def write_notes(
        self, relay: str, epochs: Mapping[int, int], notes: Mapping[int, str | None]
    ) -> frozenset[int]:
        return self._perform(memory_leases.write_notes, relay, epochs, notes)

    # --- the flow

    async def fetch(self, ranges: Sequence[Range], limit: int | None = None) -> Fetched:
        return self._perform(memory_read.fetch, ranges, limit)

    async def fetch_heads(self, heads: Sequence[tuple[int, int]]) -> list[Message]:
        return self._perform(memory_read.fetch_heads, heads)

    async def fetch_parked(self, gate: Gate, after: int, limit: int) -> list[Message]:
        return self._perform(memory_read.fetch_parked, gate, after, limit)

    async def settle(self, settlement: Settlement) -> Settled:
        return self._perform(memory_settle.settle, settlement)

    async def due(self, slots: Sequence[int], limit: int) -> Due:
        return self._perform(memory_tend.move_due, slots, limit)

    async def gates(self, slots: Sequence[int]) -> tuple[list[Hold], list[Gate]]:
        return self._perform(memory_read.gates, slots)

    async def releasing(self, slots: Sequence[int]) -> list[Hold]:
        return self._perform(memory_read.releasing, slots)

    # --- breakers: whose turn it is to probe, and good news

    async def take_probe(self, destination: str, relay: str, ttl: float) -> bool:
        return self._perform(memory_leases.take_probe, destination, relay, ttl)

    async def report_trip(self, destination: str, relay: str, error: str) -> None:
        self._perform(memory_leases.report_trip, destination, relay, error)

    async def report_success(self, destination: str) -> None:
        self._perform(memory_leases.report_success, destination)

    async def successes(self) -> Mapping[str, int]:
        return self._perform(memory_leases.successes)

    # --- upkeep and the desk

    async def clean(self, *, retention: float | None, limit: int) -> int:
        return self._perform(memory_tend.clean, retention, limit)

    async def sample(self, most: int) -> int:
        """Writers are in this process, and can count by themselves."""
        return self._perform(memory_read.count_pending)

    async def revive(self, ids: Sequence[str]) -> int:
        return self._perform_and_ring(memory_tend.revive, ids)

    async def discard(self, ids: Sequence[str]) -> int:
        return self._perform_and_ring(memory_tend.discard, ids)

    async def replay(self, ids: Sequence[str], *, new_id: bool) -> int:
        return self._perform_and_ring(memory_tend.replay, ids, new_id)

    # --- readers

    async def status(self) -> Status:
        return self._perform(memory_read.status, self.name)

    async def left(self) -> Left:
        return self._perform(memory_read.left)

    async def entries(self, query: Query) -> list[Entry]:
        return self._perform(memory_read.entries, query)

    async def places(self, query: Query) -> list[Place]:
        return self._perform(memory_read.places, query)

    async def entry(self, id: str) -> Entry | None:
        return self._perform(memory_read.entry, id)

    async def holds(self, topic: str | None = None, key: str | None = None, limit: int = 100) -> list[Hold]:
        return self._perform(memory_read.holds, topic, key, limit)

    async def diagnose(self) -> list[Finding]:
        return checkup.of_status(await self.status())


class _Event:
    """In one process a plain event does it. The commit may come from any thread."""

    name = "event"
    rings = True

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._heard = store.commits

    async def doze(self, slots: Collection[int]) -> None: ...

    async def rouse(self, slots: Collection[int]) -> None: ...

    async def wait(self, timeout: float) -> Collection[int]:
        loop, rung = asyncio.get_running_loop(), asyncio.Event()
        with self._store.listening(lambda: loop.call_soon_threadsafe(rung.set)):
            if self._heard == self._store.commits:
                try:
                    await asyncio.wait_for(rung.wait(), timeout)
                except TimeoutError:
                    return ()
        self._heard = self._store.commits
        return range(SLOTS)
