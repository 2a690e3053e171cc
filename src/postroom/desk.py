"""The operator's side: look at an outbox, and mend it. What the command line and a dashboard call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import count
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack, cast, get_args

from .duration import Duration, seconds
from .errors import ConfigurationError, NotFound
from .outbox import Outbox
from .ports import Entry, Hold, Query, State, Status, Store
from .relay.wiring import store_for

SHORTEST_PREFIX = 8
"""Characters of an id that may stand for all of it."""
FOREVER = 100 * 365 * 86_400.0
BATCH = 500
"""Messages read or changed in one transaction. Entries come with their payloads, so it also bounds the memory."""
PAUSE = 0.01
"""Seconds between two transactions of long work, in which a relay gets its turn."""
CLOCK_SLACK = 3_600.0
"""How far the time in an id may be from the time its row was written: clocks differ, and transactions take long."""

Progress = Callable[[int, int | None], object]
"""Called with how many are done, and how many there are if that is known."""

_Entries = list[Entry]
_Ids = list[str]


class Which(TypedDict, total=False):
    """Which messages: everything given must match, `topic` and `type` are globs, ages are durations.

    `all=True` says that there is to be no filter. `limit` takes only so many, the oldest first.
    """

    topic: str | None
    key: str | None
    type: str | None
    older_than: Duration | None
    newer_than: Duration | None
    all: bool
    limit: int | None


class Desk:
    """Looks at one outbox and mends it, while relays are at work or not.

    `store` is a URL or a `Store`; the outbox is `outbox`, or the one with that name, prefix and schema. Nothing
    connects before the first call. Missing tables are an error, unless `init` makes them. A store made from a URL
    belongs to the desk, which closes it; a store object belongs to its maker.

    Wherever an id is asked for, its first characters will do, if they are at least 8 and no other message has them.
    """

    def __init__(
        self,
        store: str | Store,
        *,
        outbox: Outbox | None = None,
        name: str | None = None,
        prefix: str | None = None,
        schema: str | None = None,
    ) -> None:
        if outbox is not None and (name, prefix, schema) != (None, None, None):
            raise ConfigurationError("an outbox has its own name, prefix and schema: give it, or them, not both")
        self.outbox = outbox or Outbox(name or "default", prefix=prefix, schema=schema)
        self._store = store_for(store, self.outbox)
        self._is_ours = isinstance(store, str)
        self._is_open = False
        self._opening = asyncio.Lock()

    # --- opening and closing

    async def init(self) -> None:
        """Create the tables, as far as they are missing."""
        await self._open(create_tables=True)

    async def close(self) -> None:
        was_open, self._is_open = self._is_open, False
        if was_open and self._is_ours:
            await self._store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _open(self, *, create_tables: bool = False) -> Store:
        async with self._opening:
            if not self._is_open:
                await self._store.open(create_tables=create_tables)
                self._is_open = True
        return self._store

    # --- looking

    async def status(self) -> Status:
        """How many messages are where, how old the oldest is, and who is at work."""
        store = await self._open()
        return await store.status()

    async def list(
        self,
        *,
        state: State | None = None,
        topic: str | None = None,
        key: str | None = None,
        type: str | None = None,
        older_than: Duration | None = None,
        newer_than: Duration | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> _Entries:
        """Messages, oldest first. `topic` and `type` are globs; everything given must match."""
        query = _query(state, topic=topic, key=key, type=type, older_than=older_than, newer_than=newer_than)
        page = replace(query, limit=_whole("limit", limit, 1), offset=_whole("offset", offset, 0))
        store = await self._open()
        return await store.entries(page)

    async def show(self, id: str) -> Entry:
        """One message, wherever it is; `NotFound` if it is nowhere."""
        found = await self._identify(id, None)
        entry = await self._store.entry(found)
        if entry is None:  # delivered since
            raise NotFound(_not_found(found, None, None, []))
        return entry

    async def holds(self, *, topic: str | None = None, key: str | None = None, limit: int = 100) -> Sequence[Hold]:
        """The keys that may not go on, oldest first, with how many messages wait behind each."""
        store = await self._open()
        return await store.holds(topic=topic, key=key, limit=_whole("limit", limit, 1))

    async def now(self) -> datetime:
        """The database's time, by which ages are counted."""
        store = await self._open()
        return (await store.fetch(())).now

    # --- mending

    async def revive(
        self, ids: str | Iterable[str] | None = None, *, progress: Progress | None = None, **which: Unpack[Which]
    ) -> int:
        """Let dead messages try again with all their attempts; returns how many did. Either ids, or what `Which` says.

        One that blocks its key keeps its place; any other goes last.
        """
        store = await self._open()
        return await _in_batches(await self._choose("dead", ids, which), store.revive, progress)

    async def discard(
        self, ids: str | Iterable[str] | None = None, *, progress: Progress | None = None, **which: Unpack[Which]
    ) -> int:
        """Give up dead messages for good; returns how many. They stay in the archive for a while, and what waited
        behind them goes on. Either ids, or what `Which` says."""
        store = await self._open()
        return await _in_batches(await self._choose("dead", ids, which), store.discard, progress)

    async def replay(
        self,
        ids: str | Iterable[str] | None = None,
        *,
        new_id: bool = False,
        progress: Progress | None = None,
        **which: Unpack[Which],
    ) -> int:
        """Send delivered messages of the archive again, after everything else; returns how many. Either ids, or what
        `Which` says. An inbox drops them, since it knows their ids; with `new_id` it does not."""
        store = await self._open()

        async def send(batch: _Ids) -> int:
            return await store.replay(batch, new_id=new_id)

        return await _in_batches(await self._choose("delivered", ids, which), send, progress)

    async def clean(
        self, *, retention: Duration | None = None, batch: int = 10_000, progress: Progress | None = None
    ) -> int:
        """Delete what nobody needs, `batch` rows at a time; returns how many.

        These are delivered messages older than `retention` (None: they are all kept), superseded and discarded ones
        older than that and than seven days, idempotency keys past their window, and relays long gone. An undelivered
        message is never touched.
        """
        keep = None if retention is None else seconds(retention, name="retention")
        limit, done = _whole("batch", batch, 1), 0
        store = await self._open()
        while True:
            cleaned = await store.clean(retention=keep, limit=limit)
            done += cleaned
            if progress is not None:
                progress(done, None)
            if cleaned < limit:
                return done
            await asyncio.sleep(PAUSE)

    # --- choosing

    async def _choose(self, state: State, ids: str | Iterable[str] | None, which: Which) -> _Ids:
        limit, filters = _split(which)
        is_all = bool(which.get("all"))
        if ids is not None:
            if filters or is_all:
                raise ConfigurationError("ids and filters were given: give one or the other")
            given = [ids] if isinstance(ids, str) else ids
            return list(dict.fromkeys([await self._identify(id, state) for id in given]))[:limit]
        if filters and is_all:
            raise ConfigurationError("a filter and all=True were given: give one or the other")
        if not filters and not is_all:
            raise ConfigurationError(
                f"which messages? Give ids, a filter such as topic=, or all=True for every {state} message"
            )
        return await self._collect(_query(state, **filters), limit)

    async def _collect(self, query: Query, limit: int | None, begins: str = "") -> _Ids:
        """The ids that match, oldest first. They are gathered before any message is changed: one that dies again, or a
        replay that arrives, while the work goes on would be met a second time."""
        store = await self._open()
        found: dict[str, None] = {}
        for offset in count(0, BATCH):
            page = await store.entries(replace(query, limit=BATCH, offset=offset))
            ids = [entry.message.id for entry in page]
            found |= dict.fromkeys(id for id in ids if id.lower().startswith(begins))
            if len(page) < BATCH or (limit is not None and len(found) >= limit):
                break
        return list(found)[:limit]

    async def _identify(self, id: str, state: State | None) -> str:
        """The id of the one message that has it, or whose id begins so; in that state, if one is asked for."""
        store = await self._open()
        exact = await store.entry(id)
        if exact is not None and state in (None, exact.state):
            return exact.message.id
        found = await self._starting_with(id.lower(), state) if len(id) >= SHORTEST_PREFIX else []
        if len(found) != 1:
            raise NotFound(_not_found(id, state, exact, found))
        return found[0]

    async def _starting_with(self, prefix: str, state: State | None) -> _Ids:
        """At most two: one is an answer, two are an ambiguity."""
        everything = Query(state=state)
        around = _around(prefix, await self.now())
        found = await self._collect(replace(everything, **around), 2, prefix) if around else []
        return found or await self._collect(everything, 2, prefix)


