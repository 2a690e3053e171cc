"""Every contract of Postroom on one page: `Publisher`, `Store`, `StoreReader`, `Wakeup`, `Observer`.

A third party writes a store or a publisher from this page alone and proves it with the suites in `postroom.testing`.
All methods are coroutines on the relay's event loop; all of them may be cancelled; durations are seconds.

The life of a row. `add` writes it to the **hot** table, or to **later** if it is not due yet. The relay that leases its
slot reads it, publishes it and settles it: delivered rows leave for the archive or for good, failed ones stay and put
their key on **hold**, dead ones move to **dead**. Rows that pile up behind a hold or a broken destination are moved to
**parked**. Where relays claim rows instead of slots, a row that one of them has fetched is in **claims**. A message is
in exactly one of hot, later, parked, claims, dead at any time until it is delivered or discarded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from .events import Event
from .message import Message

# --------------------------------------------------------------------------------------------------- publishers


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What a publisher promises; the contract suite proves it.

    `ordered`: prefix semantics. Of the messages of one (topic, key) in a batch, if one fails then none of the later
    ones is delivered. Only then may the relay hand over several messages of one key at once; otherwise it keeps one
    unanswered message per key.

    `max_batch`: the most messages one `publish` call can take; None means as many as the relay likes.

    `max_calls`: the most `publish` calls at once in one relay; None means as many as the relay likes.

    `max_size`: bytes of payload beyond which every message is refused, as far as that is known beforehand.

    `local`: the work is done here, by the application's own functions, and takes as long as it takes. The relay sets it
    no time-out and gives it no breaker, and hands over a `LocalBatch`, which traces crashes.
    """

    ordered: bool = False
    max_batch: int | None = None
    max_calls: int | None = None
    max_size: int | None = None
    local: bool = False


class Batch(Protocol):
    """What one `publish` call is about."""

    @property
    def messages(self) -> Sequence[Message]:
        """In order of position. `payload` is bytes; `wire_headers()` are the headers to send."""
        ...

    @property
    def timeout(self) -> float:
        """How long one message, or one round trip of many, may take. The relay cancels `publish` when for that long no
        answer has come and nothing was allowed to start."""
        ...

    def answer(self, message: Message, error: BaseException | None = None) -> None:
        """Say what became of a message, once, as soon as it is known and in any order.

        No error: the destination has confirmed it. `DestinationUnavailable` (and what the relay counts as such:
        `ConnectionError`, `TimeoutError`): nobody can be served now, no attempt is counted. `NotAttempted`: it was not
        sent, or what became of it is not known for the sake of another message or call; it may go again at once, and no
        attempt is counted. Anything else: this message was refused, which counts as a failed attempt.
        """
        ...

    def confirm_all(self) -> None:
        """Say that the destination has confirmed every message that was not answered yet; quicker than one by one."""
        ...

    def may_start(self) -> bool:
        """Whether another message may still be handed to the wire: False once its time-out could end after the lease
        does. A publisher that works through a batch piece by piece asks before each piece and answers
        `NotAttempted` for the rest."""
        ...


class LocalBatch(Batch, Protocol):
    """For a publisher whose work is done here, and may take this very process down with it."""

    def crashes(self, message: Message) -> int:
        """How often it was under way when the owner of its slot was lost, since it last came to an end."""
        ...

    async def starting(self, message: Message) -> bool:
        """Write down that it is about to start. Only if that could be done, it may."""
        ...

    async def find_another(self, message: Message) -> None:
        """Hand its slot to a relay that can run it, if there is one."""
        ...

    def aside(self) -> AbstractContextManager[None]:
        """While a call waits for something else than its work, it need not count among `Features.max_calls`."""
        ...


