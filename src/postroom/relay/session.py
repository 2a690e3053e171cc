"""One run of a relay: the pumps, and the small duties beside them, each a loop of its own."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar, cast

from .. import events
from ..clock import Clock
from ..errors import PostroomError, StoreError, StoreReplaced, StoreUnavailable, TablesMissing
from ..failures import describe
from ..message import SLOTS, TASKS_TOPIC, Message
from ..ports import Features, Observer, Publisher, Range, Store
from ..routing import Globs, Routes
from ..settings import Settings, grace
from .breaker import Breaker, Unbreakable
from .journal import Journal
from .leases import LeaseKeeper
from .logs import log
from .memory import BreakerChanged, Changes
from .outcomes import Outcomes
from .outlet import Outlet, Rate, Room
from .pause import Pause
from .plan import Plan
from .pump import Pump, Tally
from .sampler import Sampler
from .watch import Watch
from .wiring import Target

NO_ROUTE = "(no route)"
LAST_MOMENT = 1.0
"""Seconds for what is in flight when the relay is cancelled."""
CLOSING_TIME = 5.0
"""Seconds for the database, beyond the time for what is in flight, when a relay stops."""


T = TypeVar("T")


class Session:
    def __init__(
        self,
        *,
        relay: str,
        name: str,
        store: Store,
        publishers: Routes[Target],
        settings: Settings,
        clock: Clock,
        observers: Sequence[Observer],
        max_pending: int | None = None,
        tasks: frozenset[str] = frozenset(),
    ) -> None:
        self.tally = Tally()
        self.pumps: list[Pump] = []
        self._relay = relay
        self._name = name
        self._rows = store.by_rows(relay) if settings.claim == "rows" else None
        self._store = self._rows or store
        self._routes = publishers
        self._tasks = tasks
        self._settings = settings
        self._clock = clock
        self._outcomes = Outcomes(self._store, settings.idle_interval)
        self._observers = [self._outcomes, *observers]
        self.sampler = Sampler(self._store, clock, self._owns_first, max_pending)
        self._publishers: dict[str, Publisher] = {}
        self._keeper: LeaseKeeper | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._troubles: set[type[BaseException]] = set()
        """What is wrong with the database, and was told: each kind once, as the first need not say what it is about."""
        self._are_tables_missing = False
        self._on_record = frozenset[str]()
        """Destinations that earlier relays had something to say of."""
        self.is_replaced = False
        """The database is not the one that this session began with, and all that it knows may be wrong."""
        self._finished = False
        self._renewal: asyncio.Task[None] | None = None
        """Of a drain."""

    # -------------------------------------------------------------------------------------------- opening

    async def open(self, patience: float = math.inf, endured: type[StoreError] = StoreUnavailable) -> None:
        """`patience`: seconds for which a database that does not answer is waited for, or has another such error."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        await self._open_store(self._clock.monotonic() + patience, endured)
        self._publishers = {target.name: target.make() for target in self._targets()}
        breakers = {name: self._breaker(name, publisher.features) for name, publisher in self._publishers.items()}
        rooms = {name: _room(publisher.features) for name, publisher in self._publishers.items()}
        self._journal = Journal(self._store, self._relay, self._epochs)
        self._changes = Changes()
        workers = min(self._settings.workers or self._store.workers, SLOTS)
        rates = {name: None if (rate := self._settings.max_rate) is None else Rate(rate) for name in self._publishers}
        self.pumps = [self._make_pump(breakers, rooms, rates) for _ in range(workers)]
        self._keeper = LeaseKeeper(
            name=self._name,
            relay=self._relay,
            store=self._store,
            pumps=self.pumps,
            journal=self._journal,
            settings=self._settings,
            clock=self._clock,
            notice=self.notice,
            answered=self._up,
            tasks=self._tasks,
        )
        for caution in self._settings.cautions():
            log.warning("%s: %s", self._name, caution)
        self.notice(events.Started(outbox=self._name, relay=self._relay))

    async def close(self) -> None:
        if self._renewal is not None:
            await _cancel(self._renewal)
        self._outcomes.close()
        for target in self._targets():
            publisher = self._publishers.get(target.name)
            if publisher is not None and target.ours:
                with contextlib.suppress(Exception):
                    await publisher.close()
        await self._store.close()

    async def _open_store(self, give_up: float, endured: type[StoreError]) -> None:
        """A database that is not there yet is waited for; tables that cannot be used are an error at once."""
        pause = Pause()
        while not self._stopping.is_set():
            try:
                await self._store.open(claim=self._settings.claim, create_tables=self._settings.create_tables)
                self._on_record = frozenset(await self._store.successes())
                if NO_ROUTE in self._on_record:
                    await self._store.report_success(NO_ROUTE)  # there may be one now
            except endured as error:
                await self._wait_for_store(error, pause, give_up)
            else:
                self._up()
                return

    def _targets(self) -> list[Target]:
        return list({target.name: target for target in self._routes.targets.values()}.values())

    async def _find_another(self, message: Message) -> None:
        """Hand the slot of a task that is unknown here to a relay that knows it."""
        others = [relay for relay in await self._store.who_knows(message.type or "") if relay != self._relay]
        if others and self._rows is None and not self._stopping.is_set():
            self._keeper_or_fail().promise(message.slot, random.choice(others))

    def _epochs(self) -> dict[int, int]:
        return {slot: epoch for pump in self.pumps for slot, epoch in pump.plan.epochs().items()}

    def _breaker(self, name: str, features: Features) -> Breaker:
        settings, kind = self._settings, Unbreakable if features.local else Breaker
        return kind(
            initial=settings.breaker_initial,
            cap=settings.breaker_cap,
            trip_after=settings.trip_after,
            is_on_record=name in self._on_record,
        )

    def _make_pump(
        self, breakers: dict[str, Breaker], rooms: dict[str, Room | None], rates: dict[str, Rate | None]
    ) -> Pump:
        outlets = {
            name: Outlet(
                name=name,
                features=self._publishers[name].features,
                breaker=breaker,
                room=rooms[name],
                rate=rates[name],
            )
            for name, breaker in breakers.items()
        }
        nowhere = Outlet(name=NO_ROUTE, features=Features(), breaker=_never())
        said: set[str] = set()

        def route(topic: str) -> Outlet:
            if topic == TASKS_TOPIC:
                target = self._routes.targets.get(topic)
                lacking = "no tasks were given to this relay: those that are scheduled wait for one that has them"
            else:
                target = self._routes.target_for(topic)
                lacking = f"no route matches the topic {topic!r}: its messages wait until one does"
            if target is not None:
                return outlets[target.name]
            if topic not in said:
                said.add(topic)
                nowhere.breaker.error = lacking
                plan.changes.append(BreakerChanged(nowhere, "tripped"))
            return nowhere

        plan = Plan(
            relay=self._relay,
            settings=self._settings,
            outlets=list(outlets.values()),
            route=route,
            random=random.random,
            publish_timeout=self._settings.publish_timeout + grace(self._settings.publish_timeout),
            changes=self._changes,
        )
        return Pump(
            name=self._name,
            relay=self._relay,
            store=self._store,
            plan=plan,
            outlets=list(outlets.values()),
            publishers=self._publishers,
            settings=self._settings,
            clock=self._clock,
            notice=self.notice,
            tally=self.tally,
            journal=self._journal,
            find_another=self._find_another,
        )

    def _make_watch(self, keeper: LeaseKeeper) -> Watch:
        def named(name: str) -> None:
            keeper.woken_by = name

        return Watch(store=self._store, pumps=self.pumps, settings=self._settings, clock=self._clock, named=named)

    # -------------------------------------------------------------------------------------------- running

    async def run(self) -> None:
        """Until `ask_to_stop`; then finish what is in flight and give the leases back."""
        if not self._settings.enabled:
            await self._stopping.wait()
            return
        keeper = self._keeper_or_fail()
        duties = [
            asyncio.create_task(self._endure(self._make_watch(keeper).run)),
            asyncio.create_task(self._endure(self._clean)),
            asyncio.create_task(self._endure(self.sampler.run)),
        ]
        pumps = [asyncio.create_task(self._pump(pump)) for pump in self.pumps]
        leases = asyncio.create_task(self._endure(keeper.run))
        try:
            await self._stopping.wait()
            await self.finish(self._settings.stop_timeout, pumps)
        except asyncio.CancelledError:
            # The application is going down. What was answered is settled all the same, so that it is not sent again.
            self._stopping.set()
            await asyncio.shield(self.finish(min(LAST_MOMENT, self._settings.stop_timeout), pumps, outlast=False))
            raise
        finally:
            await _cancel(*duties, *pumps, leases)

    async def finish(self, timeout: float, pumps: Sequence[asyncio.Task[None]] = (), *, outlast: bool = True) -> None:
        """Wait for what is in flight, settle it, and give the leases back. What is not over by then, or when somebody
        asks to stop for the second time, keeps its lease until it expires."""
        if self._finished:
            return
        self._finished = True
        if self.is_replaced:
            await asyncio.gather(*(pump.abandon() for pump in self.pumps))
            self._up()
            self.notice(events.Stopped(outbox=self._name, relay=self._relay, clean=False))
            return
        if self._keeper is not None:
            self._keeper.retire()
        clean = False
        with contextlib.suppress(PostroomError, TimeoutError):
            async with asyncio.timeout(timeout + CLOSING_TIME):
                if pumps:
                    await asyncio.wait(pumps)
                keeper = self._keeper_or_fail()
                finishing = [pump.finish(timeout, self._hurry, keeper.woken.set) for pump in self.pumps]
                clean = all(await asyncio.gather(*finishing))
                for pump in self.pumps:  # the last answer to one may have given something back to another
                    await pump.settle()
                    pump.tell_changes()
                    await pump.write_changes()
                await keeper.release_all()
        if outlast:
            with contextlib.suppress(PostroomError):
                await self._outlast()
        self.notice(events.Stopped(outbox=self._name, relay=self._relay, clean=clean))

    async def _outlast(self) -> None:
        """A function in a thread cannot be ended. It is waited for, and its lease renewed, so that nobody else runs it
        meanwhile; unless somebody is in a hurry."""
        hurried, keeper = asyncio.create_task(self._hurry.wait()), self._keeper_or_fail()
        while (calls := {call for pump in self.pumps for call in pump.local_calls()}) and not self._hurry.is_set():
            await asyncio.wait(
                {hurried, *calls}, timeout=self._settings.renew_interval, return_when=asyncio.FIRST_COMPLETED
            )
            with contextlib.suppress(PostroomError, TimeoutError):
                await asyncio.gather(*(pump.settle() for pump in self.pumps))
                await keeper.tick()
                await keeper.release_all()
        hurried.cancel()

    async def drain(self) -> None:
        """Until nothing is due, nor below the marks, where there is something if the table was emptied in a way that
        made it count from 1 again."""
        if not self._settings.enabled:
            return
        keeper = self._keeper_or_fail()
        give_up, pause = self._clock.monotonic() + self._settings.lease_ttl + 1, Pause()
        swept: set[tuple[int, int]] = set()
        while not await self._could_tick(keeper, pause, give_up):
            pass
        self._renewal = asyncio.create_task(self._endure(keeper.run))  # until it is finished
        while not self._stopping.is_set():
            if not self._store.may_miss_rows:
                self._sweep(swept)  # before they are emptied: else all that is deleted would be walked through again
            await self._pump_until_idle(self._clock.monotonic() + self._settings.lease_ttl + 1)
            if self._sweep(swept):
                continue
            try:
                if self._clock.monotonic() >= give_up or not await self._others_have_rows():
                    return
            except StoreUnavailable as error:
                await self._wait_for_store(error, pause, give_up)
            await self._sleep(min(0.1, self._settings.lease_ttl / 10))
            keeper.woken.set()
            await asyncio.sleep(0)

    def _sweep(self, swept: set[tuple[int, int]]) -> bool:
        """Slots that were not swept since they came to us; whether there were any."""
        new = self._epochs().items() - swept
        swept |= new
        for pump in self.pumps:
            pump.plan.sweep(slot for slot, _ in new)
        return bool(new)

    async def _could_tick(self, keeper: LeaseKeeper, pause: Pause, give_up: float) -> bool:
        try:
            await keeper.tick()
        except StoreUnavailable as error:
            await self._wait_for_store(error, pause, give_up)
            return self._stopping.is_set()
        return True

    async def _pump_until_idle(self, give_up: float) -> None:
        """After the last thing done, one more look at everything before saying that nothing is left."""
        failed = asyncio.Event()
        while not self._stopping.is_set():
            self._look_everywhere()
            if not any(await _all(*(self._empty(pump, give_up, failed) for pump in self.pumps))):
                return

    async def _empty(self, pump: Pump, give_up: float, failed: asyncio.Event) -> bool:
        """Until there is nothing left for this pump; whether it did anything. If one fails, all end."""
        did, pause = False, Pause()
        while not (self._stopping.is_set() or failed.is_set()):
            pump.stirred.clear()
            try:
                busy = await pump.step()
            except StoreUnavailable as error:
                await self._wait_for_store(error, pause, give_up)
                pump.look_everywhere()
                continue
            except BaseException:
                failed.set()
                raise
            self._up()
            pause.reset()
            did |= busy
            if busy:
                await asyncio.sleep(0)
            elif pump.in_flight or pump.plan.may_go_soon():
                await pump.rest()
            elif not pump.stirred.is_set():
                break
        return did

    async def _wait_for_store(self, error: StoreError, pause: Pause, give_up: float) -> None:
        """A drain waits for its database too, but not for ever."""
        self._down(error)
        if self._clock.monotonic() >= give_up:
            raise error
        await self._sleep(pause.next())

    async def _others_have_rows(self) -> bool:
        """Whether there is something to deliver that is not ours: its owner does it, or that lease or claim ends."""
        if self._rows is not None:
            return await self._rows.is_claimed_elsewhere()
        foreign = [Range(slot, 0, 1) for slot in set(range(SLOTS)) - self._slots()]
        return bool(foreign) and bool((await self._store.fetch(foreign)).messages)

    def _slots(self) -> set[int]:
        return {slot for pump in self.pumps for slot in pump.plan.slots}

    async def _pump(self, pump: Pump) -> None:
        pause = Pause()
        while not self._stopping.is_set():
            pump.stirred.clear()
            try:
                busy = await pump.step()
            except Exception as error:  # a relay outlives whatever its database does
                self._down(error)
                await self._sleep(pause.next())
                pump.look_everywhere()
                continue
            if pump.plan.slots:  # else it has asked nothing
                self._up()
            pause.reset()
            if busy:
                await asyncio.sleep(0)
            else:
                await pump.rest()
            if self._keeper is not None and pump.plan.left():
                self._keeper.woken.set()

    async def _endure(self, duty: Callable[[], Awaitable[None]]) -> None:
        """Run a duty for ever; when the database fails it, pause and begin again."""
        pause = Pause(longest=min(5.0, self._settings.renew_interval))
        while True:
            began = self._clock.monotonic()
            try:
                await self._check_tables()
                await duty()
            except Exception as error:
                self._down(error)
                if self._keeper is not None:
                    self._keeper.expire(self._clock.monotonic())
            if self._clock.monotonic() - began > 10:
                pause.reset()
            await self._sleep(pause.next())

    async def _check_tables(self) -> None:
        """If they were gone: whoever made them anew need not have made the rows that a relay needs."""
        if self._are_tables_missing:
            await self._store.open(claim=self._settings.claim, create_tables=False)
            await self._store.close()
            self._are_tables_missing = False

    # -------------------------------------------------------------------------------------------- the duties

    async def _clean(self) -> None:
        """Relays do not all begin at once."""
        await asyncio.sleep(self._settings.clean_interval * random.random())
        while True:
            await self.clean()
            await asyncio.sleep(self._settings.clean_interval)

    async def clean(self) -> None:
        """The owner of slot 0 cleans, in bounded batches with pauses between, so that delivery goes first."""
        limit = self._settings.clean_batch
        while self._owns_first():
            count = await self._store.clean(retention=self._settings.retention, limit=limit)
            self.notice(events.Cleaned(outbox=self._name, count=count))
            if count < limit:
                break
            await asyncio.sleep(0.1)

    def _owns_first(self) -> bool:
        return self._rows.is_first if self._rows else any(0 in pump.plan.slots for pump in self.pumps)

    # -------------------------------------------------------------------------------------------- from outside

    def call(self, function: Callable[[], None]) -> None:
        """Do it on the relay's loop: at once if we are there, soon if we come from another thread."""
        loop = self._loop
        if self._thread == threading.get_ident():
            function()
        elif loop is not None and not loop.is_closed():
            with contextlib.suppress(RuntimeError):  # closed since
                loop.call_soon_threadsafe(function)

    async def ask(self, question: Coroutine[Any, Any, T]) -> T:
        """Await it on the relay's loop, from whatever loop we are on."""
        if self._loop is None or self._thread == threading.get_ident():
            return await question
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(question, self._loop))

    def ring(self) -> None:
        self.call(self._ring_now)

    def _ring_now(self) -> None:
        for pump in self.pumps:
            pump.ring(pump.plan.slots)

    def _look_everywhere(self) -> None:
        for pump in self.pumps:
            pump.look_everywhere()

    def ask_to_stop(self) -> None:
        """The second time, do not wait for what is in flight."""
        event = self._hurry if self._stopping.is_set() else self._stopping
        if self._loop is None:
            event.set()
        else:
            self.call(event.set)

    def pause(self, globs: Globs) -> None:
        for pump in self.pumps:
            pump.plan.pause(globs)
            pump.stir()

    async def delivered(self, id: str) -> bool:
        return await self._outcomes.wait_for(id)

    def notice(self, event: events.Event) -> None:
        for observer in self._observers:
            try:
                observer.notice(event)
            except Exception:
                log.exception("the observer %r failed", observer)

    # -------------------------------------------------------------------------------------------- trouble

    def _down(self, error: BaseException) -> None:
        if isinstance(error, StoreReplaced):
            self.is_replaced = True
            self._stopping.set()
        if isinstance(error, TablesMissing) and self._keeper is not None:
            self._are_tables_missing = True
            self._keeper.lose_all()
        if type(error) not in self._troubles:
            self._troubles.add(type(error))
            if not isinstance(error, PostroomError):
                log.error("unexpected error", exc_info=error)
            self.notice(events.StoreDown(outbox=self._name, error=describe(error)))

    def _up(self) -> None:
        if self._troubles:
            self._troubles.clear()
            self.notice(events.StoreUp(outbox=self._name))

    async def _sleep(self, pause: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._stopping.wait()

    def _keeper_or_fail(self) -> LeaseKeeper:
        if self._keeper is None:
            raise StoreUnavailable("the relay was stopped before the database answered")
        return self._keeper


def _room(features: Features) -> Room | None:
    return None if features.max_calls is None else Room(features.max_calls)


def _never() -> Breaker:
    return Breaker(initial=1.0, cap=1.0, trip_after=1, state="tripped", until=float("inf"))


async def _all(*work: Coroutine[Any, Any, T]) -> list[T]:
    """Side by side. If one fails the others come to their end first: what they did must not be left half done."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return cast("list[T]", results)


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    """As often as it takes: a driver may answer one with the error that came at the same moment."""
    while going_on := [task for task in tasks if not task.done()]:
        for task in going_on:
            task.cancel()
        await asyncio.wait(going_on, timeout=0.1)
    await asyncio.gather(*tasks, return_exceptions=True)