async def _in_batches(ids: _Ids, work: Callable[[_Ids], Awaitable[int]], progress: Progress | None) -> int:
    done = 0
    for start in range(0, len(ids), BATCH):
        if start:
            await asyncio.sleep(PAUSE)
        batch = ids[start : start + BATCH]
        done += await work(batch)
        if progress is not None:
            progress(start + len(batch), len(ids))
    return done


def _split(which: Which) -> tuple[int | None, dict[str, Any]]:
    """The limit, and the filters that were given."""
    limit = which.get("limit")
    filters = {name: value for name, value in which.items() if name not in ("all", "limit") and value is not None}
    return None if limit is None else _whole("limit", limit, 1), filters


def _query(
    state: State | None,
    *,
    topic: str | None = None,
    key: str | None = None,
    type: str | None = None,
    older_than: Duration | None = None,
    newer_than: Duration | None = None,
) -> Query:
    if state is not None and state not in get_args(State):
        raise ConfigurationError(f"state: there is no {state!r}; choose one of {', '.join(get_args(State))}")
    return Query(
        state=state,
        topic=topic,
        key=key,
        type=type,
        older_than=None if older_than is None else seconds(older_than, name="older_than"),
        newer_than=None if newer_than is None else seconds(newer_than, name="newer_than"),
    )


