"""One pass of the relay: settle what was answered, fetch what may go, hand it to the publishers. And when next."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass

from .. import events
from ..clock import Clock
from ..errors import NoAnswer, NotAttempted, PostroomError, StoreError, StoreUnavailable
from ..message import Message
from ..ports import Postponement, Publisher, Retry, Settlement, Store
from ..settings import Settings, grace
from .journal import Journal
from .memory import BreakerChanged
from .outlet import Outlet
from .plan import Plan

FIRST_SWEEP = 5.0
"""Seconds after the start. Of a table that was emptied so that it counts from 1 again, the marks know nothing."""


class Call:
    """One `publish` call: the batch as the publisher sees it, and what is still open in it."""

    def __init__(self, pump: Pump, outlet: Outlet, messages: Sequence[Message], timeout: float) -> None:
        self.messages = messages
        self.timeout = timeout
        self.outlet = outlet
        self.open = {message.position for message in messages}
        self.slots = {message.slot for message in messages}
        self.departures = -1
        self.last_start = -math.inf
        """When a piece of it may start at the latest, as it was with so many `Plan.departures`."""
        self.limit: asyncio.Timeout | None = None
        self._pump = pump
        self._plan = pump.plan
        self._stirred = pump.stirred
        self._extended = pump.now()
        self._slack = grace(timeout) / 2

    def answer(self, message: Message, error: BaseException | None = None) -> None:
        if message.position not in self.open:
            return  # answered before, or not ours: the first word counts
        self.open.remove(message.position)
        if self.outlet.features.local:
            self._pump.journal.end(message, was_tried=not isinstance(error, NotAttempted))
        now = self._pump.now()
        self._plan.answer(message, error, now)
        self._stirred.set()
        if now - self._extended > self._slack:
            self._extend(now)

    def confirm_all(self) -> None:
        if len(self.open) < len(self.messages):
            for message in self.messages:
                self.answer(message)
            return
        self.open.clear()
        if self.outlet.features.local:
            for message in self.messages:
                self._pump.journal.end(message, was_tried=True)
        self._plan.delivered(self.outlet, self.messages, self._pump.now())
        self._stirred.set()

    def may_start(self) -> bool:
        now = self._pump.now()
        may = self._pump.may_start(self, now)
        if may and now - self._extended > self._slack:
            self._extend(now)
        return may

    def crashes(self, message: Message) -> int:
        return self._pump.journal.crashes(message)

    async def starting(self, message: Message) -> bool:
        return await self._pump.journal.start(message)

    async def find_another(self, message: Message) -> None:
        await self._pump.find_another(message)

    @contextlib.contextmanager
    def aside(self) -> Generator[None]:
        room = self.outlet.room
        if room is None:
            yield
            return
        room.give_back()
        try:
            yield
        finally:
            room.take()

    def _extend(self, now: float) -> None:
        """An answer is progress, and what has just been started has its own time: the time-out begins anew, though not
        for each of a whole batch at once."""
        self._extended = now
        if self.limit is not None and self.limit.when() is not None and not self.limit.expired():
            with contextlib.suppress(RuntimeError):  # the call is over already
                self.limit.reschedule(asyncio.get_running_loop().time() + self.timeout + grace(self.timeout))

    def close(self, error: BaseException) -> None:
        """Answer for all that the publisher left open."""
        for message in self.messages:
            if message.position in self.open:
                self.answer(message, error)


@dataclass(slots=True)
class Tally:
    """What happened since the relay started, or in one `drain`."""

    delivered: int = 0
    retried: int = 0
    dead: int = 0
    superseded: int = 0


class Pump:
    def __init__(
        self,
        *,
        name: str,
        relay: str,
        store: Store,
        plan: Plan,
        outlets: Sequence[Outlet],
        publishers: Mapping[str, Publisher],
        settings: Settings,
        clock: Clock,
        notice: Callable[[events.Event], None],
        tally: Tally,
        journal: Journal,
        find_another: Callable[[Message], Awaitable[None]],
    ) -> None:
        self.plan = plan
        self.journal = journal
        self.find_another = find_another
        self.stirred = asyncio.Event()
        self._name = name
        self._relay = relay
        self._store = store
        self._outlets = outlets
        self._publishers = publishers
        self._settings = settings
        self._clock = clock
        self.now = clock.monotonic
        self._notice = notice
        self._tally = tally
        self._calls: dict[asyncio.Task[None], Call] = {}
        self._unsettled: Settlement | None = None
        self._died: deque[str] = deque(maxlen=1_000)
        """The latest: only deaths since the last success can be taken back."""
        self.is_reading = False
        self.fetched_at = 0.0
        """When anything new was last read."""
        self._look_at = 0.0
        self._looked = 0.0
        self._sweep_at = clock.monotonic() + min(FIRST_SWEEP, store.sweep_interval)

    # ------------------------------------------------------------------------------------------ one pass

    async def step(self) -> bool:
        """One pass; True if there was anything to do. Raises `StoreError`s: nothing is lost, call it again later."""
        self._sweep()
        busy = await self.settle()
        busy |= await self._fetch()
        busy |= await self._fetch_parked()
        busy |= await self._fetch_heads()
        busy |= await self._probe()
        if self._dispatch():
            busy = True
            await asyncio.sleep(0)  # the calls begin, and then we look around
        busy |= await self._look()
        self.tell_changes()
        await self.write_changes()
        return busy

    async def settle(self) -> bool:
        """Write down what was answered. What could not be written comes first the next time, before any new work."""
        settlement = self._unsettled or self.plan.take_settlement()
        if settlement is None:
            return False
        self._unsettled = settlement
        result = await self._store.settle(settlement)
        self._unsettled = None
        self.plan.settled(settlement, result, self._clock.monotonic())
        if result.refused:
            self._notice(events.LeasesLost(outbox=self._name, slots=sorted(result.refused)))
            self.cancel_lost_calls()
        self._report(settlement, result.refused)
        self._look_for_retries(settlement)
        return True

    def _look_for_retries(self, settlement: Settlement) -> None:
        """Messages that hold up nobody wait for their retry in later; be there when they are due."""
        now = self._clock.monotonic()
        delays = [retry.delay for retry in settlement.retries if not self.plan.is_ordered(retry.message)]
        if settlement.refunds:
            delays.append(0.0)
        if delays:
            self._look_at = min(self._look_at, now + min(delays))

    async def _look(self) -> bool:
        """When there are news, or it is time: move what has come due, see what operators decided, and hear of other
        relays' successes."""
        now = self._clock.monotonic()
        if now < self._look_at or not self.plan.slots:
            return False
        slots = list(self.plan.slots)
        self._looked = now
        due = await self._store.due(slots, self._settings.batch_size)
        self.plan.release_holds(await self._store.releasing(slots), now)
        tripped = await self._hear_successes(now)
        if due.moved:
            self.plan.expect_news(slots)
        pauses = [due.next_in, 0.0 if due.moved else None, self._settings.idle_interval if tripped else None]
        self._look_at = now + max(0.0, min((pause for pause in pauses if pause is not None), default=math.inf))
        return bool(due.moved)

    def _sweep(self) -> None:
        now = self._clock.monotonic()
        if now >= self._sweep_at:
            self._sweep_at = now + self._store.sweep_interval
            self.plan.sweep(self.plan.slots)

    async def _fetch(self) -> bool:
        wanted = self.plan.wants(self._clock.monotonic())
        if wanted is None:
            return False
        with self._reading(wanted.limit):
            fetched = await self._store.fetch(wanted.ranges, wanted.limit)
        new = self.plan.take(wanted, fetched, self._clock.monotonic())
        if new:
            self.fetched_at = self._clock.monotonic()
            self._notice(events.Fetched(outbox=self._name, count=new))
        return bool(fetched.messages)

    @contextlib.contextmanager
    def _reading(self, rows: int) -> Generator[None]:
        self.is_reading = True
        try:
            yield
        except BaseException:
            self.plan.could_not_read(rows)
            raise
        finally:
            self.is_reading = False

    async def _fetch_parked(self) -> bool:
        did = False
        for gate, after, limit in self.plan.parked_wants():
            did = True
            with self._reading(limit):
                messages = await self._store.fetch_parked(gate, after, limit)
            self.plan.take_parked(gate, after, messages, limit, self._clock.monotonic())
        return did

    async def _fetch_heads(self) -> bool:
        heads = self.plan.due_heads(self._clock.monotonic())
        if not heads:
            return False
        try:
            with self._reading(len(heads)):
                messages = await self._store.fetch_heads([(held.name.slot, held.position) for held in heads])
        except BaseException:
            self.plan.put_heads_back(heads)
            raise
        self.plan.take_heads(heads, messages, self._clock.monotonic())
        return True

    async def _probe(self) -> bool:
        """Take the turn to probe a tripped destination; relays share the turn, so that one probes at a time."""
        probing = False
        for outlet in self.plan.probes(self._clock.monotonic()):
            if await self._store.take_probe(outlet.name, self._relay, self._settings.publish_timeout):
                if outlet.breaker.probe_due(self._clock.monotonic()):  # another pump may have probed meanwhile
                    outlet.breaker.half_open()
                    probing = True
            else:
                outlet.breaker.probe_lost(self._clock.monotonic(), self._settings.breaker_initial)
        return probing

    async def _hear_successes(self, now: float) -> bool:
        """Whether any destination is tripped."""
        if not any(outlet.breaker.state == "tripped" for outlet in self._outlets):
            return False
        successes = await self._store.successes()
        for outlet in self._outlets:
            outlet.breaker.succeeded_elsewhere(successes.get(outlet.name, 0), now)
        return True

    def _dispatch(self) -> bool:
        started = False
        for outlet in self._outlets:
            while messages := self.plan.next_batch(outlet, self._clock.monotonic()):
                self._start(outlet, messages)
                started = True
            if outlet.room is not None and outlet.ready:
                outlet.room.tell(self.stir)
        return started

    # -------------------------------------------------------------------------------------------- publishing

    def _start(self, outlet: Outlet, messages: Sequence[Message]) -> None:
        call = Call(self, outlet, messages, self._settings.publish_timeout)
        task = asyncio.create_task(self._publish(call))
        self._calls[task] = call
        task.add_done_callback(self._ended)

    async def _publish(self, call: Call) -> None:
        started = self._clock.monotonic()
        publisher = self._publishers[call.outlet.name]
        limit = None if call.outlet.features.local else call.timeout + grace(call.timeout)
        try:
            async with asyncio.timeout(limit) as call.limit:
                await publisher.publish(call)
            call.close(NoAnswer(f"{call.outlet.name} did not say what became of the message"))
        except asyncio.CancelledError as error:
            # Only if somebody cancelled us; a publisher may raise this of its own accord.
            ours = (task := asyncio.current_task()) is not None and task.cancelling() > 0
            reason = NotAttempted("the relay stopped, or lost its lease, before the answer came")
            call.close(reason if ours else error)
        except TimeoutError as error:
            call.close(error if str(error) else TimeoutError(f"{call.outlet.name}: no answer in {call.timeout:g} s"))
        except BaseException as error:  # whatever a publisher raises is an answer
            call.close(error)
        seconds = self._clock.monotonic() - started
        self._notice(
            events.Published(outbox=self._name, destination=call.outlet.name, count=len(call.messages), seconds=seconds)
        )

    def _ended(self, task: asyncio.Task[None]) -> None:
        call = self._calls.pop(task)
        if call.open:  # cancelled before it began
            call.close(NotAttempted("the relay stopped before the message was sent"))
        self.plan.call_ended(call.outlet, self._clock.monotonic())
        self.stir()

    def may_start(self, call: Call, now: float) -> bool:
        """Whether a piece of this call, started now, would be over before any of its leases ends. What is done here may
        take longer than any lease, and is ended when one is lost."""
        if now > call.last_start or call.departures != self.plan.departures:
            call.last_start = self._last_start(call)
            call.departures = self.plan.departures
        return now <= call.last_start

    def _last_start(self, call: Call) -> float:
        slots = [self.plan.slots.get(number) for number in call.slots]
        deadline = min(-math.inf if slot is None or slot.leaving else slot.deadline for slot in slots)
        return deadline if call.outlet.features.local else deadline - call.timeout - grace(call.timeout)

    def stir(self) -> None:
        self.stirred.set()

    async def rest(self) -> None:
        """Sleep until something stirs, or until time alone brings something to do."""
        now = self._clock.monotonic()
        event = self.plan.next_event(now)
        pause = max(0.0, self._look_at - now) if self.plan.slots else self._settings.idle_interval
        pause = pause if event is None else min(pause, event)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(pause, self._settings.idle_interval)):
                await self.stirred.wait()

    def ring(self, slots: Collection[int]) -> None:
        """There may be something to do in these slots. Fetch at once; what else there may be is not asked for with
        every single commit."""
        if self.plan.expect_news(slots):
            self._look_at = min(self._look_at, self._looked + self._settings.poll_interval)
            self.stirred.set()

    def look_everywhere(self) -> None:
        """Anything may have happened."""
        self._look_at = 0.0
        self.plan.expect_news(self.plan.slots)
        self.stirred.set()

    @property
    def in_flight(self) -> int:
        return sum(len(call.open) for call in self._calls.values())

    def local_calls(self) -> list[asyncio.Task[None]]:
        """Those that nobody's time-out ends."""
        return [task for task, call in self._calls.items() if call.outlet.features.local]

    def cancel_lost_calls(self) -> None:
        """A slot was lost: abandon the calls that still have messages of it."""
        lost = self.plan.lost_flights()
        for task, call in list(self._calls.items()):
            if not lost.isdisjoint(call.open):
                task.cancel()

    async def abandon(self) -> None:
        """Drop what is in flight; nothing will be written down."""
        for task in (late := set(self._calls)):
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=1.0)

    async def finish(self, timeout: float, hurry: asyncio.Event, drained: Callable[[], object]) -> bool:
        """Wait for what is in flight, then cancel the rest; settle all. True if everything was answered in time.
        `drained` is called when slots can be given back meanwhile."""
        late = await self._wait_for_calls(timeout, hurry, drained)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=1.0)
        await asyncio.sleep(0)
        await self.settle()
        drained()
        return not late

    async def _wait_for_calls(
        self, timeout: float, hurry: asyncio.Event, drained: Callable[[], object]
    ) -> set[asyncio.Task[None]]:
        """Those that are not over in time, or when somebody is in a hurry."""
        hurried = asyncio.create_task(hurry.wait())
        deadline = self._clock.monotonic() + timeout
        while self._calls and not hurry.is_set() and (left := deadline - self._clock.monotonic()) > 0:
            self.stirred.clear()
            await self._settle_meanwhile(left)
            if self.plan.left():
                drained()
            stirred = asyncio.create_task(self.stirred.wait())
            await asyncio.wait({hurried, stirred}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            stirred.cancel()
        hurried.cancel()
        return set(self._calls)

    async def _settle_meanwhile(self, timeout: float) -> None:
        """What cannot be written down now has its last chance when all is over."""
        with contextlib.suppress(PostroomError, TimeoutError):
            async with asyncio.timeout(timeout):
                await self.settle()

    # -------------------------------------------------------------------------------------------- telling

    def _report(self, settlement: Settlement, refused: frozenset[int]) -> None:
        tally, name = self._tally, self._name
        if settlement.delivered:
            tally.delivered += len(settlement.delivered)
            self._notice(events.Delivered(outbox=name, messages=settlement.delivered))
        for retry in settlement.retries:
            if retry.message.slot not in refused:
                tally.retried += 1
                self._notice(_retried(retry, name))
        for dead in settlement.dead:
            if dead.message.slot not in refused:
                tally.dead += 1
                self._died.append(dead.message.dedupe_id)
                self._notice(
                    events.Died(
                        outbox=name, message=dead.message, reason=dead.reason, error=dead.error, holding=dead.holding
                    )
                )
        for refund in settlement.refunds:
            if refund.message.dedupe_id in self._died:
                self._died.remove(refund.message.dedupe_id)
                tally.dead -= 1
            self._notice(events.Refunded(outbox=name, message=refund.message))
        for message in settlement.superseded:
            tally.superseded += 1
            self._notice(events.Superseded(outbox=name, message=message))
        if settlement.parked:
            self._notice(events.Parked(outbox=name, count=len(settlement.parked)))

    def tell_changes(self) -> None:
        """What became of breakers, to the observers."""
        while self.plan.out_of_order:
            outlet, message = self.plan.out_of_order.pop()
            self._notice(events.OutOfOrder(outbox=self._name, destination=outlet.name, message=message))
        changes = self.plan.changes
        while changes:
            change = changes.popleft()
            self._tell(change)
            if change.topic is None:
                changes.unwritten[change.outlet.name] = change

    def _tell(self, change: BreakerChanged) -> None:
        outlet = change.outlet
        if change.topic is not None:
            self._tell_of_topic(outlet, change.topic)
        elif change.state == "closed":
            self._notice(events.BreakerClosed(outbox=self._name, destination=outlet.name))
        else:
            pause = max(0.0, outlet.breaker.until - self._clock.monotonic())
            self._notice(
                events.BreakerOpened(
                    outbox=self._name, destination=outlet.name, error=outlet.breaker.error, pause=pause
                )
            )

    def _tell_of_topic(self, outlet: Outlet, topic: str) -> None:
        """As it is now: other relays find out themselves."""
        failing, name = outlet.breaker.failing.get(topic), self._name
        if failing is None:
            self._notice(events.TopicResumed(outbox=name, destination=outlet.name, topic=topic))
        elif failing.pauses:
            pause = max(0.0, failing.until - self._clock.monotonic())
            self._notice(
                events.TopicHeldBack(
                    outbox=name, destination=outlet.name, topic=topic, error=failing.error, pause=pause
                )
            )

    async def write_changes(self) -> None:
        """And to the other relays and `status`, through the database. What cannot be written down now is written later,
        and keeps nothing from being delivered: whether the database is there, the next read says."""
        changes = self.plan.changes
        if changes.is_being_written or self._clock.monotonic() < changes.write_at:
            return
        changes.is_being_written = True
        try:
            while changes.unwritten:
                change = next(iter(changes.unwritten.values()))
                try:
                    await self._write(change)
                except StoreUnavailable:
                    changes.write_at = self._clock.monotonic() + changes.pause.next()
                    return
                except StoreError:
                    changes.written(change)
                    raise
                changes.written(change)
                changes.pause.reset()
        finally:
            changes.is_being_written = False

    async def _write(self, change: BreakerChanged) -> None:
        if change.state == "closed":
            await self._store.report_success(change.outlet.name)
        else:
            await self._store.report_trip(change.outlet.name, self._relay, change.outlet.breaker.error)


def _retried(retry: Retry, outbox: str) -> events.Retried:
    was_tried = not isinstance(retry, Postponement)
    return events.Retried(
        outbox=outbox, message=retry.message, error=retry.error, delay=retry.delay, was_tried=was_tried
    )
