"""A run: servers, writers, relays and a consumer at work, faults by the plan, then peace, then what is to be judged."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from postroom import Desk

from . import checker, consumer, relay, writer
from .cast import Player
from .checker import History
from .hands import connect
from .ledger import count_waiting, engine_for, furnish, kinds_of_writing, read_committed, read_dead
from .plan import KEYS, RELAYS, Fault, Plan
from .servers import PLACE, DatabaseMachine, Machine, broker_for, database_for, make_place
from .troubles import DOWN, REFUSING

STORM = 3
"""Relays that come and go in a storm."""
WRONG_BY = 3_600.0
LOOK = 0.2
DRAIN = 180.0
"""Seconds that everything may take to arrive once nothing is broken any more."""
SETTLED = 6.0
"""Seconds without an arrival, after which nothing more is expected if nothing is missing."""
PATIENCE = 60.0
"""The same if something is: twice as long as a message may wait in peace."""
CONSUMER_BACK = 5.0
"""Seconds that a consumer may take to find its broker again, and to read what was sent before it was killed."""
START = 10.0
"""Seconds that a relay, or the database, has to be there."""

HANDS = ("session", "driver")

Say = Callable[[str], None]


@dataclass(slots=True)
class Deed:
    """What a fault has come to."""

    happened: bool = True
    relays: int = 0
    """Hit by it, with something under way."""
    makes_stale: bool = False
    aftermath: float = checker.AFTERMATH


class Stage:
    def __init__(self, plan: Plan, folder: Path, broken: str | None, say: Say) -> None:
        self._plan, self._folder, self._broken, self._say = plan, folder, broken, say
        self._switches = folder / "switches"
        self._database: DatabaseMachine | None = database_for(plan.store)
        self._broker: Machine | None = broker_for(plan.to)
        self._writers: dict[int, Player] = {}
        self._relays: dict[int, Player] = {}
        self._others: list[Player] = []
        self._started = Counter[str]()
        """Of each name."""
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """Whatever is broken is not broken otherwise at the same time."""
        self._over = threading.Event()
        self.began = 0.0
        """By the clock, as all that is written down."""
        self.faults: list[checker.Fault] = []
        self.versions: list[str] = []
        self.drained_in: float | None = None
        self.mishaps: list[str] = []
        """In which the harness itself did not work."""

    async def play(self) -> History:
        with ExitStack() as stack:
            self._switches.mkdir(parents=True)
            await finish(self._start_servers, stack)
            engine = engine_for(self._url("psycopg", "pymysql"))
            stack.callback(engine.dispose)
            await self._make_tables(engine)
            stack.callback(self._end_players)
            stack.callback(self._over.set)
            return await self._act(engine)

    # --- before

    def _start_servers(self, stack: ExitStack) -> None:
        for machine in (self._database, self._broker):
            if machine is not None:
                machine.start(stack)
                self.versions.append(machine.version)
        if self._broker is not None:
            make_place(self._plan.to, self._broker.address)

    async def _make_tables(self, engine: Engine) -> None:
        """Before anybody needs them."""
        async with Desk(self._url("asyncpg", "asyncmy")) as desk:
            await desk.init()
        await asyncio.to_thread(furnish, engine, max(KEYS))

    def _url(self, postgresql: str, mysql: str) -> str:
        """Of the database, for those that no network comes between."""
        if self._database is None:
            return f"sqlite:///{self._folder / 'chaos.db'}"
        driver = {"postgresql": postgresql, "mysql": mysql}[self._plan.store]
        return self._database.url.replace("://", f"+{driver}://", 1)

    # --- the play

    async def _act(self, engine: Engine) -> History:
        self._start(consumer.Orders(address=self._address, place=self._place, log=str(self._arrivals)), "consumer")
        for number in range(RELAYS):
            self._relays[number] = self._start_relay(f"relay {number + 1}")
        for number in range(len(self._plan.keys)):
            self._writers[number] = self._start_writer(number)
        self.began, begin = time.time(), asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as faults:
            for fault in self._plan.faults:
                await _sleep_until(begin + fault.at)
                faults.create_task(self._break(fault))
            await _sleep_until(begin + self._plan.seconds)
        return await self._make_peace(engine)

    async def _break(self, fault: Fault) -> None:
        act: dict[str, Callable[[Fault], Awaitable[None]]] = {
            "kill relay": self._kill_relay,
            "freeze relay": self._freeze_relay,
            "wrong clock": self._restart_with_wrong_clock,
            "storm": self._storm,
            "kill writer": self._kill_writer,
            "hold snapshot": self._hold_snapshot,
            "down": self._switch(DOWN) if self._broker is None else self._shut_broker,
            "refuse": self._switch(REFUSING),
        }
        if fault.kind in act:
            await act[fault.kind](fault)
            return
        verb, _, noun = fault.kind.partition(" ")
        machine = self._database if noun == "database" else self._broker
        assert machine is not None
        await self._break_machine(fault, verb, noun, machine)

    @asynccontextmanager
    async def _fault(self, fault: Fault, target: str) -> AsyncIterator[Deed]:
        async with self._turns[target]:
            begin, deed = time.time(), Deed()
            self._say(f"{fault.kind}{f': {target}' if target not in fault.kind else ''}, {fault.seconds:.1f} s")
            yield deed
            self.faults.append(
                checker.Fault(
                    fault.kind, begin, time.time(), deed.relays, deed.makes_stale, deed.happened, deed.aftermath
                )
            )

    async def _kill_relay(self, fault: Fault) -> None:
        number = fault.choice % RELAYS
        async with self._fault(fault, f"relay {number + 1}") as deed:
            deed.relays, deed.happened = 1, self._relays[number].is_running
            await asyncio.to_thread(self._relays[number].kill)
            await asyncio.sleep(fault.seconds)
            self._relays[number] = self._start_relay(f"relay {number + 1}")

    async def _freeze_relay(self, fault: Fault) -> None:
        number = fault.choice % RELAYS
        async with self._fault(fault, f"relay {number + 1}") as deed:
            deed.relays, deed.makes_stale, deed.happened = 1, True, self._relays[number].is_running
            self._relays[number].freeze()
            await asyncio.sleep(fault.seconds)
            self._relays[number].thaw()

    async def _restart_with_wrong_clock(self, fault: Fault) -> None:
        number = fault.choice % RELAYS
        wrong_by = WRONG_BY if fault.choice % 4 < 2 else -WRONG_BY
        async with self._fault(fault, f"relay {number + 1}") as deed:
            await asyncio.to_thread(self._relays[number].stop)
            wrong = self._relays[number] = self._start_relay(f"relay {number + 1}", wrong_by)
            deed.happened = await _until(lambda: wrong.has_said(relay.AT_WORK), START)
            await asyncio.sleep(fault.seconds)
            await asyncio.to_thread(wrong.stop)
            self._relays[number] = self._start_relay(f"relay {number + 1}")

    async def _storm(self, fault: Fault) -> None:
        async with self._fault(fault, "storm") as deed:
            extra = [self._start_relay(f"extra relay {number + 1}") for number in range(STORM)]
            deed.happened = await _until(lambda: all(player.has_said(relay.AT_WORK) for player in extra), START)
            for player in extra:
                await asyncio.sleep(fault.seconds / STORM)
                await asyncio.to_thread(player.stop)

    async def _kill_writer(self, fault: Fault) -> None:
        number = fault.choice % len(self._writers)
        async with self._fault(fault, f"writer {number + 1}") as deed:
            deed.happened = self._writers[number].is_running
            await asyncio.to_thread(self._writers[number].kill)
            await asyncio.sleep(fault.seconds)
            self._writers[number] = self._start_writer(number)

    async def _hold_snapshot(self, fault: Fault) -> None:
        async with self._fault(fault, "snapshot") as deed:
            deed.happened = await asyncio.to_thread(self._hold, fault.seconds)

    def _hold(self, seconds: float) -> bool:
        """As long as the server lets us. Whether it did at all."""
        held = False
        with suppress(Exception), closing(self._connect()) as connection:
            cursor = connection.cursor()
            cursor.execute(
                {
                    "postgresql": "BEGIN ISOLATION LEVEL REPEATABLE READ",
                    "mysql": "START TRANSACTION WITH CONSISTENT SNAPSHOT",
                    "sqlite": "BEGIN",
                }[self._plan.store]
            )
            cursor.execute("SELECT count(*) FROM chaos_truth")
            cursor.fetchall()
            held = True
            self._over.wait(seconds)
        return held

    def _connect(self) -> Any:
        """The server may be away just now."""
        end = time.monotonic() + START
        while True:
            try:
                return connect(self._url("psycopg", "pymysql"))[0]
            except Exception:
                if time.monotonic() > end or self._over.wait(LOOK):
                    raise

    def _switch(self, name: str) -> Callable[[Fault], Awaitable[None]]:
        async def act(fault: Fault) -> None:
            async with self._fault(fault, name):
                (self._switches / name).touch()
                await asyncio.sleep(fault.seconds)
                (self._switches / name).unlink()

        return act

    async def _shut_broker(self, fault: Fault) -> None:
        assert self._broker is not None
        async with self._fault(fault, "broker") as deed:
            deed.relays = self._count_relays()
            self._broker.proxy.shut()
            await asyncio.sleep(fault.seconds)
            self._broker.proxy.heal()

    async def _break_machine(self, fault: Fault, verb: str, noun: str, machine: Machine) -> None:
        async with self._fault(fault, noun) as deed:
            deed.relays = self._count_relays()
            match verb:
                case "cut":
                    deed.happened = machine.proxy.is_in_use
                    machine.proxy.cut()
                case "stall":
                    await self._stall(fault, noun, machine, deed)
                case "swallow":
                    machine.proxy.swallowed.clear()
                    machine.proxy.swallow_answers(lambda said, _: len(said) > 2_000)
                    await asyncio.sleep(fault.seconds)
                    machine.proxy.heal()
                    deed.happened = machine.proxy.swallowed.is_set()
                case _:
                    deed.happened = machine.is_running
                    deed.aftermath = CONSUMER_BACK if noun == "broker" else checker.AFTERMATH
                    await finish(machine.kill if verb == "kill" else machine.shut_down)
                    await asyncio.sleep(fault.seconds)
                    await finish(machine.start_again)

    async def _stall(self, fault: Fault, noun: str, machine: Machine, deed: Deed) -> None:
        """At the end the network goes on with all that was said, or has lost it."""
        goes_on = fault.choice % 2 == 0
        deed.happened, deed.makes_stale = machine.proxy.is_in_use, goes_on and noun == "broker"
        machine.proxy.freeze()
        await asyncio.sleep(fault.seconds)
        if goes_on:
            machine.proxy.thaw()
        else:
            machine.proxy.heal()

    def _count_relays(self) -> int:
        return sum(player.module == "relay" and player.is_running for player in self._others)

    # --- after

    async def _make_peace(self, engine: Engine) -> History:
        self._say("nothing is broken any more; everything drains")
        await asyncio.to_thread(self._stop, [*self._writers.values()])
        begin = time.monotonic()
        waiting = await self._drained(engine)
        self.drained_in = round(time.monotonic() - begin, 1)
        await asyncio.to_thread(self._stop, [*self._relays.values(), *self._others])
        self.mishaps = await asyncio.to_thread(self._find_mishaps, engine)
        committed = await asyncio.to_thread(read_committed, engine)
        (self._folder / "committed.jsonl").write_text("".join(f"{json.dumps(message)}\n" for message in committed))
        return History(
            committed=committed,
            arrivals=await asyncio.to_thread(consumer.read_log, self._arrivals),
            dead=await asyncio.to_thread(read_dead, engine),
            waiting=waiting,
            faults=self.faults,
            in_flight=relay.IN_FLIGHT,
            failures=[
                f"{player.failure}. Its last words:\n{player.last_words()}"
                for player in self._others
                if player.module != "consumer" and player.failure
            ],
        )

    def _find_mishaps(self, engine: Engine) -> list[str]:
        """What makes the run say little, whatever the judge says of it."""
        found = [
            f"{player.failure}. Its last words:\n{player.last_words()}"
            for player in self._others
            if player.module == "consumer" and player.failure
        ]
        expected = {(hand, order) for hand in HANDS for order in ("locked", "strict", "none")}
        if missing := expected - kinds_of_writing(engine):
            found.append(f"nothing was committed by {', '.join(' '.join(kind) for kind in sorted(missing))} writers")
        if not any(fault.happened for fault in self.faults):
            found.append("nothing was broken: the run was too short for that")
        return found

    async def _drained(self, engine: Engine) -> int:
        """Wait until nothing is left and nothing comes any more; how many are left when patience ends."""
        end, before, since = time.monotonic() + DRAIN, (-1, -1), time.monotonic()
        while True:
            waiting = await asyncio.to_thread(count_waiting, engine)
            now = waiting, self._arrivals.stat().st_size if self._arrivals.exists() else 0
            if now != before:
                before, since = now, time.monotonic()
            quiet = time.monotonic() - since
            may_be_over = not waiting and quiet > SETTLED
            is_over = quiet > PATIENCE or (may_be_over and await asyncio.to_thread(self._is_complete, engine))
            if is_over or time.monotonic() > end:
                return waiting
            await asyncio.sleep(LOOK)

    def _is_complete(self, engine: Engine) -> bool:
        """A consumer may take a while until it has found its broker again."""
        arrived = {arrival.id for arrival in consumer.read_log(self._arrivals)} | read_dead(engine)
        return all(message.id in arrived for message in read_committed(engine))

    # --- players

    @property
    def _arrivals(self) -> Path:
        return self._folder / "arrivals.jsonl"

    @property
    def _place(self) -> str:
        return str(self._folder / "destination.jsonl") if self._plan.to == "file" else PLACE

    @property
    def _address(self) -> str:
        """Of the destination, for its consumer."""
        return f"file://{self._place}" if self._broker is None else self._broker.address

    @property
    def _destination(self) -> str:
        """For relays, on the other side of the network."""
        if self._broker is None:
            return self._address
        options = {"kafka": f"?topic={PLACE}", "amqp": f"?routing_key={PLACE}"}
        return f"{self._broker.proxy.url}{options[self._plan.to]}"

    def _start(self, orders: Any, kind: str, name: str = "") -> Player:
        name = name or kind
        self._started[name] += 1
        log = f"{self._started.total():03}-{name.replace(' ', '-')}.log"
        player = Player(name, kind, orders, self._folder / log)
        self._others.append(player)
        return player

    def _start_relay(self, name: str, wrong_by: float = 0.0) -> Player:
        orders = relay.Orders(
            url=self._url("", "") if self._database is None else self._database.url_of_relays,
            to=self._destination,
            switches=str(self._switches),
            clock_is_wrong_by=wrong_by,
            broken=self._broken,
        )
        return self._start(orders, "relay", name)

    def _start_writer(self, number: int) -> Player:
        name = f"writer {number + 1}"
        orders = writer.Orders(
            url=self._url("psycopg", "pymysql"),
            store=self._plan.store,
            hand=HANDS[number % 2],
            seed=f"{self._plan.seed} {number} {self._started[name]}",
            keys=self._plan.keys[number],
        )
        return self._start(orders, "writer", name)

    def _stop(self, players: list[Player]) -> None:
        for player in players:
            player.stop()

    def _end_players(self) -> None:
        for player in self._others:
            if player.is_running:
                player.kill()


async def _sleep_until(moment: float) -> None:
    await asyncio.sleep(max(0.0, moment - asyncio.get_running_loop().time()))


async def _until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether it came true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(LOOK)
    return True


async def finish(function: Callable[..., None], *arguments: object) -> None:
    """In a thread; whoever is cancelled meanwhile waits for its end, as it cannot be."""
    future = asyncio.get_running_loop().run_in_executor(None, function, *arguments)
    try:
        await asyncio.shield(future)
    except asyncio.CancelledError:
        with suppress(Exception):
            await future
        raise