class Publisher(Protocol):
    """An adapter to one destination. It lives as long as its relay; `publish` may be called several times at once,
    never with the same (topic, key) twice, unless the relay promises no order (`claim="rows"`)."""

    @property
    def features(self) -> Features: ...

    async def publish(self, batch: Batch) -> None:
        """Send the messages and answer for each.

        Raising answers for all that were not answered, as `answer` with that error would. Returning without an answer
        for a message counts as a failed attempt for it. When cancelled, abandon what is still queued: nothing may leave
        after the call is over.
        """
        ...

    async def close(self) -> None:
        """Let go of connections. Called once, after the last `publish` has ended."""
        ...


class Functions(Protocol):
    """What a relay is given to run itself."""

    @property
    def topic(self) -> str: ...

    @property
    def ids(self) -> Sequence[str]:
        """Of all that can be run."""
        ...

    @property
    def outbox(self) -> Any:
        """Where they are scheduled."""
        ...

    def publisher(self, *, concurrency: int) -> Publisher: ...


@runtime_checkable
class Examinable(Protocol):
    """A publisher that can tell beforehand whether it will work."""

    async def examine(self, topics: Sequence[str]) -> list[Finding]:
        """Whether the destination can be reached, lets us in, and has a place for these topics. Nothing is sent, and
        nothing is raised: what is wrong is a finding, with a remedy."""
        ...


# ------------------------------------------------------------------------------------------------------- stores


NO_LIMIT = 2**63 - 1


class Range(NamedTuple):
    """Ask for at most `limit` hot rows of `slot` with a position above `after`; and for every straggler: a row above
    `low`, but not above `after`, that may have appeared since the slot was last fetched."""

    slot: int
    after: int
    limit: int
    low: int = NO_LIMIT


class Fetched(NamedTuple):
    """Hot rows, ascending by position, and the database's time.

    Transactions take positions when they insert and show them when they commit, so rows may appear below others that
    were fetched already. If a row is among these, so is every straggler that was committed before it; rows that were
    fetched before may come again. `horizon`: no row at or below it can appear any more that was not fetched. A store
    with a single writer at a time answers `NO_LIMIT`.
    """

    messages: list[Message]
    horizon: int
    now: datetime


