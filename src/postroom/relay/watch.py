"""When to look for something to do: when the bell rings, and now and then by ourselves."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence

from ..clock import Clock
from ..errors import StoreReplaced, StoreUnavailable
from ..ports import Glance, Store, Wakeup
from ..settings import Settings
from .logs import log
from .pause import soon
from .pump import Pump

SHORTEST = 0.02
"""Seconds between two glances, right after something new came."""
DOZE_AFTER = 0.15
"""Seconds without anything new before writers are told to ring. A relay that always has news costs them nothing."""
BUSY = 4
BUSY_WITHIN = 0.1
"""So many rings in so many seconds, and the relay stays awake: one now and then costs writers nothing, and is heard
sooner than anything is found."""
TELL_AGAIN = 30.0
"""Seconds: a former owner of a slot may have told writers, late, that they need not ring for it; or we could not."""


class Watch:
    """One small duty beside the pumps, which themselves only look where they are told to.

    Awake, it glances at the outbox: soon after something new, and if nothing came, ever later up to `poll_interval`.
    After a moment with nothing new the relay dozes: where writers can ring they are told to, and it glances every
    `idle_interval` only.
    """

    def __init__(
        self,
        *,
        store: Store,
        pumps: Sequence[Pump],
        settings: Settings,
        clock: Clock,
        named: Callable[[str], None],
    ) -> None:
        self._store = store
        self._pumps = pumps
        self._settings = settings
        self._clock = clock
        self._named = named
        self._news_at = clock.monotonic()
        self._had_news = self._is_news = False
        """Whether there seemed to be something to do before the last pass, and after it."""
        self._rings: deque[float] = deque(maxlen=BUSY)
        self._dozing: frozenset[int] | None = None
        """The slots that writers were told about; None while awake."""
        self._told_at = 0.0
        self._mute_until = 0.0
        """Until then writers are not told anything."""
        self._glanced_at = 0.0
        self._owned: frozenset[int] = frozenset()

    async def run(self) -> None:
        async with self._store.wakeup(self._settings.poll_interval) as wakeup:
            self._named(wakeup.name)
            self._dozing, self._owned = None, frozenset()
            while True:
                await self._pass(wakeup)

    async def _pass(self, wakeup: Wakeup) -> None:
        fell_asleep = await self._doze_or_rouse(wakeup)
        interval = self._interval(wakeup)
        rung: Collection[int] = ()
        if not fell_asleep:  # else look at once: somebody may have committed just before they were told to ring
            rung = await wakeup.wait(interval)
            self._pass_on(rung)
        glance = Glance(())
        # Not all who write can ring, so those who do must not keep us from looking.
        if not rung or self._clock.monotonic() - self._glanced_at >= interval:
            glance = await self._glance()
        found = {*glance.seen, *glance.doubtful}
        self._note({*rung, *glance.seen}, bool(rung or found))
        self._pass_on(found)

    def _pass_on(self, slots: Collection[int]) -> None:
        for pump in self._pumps if slots else ():
            pump.ring(slots)

    def _interval(self, wakeup: Wakeup) -> float:
        if self._dozing is not None and wakeup.rings and not self._store.expects_stragglers:
            return self._settings.idle_interval
        quiet = self._clock.monotonic() - max(pump.fetched_at for pump in self._pumps)
        is_fetching = self._is_news and not self._had_news  # most likely; if it goes on, nothing comes of it
        return min(SHORTEST if is_fetching else max(SHORTEST, quiet), self._settings.poll_interval)

    async def _doze_or_rouse(self, wakeup: Wakeup) -> bool:
        """Tell writers if anything has changed; whether we have just fallen asleep."""
        owned = frozenset(slot for pump in self._pumps for slot in pump.plan.slots)
        if self._clock.monotonic() < self._mute_until:
            return False
        if self._is_idle():
            now = self._clock.monotonic()
            if owned == self._dozing and not (wakeup.rings and now - self._told_at >= TELL_AGAIN):
                return False
            if not await self._tell(wakeup.doze(owned)):
                return False
            self._dozing, self._owned, self._told_at = owned, owned, now
            return True
        is_news = self._dozing is not None or not owned <= self._owned
        if is_news and await self._tell(wakeup.rouse(owned)):
            self._dozing, self._owned = None, owned
        return False

    async def _tell(self, telling: Awaitable[None]) -> bool:
        """Whether writers know. As long as they do not, stay awake and look: whatever keeps us from telling them may
        last, and trying takes time."""
        try:
            await soon(telling, self._settings.patience)
        except StoreReplaced:
            raise
        except StoreUnavailable as error:
            log.debug("writers could not be told whether to ring, so they are not waited for: %s", error)
            self._news_at = self._clock.monotonic()
            self._mute_until = self._news_at + TELL_AGAIN
            return False
        return True

    def _note(self, seen: Collection[int], is_news: bool) -> None:
        """Awake, messages keep us so. Dozing, only much to do in a short time wakes us for good."""
        now, rings = self._clock.monotonic(), self._rings
        self._had_news, self._is_news = self._is_news, is_news
        if self._dozing is None:
            self._news_at = max(self._news_at, *(pump.fetched_at for pump in self._pumps))
            return
        rings.extend(now for _ in seen)
        if len(rings) == BUSY and now - rings[0] < BUSY_WITHIN:
            self._news_at = now

    def _is_idle(self) -> bool:
        return self._clock.monotonic() - self._news_at >= DOZE_AFTER

    async def _glance(self) -> Glance:
        self._glanced_at = self._clock.monotonic()
        ranges = [asked for pump in self._pumps for asked in pump.plan.unread()]
        return await soon(self._store.glance(ranges), self._settings.patience) if ranges else Glance(())
