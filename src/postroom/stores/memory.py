"""The store in plain Python: for tests, for one process, and for reading before you write another one.

It is also a place to write to. What a transaction adds is there for others when its block ends, and never if it raises:

    with store.begin() as transaction:
        outbox.add(transaction, "orders", {"id": 1}, key="order-1")
"""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_left, bisect_right, insort
from collections import ChainMap, Counter, defaultdict
from collections.abc import (
    Callable,
    Generator,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from functools import wraps
from heapq import merge
from itertools import islice
from types import CoroutineType
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, get_args

from ..clock import Clock, SystemClock
from ..errors import ConfigurationError, NoTransactionError
from ..message import REVIVED_HEADER, SLOTS, TOMBSTONE_HEADER, Message, new_id, slot_of
from ..ports import (
    NO_LIMIT,
    Beat,
    Dead,
    Due,
    Entry,
    Fetched,
    Gate,
    Hold,
    HoldStatus,
    Lease,
    Leases,
    Meta,
    Query,
    Range,
    Refund,
    Retry,
    Settled,
    Settlement,
    State,
    Status,
    Wakeup,
)

DAY = 86_400.0
KEEP_UNDELIVERED = 7 * DAY
"""How long superseded and discarded messages stay in view at least."""
FORGET_RELAYS = DAY

Outcome = Literal["delivered", "superseded", "discarded"]
Order = tuple[Any, ...]
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(slots=True, kw_only=True)
class _Row:
    """A message, and what is known of it beside; what `due_at` and `settled_at` mean depends on where it is."""

    message: Message
    arrival: int = 0
    attempts: int = 0
    gate: Gate | None = None
    due_at: datetime | None = None
    settled_at: datetime | None = None
    outcome: Outcome | None = None
    reason: str | None = None
    error: str | None = None

    @property
    def position(self) -> int:
        return self.message.position

    @property
    def key_gate(self) -> Gate:
        return Gate(self.message.slot, self.message.topic, self.message.key)

    def read(self) -> Message:
        """A copy, as if it came from a database: whoever asked may write on it."""
        return replace(self.message, attempt=self.attempts + 1)


class _Shelf:
    """Rows by position, and in order within each group they belong to. A group without rows is not there."""

    def __init__(self, groups_of: Callable[[_Row], Iterable[tuple[Hashable, Order]]]) -> None:
        self._groups_of = groups_of
        self._arrivals = 0
        self.rows: dict[int, _Row] = {}
        self.groups: dict[Any, list[Order]] = {}

    def put(self, row: _Row) -> None:
        self._arrivals += 1
        row.arrival = self._arrivals
        self.rows[row.position] = row
        for group, order in self._groups_of(row):
            insort(self.groups.setdefault(group, []), order)

    def take(self, position: int) -> _Row | None:
        row = self.rows.pop(position, None)
        for group, order in self._groups_of(row) if row else ():
            orders = self.groups[group]
            del orders[bisect_left(orders, order)]
            if not orders:
                del self.groups[group]
        return row

    def read(self, group: Hashable, after: Order = (), limit: int | None = None) -> Iterator[_Row]:
        orders = self.groups.get(group, [])
        start = bisect_right(orders, after)
        return (self.rows[order[-1]] for order in islice(orders, start, None if limit is None else start + limit))


def _hot_groups(row: _Row) -> Iterator[tuple[Hashable, Order]]:
    yield row.message.slot, (row.position,)


def _timed_groups(row: _Row) -> Iterator[tuple[Hashable, Order]]:
    if row.due_at is not None:
        yield row.message.slot, (row.due_at, row.arrival, row.position)


def _parked_groups(row: _Row) -> Iterator[tuple[Hashable, Order]]:
    if row.message.key is not None:
        yield row.key_gate, (row.position,)
    if row.gate is not None and row.gate.key is None:
        yield row.gate, (row.position,)


@dataclass(slots=True, kw_only=True)
class _Hold:
    message_id: str
    position: int
    attempts: int
    status: HoldStatus
    until: datetime | None
    error: str
    since: datetime


@dataclass(slots=True, kw_only=True)
class _Lease:
    owner: str | None = None
    epoch: int = 0
    expires_at: datetime | None = None
    mark: int = 0


@dataclass(slots=True, kw_only=True)
class _Relay:
    beat: Beat
    started_at: datetime
    seen_at: datetime
    until: datetime


@dataclass(slots=True, kw_only=True)
class _Breaker:
    successes: int = 0
    probe_by: str | None = None
    probe_until: datetime | None = None
    tripped_at: datetime | None = None
    tripped_by: str | None = None
    error: str | None = None


# ------------------------------------------------------------------------------------------------ the write side


@dataclass(slots=True, kw_only=True)
class _Write:
    original: Message
    row: _Row
    dedupe_seconds: float | None
    strict: bool


@dataclass(slots=True, kw_only=True)
class _Ledger:
    """What decides whether a message is written and with which number: idempotency keys and counters."""

    dedupe: MutableMapping[str, datetime] = field(default_factory=dict[str, datetime])
    counters: MutableMapping[tuple[str, str], tuple[int, int]] = field(
        default_factory=dict[tuple[str, str], tuple[int, int]]
    )

    def layer(self) -> _Ledger:
        """One that reads through to this one and keeps its own writes to itself."""
        return _Ledger(dedupe=ChainMap({}, self.dedupe), counters=ChainMap({}, self.counters))

    def admit(self, write: _Write, now: datetime) -> bool:
        """Dedupe, then count: an ignored duplicate uses no sequence number."""
        message, key = write.original, write.original.idempotency_key
        if key is not None and write.dedupe_seconds is not None:
            message.duplicate = key in self.dedupe and self.dedupe[key] > now
            if message.duplicate:
                return False
            self.dedupe[key] = now + timedelta(seconds=write.dedupe_seconds)
        if write.strict and message.key is not None:
            last, generation = self.counters.get((message.topic, message.key), (0, int(now.timestamp() * 1000)))
            message.sequence, message.generation = last + 1, generation
            self.counters[message.topic, message.key] = (last + 1, generation)
        return True


class MemoryTransaction:
    """Collects messages; `MemoryStore.begin` writes them when its block ends without an error."""

    def __init__(self, store: MemoryStore, ledger: _Ledger) -> None:
        self._store = store
        self._ledger = ledger
        self._writes: list[_Write] = []
        self._over = False

    def add(
        self,
        message: Message,
        payload: bytes,
        headers: Mapping[str, str],
        dedupe_seconds: float | None,
        strict: bool,
        delay: float | None,
    ) -> None:
        """Write one message: a duplicate within the window is ignored, `strict` numbers it, `delay` is in seconds.

        `duplicate`, `sequence` and `generation` are set at once. Where transactions overlap, they are as they would be
        if this one committed now, and are set again at commit.
        """
        if self._over:
            raise NoTransactionError(f"message {message.id} came too late: its transaction is over")
        write = _Write(
            original=message,
            row=self._store.compose(message, payload, headers, delay),
            dedupe_seconds=dedupe_seconds,
            strict=strict,
        )
        if self._ledger.admit(write, self._store.now()):
            self._writes.append(write)

    @contextmanager
    def savepoint(self) -> Generator[None]:
        """What is added within is gone if the block raises."""
        outer, kept = self._ledger, len(self._writes)
        self._ledger = outer.layer()
        try:
            yield
        except BaseException:
            del self._writes[kept:]
            raise
        else:
            outer.dedupe.update(self._ledger.dedupe)
            outer.counters.update(self._ledger.counters)
        finally:
            self._ledger = outer

    def finish(self) -> list[_Write]:
        self._over = True
        return self._writes


# ------------------------------------------------------------------------------------------------------ the store


def _atomic(
    method: Callable[Concatenate[MemoryStore, P], CoroutineType[Any, Any, R]],
) -> Callable[Concatenate[MemoryStore, P], CoroutineType[Any, Any, R]]:
    """One method, one transaction: no method suspends, so the lock only keeps other threads out."""

    @wraps(method)
    async def locked(store: MemoryStore, *args: P.args, **kwargs: P.kwargs) -> R:
        with store.lock:
            return await method(store, *args, **kwargs)

    return locked


class MemoryStore:
    """Everything in this object: share it between relays of one process. Nothing survives the process."""

    workers = 1

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
        self.lock = threading.RLock()
        self._clock = clock or SystemClock()
        self._claim = ""
        self._last_position = 0
        self._last_epoch = 0

        self._hot = _Shelf(_hot_groups)
        self._later = _Shelf(_timed_groups)
        self._parked = _Shelf(_parked_groups)
        self._dead = _Shelf(_timed_groups)
        self._archive: dict[int, _Row] = {}
        self._archived = 0

        self._ledger = _Ledger()
        self._holds: dict[Gate, _Hold] = {}
        self._leases = {slot: _Lease() for slot in range(SLOTS)}
        self._relays: dict[str, _Relay] = {}
        self._breakers: defaultdict[str, _Breaker] = defaultdict(_Breaker)

        self.commits = 0
        self._bells: list[Callable[[], object]] = []

    @_atomic
    async def open(self, *, claim: str | None = None, create_tables: bool = True) -> None:
        if claim is not None and self._claim not in ("", claim):
            raise ConfigurationError(
                f"the relays of outbox {self.name!r} use claim {self._claim!r}, this one {claim!r}: "
                "stop them all before you change it"
            )
        self._claim = claim or self._claim

    async def close(self) -> None:
        """The messages stay: another relay may hold the same store."""

    def wakeup(self, poll_interval: float) -> Wakeup:
        return _Event(self)

    def now(self) -> datetime:
        return self._clock.now()

    # --- writing

    @contextmanager
    def begin(self) -> Generator[MemoryTransaction]:
        """A transaction: committed at the end of the block, rolled back if it raises."""
        transaction = MemoryTransaction(self, self._ledger.layer())
        try:
            yield transaction
        except BaseException:
            transaction.finish()
            raise
        self._commit(transaction.finish())

    def compose(self, message: Message, payload: bytes, headers: Mapping[str, str], delay: float | None) -> _Row:
        """The row of a message, as an SQL store would read it back; its position comes at commit."""
        now = self.now()
        due_at = message.deliver_at if delay is None else now + timedelta(seconds=delay)
        written = Message(
            topic=message.topic,
            payload=payload,
            key=message.key,
            type=message.type,
            headers=dict(headers),
            id=message.id,
            content_type=message.content_type,
            expires_at=message.expires_at,
            slot=slot_of(message.key, message.id),
            created_at=now,
        )
        return _Row(message=written, due_at=due_at)

    def _commit(self, writes: Sequence[_Write]) -> None:
        with self.lock:
            now = self.now()
            for write in writes:
                if self._ledger.admit(write, now):
                    self._insert(write, now)
            if writes:
                self._ring()

    def _insert(self, write: _Write, now: datetime) -> None:
        row = write.row
        row.message.sequence, row.message.generation = write.original.sequence, write.original.generation
        if row.due_at is None or row.due_at <= now:
            self._append(row)
        else:
            row.message.position = self._next_position()
            self._later.put(row)

    def _next_position(self) -> int:
        self._last_position += 1
        return self._last_position

    def _append(self, row: _Row) -> None:
        """To the end of the hot rows, under a new position."""
        message = replace(row.message, position=self._next_position())
        self._hot.put(_Row(message=message, attempts=row.attempts))

    # --- waking relays, on whatever thread they are

    def _ring(self) -> None:
        self.commits += 1
        for ring in self._bells:
            ring()

    @contextmanager
    def listening(self, ring: Callable[[], object]) -> Generator[None]:
        with self.lock:
            self._bells.append(ring)
        try:
            yield
        finally:
            with self.lock:
                self._bells.remove(ring)

    # --- leases

    @_atomic
    async def renew(self, beat: Beat) -> Leases:
        now = self.now()
        until = now + timedelta(seconds=beat.ttl)
        known = self._relays.get(beat.relay)
        self._relays[beat.relay] = _Relay(
            beat=beat, started_at=known.started_at if known else now, seen_at=now, until=until
        )
        for lease in self._still_ours(beat.relay, beat.epochs, beat.marks):
            lease.expires_at = until
        return Leases(
            relays=sorted(name for name, relay in self._relays.items() if relay.until > now),
            slots={slot: self._read_lease(slot) for slot in self._leases},
        )

    @_atomic
    async def acquire(self, relay: str, slots: Sequence[int], ttl: float) -> Mapping[int, Lease]:
        now = self.now()
        taken: dict[int, Lease] = {}
        for slot in slots:
            lease = self._leases[slot]
            if lease.expires_at is None or lease.expires_at <= now:
                self._last_epoch += 1
                lease.owner, lease.epoch, lease.expires_at = relay, self._last_epoch, now + timedelta(seconds=ttl)
                taken[slot] = self._read_lease(slot)
        return taken

    @_atomic
    async def release(self, relay: str, epochs: Mapping[int, int], marks: Mapping[int, int], leave: bool) -> None:
        for lease in self._still_ours(relay, epochs, marks):
            lease.owner = lease.expires_at = None
        if leave:
            self._relays.pop(relay, None)

    def _still_ours(self, relay: str, epochs: Mapping[int, int], marks: Mapping[int, int]) -> Iterator[_Lease]:
        for slot, epoch in epochs.items():
            lease = self._leases[slot]
            if (lease.owner, lease.epoch) == (relay, epoch):
                lease.mark = marks.get(slot, lease.mark)
                yield lease

    def _read_lease(self, slot: int) -> Lease:
        lease = self._leases[slot]
        expires_in = (lease.expires_at - self.now()).total_seconds() if lease.expires_at else 0.0
        return Lease(slot=slot, owner=lease.owner, epoch=lease.epoch, expires_in=expires_in, mark=lease.mark)

    # --- fetch

    @_atomic
    async def fetch(self, ranges: Sequence[Range], limit: int | None = None) -> Fetched:
        found = [row for slot, after, few in ranges for row in self._hot.read(slot, (after,), few)]
        if limit is not None:
            found = sorted(found, key=lambda row: row.position)[:limit]
        return Fetched([row.read() for row in found], NO_LIMIT, self.now())

    @_atomic
    async def fetch_heads(self, heads: Sequence[tuple[int, int]]) -> list[Message]:
        found = [self._waiting(position) for _, position in heads]
        return [row.read() for row in found if row]

    @_atomic
    async def fetch_parked(self, gate: Gate, after: int, limit: int) -> list[Message]:
        return [row.read() for row in self._parked.read(gate, (after,), limit)]

    def _waiting(self, position: int) -> _Row | None:
        return self._hot.rows.get(position) or self._parked.rows.get(position)

    def _take_waiting(self, position: int) -> _Row | None:
        return self._hot.take(position) or self._parked.take(position)

    # --- settle

    @_atomic
    async def settle(self, settlement: Settlement) -> Settled:
        refused: set[int] = set()

        def ours(slot: int) -> bool:
            lease = self._leases[slot]
            if (lease.owner, lease.epoch) == (settlement.relay, settlement.epochs.get(slot)):
                return True
            refused.add(slot)
            return False

        # First what is parked: whether a hold goes or becomes `releasing` depends on it.
        for gate, message in settlement.parked:
            if ours(gate.slot):
                self._park(gate, message.position)
        for message in settlement.delivered:
            self._deliver(message, settlement.retention)
        for message in settlement.superseded:
            if ours(message.slot):
                self._supersede(message)
        # Of several messages of one key the earliest is to hold it.
        for retry in sorted(settlement.retries, key=_position_of, reverse=True):
            if ours(retry.message.slot):
                self._retry(retry)
        for dead in sorted(settlement.dead, key=_position_of, reverse=True):
            if ours(dead.message.slot):
                self._bury(dead)
        for refund in settlement.refunds:
            if ours(refund.message.slot):
                self._refund(refund)
        for gate, _ in settlement.parked:
            if ours(gate.slot):
                self._hold_parked(gate)
        still_parked = {gate for gate in settlement.released if ours(gate.slot) and not self._drop(gate)}
        return Settled(frozenset(refused), frozenset(still_parked))

    def _park(self, gate: Gate, position: int) -> None:
        row = self._take_waiting(position)
        if row is not None:
            self._parked.put(replace(row, gate=gate))

    def _hold_parked(self, gate: Gate) -> None:
        """A former owner may have delivered the head meanwhile. Without a hold the next owner would not look here."""
        first = next(self._parked.read(gate), None)
        if gate.key is not None and gate not in self._holds and first is not None:
            self._hold(first, "releasing", None, "")

    def _deliver(self, message: Message, retention: float | None) -> None:
        position = message.position
        # In later it is if a former owner delivers what its successor put off.
        row = self._take_waiting(position) or self._dead.take(position) or self._later.take(position)
        if row is not None and retention is not None:
            self._keep(_Row(message=row.message, attempts=row.attempts), "delivered")
        self._let_go(message)

    def _supersede(self, message: Message) -> None:
        row = self._take_waiting(message.position)
        if row is not None:
            self._keep(row, "superseded")
            self._let_go(message)

    def _retry(self, retry: Retry) -> None:
        due_at = self.now() + timedelta(seconds=retry.delay)
        if retry.message.key is None:
            row = self._take_waiting(retry.message.position)
            if row is not None:
                self._later.put(replace(row, attempts=retry.attempts, due_at=due_at, error=retry.error, gate=None))
        else:
            row = self._waiting(retry.message.position)
            if row is not None:
                row.attempts = retry.attempts
                self._hold(row, "retry", due_at, retry.error)

    def _bury(self, dead: Dead) -> None:
        row = self._take_waiting(dead.message.position)
        if row is None:
            return
        now = self.now()
        revive_at = None if dead.revive_after is None else now + timedelta(seconds=dead.revive_after)
        row = replace(
            row,
            attempts=dead.attempts,
            reason=dead.reason,
            error=dead.error,
            settled_at=now,
            due_at=revive_at,
            gate=None,
        )
        self._dead.put(row)
        if dead.holding and row.message.key is not None:
            self._hold(row, "dead", revive_at, dead.error)
        else:
            self._let_go(row.message)

    def _refund(self, refund: Refund) -> None:
        position = refund.message.position
        if row := self._later.take(position):
            self._later.put(replace(row, attempts=refund.attempts, due_at=self.now()))
        elif row := self._dead.take(position):
            self._refund_dead(_Row(message=row.message, attempts=refund.attempts))
        elif row := self._waiting(position):
            row.attempts = refund.attempts
            self._refund_hold(row)

    def _refund_dead(self, row: _Row) -> None:
        if row.message.key is None:
            self._append(row)
            return
        # The reader's mark may have passed its position: only among the parked rows is it found there.
        self._parked.put(replace(row, gate=row.key_gate))
        self._refund_hold(row)
        if row.key_gate not in self._holds:
            self._hold(row, "releasing", None, "")

    def _refund_hold(self, row: _Row) -> None:
        if self._is_held_by(row.message) and self._holds[row.key_gate].status != "releasing":
            self._hold(row, "retry", self.now(), self._holds[row.key_gate].error)

    def _drop(self, gate: Gate) -> bool:
        if gate in self._parked.groups:
            return False
        self._holds.pop(gate, None)
        return True

    def _keep(self, row: _Row, outcome: Outcome) -> None:
        self._archived += 1
        self._archive[self._archived] = replace(row, outcome=outcome, settled_at=self.now(), due_at=None, gate=None)

    # --- holds

    def _hold(self, row: _Row, status: HoldStatus, until: datetime | None, error: str) -> None:
        since = self._holds[row.key_gate].since if self._is_held_by(row.message) else self.now()
        self._holds[row.key_gate] = _Hold(
            message_id=row.message.id,
            position=row.position,
            attempts=row.attempts,
            status=status,
            until=until,
            error=error,
            since=since,
        )

    def _is_held_by(self, message: Message) -> bool:
        hold = self._holds.get(Gate(message.slot, message.topic, message.key))
        return hold is not None and hold.position == message.position

    def _let_go(self, message: Message) -> None:
        """The message is out of the way: its hold goes, or lets out what is parked."""
        gate = Gate(message.slot, message.topic, message.key)
        if self._is_held_by(message) and not self._drop(gate):
            self._set_releasing(gate)

    def _set_releasing(self, gate: Gate) -> None:
        self._holds[gate].status, self._holds[gate].until = "releasing", None

    def _read_hold(self, gate: Gate, *, count: bool = False) -> Hold:
        hold = self._holds[gate]
        return Hold(
            slot=gate.slot,
            topic=gate.topic,
            key=gate.key or "",
            message_id=hold.message_id,
            position=hold.position,
            attempts=hold.attempts,
            status=hold.status,
            due_in=(hold.until - self.now()).total_seconds() if hold.until else None,
            error=hold.error,
            since=hold.since,
            waiting=self._count_behind(gate) if count else 0,
        )

    def _count_behind(self, gate: Gate) -> int:
        rows = [row for row in self._hot.read(gate.slot) if row.key_gate == gate]
        rows += self._parked.read(gate)
        return sum(row.position != self._holds[gate].position for row in rows)

    @_atomic
    async def gates(self, slots: Sequence[int]) -> tuple[list[Hold], list[Gate]]:
        holds = [self._read_hold(gate) for gate in self._holds if gate.slot in slots]
        return holds, [gate for gate in self._parked.groups if gate.key is None and gate.slot in slots]

    @_atomic
    async def releasing(self, slots: Sequence[int]) -> list[Hold]:
        return [
            self._read_hold(gate)
            for gate, hold in self._holds.items()
            if hold.status == "releasing" and gate.slot in slots
        ]

    # --- due

    @_atomic
    async def due(self, slots: Sequence[int], limit: int) -> Due:
        ready = self._ready(self._later, slots, limit)
        for row in ready:
            self._later.take(row.position)
            self._append(row)
        risen = self._ready(self._dead, slots, limit - len(ready))
        for row in risen:
            self._revive(row)
        return Due(len(ready) + len(risen), self._next_in(slots))

    def _ready(self, shelf: _Shelf, slots: Sequence[int], limit: int) -> list[_Row]:
        now = self.now()
        earliest_first = merge(*(shelf.groups.get(slot, []) for slot in slots))
        return [shelf.rows[position] for due_at, _, position in islice(earliest_first, limit) if due_at <= now]

    def _next_in(self, slots: Sequence[int]) -> float | None:
        first = [row for shelf in (self._later, self._dead) for slot in slots for row in shelf.read(slot, limit=1)]
        times = [row.due_at for row in first if row.due_at is not None]
        return max(0.0, (min(times) - self.now()).total_seconds()) if times else None

    # --- breakers: whose turn it is to probe, and good news

    @_atomic
    async def take_probe(self, destination: str, relay: str, ttl: float) -> bool:
        now, breaker = self.now(), self._breakers[destination]
        if breaker.probe_until is not None and breaker.probe_until > now and breaker.probe_by != relay:
            return False
        breaker.probe_by, breaker.probe_until = relay, now + timedelta(seconds=ttl)
        return True

    @_atomic
    async def report_trip(self, destination: str, relay: str, error: str) -> None:
        breaker = self._breakers[destination]
        breaker.tripped_at, breaker.tripped_by, breaker.error = self.now(), relay, error

    @_atomic
    async def report_success(self, destination: str) -> None:
        self._breakers[destination] = _Breaker(successes=self._breakers[destination].successes + 1)

    @_atomic
    async def successes(self) -> Mapping[str, int]:
        return {destination: breaker.successes for destination, breaker in self._breakers.items()}

    # --- upkeep

    @_atomic
    async def clean(self, *, retention: float | None, limit: int) -> int:
        removals = list(islice(self._garbage(retention), limit))
        for remove in removals:
            remove()
        return len(removals)

    def _garbage(self, retention: float | None) -> Iterator[Callable[[], object]]:
        now = self.now()
        for number, row in self._archive.items():
            keep = retention if row.outcome == "delivered" else max(retention or 0.0, KEEP_UNDELIVERED)
            if keep is not None and row.settled_at is not None and row.settled_at <= now - timedelta(seconds=keep):
                yield lambda number=number: self._archive.pop(number)
        for key, expires_at in self._ledger.dedupe.items():
            if expires_at <= now:
                yield lambda key=key: self._ledger.dedupe.pop(key)
        for name, relay in self._relays.items():
            if relay.until <= now - timedelta(seconds=FORGET_RELAYS):
                yield lambda name=name: self._relays.pop(name)
        for gate, hold in self._holds.items():
            if hold.status != "releasing" and not self._waiting(hold.position) and hold.position not in self._dead.rows:
                # Not deleted: its owner knows of it and has to hear that it may go on.
                yield lambda gate=gate: self._set_releasing(gate)

    # --- the desk

    @_atomic
    async def revive(self, ids: Sequence[str]) -> int:
        rows = self._dead_with(ids)
        for row in rows:
            # Whoever asks for an expired message wants it sent: it does not expire again.
            self._revive(row, expires_at=None)
        self._ring()
        return len(rows)

    @_atomic
    async def discard(self, ids: Sequence[str]) -> int:
        rows = self._dead_with(ids)
        for row in rows:
            self._keep(row, "discarded")
            if row.message.sequence is None:
                self._dead.take(row.position)
            else:
                headers = _with_header(row.message, TOMBSTONE_HEADER)
                self._raise(row, payload=b"", headers=headers, expires_at=None)
            if self._is_held_by(row.message):
                self._set_releasing(row.key_gate)
        self._ring()
        return len(rows)

    @_atomic
    async def replay(self, ids: Sequence[str], *, new_id: bool) -> int:
        latest = {row.message.id: row for row in self._archive.values() if row.outcome == "delivered"}
        rows = [latest[id] for id in dict.fromkeys(ids) if id in latest]
        for row in rows:
            # Counted in the archive too: with no retention the replay itself leaves no trace.
            row.message.replays += not new_id
            self._append(_Row(message=_renamed(row.message) if new_id else replace(row.message, expires_at=None)))
        self._ring()
        return len(rows)

    def _dead_with(self, ids: Sequence[str]) -> list[_Row]:
        wanted = set(ids)
        found = (row for row in self._dead.rows.values() if row.message.id in wanted)
        return sorted(found, key=lambda row: row.position)

    def _revive(self, row: _Row, **changes: Any) -> None:
        if self._is_held_by(row.message):
            self._raise(row, **changes)
            self._set_releasing(row.key_gate)
        else:
            self._raise(row, headers=_with_header(row.message, REVIVED_HEADER), **changes)

    def _raise(self, row: _Row, **changes: Any) -> None:
        """From the dead: to its old place if it holds its key, else last."""
        self._dead.take(row.position)
        message = replace(row.message, **changes)
        if self._is_held_by(message):
            self._parked.put(_Row(message=message, gate=row.key_gate))
        else:
            self._append(_Row(message=message))

    # --- readers

    @_atomic
    async def status(self) -> Status:
        now = self.now()
        counts = Counter(entry.state for entry in self._entries())
        waiting = [row.message.created_at for shelf in (self._hot, self._parked) for row in shelf.rows.values()]
        oldest = min((created for created in waiting if created), default=None)
        return Status(
            outbox=self.name,
            counts={state: counts[state] for state in get_args(State)},
            oldest_pending_seconds=(now - oldest).total_seconds() if oldest else None,
            parked=len(self._parked.rows),
            holds=len(self._holds),
            relays=[self._read_relay(name) for name, relay in sorted(self._relays.items()) if relay.until > now],
            slots_owned=sum(lease.expires_at is not None and lease.expires_at > now for lease in self._leases.values()),
            breakers=[_read_breaker(name, self._breakers[name]) for name in sorted(self._breakers)],
            meta=Meta(1, 1, self._claim),
        )

    def _read_relay(self, name: str) -> Mapping[str, Any]:
        relay, now = self._relays[name], self.now()
        owned = [lease for lease in self._leases.values() if lease.owner == name]
        return {
            "id": name,
            "host": relay.beat.host,
            "pid": relay.beat.pid,
            "started_at": relay.started_at,
            "seen_at": relay.seen_at,
            "in_flight": relay.beat.in_flight,
            "woken_by": relay.beat.woken_by,
            "slots": sum(lease.expires_at is not None and lease.expires_at > now for lease in owned),
        }

    @_atomic
    async def entries(self, query: Query) -> list[Entry]:
        found = sorted((entry for entry in self._entries() if self._matches(entry, query)), key=_age_order)
        return found[query.offset : query.offset + query.limit]

    @_atomic
    async def entry(self, id: str) -> Entry | None:
        found = [entry for entry in self._entries() if entry.message.id == id]
        undelivered = [entry for entry in found if entry.state not in get_args(Outcome)]
        return next(iter(undelivered or reversed(found)), None)

    @_atomic
    async def holds(self, topic: str | None = None, key: str | None = None, limit: int = 100) -> list[Hold]:
        gates = [gate for gate in self._holds if topic in (None, gate.topic) and key in (None, gate.key)]
        oldest_first = sorted(gates, key=lambda gate: (self._holds[gate].since, gate))
        return [self._read_hold(gate, count=True) for gate in oldest_first[:limit]]

    def _entries(self) -> Iterator[Entry]:
        for row in self._later.rows.values():
            yield self._read_entry(row, "failed" if row.attempts else "later")
        for shelf in (self._hot, self._parked):
            for row in shelf.rows.values():
                yield self._read_entry(row, self._state_of(row))
        for row in self._dead.rows.values():
            yield self._read_entry(row, "dead")
        for row in self._archive.values():
            yield self._read_entry(row, row.outcome or "delivered")

    def _state_of(self, row: _Row) -> State:
        held = self._is_held_by(row.message) and self._holds[row.key_gate].status == "retry"
        return "failed" if held else "pending"

    def _read_entry(self, row: _Row, state: State) -> Entry:
        hold = self._holds.get(row.key_gate) if row.outcome is None else None
        head = hold if hold and hold.position == row.position else None
        return Entry(
            message=row.read(),
            state=state,
            attempts=row.attempts,
            parked=row.position in self._parked.rows and row.outcome is None,
            held=hold is not None,
            due_at=head.until if head and head.until else row.due_at,
            settled_at=row.settled_at,
            reason=row.reason,
            error=head.error if head and state == "failed" else row.error,
        )

    def _matches(self, entry: Entry, query: Query) -> bool:
        message = entry.message
        age = (self.now() - message.created_at).total_seconds() if message.created_at else 0.0
        return (
            query.state in (None, entry.state)
            and query.key in (None, message.key)
            and (query.topic is None or fnmatchcase(message.topic, query.topic))
            and (query.type is None or fnmatchcase(message.type or "", query.type))
            and (query.older_than is None or age > query.older_than)
            and (query.newer_than is None or age < query.newer_than)
        )


def _position_of(entry: Retry | Dead) -> int:
    return entry.message.position


def _age_order(entry: Entry) -> tuple[Any, ...]:
    return entry.message.created_at, entry.message.position


def _with_header(message: Message, header: str) -> Mapping[str, str]:
    return {**message.headers, header: "1"}


def _renamed(message: Message) -> Message:
    """The same content under a new name: to whoever remembers ids or sequence numbers, a message never seen."""
    id = new_id()
    unseen = {"sequence": None, "generation": None, "replays": 0, "expires_at": None}
    return replace(message, id=id, slot=slot_of(message.key, id), **unseen)


def _read_breaker(destination: str, breaker: _Breaker) -> Mapping[str, Any]:
    return {
        "destination": destination,
        "successes": breaker.successes,
        "tripped_at": breaker.tripped_at,
        "tripped_by": breaker.tripped_by,
        "error": breaker.error,
    }


class _Event:
    """In one process a plain event does it. The commit may come from any thread."""

    name = "event"

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._heard = store.commits

    async def wait(self, timeout: float) -> bool:
        loop, rung = asyncio.get_running_loop(), asyncio.Event()
        with self._store.listening(lambda: loop.call_soon_threadsafe(rung.set)):
            if self._heard == self._store.commits:
                try:
                    await asyncio.wait_for(rung.wait(), timeout)
                except TimeoutError:
                    return False
        self._heard = self._store.commits
        return True