HoldStatus = Literal["retry", "dead", "releasing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A (topic, key) that may not go on, and the message that is the reason.

    `retry`: that message waits for its next attempt, `due_in` seconds from now. `dead`: it gave up, and the key waits
    for `revive` or `discard`. `releasing`: it is out of the way; the owner sends what is parked, then drops the hold.
    """

    slot: int
    topic: str
    key: str
    message_id: str
    position: int
    attempts: int
    status: HoldStatus
    due_in: float | None
    error: str
    since: datetime | None = None
    waiting: int = 0
    """Messages behind it; counted for readers (`StoreReader.holds`), 0 for the relay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    slot: int
    owner: str | None
    epoch: int
    expires_in: float
    """Seconds from now; 0 or less means that anybody may take it."""
    mark: int
    """No undelivered hot row of the slot has a position at or below the mark, and none can appear there."""
    notes: str | None = None
    """What the last owner left for the next one; only `acquire` tells."""
    kept_for: str | None = None
    """A relay that may take it, and nobody else before `expires_in`."""


DESTINATIONS = ""
"""Among the tasks that a relay knows, none of which has an empty id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """A relay's sign of life, with the leases it wants to keep and how far it has come in each."""

    relay: str
    host: str
    pid: int
    ttl: float
    epochs: Mapping[int, int]
    marks: Mapping[int, int]
    in_flight: int = 0
    woken_by: str = "polling"
    tasks: frozenset[str] = frozenset()
    """The ids of those that it can run, and `DESTINATIONS` if it delivers messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leases:
    relays: Sequence[str]
    """Every relay heard of within its own ttl, the asking one included."""
    slots: Mapping[int, Lease]
    """All of them, after the renewal."""


class Retry(NamedTuple):
    """Failed, to be tried again. Keyed: the row stays and its key is held. Without a key: the row moves to later."""

    message: Message
    attempts: int
    delay: float
    error: str


class Postponement(Retry):
    """Not tried, so no attempt was counted. To a store it is a retry like others."""

    __slots__ = ()


class Dead(NamedTuple):
    """Gave up. `holding`: its key is held until somebody decides. `revive_after`: it tries again by itself."""

    message: Message
    attempts: int
    reason: str
    error: str
    holding: bool
    revive_after: float | None


class Refund(NamedTuple):
    """A failure that turned out to be the destination's: give the attempts back. The message is on hold, in later or
    in dead; wherever it is, it becomes due at once with `attempts`. One that holds its key keeps its place: from dead
    it goes to parked at its old position. One that died and let its key go on goes last, marked as revived."""

    message: Message
    attempts: int


class Gate(NamedTuple):
    """What keeps rows of a slot from going on: a held key, or (key None) a topic whose destination is closed."""

    slot: int
    topic: str
    key: str | None


@dataclass(slots=True, kw_only=True)
class Settlement:
    """What became of some messages, to be written in one transaction.

    Fenced: everything but `delivered`. The store locks the lease rows of the slots concerned and checks that `relay`
    owns them with these `epochs`; what belongs to a slot that is not ours any more is left undone and the slot named
    in `Settled.refused`. Each slot's entries are all done or all refused.
    """

    relay: str
    epochs: Mapping[int, int]
    retention: float | None = None
    """Keep delivered messages in the archive (None: delete them)."""

    delivered: list[Message] = field(default_factory=list[Message])
    """Unfenced: the row goes, wherever it is (hot, parked, dead) and tolerating that it is gone already. A hold by that
    message goes too, or becomes `releasing` if rows of its key are parked."""
    retries: list[Retry] = field(default_factory=list[Retry])
    dead: list[Dead] = field(default_factory=list[Dead])
    superseded: list[Message] = field(default_factory=list[Message])
    """Moved to the archive with that outcome, whatever the retention."""
    parked: list[tuple[Gate, Message]] = field(default_factory=list[tuple[Gate, Message]])
    """Hot rows to move to parked behind that gate; a row that is parked already changes to that gate. If a key has no
    hold any more, because a former owner delivered the message after all, it gets one that is `releasing`."""
    released: list[Gate] = field(default_factory=list[Gate])
    """Holds to drop, each only if no row of its key is parked."""
    refunds: list[Refund] = field(default_factory=list[Refund])

    def __bool__(self) -> bool:
        return bool(
            self.delivered or self.retries or self.dead or self.superseded or self.parked or self.released
            or self.refunds
        )  # fmt: skip


class Settled(NamedTuple):
    refused: frozenset[int] = frozenset()
    still_parked: frozenset[Gate] = frozenset()
    """Gates of `released` that could not be dropped because rows of theirs are parked."""


class Glance(NamedTuple):
    """In which slots there is something to do."""

    seen: Collection[int]
    """A row to fetch, a later or dead row that is due, a hold to release."""
    doubtful: Collection[int] = ()
    """Only a fetch can tell whether a straggler has come."""


class Due(NamedTuple):
    """How many rows became due and were moved, and in how many seconds the next one will (None: none waits)."""

    moved: int
    next_in: float | None


class Meta(NamedTuple):
    """What the database says of itself."""

    version: int
    min_compatible: int
    claim: str


class Wakeup(Protocol):
    """Tells a sleeping relay that there may be something to fetch."""

    @property
    def name(self) -> str:
        """How it works, for `status`: "doorbell", "data_version", "polling"…"""
        ...

    @property
    def rings(self) -> bool:
        """Whether a commit ends the wait of a relay that sleeps. If not, the relay looks by itself more often."""
        ...

    async def doze(self, slots: Collection[int]) -> None:
        """The owner of these slots sleeps from now on: whoever commits a message in one of them shall ring."""
        ...

    async def rouse(self, slots: Collection[int]) -> None:
        """The owner of these slots is awake: nobody need ring."""
        ...

    async def wait(self, timeout: float) -> Collection[int]:
        """The slots in which something may have been committed since the last call, as soon as there are any; none
        after `timeout`. Raises `StoreUnavailable` if it cannot know any more."""
        ...


State = Literal["pending", "later", "failed", "dead", "delivered", "superseded", "discarded"]


class Place(NamedTuple):
    """Where an entry comes among others: they are ordered by this."""

    created_at: datetime | None
    order: int
    """The position, or `NO_LIMIT` for a message that has none yet."""
    id: str
    is_over: bool
    """In the archive, which may have a message that is elsewhere too: a tombstone, a replay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A message as an operator sees it."""

    message: Message
    state: State
    attempts: int
    parked: bool = False
    held: bool = False
    """Its key is on hold."""
    due_at: datetime | None = None
    settled_at: datetime | None = None
    reason: str | None = None
    error: str | None = None

    @property
    def place(self) -> Place:
        message = self.message
        is_over = self.state in ("delivered", "superseded", "discarded")
        return Place(message.created_at, message.position or NO_LIMIT, message.id, is_over)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Which messages to list; everything given must match. `topic` and `type` are globs.

    Page by page, give the place of the last one as `after`: unlike an offset, that costs the same for each page and
    skips nothing when messages come and go meanwhile.
    """

    state: State | None = None
    topic: str | None = None
    key: str | None = None
    type: str | None = None
    older_than: float | None = None
    newer_than: float | None = None
    begins: str | None = None
    """What the id begins with."""
    limit: int = 100
    offset: int = 0
    after: Place | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    outbox: str
    counts: Mapping[str, int]
    """How many messages are in each `State`."""
    oldest_pending_seconds: float | None
    parked: int
    holds: int
    relays: Sequence[Mapping[str, Any]]
    slots_owned: int
    breakers: Sequence[Mapping[str, Any]]
    meta: Meta
    reasons: Mapping[str, int] = field(default_factory=dict[str, int])
    """Of the dead: why, and how many."""


Verdict = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that a doctor looked at.

    `problem`: messages are not delivered, or will not be, until somebody acts. `warning`: it works, but not as well as
    it should; or it could not be looked at. `ok`: all is well, or for information only.
    """

    name: str
    """What was looked at; the same word each time."""
    verdict: Verdict
    seen: str
    remedy: str | None = None
    """What to do. Always given with a warning or a problem."""


class Left(NamedTuple):
    """What is still to be done."""

    pending: int
    """Messages that are not delivered and not given up: pending, failed, and due later."""
    holds: int


class StoreReader(Protocol):
    """What a dashboard or a command line may ask. It changes nothing."""

    async def status(self) -> Status: ...

    async def left(self) -> Left:
        """A part of the status, which costs little however much is in the archive."""
        ...

    async def entries(self, query: Query) -> list[Entry]:
        """Oldest first, in order of their places."""
        ...

    async def places(self, query: Query) -> list[Place]:
        """The places of the same, for whoever has to do with many: no payload is read."""
        ...

    async def entry(self, id: str) -> Entry | None:
        """The message with this id; a dead one is found by an index, any other by one look at all that are pending."""
        ...

    async def holds(self, topic: str | None = None, key: str | None = None, limit: int = 100) -> list[Hold]:
        """Oldest first, with `waiting` counted."""
        ...

    async def diagnose(self) -> list[Finding]:
        """Everything that can be wrong with this outbox in this database, looked at in bounded time. A check that lacks
        a right is a warning, never an error. That nobody delivers what is pending is always noticed."""
        ...


class Store(StoreReader, Protocol):
    """An adapter to one database and one outbox in it.

    Every method is one short transaction at READ COMMITTED or better; nothing stays locked between calls. Errors of the
    database are raised as `StoreUnavailable` when trying again later may help, else as another `StoreError`. "Now" is
    the database's time.
    """

    name: str
    """Of the outbox."""
    workers: int
    """How many pumps are worth running against this database."""
    sweep_interval: float
    """Seconds between two sweeps, which read everything from the start: a safety net that costs a walk through whatever
    the database has not cleaned up yet."""
    may_miss_rows: bool
    """Whether a row may be committed in such a way that only a sweep finds it."""

    async def open(self, *, claim: str | None = None, create_tables: bool = True) -> None:
        """Connect, create missing tables (or raise `TablesMissing`), check the version (`SchemaMismatch`) and, if a
        claim is given, that all relays use the same one (`ConfigurationError`); the first relay sets it. May be called
        several times."""
        ...

    async def close(self) -> None:
        """Undo one `open`; the last one lets go of connections."""
        ...

    def by_rows(self, relay: str) -> RowStore:
        """This store for one run of a relay that claims rows, not slots. Raises `ConfigurationError` where rows cannot
        be locked one by one."""
        ...

    def wakeup(self, poll_interval: float) -> AbstractAsyncContextManager[Wakeup]:
        """How this store wakes a relay that sleeps; one per relay."""
        ...

    async def glance(self, ranges: Sequence[Range]) -> Glance:
        """Where among these ranges there is, or may be, something to do. One cheap statement, for a relay that has
        nothing to do."""
        ...

    @property
    def expects_stragglers(self) -> bool:
        """Whether somebody is known to have written who has not committed yet: when that is done, nobody may ring."""
        ...

    # --- leases: a slot has at most one owner at a time, and each ownership an epoch of its own

    async def renew(self, beat: Beat) -> Leases:
        """Register the relay as alive and extend by `ttl` those leases of `beat.epochs` whose owner and epoch still
        match (also when expired, as long as nobody took them); store their marks."""
        ...

    async def acquire(self, relay: str, slots: Sequence[int], ttl: float) -> Mapping[int, Lease]:
        """Take those of the slots that have no owner and are kept for nobody else, or whose lease has expired, with a
        new epoch from one counter that never goes back, and say which. Two relays that ask at once never both get a
        slot."""
        ...

    async def release(self, relay: str, epochs: Mapping[int, int], marks: Mapping[int, int], leave: bool) -> None:
        """Give back those leases that are still ours, so that anybody may take them at once; with `leave`, forget the
        relay."""
        ...

    async def hand_over(self, relay: str, slot: int, epoch: int, mark: int, to: str, ttl: float) -> bool:
        """Give back a lease that is still ours, and keep it for another relay for so many seconds."""
        ...

    async def who_knows(self, task: str | None = None) -> list[str]:
        """The live relays that can run tasks of this id, or any at all; with `DESTINATIONS`, deliver messages."""
        ...

    async def write_notes(
        self, relay: str, epochs: Mapping[int, int], notes: Mapping[int, str | None]
    ) -> frozenset[int]:
        """Leave a text with the lease of each slot, for whoever owns it next. Fenced: returns the slots whose lease is
        not ours any more, for which nothing was written."""
        ...

    # --- the flow; each is called by the owner of the slots only

    async def fetch(self, ranges: Sequence[Range], limit: int | None = None) -> Fetched:
        """Hot rows for each range, as of one moment; with a `limit`, at most so many of them in all, those with the
        lowest positions, and stragglers besides. Takes no lock and changes nothing."""
        ...

    async def fetch_heads(self, heads: Sequence[tuple[int, int]]) -> list[Message]:
        """The rows with these (slot, position), be they hot or parked; those that are gone are left out."""
        ...

    async def fetch_parked(self, gate: Gate, after: int, limit: int) -> list[Message]:
        """Parked rows of a key (whatever gate they were parked behind), or of a topic gate, ascending by position."""
        ...

    async def settle(self, settlement: Settlement) -> Settled: ...

    async def due(self, slots: Sequence[int], limit: int) -> Due:
        """Move at most `limit` later rows that are due to the hot table, each to the end of its key, earliest first;
        and revive dead messages whose time has come (`Dead.revive_after`). Never moves a row twice."""
        ...

    async def gates(self, slots: Sequence[int]) -> tuple[list[Hold], list[Gate]]:
        """For a new owner: every hold of the slots, and every topic gate that has parked rows."""
        ...

    async def releasing(self, slots: Sequence[int]) -> list[Hold]:
        """Holds that an operator told the owner to release."""
        ...

    # --- breakers: relays trip alone, and share only whose turn it is to probe, and good news

    async def take_probe(self, destination: str, relay: str, ttl: float) -> bool:
        """Whether this relay may probe: nobody else took the turn within their ttl."""
        ...

    async def report_trip(self, destination: str, relay: str, error: str) -> None:
        """For `status` only."""
        ...

    async def report_success(self, destination: str) -> None:
        """The destination answered: count it, end the probe's turn and clear the trip."""
        ...

    async def successes(self) -> Mapping[str, int]:
        """How often a success was reported, by destination. A change means: probe at once."""
        ...

    # --- upkeep and the desk

    async def clean(self, *, retention: float | None, limit: int) -> int:
        """Delete at most `limit` rows that nobody needs: delivered ones older than the retention (None: all are kept;
        a store that can drop many at once may keep them up to a day longer, and drop more than `limit`),
        superseded and discarded ones older than that and than seven days, dedupe keys past their window, relays long
        gone. A hold whose message is nowhere becomes `releasing`, for its owner to hear of it. Returns how many. Never
        touches an undelivered message."""
        ...

    async def sample(self, most: int) -> int:
        """Count the messages that are pending, up to about `most`, and note the number, if it has changed, and the time
        where writers find them: in the table `meta`, if that is where they look. Takes no lock on a message."""
        ...

    async def revive(self, ids: Sequence[str]) -> int:
        """Dead messages get all their attempts again. One that holds its key goes to parked at its old position and its
        hold becomes `releasing`; any other goes last, as a new row with the header `postroom-revived`."""
        ...

    async def discard(self, ids: Sequence[str]) -> int:
        """Dead messages move to the archive as discarded, and a hold by one becomes `releasing`. One with a sequence
        leaves a tombstone in its place: the same id and sequence, no payload, the header `postroom-tombstone`."""
        ...

    async def replay(self, ids: Sequence[str], *, new_id: bool) -> int:
        """Delivered messages are sent again, last: the same id with its replay count + 1, or a new id."""
        ...


class RowStore(Store, Protocol):
    """A store as a relay with `claim="rows"` uses it: for work that needs no order, and of which some takes long.

    A row has one claimant at a time, named by a token, the relay's id; every slot is everybody's. What differs:

    - `renew` and `acquire` grant all slots, with made-up epochs. A renewal makes the claimant's rows its own for
      another `ttl`, and denies the slots of rows that somebody else has taken.
    - `fetch` claims what it returns for `ttl`, the visibility timeout: rows of the slots, whatever their position,
      that nobody has claimed or whose claim has run out. It skips rows that are locked, and waits for none.
    - `release` ends the claims on all rows of the slots, so that others may take them at once.
    - `settle` is fenced row by row: what is not delivered counts only for rows that are still the relay's own, and
      nothing is ever refused. A retry moves to later and a dead message to dead, with or without a key; nothing is
      held. A row that is `parked` stays claimed on behalf of its gate, for a while, and counts no attempt.
    - `fetch_parked` claims those rows, and `gates` names the gates that have any. There are no holds.
    - `due` may be called by several relays at once.
    """

    async def is_claimed_elsewhere(self) -> bool:
        """Whether somebody else has claimed something to deliver it."""
        ...

    @property
    def is_first(self) -> bool:
        """Whether, of the relays that the last renewal heard of, this is the one that cleans for all."""
        ...


# ---------------------------------------------------------------------------------------------------- observers


class Observer(Protocol):
    """Hears of everything a relay does. Called on the relay's loop: be quick. What it raises is logged and ignored."""

    def notice(self, event: Event) -> None: ...
