"""What the relay keeps in memory of one destination: its breaker, the lanes that are ready, and how much may go."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..message import Message
from ..ports import Features
from .breaker import Breaker


class Lane:
    """The messages of one (topic, key) that are in memory, in order; a message without a key is a lane of its own.

    A plain class because one is made for every few messages: `answers` is only there when it is needed.
    """

    __slots__ = (
        "answers",
        "flying",
        "latest_only",
        "lost",
        "name",
        "outlet",
        "queued",
        "returned",
        "slot",
        "topic",
        "waiting",
    )

    def __init__(self, name: object, slot: int, topic: str, outlet: Outlet, latest_only: bool) -> None:
        self.name = name
        self.slot = slot
        self.topic = topic
        self.outlet = outlet
        self.latest_only = latest_only
        self.waiting: list[Message] = []
        self.flying: list[Message] = []
        self.returned: list[Message] = []
        self.answers: dict[int, BaseException | None] | None = None
        """Of flying messages that were answered before one in front of them."""
        self.queued = False
        self.lost = False
        """The slot went to another relay while this was flying: only deliveries still count."""


class Room:
    """How many calls to a destination may be under way at once, for all pumps of a relay together."""

    def __init__(self, places: int) -> None:
        self.free = places
        self._waiting: dict[Callable[[], None], None] = {}

    def take(self) -> None:
        self.free -= 1

    def give_back(self) -> None:
        self.free += 1
        waiting, self._waiting = self._waiting, {}
        for stir in waiting:
            stir()

    def tell(self, stir: Callable[[], None]) -> None:
        """Call back, once, when a place is free."""
        self._waiting[stir] = None


class Rate:
    """How many messages may go to a destination in a second, from all pumps of a relay together."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._tokens = 0.0
        self._refilled: float | None = None

    def allows(self, now: float) -> int:
        """How many may go now."""
        elapsed = 0.1 if self._refilled is None else now - self._refilled
        self._tokens = min(max(1.0, self.limit / 10), self._tokens + elapsed * self.limit)
        self._refilled = now
        return int(self._tokens)

    def take(self, count: int) -> None:
        self._tokens -= count

    def next_in(self, now: float) -> float | None:
        """Seconds until it allows another message; None if it does already."""
        return None if self.allows(now) >= 1 else (1.0 - self._tokens) / self.limit


@dataclass(slots=True, eq=False, kw_only=True)
class Outlet:
    """A destination as one pump sees it. The breaker, the room and the rate are shared with the relay's other pumps."""

    name: str
    features: Features
    breaker: Breaker
    room: Room | None = None
    rate: Rate | None = None
    ready: deque[Lane] = field(default_factory=deque[Lane])
    in_memory: int = 0
    unanswered: int = 0
    flying_lanes: int = 0
    calls: int = 0
    full_since: float | None = None

    def is_over(self, window: int) -> bool:
        """What is in flight counts little: a slow key may have a whole batch there, and others must go on."""
        return self.in_memory - self.unanswered >= window or self.in_memory >= 8 * window

    def is_full(self, window: int, now: float) -> bool:
        if not self.is_over(window):
            self.full_since = None
        elif self.full_since is None:
            self.full_since = now
        return self.full_since is not None

    def full_for(self, now: float) -> float:
        return 0.0 if self.full_since is None else now - self.full_since

    def may_send(self, now: float, batch_size: int) -> int:
        """How many messages may go now in one batch."""
        breaker = self.breaker
        if breaker.state == "tripped":
            return 0
        if breaker.state == "half-open":
            return 1 if breaker.prober is None and self.unanswered == 0 and not self.gives_way(now) else 0
        room = min(batch_size, self.features.max_batch or batch_size)
        if self.room is not None:
            room = room if self.room.free > 0 else 0
        elif self.calls >= 4 and self._is_busy_enough(batch_size, room):
            return 0
        else:
            room = min(room, 2 * batch_size - self.flying_lanes)
        if breaker.allowance < batch_size:
            room = min(room, int(breaker.allowance) - self.unanswered)
        return room if self.rate is None else min(room, self.rate.allows(now))

    def _is_busy_enough(self, batch_size: int, room: int) -> bool:
        """Many calls at once help against latency, but only while each is about a good part of a batch: if a publisher
        takes them one by one, the last of many small ones would wait too long."""
        return self.flying_lanes >= batch_size // 4 or self.flying_lanes >= room // 4 > len(self.ready)

    def sent(self, messages: Sequence[Message]) -> None:
        self.unanswered += len(messages)
        self.calls += 1
        if self.breaker.state == "half-open":
            self.breaker.probes_with(messages[0], self)
        if self.room is not None:
            self.room.take()
        if self.rate is not None:
            self.rate.take(len(messages))

    def call_ended(self, now: float) -> None:
        self.calls -= 1
        if self.room is not None:
            self.room.give_back()
        if self.unanswered == 0:
            self.breaker.probe_ended(self, now)

    def gives_way(self, now: float) -> bool:
        """Whether the first probe is for another pump: one which has a message that can be judged in no other way, or
        any better than ours. Not for long: there may be none."""
        breaker = self.breaker
        if now >= breaker.until + breaker.initial:
            return False
        firsts = (lane.waiting[0] for lane in self.ready)
        if breaker.has_trials():
            return not any(map(breaker.needs_trial, firsts))
        return all(map(breaker.is_doubtful, firsts))

    def probe_in(self, now: float) -> float:
        """Seconds until it may send a probe, if nobody else does."""
        at = self.breaker.until
        return max(0.0, (at + self.breaker.initial if self.gives_way(max(now, at)) else at) - now)

    def token_in(self, now: float) -> float | None:
        """Seconds until the rate allows another message; None if it is not what holds us back."""
        return None if self.rate is None else self.rate.next_in(now)
