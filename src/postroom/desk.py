"""The operator's side: look at an outbox, and mend it. What the command line and a dashboard call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack, cast, get_args

from .duration import Duration, seconds
from .errors import ConfigurationError, NotFound, SchemaMismatch, TablesMissing
from .outbox import Outbox
from .ports import Entry, Finding, Hold, Query, State, Status, Store
from .relay.examination import examine
from .relay.wiring import store_for, targets_for

SHORTEST_PREFIX = 8
"""Characters of an id that may stand for all of it."""
WHOLE_ID = 36
BATCH = 1_000
"""Messages changed in one transaction."""
PAGE = 10_000
"""Messages found at a time."""
PAUSE = 0.01
"""Seconds between two transactions of long work, in which a relay gets its turn."""

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
        after: Entry | None = None,
    ) -> _Entries:
        """Messages, oldest first. `topic` and `type` are globs; everything given must match. For the next page give the
        last message of the one before as `after`."""
        query = _query(state, topic=topic, key=key, type=type, older_than=older_than, newer_than=newer_than)
        page = replace(query, limit=_whole("limit", limit, 1), offset=_whole("offset", offset, 0))
        page = replace(page, after=None if after is None else after.place)
        store = await self._open()
        return await store.entries(page)

    async def show(self, id: str) -> Entry:
        """One message, wherever it is; `NotFound` if it is nowhere."""
        store = await self._open()
        if len(id) < WHOLE_ID:
            found = await self._beginning_with(id, None)
            if len(found) != 1:
                raise NotFound(_not_found(id, None, None, found))
            id = found[0]
        # One look: what is pending has no index on the id.
        entry = await store.entry(id) or (await store.entry(id.lower()) if id != id.lower() else None)
        if entry is None:
            raise NotFound(_not_found(id, None, None, []))
        return entry

    async def holds(self, *, topic: str | None = None, key: str | None = None, limit: int = 100) -> Sequence[Hold]:
        """The keys that may not go on, oldest first, with how many messages wait behind each."""
        store = await self._open()
        return await store.holds(topic=topic, key=key, limit=_whole("limit", limit, 1))

    async def doctor(self, publishers: Any = None) -> Sequence[Finding]:
        """Everything that can be wrong, looked at: each finding with what was seen, and a remedy if one is needed. A
        database that cannot be reached is an error, not a finding. With `publishers`, as a relay has them, those are
        asked too; nothing is sent."""
        try:
            store = await self._open()
        except (TablesMissing, SchemaMismatch) as error:
            remedy = "run `postroom init`, or use the version of Postroom that the tables are made for"
            return [Finding(name="tables", verdict="problem", seen=str(error), remedy=remedy)]
        findings = await store.diagnose()
        if publishers is not None:
            waiting = await store.entries(Query(state="pending", limit=BATCH))
            routes = targets_for(publishers, (), concurrency=1)
            findings += await examine(routes, {entry.message.topic for entry in waiting})
        return findings

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

    async def _collect(self, query: Query, limit: int | None) -> _Ids:
        """The ids that match, oldest first. They are gathered before any message is changed: one that dies again, or a
        replay that arrives, while the work goes on would be met a second time."""
        store = await self._open()
        found: dict[str, None] = {}
        page, after = await store.places(replace(query, limit=PAGE)), None
        while page and page[-1] != after:
            after = page[-1]
            found |= dict.fromkeys(place.id for place in page)
            if len(page) < PAGE or (limit is not None and len(found) >= limit):
                break
            page = await store.places(replace(query, limit=PAGE, after=after))
        return list(found)[:limit]

    async def _identify(self, id: str, state: State) -> str:
        """The id of the one message in that state that has it, or whose id begins so."""
        found = await self._beginning_with(id, state)
        if len(found) == 1:
            return found[0]
        exact = None if found else await self._store.entry(id)
        raise NotFound(_not_found(id, state, exact, found))

    async def _beginning_with(self, id: str, state: State | None) -> _Ids:
        """Several are an ambiguity, unless one of them is the very id; of a short one nothing else counts."""
        store = await self._open()
        places = await store.places(Query(state=state, begins=id, limit=BATCH))
        if not places and id != id.lower():
            return await self._beginning_with(id.lower(), state)
        found = list(dict.fromkeys(place.id for place in places))
        is_exact = id in found or len(id) < SHORTEST_PREFIX
        return [each for each in found if each == id] if is_exact else found


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