def _whole(name: str, value: object, at_least: int) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= at_least:
        return value
    raise ConfigurationError(f"{name}: {value!r} must be a whole number, at least {at_least}")


def _around(prefix: str, now: datetime) -> Mapping[str, float]:
    """Between which ages a message is whose id begins so: a UUIDv7 begins with the time, which spares us from reading
    the whole outbox. Nothing, if it cannot be such an id."""
    digits = prefix.replace("-", "")[:12]
    try:
        first, last = (int(digits.ljust(12, fill), 16) / 1000 for fill in "0f")
    except ValueError:
        return {}
    age = now.timestamp() - first + CLOCK_SLACK
    if not 0 < age < FOREVER:
        return {}
    youngest = now.timestamp() - last - CLOCK_SLACK
    return {"newer_than": age, "older_than": youngest} if youngest > 0 else {"newer_than": age}


def _not_found(id: str, state: State | None, exact: Entry | None, found: _Ids) -> str:
    if len(found) > 1:
        return f"{id!r} is the beginning of several ids, such as {found[0]} and {found[1]}: give more of it"
    if exact is not None:
        return f"message {exact.message.id} is {exact.state}, not {state}: {_REMEDIES[cast(str, state)]}"
    if len(id) < SHORTEST_PREFIX:
        return f"there is no message {id!r}: give the whole id, or at least its first {SHORTEST_PREFIX} characters"
    kind = "message" if state is None else f"{state} message"
    return (
        f"there is no {kind} {id!r}: look for it with `postroom ls`; once delivered, a message is kept only if a "
        "retention is set"
    )


_REMEDIES = {
    "dead": "only dead messages can be revived or discarded",
    "delivered": "only delivered messages that are still in the archive can be replayed",
}
