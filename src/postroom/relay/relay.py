"""The relay: what an application or the command line starts, stops and asks."""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from sqlalchemy import URL

from ..clock import Clock, SystemClock
from ..duration import Duration, seconds
from ..errors import ConfigurationError, MessageDead, RelayError, StoreError, StoreReplaced, StoreUnavailable
from ..message import TASKS_TOPIC, Message
from ..outbox import Outbox
from ..ports import DESTINATIONS, Functions, Observer, Store
from ..routing import Globs, Routes
from ..settings import Settings
from . import wiring
from .logs import LoggingObserver
from .pause import Pause
from .session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a `drain` did, and what it left: `held` keys on hold, `pending` messages that are still to be delivered."""

    delivered: int
    retried: int
    dead: int
    held: int
    pending: int
    superseded: int = 0


class Relay:
    """Delivers the messages of one outbox.

    `store` is the URL of a database (`sqlite:///app.db`, or `engine.url`) or a `Store`. `publishers` is a URL, a
    `Publisher`, any callable that takes a `Message`, or a mapping of topic globs to those; the first match wins.
    `tasks` are run by the relay itself. Everything else is a setting by its name, see the reference. Nothing connects
    before the relay runs, so a relay may be made at import time and before a fork.

    Publishers given as URLs or callables belong to the relay, which closes them when it stops; publisher objects belong
    to their maker.
    """

    def __init__(
        self,
        store: str | URL | Store,
        publishers: Any = None,
        *,
        outbox: Outbox | None = None,
        tasks: Functions | None = None,
        observers: Sequence[Observer] = (),
        unavailable: Sequence[type[BaseException]] = (),
        clock: Clock | None = None,
        settings: Settings | None = None,
        **options: Any,
    ) -> None:
        if settings is not None and options:
            raise ConfigurationError(f"give settings, or {', '.join(options)}, not both")
        self.settings = settings or Settings.of(**options)
        self.id = ""
        """Of the run that is under way, or was last."""
        self.outbox = _outbox_for(outbox, tasks)
        self.store = wiring.store_for(store, self.outbox)
        if self.settings.claim == "rows":
            self.store.by_rows(self.id)  # a store that cannot do it says so now
        self._publishers: Routes[wiring.Target] = wiring.targets_for(
            publishers, tuple(unavailable), self.settings.concurrency, tasks
        )
        if outbox is not None:
            outbox.limit_payloads(wiring.payload_limits(self._publishers))
        self._tasks = tasks
        self._clock: Clock = clock or SystemClock()
        self._observers = [LoggingObserver(), *observers]
        self._paused: set[str] = set()
        self._session: Session | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None
        self._started: Future[None] = Future()
        self._is_running = False
        self._stop_asked = False

    @property
    def destinations(self) -> dict[str, str]:
        """The name of each, as it is in events and logs, by the topics that go there."""
        return {glob: target.name for glob, target in self._publishers.targets.items() if glob != TASKS_TOPIC}

    # ------------------------------------------------------------------------------------- running

    async def run(self, *, handle_signals: bool = False) -> None:
        """Deliver until `stop` is called, or with `handle_signals` until SIGTERM or SIGINT."""
        with self._running(handle_signals):
            again, pause = await self._run(), Pause(longest=1.0)
            while again and not self._stop_asked:
                await asyncio.sleep(pause.next())
                again = await self._run(again=True)

    async def _run(self, again: bool = False) -> bool:
        """One session; whether there must be another, that knows nothing of the database that was there before."""
        async with self._opened(again=again) as session:
            if not self._stop_asked:
                await session.run()
        return session.is_replaced

    async def drain(self, *, timeout: Duration | None = None, handle_signals: bool = False) -> Report:
        """Deliver until nothing is due, then return. What waits for a retry, a hold, a due time or a destination that
        is unavailable stays pending. Slots of a relay that died are waited for until their leases end, and so long a
        database that does not answer."""
        limit = None if timeout is None else seconds(timeout, name="timeout")
        with self._running(handle_signals):
            return await self._drain(limit)

    async def _drain(self, limit: float | None) -> Report:
        async with self._opened(patience=self.settings.lease_ttl + 1) as session:
            try:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(limit):
                        await session.drain()
            finally:
                await session.finish(self.settings.stop_timeout)
            if session.is_replaced:
                raise StoreReplaced("the database was replaced while it was drained: drain it again")
            await self.store.sample(session.sampler.most)
            left, tally = await self.store.left(), session.tally
            return Report(
                delivered=tally.delivered,
                retried=tally.retried,
                dead=tally.dead,
                held=left.holds,
                pending=left.pending,
                superseded=tally.superseded,
            )

    async def __aenter__(self) -> Self:
        """Run in the background of the current event loop."""
        if self._task is not None:
            raise RelayError("this relay is running already")
        self._started, self._stop_asked = Future(), False
        self._task = asyncio.create_task(self.run())
        try:
            await asyncio.wrap_future(self._started)
        except BaseException:
            task, self._task = self._task, None
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        self.stop()
        if task is not None:
            await task

    def start(self) -> None:
        """Run in a thread of its own, for applications without an event loop. Returns once it is connected."""
        if self._thread is not None:
            raise RelayError("this relay is running already")
        self._started, self._stop_asked = Future(), False
        self._thread = threading.Thread(target=self._run_in_thread, name=f"postroom-{self.outbox.name}", daemon=True)
        self._thread.start()
        try:
            self._started.result()
        except BaseException:  # also Ctrl-C, while it waits for a database that is not there
            self.stop(timeout=self.settings.stop_timeout)
            raise

    def stop(self, timeout: Duration | None = None) -> None:
        """Finish what is in flight within `stop_timeout`, give the leases back, return. From any thread."""
        thread = self._thread
        if self._is_running or self._task is not None or thread is not None:
            self._ask_to_stop()
        if thread is not None and thread is not threading.current_thread():
            thread.join(None if timeout is None else seconds(timeout, name="timeout"))
            if not thread.is_alive():
                self._thread = None

    def _ask_to_stop(self) -> None:
        """The first time gently; a second time it does not wait for what is in flight."""
        self._stop_asked = True
        if (session := self._session) is not None:
            session.ask_to_stop()

    def _run_in_thread(self) -> None:
        with contextlib.suppress(Exception):  # it was announced, or logged
            asyncio.run(self.run())

    @contextlib.contextmanager
    def _running(self, handle_signals: bool) -> Generator[None]:
        if self._is_running:
            raise RelayError("this relay is running already; make another one, or stop it first")
        self._is_running = True
        try:
            with self._signals() if handle_signals else contextlib.nullcontext():
                yield
        finally:
            self._is_running = self._stop_asked = False

    @contextlib.asynccontextmanager
    async def _opened(self, *, patience: float = math.inf, again: bool = False) -> AsyncGenerator[Session]:
        self.id = wiring.new_relay_id()  # not before: a relay may be made before a fork
        session = Session(
            relay=self.id,
            name=self.outbox.name,
            store=self.store,
            publishers=self._publishers,
            settings=self.settings,
            clock=self._clock,
            observers=self._observers,
            max_pending=self.outbox.max_pending,
            tasks=self._abilities(),
        )
        self._session = session
        unsubscribe = self.outbox.on_commit(session.ring)
        try:
            await self._open(session, patience, again)
            yield session
        finally:
            unsubscribe()
            self._session = None
            await session.close()

    def _abilities(self) -> frozenset[str]:
        """What the others are told: the tasks that we know, and whether we deliver messages."""
        ids = () if self._tasks is None else self._tasks.ids
        return frozenset((*ids, DESTINATIONS) if self._publishers.targets.keys() - {TASKS_TOPIC} else ids)

    async def _open(self, session: Session, patience: float, again: bool) -> None:
        """Connect, and tell whoever waits for it, be it good or bad."""
        if self._stop_asked:
            session.ask_to_stop()
        try:
            await session.open(patience, StoreError if again else StoreUnavailable)
        except BaseException as error:
            if not self._started.done():
                self._started.set_exception(error)
            raise
        session.pause(Globs(self._paused))
        if not self._started.done():
            self._started.set_result(None)

    @contextlib.contextmanager
    def _signals(self) -> Generator[None]:
        loop = asyncio.get_running_loop()
        caught = (signal.SIGTERM, signal.SIGINT)
        for number in caught:
            loop.add_signal_handler(number, self._ask_to_stop)
        try:
            yield
        finally:
            for number in caught:
                loop.remove_signal_handler(number)

    # ------------------------------------------------------------------------------------- asking

    def pause(self, *topics: str) -> None:
        """Deliver nothing of the topics that match these globs, in this relay, until `resume`."""
        self._paused.update(topics or ("*",))
        self._apply_pause()

    def resume(self, *topics: str) -> None:
        self._paused.difference_update(topics or tuple(self._paused))
        self._apply_pause()

    def _apply_pause(self) -> None:
        globs, session = Globs(sorted(self._paused)), self._session
        if session is not None:
            session.call(lambda: session.pause(globs))

    async def delivered(self, id: str | Message, *, timeout: Duration | None = None) -> None:
        """Wait until the message, or the one with that id, is delivered, by this relay or another. Raises `MessageDead`
        if it gives up, `TimeoutError` when the time is over, `RelayError` if the relay stops before. The message must
        be committed, or soon be."""
        session = self._session
        if session is None:
            raise RelayError("this relay is not running: start it before waiting for a delivery")
        async with asyncio.timeout(None if timeout is None else seconds(timeout, name="timeout")):
            id = id.id if isinstance(id, Message) else str(id)
            if not await session.ask(session.delivered(id)):
                raise MessageDead(f"message {id} is dead: see `postroom show {id}`")


def _outbox_for(outbox: Outbox | None, tasks: Functions | None) -> Outbox:
    """Tasks are scheduled in an outbox, which must be the one that the relay serves."""
    if outbox is None:
        return Outbox() if tasks is None else tasks.outbox
    if tasks is not None and _identity(outbox) != _identity(tasks.outbox):
        raise ConfigurationError(
            f"the tasks are scheduled in {tasks.outbox!r}, and this relay would serve {outbox!r}: leave out `outbox`, "
            "or give Tasks the same"
        )
    return outbox


def _identity(outbox: Outbox) -> tuple[str, str, str | None]:
    return outbox.name, outbox.prefix, outbox.schema


Publishers = str | Callable[..., Any] | Mapping[str, Any]
